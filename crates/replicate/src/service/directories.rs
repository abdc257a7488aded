//! Directories of a site: streams at a source, and the received parts of a stream at a destination.
//!
//! Beside a directory lie its index, the record of transfers to it and, while it is written, the
//! manifest, under working names.
//! One scan runs at a time.
//!
//! Leaves out: the stream and the writing of a directory (`disk::tree`). Read [`Directories`]
//! first.

use super::{Service, SharedFile, lock};
use anabranch_disk::folder::{Folder, Name, Place};
use anabranch_disk::partial::{FinishError, PartialFile};
use anabranch_disk::tree::arrival::{Destination, end_broken_off, half_written, longest, manifest_of};
use anabranch_disk::tree::index::{Index, Origin};
use anabranch_disk::tree::manifest::Counts;
use anabranch_disk::tree::stream::{LocalContent, Manifest, TreeStream};
use anabranch_disk::tree::unpack::{UnpackError, Unpacked};
use anabranch_disk::tree::{ScanRules, Tree, metadata, publish};
use anabranch_pieces::{FileHash, RangeSet};
use anabranch_replicate_proto::control::{
    DirectoryRules, EntryCounts, Finish, FoldedNames, Inventory, LeftCause, LeftEntry, Report, Run,
    SiteProgram, Submitter, TransferId, Unsettled, bound_left,
};
use anabranch_sets::FileTime;
use anabranch_sets::comparison::Comparison;
use anabranch_sets::deletes::Surplus;
use anabranch_sets::filter::Filter;
use anabranch_sets::folding::{Collisions, Folding};
use anabranch_sets::metadata::MetadataRules;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Maximum number of separate ranges in an inventory that come from other files of the destination.
/// Shorter ranges are sent again.
const LOCAL_RANGES_MAX: usize = 32_768;
/// Maximum number of transfers whose facts are kept.
const FACTS_MAX: usize = 4_096;
/// Maximum number of conflicts named in a message.
const CONFLICTS_NAMED: usize = 3;

/// Parts of a directory's stream that a destination already has.
#[derive(Debug)]
struct Sink {
    /// The directory when the transfer asked first; `None` if it did not exist.
    before: Option<Arc<TreeStream>>,
    /// Contents of the stream that the directory has.
    local: Vec<LocalContent>,
}

/// Facts about a transfer that its attempts share.
#[derive(Clone, Debug)]
struct TransferFacts {
    rules: DirectoryRules,
    /// The filter, whose ages were evaluated once.
    filter: Arc<Filter>,
    /// Id of the snapshot that arrives, once an attempt began.
    snapshot: Option<FileHash>,
    /// The answer of a destination that compared its directory with the snapshot of this id. Its
    /// message can be lost.
    comparison: Option<(Name, FileHash, Comparison)>,
}

/// A scanned directory of a source.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) stream: Arc<TreeStream>,
    /// Line about entries that went on changing during the scan.
    left_out: Option<String>,
    /// Entries that a destination may not keep apart.
    collisions: Vec<Collisions>,
}

/// Scanned directories of the transfers under way.
#[derive(Debug, Default)]
pub(super) struct Directories {
    sources: Mutex<BTreeMap<(TransferId, Name), Source>>,
    sinks: Mutex<BTreeMap<(TransferId, Name), Arc<Sink>>>,
    facts: Mutex<BTreeMap<TransferId, TransferFacts>>,
    scanning: Mutex<()>,
}

/// The entries of a site that a transfer is about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum End {
    /// The source: all rules of the filter.
    Source,
    /// A destination: rules about paths, on which it agrees with the source.
    Destination,
}

fn now() -> FileTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    FileTime::new(seconds, since.subsec_nanos().into()).expect("below a second")
}

/// Checks whether a source may have entries deleted elsewhere: it has some, all were read, and no
/// transfer is writing them.
fn check_source(name: &Name, half_written: Option<&str>, counts: &Counts) -> io::Result<()> {
    let refused = |reason: String| Err(io::Error::other(format!("{name}/: {reason}: nothing was sent")));
    if let Some(gaps) = half_written.map(str::to_owned).or_else(|| counts.gaps()) {
        return refused(gaps);
    }
    if counts.files + counts.directories + counts.symbolic_links + counts.hard_links == 0 {
        return refused(
            "--delete with a source that has no entry would delete everything elsewhere".to_owned(),
        );
    }
    Ok(())
}

/// Checks whether the submitter may have entries deleted, moved, listed or given away here, or the
/// directory exchanged: only operators may.
fn check_submitter(name: &Name, submitter: Submitter, rules: &DirectoryRules) -> io::Result<()> {
    let asks_more = rules.delete.is_some()
        || rules.backup.is_some()
        || rules.compare
        || !rules.publish.is_each()
        || !rules.metadata.is_none();
    if !asks_more || !matches!(submitter, Submitter::Site(_)) {
        return Ok(());
    }
    let reason = format!(
        "{name}/: a site may put files here, but not delete, move, list or exchange any, nor set owners and \
         attributes: have an operator do it"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// Adds a directory, and drops the oldest ones above `limit`: they are scanned
/// again when they are needed.
fn keep<T: Held>(
    kept: &Mutex<BTreeMap<(TransferId, Name), T>>,
    key: (TransferId, Name),
    value: T,
    limit: u64,
) {
    let mut kept = lock(kept);
    kept.insert(key, value);
    while kept.len() > 1 && kept.values().map(Held::held_bytes).sum::<u64>() > limit {
        kept.pop_first();
    }
}

/// Memory of a kept directory.
trait Held {
    fn held_bytes(&self) -> u64;
}

impl Held for Source {
    fn held_bytes(&self) -> u64 {
        self.stream.manifest().held_bytes()
    }
}

impl Held for Arc<Sink> {
    fn held_bytes(&self) -> u64 {
        let before = self.before.as_ref().map_or(0, |before| before.manifest().held_bytes());
        before + size_of_val(&*self.local) as u64
    }
}

/// The ranges of a stream that arrived, and the ranges whose contents are in other files.
fn with_local(arrived: &RangeSet, local: &[LocalContent]) -> RangeSet {
    let local = local.iter().map(|content| content.range);
    RangeSet::from_ranges(arrived.ranges().iter().copied().chain(local))
}

/// A source's answer about a directory. Destinations that compare get the head only.
pub(super) fn source_inventory(run: Run, source: &Source, rules: &DirectoryRules) -> Report {
    let manifest = source.stream.manifest();
    let length = if rules.compare { manifest.head_bytes() } else { manifest.length_bytes() };
    Report::Inventory(Inventory {
        length: Some(length),
        hash: Some(FileHash(manifest.id().0)),
        head_bytes: Some(manifest.head_bytes()),
        unsettled: Unsettled { ranges: source.stream.unsettled(), left_out: source.left_out.clone() },
        names: FoldedNames { folding: Folding::NONE, collisions: source.collisions.clone() },
        ..Inventory::new(run)
    })
}

impl Directories {
    /// Scans a directory with its index, by `scan`.
    fn scan<T>(
        &self,
        folder: &Folder,
        name: &Name,
        scan: impl FnOnce(&Tree, Option<&Index>) -> io::Result<T>,
    ) -> io::Result<T> {
        let tree = Tree::below(folder, Path::new(name.as_str()))?;
        let root = tree.root()?.expect("a directory has a root");
        // The index is open in one scan at a time.
        let _alone = lock(&self.scanning);
        let index = folder.beside(name, "index").and_then(|path| Index::open(&path, &root));
        let index = index.inspect_err(|error| tracing::warn!("every file is read: {error}")).ok();
        scan(&tree, index.as_ref())
    }

    /// The filter of a transfer. It is made once: without `rules`, an earlier inquiry made it.
    fn filter(&self, run: Run, end: End, rules: Option<&DirectoryRules>) -> io::Result<Arc<Filter>> {
        if let Some(known) = lock(&self.facts).get(&run.transfer) {
            return Ok(Arc::clone(&known.filter));
        }
        let Some(rules) = rules else { return Ok(Arc::default()) };
        let made = match end {
            End::Source => rules.filter.filter(now()),
            End::Destination => rules.filter.of_paths().filter(now()),
        };
        let filter = Arc::new(made.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?);
        if !run.is_question() {
            let mut facts = lock(&self.facts);
            if facts.len() >= FACTS_MAX {
                facts.pop_first();
            }
            let (filter, rules) = (Arc::clone(&filter), rules.clone());
            facts.insert(run.transfer, TransferFacts { rules, filter, snapshot: None, comparison: None });
        }
        Ok(filter)
    }

    /// The metadata that a transfer takes: without `rules`, as an earlier inquiry said.
    fn metadata(&self, run: Run, rules: Option<&DirectoryRules>) -> MetadataRules {
        match rules {
            Some(rules) => rules.metadata,
            None => {
                lock(&self.facts).get(&run.transfer).map(|known| known.rules.metadata).unwrap_or_default()
            }
        }
    }

    /// The stream of a source's directory, as its transfer found it first. The manifests of all
    /// streams take at most `memory_max` bytes together, one of them half.
    ///
    /// Errors: see [`TreeStream::scan`]; the source may not have entries deleted elsewhere.
    pub(super) fn source(
        &self,
        folder: &Folder,
        name: &Name,
        run: Run,
        rules: Option<&DirectoryRules>,
        memory_max: u64,
    ) -> io::Result<Source> {
        let key = (run.transfer, name.clone());
        if let Some(known) = lock(&self.sources).get(&key) {
            return Ok(known.clone());
        }
        let filter = self.filter(run, End::Source, rules)?;
        let metadata = self.metadata(run, rules);
        let read = |tree: &Tree, index: Option<&Index>| {
            let scanned = ScanRules { filter: &filter, metadata };
            TreeStream::scan_included(tree, scanned, index, memory_max / 2)
        };
        let deletes = rules.is_some_and(|rules| rules.delete.is_some());
        let half_written_before = if deletes { half_written(folder, name)? } else { None };
        let (stream, scan) = self.scan(folder, name, read)?;
        // Deletes and comparisons need every entry.
        let is_exact = rules.is_some_and(|rules| rules.delete.is_some() || rules.compare);
        if is_exact || scan.counts.unreadable > 0 {
            scan.whole()?;
        }
        if deletes {
            check_source(name, half_written_before.or(half_written(folder, name)?), &scan.counts)?;
        }
        // A comparison writes no name.
        let collisions = if rules.is_some_and(|rules| rules.compare) {
            Vec::new()
        } else {
            stream.manifest().collisions(&Folding::LOSSY).map_err(io::Error::other)?
        };
        let source = Source { stream: Arc::new(stream), left_out: scan.problem, collisions };
        // A question has no transfer whose end drops it. Without an inquiry the filter is unknown.
        if lock(&self.facts).contains_key(&run.transfer) {
            keep(&self.sources, key, source.clone(), memory_max);
        }
        Ok(source)
    }

    /// The ranges that have arrived, and the ones that the destination's directory has.
    pub(super) fn with_local(&self, transfer: TransferId, name: &Name, arrived: RangeSet) -> RangeSet {
        match lock(&self.sinks).get(&(transfer, name.clone())) {
            Some(sink) => with_local(&arrived, &sink.local),
            None => arrived,
        }
    }

    /// Returns true if the transfer compares directories.
    fn compares(&self, transfer: TransferId) -> bool {
        lock(&self.facts).get(&transfer).is_some_and(|known| known.rules.compare)
    }

    /// Drops the facts of another transfer with this number, which another controller assigned.
    /// That transfer is recognised only by its different rules.
    pub(super) fn forget_other(&self, transfer: TransferId, rules: &DirectoryRules) {
        let known = lock(&self.facts).get(&transfer).is_some_and(|known| known.rules != *rules);
        if known {
            self.forget(transfer);
        }
    }

    /// Drops scans of a directory that was written since, and of directories in it and around it.
    fn forget_scans(&self, name: &Name) {
        let is_in = |inner: &Name, outer: &Name| Path::new(inner.as_str()).starts_with(outer.as_str());
        lock(&self.sinks).retain(|(_, of), _| !is_in(of, name) && !is_in(name, of));
    }

    /// Drops all facts of an ended transfer.
    pub(super) fn forget(&self, transfer: TransferId) {
        lock(&self.sources).retain(|(of, _), _| *of != transfer);
        lock(&self.sinks).retain(|(of, _), _| *of != transfer);
        lock(&self.facts).remove(&transfer);
    }
}

impl Service {
    /// A source's directory.
    pub(super) fn source_directory(
        &self,
        path: &str,
        run: Run,
        rules: Option<&DirectoryRules>,
    ) -> io::Result<Source> {
        let name = self.name(path)?;
        self.directories.source(&self.config.folder, &name, run, rules, self.config.memory_max)
    }

    /// Name of the directory to which a transfer moves deleted and overwritten entries of `name`.
    ///
    /// Errors: one of them contains the other.
    fn backup_of(&self, name: &Name, rules: &DirectoryRules) -> io::Result<Option<Name>> {
        let Some(backup) = &rules.backup else { return Ok(None) };
        let backup = self.name(backup)?;
        let is_within =
            |inner: &Name, outer: &Name| inner == outer || inner.is_below(&Some(outer.as_str().to_owned()));
        if is_within(&backup, name) || is_within(name, &backup) {
            let reason = format!("backup {backup}/ and directory {name}/: neither may contain the other");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        Ok(Some(backup))
    }

    /// Name of the working files into which a directory's stream arrives. The manifest of a
    /// comparison has a separate name, because later transfers do not use it.
    pub(super) fn stream_name(&self, transfer: TransferId, name: &Name) -> io::Result<Name> {
        if !self.directories.compares(transfer) {
            return Ok(name.clone());
        }
        let hash = blake3::hash(name.as_str().as_bytes()).to_hex();
        self.name(&format!("compared-{}", &hash[..32]))
    }

    /// A destination's answer about a directory.
    pub(super) fn inquire_directory(
        &self,
        run: Run,
        name: &Name,
        submitter: Submitter,
        rules: &DirectoryRules,
    ) -> io::Result<Report> {
        self.allow(name, submitter)?;
        check_submitter(name, submitter, rules)?;
        if let Some(backup) = self.backup_of(name, rules)? {
            self.allow(&backup, submitter)?;
        }
        if !rules.compare && !rules.publish.is_each() {
            publish::check(&self.config.folder.place(name, true)?, rules.publish)?;
        }
        if !rules.compare && !rules.metadata.is_none() {
            metadata::check(&self.config.folder.place(name, true)?, rules.metadata)?;
        }
        let filter = self.directories.filter(run, End::Destination, Some(rules))?;
        let key = (run.transfer, name.clone());
        let known = lock(&self.directories.sinks).get(&key).cloned();
        let before = match known {
            Some(sink) => sink.before.clone(),
            None => {
                if !rules.compare {
                    self.end_publication(name)?;
                }
                self.scan_here(name, ScanRules { filter: &filter, metadata: rules.metadata })?
            }
        };
        let (mut have, mut arriving, mut local) = (RangeSet::default(), None, Vec::new());
        if !rules.compare
            && let Some(found) = &before
        {
            self.end_written(name, found)?;
        }
        if let Some(file) = self.existing_stream(&self.stream_name(run.transfer, name)?)? {
            let file = lock(&file);
            if let Some(manifest) = manifest_of(&file, self.config.memory_max / 2)? {
                let id = FileHash(manifest.id().0);
                let begun = lock(&self.directories.facts).get(&run.transfer).and_then(|known| known.snapshot);
                // A head of another snapshot is left from an earlier transfer.
                if begun == Some(id) && rules.delete.is_some() {
                    surplus(name, before.as_deref(), &manifest, &filter, rules)?;
                }
                have = file.have().clone();
                arriving = Some(id);
                local = before.as_ref().filter(|_| !rules.compare).map_or_else(Vec::new, |before| {
                    longest(before.contents_of(&manifest), LOCAL_RANGES_MAX, 0)
                });
            }
        }
        let found = before.as_ref().map(|before| before.manifest());
        let length = if rules.compare { Manifest::head_bytes } else { Manifest::length_bytes };
        // A comparison makes no working name.
        let folding = if rules.compare { Folding::NONE } else { self.config.folder.folding(name) };
        let report = Report::Inventory(Inventory {
            length: found.map(length),
            have: with_local(&have, &local).ranges().to_vec(),
            hash: found.map(|found| FileHash(found.id().0)),
            arriving,
            names: FoldedNames { folding, collisions: Vec::new() },
            ..Inventory::new(run)
        });
        keep(&self.directories.sinks, key, Arc::new(Sink { before, local }), self.config.memory_max);
        Ok(report)
    }

    /// Ends a publication that broke off. Its links changed the times of all files, so a scan
    /// before this step would read all files.
    fn end_publication(&self, name: &Name) -> io::Result<()> {
        let Some(file) = self.existing_stream(name)? else { return Ok(()) };
        let _alone = lock(&file);
        publish::settle(&self.config.folder.place(name, false)?)
    }

    /// Removes the working files of a directory that was killed after its last entry was written.
    /// `found` is its scan.
    fn end_written(&self, name: &Name, found: &TreeStream) -> io::Result<()> {
        let Some(file) = self.existing_stream(name)? else { return Ok(()) };
        let mut partial = lock(&file);
        let memory_max = self.config.memory_max / 2;
        let arriving = manifest_of(&partial, memory_max)?;
        if arriving.is_some_and(|arriving| arriving.id() == found.manifest().id()) {
            end_broken_off(&self.config.folder.place(name, false)?, found, memory_max)?;
            partial.forget()?;
            drop(partial);
            lock(&self.files).remove(name);
        }
        Ok(())
    }

    /// The directory at a destination; `None` if there is none. Entries that cannot be read are
    /// left out.
    fn scan_here(&self, name: &Name, rules: ScanRules<'_>) -> io::Result<Option<Arc<TreeStream>>> {
        let limit = self.config.memory_max / 2;
        let scan = |tree: &Tree, index: Option<&Index>| TreeStream::scan_included(tree, rules, index, limit);
        match self.directories.scan(&self.config.folder, name, scan) {
            Ok((found, scan)) => {
                if let Some(problem) = scan.problem {
                    tracing::warn!("{problem}: counts as missing here");
                }
                Ok(Some(Arc::new(found)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the stream of a directory for an attempt that sends `arriving_bytes`. Data of another
    /// snapshot is dropped.
    pub(super) fn begun_stream(
        &self,
        name: &Name,
        program: &SiteProgram,
        arriving_bytes: u64,
    ) -> io::Result<SharedFile> {
        if let Some(facts) = lock(&self.directories.facts).get_mut(&program.run.transfer) {
            facts.snapshot = program.snapshot;
        }
        let name = self.stream_name(program.run.transfer, name)?;
        let open = || {
            let place = self.config.folder.place(&name, true)?;
            PartialFile::open_stream(place, program.length, arriving_bytes).map(Some)
        };
        let shared = self.arriving(&name, open)?.expect("opened if it was not");
        let mut file = lock(&shared);
        let is_same = match manifest_of(&file, self.config.memory_max / 2)? {
            Some(manifest) => program.snapshot.is_some_and(|snapshot| snapshot.0 == manifest.id().0),
            None => file.have().is_empty(),
        };
        if !is_same {
            file.forget()?;
        }
        file.resize_stream(program.length, arriving_bytes)?;
        drop(file);
        Ok(shared)
    }

    /// Opens the stream of a directory, if a part of it arrived.
    fn existing_stream(&self, name: &Name) -> io::Result<Option<SharedFile>> {
        self.arriving(name, || match self.config.folder.place(name, false) {
            Ok(place) => PartialFile::open_existing_stream(place),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        })
    }

    /// Writes a directory from its stream.
    pub(super) fn finish_directory(&self, file: &Finish) -> io::Result<Report> {
        let Finish { run, length, hash, .. } = *file;
        let name = self.name(&file.path)?;
        let filter = self.directories.filter(run, End::Destination, Some(&file.rules))?;
        let missing = |have: &RangeSet| Report::SinkDone { run, have: have.ranges().to_vec() };
        let stream_name = self.stream_name(run.transfer, &name)?;
        let Some(partial) = self.existing_stream(&stream_name)? else {
            let known = lock(&self.directories.facts).get(&run.transfer).and_then(|f| f.comparison.clone());
            if let Some((of, id, comparison)) = known
                && (&of, id) == (&name, hash)
            {
                return Ok(Report::Compared { run, comparison });
            }
            // The directory was written before, and the answer was lost.
            let scanned = ScanRules { filter: &filter, metadata: file.rules.metadata };
            let here = self.scan_here(&name, scanned)?;
            let is_there = here.is_some_and(|found| found.manifest().id().0 == hash.0);
            return Ok(if is_there { Report::Completed { run } } else { missing(&RangeSet::default()) });
        };
        let mut partial = lock(&partial);
        let sink = lock(&self.directories.sinks).get(&(run.transfer, name.clone())).cloned();
        // Without the scan every file here would count as changed. The next inquiry makes a scan.
        let Some(sink) = sink else { return Ok(missing(partial.have())) };
        let memory_max = self.config.memory_max / 2;
        let manifest_in = |stream: &File| match Manifest::read_from(stream, memory_max) {
            Ok(manifest) if manifest.id().0 == hash.0 => Ok(manifest),
            Ok(_) => Err(UnpackError::Corrupt),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!("{name}: {error}");
                Err(UnpackError::Corrupt)
            }
            Err(error) => Err(error.into()),
        };
        let done = if file.rules.compare {
            let compare = |stream: &File| {
                let manifest = manifest_in(stream)?;
                Ok(compared(&name, sink.before.as_deref(), &manifest, &filter, &file.rules)?)
            };
            partial.finish_directory(length, compare).map(|comparison| {
                if let Some(facts) = lock(&self.directories.facts).get_mut(&run.transfer) {
                    facts.comparison = Some((name.clone(), hash, comparison.clone()));
                }
                Report::Compared { run, comparison }
            })
        } else {
            let place = self.config.folder.place(&name, true)?;
            let write = |stream: &File| {
                self.write_directory(file, (&name, &place), (stream, &manifest_in(stream)?), (&sink, &filter))
            };
            partial.finish_directory(length, write).map(|(done, surplus)| {
                self.directories.forget(run.transfer);
                self.directories.forget_scans(&name);
                self.config.metrics.note_file(run.transfer, length);
                written(&name, file, done, surplus)
            })
        };
        drop(partial);
        match done {
            Ok(report) => {
                lock(&self.files).remove(&stream_name);
                Ok(report)
            }
            Err(FinishError::Mismatch { have }) => {
                // An existing file may have changed, so the next inquiry scans again.
                self.directories.forget(run.transfer);
                Ok(Report::SinkDone { run, have })
            }
            Err(FinishError::Io(error)) => Err(error),
        }
    }

    /// Writes the entries of a manifest, then deletes. Returns the result, and the number of
    /// entries here that the source lacks.
    fn write_directory(
        &self,
        file: &Finish,
        (name, place): (&Name, &Place),
        (stream, manifest): (&File, &Manifest),
        (sink, filter): (&Sink, &Filter),
    ) -> Result<(Unpacked, Option<u64>), UnpackError> {
        let rules = &file.rules;
        let surplus = surplus(name, sink.before.as_deref(), manifest, filter, rules)?;
        let backup = self.backup_of(name, rules)?;
        let unsettled = RangeSet::from_ranges(file.unsettled.iter().copied());
        let destination = Destination {
            place,
            before: sink.before.as_deref(),
            local: &sink.local,
            origin: Origin(file.origin),
            replace: file.replace,
            deletes: surplus.as_ref().filter(|_| rules.delete.is_some()),
            backup: backup.as_ref().map(|backup| (&*self.config.folder, backup)),
            unsettled: Some(&unsettled),
            filter: Some(filter),
            memory_max: self.config.memory_max / 2,
            publication: rules.publish,
            metadata: rules.metadata,
        };
        let done = destination.write(stream, manifest)?;
        let left = surplus.map(|surplus| surplus.entries().len() as u64 - done.deleted);
        Ok((done, left))
    }
}

/// A destination's answer about a directory that it has written.
fn written(name: &Name, file: &Finish, done: Unpacked, surplus: Option<u64>) -> Report {
    let Unpacked { files, bytes, conflicts, conflict_paths, deleted, unsettled, unsettled_paths, .. } = done;
    let transfer = file.run.transfer.0;
    tracing::info!(transfer, files, bytes, deleted, conflicts, unsettled, "{name}/ is here, verified");
    let entries = EntryCounts { surplus, deleted, conflicts, unsettled };
    let spared = done.deletes_withheld;
    let of_changes = (unsettled > 0).then(|| unsettled_line(unsettled, &unsettled_paths, spared));
    let of_conflicts = (conflicts > 0).then(|| conflict_line(conflicts, &conflict_paths, spared));
    let lines: Vec<String> = of_changes.into_iter().chain(of_conflicts).collect();
    let conflicts = (!lines.is_empty()).then(|| lines.join("; "));
    let entry = |cause| move |path| LeftEntry { cause, path };
    let of_conflicts = conflict_paths.into_iter().map(entry(LeftCause::Conflict));
    let of_changes = unsettled_paths.into_iter().map(entry(LeftCause::Unsettled));
    let mut left: Vec<LeftEntry> = of_conflicts.chain(of_changes).collect();
    bound_left(&mut left);
    Report::Written { run: file.run, entries, conflicts, left }
}

/// Differences of a destination from the manifest of its source.
///
/// Errors: as [`surplus`], so that a comparison for a mirror shows whether it may delete.
fn compared(
    name: &Name,
    before: Option<&TreeStream>,
    manifest: &Manifest,
    filter: &Filter,
    rules: &DirectoryRules,
) -> io::Result<Comparison> {
    if rules.delete.is_some() {
        surplus(name, before, manifest, filter, rules)?;
    }
    let scope = rules.filter.beyond_paths().is_none().then_some(filter);
    manifest.compare(before, scope, rules.metadata.owners).map_err(io::Error::other)
}

/// The entries of a destination that the source lacks; `None` if the filter looks at more than
/// paths.
///
/// Errors: with deletes, the number of entries exceeds the limit, or the source is empty.
fn surplus(
    name: &Name,
    before: Option<&TreeStream>,
    manifest: &Manifest,
    filter: &Filter,
    rules: &DirectoryRules,
) -> io::Result<Option<Surplus>> {
    if rules.filter.beyond_paths().is_some() {
        return Ok(None);
    }
    // A directory that did not exist has no entries.
    let Some(before) = before else { return Ok(Some(Surplus::default())) };
    let surplus = manifest.surplus_of(before.manifest(), filter).map_err(io::Error::other)?;
    match rules.delete.map_or(Ok(()), |max| surplus.check(max)) {
        Ok(()) => Ok(Some(surplus)),
        Err(refusal) => Err(io::Error::other(format!("{name}/: {refusal}"))),
    }
}

/// The first paths, and the number of further paths.
fn named(entries: u64, paths: &[String]) -> String {
    let named = paths.iter().take(CONFLICTS_NAMED).cloned().collect::<Vec<_>>().join(", ");
    match entries.saturating_sub(CONFLICTS_NAMED as u64) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Line about files that changed at the source before they were sent. `spared` is as in
/// [`conflict_line`].
fn unsettled_line(entries: u64, paths: &[String], spared: bool) -> String {
    let paths = named(entries, paths);
    let rest = if spared { "no entry was deleted: " } else { "" };
    format!("{paths}: changed at the source while it was sent, and left: {rest}send it again when it rests")
}

/// Line about the entries that were left. `spared` is true if none was deleted although the
/// transfer deletes.
fn conflict_line(conflicts: u64, paths: &[String], spared: bool) -> String {
    let paths = named(conflicts, paths);
    let rest = if spared { "no entry was deleted" } else { "the rest is done" };
    format!(
        "{paths}: changed here by another program or source, and left; {rest}: --replace replaces or deletes \
         files and links"
    )
}
