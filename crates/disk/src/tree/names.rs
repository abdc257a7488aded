//! Names of one folder, sorted, in little memory: a folder may have millions.

use rustix::fs::RawDir;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Buffer for the entries that one system call reads, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Sorted names of a folder.
///
/// Cost: 8 bytes per name, and the bytes of the name.
#[derive(Debug, Default)]
pub(super) struct Names {
    bytes: Vec<u8>,
    /// Beginning and length of each name.
    spans: Vec<(u32, u8)>,
}

impl Names {
    pub(super) fn of(names: &[&[u8]]) -> Self {
        let mut all = Self::default();
        for name in names {
            all.push(name).expect("few names fit");
        }
        all
    }

    fn push(&mut self, name: &[u8]) -> Result<(), Errno> {
        // Names above 255 bytes exist where a file system counts UTF-16 units (vfat, NTFS).
        let at = u32::try_from(self.bytes.len()).map_err(|_| Errno::OVERFLOW)?;
        let length = u8::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        self.bytes.extend_from_slice(name);
        self.spans.push((at, length));
        Ok(())
    }

    /// Reads the names of an open folder. `buffer` is kept for the next call.
    ///
    /// Errors: the system's.
    pub(super) fn read(folder: &OwnedFd, buffer: &mut Vec<u8>) -> Result<Self, Errno> {
        let mut names = Self::default();
        buffer.clear();
        buffer.reserve(BUFFER_BYTES);
        let mut entries = RawDir::new(folder, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name)?;
            }
        }
        let bytes = &names.bytes;
        names.spans.sort_unstable_by_key(|span| slice(bytes, *span));
        // A folder that changes meanwhile may list a name twice.
        names.spans.dedup_by_key(|span| slice(bytes, *span));
        Ok(names)
    }

    pub(super) fn get(&self, number: usize) -> Option<&[u8]> {
        self.spans.get(number).map(|span| slice(&self.bytes, *span))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.spans.iter().map(|span| slice(&self.bytes, *span))
    }
}

fn slice(bytes: &[u8], (at, length): (u32, u8)) -> &[u8] {
    &bytes[at as usize..at as usize + usize::from(length)]
}
