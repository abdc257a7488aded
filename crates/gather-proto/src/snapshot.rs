//! Names of the objects that make up a snapshot of a directory.
//!
//! A client asks for the description of `DIR/`, whose hash is the id of the directory's snapshot.
//! The server then holds three objects: the list of the entries, the stream of the list and all
//! contents, and a line about entries that are not in the list. Their names have the id, so a
//! server with another version lacks these objects. The names begin with the prefix that no served
//! file may have.
//!
//! Leaves out: the bytes of the objects (the `disk` room). Read [`SnapshotObject`] first.

use crate::msg::NAME_BYTES_MAX;
use anabranch_pieces::name::{RESERVED, normal_entry};
use std::fmt;

/// Hexadecimal digits of a snapshot's id.
const ID_DIGITS: usize = 64;
/// Bytes that a name has beside the directory's.
const SUFFIX_BYTES: usize = RESERVED.len() + ID_DIGITS + 1 + 6;

/// Maximum length of a directory's name in bytes, with its slash.
pub const DIRECTORY_BYTES_MAX: usize = NAME_BYTES_MAX - SUFFIX_BYTES;

/// Name of the served folder itself.
pub const ROOT: &str = "./";

/// Returns true for the one spelling of a directory's name: [`ROOT`], or a path below the served
/// folder that ends with a slash.
pub fn is_directory(name: &str) -> bool {
    let is_normal = || normal_entry(name).as_deref() == Ok(name) && !name.starts_with('/');
    name.ends_with('/') && name.len() <= DIRECTORY_BYTES_MAX && (name == ROOT || is_normal())
}

/// Part of a snapshot.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SnapshotPart {
    /// The list of the directory's entries: the beginning of the stream.
    List,
    /// The list, and behind it the contents of all files.
    Stream,
    /// A line about entries that the list lacks: on other file systems, of special kinds, or yet to
    /// be written by a transfer. Empty for a complete list.
    Gaps,
}

impl SnapshotPart {
    const ALL: [Self; 3] = [Self::List, Self::Stream, Self::Gaps];

    const fn word(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Stream => "stream",
            Self::Gaps => "gaps",
        }
    }
}

/// An object of a snapshot.
///
/// ```
/// use anabranch_gather_proto::snapshot::{SnapshotObject, SnapshotPart};
/// let object = SnapshotObject { directory: "a/b/".into(), id: [7; 32], part: SnapshotPart::List };
/// assert_eq!(SnapshotObject::parse(&object.to_string()), Some(object));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotObject {
    /// Name of the directory, with a slash at its end.
    pub directory: String,
    /// Id of the snapshot.
    pub id: [u8; 32],
    /// The part.
    pub part: SnapshotPart,
}

impl fmt::Display for SnapshotObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{RESERVED}", self.directory)?;
        self.id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ".{}", self.part.word())
    }
}

impl SnapshotObject {
    /// Parses a name; `None` for the name of any other object.
    pub fn parse(name: &str) -> Option<Self> {
        let end = name.rfind('/')? + 1;
        let (directory, file) = name.split_at(end);
        let (digits, word) = file.strip_prefix(RESERVED)?.split_once('.')?;
        let part = SnapshotPart::ALL.into_iter().find(|part| part.word() == word)?;
        Some(Self { directory: directory.to_owned(), id: parse_id(digits)?, part })
    }
}

/// Parses the id of a snapshot: 64 hexadecimal digits in lower case.
pub fn parse_id(digits: &str) -> Option<[u8; 32]> {
    let is_lower = digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let hash = blake3::Hash::from_hex(digits).ok().filter(|_| is_lower)?;
    Some(*hash.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_of_parts_are_parsed_again(directory in "([a-z.]{1,8}/){1,4}", id: [u8; 32], part in prop::sample::select(&SnapshotPart::ALL[..])) {
            let object = SnapshotObject { directory: directory.clone(), id, part };
            let name = object.to_string();
            prop_assert!(name.len() <= directory.len() + SUFFIX_BYTES);
            prop_assert_eq!(SnapshotObject::parse(&name), Some(object));
        }

        #[test]
        fn parsed_names_have_one_spelling(name in "(a/)?\\.anabranch-[0-9a-fA-F]{63,65}\\.(list|stream|gaps|partial)") {
            if let Some(object) = SnapshotObject::parse(&name) {
                prop_assert_eq!(object.to_string(), name);
            }
        }
    }

    #[test]
    fn directories_have_one_spelling() {
        for good in ["./", "a/", "a/b c/", "\u{fc}/"] {
            assert!(is_directory(good), "{good}");
        }
        for bad in ["", "/", "a", "/a/", "a//", "./a/", "../", "a/../b/", ".anabranch-x/", "a\n/"] {
            assert!(!is_directory(bad), "{bad}");
        }
    }

    #[test]
    fn longest_directory_name_leaves_room_for_its_parts() {
        let directory = "d".repeat(DIRECTORY_BYTES_MAX - 1) + "/";
        let object = SnapshotObject { directory, id: [0; 32], part: SnapshotPart::Stream };
        assert!(!is_directory(&object.directory), "no component is so long");
        assert_eq!(object.to_string().len(), NAME_BYTES_MAX);
    }
}
