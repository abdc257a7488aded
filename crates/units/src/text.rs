//! Text from outside, made safe to show: on a terminal, in a log, in a message of one line.
//!
//! Source: Unicode Standard, section 23.1 (control codes), Annex 9, section 2 (directional
//! formatting characters), and the general category Cf (format). Differs: two joiners (U+200C,
//! U+200D) are kept, because some scripts need them, and so are format characters that have a
//! glyph. [`decode`] reads text files in the encodings of common editors. Leaves out: markup (the
//! writers of XML and HTML escape their texts); width. Read [`printable`], [`brief`] and, for
//! messages about an unknown name, [`known`].

use std::borrow::Cow;

/// Returns the text in a form that shows on one line exactly as it is stored.
///
/// Control characters (C0, delete, C1, line breaks of any kind), direction changes and invisible
/// characters become U+FFFD. So a file name cannot move the cursor, change colours, break a table's
/// row, show text backwards or hide text.
///
/// Cost: one pass; no copy if the text is unchanged.
///
/// ```
/// use anabranch_units::text::printable;
/// assert_eq!(printable("größe 日本.tar"), "größe 日本.tar");
/// assert_eq!(printable("all well\x1b[2J\nx"), "all well\u{fffd}[2J\u{fffd}x");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(misleads) { Cow::Owned(text.replace(misleads, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Returns true if [`printable`] leaves the text unchanged.
///
/// ```
/// use anabranch_units::text::is_printable;
/// assert!(is_printable("größe 日本.tar") && !is_printable("gpj.\u{202e}exe"));
/// ```
pub fn is_printable(text: &str) -> bool {
    !text.contains(misleads)
}

/// The beginning of a text in the form of [`printable`]: at most `chars_max` characters, followed
/// by `...` if there are more.
///
/// Cost: only the beginning is read.
///
/// ```
/// use anabranch_units::text::brief;
/// assert_eq!(brief("all\nwell", 8), "all\u{fffd}well");
/// assert_eq!(brief("all is well", 6), "all is...");
/// ```
pub fn brief(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => printable(text).into_owned(),
        Some((end, _)) => printable(&text[..end]).into_owned() + "...",
    }
}

/// Reason why the bytes of a file are not text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The file names an encoding that is not supported.
    Encoding(String),
    /// Bytes that are not UTF-8.
    NotUtf8 {
        /// Line of the first invalid byte, counted from 1.
        line: usize,
    },
    /// Bytes that are not UTF-16, after a byte order mark of UTF-16.
    NotUtf16,
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Encoding(name) => {
                let name = brief(name, 40);
                write!(f, "encoding `{name}` is not read: save the file as UTF-8 (iconv -f {name} -t UTF-8)")
            }
            Self::NotUtf8 { line } => write!(f, "line {line} is not UTF-8: save the file as UTF-8"),
            Self::NotUtf16 => write!(f, "a byte order mark of UTF-16, but no UTF-16: save the file as UTF-8"),
        }
    }
}
impl std::error::Error for DecodeError {}

/// Decodes the text of a file: UTF-8, UTF-16 with a byte order mark, or XML that declares ISO
/// 8859-1. The byte order mark is removed, and every line ends with `\n`.
///
/// Errors: see [`DecodeError`].
///
/// ```
/// use anabranch_units::text::decode;
/// assert_eq!(decode(b"\xef\xbb\xbfa\r\nb\rc".to_vec()), Ok("a\nb\nc".to_owned()));
/// let said = decode(b"a\n\xe4".to_vec()).expect_err("no UTF-8").to_string();
/// assert_eq!(said, "line 2 is not UTF-8: save the file as UTF-8");
/// ```
pub fn decode(bytes: Vec<u8>) -> Result<String, DecodeError> {
    let text = match bytes.as_slice() {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes)?,
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes)?,
        _ => match String::from_utf8(bytes) {
            Ok(mut text) => {
                if text.starts_with('\u{feff}') {
                    text.drain(..'\u{feff}'.len_utf8());
                }
                text
            }
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let bytes = error.into_bytes();
                match declared_encoding(&bytes) {
                    Some(name) if is_latin1(&name) => bytes.into_iter().map(char::from).collect(),
                    Some(name) => return Err(DecodeError::Encoding(name)),
                    None => {
                        let line = 1 + bytes[..valid].iter().filter(|byte| **byte == b'\n').count();
                        return Err(DecodeError::NotUtf8 { line });
                    }
                }
            }
        },
    };
    Ok(if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text })
}

fn utf16(bytes: &[u8], unit: impl Fn([u8; 2]) -> u16) -> Result<String, DecodeError> {
    let pairs = bytes.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(DecodeError::NotUtf16);
    }
    let units: Vec<u16> = pairs.map(|pair| unit([pair[0], pair[1]])).collect();
    String::from_utf16(&units).map_err(|_| DecodeError::NotUtf16)
}

fn is_latin1(name: &str) -> bool {
    ["iso-8859-1", "iso8859-1", "latin1", "latin-1"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The encoding that an XML declaration names; `None` for UTF-8.
fn declared_encoding(bytes: &[u8]) -> Option<String> {
    const DECLARATION_BYTES_MAX: usize = 256;
    let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(DECLARATION_BYTES_MAX)]);
    let declaration = begin.strip_prefix("<?xml")?.split("?>").next()?;
    let value = declaration.split("encoding").nth(1)?.trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let name = value[1..].split(quote).next()?;
    (!name.eq_ignore_ascii_case("utf-8")).then(|| name.to_owned())
}

/// Maximum number of names that [`known`] lists.
const LISTED_MAX: usize = 16;
/// Maximum number of names compared with one, and maximum number of characters in a name.
const COMPARED_MAX: usize = 4_096;
const COMPARED_CHARS_MAX: usize = 64;

/// Lists the known names, for a message about an unknown `name`. First the most similar name, then
/// all names, or the first 16 and the number of further ones.
///
/// Cost: at most 4,096 names are compared.
///
/// ```
/// use anabranch_units::text::known;
/// assert_eq!(known("pariss", ["lima", "paris"]), "did you mean `paris`? There are lima, paris");
/// assert_eq!(known("x", ["lima", "paris"]), "there are lima, paris");
/// ```
pub fn known<N: AsRef<str>>(name: &str, names: impl IntoIterator<Item = N>) -> String {
    let mut listed = String::new();
    let (mut like, mut count) = (None::<(usize, N)>, 0);
    for other in names {
        count += 1;
        let text = other.as_ref();
        if count <= LISTED_MAX {
            listed.push_str(if count > 1 { ", " } else { "" });
            listed.push_str(&printable(text));
        }
        if let Some(far) = distance(name, text).filter(|_| count <= COMPARED_MAX)
            && like.as_ref().is_none_or(|(least, _)| far < *least)
        {
            like = Some((far, other));
        }
    }
    if let more @ 1.. = count.saturating_sub(LISTED_MAX) {
        listed.push_str(&format!(" and {more} more"));
    }
    match (like, count) {
        (_, 0) => "there is none".to_owned(),
        (Some((_, like)), _) => format!("did you mean `{}`? There are {listed}", printable(like.as_ref())),
        (None, _) => format!("there are {listed}"),
    }
}

/// Number of letters to change, insert or delete (Levenshtein 1966) to turn one name into the
/// other, ignoring case and the kind of hyphen. `None` if it exceeds a third of the letters, so
/// that a confusion is implausible.
fn distance(one: &str, other: &str) -> Option<usize> {
    let plain = |text: &str| -> Vec<char> {
        let letters = text.chars().take(COMPARED_CHARS_MAX + 1).flat_map(char::to_lowercase);
        letters.map(|c| if matches!(c, '_' | ' ' | '>') { '-' } else { c }).collect()
    };
    let (one, other) = (plain(one), plain(other));
    let longest = one.len().max(other.len());
    if longest > COMPARED_CHARS_MAX || one.len().abs_diff(other.len()) > longest / 3 {
        return None;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let changed = before + usize::from(a != b);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    Some(row[other.len()]).filter(|far| *far <= longest / 3)
}

/// Returns true if a terminal would not show the character as a glyph.
fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Soft hyphen, Arabic letter mark, Mongolian vowel separator.
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                // Zero width space; direction marks, line breaks, embeddings and overrides.
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                // Word joiner, invisible operators, isolates, deprecated format characters.
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{fffe}'
                | '\u{ffff}'
                // Shorthand, musical and Egyptian format controls; tags.
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #52: files from other systems were refused as invalid UTF-8.
    #[test]
    fn files_of_other_systems_decode() {
        let utf16 = |unit: fn(u16) -> [u8; 2]| -> Vec<u8> {
            "\u{feff}Zürich\r\n".encode_utf16().flat_map(unit).collect()
        };
        for bytes in [
            "Zürich\n".as_bytes().to_vec(),
            "\u{feff}Zürich\r\n".as_bytes().to_vec(),
            utf16(u16::to_le_bytes),
            utf16(u16::to_be_bytes),
        ] {
            assert_eq!(decode(bytes), Ok("Zürich\n".to_owned()));
        }
        let xml = |encoding: &str| {
            [format!("<?xml version='1.0' encoding='{encoding}'?>").as_bytes(), b"\xfc"].concat()
        };
        assert!(decode(xml("ISO-8859-1")).is_ok_and(|text| text.ends_with("?>ü")));
        assert_eq!(decode(xml("windows-1252")), Err(DecodeError::Encoding("windows-1252".into())));
        assert_eq!(decode(xml("UTF-8")), Err(DecodeError::NotUtf8 { line: 1 }));
        assert_eq!(decode(vec![0xff, 0xfe, 0]), Err(DecodeError::NotUtf16));
        assert_eq!(decode(vec![0xff, 0xfe, 0, 0xd8]), Err(DecodeError::NotUtf16));
    }
    use proptest::prelude::*;

    /// #17: a peer's text reached operators' terminals with its escape sequences.
    #[test]
    fn terminal_controls_and_direction_marks_are_replaced() {
        for c in
            ('\0'..='\u{1f}').chain('\u{7f}'..='\u{9f}').chain("\u{202e}\u{2066}\u{2028}\u{200f}".chars())
        {
            assert_eq!(printable(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        for c in " ~\u{a0}\u{ff}\u{600}\u{200c}\u{200d}\u{2027}\u{202f}\u{205f}\u{2070}\u{1f469}".chars() {
            let text = format!("a{c}b");
            assert!(matches!(printable(&text), Cow::Borrowed(same) if same == text), "{c:?}");
        }
    }

    /// #48: names with invisible characters looked like other names.
    #[test]
    fn invisible_format_characters_are_replaced() {
        for c in
            "\u{ad}\u{61c}\u{180e}\u{200b}\u{202a}\u{2060}\u{2069}\u{206f}\u{feff}\u{fff9}\u{1d173}\u{e0041}"
                .chars()
        {
            let text = format!("a{c}b");
            assert_eq!((printable(&text).as_ref(), is_printable(&text)), ("a\u{fffd}b", false), "{c:?}");
        }
    }

    #[test]
    fn known_lists_names_and_suggests_the_most_similar() {
        let names = ["star", "dumbbell", "leaf-spine", "fat-tree"];
        assert!(known("fat_tree", names).starts_with("did you mean `fat-tree`? There are star, "));
        assert!(known("Leafspine", names).starts_with("did you mean `leaf-spine`?"));
        assert_eq!(known("ring", names), "there are star, dumbbell, leaf-spine, fat-tree");
        assert_eq!(known("ring", [""; 0]), "there is none");
        let many = (0..40).map(|n| format!("h{n}"));
        let said = known("h3x9", many);
        assert!(said.starts_with("did you mean `h39`?") && said.ends_with(", h15 and 24 more"), "{said}");
        assert_eq!(known("a\u{202e}", ["b\u{1b}"]), "there are b\u{fffd}");
    }

    proptest! {
        #[test]
        fn name_distance_is_symmetric_and_zero_to_itself(name in "\\PC{1,12}", other in "\\PC{1,12}") {
            prop_assert_eq!(distance(&name, &name), Some(0));
            prop_assert_eq!(distance(&name, &other), distance(&other, &name));
        }

        #[test]
        fn printable_text_stays_unchanged(text in any::<String>()) {
            let shown = printable(&text);
            prop_assert_eq!(shown.chars().count(), text.chars().count());
            prop_assert!(!shown.contains(char::is_control));
            prop_assert_eq!(printable(&shown), shown.as_ref());
        }
    }
}
