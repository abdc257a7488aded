//! The header of a journal, and the names of working files.

use super::ENTRY_BYTES;
use crate::folder::working_name;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The header of a journal, before its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Final name of the file, in the journal's folder.
    pub name: Vec<u8>,
    /// Length of the complete file in bytes.
    pub length: u64,
}

impl Header {
    /// Length of the header, a whole number of entries. The fields are magic and version, lengths
    /// of file and name, name, zeros.
    pub(super) const BYTES: usize = 6 * ENTRY_BYTES;
    const MAGIC: [u8; 8] = *b"anabran\x01";
    const NAME_AT: usize = 18;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..18].copy_from_slice(&(self.name.len() as u16).to_le_bytes());
        bytes[Self::NAME_AT..Self::NAME_AT + self.name.len()].copy_from_slice(&self.name);
        bytes
    }

    /// Decodes a header. `None` if the bytes are not a header.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let length = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        let name_bytes = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
        let name = bytes.get(Self::NAME_AT..Self::NAME_AT + name_bytes)?;
        (bytes[..8] == Self::MAGIC).then(|| Self { name: name.to_owned(), length })
    }

    /// Reads the header of an open journal; `None` if there is no header.
    pub(super) fn read(journal: &File) -> io::Result<Option<Self>> {
        let mut bytes = [0; Self::BYTES];
        match journal.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(Self::decode(&bytes)),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Names of the working files of one name, in its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Working {
    pub(super) data: String,
    pub(super) journal: String,
    /// Temporary name on the way to replacing a file.
    pub(super) named: String,
}

impl Working {
    pub(super) fn of(name: &[u8]) -> Self {
        let with = |ending| working_name(name, ending);
        Self { data: with("partial"), journal: with("journal"), named: with("named") }
    }
}

/// Working name of a file that is written whole before it gets its name.
pub(crate) fn named_working(name: &[u8]) -> OsString {
    working_name(name, "named").into()
}
