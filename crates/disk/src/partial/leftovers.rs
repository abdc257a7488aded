//! Leftovers of incomplete files in a folder: found by their journals, listed, and removed.
//!
//! A working file that is open is locked, so it is never removed. The age of a leftover counts from
//! its last opening or write. Read [`find`] first.

use super::{Header, open_at};
use crate::folder::{Folder, shown};
use anabranch_pieces::name::RESERVED;
use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Endings of working files' names; the journal's is last, because the journal holds the lock.
const ENDINGS: [&str; 4] = [".partial", ".named", ".spool", ".journal"];

/// The leftover of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Path of the complete file; path of its working file if the name is unknown.
    pub path: PathBuf,
    /// Length of the complete file in bytes, if known.
    pub length: Option<u64>,
    /// Space of the working files on the disk, in bytes.
    pub disk_bytes: u64,
    /// Time since the last opening of or write to a working file.
    pub age: Duration,
    /// True if a process holds the journal's lock.
    pub is_open: bool,
}

/// Finds leftovers below a folder and passes each to `visit`, which returns true to remove it. Open
/// files are passed to `visit` but never removed. Unreadable folders are skipped.
///
/// Errors: the folder itself is unreadable; a leftover cannot be removed (the first such error,
/// after the search).
pub fn find(folder: &Folder, mut visit: impl FnMut(&Leftover) -> bool) -> io::Result<()> {
    let mut failed = Ok(());
    folder.each_folder(RESERVED, |below, descriptor, names| {
        let mut stems: Vec<&[u8]> = names.iter().filter_map(|name| stem(name)).collect();
        stems.sort_unstable();
        stems.dedup();
        for stem in stems {
            let result = look(&folder.path().join(below), &descriptor, stem, &mut visit);
            if let (Err(error), Ok(())) = (result, &failed) {
                failed = Err(error);
            }
        }
    })?;
    failed
}

/// A working file's name without its ending. `None` for other files.
fn stem(name: &OsStr) -> Option<&[u8]> {
    ENDINGS.iter().find_map(|ending| name.as_bytes().strip_suffix(ending.as_bytes()))
}

fn look(
    folder: &Path,
    descriptor: &OwnedFd,
    stem: &[u8],
    visit: &mut impl FnMut(&Leftover) -> bool,
) -> io::Result<()> {
    let name = |ending: &str| OsString::from_vec([stem, ending.as_bytes()].concat());
    let journal = open_at(descriptor, &name(".journal"))?;
    let header = journal.as_ref().map(Header::read).transpose()?.flatten();
    let is_open = match &journal {
        None => false,
        Some(journal) => match rustix::fs::flock(journal, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => false,
            Err(Errno::WOULDBLOCK) => true,
            Err(errno) => return Err(errno.into()),
        },
    };
    let (mut disk_bytes, mut newest) = (0, SystemTime::UNIX_EPOCH);
    let mut is_there = false;
    for ending in ENDINGS {
        if let Ok(found) = rustix::fs::statat(descriptor, &*name(ending), AtFlags::SYMLINK_NOFOLLOW) {
            is_there = true;
            disk_bytes += found.st_blocks as u64 * 512;
            // A complete file without its final name already has its source's time of modification.
            let written = u64::try_from(found.st_mtime.max(found.st_ctime)).unwrap_or(0);
            newest = newest.max(SystemTime::UNIX_EPOCH + Duration::from_secs(written));
        }
    }
    if !is_there {
        return Ok(());
    }
    let path = match &header {
        Some(header) => folder.join(OsStr::from_bytes(&header.name)),
        None => folder.join(name(if journal.is_some() { ".journal" } else { ".partial" })),
    };
    let age = SystemTime::now().duration_since(newest).unwrap_or_default();
    let leftover = Leftover { path, length: header.map(|header| header.length), disk_bytes, age, is_open };
    if !visit(&leftover) || is_open {
        return Ok(());
    }
    for ending in ENDINGS {
        match rustix::fs::unlinkat(descriptor.as_fd(), &*name(ending), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                let error = io::Error::from(errno);
                let reason = format!("leftover of {}: {error}", shown(&leftover.path));
                return Err(io::Error::new(error.kind(), reason));
            }
        }
    }
    Ok(())
}

/// Removes leftovers that have not been resumed for `keep`, and logs them.
pub fn remove_old(folder: &Folder, keep: Duration) {
    let result = find(folder, |left| {
        let is_old = !left.is_open && left.age >= keep;
        if is_old {
            let (path, disk_bytes) = (shown(&left.path), left.disk_bytes);
            tracing::info!(path, disk_bytes, "removed: the leftover of a file that no transfer went on with");
        }
        is_old
    });
    if let Err(error) = result {
        tracing::warn!(%error, "looking for leftovers of files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::{Links, Place};
    use crate::partial::PartialFile;
    use anabranch_pieces::ByteRange;
    use anabranch_pieces::PieceHasher;

    /// A file of 10 bytes that has received one byte.
    fn begun(path: &Path) -> PartialFile {
        let mut file = PartialFile::open(Place::of(path).expect("a name"), 10).expect("opens");
        let range = ByteRange { start: 0, end: 1 };
        let mut hasher = PieceHasher::new(range);
        hasher.update(&[7]);
        file.write(range, &[[7]], &hasher.finish().expect("whole")).expect("the disk is there");
        file
    }

    fn all(folder: &Folder) -> Vec<(PathBuf, Option<u64>, bool)> {
        let mut found = Vec::new();
        let looked = find(folder, |left| {
            found.push((left.path.clone(), left.length, left.is_open));
            false
        });
        looked.expect("the folder is there");
        found.sort();
        found
    }

    /// #17: leftovers of failed files stayed for ever, and no command listed or removed them.
    #[test]
    fn leftovers_are_listed_by_target_and_removed_unless_open() {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let root = temporary.path();
        let folder = Folder::open(root, Links::Refused).expect("it is there");
        let long = "y".repeat(255);
        drop(begun(&root.join("x")));
        drop(begun(&root.join("a/b").join(&long)));
        let open = begun(&root.join("a/open"));
        std::fs::write(root.join("x.partial"), "the user's own").expect("ours");
        std::fs::write(root.join(".anabranch-0.named"), "").expect("ours");
        std::fs::write(root.join(".anabranch-notes"), "").expect("ours");
        std::os::unix::fs::symlink("..", root.join("a/loop")).expect("ours");
        let expected = [
            (root.join(".anabranch-0.partial"), None, false),
            (root.join("a/b").join(&long), Some(10), false),
            (root.join("a/open"), Some(10), true),
            (root.join("x"), Some(10), false),
        ];
        assert_eq!(all(&folder), expected);
        remove_old(&folder, Duration::from_secs(3600));
        assert_eq!(all(&folder), expected, "none is that old");
        find(&folder, |left| left.path != root.join("x")).expect("they can be removed");
        assert_eq!(all(&folder), [expected[2].clone(), expected[3].clone()]);
        drop(open);
        remove_old(&folder, Duration::ZERO);
        assert_eq!(all(&folder), []);
        let mut names: Vec<_> =
            std::fs::read_dir(root).expect("listed").map(|e| e.expect("listed").file_name()).collect();
        names.sort();
        assert_eq!(names, [".anabranch-notes", "a", "x.partial"]);
    }
}
