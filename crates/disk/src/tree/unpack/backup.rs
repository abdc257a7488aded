//! Entries that a transfer takes away, kept under their paths below another directory.
//!
//! Nothing in a backup is overwritten: a further entry of one path gets a number, as in `name.~1~`.
//! Read [`Backup`] first.

use super::super::stat_of;
use crate::folder::{Folder, Links, Name, at, move_new, shown};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Maximum number of entries with one path.
const NUMBERS_MAX: u32 = 1_000;
/// Permissions of a directory of a backup: its files may come from a directory that other users
/// cannot read.
const MODE: u32 = 0o700;

/// A directory for entries that a transfer deletes or overwrites.
#[derive(Debug)]
pub struct Backup {
    folder: Folder,
}

fn numbered(name: &OsStr, number: u32) -> Cow<'_, OsStr> {
    if number == 0 {
        return name.into();
    }
    let mut to = OsString::from(name);
    to.push(format!(".~{number}~"));
    to.into()
}

impl Backup {
    /// The backup `name` below `served`, which is made if it is missing. `directory` is the
    /// directory whose entries move there.
    ///
    /// Errors: the system's; a link in the path; both are on different file systems.
    pub fn open(served: &Folder, name: &Name, directory: &OwnedFd) -> io::Result<Self> {
        let path = served.path_of(name);
        let found = match served.open_folder(Path::new(name.as_str())) {
            Ok(found) => found,
            Err(Errno::NOENT) => {
                let made = served.make_folder(name)?;
                at(&path, rustix::fs::fchmod(&made, Mode::from_raw_mode(MODE)))?;
                made
            }
            Err(errno) => return at(&path, Err(errno)),
        };
        let device = |descriptor: &OwnedFd| {
            at(&path, stat_of(descriptor)).map(|found| (found.stx_dev_major, found.stx_dev_minor))
        };
        if device(&found)? != device(directory)? {
            let reason =
                format!("{}: on another file system than the directory: name another backup", shown(&path));
            return Err(io::Error::new(io::ErrorKind::CrossesDevices, reason));
        }
        Ok(Self { folder: Folder::of_descriptor(found, path, Links::Refused) })
    }

    /// The directory of a path, made if it is missing. Where another kind of entry has the name of
    /// a directory, the directory gets a number, too.
    fn holder(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let parent = Path::new(OsStr::from_bytes(path)).parent().unwrap_or(Path::new(""));
        match self.folder.open_folder(parent) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            other => return other,
        }
        let mut made = PathBuf::new();
        for component in parent.components() {
            let directory = |number| {
                let next = made.join(&*numbered(component.as_os_str(), number));
                self.folder.make_folders(&next, Mode::from_raw_mode(MODE))?;
                self.folder.open_folder(&next).map(|_| next)
            };
            let is_taken = |opened: &Result<_, Errno>| matches!(opened, Err(Errno::NOTDIR | Errno::LOOP));
            let found = (0..NUMBERS_MAX).map(directory).find(|opened| !is_taken(opened));
            made = found.unwrap_or(Err(Errno::NOTDIR))?;
        }
        self.folder.open_folder(&made)
    }

    /// Calls `put` with a directory and names in it, until a name is free.
    fn put(
        &self,
        path: &[u8],
        name: &OsStr,
        mut put: impl FnMut(&OwnedFd, &OsStr) -> Result<(), Errno>,
    ) -> io::Result<()> {
        let shown = self.folder.path().join(OsStr::from_bytes(path));
        let holder = at(&shown, self.holder(path))?;
        for number in 0..NUMBERS_MAX {
            match put(&holder, &numbered(name, number)) {
                Err(Errno::EXIST) => {}
                other => return at(&shown, other),
            }
        }
        at(&shown, Err(io::Error::other(format!("the backup has {NUMBERS_MAX} entries of this name"))))
    }

    /// Moves the entry `name` of `directory`, whose path is `path`, to the backup.
    ///
    /// Errors: the system's, with the path in the backup.
    pub(super) fn take(&self, directory: &OwnedFd, name: &OsStr, path: &[u8]) -> io::Result<()> {
        self.put(path, name, |holder, to| move_new((directory, name), (holder, to)))
    }

    /// Gives an entry that is about to be overwritten a further name in the backup. Returns false
    /// if the entry was moved there, because it can have no further name.
    ///
    /// Errors: see [`Backup::take`].
    pub(super) fn keep(&self, directory: &OwnedFd, name: &OsStr, path: &[u8]) -> io::Result<bool> {
        let mut has_links = true;
        self.put(path, name, |holder, to| {
            match rustix::fs::linkat(directory, name, holder, to, AtFlags::empty()) {
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::NOSYS) => {
                    has_links = false;
                    move_new((directory, name), (holder, to))
                }
                other => other,
            }
        })?;
        Ok(has_links)
    }
}
