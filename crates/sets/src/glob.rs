//! Patterns of paths, in the syntax of rclone.
//!
//! | pattern | matches |
//! | --- | --- |
//! | `*` | any characters but `/` |
//! | `**` | any characters |
//! | `?` | one character but `/` |
//! | `[a-z]`, `[^a-z]`, `[[:alpha:]]` | one character in or outside a class |
//! | `{one,two}` | one of the alternatives, which may be patterns |
//! | `{{regexp}}` | a regular expression |
//! | `\c` | the character `c` |
//!
//! A pattern that begins with `/` matches from the root, and any other one from the beginning of
//! any name. It ends where the path ends. Source: rclone's documentation, "Filtering, includes and
//! excludes", of version 1.60; a test compares both.
//! Differs: `\` before a letter is the letter, where rclone takes it for a part of a regular
//! expression; alternatives may have alternatives, which rclone refuses up to 1.60; `**` matches
//! line breaks; a class may have an escaped bracket.
//!
//! Leaves out: order and signs of rules (`crate::filter`). Read [`Glob`] first.

use regex::{Regex, RegexBuilder};

/// Maximum bytes of a pattern.
pub const PATTERN_BYTES_MAX: usize = 4_096;
/// Maximum bytes of a compiled pattern.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Maximum depth of nested alternatives.
const ALTERNATIVES_DEPTH_MAX: usize = 16;

/// Why a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GlobError {
    /// More than [`PATTERN_BYTES_MAX`] bytes.
    TooLong {
        /// The bytes.
        bytes: usize,
    },
    /// An opening or closing bracket lacks its counterpart.
    Unmatched {
        /// The bracket.
        bracket: &'static str,
    },
    /// Three stars or more in a row.
    Stars,
    /// A class without a character, or with a range that ends before it begins.
    Class,
    /// The pattern ends with `\`.
    Backslash,
    /// Alternatives are nested too deep.
    TooDeep,
    /// The regular expression is wrong, or too large.
    Regexp {
        /// Its mistake, in one line.
        reason: String,
    },
}

impl std::fmt::Display for GlobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "{bytes} bytes: a pattern has at most {PATTERN_BYTES_MAX}")
            }
            Self::Unmatched { bracket } => {
                write!(f, "`{bracket}` lacks its counterpart: write `\\` before it if it is a name's")
            }
            Self::Stars => f.write_str("more than two stars in a row: `*` stops at `/`, `**` does not"),
            Self::Class => f.write_str("a class in `[]` has no character, or a range in it is reversed"),
            Self::Backslash => f.write_str("nothing follows `\\`: a name's backslash is `\\\\`"),
            Self::TooDeep => {
                write!(f, "alternatives in alternatives: at most {ALTERNATIVES_DEPTH_MAX} deep")
            }
            Self::Regexp { reason } => f.write_str(reason),
        }
    }
}
impl std::error::Error for GlobError {}

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Glob(Regex);

impl Glob {
    /// Compiles a pattern.
    ///
    /// Errors: [`GlobError`].
    pub fn new(pattern: &str, ignores_case: bool) -> Result<Self, GlobError> {
        let text = translate(pattern)?;
        let mut builder = RegexBuilder::new(&text);
        let limited = builder.size_limit(COMPILED_BYTES_MAX).case_insensitive(ignores_case);
        limited.build().map(Self).map_err(|error| {
            let reason = match error {
                regex::Error::CompiledTooBig(_) => "the pattern is too large when compiled".to_owned(),
                // The first lines of the message draw the mistake, and the last line names it.
                error => error.to_string().lines().last().unwrap_or_default().trim().to_owned(),
            };
            GlobError::Regexp { reason }
        })
    }

    /// Returns true if the pattern matches the path; a directory's path ends with a slash.
    pub fn is_match(&self, path: &str) -> bool {
        self.0.is_match(path)
    }
}

/// The regular expression of a pattern.
fn translate(pattern: &str) -> Result<String, GlobError> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(GlobError::TooLong { bytes: pattern.len() });
    }
    let (anchor, rest) = match pattern.strip_prefix('/') {
        Some(rest) => ("^", rest),
        None => ("(?:^|/)", pattern),
    };
    let mut translator = Translator { rest, to: anchor.to_owned(), depth: 0 };
    translator.pattern()?;
    translator.to.push('$');
    Ok(translator.to)
}

struct Translator<'p> {
    rest: &'p str,
    to: String,
    /// Alternatives that are open.
    depth: usize,
}

impl Translator<'_> {
    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    fn literal(&mut self, c: char) {
        self.to.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
    }

    fn escaped(&mut self) -> Result<char, GlobError> {
        self.next().ok_or(GlobError::Backslash)
    }

    fn pattern(&mut self) -> Result<(), GlobError> {
        while let Some(c) = self.next() {
            match c {
                '*' => self.stars()?,
                '?' => self.to.push_str("[^/]"),
                '[' => self.class()?,
                ']' => return Err(GlobError::Unmatched { bracket: "]" }),
                '{' if self.rest.starts_with('{') => self.regexp()?,
                '{' => {
                    self.depth += 1;
                    if self.depth > ALTERNATIVES_DEPTH_MAX {
                        return Err(GlobError::TooDeep);
                    }
                    self.to.push_str("(?:");
                }
                '}' => {
                    self.depth = self.depth.checked_sub(1).ok_or(GlobError::Unmatched { bracket: "}" })?;
                    self.to.push(')');
                }
                ',' if self.depth > 0 => self.to.push('|'),
                '\\' => {
                    let c = self.escaped()?;
                    self.literal(c);
                }
                c => self.literal(c),
            }
        }
        if self.depth > 0 { Err(GlobError::Unmatched { bracket: "{" }) } else { Ok(()) }
    }

    fn stars(&mut self) -> Result<(), GlobError> {
        let after = self.rest.trim_start_matches('*');
        let stars = 1 + self.rest.len() - after.len();
        self.rest = after;
        match stars {
            1 => self.to.push_str("[^/]*"),
            2 => self.to.push_str("(?s:.*)"),
            _ => return Err(GlobError::Stars),
        }
        Ok(())
    }

    /// The regular expression up to the last `}}` of a run of braces.
    fn regexp(&mut self) -> Result<(), GlobError> {
        let body = &self.rest[1..];
        let end = body.find("}}").ok_or(GlobError::Unmatched { bracket: "{{" })?;
        let run = body[end..].len() - body[end..].trim_start_matches('}').len();
        let end = end + run - 2;
        self.to.push_str("(?:");
        self.to.push_str(&body[..end]);
        self.to.push(')');
        self.rest = &body[end + 2..];
        Ok(())
    }

    fn class(&mut self) -> Result<(), GlobError> {
        self.to.push('[');
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.rest = rest;
            self.to.push('^');
        }
        let begin = self.to.len();
        loop {
            if let Some((name, rest)) = named_class(self.rest) {
                self.to.push_str(name);
                self.rest = rest;
                continue;
            }
            match self.next() {
                None => return Err(GlobError::Unmatched { bracket: "[" }),
                Some(']') if self.to.len() > begin => break,
                Some(']') => return Err(GlobError::Class),
                Some(c) => self.range(c)?,
            }
        }
        self.to.push(']');
        Ok(())
    }

    /// One character of a class, or a range that begins with it.
    fn range(&mut self, c: char) -> Result<(), GlobError> {
        let from = if c == '\\' { self.escaped()? } else { c };
        self.in_class(from);
        let mut ahead = self.rest.chars();
        if ahead.next() != Some('-') || matches!(ahead.next(), None | Some(']')) {
            return Ok(());
        }
        self.rest = &self.rest[1..];
        let to = match self.next() {
            Some('\\') => self.escaped()?,
            Some(c) => c,
            None => return Err(GlobError::Unmatched { bracket: "[" }),
        };
        if to < from {
            return Err(GlobError::Class);
        }
        self.to.push('-');
        self.in_class(to);
        Ok(())
    }

    fn in_class(&mut self, c: char) {
        // Some characters have a meaning in classes alone: sets subtract by `--`, meet by `&&`.
        if c.is_ascii_punctuation() {
            self.to.push('\\');
        }
        self.to.push(c);
    }
}

/// A class such as `[:alpha:]` at the beginning of a text, and the rest.
fn named_class(text: &str) -> Option<(&str, &str)> {
    let end = text.starts_with("[:").then(|| text.find(":]"))?? + 2;
    Some(text.split_at(end))
}

/// Patterns of the directories that may hold a match of `pattern`, deepest first. `None` if every
/// directory may.
///
/// Source: rclone's documentation, "Directory filter rules": a rule that includes files makes rules
/// that include their directories.
pub(crate) fn directories_of(pattern: &str) -> Option<Vec<String>> {
    if spans_directories(pattern) {
        return None;
    }
    let mut rest = squashed(pattern);
    let mut found: Vec<String> = Vec::new();
    loop {
        let (slash, stars) = (rest.rfind('/'), rest.rfind("**"));
        let cut = match (slash, stars) {
            (None, None) => break,
            (slash, stars) => slash.max(stars).expect("one was found"),
        };
        let directory =
            if stars > slash { format!("{}**/", &rest[..cut]) } else { format!("{}/", &rest[..cut]) };
        if found.last() != Some(&directory) {
            found.push(directory);
        }
        rest.truncate(cut);
    }
    if found.is_empty() { None } else { Some(found) }
}

/// Returns true if alternatives or regular expressions may hold slashes.
fn spans_directories(pattern: &str) -> bool {
    if pattern.contains("{{") || pattern.contains("}}") {
        return true;
    }
    // As in rclone, an escaped brace counts here: more directories are read than needed.
    let mut groups = pattern.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    if groups.any(|(group, _)| group.contains('/') || group.contains("**")) {
        return true;
    }
    let (mut depth, mut chars) = (0usize, pattern.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '{' if depth > 0 => return true,
            '{' => depth = 1,
            '}' => depth = 0,
            _ => {}
        }
    }
    false
}

/// The pattern with each run of slashes as one.
fn squashed(pattern: &str) -> String {
    let mut to = String::with_capacity(pattern.len());
    for c in pattern.chars() {
        if c != '/' || !to.ends_with('/') {
            to.push(c);
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Glob::new(pattern, false).unwrap_or_else(|error| panic!("{pattern}: {error}")).is_match(path)
    }

    #[test]
    fn patterns_match_as_documented() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("file.jpg", &["file.jpg", "directory/file.jpg"], &["afile.jpg", "directoryfile.jpg"]),
            ("/file.jpg", &["file.jpg"], &["directory/file.jpg"]),
            ("*.jpg", &["file.jpg", "directory/file.jpg"], &["file.jpg/something"]),
            ("*.{jpg,png}", &["file.jpg", "d/file.png"], &["file.gif", "file."]),
            ("/dir/*.jpg", &["dir/file1.jpg"], &["dir/sub/file1.jpg"]),
            ("/dir/**", &["dir/file1.jpg", "dir/sub/file1.jpg"], &["dir", "x/dir/file"]),
            ("l?ss", &["less", "lass", "l\u{e9}ss"], &["floss", "l/ss"]),
            ("h[ae]llo", &["hello", "hallo"], &["hullo"]),
            ("h[^ae]llo", &["hullo"], &["hello"]),
            ("[[:digit:]-]", &["5", "-"], &["a"]),
            ("[a\\]&&b~]", &["a", "]", "&", "b", "~"], &["c"]),
            ("{{.*\\.jpe?g}}", &["file.jpeg", "file.jpg"], &["file.png"]),
            ("{{[a-z]{2}}}", &["ab"], &["a", "a}"]),
            ("a\\*b", &["a*b"], &["axb"]),
            ("a.b(c)|d^$+", &["a.b(c)|d^$+"], &["axb(c)|d^$+"]),
            ("{a,b{c,d}}", &["a", "bc", "bd"], &["b", "c"]),
            ("a**z", &["az", "a/b\nc/z"], &["a/b"]),
        ];
        for (pattern, yes, no) in cases {
            yes.iter().for_each(|path| assert!(matches(pattern, path), "{pattern} {path}"));
            no.iter().for_each(|path| assert!(!matches(pattern, path), "{pattern} {path}"));
        }
        assert!(Glob::new("*.JPG", true).expect("a pattern").is_match("a.jpg"));
    }

    #[test]
    fn wrong_patterns_are_refused() {
        let unmatched = |bracket| GlobError::Unmatched { bracket };
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        assert!(Glob::new(&long[1..], false).is_ok());
        for (pattern, error) in [
            ("[a", unmatched("[")),
            ("[a-", unmatched("[")),
            ("a]", unmatched("]")),
            ("{a", unmatched("{")),
            ("a}", unmatched("}")),
            ("{{a", unmatched("{{")),
            ("***", GlobError::Stars),
            ("[]", GlobError::Class),
            ("[z-a]", GlobError::Class),
            ("a\\", GlobError::Backslash),
            (&"{a,".repeat(17), GlobError::TooDeep),
            (&long, GlobError::TooLong { bytes: PATTERN_BYTES_MAX + 1 }),
        ] {
            assert_eq!(Glob::new(pattern, false).err(), Some(error), "{pattern}");
        }
        for pattern in ["{{(}}", "{{a{1000}{1000}}}"] {
            let error = Glob::new(pattern, false).expect_err("a wrong regular expression");
            assert!(matches!(&error, GlobError::Regexp { reason } if !reason.contains('\n')), "{error}");
        }
    }

    #[test]
    fn included_files_name_their_directories() {
        let of = |pattern| directories_of(pattern).map(|found| found.join(" "));
        assert_eq!(of("/a/b*/c"), Some("/a/b*/ /a/ /".to_owned()));
        assert_eq!(of("a//b**c"), Some("a/b**/ a/".to_owned()));
        for pattern in ["*.jpg", "{a/b,c}", "{{x}}/y", "{a**,b}/c", "{a,{b,c}}/d"] {
            assert_eq!(of(pattern), None, "{pattern}");
        }
        assert_eq!(of("{a,b}/c"), Some("{a,b}/".to_owned()));
        assert_eq!(of(r"{\{c\},a}/b"), Some(r"{\{c\},a}/".to_owned()));
    }
}
