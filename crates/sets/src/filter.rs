//! Which entries of a directory belong to a set: rclone's options, rules and order.
//!
//! The first rule that matches decides, and an entry that no rule matches is included. A rule is
//! for files, for directories (its pattern ends with `/`), or for both (`**`). A directory that is
//! excluded is not read. Source: rclone's documentation, "Filtering, includes and excludes", of
//! version 1.60.
//! Differs: a name that is not UTF-8 is compared with each wrong byte as U+FFFD; several
//! `--exclude-if-present` may be given, as from version 1.61 on.
//!
//! Leaves out: reading rules from files. Read [`Filter`] and [`Options`] first.

pub mod quantities;
mod rules;

pub use rules::Rules;

use crate::entry::FileTime;
use crate::glob::{Glob, GlobError, directories_of};
use anabranch_units::text::printable;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of rules, including rules that follow from other rules.
pub const RULES_MAX: usize = 10_000;
/// Maximum bytes of the paths of `--files-from`.
pub const LISTED_BYTES_MAX: usize = 1 << 30;

/// Text with one rule, pattern or path in each line, and its name for messages.
#[derive(Clone, Debug)]
pub struct Text {
    /// Name of its file.
    pub name: String,
    /// The text.
    pub text: String,
}

/// Paths of files, and how they are separated.
#[derive(Clone, Debug)]
pub enum Listed {
    /// One path in each line, as in `--files-from`: blanks around it, empty lines and comments (`#`
    /// or `;`) are ignored.
    Lines(String),
    /// One path in each line, as in `--files-from-raw`: nothing is ignored.
    RawLines(String),
    /// Paths separated by zero bytes. They need not be UTF-8.
    Zeros(Vec<u8>),
}

/// Options of a filter, by rclone's names. Rules are taken in the order of the fields.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--include`: patterns. Other entries are excluded after all rules.
    pub include: Vec<String>,
    /// `--include-from`.
    pub include_from: Vec<Text>,
    /// `--exclude`: patterns.
    pub exclude: Vec<String>,
    /// `--exclude-from`.
    pub exclude_from: Vec<Text>,
    /// `--filter`: rules.
    pub filter: Vec<String>,
    /// `--filter-from`.
    pub filter_from: Vec<Text>,
    /// `--files-from`: these files and no others.
    pub files_from: Vec<Listed>,
    /// `--exclude-if-present`: names of files that exclude their directory.
    pub exclude_if_present: Vec<String>,
    /// `--min-size`, in bytes.
    pub size_bytes_min: Option<u64>,
    /// `--max-size`, in bytes.
    pub size_bytes_max: Option<u64>,
    /// Files modified before this time are excluded (`--max-age`).
    pub modified_min: Option<FileTime>,
    /// Files modified after this time are excluded (`--min-age`).
    pub modified_max: Option<FileTime>,
    /// `--ignore-case`.
    pub ignores_case: bool,
}

/// Reason why options are not a valid filter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterError {
    /// A rule begins with none of `+ `, `- ` and `!`.
    Rule {
        /// The rule.
        rule: String,
        /// Option of the rule, or its file and line.
        place: String,
    },
    /// A pattern is wrong.
    Pattern {
        /// The pattern.
        pattern: String,
        /// Option of the pattern, or its file and line.
        place: String,
        /// The mistake.
        error: GlobError,
    },
    /// More than [`RULES_MAX`] rules.
    TooMany,
    /// More than [`LISTED_BYTES_MAX`] bytes of paths.
    ListedTooLong,
    /// `--files-from` beside another option.
    FilesFromAlone,
    /// A listed path is not UTF-8, so it cannot be sent to other sites.
    NotText,
    /// No file can have the size or the age.
    Range {
        /// The two options.
        options: &'static str,
    },
}

impl std::fmt::Display for FilterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rule { rule, place } => write!(
                f,
                "`{}`: a rule begins with `+ ` or `- `, or is `!` ({})",
                printable(rule),
                printable(place)
            ),
            Self::Pattern { pattern, place, error } => {
                write!(f, "`{}`: {error} ({})", printable(pattern), printable(place))
            }
            Self::TooMany => write!(f, "more than {RULES_MAX} rules, with the rules of their directories"),
            Self::ListedTooLong => {
                write!(f, "--files-from: more than {LISTED_BYTES_MAX} bytes: split the list")
            }
            Self::FilesFromAlone => f.write_str("--files-from lists all files: leave out the other filters"),
            Self::NotText => f.write_str(
                "--files-from0: a path is not UTF-8: a filter that is sent to sites holds text only",
            ),
            Self::Range { options } => write!(f, "{options}: no file is between them"),
        }
    }
}
impl std::error::Error for FilterError {}

#[derive(Clone, Debug)]
struct Rule {
    includes: bool,
    glob: Glob,
}

/// The files of `--files-from`, and the directories above them.
#[derive(Clone, Debug, Default)]
struct ListedPaths {
    files: BTreeSet<Vec<u8>>,
    directories: BTreeSet<Vec<u8>>,
    bytes: usize,
}

/// Decides which entries belong to a set.
///
/// ```
/// use anabranch_sets::filter::{Filter, Options};
/// let filter = ["- *.tmp", "+ /data/**", "- *"].map(str::to_owned).to_vec();
/// let filter = Filter::new(&Options { filter, ..Options::default() })?;
/// assert!(filter.includes_path(b"data/a/b") && !filter.includes_path(b"data/x.tmp"));
/// assert!(filter.includes_directory(b"data") && !filter.includes_directory(b"other"));
/// # Ok::<(), anabranch_sets::filter::FilterError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Filter {
    files: Vec<Rule>,
    directories: Vec<Rule>,
    /// Paths of `--files-from`, which clones of the filter share.
    listed: Option<Arc<ListedPaths>>,
    markers: Vec<String>,
    size_bytes: (Option<u64>, Option<u64>),
    modified: (Option<FileTime>, Option<FileTime>),
    ignores_case: bool,
}

/// Lines that are neither empty nor comments, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with(['#', ';']))
}

impl Filter {
    /// The filter with these options.
    ///
    /// Errors: [`FilterError`].
    pub fn new(options: &Options) -> Result<Self, FilterError> {
        let mut filter = Self {
            markers: options.exclude_if_present.clone(),
            size_bytes: (options.size_bytes_min, options.size_bytes_max),
            modified: (options.modified_min, options.modified_max),
            ignores_case: options.ignores_case,
            ..Self::default()
        };
        if matches!(filter.size_bytes, (Some(min), Some(max)) if min > max) {
            return Err(FilterError::Range { options: "--min-size above --max-size" });
        }
        if matches!(filter.modified, (Some(min), Some(max)) if min > max) {
            return Err(FilterError::Range { options: "--min-age above --max-age" });
        }
        for (includes, patterns, from, option) in [
            (true, &options.include, &options.include_from, "--include"),
            (false, &options.exclude, &options.exclude_from, "--exclude"),
        ] {
            for pattern in patterns {
                filter.add(includes, pattern, option)?;
            }
            for text in from {
                for (line, pattern) in lines(&text.text) {
                    filter.add(includes, pattern, &format!("{}:{line}", text.name))?;
                }
            }
        }
        for rule in &options.filter {
            filter.add_rule(rule, "--filter")?;
        }
        for text in &options.filter_from {
            for (line, rule) in lines(&text.text) {
                filter.add_rule(rule, &format!("{}:{line}", text.name))?;
            }
        }
        if !options.include.is_empty() || !options.include_from.is_empty() {
            filter.add(false, "/**", "--include")?;
        }
        for listed in &options.files_from {
            if !filter.has_no_rules() {
                return Err(FilterError::FilesFromAlone);
            }
            Arc::make_mut(filter.listed.get_or_insert_default()).add(listed)?;
        }
        Ok(filter)
    }

    /// Returns true if everything is included.
    pub fn is_open(&self) -> bool {
        self.has_no_rules() && self.listed.is_none()
    }

    /// The filter with the rules about paths alone, by which two copies agree on each path.
    #[must_use]
    pub fn of_paths(&self) -> Self {
        Self {
            files: self.files.clone(),
            directories: self.directories.clone(),
            listed: self.listed.clone(),
            ignores_case: self.ignores_case,
            ..Self::default()
        }
    }

    /// The first option that looks at more than paths; `None` if all look at paths alone. By such
    /// an option, an entry can be included in one copy and excluded in another.
    pub fn beyond_paths(&self) -> Option<&'static str> {
        let options = [
            ("--exclude-if-present", self.has_markers()),
            ("--min-size", self.size_bytes.0.is_some()),
            ("--max-size", self.size_bytes.1.is_some()),
            ("--min-age", self.modified.1.is_some()),
            ("--max-age", self.modified.0.is_some()),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    fn has_no_rules(&self) -> bool {
        self.files.is_empty()
            && self.directories.is_empty()
            && self.markers.is_empty()
            && self.size_bytes == (None, None)
            && self.modified == (None, None)
    }

    fn add_rule(&mut self, rule: &str, place: &str) -> Result<(), FilterError> {
        if rule == "!" {
            self.files.clear();
            self.directories.clear();
            return Ok(());
        }
        match (rule.strip_prefix("+ "), rule.strip_prefix("- ")) {
            (Some(pattern), _) => self.add(true, pattern, place),
            (_, Some(pattern)) => self.add(false, pattern, place),
            _ => Err(FilterError::Rule { rule: rule.to_owned(), place: place.to_owned() }),
        }
    }

    fn add(&mut self, includes: bool, pattern: &str, place: &str) -> Result<(), FilterError> {
        let names_directory = pattern.ends_with('/');
        // An excluded directory excludes all entries in it.
        let pattern: Cow<'_, str> =
            if names_directory && !includes { format!("{pattern}**").into() } else { pattern.into() };
        let spans = pattern.contains("**");
        let compile = |text: &str| {
            Glob::new(text, self.ignores_case).map_err(|error| FilterError::Pattern {
                pattern: pattern.clone().into_owned(),
                place: place.to_owned(),
                error,
            })
        };
        let glob = compile(&pattern)?;
        let mut directories = Vec::new();
        // A rule that excludes files excludes no directory, except the pattern that matches all
        // files.
        if (!names_directory || spans) && (includes || pattern == "*") {
            for directory in directories_of(&pattern).unwrap_or_else(|| vec!["/**".to_owned()]) {
                // The root is always read.
                if directory != "/" {
                    directories.push(compile(&directory)?);
                }
            }
        }
        if names_directory || spans {
            directories.push(glob.clone());
        }
        self.directories.extend(directories.into_iter().map(|glob| Rule { includes, glob }));
        if !names_directory || spans {
            self.files.push(Rule { includes, glob });
        }
        if self.files.len() + self.directories.len() > RULES_MAX {
            return Err(FilterError::TooMany);
        }
        Ok(())
    }

    /// Returns true if an entry with this path, other than a directory, belongs to the set,
    /// whatever its size and time.
    pub fn includes_path(&self, path: &[u8]) -> bool {
        match &self.listed {
            Some(listed) => listed.files.contains(path),
            None => decided(&self.files, &text(path)),
        }
    }

    /// Returns true if a file belongs to the set.
    pub fn includes_file(&self, path: &[u8], size_bytes: u64, modified: FileTime) -> bool {
        self.size_bytes.0.is_none_or(|min| size_bytes >= min)
            && self.size_bytes.1.is_none_or(|max| size_bytes <= max)
            && self.modified.0.is_none_or(|min| modified >= min)
            && self.modified.1.is_none_or(|max| modified <= max)
            && self.includes_path(path)
    }

    /// Returns true if a directory belongs to the set and is read. Its path has no slash at its
    /// end.
    pub fn includes_directory(&self, path: &[u8]) -> bool {
        match &self.listed {
            Some(listed) => listed.directories.contains(path),
            None if self.directories.is_empty() => true,
            None => {
                let mut path = text(path).into_owned();
                path.push('/');
                decided(&self.directories, &path)
            }
        }
    }

    /// Returns true if a file with this name excludes its directory.
    pub fn is_marker(&self, name: &[u8]) -> bool {
        self.markers.iter().any(|marker| marker.as_bytes() == name)
    }

    /// Returns true if some file excludes its directory.
    pub fn has_markers(&self) -> bool {
        !self.markers.is_empty()
    }
}

fn decided(rules: &[Rule], path: &str) -> bool {
    rules.iter().find(|rule| rule.glob.is_match(path)).is_none_or(|rule| rule.includes)
}

/// A path as text, with each byte that is not UTF-8 as U+FFFD.
fn text(path: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(path) {
        return text.into();
    }
    let mut to = String::with_capacity(path.len() + 8);
    for chunk in path.utf8_chunks() {
        to.push_str(chunk.valid());
        to.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    to.into()
}

impl ListedPaths {
    fn add(&mut self, listed: &Listed) -> Result<(), FilterError> {
        match listed {
            Listed::Lines(text) => lines(text).try_for_each(|(_, path)| self.insert(path.as_bytes())),
            Listed::RawLines(text) => text.lines().try_for_each(|path| self.insert(path.as_bytes())),
            Listed::Zeros(bytes) => bytes.split(|byte| *byte == 0).try_for_each(|path| self.insert(path)),
        }
    }

    fn insert(&mut self, path: &[u8]) -> Result<(), FilterError> {
        let begin = path.iter().take_while(|byte| **byte == b'/').count();
        let end = path.iter().rev().take_while(|byte| **byte == b'/').count();
        let Some(mut path) = path.get(begin..path.len() - end).filter(|path| !path.is_empty()) else {
            return Ok(());
        };
        self.bytes += path.len();
        self.files.insert(path.to_vec());
        while let Some(slash) = path.iter().rposition(|byte| *byte == b'/') {
            path = &path[..slash];
            self.bytes += path.len();
            if !self.directories.insert(path.to_vec()) {
                break;
            }
        }
        if self.bytes > LISTED_BYTES_MAX { Err(FilterError::ListedTooLong) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
