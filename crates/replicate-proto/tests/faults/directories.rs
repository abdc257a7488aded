//! Directories in a schedule: a source's snapshots, their streams, and a destination's contents.
//!
//! A model of `service/directories.rs` and of `disk::tree`. A snapshot's stream is its head, then
//! the contents of its files in order. The head lists names, lengths and hashes, and its hash is
//! the snapshot's id. A destination keeps the stream as a partial file, finds contents that it has
//! under other names, and writes the directory at once.
//!
//! Leaves out: kills while a directory is written, attributes, links, and other programs that write
//! there (tests of `disk::tree` and of the command).

use super::disk::{DiskFull, file_hash};
use super::runner::Source;
use super::site::path;
use super::world::{ScheduleEvent, World};
use anabranch_pieces::name::directory;
use anabranch_pieces::{ByteRange, FileHash, RangeSet};
use anabranch_replicate_proto::control::{
    FailureKind, Finish, Inventory, Report, Run, SiteProgram, TransferId,
};
use anabranch_replicate_proto::coordinator::TransferRequest;
use anabranch_units::{Duration, RandomStream, Seed, SiteId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of the head without entries: its length.
const BEGIN_BYTES: usize = 8;
/// Bytes of an entry of the head: name, length, hash.
const ENTRY_BYTES: usize = 2 + 8 + 32;
/// Names of files below this are drawn for sources; renamed files of destinations get higher ones.
const NAMES: u64 = 40;

/// Contents of a directory's files by name.
pub type Files = BTreeMap<u16, Arc<Vec<u8>>>;

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    name: u16,
    range: ByteRange,
    hash: FileHash,
}

/// The head of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub id: FileHash,
    bytes: u64,
    entries: Vec<Entry>,
}

impl Head {
    /// Bytes of the stream.
    fn length(&self) -> u64 {
        self.entries.last().map_or(self.bytes, |last| last.range.end)
    }
}

/// A snapshot of a source's directory.
#[derive(Clone)]
pub struct Snapshot {
    pub head: Head,
    /// The stream; its hash is the snapshot's id.
    pub stream: Source,
    files: Files,
}

impl Snapshot {
    pub fn of(files: Files) -> Self {
        let head_bytes = BEGIN_BYTES + files.len() * ENTRY_BYTES;
        let mut bytes = (head_bytes as u64).to_le_bytes().to_vec();
        for (name, content) in &files {
            bytes.extend(name.to_le_bytes());
            bytes.extend((content.len() as u64).to_le_bytes());
            bytes.extend(file_hash(content).0);
        }
        let head = decode(&bytes).expect("it was just made");
        files.values().for_each(|content| bytes.extend_from_slice(content));
        let stream = Source { hash: head.id, bytes: Arc::new(bytes) };
        Self { head, stream, files }
    }

    /// Whether a directory has every file of the snapshot.
    fn is_in(&self, directory: &Files) -> bool {
        self.files.iter().all(|(name, content)| directory.get(name) == Some(content))
    }
}

/// Reads the head at the beginning of a stream.
fn decode(stream: &[u8]) -> Option<Head> {
    let bytes = u64::from_le_bytes(*stream.first_chunk()?);
    let head = stream.get(..usize::try_from(bytes).ok()?)?;
    let mut start = bytes;
    let entries = head.get(BEGIN_BYTES..)?.chunks_exact(ENTRY_BYTES).map(|entry| {
        let length = u64::from_le_bytes(*entry[2..].first_chunk().expect("eight bytes"));
        let range = ByteRange { start, end: start.saturating_add(length) };
        start = range.end;
        let hash = FileHash(*entry.last_chunk().expect("32 bytes"));
        Entry { name: u16::from_le_bytes([entry[0], entry[1]]), range, hash }
    });
    let entries = entries.collect();
    Some(Head { id: file_hash(head), bytes, entries })
}

/// The head of an arriving stream, if all of it has arrived.
fn arriving(stream: &[u8], have: &RangeSet) -> Option<Head> {
    let is_there = |end: u64| have.contains(ByteRange { start: 0, end });
    if !is_there(BEGIN_BYTES as u64) {
        return None;
    }
    decode(stream).filter(|head| is_there(head.bytes))
}

/// Contents of a stream that a destination's directory has, as a process remembers them.
#[derive(Clone, Debug, Default)]
pub struct LocalContents(Vec<ByteRange>);

impl LocalContents {
    fn of(head: &Head, directory: &Files) -> Self {
        let here: Vec<FileHash> = directory.values().map(|content| file_hash(content)).collect();
        let entries = head.entries.iter().filter(|e| !e.range.is_empty() && here.contains(&e.hash));
        Self(entries.map(|entry| entry.range).collect())
    }

    pub fn with(&self, have: &[ByteRange]) -> Vec<ByteRange> {
        RangeSet::from_ranges(have.iter().chain(&self.0).copied()).ranges().to_vec()
    }
}

/// Directories that a site's process has scanned for transfers under way.
#[derive(Default)]
pub struct RememberedDirectories {
    sources: BTreeMap<(TransferId, String), Snapshot>,
    sinks: BTreeMap<(TransferId, String), LocalContents>,
}

impl RememberedDirectories {
    pub fn forget(&mut self, transfer: TransferId) {
        self.sources.retain(|(of, _), _| *of != transfer);
        self.sinks.retain(|(of, _), _| *of != transfer);
    }
}

fn content(random: &mut RandomStream) -> Arc<Vec<u8>> {
    let lengths = [0, 1, 1_000, 5_000, 20_000, 60_000];
    let length = lengths[random.below(lengths.len() as u64) as usize];
    Arc::new(std::iter::repeat_with(|| random.next_u64() as u8).take(length).collect())
}

fn draw_files(random: &mut RandomStream) -> Files {
    let count = random.below(16);
    (0..count).map(|_| (random.below(NAMES) as u16, content(random))).collect()
}

/// The directory after an edit: a file is new, changed, renamed, copied or gone.
fn edited(mut files: Files, random: &mut RandomStream) -> Files {
    for _ in 0..1 + random.below(3) {
        let names: Vec<u16> = files.keys().copied().collect();
        let old = (!names.is_empty()).then(|| names[random.below(names.len() as u64) as usize]);
        let new = random.below(NAMES) as u16;
        match (random.below(4), old) {
            (0, Some(old)) => drop(files.remove(&old)),
            (1, Some(old)) => {
                let moved = files.remove(&old).expect("it is listed");
                files.insert(new, moved);
            }
            (2, Some(old)) => drop(files.insert(new, Arc::clone(&files[&old]))),
            _ => drop(files.insert(new, content(random))),
        }
    }
    files
}

/// Files and directories of the sources.
pub struct Sources {
    pub files: BTreeMap<String, Source>,
    /// Snapshots of each directory, the current one last.
    pub snapshots: BTreeMap<String, Vec<Snapshot>>,
    /// Snapshots that the source named in each transfer.
    named: BTreeMap<TransferId, BTreeSet<FileHash>>,
    /// Snapshot and ranges that a destination reported in an inquiry.
    offered: BTreeMap<(usize, Run), (Option<FileHash>, RangeSet)>,
    /// Requests whose source has changed.
    pub edited: BTreeSet<usize>,
    edits: RandomStream,
}

impl Sources {
    pub fn new(files: BTreeMap<String, Source>, seed: u64) -> Self {
        Self {
            files,
            snapshots: BTreeMap::new(),
            named: BTreeMap::new(),
            offered: BTreeMap::new(),
            edited: BTreeSet::new(),
            edits: Seed::new(seed).stream("edits", 0),
        }
    }
}

impl World {
    /// A world whose transfers are of directories.
    pub fn of_directories(seed: u64) -> Self {
        let mut new = Self::new(seed);
        let mut random = Seed::new(seed).stream("directories", 0);
        for number in 0..new.requests.len() {
            let request = &mut new.requests[number];
            request.source_path.push('/');
            // Two sources that write one directory at the same time drop each other's streams.
            request.destinations.iter_mut().for_each(|d| d.path = format!("{}-{number}/", d.path));
            let request = request.clone();
            let files = draw_files(&mut random);
            for destination in &request.destinations {
                let there = draw_there(&files, &mut random);
                let disk = &mut new.hosts[destination.site.index()].disk;
                disk.directories.insert(path(&destination.path), there);
            }
            new.sources.snapshots.insert(request.source_path, vec![Snapshot::of(files)]);
            for _ in 0..random.below(4).saturating_sub(1) {
                let at = Duration::from_ms(random.below(20_000));
                new.schedule.after(at, ScheduleEvent::Edit(number));
            }
        }
        new
    }

    /// Changes a source's directory. Attempts that read it fail.
    pub fn edit(&mut self, number: usize) {
        let source = self.requests[number].source_path.clone();
        let snapshots = self.sources.snapshots.get_mut(&source).expect("its source is a directory");
        let last = snapshots.last().expect("it has one").files.clone();
        let new = Snapshot::of(edited(last, &mut self.sources.edits));
        if snapshots.iter().any(|old| old.head.id == new.head.id) {
            return;
        }
        self.schedule.say(format!("{source} changes"));
        snapshots.push(new);
        self.sources.edited.insert(number);
        let site = self.requests[number].source.index();
        let process = self.hosts[site].process.as_mut();
        let runners = process.into_iter().flat_map(|process| process.runners.iter_mut());
        let reading = runners.filter(|(_, r)| r.program.source_path.as_ref() == Some(&source));
        let reading: Vec<Run> = reading.map(|(run, runner)| (runner.stop_reading(), *run).1).collect();
        if !self.is_frozen(site) {
            reading.into_iter().for_each(|run| self.pass_on(site, run));
        }
    }

    /// The stream that a source sends in a transfer: as its process found the directory first.
    pub fn stream_of(&mut self, site: usize, source: &str, transfer: TransferId) -> Snapshot {
        let current = self.sources.snapshots[source].last().expect("it has one").clone();
        let process = self.hosts[site].process.as_mut().expect("callers asked");
        let key = (transfer, source.to_owned());
        let snapshot = process.directories.sources.entry(key).or_insert(current).clone();
        self.sources.named.entry(transfer).or_default().insert(snapshot.head.id);
        snapshot
    }

    pub fn inquire_source(&mut self, site: usize, run: Run, source: &str) -> Report {
        let snapshot = self.stream_of(site, source, run.transfer);
        Report::Inventory(Inventory {
            length: Some(snapshot.head.length()),
            hash: Some(snapshot.head.id),
            head_bytes: Some(snapshot.head.bytes),
            ..Inventory::new(run)
        })
    }

    pub fn inquire_sink(&mut self, site: usize, run: Run, path: &str) -> Report {
        let super::site::Host { disk, process, .. } = &mut self.hosts[site];
        let process = process.as_mut().expect("callers asked");
        let there = disk.directories.get(path).cloned();
        let found = there.as_ref().map(|files| Snapshot::of(files.clone()).head);
        let there = there.unwrap_or_default();
        let (mut have, mut local, mut id) = (Vec::new(), LocalContents::default(), None);
        if let Some((stream, arrived)) = disk.stream(path)
            && let Some(head) = arriving(stream, arrived)
        {
            local = LocalContents::of(&head, &there);
            have = local.with(arrived.ranges());
            id = Some(head.id);
        }
        process.directories.sinks.insert((run.transfer, path.to_owned()), local);
        self.sources.offered.insert((site, run), (id, RangeSet::from_ranges(have.iter().copied())));
        Report::Inventory(Inventory {
            length: found.as_ref().map(Head::length),
            have,
            hash: found.map(|found| found.id),
            arriving: id,
            ..Inventory::new(run)
        })
    }

    /// Opens the stream for an attempt. Data of another snapshot is dropped.
    ///
    /// Panics: if a single destination is sent contents that it already has.
    pub fn begin_stream(&mut self, site: usize, path: &str, program: &SiteProgram) -> Result<u64, DiskFull> {
        self.check_work(site, program);
        let disk = &mut self.hosts[site].disk;
        let is_same = disk.stream(path).is_none_or(|(stream, have)| match arriving(stream, have) {
            Some(head) => program.snapshot == Some(head.id),
            None => have.is_empty(),
        });
        if !is_same {
            disk.forget_stream(path);
        }
        disk.begin(path, program.length)
    }

    /// A single destination gets no contents that it reported for the same snapshot. Several
    /// destinations get all contents that any of them lacks.
    fn check_work(&self, site: usize, program: &SiteProgram) {
        let Some(number) = self.ids.get(&program.run.transfer) else { return };
        let Some((id, have)) = self.sources.offered.get(&(site, program.run)) else { return };
        if self.requests[*number].destinations.len() > 1 || *id != program.snapshot {
            return;
        }
        for range in program.groups.iter().flat_map(|group| &group.work) {
            let is_there = have.ranges().iter().any(|r| r.start < range.end && range.start < r.end);
            assert!(!is_there, "{:?}: {range:?} is at {site} and is sent again", program.run);
        }
    }

    /// The ranges of a stream that an attempt has at a site, with local contents.
    pub fn arrived(
        &self,
        site: usize,
        transfer: TransferId,
        path: &str,
        have: Vec<ByteRange>,
    ) -> Vec<ByteRange> {
        let process = self.hosts[site].process.as_ref();
        let key = (transfer, path.to_owned());
        match process.and_then(|process| process.directories.sinks.get(&key)) {
            Some(local) if directory(path).is_some() => local.with(&have),
            _ => have,
        }
    }

    /// Writes a directory from its stream.
    pub fn finish_directory(&mut self, site: usize, file: &Finish, path: &str) -> Report {
        let (run, key) = (file.run, (file.run.transfer, path.to_owned()));
        let super::site::Host { disk, process, .. } = &mut self.hosts[site];
        let process = process.as_mut().expect("callers asked");
        let there = disk.directories.get(path).cloned();
        let Some((stream, have)) = disk.stream(path).map(|(s, have)| (s.to_vec(), have.clone())) else {
            let is_there = there.is_some_and(|files| Snapshot::of(files).head.id == file.hash);
            return if is_there { Report::Completed { run } } else { Report::SinkDone { run, have: vec![] } };
        };
        if !process.directories.sinks.contains_key(&key) {
            return Report::SinkDone { run, have: have.ranges().to_vec() };
        }
        if disk.is_full {
            let reason = "a directory: no space left on device".to_owned();
            return Report::Failed { run, kind: FailureKind::Unwritable, reason };
        }
        let mut files = there.unwrap_or_default();
        let head =
            decode(&stream).filter(|head| head.id == file.hash && head.length() == stream.len() as u64);
        let by_hash: BTreeMap<[u8; 32], Arc<Vec<u8>>> =
            files.values().map(|content| (file_hash(content).0, Arc::clone(content))).collect();
        let mut is_corrupt = head.is_none();
        for entry in head.iter().flat_map(|head| &head.entries) {
            let arrived = &stream[entry.range.start as usize..entry.range.end as usize];
            let content = by_hash.get(&entry.hash.0).cloned();
            let content =
                content.or_else(|| (file_hash(arrived) == entry.hash).then(|| Arc::new(arrived.to_vec())));
            match content {
                Some(content) => drop(files.insert(entry.name, content)),
                None => is_corrupt = true,
            }
        }
        // Contents that are right get their names in either case.
        disk.directories.insert(path.to_owned(), files);
        process.directories.forget(run.transfer);
        if is_corrupt {
            disk.forget_stream(path);
            return Report::SinkDone { run, have: vec![] };
        }
        disk.remove_stream(path);
        self.check_directory(site, path, file);
        Report::Completed { run }
    }

    /// Checks a directory that was just written: it has a snapshot that its source named in this
    /// transfer.
    fn check_directory(&self, site: usize, path: &str, file: &Finish) {
        let transfer = file.run.transfer;
        let is_named = self.sources.named.get(&transfer).is_some_and(|named| named.contains(&file.hash));
        assert!(is_named, "{transfer} to {site}: no snapshot that the source named");
        let request = &self.requests[self.ids[&transfer]];
        let snapshot = self.sources.snapshots[&request.source_path].iter().find(|s| s.head.id == file.hash);
        let snapshot = snapshot.expect("its source had it");
        let files = &self.hosts[site].disk.directories[path];
        assert!(snapshot.is_in(files), "{transfer} to {site}: {path} is not the snapshot");
    }

    /// Whether a destination's directory has a snapshot of the source. With `is_last`, only the
    /// last snapshot counts.
    pub fn has_directory(&self, request: &TransferRequest, site: SiteId, path: &str, is_last: bool) -> bool {
        let Some(files) = self.hosts[site.index()].disk.directories.get(path) else { return false };
        let snapshots = &self.sources.snapshots[&request.source_path];
        let from = if is_last { snapshots.len() - 1 } else { 0 };
        snapshots[from..].iter().any(|snapshot| snapshot.is_in(files))
    }

    /// Adds the directory of a last request.
    pub fn add_last_directory(&mut self, source: &str) {
        let files = (0..3).map(|name| (name, Arc::new(vec![name as u8; 900]))).collect();
        self.sources.snapshots.insert(source.to_owned(), vec![Snapshot::of(files)]);
    }
}

/// The directory of a destination before its transfer: empty, equal, or with some contents of the
/// source, a part of them under other names.
fn draw_there(files: &Files, random: &mut RandomStream) -> Files {
    match random.below(4) {
        0 => Files::new(),
        1 => files.clone(),
        _ => {
            let kept =
                files.iter().filter(|_| random.below(2) == 0).map(|(name, content)| (*name, content.clone()));
            let kept: Vec<_> = kept.collect();
            let moved = kept.into_iter().map(|(name, content)| {
                let is_moved = random.below(2) == 0;
                (if is_moved { name + NAMES as u16 } else { name }, content)
            });
            let mut there: Files = moved.collect();
            there.insert(2 * NAMES as u16, content(random));
            there
        }
    }
}
