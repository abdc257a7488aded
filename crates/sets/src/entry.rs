//! The entries of a manifest: names, kinds, attributes.
//!
//! Names and link targets are bytes: a file system need not hold UTF-8. Every constructor refuses
//! a value that no entry of a Unix file system has.
//!
//! Leaves out: owners and extended attributes, which a transfer takes on request
//! ([`crate::metadata`]). Read [`Entry`] first.

use crate::metadata::{Metadata, MetadataError};
use anabranch_pieces::FileHash;

/// Maximum bytes of a name, as usual file systems have it (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum bytes of a symbolic link's target and of a hard link's path: Linux's `PATH_MAX` without
/// its terminating zero.
pub const PATH_BYTES_MAX: usize = 4_095;
/// Permission bits of a file: without setuid, setgid and sticky.
pub const FILE_MODE_BITS: u32 = 0o777;
/// Permission bits of a directory: setgid (the group is inherited) and sticky, too.
pub const DIRECTORY_MODE_BITS: u32 = 0o3777;
/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;

/// Why a value cannot be part of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryError {
    /// A name or a component of a path is empty, `.` or `..`.
    NoName,
    /// A name has more than [`NAME_BYTES_MAX`] bytes.
    NameTooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// A name has a slash.
    Slash,
    /// A name, a target or a path has a zero byte.
    Zero,
    /// A target or a path is empty, or has more than [`PATH_BYTES_MAX`] bytes.
    PathLength {
        /// Its bytes.
        bytes: usize,
    },
    /// A mode has bits that its kind of entry cannot have.
    Mode {
        /// The mode.
        mode: u32,
        /// The bits that this kind of entry can have.
        allowed: u32,
    },
    /// The nanoseconds of a time reach a second.
    Nanoseconds {
        /// The nanoseconds.
        nanos: u64,
    },
    /// A value cannot be metadata.
    Metadata(MetadataError),
    /// A hard link has metadata, which its file has, or a symbolic link has extended attributes.
    MetadataOfLink,
}

impl std::fmt::Display for EntryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoName => f.write_str("a name is empty, `.` or `..`"),
            Self::NameTooLong { bytes } => {
                write!(f, "a name of {bytes} bytes: must have at most {NAME_BYTES_MAX}")
            }
            Self::Slash => f.write_str("a name has a slash"),
            Self::Zero => f.write_str("a name, a link's target or a path has a zero byte"),
            Self::PathLength { bytes } => {
                write!(f, "a link's target or path of {bytes} bytes: must have 1 to {PATH_BYTES_MAX}")
            }
            Self::Mode { mode, allowed } => {
                write!(f, "mode {mode:o}: must have no bits but {allowed:o}")
            }
            Self::Nanoseconds { nanos } => {
                write!(f, "{nanos} nanoseconds of a second: must be below {NANOS}")
            }
            Self::Metadata(error) => error.fmt(f),
            Self::MetadataOfLink => f.write_str("a link has metadata that no link can have"),
        }
    }
}
impl std::error::Error for EntryError {}

impl From<MetadataError> for EntryError {
    fn from(error: MetadataError) -> Self {
        Self::Metadata(error)
    }
}

/// Name of an entry in its directory.
///
/// ```
/// use anabranch_sets::Name;
/// assert!(Name::new(b"a\xff").is_ok());
/// assert!(Name::new(b"..").is_err() && Name::new(b"a/b").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// The name with these bytes.
    ///
    /// Errors: empty, `.`, `..`, a slash, a zero byte, more than [`NAME_BYTES_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, EntryError> {
        check_name(bytes)?;
        Ok(Self(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Checks that `bytes` can be a name.
pub(crate) fn check_name(bytes: &[u8]) -> Result<(), EntryError> {
    if bytes.is_empty() || bytes == b"." || bytes == b".." {
        return Err(EntryError::NoName);
    }
    if bytes.len() > NAME_BYTES_MAX {
        return Err(EntryError::NameTooLong { bytes: bytes.len() });
    }
    if bytes.contains(&b'/') {
        return Err(EntryError::Slash);
    }
    if bytes.contains(&0) { Err(EntryError::Zero) } else { Ok(()) }
}

/// Target of a symbolic link: any bytes but zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(Box<[u8]>);

impl Target {
    /// The target with these bytes.
    ///
    /// Errors: empty, a zero byte, more than [`PATH_BYTES_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, EntryError> {
        check_length(bytes)?;
        if bytes.contains(&0) { Err(EntryError::Zero) } else { Ok(Self(bytes.into())) }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn check_length(bytes: &[u8]) -> Result<(), EntryError> {
    let fits = (1..=PATH_BYTES_MAX).contains(&bytes.len());
    if fits { Ok(()) } else { Err(EntryError::PathLength { bytes: bytes.len() }) }
}

/// Path of an entry from the root of its snapshot: names joined by single slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPath(Box<[u8]>);

impl LinkPath {
    /// The path with these bytes.
    ///
    /// Errors: a component is no [`Name`]; more than [`PATH_BYTES_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, EntryError> {
        check_length(bytes)?;
        bytes.split(|byte| *byte == b'/').try_for_each(check_name)?;
        Ok(Self(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if a manifest lists this path before `path`: directories are listed before
    /// their contents, and names in byte order.
    pub fn is_before(&self, path: &[u8]) -> bool {
        compare_paths(&self.0, path).is_lt()
    }
}

/// Compares paths in the order of a manifest: component by component.
pub fn compare_paths(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    a.split(|byte| *byte == b'/').cmp(b.split(|byte| *byte == b'/'))
}

/// A point in time as file systems hold it: seconds since the beginning of 1970, and nanoseconds.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileTime {
    seconds: i64,
    nanos: u32,
}

impl FileTime {
    /// The time `seconds` after the beginning of 1970, and `nanos` after that.
    ///
    /// Errors: `nanos` reaches a second.
    pub fn new(seconds: i64, nanos: u64) -> Result<Self, EntryError> {
        match u32::try_from(nanos) {
            Ok(nanos) if nanos < NANOS => Ok(Self { seconds, nanos }),
            _ => Err(EntryError::Nanoseconds { nanos }),
        }
    }

    /// Whole seconds since the beginning of 1970, rounded down.
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    /// Nanoseconds beyond the seconds.
    pub fn nanos(self) -> u32 {
        self.nanos
    }
}

/// Mode and time of the last modification.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits.
    pub mode: u32,
    /// Time of the last modification.
    pub modified: FileTime,
}

impl Attributes {
    /// Checks that the mode has no bit outside `allowed`.
    pub(crate) fn check(self, allowed: u32) -> Result<(), EntryError> {
        let fits = self.mode & !allowed == 0;
        if fits { Ok(()) } else { Err(EntryError::Mode { mode: self.mode, allowed }) }
    }
}

/// Attributes of an entry, with the metadata that its transfer takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllAttributes {
    /// Mode and time.
    pub attributes: Attributes,
    /// Owner and extended attributes; `None` if there are none, or none are taken.
    pub metadata: Option<Box<Metadata>>,
}

impl From<Attributes> for AllAttributes {
    fn from(attributes: Attributes) -> Self {
        Self { attributes, metadata: None }
    }
}

/// Hash of a manifest's node, separate from the hashes of contents.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeHash(pub [u8; 32]);

impl std::fmt::Display for NodeHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

/// Kind of an entry, with the values that only this kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A plain file.
    File {
        /// Mode and time.
        attributes: Attributes,
        /// Length of the content in bytes.
        size_bytes: u64,
        /// BLAKE3 of the content.
        content: FileHash,
    },
    /// A directory.
    Directory {
        /// Mode and time.
        attributes: Attributes,
        /// Root node of its entries.
        tree: NodeHash,
    },
    /// A symbolic link.
    SymbolicLink {
        /// Time of the link's last modification.
        modified: FileTime,
        /// Its target, which need not exist.
        target: Target,
    },
    /// A further name of a file that the manifest lists earlier.
    HardLink {
        /// Path of the file.
        path: LinkPath,
    },
}

impl Kind {
    /// Checks the mode.
    ///
    /// Errors: setuid, setgid or sticky on a file; setuid on a directory; bits outside of modes.
    pub fn check(&self) -> Result<(), EntryError> {
        match self {
            Self::File { attributes, .. } => attributes.check(FILE_MODE_BITS),
            Self::Directory { attributes, .. } => attributes.check(DIRECTORY_MODE_BITS),
            Self::SymbolicLink { .. } | Self::HardLink { .. } => Ok(()),
        }
    }

    /// Returns true for two kinds with equal contents, whatever their attributes: equal bytes,
    /// equal entries, equal targets.
    pub fn has_content_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File { content, .. }, Self::File { content: theirs, .. }) => content == theirs,
            (Self::Directory { tree, .. }, Self::Directory { tree: theirs, .. }) => tree == theirs,
            (Self::SymbolicLink { target, .. }, Self::SymbolicLink { target: theirs, .. }) => {
                target == theirs
            }
            (Self::HardLink { path }, Self::HardLink { path: theirs }) => path == theirs,
            _ => false,
        }
    }

    /// Root node of a directory's entries; `None` for any other kind.
    pub fn tree(&self) -> Option<NodeHash> {
        match self {
            Self::Directory { tree, .. } => Some(*tree),
            _ => None,
        }
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the entry in the directory.
    pub name: Name,
    /// Its kind and attributes.
    pub kind: Kind,
    /// Owner and extended attributes; `None` if there are none, or none are taken.
    pub metadata: Option<Box<Metadata>>,
}

impl Entry {
    /// The entry without metadata.
    pub fn new(name: Name, kind: Kind) -> Self {
        Self { name, kind, metadata: None }
    }

    /// Checks the mode, and that the metadata can be of this kind of entry.
    ///
    /// Errors: see [`Kind::check`]; metadata of a hard link, extended attributes of a symbolic one.
    pub fn check(&self) -> Result<(), EntryError> {
        self.kind.check()?;
        match (&self.kind, &self.metadata) {
            (Kind::HardLink { .. }, Some(_)) => Err(EntryError::MetadataOfLink),
            (Kind::SymbolicLink { .. }, Some(metadata)) if !metadata.xattrs().is_empty() => {
                Err(EntryError::MetadataOfLink)
            }
            _ => Ok(()),
        }
    }
}
