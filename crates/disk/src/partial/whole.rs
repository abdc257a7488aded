//! A small file received in one piece: without a journal, and nameless until complete.
//!
//! The bytes go to a nameless file (open(2), `O_TMPFILE`), which gets its name once it is complete,
//! with its permissions and its time. An earlier crash leaves nothing. Leaves out: the check of the
//! bytes against their hash, done by the caller; file systems without nameless files, where a
//! [`super::PartialFile`] takes over.

use super::{Naming, Working, link_or, same_as, set_attributes, sync_folder};
use crate::folder::{Place, at};
use anabranch_pieces::FileHash;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;

/// Returns true if an earlier transfer has left a part of the file for `place`.
pub fn is_begun(place: &Place) -> bool {
    let working = Working::of(place.name().as_bytes());
    rustix::fs::statat(place.folder(), working.journal.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Writes a file with these bytes at `place`. With `syncs`, the bytes are on the disk before the
/// file has its name. Returns false, and leaves no file, if the file system or the machine has no
/// nameless files.
///
/// Errors: the system's, with the name of the file; another file has the name and may not be
/// replaced.
pub fn put(place: &Place, bytes: &[u8], hash: FileHash, naming: &Naming, syncs: bool) -> io::Result<bool> {
    let path = place.path();
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
    let mut file: File = match rustix::fs::openat(place.folder(), ".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => file.into(),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => return Ok(false),
        Err(errno) => return at(path, Err(errno)),
    };
    at(path, file.write_all(bytes))?;
    at(path, set_attributes(&file, naming.attributes))?;
    if syncs {
        at(path, file.sync_all())?;
    }
    let working = Working::of(place.name().as_bytes());
    let mut cannot = false;
    let named = link_or(place, &working, &file, naming.replace, || {
        cannot = true;
        Ok(())
    });
    match named {
        Ok(()) if cannot => return Ok(false),
        Err(Errno::EXIST) => same_as(place, bytes.len() as u64, hash, naming.attributes)?,
        other => at(path, other)?,
    }
    if syncs { sync_folder(place).map(|()| true) } else { Ok(true) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_pieces::Attributes;
    use std::os::unix::fs::MetadataExt as _;

    fn hash(bytes: &[u8]) -> FileHash {
        FileHash(*blake3::hash(bytes).as_bytes())
    }

    #[test]
    fn small_file_arrives_with_permissions_and_time() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x");
        let place = Place::of(&path).expect("a name");
        let attributes = Some(Attributes { mode: 0o640, modified_ns: 7_000_000_009 });
        let naming = Naming { attributes, replace: false };
        for syncs in [false, true] {
            let is_put = put(&place, b"bytes", hash(b"bytes"), &naming, syncs).expect("it is put");
            assert!(is_put, "the temporary folder's file system has files without names");
            assert_eq!(std::fs::read(&path).expect("it is there"), b"bytes");
            let found = std::fs::metadata(&path).expect("it is there");
            assert_eq!((found.mode() & 0o777, found.mtime(), found.mtime_nsec()), (0o640, 7, 9));
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn existing_file_stays_unless_replacement_is_permitted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x");
        std::fs::write(&path, b"older").expect("it can be written");
        let place = Place::of(&path).expect("a name");
        let naming = |replace| Naming { attributes: None, replace };
        let error = put(&place, b"newer", hash(b"newer"), &naming(false), false).expect_err("it is there");
        assert!(error.to_string().contains("another file has this name"), "{error}");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"older");
        assert!(put(&place, b"newer", hash(b"newer"), &naming(true), false).expect("it is replaced"));
        assert_eq!(std::fs::read(&path).expect("it is there"), b"newer");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn partial_file_of_an_earlier_transfer_is_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = Place::of(&folder.path().join("x")).expect("a name");
        assert!(!is_begun(&place));
        let file = super::super::PartialFile::open(place.clone(), 5).expect("it is begun");
        assert!(is_begun(&place));
        drop(file);
    }
}
