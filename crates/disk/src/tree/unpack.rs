//! Writes a directory from a stream.
//!
//! Each file is written under a working name, checked against its hash, and renamed. Renames wait
//! until the data of a batch is on disk, so that no name ever leads to a part of a file. Every step
//! starts from a directory's descriptor and follows no link below the root.
//!
//! A file that another program changed since the last transfer is a *conflict*: it is left, unless
//! `replace` is set. Deletes come last (`deletes`), once all contents are in place. With a
//! [`Backup`], entries are moved there instead of being deleted or overwritten.
//!
//! Files of a directory that shares them with another one are never changed: a copy gets the new
//! attributes.
//!
//! Leaves out: the stream itself ([`super::stream`]). Read [`Unpacker`] first.

mod attributes;
mod backup;
mod deletes;
mod files;
mod record;

pub use backup::Backup;
pub use record::note_broken_off;

use super::index::{Index, Origin, Sent};
use super::metadata::{Owners, Wanted};
use super::stream::{HeadError, LocalContent, Manifest, TreeStream};
use super::{Stat, found_at, name_of, shown_below, stat_of};
use crate::folder::{Folder, Links, OpenError, at, remove, rename_new, secrets};
use crate::partial::{modified_at, named_working};
use anabranch_pieces::name::is_reserved;
use anabranch_pieces::{FileHash, RangeSet};
use anabranch_sets::deletes::Surplus;
use anabranch_sets::filter::Filter;
use anabranch_sets::metadata::{Metadata, MetadataRules};
use anabranch_sets::{AllAttributes, Attributes, Change, Entry, FileTime, Kind, LinkPath};
use files::kept_attributes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timestamps};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;

/// Bytes that are copied at once.
const BUFFER_BYTES: usize = 256 << 10;
/// The shortest block of zeros that becomes a hole: a block of most file systems.
const HOLE_BYTES: usize = 4_096;
/// Maximum number of names, of directories, and of bytes in a batch, which is synced as a whole.
const BATCH_NAMES: usize = 4_096;
const BATCH_DIRECTORIES: usize = 256;
const BATCH_BYTES: u64 = 512 << 20;
/// Maximum number of entries that wait for the record.
const BATCH_SENT: usize = 50_000;
/// Maximum number of conflicts, and of changed files, that are listed.
const CONFLICTS_MAX: usize = 100;
/// Content of a directory in the record.
const DIRECTORY: FileHash = FileHash([0; 32]);
/// Permissions of a directory while it is written.
const OPEN_MODE: u32 = 0o700;

/// Result of writing a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files whose content was written.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Number of entries that were left because another program changed them.
    pub conflicts: u64,
    /// Paths of the first 100 conflicts.
    pub conflict_paths: Vec<String>,
    /// Number of entries that were deleted, or moved to the backup because the source lacks them.
    pub deleted: u64,
    /// Whether entries that were left kept all deletes from happening.
    pub deletes_withheld: bool,
    /// Number of files that changed at the source before they were sent.
    pub unsettled: u64,
    /// Paths of the first 100 changed files.
    pub unsettled_paths: Vec<String>,
}

/// Why a directory was not written to its end.
#[derive(Debug)]
pub enum UnpackError {
    /// The system's error, with the path.
    Io(io::Error),
    /// Contents differ from their hashes.
    Corrupt,
}

impl From<io::Error> for UnpackError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A step that waits until the data of its batch is on disk.
enum Step {
    Rename { path: Vec<u8>, directory: Rc<OwnedFd>, working: OsString, existing: Existing },
    Link { path: Vec<u8>, directory: Rc<OwnedFd>, target: LinkPath, existing: Existing },
    Attributes { path: Vec<u8>, directory: Rc<OwnedFd>, attributes: AllAttributes },
}

/// An open directory.
struct Open {
    path: Vec<u8>,
    descriptor: Rc<OwnedFd>,
    attributes: AllAttributes,
}

/// Existing entry of a name.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Existing {
    Nothing,
    Is(Stat, FileType),
}

/// Writes a directory from a stream.
pub struct Unpacker<'a> {
    /// The stream: the head, and every content that the directory lacks.
    pub stream: &'a File,
    /// The manifest at the beginning of the stream.
    pub manifest: &'a Manifest,
    /// The directory as it was scanned before; `None` if it did not exist.
    pub before: Option<&'a TreeStream>,
    /// Record of earlier transfers to this directory. Without it every existing entry with another
    /// content is a conflict.
    pub record: Option<&'a Index>,
    /// The manifest of a transfer that was broken off while it wrote the directory, and its source.
    pub broken_off: Option<(&'a Manifest, Origin)>,
    /// The source of this transfer.
    pub origin: Origin,
    /// Whether entries that another program changed are replaced and deleted.
    pub replace: bool,
    /// Entries to delete, from the manifest of `before`; `None` to delete nothing.
    pub deletes: Option<&'a Surplus>,
    /// Place of entries that are deleted or overwritten.
    pub backup: Option<&'a Backup>,
    /// Ranges of the stream whose files changed at the source before they were sent.
    pub unsettled: Option<&'a RangeSet>,
    /// Filter of the transfer. No entry that it excludes gives way to a directory.
    pub filter: Option<&'a Filter>,
    /// Metadata that entries get beside modes and times. Metadata beyond it is ignored.
    pub metadata: MetadataRules,
    /// Whether files of the directory are files of another directory, too, which must not change.
    pub is_shared: bool,
}

/// Times of a file before and after this transfer set it.
struct Retimed {
    before: FileTime,
    set: FileTime,
}

/// State of an [`Unpacker`].
struct Writing<'a> {
    from: &'a Unpacker<'a>,
    root: Folder,
    /// The root, for its entries.
    top: Rc<OwnedFd>,
    open: Vec<Open>,
    steps: Vec<Step>,
    /// Entries of the batch for the record.
    sent: Vec<(Vec<u8>, Sent)>,
    batch_directories: usize,
    batch_bytes: u64,
    /// Paths of entries that are not written. Entries below them, and hard links to them, are not
    /// written either.
    unwritten: BTreeSet<Vec<u8>>,
    /// A directory whose entries are passed over, because its name conflicts.
    passed_over: Option<Vec<u8>>,
    /// Files with several names whose time this transfer set, by device and inode.
    earlier_times: BTreeMap<(u64, u64), Retimed>,
    is_corrupt: bool,
    /// Conflicts that are directories of earlier transfers: the entries in them go first.
    to_empty: Vec<Vec<u8>>,
    owners: Owners,
    buffer: Vec<u8>,
    done: Unpacked,
}

impl Unpacker<'_> {
    /// Writes the entries to the directory `root`, which exists. Contents that are only in files of
    /// this directory (`local`, from [`TreeStream::contents_of`]) are first copied to the stream.
    ///
    /// Errors: [`UnpackError`]. Entries before the error are complete.
    pub fn run(&self, root: OwnedFd, path: &Path, local: &[LocalContent]) -> Result<Unpacked, UnpackError> {
        self.copy_renamed(local)?;
        let top = at(path, root.try_clone())?;
        at(path, make_writable(&top, stat_of(&top).map(|found| Stat::of(&found))))?;
        let mut writing = Writing {
            from: self,
            root: Folder::of_descriptor(root, path.to_owned(), Links::Refused),
            top: Rc::new(top),
            open: Vec::new(),
            steps: Vec::new(),
            sent: Vec::new(),
            batch_directories: 0,
            batch_bytes: 0,
            unwritten: BTreeSet::new(),
            passed_over: None,
            earlier_times: BTreeMap::new(),
            is_corrupt: false,
            to_empty: Vec::new(),
            owners: Owners::new(),
            buffer: vec![0; BUFFER_BYTES],
            done: Unpacked::default(),
        };
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, HeadError::Node(error));
        let mut changes = self.manifest.entries();
        let mut root_attributes = None;
        while let Some(change) = changes.poll().map_err(invalid)? {
            match change {
                Change::Root { after, .. } => root_attributes = after,
                Change::Added { path, entry } => writing.entry(&path, &entry)?,
                // Without an earlier snapshot there are no other changes.
                _ => {}
            }
        }
        writing.finish(root_attributes)
    }

    /// Copies contents that the directory has under another name, before this name is written.
    fn copy_renamed(&self, local: &[LocalContent]) -> io::Result<()> {
        let Some(before) = self.before else { return Ok(()) };
        let mut buffer = vec![0; BUFFER_BYTES];
        for LocalContent { range, source, offset: begin, .. } in
            local.iter().filter(|content| !content.is_in_place)
        {
            let file = before.open(*source)?;
            let mut offset = 0;
            while offset < range.len() {
                let take = buffer.len().min((range.len() - offset) as usize);
                match file.read_exact_at(&mut buffer[..take], begin + offset) {
                    Ok(()) => {}
                    // The file became shorter, which the check of its hash will detect.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                    Err(error) => return Err(error),
                }
                self.stream.write_all_at(&buffer[..take], range.start + offset)?;
                offset += take as u64;
            }
        }
        Ok(())
    }
}

pub(super) fn timestamps(modified: FileTime) -> Timestamps {
    modified_at(modified.seconds(), modified.nanos().into())
}

fn look(directory: &OwnedFd, name: &OsStr) -> Result<Existing, Errno> {
    Ok(found_at(directory, name)?.map_or(Existing::Nothing, |(stat, kind)| Existing::Is(stat, kind)))
}

/// Lets this process write into a directory; its own mode is set at the end.
pub(super) fn make_writable(directory: &OwnedFd, found: Result<Stat, Errno>) -> Result<(), Errno> {
    let mode = found?.mode;
    if mode & OPEN_MODE == OPEN_MODE {
        return Ok(());
    }
    rustix::fs::fchmod(directory, Mode::from_raw_mode(mode | OPEN_MODE))
}

/// Hash of a symbolic link's target, unlike the hash of any file's content.
fn target_hash(target: &[u8]) -> FileHash {
    FileHash(
        *blake3::Hasher::new_derive_key("anabranch: target of a symbolic link")
            .update(target)
            .finalize()
            .as_bytes(),
    )
}

/// Adds a path to a bounded list.
fn list(paths: &mut Vec<String>, root: &Folder, path: &[u8]) {
    if paths.len() < CONFLICTS_MAX {
        paths.push(shown_below(root.path(), path));
    }
}

impl Writing<'_> {
    /// Adds the path to an error.
    fn at<T>(&self, path: &[u8], result: Result<T, impl Into<io::Error>>) -> io::Result<T> {
        at(&self.root.path().join(OsStr::from_bytes(path)), result)
    }

    /// Leaves a file that changed at the source before it was sent.
    fn leave_unsettled(&mut self, path: &[u8]) {
        self.done.unsettled += 1;
        list(&mut self.done.unsettled_paths, &self.root, path);
        self.unwritten.insert(path.to_vec());
    }

    /// Leaves a further name of a file that was left, for the same reason.
    fn leave_link(&mut self, path: &[u8], target: &LinkPath) {
        let file = self.from.manifest.file(target.as_bytes()).map(|file| file.range);
        let is_unsettled = self.from.unsettled.zip(file).is_some_and(|(all, range)| all.contains(range));
        if is_unsettled { self.leave_unsettled(path) } else { self.conflict(path) }
    }

    fn conflict(&mut self, path: &[u8]) {
        self.done.conflicts += 1;
        list(&mut self.done.conflict_paths, &self.root, path);
        self.unwritten.insert(path.to_vec());
    }

    /// Whether the entry of a path, or a directory above it, is not written.
    fn is_unwritten(&self, path: &[u8]) -> bool {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        slashes.chain([path.len()]).any(|end| self.unwritten.contains(&path[..end]))
    }

    /// Closes the directories that do not hold `path`.
    fn leave(&mut self, path: &[u8]) {
        let holds = |open: &Open| path.strip_prefix(&*open.path).is_some_and(|rest| rest.starts_with(b"/"));
        while let Some(Open { path, descriptor, attributes }) = self.open.pop_if(|last| !holds(last)) {
            self.steps.push(Step::Attributes { path, directory: descriptor, attributes });
        }
    }

    /// The directory that holds the entry.
    fn directory(&self) -> Rc<OwnedFd> {
        Rc::clone(self.open.last().map_or(&self.top, |open| &open.descriptor))
    }

    fn entry(&mut self, path: &[u8], entry: &Entry) -> io::Result<()> {
        if let Some(above) = &self.passed_over {
            if path.strip_prefix(above.as_slice()).is_some_and(|rest| rest.starts_with(b"/")) {
                return Ok(());
            }
            self.passed_over = None;
        }
        let is_full = self.steps.len() >= BATCH_NAMES
            || self.batch_directories >= BATCH_DIRECTORIES
            || self.batch_bytes >= BATCH_BYTES
            || self.sent.len() >= BATCH_SENT;
        if is_full {
            self.flush()?;
        }
        self.leave(path);
        if path.split(|byte| *byte == b'/').any(is_reserved) {
            let reserved = io::Error::new(
                io::ErrorKind::InvalidInput,
                "the manifest names a working file of a transfer, which is refused",
            );
            return self.at(path, Err(reserved));
        }
        let directory = self.directory();
        let name = OsStr::from_bytes(name_of(path));
        let mut existing = self.at(path, look(&directory, name))?;
        if entry.kind.tree().is_none() && self.gives_way(path, &directory, &existing)? {
            existing = Existing::Nothing;
        }
        match &entry.kind {
            Kind::Directory { attributes, .. } => {
                let metadata = entry.metadata.clone();
                self.enter(path, &directory, existing, AllAttributes { attributes: *attributes, metadata })
            }
            Kind::File { attributes, content, .. } => {
                let wanted = self.wanted(path, entry.metadata.as_deref())?;
                self.file(path, &directory, existing, (*attributes, *content, &wanted))
            }
            Kind::SymbolicLink { modified, target } => {
                let is_link = matches!(existing, Existing::Is(_, FileType::Symlink));
                let (hash, attributes) =
                    (target_hash(target.as_bytes()), Attributes { mode: 0, modified: *modified });
                if is_link && self.target(path, &directory)?.as_bytes() == target.as_bytes() {
                    let recorded = self.recorded(path)?;
                    self.note_kept(path, recorded, hash, attributes);
                    self.give_link(path, (&directory, name), existing, entry.metadata.as_deref())?;
                    let times = timestamps(*modified);
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    return self.at(path, rustix::fs::utimensat(&directory, name, &times, flags));
                }
                if !self.may_write(path, &directory, &existing)? {
                    return Ok(());
                }
                let working = named_working(name.as_bytes());
                self.at(path, remove(&directory, &working))?;
                let target = OsStr::from_bytes(target.as_bytes());
                self.at(path, rustix::fs::symlinkat(target, &*directory, &working))?;
                if self.from.metadata.owners.is_some() {
                    let made = self.at(path, look(&directory, &working))?;
                    self.give_link(path, (&directory, &working), made, entry.metadata.as_deref())?;
                }
                let (times, flags) = (timestamps(*modified), AtFlags::SYMLINK_NOFOLLOW);
                self.at(path, rustix::fs::utimensat(&directory, &working, &times, flags))?;
                self.note(path, hash, attributes)?;
                let path = path.to_vec();
                self.steps.push(Step::Rename { path, directory, working, existing });
                Ok(())
            }
            Kind::HardLink { path: target } => {
                // Any other file here may be a secret, or belong to another transfer.
                if self.from.manifest.find(target.as_bytes()).is_none() {
                    return self.at(path, Err(io::Error::other("a hard link to an entry that is no file")));
                }
                if self.is_unwritten(target.as_bytes()) {
                    self.leave_link(path, target);
                    return Ok(());
                }
                let is_named = self.is_named(&existing, target)?;
                if is_named || self.may_write(path, &directory, &existing)? {
                    if let Some(file) = self.from.manifest.file(path) {
                        let (content, attributes) =
                            (file.content, Attributes { mode: file.mode, modified: file.modified });
                        let recorded = self.recorded(path)?.filter(|_| is_named);
                        self.note_kept(path, recorded, content, attributes);
                    }
                    let (path, target) = (path.to_vec(), target.clone());
                    self.steps.push(Step::Link { path, directory, target, existing });
                }
                Ok(())
            }
        }
    }

    /// Target of an existing symbolic link.
    fn target(&self, path: &[u8], directory: &OwnedFd) -> io::Result<CString> {
        let name = OsStr::from_bytes(name_of(path));
        self.at(path, rustix::fs::readlinkat(directory, name, Vec::new()))
    }

    /// Whether an existing entry is a name of the file `target`.
    fn is_named(&self, existing: &Existing, target: &LinkPath) -> io::Result<bool> {
        let Existing::Is(stat, FileType::RegularFile) = existing else { return Ok(false) };
        let (holder, name) = self.holder(target.as_bytes())?;
        match self.at(target.as_bytes(), look(&holder, &name))? {
            Existing::Is(found, _) => Ok((stat.inode, stat.device) == (found.inode, found.device)),
            Existing::Nothing => Ok(false),
        }
    }

    /// The directory that holds a path, and the name in it.
    fn holder(&self, path: &[u8]) -> io::Result<(OwnedFd, OsString)> {
        let parent = Path::new(OsStr::from_bytes(path)).parent().unwrap_or(Path::new(""));
        let holder = self.at(path, self.root.open_folder(parent))?;
        Ok((holder, OsStr::from_bytes(name_of(path)).to_owned()))
    }

    /// Returns true if the existing entry may be replaced. If not, it is noted as a conflict.
    ///
    /// Errors: a secret has the name.
    fn may_write(&mut self, path: &[u8], directory: &OwnedFd, existing: &Existing) -> io::Result<bool> {
        let is_directory = matches!(existing, Existing::Is(_, FileType::Directory));
        let may = match existing {
            Existing::Nothing => true,
            Existing::Is(..) if self.from.replace && !is_directory => true,
            Existing::Is(stat, FileType::RegularFile) => self.is_as_sent(path, stat)?,
            Existing::Is(_, FileType::Symlink) => self.is_link_as_sent(path, directory)?,
            // A directory would have to be deleted with everything in it.
            Existing::Is(..) => false,
        };
        if !may {
            self.conflict(path);
            if is_directory && self.from.deletes.is_some_and(|surplus| surplus.is_replaced(path)) {
                self.to_empty.push(path.to_vec());
            }
            return Ok(false);
        }
        let below = Path::new(OsStr::from_bytes(path));
        match secrets::replaced_at(&self.root, below) {
            None => Ok(true),
            Some(what) => Err(OpenError::Secret(what).at(&self.root.path().join(below))),
        }
    }

    /// Time of a file before this transfer set it by another name of the file, and nothing changed
    /// the file since.
    fn earlier_time(&self, stat: &Stat) -> FileTime {
        match self.earlier_times.get(&(stat.device, stat.inode)) {
            Some(Retimed { before, set }) if *set == stat.modified => *before,
            _ => stat.modified,
        }
    }

    /// Whether the same unchanged entry has the name as before.
    fn is_as_before(&self, directory: &OwnedFd, name: &OsStr, before: Existing) -> Result<bool, Errno> {
        Ok(match (before, look(directory, name)?) {
            (Existing::Nothing, Existing::Nothing) => true,
            (Existing::Is(before, kind), Existing::Is(now, kind_now)) => {
                // Not the time of change: this transfer may have replaced another name of the file.
                let key = |stat: &Stat| (stat.size_bytes, self.earlier_time(stat), stat.inode, stat.device);
                kind == kind_now && key(&before) == key(&now)
            }
            _ => false,
        })
    }

    /// Content that the earlier scan found under a path, if the file has not changed since then.
    fn content_before(&self, path: &[u8], stat: &Stat) -> Option<FileHash> {
        let file = self.from.before?.manifest().file(path)?;
        let is_same = file.range.len() == stat.size_bytes && file.modified == self.earlier_time(stat);
        is_same.then_some(file.content)
    }

    fn make_directory(&mut self, path: &[u8], directory: &OwnedFd, attributes: Attributes) -> io::Result<()> {
        let name = OsStr::from_bytes(name_of(path));
        self.at(path, rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(OPEN_MODE)))?;
        self.note(path, DIRECTORY, attributes)
    }

    fn enter(
        &mut self,
        path: &[u8],
        directory: &OwnedFd,
        existing: Existing,
        attributes: AllAttributes,
    ) -> io::Result<()> {
        let name = OsStr::from_bytes(name_of(path));
        match existing {
            Existing::Nothing => self.make_directory(path, directory, attributes.attributes)?,
            Existing::Is(_, FileType::Directory) => {}
            Existing::Is(..) => {
                let is_excluded = self.from.filter.is_some_and(|filter| !filter.includes_path(path));
                if is_excluded {
                    self.conflict(path);
                }
                if is_excluded || !self.may_write(path, directory, &existing)? {
                    self.passed_over = Some(path.to_vec());
                    return Ok(());
                }
                match self.from.backup {
                    Some(backup) => self.at(path, backup.take(directory, name, path))?,
                    None => self.at(path, remove(directory, name))?,
                }
                self.make_directory(path, directory, attributes.attributes)?;
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let opened = match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
            // Another file system is mounted there, and scans pass it over.
            Err(Errno::XDEV) => {
                self.conflict(path);
                self.passed_over = Some(path.to_vec());
                return Ok(());
            }
            other => self.at(path, other)?,
        };
        self.at(path, make_writable(&opened, stat_of(&opened).map(|found| Stat::of(&found))))?;
        self.batch_directories += 1;
        self.open.push(Open { path: path.to_vec(), descriptor: Rc::new(opened), attributes });
        Ok(())
    }

    fn file(
        &mut self,
        path: &[u8],
        directory: &Rc<OwnedFd>,
        existing: Existing,
        (attributes, content, wanted): (Attributes, FileHash, &Wanted),
    ) -> io::Result<()> {
        let name = OsStr::from_bytes(name_of(path));
        // A further hard link to another file becomes a separate file.
        let is_own = self.from.before.is_some_and(|before| before.manifest().find(path).is_some());
        if let Existing::Is(stat, FileType::RegularFile) = &existing
            && is_own
            && self.content_before(path, stat) == Some(content)
        {
            let recorded = self.recorded(path)?;
            let kept = kept_attributes(stat, recorded, attributes, wanted);
            let has_other_metadata = self.at(path, wanted.differs_at(directory, name, stat))?;
            if kept.is_some() || has_other_metadata {
                let kept = kept.unwrap_or(stat.file_attributes());
                // A further name of the file may lie where other users must not gain a file.
                let has_other_users =
                    || wanted.has_other_owner(stat) || wanted.has_other_access_list(directory, name);
                if !(self.from.is_shared || stat.links > 1 && has_other_users()) {
                    let is_needed =
                        has_other_metadata || recorded.is_none_or(|sent| sent.attributes != attributes);
                    let set = self.set_attributes(path, directory, stat, (kept, wanted));
                    self.warn_or_fail(path, set, is_needed)?;
                } else if !self.copy_existing(path, directory, existing, (kept, content, wanted))? {
                    return Ok(());
                }
            }
            self.note_kept(path, recorded, content, attributes);
            return Ok(());
        }
        if !self.may_write(path, directory, &existing)? {
            return Ok(());
        }
        let Some(number) = self.from.manifest.find(path) else {
            return self.at(path, Err(io::Error::other("the manifest lists it twice")));
        };
        let range = self.from.manifest.files()[number].range;
        let working = named_working(name.as_bytes());
        let file = self.new_file(path, directory, &working)?;
        let written = self.copy((self.from.stream, range), &file);
        if self.at(path, written)? != content {
            if self.from.unsettled.is_some_and(|unsettled| unsettled.contains(range)) {
                self.leave_unsettled(path);
            } else {
                self.is_corrupt = true;
                self.unwritten.insert(path.to_vec());
            }
            return self.at(path, remove(directory, &working));
        }
        self.set_new(path, &file, attributes, wanted)?;
        self.done.files += 1;
        self.done.bytes += range.len();
        self.batch_bytes += range.len();
        self.note(path, content, attributes)?;
        let (path, directory) = (path.to_vec(), Rc::clone(directory));
        self.steps.push(Step::Rename { path, directory, working, existing });
        Ok(())
    }

    /// Writes the data of the batch to disk, then takes its steps in order.
    fn flush(&mut self) -> io::Result<()> {
        if self.batch_bytes > 0 {
            self.at(b"", rustix::fs::syncfs(&self.top))?;
        }
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Rename { path, directory, working, existing } => {
                    self.rename(&path, &directory, &working, existing)?;
                }
                Step::Link { path, directory, target, existing } => {
                    self.link(&path, &directory, &target, existing)?;
                }
                Step::Attributes { path, directory, attributes } => {
                    let wanted = self.wanted(&path, attributes.metadata.as_deref())?;
                    self.set_directory(&path, &directory, attributes.attributes, &wanted)?;
                }
            }
        }
        if let Some(record) = self.from.record {
            let mut sent = std::mem::take(&mut self.sent);
            sent.retain(|(path, _)| !self.is_unwritten(path));
            record.note_sent(&sent)?;
        }
        (self.batch_directories, self.batch_bytes) = (self.open.len(), 0);
        Ok(())
    }

    /// Gives a working file its name, unless the name's entry changed since it was looked at.
    fn rename(
        &mut self,
        path: &[u8],
        directory: &OwnedFd,
        working: &OsStr,
        existing: Existing,
    ) -> io::Result<()> {
        let name = OsStr::from_bytes(name_of(path));
        let renamed = match existing {
            Existing::Nothing => rename_new(directory, working, name),
            Existing::Is(..) if self.at(path, self.is_as_before(directory, name, existing))? => {
                match self.from.backup {
                    Some(backup) if !self.at(path, backup.keep(directory, name, path))? => {
                        rename_new(directory, working, name)
                    }
                    _ => rustix::fs::renameat(directory, working, directory, name),
                }
            }
            Existing::Is(..) => Err(Errno::EXIST),
        };
        match renamed {
            Err(Errno::EXIST | Errno::ISDIR | Errno::NOTDIR) => {
                self.at(path, remove(directory, working))?;
                self.conflict(path);
                Ok(())
            }
            other => self.at(path, other),
        }
    }

    /// Gives a file of the directory a further name.
    fn link(
        &mut self,
        path: &[u8],
        directory: &OwnedFd,
        target: &LinkPath,
        existing: Existing,
    ) -> io::Result<()> {
        // A rename of this batch may have met a conflict.
        if self.is_unwritten(target.as_bytes()) {
            self.leave_link(path, target);
            return Ok(());
        }
        let name = OsStr::from_bytes(name_of(path));
        let (holder, target_name) = self.holder(target.as_bytes())?;
        let (found, kind) = match self.at(target.as_bytes(), look(&holder, &target_name))? {
            Existing::Is(stat, kind) => (stat, kind),
            Existing::Nothing => return self.at(path, Err(Errno::NOENT)),
        };
        if kind != FileType::RegularFile {
            return self.at(path, Err(io::Error::other("a hard link to an entry that is no file")));
        }
        match self.at(path, look(directory, name))? {
            Existing::Is(stat, _) if (stat.inode, stat.device) == (found.inode, found.device) => {
                return Ok(());
            }
            _ => {}
        }
        let working = named_working(name.as_bytes());
        self.at(path, remove(directory, &working))?;
        let flags = AtFlags::empty();
        self.at(path, rustix::fs::linkat(&holder, &target_name, directory, &working, flags))?;
        self.rename(path, directory, &working, existing)
    }

    fn finish(mut self, root: Option<AllAttributes>) -> Result<Unpacked, UnpackError> {
        self.leave(b"");
        if let Some(attributes) = root {
            let directory = Rc::clone(&self.top);
            self.steps.push(Step::Attributes { path: Vec::new(), directory, attributes });
        }
        self.flush()?;
        if self.is_corrupt {
            return Err(UnpackError::Corrupt);
        }
        // A surplus entry may have been renamed to an entry that was left.
        let only_to_empty = self.done.conflicts == self.to_empty.len() as u64 && self.done.unsettled == 0;
        match self.from.deletes {
            Some(surplus) if only_to_empty => self.delete(surplus)?,
            deletes => self.done.deletes_withheld = deletes.is_some(),
        }
        Ok(self.done)
    }
}

#[cfg(test)]
mod tests;
