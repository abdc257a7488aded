//! Trees of files on this machine's disks, read in the order of a manifest.
//!
//! Every step starts from a directory's descriptor and follows no link, so that a name that is
//! replaced meanwhile leads nowhere else. The scan stays on the root's file system, also where a
//! part of it is mounted again. Source: openat2(2), `RESOLVE_BENEATH`, `RESOLVE_NO_XDEV`.
//!
//! Leaves out: contents of files and their hashes ([`manifest`], [`index`]). Read [`Tree`] and
//! [`Visitor`] first.

pub mod arrival;
pub mod index;
pub mod manifest;
pub mod metadata;
mod names;
pub mod publish;
pub mod stream;
pub mod unpack;

use crate::folder::{Folder, Links, OpenError, Place, at, secrets, shown};
use anabranch_pieces::name;
use anabranch_sets::filter::Filter;
use anabranch_sets::metadata::{MetadataError, MetadataRules};
use anabranch_sets::{Attributes, DEPTH_MAX, DIRECTORY_MODE_BITS, FILE_MODE_BITS, FileTime};
use names::Names;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Facts about an entry that change whenever its content may have changed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Permission bits.
    pub mode: u32,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Time of the last modification.
    pub modified: FileTime,
    /// Time of the last change of content or attributes (ctime).
    pub changed: FileTime,
    /// Number of the file on its file system.
    pub inode: u64,
    /// Number of the file system.
    pub device: u64,
    /// Names of the file.
    pub links: u32,
    /// Number of the owner.
    pub user: u32,
    /// Number of the group.
    pub group: u32,
}

impl Stat {
    fn of(found: &Statx) -> Self {
        // If the kernel returns invalid nanoseconds, only the whole seconds are used.
        let time =
            |seconds, nanos: u32| FileTime::new(seconds, nanos.into()).or_else(|_| FileTime::new(seconds, 0));
        let time = |seconds, nanos| time(seconds, nanos).expect("no nanoseconds are fewer than a second");
        Self {
            mode: u32::from(found.stx_mode) & 0o7777,
            size_bytes: found.stx_size,
            modified: time(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            changed: time(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
            inode: found.stx_ino,
            device: (u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor),
            links: found.stx_nlink,
            user: found.stx_uid,
            group: found.stx_gid,
        }
    }

    /// The attributes of a file for a manifest: without setuid, setgid and sticky.
    pub fn file_attributes(&self) -> Attributes {
        Attributes { mode: self.mode & FILE_MODE_BITS, modified: self.modified }
    }

    /// The attributes of a directory for a manifest: without setuid.
    pub fn directory_attributes(&self) -> Attributes {
        Attributes { mode: self.mode & DIRECTORY_MODE_BITS, modified: self.modified }
    }

    /// Returns true if this and a later one are of the same unchanged file.
    pub fn is_unchanged(&self, later: &Self) -> bool {
        let key = |stat: &Self| (stat.size_bytes, stat.modified, stat.changed, stat.inode, stat.device);
        key(self) == key(later)
    }
}

fn kind_of(found: &Statx) -> FileType {
    FileType::from_raw_mode(found.stx_mode.into())
}

/// Facts and kind of an entry of a directory; `None` if there is none.
fn found_at(directory: &OwnedFd, name: &OsStr) -> Result<Option<(Stat, FileType)>, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS) {
        Ok(found) => Ok(Some((Stat::of(&found), kind_of(&found)))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn stat_of(descriptor: impl AsFd) -> Result<Statx, Errno> {
    rustix::fs::statx(descriptor, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// Why an entry, or a part of the tree, is not in the result.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The entry cannot be opened or read.
    Unreadable(OpenError),
    /// Folders are nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// A folder's entries changed while they were read.
    FolderChanged,
    /// A file changed each time it was read.
    FileChanged,
    /// Its metadata is more than a transfer can take.
    Metadata(MetadataError),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::TooDeep => write!(f, "below {DEPTH_MAX} folders: at most so deep is read"),
            Self::FolderChanged => f.write_str("the folder changed while it was read"),
            Self::FileChanged => f.write_str("the file changed while it was read"),
            Self::Metadata(error) => error.fmt(f),
        }
    }
}

/// Why an entry is passed over without being a problem.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// A socket, a pipe or a device.
    Special,
    /// A working file of a transfer.
    Reserved,
    /// A folder of another file system.
    OtherFileSystem,
    /// The filter excludes the entry. An excluded folder counts once, without its contents.
    Excluded,
}

/// A plain file or a symbolic link that the scan found.
#[derive(Debug)]
pub struct Found<'s> {
    /// Path from the root.
    pub path: &'s [u8],
    /// Metadata of the file.
    pub stat: Stat,
    folder: BorrowedFd<'s>,
    root: &'s Path,
}

/// Name of a path: its last component.
pub(crate) fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Path of the directory around an entry; empty for the root.
pub(crate) fn parent_of(path: &[u8]) -> &[u8] {
    let end = path.len() - name_of(path).len();
    &path[..end.saturating_sub(1)]
}

impl Found<'_> {
    /// Name in its folder.
    pub fn name(&self) -> &[u8] {
        name_of(self.path)
    }

    /// Opens the file for reading. Also returns its facts at the opening.
    ///
    /// Errors: the file was replaced by another kind of entry, or is a secret; the system's.
    pub fn open(&self) -> Result<(File, Stat), OpenError> {
        let name = Path::new(OsStr::from_bytes(self.name()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.folder, name, flags, Mode::empty())?;
        let found = stat_of(&file)?;
        match kind_of(&found) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(OpenError::Folder),
            _ => return Err(OpenError::Special),
        }
        let file = File::from(file);
        if secrets::is_candidate(name.as_os_str()) {
            let descriptor = self.folder.try_clone_to_owned().map_err(OpenError::Io)?;
            let folder = Folder::of_descriptor(descriptor, self.root.to_owned(), Links::Refused);
            if let Some(what) = secrets::read_through(&folder, name, &file) {
                return Err(OpenError::Secret(what));
            }
        }
        Ok((file, Stat::of(&found)))
    }
}

/// Takes the entries of a tree, in the order of a manifest. An error ends the scan.
pub trait Visitor {
    /// A folder begins; its entries follow.
    fn enter(&mut self, path: &[u8]) -> io::Result<()>;
    /// The folder that began last ends; `folder` is its descriptor.
    fn leave(&mut self, path: &[u8], stat: &Stat, folder: BorrowedFd<'_>) -> io::Result<()>;
    /// A plain file.
    fn file(&mut self, found: &Found<'_>) -> io::Result<()>;
    /// A symbolic link.
    fn link(&mut self, found: &Found<'_>, target: &[u8]) -> io::Result<()>;
    /// An entry that is passed over.
    fn skipped(&mut self, path: &[u8], why: Skipped) -> io::Result<()>;
    /// An entry that is missing from the result. An empty path is the root.
    fn problem(&mut self, path: &[u8], problem: Problem) -> io::Result<()>;
}

/// Entries of a scan, and what is read of them.
#[derive(Copy, Clone, Debug)]
pub struct ScanRules<'f> {
    /// The entries.
    pub filter: &'f Filter,
    /// Metadata beside modes and times.
    pub metadata: MetadataRules,
}

impl<'f> From<&'f Filter> for ScanRules<'f> {
    fn from(filter: &'f Filter) -> Self {
        Self { filter, metadata: MetadataRules::default() }
    }
}

/// A tree, held by its root's descriptor.
#[derive(Debug)]
pub struct Tree {
    descriptor: OwnedFd,
    path: PathBuf,
    /// Name of the only file, if the path led to a file.
    file: Option<Vec<u8>>,
}

/// An open folder of the scan.
struct Open {
    descriptor: OwnedFd,
    names: Names,
    next: usize,
    /// Facts before the names were read.
    stat: Stat,
    /// Length of the folder's path.
    path_bytes: usize,
}

/// State of a scan.
struct Scan<'t, V> {
    tree: &'t Tree,
    filter: &'t Filter,
    visitor: &'t mut V,
    open: Vec<Open>,
    path: Vec<u8>,
    buffer: Vec<u8>,
}

impl Tree {
    /// The tree at `path`, whose own links are followed: a folder, or a single file.
    ///
    /// Errors: the system's, with the path; a pipe, a socket or a device.
    pub fn open(path: &Path) -> io::Result<Self> {
        let open = |path: &Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
        };
        match open(path) {
            Ok(descriptor) => Ok(Self { descriptor, path: path.to_owned(), file: None }),
            Err(Errno::NOTDIR) => {
                // The name in the real folder, so that the last step follows no link.
                let real = at(path, path.canonicalize())?;
                let parent = real.parent().unwrap_or(Path::new("/"));
                let name = real.file_name().unwrap_or_default();
                let descriptor = at(parent, open(parent))?;
                let found =
                    rustix::fs::statx(&descriptor, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
                if kind_of(&at(path, found)?) != FileType::RegularFile {
                    return Err(OpenError::Special.at(path));
                }
                let file = Some(name.as_bytes().to_vec());
                Ok(Self { descriptor, path: parent.to_owned(), file })
            }
            Err(errno) => at(path, Err(errno)),
        }
    }

    /// The directory at `path` below `folder`.
    ///
    /// Errors: the system's, with the path; a link leads there, or it is no directory.
    pub fn below(folder: &Folder, path: &Path) -> io::Result<Self> {
        let shown = folder.path().join(path);
        let descriptor = folder.open_folder(path).map_err(|errno| match errno {
            Errno::NOTDIR => {
                let reason =
                    format!("{}: not a directory: name it without a slash at the end", self::shown(&shown));
                io::Error::new(io::ErrorKind::NotADirectory, reason)
            }
            other => OpenError::from(other).at(&shown),
        })?;
        Ok(Self { descriptor, path: shown, file: None })
    }

    /// Path of the root folder; of the folder around a single file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Facts of the root folder; `None` for a single file.
    ///
    /// Errors: the system's.
    pub fn root(&self) -> io::Result<Option<Stat>> {
        if self.file.is_some() {
            return Ok(None);
        }
        Ok(Some(Stat::of(&at(&self.path, stat_of(&self.descriptor))?)))
    }

    /// Reads the tree, and gives its entries to `visitor`.
    ///
    /// Errors: the root cannot be read; an error of the visitor.
    /// Cost: memory for the names of the folders that are open, which are the ones above an entry.
    pub fn scan(&self, filter: &Filter, visitor: &mut impl Visitor) -> io::Result<()> {
        let mut scan =
            Scan { tree: self, filter, visitor, open: Vec::new(), path: Vec::new(), buffer: Vec::new() };
        // A duplicate would go on where an earlier scan ended.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = at(&self.path, rustix::fs::openat(&self.descriptor, ".", flags, Mode::empty()))?;
        if let Some(file) = &self.file {
            let found = at(&self.path, stat_of(&root))?;
            let only = Open {
                descriptor: root,
                names: Names::of(&[file]),
                next: 0,
                stat: Stat::of(&found),
                path_bytes: 0,
            };
            scan.open.push(only);
        } else if let Some(folder) = at(&self.path, scan.list(root).map_err(io::Error::from))? {
            scan.open.push(folder);
        }
        scan.run()
    }
}

impl<V: Visitor> Scan<'_, V> {
    fn run(&mut self) -> io::Result<()> {
        while let Some(folder) = self.open.last_mut() {
            self.path.truncate(folder.path_bytes);
            let Some(name) = folder.names.get(folder.next) else {
                self.leave()?;
                continue;
            };
            folder.next += 1;
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name);
            if name::is_reserved(name) {
                self.visitor.skipped(&self.path, Skipped::Reserved)?;
            } else {
                self.entry()?;
            }
        }
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(folder) = self.open.pop() else { return Ok(()) };
        let now = match stat_of(&folder.descriptor) {
            Ok(found) => Stat::of(&found),
            Err(errno) => {
                self.visitor.problem(&self.path, Problem::Unreadable(errno.into()))?;
                folder.stat
            }
        };
        // The folder around a single file is not part of the tree.
        if self.tree.file.is_none() && !folder.stat.is_unchanged(&now) {
            self.visitor.problem(&self.path, Problem::FolderChanged)?;
        }
        if self.open.is_empty() {
            Ok(())
        } else {
            self.visitor.leave(&self.path, &now, folder.descriptor.as_fd())
        }
    }

    /// Visits the entry at the path, which is in the folder opened last.
    fn entry(&mut self) -> io::Result<()> {
        let folder = self.open.last().expect("an entry is in a folder");
        let name = OsStr::from_bytes(name_of(&self.path));
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let found = match rustix::fs::statx(&folder.descriptor, name, flags, StatxFlags::BASIC_STATS) {
            Ok(found) => found,
            Err(errno) => return self.visitor.problem(&self.path, Problem::Unreadable(errno.into())),
        };
        let stat = Stat::of(&found);
        match kind_of(&found) {
            FileType::Directory => self.folder(),
            FileType::RegularFile if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => {
                self.visitor.skipped(&self.path, Skipped::OtherFileSystem)
            }
            FileType::RegularFile => {
                if !self.filter.includes_file(&self.path, stat.size_bytes, stat.modified) {
                    return self.visitor.skipped(&self.path, Skipped::Excluded);
                }
                let folder = folder.descriptor.as_fd();
                let found = Found { path: &self.path, stat, folder, root: &self.tree.path };
                self.visitor.file(&found)
            }
            FileType::Symlink if !self.filter.includes_path(&self.path) => {
                self.visitor.skipped(&self.path, Skipped::Excluded)
            }
            FileType::Symlink => match rustix::fs::readlinkat(&folder.descriptor, name, Vec::new()) {
                Ok(target) => {
                    let folder = folder.descriptor.as_fd();
                    let found = Found { path: &self.path, stat, folder, root: &self.tree.path };
                    self.visitor.link(&found, target.as_bytes())
                }
                Err(errno) => self.visitor.problem(&self.path, Problem::Unreadable(errno.into())),
            },
            _ => self.visitor.skipped(&self.path, Skipped::Special),
        }
    }

    /// Opens the folder at the path, if the filter includes it.
    fn folder(&mut self) -> io::Result<()> {
        if !self.filter.includes_directory(&self.path) {
            return self.visitor.skipped(&self.path, Skipped::Excluded);
        }
        // `open` also holds the root, which does not count.
        if self.open.len() > DEPTH_MAX {
            return self.visitor.problem(&self.path, Problem::TooDeep);
        }
        let above = self.open.last().expect("an entry is in a folder");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let name = OsStr::from_bytes(name_of(&self.path));
        let opened = match rustix::fs::openat2(&above.descriptor, name, flags, Mode::empty(), resolve) {
            Ok(opened) => opened,
            Err(Errno::XDEV) => return self.visitor.skipped(&self.path, Skipped::OtherFileSystem),
            Err(errno) => return self.visitor.problem(&self.path, Problem::Unreadable(errno.into())),
        };
        match self.list(opened) {
            Ok(Some(folder)) => {
                self.open.push(folder);
                self.visitor.enter(&self.path)
            }
            Ok(None) => self.visitor.skipped(&self.path, Skipped::Excluded),
            Err(errno) => self.visitor.problem(&self.path, Problem::Unreadable(errno.into())),
        }
    }

    /// Reads the names of a folder; `None` if one of them excludes the folder.
    fn list(&mut self, descriptor: OwnedFd) -> Result<Option<Open>, Errno> {
        let stat = Stat::of(&stat_of(&descriptor)?);
        let names = Names::read(&descriptor, &mut self.buffer)?;
        let is_marker = |name: &[u8]| {
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let found = rustix::fs::statx(&descriptor, OsStr::from_bytes(name), flags, StatxFlags::TYPE);
            found.is_ok_and(|found| kind_of(&found) != FileType::Directory)
        };
        if self.filter.has_markers()
            && names.iter().any(|name| self.filter.is_marker(name) && is_marker(name))
        {
            return Ok(None);
        }
        Ok(Some(Open { descriptor, names, next: 0, stat, path_bytes: self.path.len() }))
    }
}

/// The folder around a location, in which no link is followed.
fn folder_around(place: &Place) -> io::Result<Folder> {
    let around = place.path().parent().unwrap_or(Path::new(""));
    Ok(Folder::of_descriptor(place.folder().try_clone()?, around.to_owned(), Links::Refused))
}

/// Opens the directory at a location for a scan.
///
/// Errors: the system's; there is none, or another kind of entry.
fn tree_at(place: &Place) -> io::Result<Tree> {
    Tree::below(&folder_around(place)?, Path::new(place.name())).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => {
            let reason = format!("{}: not a directory: remove it, or name another one", shown(place.path()));
            io::Error::new(io::ErrorKind::NotADirectory, reason)
        }
        _ => error,
    })
}

/// A path below the root in a printable form.
pub fn shown_below(root: &Path, path: &[u8]) -> String {
    shown(&root.join(OsStr::from_bytes(path)))
}

#[cfg(test)]
mod rclone;
#[cfg(test)]
mod tests;
