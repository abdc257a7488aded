//! Publication of a directory as a whole: the next tree is built beside it, and both are exchanged.
//!
//! The next tree begins as a copy of the published one. Its files are hard links, and its
//! directories and symbolic links are new. A transfer writes there, and never changes a file that
//! both trees share. Then one system call exchanges the trees, and the old one is removed or kept.
//!
//! A marker beside the directory names the next tree's root, from before the first link until the
//! old tree is gone. After a crash it tells which of both trees is published.
//!
//! Links change a file's ctime, which is in the index. Entries whose files changed in nothing else
//! since the publication began are renewed. A program that changes a file meanwhile, keeps the
//! length and sets its old time goes unnoticed. Source: renameat2(2), `RENAME_EXCHANGE`.
//!
//! Leaves out: the entries that change ([`super::unpack`]), and the record of transfers, which is
//! staged ([`Index::stage`]). Read [`check`] and `NextTree` first.

mod build;
mod marker;
mod removal;

use super::index::{Index, Lookups};
use super::unpack::make_writable;
use super::{Found, Problem, Skipped, Stat, Tree, Visitor, found_at, name_of, parent_of, stat_of, tree_at};
use crate::folder::probes::{PROBE_FILE, probe_name, remove_left};
use crate::folder::{Folder, Place, at, move_new, remove, rename_new, shown};
use anabranch_sets::FileTime;
use anabranch_sets::filter::Filter;
use anabranch_sets::publication::Publication;
use build::{copy, fingerprint};
use marker::{Marker, PUBLISHING, is_snapshot_name, snapshot_name};
use removal::remove_tree;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Ending of the working name of the next tree; of the old one, once both are exchanged.
const NEXT: &str = "next";
/// Permissions of a directory that is being written.
const PRIVATE: Mode = Mode::RWXU;

/// Name of the directory of kept snapshots, which lies beside the published directory.
fn snapshots_name(name: &OsStr) -> OsString {
    let mut snapshots = OsString::from(".");
    snapshots.push(name);
    snapshots.push(".snapshots");
    snapshots
}

fn path_beside(place: &Place, name: impl AsRef<OsStr>) -> PathBuf {
    place.path().with_file_name(name.as_ref())
}

fn open_directory(around: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(around, name, flags, Mode::empty())
}

/// Device and inode of a directory.
fn identity(stat: &Stat) -> (u64, u64) {
    (stat.device, stat.inode)
}

/// Opens the directory of kept snapshots, which is made if it is missing.
///
/// Errors: the system's; another file system is mounted there.
fn snapshots_of(place: &Place) -> io::Result<OwnedFd> {
    let name = snapshots_name(place.name());
    let path = path_beside(place, &name);
    match rustix::fs::mkdirat(place.folder(), &*name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return at(&path, Err(errno)),
    }
    let opened = at(&path, open_directory(place.folder(), &name))?;
    let device = |of: &OwnedFd| at(&path, stat_of(of)).map(|found| Stat::of(&found).device);
    if device(&opened)? != device(place.folder())? {
        let reason = format!("{}: on another file system than the directory: remove it", shown(&path));
        return Err(io::Error::new(io::ErrorKind::CrossesDevices, reason));
    }
    Ok(opened)
}

/// Returns true if files of a directory may be files of kept snapshots, too.
///
/// Errors: the system's.
pub(super) fn has_snapshots(place: &Place) -> io::Result<bool> {
    let name = snapshots_name(place.name());
    match found_at(place.folder(), &name) {
        Ok(found) => Ok(found.is_some_and(|(_, kind)| kind == FileType::Directory)),
        // No directory can have been made there.
        Err(Errno::NAMETOOLONG) => Ok(false),
        Err(errno) => at(&path_beside(place, &name), Err(errno)),
    }
}

/// Two directories beside a location, for one attempt of an exchange. They are removed when the
/// value is dropped.
struct Probe<'p> {
    around: &'p OwnedFd,
    names: [String; 2],
    opened: Vec<OwnedFd>,
}

impl Probe<'_> {
    /// Tries everything that a publication needs.
    ///
    /// Errors: the system's.
    fn run(&mut self) -> Result<(), Errno> {
        for name in &self.names {
            rustix::fs::mkdirat(self.around, name.as_str(), PRIVATE)?;
            self.opened.push(open_directory(self.around, OsStr::new(name))?);
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        drop(rustix::fs::openat(&self.opened[0], PROBE_FILE, flags, mode)?);
        let (one, two) = (&self.opened[0], &self.opened[1]);
        rustix::fs::linkat(one, PROBE_FILE, two, PROBE_FILE, AtFlags::empty())?;
        let [one, two] = &self.names;
        let flags = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(self.around, one.as_str(), self.around, two.as_str(), flags)
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        for opened in &self.opened {
            let _ = remove(opened, PROBE_FILE);
        }
        for name in &self.names {
            let _ = rustix::fs::unlinkat(self.around, name.as_str(), AtFlags::REMOVEDIR);
        }
    }
}

/// Checks whether a directory can be published in this way at a location, as far as possible
/// without the entries. Makes the directory of kept snapshots.
///
/// Errors: one line: the directory is a mount point, the file system cannot exchange directories or
/// has no hard links, the folder is not writable.
pub fn check(place: &Place, publication: Publication) -> io::Result<()> {
    let Publication::Snapshot { keep } = publication else { return Ok(()) };
    let path = place.path();
    let unsupported = |reason: &str| {
        let reason = format!("{}: --publish snapshot: {reason}: use --publish each", shown(path));
        io::Error::new(io::ErrorKind::Unsupported, reason)
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(place.folder(), place.name(), flags, StatxFlags::BASIC_STATS) {
        Ok(found) => {
            let around = Stat::of(&at(path, stat_of(place.folder()))?);
            let is_mounted = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
            if is_mounted || Stat::of(&found).device != around.device {
                return Err(unsupported("a file system is mounted there, and cannot be exchanged"));
            }
        }
        Err(Errno::NOENT) => {}
        Err(errno) => return at(path, Err(errno)),
    }
    remove_left(place.folder(), SystemTime::now());
    let name = probe_name()?;
    let names = ["a", "b"].map(|end| format!("{name}.probe-{end}"));
    let tried = Probe { around: place.folder(), names, opened: Vec::new() }.run();
    match tried {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM | Errno::MLINK) => {
            return Err(unsupported("this file system cannot exchange directories, or has no hard links"));
        }
        Err(errno) => return at(path.parent().unwrap_or(path), Err(errno)),
    }
    if keep > 0 {
        snapshots_of(place)?;
    }
    Ok(())
}

/// A directory of a tree, kept open for the entries in it.
struct Holder<'h> {
    root: &'h Folder,
    open: Option<(Vec<u8>, OwnedFd)>,
}

impl<'h> Holder<'h> {
    fn new(root: &'h Folder) -> Self {
        Self { root, open: None }
    }

    /// The directory that holds an entry.
    fn of(&mut self, path: &[u8]) -> Result<&OwnedFd, Errno> {
        let parent = parent_of(path);
        if self.open.as_ref().is_none_or(|(open, _)| open != parent) {
            let opened = self.root.open_folder(Path::new(OsStr::from_bytes(parent)))?;
            self.open = Some((parent.to_vec(), opened));
        }
        let (_, opened) = self.open.as_ref().expect("opened above");
        Ok(opened)
    }
}

fn name_in(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(name_of(path))
}

/// The published tree as it was when the next one was built.
#[derive(Debug)]
struct Published {
    tree: Tree,
    stat: Stat,
    fingerprint: blake3::Hash,
}

impl Published {
    /// Copies the entries of a tree to the directory `root`.
    fn copied(tree: Tree, root: &OwnedFd) -> io::Result<Self> {
        let stat = tree.root()?.expect("a directory has a root");
        let fingerprint = copy(&tree, root)?;
        Ok(Self { tree, stat, fingerprint })
    }
}

/// A tree that is about to be published.
#[derive(Debug)]
pub(super) struct NextTree<'p> {
    place: &'p Place,
    root: OwnedFd,
    stat: Stat,
    /// `None` if the directory did not exist.
    published: Option<Published>,
}

impl<'p> NextTree<'p> {
    /// Builds a copy of the directory at `place` with hard links. `keep` earlier snapshots are kept
    /// after the publication, among them the current one, whose id is `id`. Nothing may be left of
    /// an earlier publication ([`settle`]).
    ///
    /// Errors: the system's; an entry that cannot be in a copy. A part of the tree may be left.
    pub(super) fn build(place: &'p Place, keep: u32, id: &[u8; 32]) -> io::Result<Self> {
        let name = place.working_name(NEXT);
        let path = path_beside(place, &name);
        let old = match tree_at(place) {
            Ok(tree) => Some(tree),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        at(&path, rustix::fs::mkdirat(place.folder(), name.as_str(), PRIVATE))?;
        let root = at(&path, open_directory(place.folder(), OsStr::new(&name)))?;
        let stat = Stat::of(&at(&path, stat_of(&root))?);
        let marker = Marker { next: identity(&stat), begun_at: stat.changed, keep, name: snapshot_name(id) };
        marker.save(place)?;
        let published = old.map(|tree| Published::copied(tree, &root)).transpose()?;
        Ok(Self { place, root, stat, published })
    }

    /// Facts of the root.
    pub(super) fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Facts of the published root; `None` if the directory did not exist.
    pub(super) fn published(&self) -> Option<&Stat> {
        self.published.as_ref().map(|published| &published.stat)
    }

    /// The root, for its entries.
    ///
    /// Errors: the system's.
    pub(super) fn root(&self) -> io::Result<OwnedFd> {
        at(self.place.path(), self.root.try_clone())
    }

    /// Checks that no other program changed the published tree since it was copied.
    ///
    /// Errors: one line; the system's.
    fn check_unchanged(&self) -> io::Result<()> {
        let path = self.place.path();
        let found = at(path, found_at(self.place.folder(), self.place.name()))?;
        let is_same = match &self.published {
            None => found.is_none(),
            Some(published) => {
                found.is_some_and(|(stat, _)| identity(&stat) == identity(&published.stat))
                    && fingerprint(&published.tree)? == published.fingerprint
            }
        };
        if is_same {
            return Ok(());
        }
        at(path, Err(changed()))
    }

    fn swap(&self) -> io::Result<()> {
        let (folder, name, next) = (self.place.folder(), self.place.name(), self.place.working_name(NEXT));
        let swapped = match &self.published {
            Some(_) => rustix::fs::renameat_with(folder, next.as_str(), folder, name, RenameFlags::EXCHANGE),
            None => rename_new(folder, OsStr::new(&next), name),
        };
        at(self.place.path(), swapped)
    }

    /// Exchanges the trees, once the data of the next one is on disk.
    ///
    /// Errors: the system's; another program changed the published tree.
    pub(super) fn exchange(&self) -> io::Result<()> {
        let path = self.place.path();
        at(path, rustix::fs::syncfs(&self.root))?;
        self.check_unchanged()?;
        self.swap()?;
        // The check takes time, and a program may have changed what it had passed. From here on no
        // path leads to the old tree.
        if let Some(Published { tree, fingerprint: before, .. }) = &self.published
            && !fingerprint(tree).is_ok_and(|found| found == *before)
        {
            self.swap()?;
            return at(path, Err(changed()));
        }
        at(path, rustix::fs::fsync(self.place.folder()))
    }

    /// Publishes the tree, and removes or keeps the old one.
    ///
    /// Errors: see [`NextTree::exchange`]. Once the trees are exchanged, an error is logged, and
    /// the next transfer does the rest.
    pub(super) fn publish(&self) -> io::Result<()> {
        self.exchange()?;
        if let Err(error) = settle(self.place) {
            tracing::warn!("the snapshot before this one is not removed yet: {error}");
        }
        Ok(())
    }
}

fn changed() -> io::Error {
    io::Error::other(
        "another program changed it while the next snapshot was written, so that one was dropped: run the command \
         again when it rests",
    )
}

/// Ends a publication: removes a next tree that was not published, or removes or keeps the old tree
/// of a published one. The caller writes the directory alone.
///
/// Errors: the system's; a damaged marker.
pub fn settle(place: &Place) -> io::Result<()> {
    let path = place.path();
    let next = place.working_name(NEXT);
    let marker = Marker::load(place)?;
    let left = at(path, found_at(place.folder(), OsStr::new(&next)))?;
    if marker.is_none() && left.is_none() {
        return Ok(());
    }
    let published = at(path, found_at(place.folder(), place.name()))?;
    // The old tree goes only once the exchange is on disk.
    at(path, rustix::fs::fsync(place.folder()))?;
    let is_exchanged = |marker: &Marker| published.is_some_and(|(stat, _)| identity(&stat) == marker.next);
    match &marker {
        Some(marker) if marker.keep > 0 && is_exchanged(marker) => {
            let snapshots = snapshots_of(place)?;
            if left.is_some() {
                keep_tree(place, &next, &snapshots, &marker.name)?;
            }
            prune(place, &snapshots, marker)?;
        }
        _ => remove_tree(place.folder(), OsStr::new(&next), &path_beside(place, &next))?,
    }
    if let Some(marker) = &marker {
        renew_index(place, marker.begun_at);
    }
    at(path, remove(place.folder(), place.working_name(PUBLISHING).as_str()))
}

/// Moves an old tree to the kept snapshots.
fn keep_tree(place: &Place, next: &str, snapshots: &OwnedFd, name: &str) -> io::Result<()> {
    let path = path_beside(place, snapshots_name(place.name())).join(name);
    let keep = || -> Result<(), Errno> {
        let root = open_directory(place.folder(), OsStr::new(next))?;
        let stat = Stat::of(&stat_of(&root)?);
        // A directory that moves gets another parent, so this process must be able to write to it.
        make_writable(&root, Ok(stat))?;
        move_new((place.folder(), OsStr::new(next)), (snapshots, OsStr::new(name)))?;
        rustix::fs::fchmod(&root, Mode::from_raw_mode(stat.mode))?;
        rustix::fs::fsync(snapshots)?;
        rustix::fs::fsync(place.folder())
    };
    at(&path, keep())
}

/// Removes the oldest kept snapshots, above the number that the marker allows.
fn prune(place: &Place, snapshots: &OwnedFd, Marker { keep, name: newest, .. }: &Marker) -> io::Result<()> {
    let path = path_beside(place, snapshots_name(place.name()));
    let mut names = Vec::new();
    for entry in at(&path, rustix::fs::Dir::read_from(snapshots))? {
        let entry = at(&path, entry)?;
        let name = entry.file_name().to_bytes();
        if is_snapshot_name(name) && matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    // Names begin with the time. The tree that was just kept is the newest, also if the clock was
    // set back.
    names.sort_unstable_by_key(|name| (name == newest.as_str(), name.clone()));
    let surplus = names.len().saturating_sub(*keep as usize);
    names.iter().take(surplus).try_for_each(|name| remove_tree(snapshots, name, &path.join(name)))
}

/// Renews the ctimes of an index.
struct Renewal<'r, 'l> {
    lookups: &'r mut Lookups<'l>,
    since: FileTime,
}

impl Visitor for Renewal<'_, '_> {
    fn enter(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn leave(&mut self, _: &[u8], _: &Stat, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }
    fn file(&mut self, found: &Found<'_>) -> io::Result<()> {
        if found.stat.changed < self.since {
            return Ok(());
        }
        match self.lookups.relinked(found.path, &found.stat)? {
            Some(hash) => self.lookups.keep(found.path, Some((&found.stat, &hash))),
            None => Ok(()),
        }
    }
    fn link(&mut self, _: &Found<'_>, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn skipped(&mut self, _: &[u8], _: Skipped) -> io::Result<()> {
        Ok(())
    }
    fn problem(&mut self, _: &[u8], _: Problem) -> io::Result<()> {
        Ok(())
    }
}

/// Renews the entries of a directory's index whose files changed in their ctime alone, at `since`
/// or later. After an error, the next scan reads these files.
fn renew_index(place: &Place, since: FileTime) {
    let renew = || -> io::Result<()> {
        let tree = match tree_at(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let root = tree.root()?.expect("a directory has a root");
        let index = Index::open(&place.working_path("index")?, &root)?;
        index.with(false, |lookups| tree.scan(&Filter::default(), &mut Renewal { lookups, since }))
    };
    if let Err(error) = renew() {
        tracing::warn!("{}: its files are read again: {error}", shown(place.path()));
    }
}

#[cfg(test)]
mod tests;
