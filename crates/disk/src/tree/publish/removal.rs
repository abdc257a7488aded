//! Removal of a tree with all entries.

use super::{Holder, name_in, open_directory};
use crate::folder::{Folder, Links, at};
use crate::tree::unpack::make_writable;
use crate::tree::{Found, Problem, Skipped, Stat, Tree, Visitor, shown_below, stat_of};
use anabranch_sets::filter::Filter;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Removes the entries of a scan.
struct Removal<'r> {
    root: &'r Folder,
    holder: Holder<'r>,
    /// The first entry that cannot be removed.
    problem: Option<io::Error>,
}

impl Removal<'_> {
    fn unlink(&mut self, path: &[u8], flags: AtFlags) -> io::Result<()> {
        let shown = self.root.path().join(OsStr::from_bytes(path));
        let removed =
            self.holder.of(path).and_then(|holder| rustix::fs::unlinkat(holder, name_in(path), flags));
        match removed {
            Err(Errno::NOENT) => Ok(()),
            // The problem names an entry inside the directory.
            Err(Errno::NOTEMPTY | Errno::EXIST) if self.problem.is_some() => Ok(()),
            other => at(&shown, other),
        }
    }
}

impl Visitor for Removal<'_> {
    fn enter(&mut self, path: &[u8]) -> io::Result<()> {
        let shown = self.root.path().join(OsStr::from_bytes(path));
        let opened = at(&shown, self.root.open_folder(Path::new(OsStr::from_bytes(path))))?;
        at(&shown, make_writable(&opened, stat_of(&opened).map(|found| Stat::of(&found))))
    }
    fn leave(&mut self, path: &[u8], _: &Stat, _: BorrowedFd<'_>) -> io::Result<()> {
        self.unlink(path, AtFlags::REMOVEDIR)
    }
    fn file(&mut self, found: &Found<'_>) -> io::Result<()> {
        let shown = self.root.path().join(OsStr::from_bytes(found.path));
        match rustix::fs::unlinkat(found.folder, name_in(found.path), AtFlags::empty()) {
            // A program that has the directory open removed it.
            Err(Errno::NOENT) => Ok(()),
            other => at(&shown, other),
        }
    }
    fn link(&mut self, found: &Found<'_>, _: &[u8]) -> io::Result<()> {
        self.unlink(found.path, AtFlags::empty())
    }
    fn skipped(&mut self, path: &[u8], why: Skipped) -> io::Result<()> {
        if why != Skipped::OtherFileSystem {
            return self.unlink(path, AtFlags::empty());
        }
        let path = shown_below(self.root.path(), path);
        let mounted = || io::Error::other(format!("{path}: a file system is mounted there: unmount it"));
        self.problem.get_or_insert_with(mounted);
        Ok(())
    }
    fn problem(&mut self, path: &[u8], problem: Problem) -> io::Result<()> {
        // Each removal changes a directory.
        if !matches!(problem, Problem::FolderChanged) {
            let path = shown_below(self.root.path(), path);
            self.problem.get_or_insert_with(|| io::Error::other(format!("{path}: {problem}: remove it")));
        }
        Ok(())
    }
}

/// Removes the directory `name` with all entries; a missing one is no error.
///
/// Errors: the system's; a file system is mounted inside.
pub(super) fn remove_tree(around: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<()> {
    let root = match open_directory(around, name) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return at(path, Err(errno)),
    };
    at(path, make_writable(&root, stat_of(&root).map(|found| Stat::of(&found))))?;
    let folder = Folder::of_descriptor(at(path, root.try_clone())?, path.to_owned(), Links::Refused);
    let tree = Tree { descriptor: root, path: path.to_owned(), file: None };
    let mut removal = Removal { root: &folder, holder: Holder::new(&folder), problem: None };
    tree.scan(&Filter::default(), &mut removal)?;
    match removal.problem {
        Some(problem) => Err(problem),
        None => at(path, rustix::fs::unlinkat(around, name, AtFlags::REMOVEDIR)),
    }
}
