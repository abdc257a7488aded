//! Names of files: which names are valid, which are reserved for the working files of a transfer,
//! and when two names are equal.
//!
//! Leaves out: folders and links, which only the machine with the files knows. Read [`normal`]
//! first.

use anabranch_units::text::printable;

/// Prefix of the names of working files. Neither an object nor a folder of an object may have a
/// name with this prefix.
pub const RESERVED: &str = ".anabranch-";
/// Maximum number of bytes between two slashes. No common file system accepts more.
pub const COMPONENT_BYTES_MAX: usize = 255;

/// The reason why a text is not a valid file name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty after normalisation, or is a folder's name because it ends with a slash.
    Folder {
        /// The refused name.
        name: String,
    },
    /// The name has a component `..`.
    Parent {
        /// The refused name.
        name: String,
    },
    /// The name has an unprintable character, such as a line break or an escape.
    Control {
        /// The refused name.
        name: String,
    },
    /// A component is reserved for working files.
    Reserved {
        /// The refused name.
        name: String,
    },
    /// A component is too long.
    TooLong {
        /// The refused component.
        component: String,
        /// Length of the component in bytes.
        bytes: usize,
    },
}

impl std::fmt::Display for NameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder { name } if name.ends_with('/') => {
                let name = printable(name);
                write!(f, "`{name}`: this is a folder's name: add the file's, as in `{name}FILE`")
            }
            Self::Folder { name } => write!(f, "`{}`: this names no file", printable(name)),
            Self::Parent { name } => write!(
                f,
                "`{}`: `..` leads outside the folder that a site serves: name a file as it is called below --dir",
                printable(name)
            ),
            Self::Control { name } => write!(
                f,
                "`{}`: a control character (\u{fffd}) cannot be part of a name here: rename the file",
                printable(name)
            ),
            Self::Reserved { name } => write!(
                f,
                "`{}`: names that begin with `{RESERVED}` are kept for files that are still arriving: use another name",
                printable(name)
            ),
            Self::TooLong { component, bytes } => write!(
                f,
                "`{}`: {bytes} bytes in one part of a name: must be at most {COMPONENT_BYTES_MAX}",
                printable(component)
            ),
        }
    }
}
impl std::error::Error for NameError {}

/// Whether a component of a path is the name of a working file on some file system. File systems
/// may ignore case when they compare names, and may ignore some characters (only non-ASCII ones).
///
/// ```
/// use anabranch_pieces::name::is_reserved;
/// assert!(is_reserved(b".Anabranch-1.partial") && is_reserved(".anab\u{ad}ranch-".as_bytes()));
/// assert!(!is_reserved(b"anabranch-1") && !is_reserved(b"x.partial"));
/// ```
pub fn is_reserved(component: &[u8]) -> bool {
    let ascii = component.iter().filter(|b| b.is_ascii()).map(u8::to_ascii_lowercase);
    ascii.take(RESERVED.len()).eq(RESERVED.bytes())
}

/// The normal form of a name: without empty components, and without components that are `.`. An
/// absolute name stays absolute.
///
/// Errors: the text is not a valid file name on every site.
///
/// ```
/// use anabranch_pieces::name::normal;
/// assert_eq!(normal("./a//b").as_deref(), Ok("a/b"));
/// assert_eq!(normal("/srv/./x").as_deref(), Ok("/srv/x"));
/// assert!(normal("../x").is_err() && normal("sub/").is_err() && normal("a\nb").is_err());
/// ```
pub fn normal(name: &str) -> Result<String, NameError> {
    let all = || name.to_owned();
    let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(NameError::Parent { name: all() });
    }
    if parts.is_empty() || name.ends_with('/') || name.ends_with("/.") {
        return Err(NameError::Folder { name: all() });
    }
    if name.chars().any(char::is_control) {
        return Err(NameError::Control { name: all() });
    }
    if parts.iter().any(|part| is_reserved(part.as_bytes())) {
        return Err(NameError::Reserved { name: all() });
    }
    if let Some(part) = parts.iter().find(|part| part.len() > COMPONENT_BYTES_MAX) {
        return Err(NameError::TooLong { component: (*part).to_owned(), bytes: part.len() });
    }
    let front = if name.starts_with('/') { "/" } else { "" };
    Ok(front.to_owned() + &parts.join("/"))
}

/// The normal form of a file's name, or of a directory's name, which ends with a slash.
///
/// Errors: see [`normal`].
///
/// ```
/// use anabranch_pieces::name::normal_entry;
/// assert_eq!(normal_entry("./a//b//").as_deref(), Ok("a/b/"));
/// assert_eq!(normal_entry("a").as_deref(), Ok("a"));
/// assert!(normal_entry("/").is_err() && normal_entry("../a/").is_err());
/// ```
pub fn normal_entry(name: &str) -> Result<String, NameError> {
    match directory(name) {
        Some(directory) => Ok(normal(directory)? + "/"),
        None => normal(name),
    }
}

/// The name of a directory without its slashes at the end; `None` for a file's name.
pub fn directory(name: &str) -> Option<&str> {
    name.ends_with('/').then(|| name.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Issue #17: a file sent as `x.partial` replaced the working file of `x`.
    #[test]
    fn working_file_names_are_refused_in_every_spelling() {
        for bad in [
            ".anabranch-0.partial",
            "a/.anabranch-0.journal",
            ".ANABRANCH-0",
            "/srv/.anabranch-/x",
            ".ana\u{200d}branch-x",
        ] {
            assert!(matches!(normal(bad), Err(NameError::Reserved { .. })), "{bad}");
        }
        for good in ["x.partial", "x.partial.journal", ".anabranch", "a.anabranch-1", "anabranch-"] {
            assert_eq!(normal(good).as_deref(), Ok(good));
        }
    }

    #[test]
    fn component_may_be_as_long_as_file_systems_allow() {
        assert!(normal(&"x".repeat(255)).is_ok());
        assert_eq!(
            normal(&format!("a/{}", "x".repeat(256))).map_err(|e| e.to_string().contains("256 bytes")),
            Err(true)
        );
    }

    #[test]
    fn error_for_an_invalid_name_is_one_line() {
        for bad in ["", ".", "/", "sub/", "sub/.", "a/../b", "a\u{1b}[2Jb", "a\nb", "\u{85}"] {
            let said = normal(bad).expect_err(bad).to_string();
            assert!(!said.contains('\n') && !said.contains('\u{1b}'), "{said}");
        }
    }

    proptest! {
        #[test]
        fn normal_form_of_a_name_is_unique(parts in proptest::collection::vec("[a-zäß .]{1,6}", 1..5), noise in any::<u8>()) {
            let parts: Vec<_> = parts.into_iter().filter(|p| p != "." && p != "..").collect();
            prop_assume!(!parts.is_empty());
            let plain = parts.join("/");
            let between = ["/", "//", "/./", "/.//"][usize::from(noise) % 4];
            let spelled = format!("{}{}", ["", "./", ".//"][usize::from(noise) / 4 % 3], parts.join(between));
            prop_assert_eq!(normal(&spelled).expect("a good name"), plain.clone());
            prop_assert_eq!(normal(&plain).expect("a good name"), plain);
        }
    }
}
