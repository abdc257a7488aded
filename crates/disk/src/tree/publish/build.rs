//! A copy of a tree with hard links, and the fingerprint of a tree.

use super::{Holder, PRIVATE, name_in, open_directory};
use crate::folder::{Folder, Links, at, reworded};
use crate::tree::unpack::timestamps;
use crate::tree::{Found, Problem, Skipped, Stat, Tree, Visitor, shown_below};
use anabranch_sets::filter::Filter;
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Endings of working files in a directory that a new tree can do without.
const DISPENSABLE: [&[u8]; 5] = [b".named", b".index", b".spool", b".damaged", b".name"];

/// Maximum size of an extended attribute on Linux.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Hash over the entries of a tree, to notice changes by other programs.
#[derive(Default)]
struct Fingerprint(blake3::Hasher);

impl Fingerprint {
    /// Adds an entry. Its ctime, which links change, does not count.
    fn add(&mut self, kind: u8, path: &[u8], stat: Option<&Stat>, target: &[u8]) {
        let number = |number: usize| (number as u64).to_le_bytes();
        self.0.update(&[kind]).update(&number(path.len())).update(path);
        self.0.update(&number(target.len())).update(target);
        let Some(stat) = stat else { return };
        self.0.update(&stat.mode.to_le_bytes()).update(&stat.size_bytes.to_le_bytes());
        self.0.update(&stat.modified.seconds().to_le_bytes()).update(&stat.modified.nanos().to_le_bytes());
        self.0.update(&stat.inode.to_le_bytes());
    }

    fn add_root(&mut self, tree: &Tree) -> io::Result<()> {
        self.add(b'r', b"", tree.root()?.as_ref(), b"");
        Ok(())
    }
}

/// Returns true for a working file that a new tree can do without.
fn is_dispensable(path: &[u8]) -> bool {
    DISPENSABLE.iter().any(|ending| path.ends_with(ending))
}

/// Builds the next tree from the entries of a scan of the published one.
struct Build<'b> {
    /// The published tree.
    old: &'b Folder,
    /// Open directories of the next tree; the first one is its root.
    open: Vec<OwnedFd>,
    /// The directory of the published tree that holds the entry before.
    holder: Holder<'b>,
    fingerprint: Fingerprint,
}

/// Gives a new directory the owner and the group of another one.
fn give_owner(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let (wanted, found) = (rustix::fs::fstat(from)?, rustix::fs::fstat(to)?);
    let owner = (wanted.st_uid != found.st_uid).then_some(wanted.st_uid);
    let group = (wanted.st_gid != found.st_gid).then_some(wanted.st_gid);
    if owner.is_none() && group.is_none() {
        return Ok(());
    }
    std::os::unix::fs::fchown(to, owner, group).map_err(|error| {
        let reason = format!(
            "belongs to user {} and group {}, and a new directory cannot be given to them: {error}",
            wanted.st_uid, wanted.st_gid
        );
        reworded(&error, reason)
    })
}

/// Copies the access lists of another directory to a new directory. With access lists, the group
/// bits of the mode are a mask. As permissions of the group, they could permit too much.
fn give_access_lists(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        let mut value = vec![0; XATTR_BYTES_MAX];
        match rustix::fs::fgetxattr(from, name, &mut value[..]) {
            Ok(bytes) => rustix::fs::fsetxattr(to, name, &value[..bytes], XattrFlags::empty())?,
            // The folder around may have given a list to the new directory.
            Err(Errno::NODATA) => match rustix::fs::fremovexattr(to, name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno),
            },
            Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl Build<'_> {
    fn at<T>(&self, path: &[u8], result: Result<T, impl Into<io::Error>>) -> io::Result<T> {
        at(&self.old.path().join(OsStr::from_bytes(path)), result)
    }

    /// The directory of the next tree in which entries are made.
    fn next(&self) -> &OwnedFd {
        self.open.last().expect("the root is open")
    }

    /// Error for an entry with which the directory cannot be published.
    fn refuse(&self, path: &[u8], reason: &str) -> io::Result<()> {
        let path = shown_below(self.old.path(), path);
        Err(io::Error::other(format!("{path}: --publish snapshot: {reason}: nothing was published")))
    }

    /// Takes the result of a hard link.
    fn linked(&self, path: &[u8], result: Result<(), Errno>) -> io::Result<()> {
        match result {
            Err(Errno::PERM | Errno::ACCESS) => {
                self.refuse(path, "it can have no further name: is it another user's, or immutable?")
            }
            other => self.at(path, other),
        }
    }

    /// Copies a file that can have no further name.
    fn copy(&self, found: &Found<'_>) -> io::Result<()> {
        let name = name_in(found.path);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(found.folder, name, flags, Mode::empty());
        let mut from: File = self.at(found.path, opened)?.into();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(self.next(), name, flags, Mode::RUSR | Mode::WUSR);
        let mut to: File = self.at(found.path, made)?.into();
        self.at(found.path, io::copy(&mut from, &mut to))?;
        self.at(found.path, rustix::fs::fchmod(&to, Mode::from_raw_mode(found.stat.mode)))?;
        self.at(found.path, rustix::fs::futimens(&to, &timestamps(found.stat.modified)))
    }
}

impl Visitor for Build<'_> {
    fn enter(&mut self, path: &[u8]) -> io::Result<()> {
        let name = name_in(path);
        self.at(path, rustix::fs::mkdirat(self.next(), name, PRIVATE))?;
        let made = self.at(path, open_directory(self.next(), name))?;
        let source = self.at(path, self.old.open_folder(Path::new(OsStr::from_bytes(path))))?;
        self.at(path, give_owner(&source, &made))?;
        self.at(path, give_access_lists(&source, &made))?;
        self.open.push(made);
        Ok(())
    }

    fn leave(&mut self, path: &[u8], stat: &Stat, _: BorrowedFd<'_>) -> io::Result<()> {
        self.fingerprint.add(b'd', path, Some(stat), b"");
        let directory = self.open.pop().expect("it was entered");
        self.at(path, rustix::fs::fchmod(&directory, Mode::from_raw_mode(stat.mode)))?;
        self.at(path, rustix::fs::futimens(&directory, &timestamps(stat.modified)))
    }

    fn file(&mut self, found: &Found<'_>) -> io::Result<()> {
        self.fingerprint.add(b'f', found.path, Some(&found.stat), b"");
        let name = name_in(found.path);
        match rustix::fs::linkat(found.folder, name, self.next(), name, AtFlags::empty()) {
            Err(Errno::MLINK) => self.copy(found),
            other => self.linked(found.path, other),
        }
    }

    fn link(&mut self, found: &Found<'_>, target: &[u8]) -> io::Result<()> {
        let (path, stat) = (found.path, &found.stat);
        self.fingerprint.add(b'l', path, Some(stat), target);
        let name = name_in(path);
        self.at(path, rustix::fs::symlinkat(OsStr::from_bytes(target), self.next(), name))?;
        let (times, flags) = (timestamps(stat.modified), AtFlags::SYMLINK_NOFOLLOW);
        self.at(path, rustix::fs::utimensat(self.next(), name, &times, flags))
    }

    fn skipped(&mut self, path: &[u8], why: Skipped) -> io::Result<()> {
        match why {
            Skipped::Special => {
                self.fingerprint.add(b's', path, None, b"");
                let name = name_in(path);
                let linked = match self.holder.of(path) {
                    Ok(holder) => rustix::fs::linkat(
                        holder,
                        name,
                        self.open.last().expect("the root is open"),
                        name,
                        AtFlags::empty(),
                    ),
                    Err(errno) => Err(errno),
                };
                self.linked(path, linked)
            }
            Skipped::Reserved if is_dispensable(path) => Ok(()),
            Skipped::Reserved => self.refuse(path, "a working file of a transfer to a place inside"),
            Skipped::OtherFileSystem => self.refuse(path, "another file system is mounted there"),
            // An empty filter excludes nothing.
            Skipped::Excluded => Ok(()),
        }
    }

    fn problem(&mut self, path: &[u8], problem: Problem) -> io::Result<()> {
        self.refuse(path, &problem.to_string())
    }
}

/// Makes the fingerprint of a tree. Problems count as a change.
struct Comparing(Fingerprint);

impl Visitor for Comparing {
    fn enter(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn leave(&mut self, path: &[u8], stat: &Stat, _: BorrowedFd<'_>) -> io::Result<()> {
        self.0.add(b'd', path, Some(stat), b"");
        Ok(())
    }
    fn file(&mut self, found: &Found<'_>) -> io::Result<()> {
        self.0.add(b'f', found.path, Some(&found.stat), b"");
        Ok(())
    }
    fn link(&mut self, found: &Found<'_>, target: &[u8]) -> io::Result<()> {
        self.0.add(b'l', found.path, Some(&found.stat), target);
        Ok(())
    }
    fn skipped(&mut self, path: &[u8], why: Skipped) -> io::Result<()> {
        match why {
            Skipped::Reserved if is_dispensable(path) => {}
            Skipped::Special => self.0.add(b's', path, None, b""),
            _ => self.0.add(b'?', path, None, b""),
        }
        Ok(())
    }
    fn problem(&mut self, path: &[u8], _: Problem) -> io::Result<()> {
        self.0.add(b'!', path, None, b"");
        Ok(())
    }
}

/// Copies the entries of a tree to the directory `root`, with hard links for files. Returns the
/// tree's fingerprint.
///
/// Errors: the system's; an entry that cannot be in a copy.
pub(super) fn copy(tree: &Tree, root: &OwnedFd) -> io::Result<blake3::Hash> {
    let descriptor = at(&tree.path, tree.descriptor.try_clone())?;
    at(&tree.path, give_owner(&descriptor, root))?;
    at(&tree.path, give_access_lists(&descriptor, root))?;
    let old = Folder::of_descriptor(descriptor, tree.path.clone(), Links::Refused);
    let open = vec![at(&tree.path, root.try_clone())?];
    let holder = Holder::new(&old);
    let mut build = Build { old: &old, open, holder, fingerprint: Fingerprint::default() };
    build.fingerprint.add_root(tree)?;
    tree.scan(&Filter::default(), &mut build)?;
    Ok(build.fingerprint.0.finalize())
}

/// The fingerprint of a tree. It changes with each entry, but not with the number of its links.
///
/// Errors: the system's.
pub(super) fn fingerprint(tree: &Tree) -> io::Result<blake3::Hash> {
    let mut comparing = Comparing(Fingerprint::default());
    comparing.0.add_root(tree)?;
    tree.scan(&Filter::default(), &mut comparing)?;
    Ok(comparing.0.0.finalize())
}
