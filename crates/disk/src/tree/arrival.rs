//! A directory that arrives as a stream: what it lacks, and its files at the end.
//!
//! Beside the directory lie working files: the stream as far as it arrived, the index of the
//! directory, the record of transfers to it and, while it is written, the manifest. A directory
//! that is published as a whole ([`super::publish`]) needs no manifest there.
//!
//! Leaves out: where the bytes come from. Read [`Arrival`] first.

use super::index::{Index, Origin};
use super::publish::{NextTree, check, has_snapshots, settle};
use super::stream::{LocalContent, Manifest, TreeStream, head_bytes};
use super::unpack::{Backup, UnpackError, Unpacked, Unpacker, note_broken_off};
use super::{ScanRules, Stat, folder_around, metadata, tree_at};
use crate::folder::{Folder, Name, OpenError, Place, at, remove, shown};
use crate::partial::{FinishError, PartialFile};
use anabranch_pieces::{ByteRange, PieceHasher, RangeSet};
use anabranch_sets::comparison::Comparison;
use anabranch_sets::deletes::{MaxDelete, Surplus};
use anabranch_sets::filter::Filter;
use anabranch_sets::folding::Folding;
use anabranch_sets::metadata::MetadataRules;
use anabranch_sets::publication::{BACKUP_OF_SNAPSHOT, Publication};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Maximum number of separate ranges that are taken from files of the directory.
const LOCAL_RANGES_MAX: usize = 4_096;
/// Minimum bytes of a range that is taken from files here. Two requests around a shorter range cost
/// more than its bytes.
const LOCAL_BYTES_MIN: u64 = 64 << 10;

/// Ending of the working name of a manifest whose directory is being written.
const SENDING: &str = "sending";

/// A directory to write from a stream, as it was before.
#[derive(Debug)]
pub struct Destination<'a> {
    /// Location of the directory.
    pub place: &'a Place,
    /// The directory as it was scanned; `None` if it did not exist.
    pub before: Option<&'a TreeStream>,
    /// Contents of the stream that are in files of this directory.
    pub local: &'a [LocalContent],
    /// The source of the transfer; deletes of all transfers spare entries of an unknown one.
    pub origin: Origin,
    /// Whether entries that another program changed are replaced.
    pub replace: bool,
    /// Entries to delete, from the manifest of `before`; `None` to delete nothing.
    pub deletes: Option<&'a Surplus>,
    /// Folder and name of the directory for entries that are deleted or overwritten.
    pub backup: Option<(&'a Folder, &'a Name)>,
    /// Ranges of the stream whose files changed at the source before they were sent.
    pub unsettled: Option<&'a RangeSet>,
    /// Filter of the transfer. A directory never replaces an entry that the filter excludes.
    pub filter: Option<&'a Filter>,
    /// Maximum memory for one manifest, in bytes.
    pub memory_max: u64,
    /// How entries get their names.
    pub publication: Publication,
    /// Metadata that entries get beside modes and times.
    pub metadata: MetadataRules,
}

impl Destination<'_> {
    /// Writes the directory, which is made if it does not exist. A publication that was broken off
    /// is ended first.
    ///
    /// Errors: [`UnpackError`].
    pub fn write(&self, stream: &File, manifest: &Manifest) -> Result<Unpacked, UnpackError> {
        settle(self.place)?;
        match self.publication {
            Publication::Each => self.write_in_place(stream, manifest),
            Publication::Snapshot { keep } => self.write_snapshot(keep, stream, manifest),
        }
    }

    /// Writes a copy of the directory, and exchanges both. After an error before the exchange the
    /// directory is as it was.
    fn write_snapshot(&self, keep: u32, stream: &File, manifest: &Manifest) -> Result<Unpacked, UnpackError> {
        let place = self.place;
        if self.backup.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, BACKUP_OF_SNAPSHOT).into());
        }
        let id = self.before.map_or([0; 32], |before| before.manifest().id().0);
        let written = NextTree::build(place, keep, &id).map_err(UnpackError::Io).and_then(|next| {
            let done = self.write_next(&next, stream, manifest)?;
            next.publish()?;
            Ok(done)
        });
        if written.is_err() {
            // A failure is only logged, because the next transfer also settles the directory.
            if let Err(error) = settle(place) {
                tracing::warn!("the next snapshot is not removed yet: {error}");
            }
            return written;
        }
        // A transfer that wrote in place may have broken off before this one.
        let record = record_of(place)?;
        end_writing(place, record.as_ref())?;
        written
    }

    /// Writes the entries of a tree that is not published. The record of transfers and the index
    /// change with the publication.
    fn write_next(
        &self,
        next: &NextTree<'_>,
        stream: &File,
        manifest: &Manifest,
    ) -> Result<Unpacked, UnpackError> {
        let Self { place, before, memory_max, .. } = *self;
        let mut record = record_for(place, next.published().unwrap_or(next.stat()));
        let broken_off = Manifest::load(place.folder(), &place.working_name(SENDING), memory_max)?;
        let broken_off_of = record.as_ref().map_or(Ok(Origin::default()), Index::writing)?;
        if let (Some(record), Some(manifest), Some(before)) = (&record, &broken_off, before) {
            note_broken_off(record, (manifest, broken_off_of), before.manifest())?;
        }
        if let Some(published) = next.published() {
            if let Some(record) = &mut record {
                record.stage(next.stat())?;
            }
            let index = place.working_path("index").and_then(|path| Index::open(&path, published));
            if let Err(error) = index.and_then(|mut index| index.stage(next.stat())) {
                tracing::warn!("every file is read by the next transfer: {error}");
            }
        }
        let unpacker = Unpacker {
            stream,
            manifest,
            before,
            record: record.as_ref(),
            broken_off: broken_off.as_ref().map(|manifest| (manifest, broken_off_of)),
            origin: self.origin,
            replace: self.replace,
            deletes: self.deletes,
            backup: None,
            unsettled: self.unsettled,
            filter: self.filter,
            metadata: self.metadata,
            is_shared: true,
        };
        let done = unpacker.run(next.root()?, place.path(), self.local)?;
        if done.unsettled > 0 {
            let files = if done.unsettled == 1 { "file" } else { "files" };
            let reason = format!(
                "{} {files} changed at the source while the directory was sent, and a snapshot has all or nothing: send \
                 it again when the source rests",
                done.unsettled
            );
            return at(place.path(), Err(io::Error::other(reason))).map_err(UnpackError::Io);
        }
        Ok(done)
    }

    /// Writes each entry at its place. Meanwhile the manifest lies beside the directory. After a
    /// kill it shows which files this transfer wrote, so they do not count as another program's.
    fn write_in_place(&self, stream: &File, manifest: &Manifest) -> Result<Unpacked, UnpackError> {
        let Self { place, before, local, origin, memory_max, .. } = *self;
        let root = made(place)?;
        let record = record_of(place)?;
        let record = record.as_ref();
        let backup = self.backup.map(|(folder, name)| Backup::open(folder, name, &root)).transpose()?;
        let broken_off = begin_writing(place, record, before, (manifest, origin), memory_max)?;
        let unpacker = Unpacker {
            stream,
            manifest,
            before,
            record,
            broken_off: broken_off.as_ref().map(|(manifest, origin)| (manifest, *origin)),
            origin,
            replace: self.replace,
            deletes: self.deletes,
            backup: backup.as_ref(),
            unsettled: self.unsettled,
            filter: self.filter,
            metadata: self.metadata,
            is_shared: has_snapshots(place)?,
        };
        let done = unpacker.run(root, place.path(), local)?;
        end_writing(place, record)?;
        Ok(done)
    }
}

/// Opens the record of transfers to a directory; `None` if it cannot be read.
///
/// Errors: the directory cannot be opened.
fn record_of(place: &Place) -> io::Result<Option<Index>> {
    let found = tree_at(place)?.root()?.expect("a directory has a root");
    Ok(record_for(place, &found))
}

/// Opens the record of transfers to the directory with this root; `None` if it cannot be read.
fn record_for(place: &Place, root: &Stat) -> Option<Index> {
    let record = place.working_path("sent").and_then(|path| Index::open(&path, root));
    record.inspect_err(|error| tracing::warn!("every changed file is a conflict: {error}")).ok()
}

/// Removes what a transfer left beside a directory when it broke off after the last entry: the
/// manifest, or the tree before a publication. `found` is the scan of the directory, which is equal
/// to the snapshot that was written. The caller writes the directory alone.
///
/// Errors: the system's. The manifest takes at most `memory_max` bytes.
pub fn end_broken_off(place: &Place, found: &TreeStream, memory_max: u64) -> io::Result<()> {
    settle(place)?;
    let Some(manifest) = Manifest::load(place.folder(), &place.working_name(SENDING), memory_max)? else {
        return Ok(());
    };
    // The manifest alone knows the files that the record lacks.
    let Some(record) = record_of(place)? else { return Ok(()) };
    note_broken_off(&record, (&manifest, record.writing()?), found.manifest())?;
    end_writing(place, Some(&record))
}

/// Returns a line about a directory that lacks entries because a transfer writes it or a directory
/// around it, or broke off while it wrote. `None` for a complete directory. Ask before and after a
/// scan: a transfer may end meanwhile.
///
/// Errors: the system's.
pub fn half_written(folder: &Folder, name: &Name) -> io::Result<Option<&'static str>> {
    let path = Path::new(name.as_str());
    for above in path.ancestors().filter_map(Path::to_str).filter(|above| !above.is_empty()) {
        let place = folder.place(&folder.name(above)?, false)?;
        let sending = place.working_name(SENDING);
        match rustix::fs::statat(place.folder(), &*sending, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {
                return Ok(Some(
                    "a transfer writes it, or broke off while it wrote, so --delete could delete entries elsewhere \
                     that are yet to come: end that transfer first",
                ));
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return at(place.path(), Err(errno)),
        }
    }
    Ok(None)
}

/// Saves the manifest of a transfer beside its directory: after a kill, files that the transfer
/// wrote are not taken for another program's. Returns the manifest and the source of a transfer
/// that broke off. The record gets the files that it wrote, as `before` shows them. Each manifest
/// takes at most `memory_max` bytes.
///
/// Errors: the system's.
fn begin_writing(
    place: &Place,
    record: Option<&Index>,
    before: Option<&TreeStream>,
    (manifest, origin): (&Manifest, Origin),
    memory_max: u64,
) -> io::Result<Option<(Manifest, Origin)>> {
    let sending = place.working_name(SENDING);
    let broken_off = Manifest::load(place.folder(), &sending, memory_max)?;
    let broken_off_of = record.map_or(Ok(Origin::default()), Index::writing)?;
    // The manifest on disk, which alone knows these files, is about to be replaced.
    if let (Some(record), Some(manifest), Some(before)) = (record, &broken_off, before) {
        note_broken_off(record, (manifest, broken_off_of), before.manifest())?;
    }
    let record = record.filter(|_| broken_off_of != origin);
    if let Some(record) = record {
        // Until the new manifest is saved, the old one must not count as this source's.
        record.note_writing(Origin::default())?;
    }
    manifest.save(place.folder(), &sending)?;
    if let Some(record) = record {
        record.note_writing(origin)?;
    }
    Ok(broken_off.map(|manifest| (manifest, broken_off_of)))
}

/// Removes the manifest of [`begin_writing`] once the directory is written.
///
/// Errors: the system's.
fn end_writing(place: &Place, record: Option<&Index>) -> io::Result<()> {
    if let Some(record) = record {
        // A later manifest under this name may be of a transfer that cannot open the record.
        record.note_writing(Origin::default())?;
    }
    let sending = place.working_name(SENDING);
    at(place.path(), remove(place.folder(), &*sending))
}

/// Opens the directory at a location, after making it if there is nothing.
fn made(place: &Place) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(place.folder(), place.name(), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return at(place.path(), Err(errno)),
    }
    let opened = folder_around(place)?.open_folder(Path::new(place.name()));
    opened.map_err(|errno| OpenError::from(errno).at(place.path()))
}

/// Scans the entries of the directory at a location that `filter` includes, with its index; `None`
/// if there is no directory. Entries that cannot be read count as missing.
///
/// Errors: see [`TreeStream::scan_included`].
fn scanned(place: &Place, rules: ScanRules<'_>, memory_max: u64) -> io::Result<Option<TreeStream>> {
    let tree = match tree_at(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let root = tree.root()?.expect("a directory has a root");
    let index = place.working_path("index").and_then(|path| Index::open(&path, &root));
    let index = index.inspect_err(|error| tracing::warn!("every file is read: {error}")).ok();
    let (found, scan) = TreeStream::scan_included(&tree, rules, index.as_ref(), memory_max)?;
    if let Some(problem) = scan.problem {
        tracing::warn!("{problem}: counts as missing here");
    }
    Ok(Some(found))
}

/// The contents whose ranges, joined where they touch, have at least `bytes_min` bytes: the longest
/// `ranges_max` of them.
pub fn longest(local: Vec<LocalContent>, ranges_max: usize, bytes_min: u64) -> Vec<LocalContent> {
    let kept = longest_ranges(local.iter().map(|content| content.range), ranges_max, bytes_min);
    local.into_iter().filter(|content| kept.contains(content.range)).collect()
}

/// The ranges, joined where they touch, that have at least `bytes_min` bytes: the longest
/// `ranges_max` of them.
fn longest_ranges(all: impl Iterator<Item = ByteRange>, ranges_max: usize, bytes_min: u64) -> RangeSet {
    // In order each range is added at the end.
    let mut all: Vec<ByteRange> = all.collect();
    all.sort_unstable();
    let mut ranges = RangeSet::from_ranges(all).ranges().to_vec();
    ranges.retain(|range| range.len() >= bytes_min);
    ranges.sort_unstable_by_key(|range| std::cmp::Reverse(range.len()));
    ranges.truncate(ranges_max);
    ranges.sort_unstable();
    RangeSet::from_ranges(ranges)
}

/// Identity and length of a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Id of the directory's snapshot.
    pub id: [u8; 32],
    /// Bytes of its stream.
    pub length_bytes: u64,
}

/// Rules of a copy.
#[derive(Clone, Debug, Default)]
pub struct CopyRules {
    /// The source. Entries that another source wrote are not deleted.
    pub origin: Origin,
    /// Whether entries that another program changed are replaced and deleted.
    pub replace: bool,
    /// Whether entries that the source lacks are counted.
    pub counts_surplus: bool,
    /// Most entries to delete; `None` to delete nothing.
    pub delete: Option<MaxDelete>,
    /// Path of the directory for entries that are deleted or overwritten, on the same file system.
    pub backup: Option<PathBuf>,
    /// How entries get their names.
    pub publication: Publication,
    /// Metadata that entries get beside modes and times.
    pub metadata: MetadataRules,
    /// The entries that are copied. Entries that it excludes by their paths are left alone.
    pub filter: Arc<Filter>,
}

impl CopyRules {
    /// Checks that two copies agree on the entries to delete.
    ///
    /// Errors: deletes, and a filter that looks at more than paths.
    fn check_deletes(&self) -> io::Result<()> {
        let Some(option) = self.filter.beyond_paths().filter(|_| self.delete.is_some()) else {
            return Ok(());
        };
        let reason =
            format!("--delete with {option}: an entry could count in one copy only: leave one of them out");
        Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
    }
}

/// The entries to write, and the stream that has their contents.
#[derive(Debug)]
struct Wanted {
    manifest: Manifest,
    /// Head of the stream; `None` if the stream is the manifest's own.
    whole_head: Option<Vec<u8>>,
}

impl Wanted {
    /// The entries of a snapshot that `filter` includes.
    ///
    /// Errors: [`super::stream::HeadError`].
    fn of(whole: Manifest, filter: &Filter, memory_max: u64) -> io::Result<Self> {
        if filter.is_open() {
            return Ok(Self { manifest: whole, whole_head: None });
        }
        let manifest = whole.select(filter, memory_max).map_err(io::Error::other)?;
        Ok(Self { manifest, whole_head: Some(whole.into_head()) })
    }

    fn head(&self) -> &[u8] {
        self.whole_head.as_deref().unwrap_or(self.manifest.head())
    }

    /// Ranges of the stream, of `length_bytes`, that the entries do not need.
    fn excluded(&self, length_bytes: u64) -> Vec<ByteRange> {
        let Some(head) = &self.whole_head else { return Vec::new() };
        let head = ByteRange { start: 0, end: head.len() as u64 };
        let mut needed: Vec<ByteRange> = self.manifest.content_ranges().collect();
        needed.push(head);
        // In order each range is added at the end.
        needed.sort_unstable();
        RangeSet::from_ranges(needed).missing(length_bytes)
    }
}

/// Opens the folder around a backup. Returns the backup's name, too.
///
/// Errors: the system's; the name is not UTF-8, or no file's name.
fn backup_at(path: &Path) -> io::Result<(Folder, Name)> {
    let around = folder_around(&Place::of(path)?)?;
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        let reason = format!("{}: the name of a backup must be UTF-8", shown(path));
        io::Error::new(io::ErrorKind::InvalidInput, reason)
    })?;
    let name = around.name(name)?;
    Ok((around, name))
}

/// Device and inode of a path's nearest existing ancestor and of each directory above. If the path
/// itself exists, it is the first. Links are followed.
///
/// Errors: the system's; a component after the existing directories is `..`.
fn ancestors(path: &Path) -> io::Result<(PathBuf, Vec<(u64, u64)>)> {
    let absolute = at(path, std::path::absolute(path))?;
    let existing = absolute.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    let rest = absolute.strip_prefix(existing).unwrap_or(Path::new(""));
    if rest.components().any(|component| component == Component::ParentDir) {
        let reason = format!("{}: `..` behind a folder that does not exist", shown(path));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let real = at(path, existing.canonicalize())?;
    let id = |ancestor: &Path| at(path, ancestor.metadata()).map(|found| (found.dev(), found.ino()));
    let ids = real.ancestors().map(id).collect::<io::Result<_>>()?;
    Ok((real.join(rest), ids))
}

/// Checks that entries of the directory at `path` can move to `backup`: it is on the same file
/// system, and neither contains the other. Makes nothing.
///
/// Errors: [`io::ErrorKind::InvalidInput`]; [`io::ErrorKind::CrossesDevices`]; the system's.
fn check_backup(path: &Path, backup: &Path) -> io::Result<()> {
    let invalid = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    if backup.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
        return invalid(format!("backup {}: not a directory: name another one", shown(backup)));
    }
    let (directory, of_directory) = ancestors(path)?;
    let (kept, of_backup) = ancestors(backup)?;
    let holds = |outer: &Path, ids: &[(u64, u64)]| {
        outer.metadata().is_ok_and(|found| ids.contains(&(found.dev(), found.ino())))
    };
    let is_within = kept.starts_with(&directory) || holds(&directory, &of_backup);
    if is_within || directory.starts_with(&kept) || holds(&kept, &of_directory) {
        return invalid(format!(
            "backup {} and directory {}: neither may contain the other",
            shown(&kept),
            shown(&directory)
        ));
    }
    if of_directory.first().map(|(device, _)| device) != of_backup.first().map(|(device, _)| device) {
        let reason =
            format!("backup {}: on another file system than the directory: name another one", shown(&kept));
        return Err(io::Error::new(io::ErrorKind::CrossesDevices, reason));
    }
    Ok(())
}

/// Finds the entries of a directory that its source lacks and the rules' filter includes. With a
/// filter that looks at more than paths there are none.
///
/// Errors: more entries than the rules allow to delete, or the source is empty.
fn surplus(
    path: &Path,
    before: Option<&TreeStream>,
    manifest: &Manifest,
    rules: &CopyRules,
) -> io::Result<Surplus> {
    // A directory that did not exist has no entries.
    let counts = rules.counts_surplus && rules.filter.beyond_paths().is_none();
    let Some(before) = before.filter(|_| counts || rules.delete.is_some()) else {
        return Ok(Surplus::default());
    };
    let surplus = manifest.surplus_of(before.manifest(), &rules.filter).map_err(io::Error::other)?;
    match rules.delete.map_or(Ok(()), |max| surplus.check(max)) {
        Ok(()) => Ok(surplus),
        Err(refusal) => Err(io::Error::other(format!("{}: {refusal}", shown(path)))),
    }
}

/// Checks that the file system keeps the names of a snapshot's entries apart, where `folding` is
/// ignored in names.
///
/// Errors: names are equal there.
fn check_names(path: &Path, manifest: &Manifest, folding: Folding) -> io::Result<()> {
    if folding.is_none() {
        return Ok(());
    }
    match manifest.collisions(&[folding]).map_err(io::Error::other)?.first() {
        None => Ok(()),
        Some(collisions) => {
            Err(io::Error::other(format!("{}: nothing was fetched: {collisions}", shown(path))))
        }
    }
}

/// Decodes the head of a snapshot's stream.
///
/// Errors: the bytes are no head of this snapshot (`InvalidData`).
fn decoded(head: Vec<u8>, snapshot: Snapshot, memory_max: u64) -> io::Result<Manifest> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let manifest = Manifest::decode(head, memory_max).map_err(|error| invalid(error.to_string()))?;
    let found = Snapshot { id: manifest.id().0, length_bytes: manifest.length_bytes() };
    if found != snapshot {
        return Err(invalid("the list of entries is another snapshot's".to_owned()));
    }
    Ok(manifest)
}

/// Compares the directory at `path` with a snapshot, whose stream begins with `head`. Writes the
/// directory's index only. Each manifest takes at most `memory_max` bytes.
///
/// Errors: see [`Arrival::open`] and [`Arrival::begin`].
pub fn compare(
    path: &Path,
    snapshot: Snapshot,
    head: Vec<u8>,
    rules: &CopyRules,
    memory_max: u64,
) -> io::Result<Comparison> {
    rules.check_deletes()?;
    if let Some(backup) = &rules.backup {
        check_backup(path, backup)?;
    }
    let of_paths = rules.filter.of_paths();
    let manifest = Wanted::of(decoded(head, snapshot, memory_max)?, &rules.filter, memory_max)?.manifest;
    let before = match path.symlink_metadata() {
        // Missing parent folders are not created.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        _ => {
            scanned(&Place::of(path)?, ScanRules { filter: &of_paths, metadata: rules.metadata }, memory_max)?
        }
    };
    if rules.delete.is_some() {
        surplus(path, before.as_ref(), &manifest, rules)?;
    }
    let scope = rules.filter.beyond_paths().is_none().then_some(&of_paths);
    manifest.compare(before.as_ref(), scope, rules.metadata.owners).map_err(io::Error::other)
}

/// A directory while its stream arrives. The received bytes stay if the value is dropped before the
/// end.
#[derive(Debug)]
pub struct Arrival {
    place: Place,
    snapshot: Snapshot,
    rules: CopyRules,
    memory_max: u64,
    stream: PartialFile,
    /// The rules' filter without the rules that look at more than paths.
    of_paths: Filter,
    before: Option<TreeStream>,
    /// The entries to write, once the head of the stream has arrived.
    wanted: Option<Wanted>,
    local: Vec<LocalContent>,
    /// Ranges of the stream that are in files here, or that no wanted entry needs.
    unfetched: RangeSet,
    /// Entries of the directory that the snapshot lacks.
    surplus: Surplus,
}

impl Arrival {
    /// Opens the stream of the directory that will be at `place`, and scans the directory that is
    /// there. Data of another snapshot is dropped. Returns `None` if the directory has all entries
    /// already. Each manifest takes at most `memory_max` bytes.
    ///
    /// Errors: the system's; another process writes the directory; another kind of file has its
    /// name; the rules allow fewer deletes, or none with their filter; the backup overlaps, or is
    /// on another file system; the directory cannot be published by these rules ([`check`]), or
    /// cannot get their metadata.
    pub fn open(
        place: Place,
        snapshot: Snapshot,
        rules: CopyRules,
        memory_max: u64,
    ) -> io::Result<Option<Self>> {
        rules.check_deletes()?;
        if let Some(backup) = &rules.backup {
            if !rules.publication.is_each() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, BACKUP_OF_SNAPSHOT));
            }
            check_backup(place.path(), backup)?;
        }
        check(&place, rules.publication)?;
        metadata::check(&place, rules.metadata)?;
        let mut stream = PartialFile::open_stream(place.clone(), snapshot.length_bytes, 0)?;
        // Before the scan: links of a publication that broke off change the times of all files.
        settle(&place)?;
        let of_paths = rules.filter.of_paths();
        let scan_rules = ScanRules { filter: &of_paths, metadata: rules.metadata };
        let before = scanned(&place, scan_rules, memory_max)?;
        if let Some(found) = before.as_ref().filter(|before| before.manifest().id().0 == snapshot.id) {
            end_broken_off(&place, found, memory_max)?;
            stream.forget()?;
            return Ok(None);
        }
        let manifest = manifest_of(&stream, memory_max)?.filter(|manifest| manifest.id().0 == snapshot.id);
        if manifest.is_none() {
            stream.forget()?;
        }
        let mut arrival = Self {
            place,
            snapshot,
            rules,
            memory_max,
            stream,
            of_paths,
            before,
            wanted: None,
            local: Vec::new(),
            unfetched: RangeSet::default(),
            surplus: Surplus::default(),
        };
        if let Some(manifest) = manifest {
            let wanted = Wanted::of(manifest, &arrival.rules.filter, memory_max)?;
            if arrival.ends_with(&wanted)? {
                return Ok(None);
            }
            let surplus = arrival.surplus_of(&wanted)?;
            arrival.accept(wanted, surplus)?;
        }
        Ok(Some(arrival))
    }

    /// Returns true if the directory has the wanted entries and no others in the filter's scope.
    /// Nothing is left beside it then.
    fn ends_with(&mut self, wanted: &Wanted) -> io::Result<bool> {
        let id = wanted.manifest.id();
        let Some(found) = self.before.as_ref().filter(|before| before.manifest().id() == id) else {
            return Ok(false);
        };
        end_broken_off(&self.place, found, self.memory_max)?;
        self.stream.forget()?;
        Ok(true)
    }

    fn surplus_of(&self, wanted: &Wanted) -> io::Result<Surplus> {
        surplus(self.place.path(), self.before.as_ref(), &wanted.manifest, &self.rules)
    }

    /// Returns true once the head of the stream has arrived, so that [`Arrival::missing`] is known.
    pub fn is_begun(&self) -> bool {
        self.wanted.is_some()
    }

    /// Takes the head of the stream. Returns false if the directory has all entries already.
    ///
    /// Errors: the bytes are no head of this snapshot (`InvalidData`); names are equal on this file
    /// system; the rules allow fewer deletes; the system's.
    pub fn begin(&mut self, head: Vec<u8>) -> io::Result<bool> {
        let whole = decoded(head, self.snapshot, self.memory_max)?;
        let wanted = Wanted::of(whole, &self.rules.filter, self.memory_max)?;
        check_names(self.place.path(), &wanted.manifest, self.place.folding())?;
        if self.ends_with(&wanted)? {
            return Ok(false);
        }
        // A refused copy leaves no working file.
        let surplus = self.surplus_of(&wanted)?;
        self.write_head(wanted.head())?;
        self.accept(wanted, surplus).map(|()| true)
    }

    fn write_head(&mut self, head: &[u8]) -> io::Result<()> {
        let range = ByteRange { start: 0, end: head.len() as u64 };
        let mut hasher = PieceHasher::new(range);
        hasher.update(head);
        let piece = hasher.finish().expect("the head has these bytes");
        self.stream.write(range, &[head], &piece)
    }

    /// Finds out what the directory has of the stream, and what it does not need.
    fn accept(&mut self, wanted: Wanted, surplus: Surplus) -> io::Result<()> {
        let mut local =
            self.before.as_ref().map_or_else(Vec::new, |before| before.contents_of(&wanted.manifest));
        let excluded = wanted.excluded(self.snapshot.length_bytes);
        let unfetched = local.iter().map(|content| content.range).chain(excluded);
        let unfetched = longest_ranges(unfetched, LOCAL_RANGES_MAX, LOCAL_BYTES_MIN);
        local.retain(|content| unfetched.contains(content.range));
        (self.local, self.unfetched) = (local, unfetched);
        (self.wanted, self.surplus) = (Some(wanted), surplus);
        let missing_bytes = self.missing().iter().map(|range| range.len()).sum();
        self.stream.resize_stream(self.snapshot.length_bytes, missing_bytes)
    }

    /// Ranges of the stream that must arrive. Files of the directory have the other ranges, or the
    /// filter excludes these.
    pub fn missing(&self) -> Vec<ByteRange> {
        let ranges = self.stream.have().ranges().iter().chain(self.unfetched.ranges());
        RangeSet::from_ranges(ranges.copied()).missing(self.snapshot.length_bytes)
    }

    /// The stream, for the bytes that arrive.
    pub fn stream(&mut self) -> &mut PartialFile {
        &mut self.stream
    }

    /// Number of entries of the directory that the snapshot lacks.
    pub fn surplus_entries(&self) -> u64 {
        self.surplus.entries().len() as u64
    }

    /// Writes the directory, then deletes.
    ///
    /// Errors: [`FinishError`]. Contents with wrong hashes are not written; then [`Arrival::again`]
    /// tells what is missing.
    pub fn finish(&mut self) -> Result<Unpacked, FinishError> {
        let Self { place, snapshot, rules, stream, of_paths, before, wanted, local, surplus, .. } = self;
        let Some(Wanted { manifest, .. }) = wanted else {
            return Err(FinishError::Io(io::Error::other("the list of entries has not arrived")));
        };
        let (before, memory_max) = (before.as_ref(), self.memory_max);
        let backup = rules.backup.as_deref().map(backup_at).transpose().map_err(FinishError::Io)?;
        let destination = Destination {
            place,
            before,
            local,
            origin: rules.origin,
            replace: rules.replace,
            deletes: rules.delete.map(|_| &*surplus),
            backup: backup.as_ref().map(|(around, name)| (around, name)),
            // The servers of a directory send no zeros for a file that changed.
            unsettled: None,
            filter: Some(of_paths),
            memory_max,
            publication: rules.publication,
            metadata: rules.metadata,
        };
        stream.finish_directory(snapshot.length_bytes, |stream| destination.write(stream, manifest))
    }

    /// Scans the directory again, after contents were wrong.
    ///
    /// Errors: see [`Arrival::open`].
    pub fn again(&mut self) -> io::Result<()> {
        let scan_rules = ScanRules { filter: &self.of_paths, metadata: self.rules.metadata };
        self.before = scanned(&self.place, scan_rules, self.memory_max)?;
        let Some(wanted) = self.wanted.take() else { return Ok(()) };
        self.write_head(wanted.head())?;
        let surplus = self.surplus_of(&wanted)?;
        self.accept(wanted, surplus)
    }
}

/// The manifest at the beginning of a stream; `None` if it has not arrived, or is of no use.
///
/// Errors: the system's.
pub fn manifest_of(stream: &PartialFile, memory_max: u64) -> io::Result<Option<Manifest>> {
    let is_whole = |bytes: u64| stream.have().contains(ByteRange { start: 0, end: bytes });
    if !head_bytes(stream.data())?.is_some_and(is_whole) {
        return Ok(None);
    }
    match Manifest::read_from(stream.data(), memory_max) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
