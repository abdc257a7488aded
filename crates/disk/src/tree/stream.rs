//! A directory as one byte stream: its manifest, then the contents of its files.
//!
//! The stream begins with the *head*: a magic number, the length of the head, and the nodes of the
//! manifest, each behind its length, the snapshot last. Behind a length of 0 follow the values of
//! the blocks of all large files ([`anabranch_pieces::blocks`]). The contents follow in the order
//! of the manifest, without gaps; further names of a file have none. So the snapshot determines
//! every byte of the stream, and its id stands for them.
//!
//! Leaves out: writing a directory from a stream ([`super::unpack`]). Read [`Manifest`] and
//! [`TreeStream`] first.

mod selection;

use super::index::Index;
use super::manifest::{Counts, Outputs, read_with_blocks};
use super::metadata::Owners;
use super::{Problem, ScanRules, Tree, shown_below};
use crate::folder::{Folder, Links, OpenError, at, remove};
use anabranch_pieces::{ByteRange, FileHash, blocks};
use anabranch_sets::comparison::Comparison;
use anabranch_sets::deletes::Surplus;
use anabranch_sets::filter::Filter;
use anabranch_sets::folding::{Collisions, Folding};
use anabranch_sets::metadata::{OwnerMapping, Ownership};
use anabranch_sets::{
    Change, Difference, FileTime, Kind, NODE_BYTES_MAX, NodeHash, ReadError, Store, UNSETTLED_MAX,
    compare_paths, hash,
};
use anabranch_units::ByteCount;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// First bytes of a stream, with the version of its format.
const MAGIC: [u8; 8] = *b"anatree\x02";
/// Bytes before the first node: the magic, and the length of the head.
const BEGIN_BYTES: usize = 16;
/// Bytes of a node's length.
const NODE_BEGIN_BYTES: usize = 4;
/// Maximum bytes of a head: some 10 million entries.
pub const HEAD_BYTES_MAX: u64 = 1 << 30;

/// Why a head is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeadError {
    /// The bytes have another format.
    Format,
    /// The head has more than [`HEAD_BYTES_MAX`] bytes, or ends within a node.
    Length {
        /// Bytes of the head, by its own statement.
        bytes: u64,
    },
    /// The manifest takes more memory than the limit.
    Memory {
        /// The limit in bytes.
        limit: u64,
    },
    /// A node is missing, damaged, or at a place where it cannot be.
    Node(ReadError),
    /// The lengths of the files exceed 2^63 bytes.
    TooLong,
    /// The values of a large file's blocks do not give its hash.
    Blocks,
}

impl std::fmt::Display for HeadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Format => f.write_str("the stream has no manifest that this version can read"),
            Self::Length { bytes } => {
                write!(f, "a manifest of {bytes} bytes: must be whole, of at most {HEAD_BYTES_MAX}")
            }
            Self::Memory { limit } => {
                let limit = ByteCount::new(*limit);
                write!(f, "a manifest that takes more than {limit} of memory, half of --memory: give more")
            }
            Self::Node(error) => error.fmt(f),
            Self::Blocks => f.write_str("the blocks of a large file do not give its hash"),
            Self::TooLong => f.write_str("the files have more than 2^63 bytes together"),
        }
    }
}
impl std::error::Error for HeadError {}

/// A file whose content is in the stream.
#[derive(Clone, Debug)]
pub(super) struct FileSpan {
    pub(super) mode: u32,
    /// End of the file's path in [`Manifest::paths`].
    path_end: usize,
    /// Range of the file's content in the stream.
    pub(super) range: ByteRange,
    pub(super) content: FileHash,
    pub(super) modified: FileTime,
    /// Beginning of the values of the file's blocks in the head; 0 for a small file.
    blocks: usize,
}

impl FileSpan {
    /// Whether both files have the same content, mode and time.
    pub(super) fn is_equal(&self, other: &Self) -> bool {
        (self.content, self.mode, self.modified) == (other.content, other.mode, other.modified)
    }
}

/// The manifest of a directory, and the place of each file's content in the stream.
///
/// Cost: memory for the head, and some 100 bytes and the path for each entry.
#[derive(Clone, Debug)]
pub struct Manifest {
    id: NodeHash,
    head: Vec<u8>,
    /// Bytes of each node in the head.
    nodes: BTreeMap<NodeHash, Range<usize>>,
    length_bytes: u64,
    /// Paths of the files, end to end.
    paths: Vec<u8>,
    /// Files, in the order of the manifest.
    files: Vec<FileSpan>,
    /// File number of each hard link beyond a file's first name, by path.
    aliases: BTreeMap<Vec<u8>, usize>,
    /// Targets of the symbolic links.
    links: BTreeMap<Vec<u8>, Vec<u8>>,
    held_bytes: u64,
}

/// Bytes of memory counted for an entry beside its path: as a file, or in the table of further
/// names or links.
const ENTRY_BYTES: u64 = 96;
/// Bytes of memory counted for a node beside its bytes.
const NODE_BYTES: u64 = 96;

/// The nodes of a head.
struct Nodes<'h> {
    head: &'h [u8],
    nodes: &'h BTreeMap<NodeHash, Range<usize>>,
}

impl Store for Nodes<'_> {
    fn node(&mut self, hash: &NodeHash) -> Option<Vec<u8>> {
        Some(self.head[self.nodes.get(hash)?.clone()].to_vec())
    }
}

/// The head with these nodes, and the values of the blocks of all large files. `id` is the hash of
/// the snapshot among the nodes.
fn encode(id: NodeHash, nodes: &BTreeMap<NodeHash, Vec<u8>>, blocks: &[u8]) -> Vec<u8> {
    let node_bytes = |node: &Vec<u8>| NODE_BEGIN_BYTES + node.len();
    let block_bytes = if blocks.is_empty() { 0 } else { NODE_BEGIN_BYTES + blocks.len() };
    let bytes = BEGIN_BYTES + nodes.values().map(node_bytes).sum::<usize>() + block_bytes;
    let mut head = Vec::with_capacity(bytes);
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&(bytes as u64).to_le_bytes());
    let others = nodes.iter().filter(|(hash, _)| **hash != id).map(|(_, node)| node);
    for node in others.chain(nodes.get(&id)) {
        let length = u32::try_from(node.len()).expect("a node is below 4 GiB");
        head.extend_from_slice(&length.to_le_bytes());
        head.extend_from_slice(node);
    }
    if !blocks.is_empty() {
        head.extend_from_slice(&[0; NODE_BEGIN_BYTES]);
        head.extend_from_slice(blocks);
    }
    head
}

impl Manifest {
    /// Reads a head. The manifest takes at most `limit` bytes.
    ///
    /// Errors: [`HeadError`].
    pub fn decode(head: Vec<u8>, limit: u64) -> Result<Self, HeadError> {
        let told = stated_bytes(&head).ok_or(HeadError::Format)?;
        let wrong = HeadError::Length { bytes: told };
        if told != head.len() as u64 || told > HEAD_BYTES_MAX {
            return Err(wrong);
        }
        let (mut nodes, mut last, mut has_blocks) = (BTreeMap::new(), None, false);
        let mut rest = &head[BEGIN_BYTES..];
        while let Some((length, more)) = rest.split_first_chunk::<NODE_BEGIN_BYTES>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length == 0 {
                rest = more;
                has_blocks = true;
                break;
            }
            let Some((node, more)) = more.split_at_checked(length).filter(|_| length <= NODE_BYTES_MAX)
            else {
                return Err(wrong);
            };
            rest = more;
            let end = head.len() - rest.len();
            last = Some(hash(node));
            if nodes.insert(hash(node), end - length..end).is_some() {
                return Err(wrong);
            }
        }
        let Some(id) = last.filter(|_| has_blocks != rest.is_empty()) else { return Err(wrong) };
        let blocks = head.len() - rest.len();
        let mut manifest = Self {
            id,
            head: Vec::new(),
            length_bytes: told,
            paths: Vec::new(),
            files: Vec::new(),
            aliases: BTreeMap::new(),
            links: BTreeMap::new(),
            held_bytes: told + nodes.len() as u64 * NODE_BYTES,
            nodes: BTreeMap::new(),
        };
        let mut changes = Difference::new(Nodes { head: &head, nodes: &nodes }, None, id);
        while let Some(change) = changes.poll().map_err(HeadError::Node)? {
            if let Change::Added { path, entry } = change {
                // Directories count, too, because a few nodes can describe any number of equal
                // directories.
                manifest.held_bytes += path.len() as u64 + ENTRY_BYTES;
                if manifest.held_bytes > limit {
                    return Err(HeadError::Memory { limit });
                }
                manifest.add(path, entry.kind)?;
            }
        }
        (manifest.head, manifest.nodes) = (head, nodes);
        manifest.find_blocks(blocks)?;
        Ok(manifest)
    }

    /// Finds the values of the blocks of large files, which begin at `at` in the head, and checks
    /// them.
    fn find_blocks(&mut self, mut at: usize) -> Result<(), HeadError> {
        for file in self.files.iter_mut().filter(|file| blocks::has_blocks(file.range.len())) {
            let bytes = blocks::values_bytes(file.range.len()).ok_or(HeadError::Blocks)?;
            let values = self.head.get(at..).and_then(|rest| rest.get(..bytes)).ok_or(HeadError::Blocks)?;
            if !blocks::are_of(values, file.range.len(), file.content) {
                return Err(HeadError::Blocks);
            }
            file.blocks = at;
            at += bytes;
        }
        if at == self.head.len() { Ok(()) } else { Err(HeadError::Blocks) }
    }

    /// Size of a file, and the values of its blocks, which a small file has not.
    fn blocks(&self, number: usize) -> Option<(u64, &[u8])> {
        let file = &self.files[number];
        let size_bytes = file.range.len();
        let bytes = blocks::values_bytes(size_bytes).filter(|_| file.blocks > 0)?;
        Some((size_bytes, &self.head[file.blocks..file.blocks + bytes]))
    }

    fn add(&mut self, path: Vec<u8>, kind: Kind) -> Result<(), HeadError> {
        match kind {
            Kind::File { attributes, size_bytes, content } => {
                let start = self.length_bytes;
                let end = start.checked_add(size_bytes).filter(|end| *end < 1 << 63);
                let end = end.ok_or(HeadError::TooLong)?;
                self.paths.extend_from_slice(&path);
                let (path_end, range) = (self.paths.len(), ByteRange { start, end });
                let (mode, modified) = (attributes.mode, attributes.modified);
                self.files.push(FileSpan { mode, path_end, range, content, modified, blocks: 0 });
                self.length_bytes = end;
            }
            Kind::HardLink { path: target } => {
                // A further name of another entry is refused when it is written.
                if let Some(number) = self.find(target.as_bytes()) {
                    self.aliases.insert(path, number);
                }
            }
            Kind::SymbolicLink { target, .. } => {
                self.held_bytes += target.as_bytes().len() as u64;
                self.links.insert(path, target.as_bytes().to_vec());
            }
            Kind::Directory { .. } => {}
        }
        Ok(())
    }

    /// Reads the head at the beginning of `stream`. The manifest takes at most `limit` bytes.
    ///
    /// Errors: the system's; [`HeadError`] with [`io::ErrorKind::InvalidData`].
    pub fn read_from(stream: &File, limit: u64) -> io::Result<Self> {
        let invalid = |error: HeadError| io::Error::new(io::ErrorKind::InvalidData, error);
        let Some(bytes) = head_bytes(stream)? else { return Err(invalid(HeadError::Format)) };
        if bytes > HEAD_BYTES_MAX {
            return Err(invalid(HeadError::Length { bytes }));
        }
        if bytes > limit {
            return Err(invalid(HeadError::Memory { limit }));
        }
        let mut head = vec![0; bytes as usize];
        stream.read_exact_at(&mut head, 0)?;
        Self::decode(head, limit).map_err(invalid)
    }

    /// The head of the stream.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Reads a manifest that [`Manifest::save`] wrote; `None` if there is none, or a damaged one,
    /// which is logged.
    ///
    /// Errors: the system's; the name leads to a link.
    pub fn load(folder: &OwnedFd, name: &str, limit: u64) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file: File = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(file) => file.into(),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return at(Path::new(name), Err(errno)),
        };
        match Self::read_from(&file, limit) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                tracing::warn!("{name}: {error}: it is not used");
                Ok(None)
            }
            Err(error) => at(Path::new(name), Err(error)),
        }
    }

    /// Writes the manifest to a file of a folder, which is replaced at once or not at all.
    ///
    /// Errors: the system's.
    pub fn save(&self, folder: &OwnedFd, name: &str) -> io::Result<()> {
        let new = format!("{name}.new");
        let write = || {
            remove(folder, new.as_str())?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let mut file: File = rustix::fs::openat(folder, new.as_str(), flags, mode)?.into();
            file.write_all(&self.head)?;
            file.sync_all()?;
            rustix::fs::renameat(folder, new.as_str(), folder, name)?;
            // The name must be on disk before any entry of the manifest is.
            rustix::fs::fsync(folder).map_err(io::Error::from)
        };
        at(Path::new(name), write())
    }

    /// Bytes of memory that the manifest takes.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// The snapshot's id.
    pub fn id(&self) -> NodeHash {
        self.id
    }

    /// Bytes of the head.
    pub fn head_bytes(&self) -> u64 {
        self.head.len() as u64
    }

    /// Bytes of the stream.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn store(&self) -> impl Store + use<'_> {
        Nodes { head: &self.head, nodes: &self.nodes }
    }

    /// The entries of a destination's manifest that this manifest of its source lacks, as far as
    /// `filter` includes them.
    ///
    /// Errors: [`HeadError::Node`].
    pub fn surplus_of(&self, destination: &Self, filter: &Filter) -> Result<Surplus, HeadError> {
        let (theirs, own) = ((destination.store(), destination.id), (self.store(), self.id));
        Surplus::between(theirs, own, filter).map_err(HeadError::Node)
    }

    /// Compares a destination's directory with this manifest of its source; `None` stands for a
    /// directory that does not exist. Surplus entries count as far as `scope` includes them. With
    /// `owners`, accounts of the source are compared as this machine has them.
    ///
    /// Errors: [`HeadError::Node`].
    pub fn compare(
        &self,
        destination: Option<&TreeStream>,
        scope: Option<&Filter>,
        owners: Option<OwnerMapping>,
    ) -> Result<Comparison, HeadError> {
        let found = destination.map(TreeStream::manifest);
        // Without a directory there are no nodes to read.
        let theirs = (found.unwrap_or(self).store(), found.map(|found| found.id));
        let accounts = Owners::new();
        let owners_here = |owner: &Ownership| match owners.map(|mapping| accounts.numbers(owner, mapping)) {
            Some(Ok(numbers)) => numbers,
            Some(Err(error)) => {
                tracing::warn!("an account is compared by its number: {error}");
                owner.numbers()
            }
            None => owner.numbers(),
        };
        let compared = Comparison::between(theirs, (self.store(), self.id), scope, &owners_here);
        let here = destination.map_or_else(Vec::new, |destination| destination.contents_of(self));
        let here: u64 = here.iter().map(|content| content.range.len()).sum();
        let contents = self.length_bytes() - self.head_bytes();
        Ok(Comparison { content_bytes: contents - here, ..compared.map_err(HeadError::Node)? })
    }

    /// Entries whose names are equal under each of `foldings`.
    ///
    /// Errors: [`HeadError::Node`].
    pub fn collisions(&self, foldings: &[Folding]) -> Result<Vec<Collisions>, HeadError> {
        Collisions::find(self.store(), self.id, foldings).map_err(HeadError::Node)
    }

    /// All entries, as a difference from nothing.
    pub(super) fn entries(&self) -> Difference<impl Store + use<'_>> {
        Difference::new(self.store(), None, self.id)
    }

    pub(super) fn files(&self) -> &[FileSpan] {
        &self.files
    }

    /// Path of a file, by its number.
    pub(super) fn path(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.files[before].path_end);
        &self.paths[start..self.files[number].path_end]
    }

    /// Number of the file with this path.
    pub(super) fn find(&self, path: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.files.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            match compare_paths(self.path(middle), path) {
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// The file with this path, also by a further name.
    pub(super) fn file(&self, path: &[u8]) -> Option<&FileSpan> {
        let number = self.find(path).or_else(|| self.aliases.get(path).copied())?;
        Some(&self.files[number])
    }

    /// Target of a symbolic link.
    pub(super) fn target(&self, path: &[u8]) -> Option<&[u8]> {
        self.links.get(path).map(Vec::as_slice)
    }

    /// Number of the file that holds a byte of the stream behind the head.
    fn file_at(&self, offset: u64) -> Option<usize> {
        // Empty files end where they begin.
        let number = self.files.partition_point(|file| file.range.end <= offset);
        (number < self.files.len()).then_some(number)
    }
}

/// Length of the head by its first bytes; `None` for another format.
fn stated_bytes(begin: &[u8]) -> Option<u64> {
    let length = begin.strip_prefix(&MAGIC)?.first_chunk()?;
    Some(u64::from_le_bytes(*length)).filter(|bytes| *bytes >= BEGIN_BYTES as u64)
}

/// Bytes of the head of a stream, by its first bytes; `None` for another format or a shorter file.
///
/// Errors: the system's.
pub fn head_bytes(stream: &File) -> io::Result<Option<u64>> {
    let mut begin = [0; BEGIN_BYTES];
    match stream.read_exact_at(&mut begin, 0) {
        Ok(()) => Ok(stated_bytes(&begin)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decodes random bytes as a head, for fuzzing: each file is found by its path. Returns true if the
/// bytes are a head.
pub fn exercise_head(bytes: &[u8]) -> bool {
    let Ok(manifest) = Manifest::decode(bytes.to_vec(), 1 << 20) else { return false };
    for number in 0..manifest.files.len() {
        assert_eq!(manifest.find(manifest.path(number)), Some(number), "paths are in order");
    }
    true
}

/// Result of a scan, beside the manifest.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Line about the entries that cannot be read, or that went on changing.
    pub problem: Option<String>,
    /// Counts of the entries.
    pub counts: Counts,
}

impl Scan {
    /// Checks that no entry is missing from the manifest.
    ///
    /// Errors: the line about the missing entries.
    pub fn whole(&self) -> io::Result<()> {
        match &self.problem {
            None => Ok(()),
            Some(problem) => Err(io::Error::other(format!("{problem}: nothing was sent"))),
        }
    }
}

/// A directory that is read as a stream.
///
/// Its files are opened as they are read. A file that changed since the scan is an error, or
/// *unsettled* ([`TreeStream::read_settled`]).
#[derive(Debug)]
pub struct TreeStream {
    folder: Folder,
    manifest: Manifest,
    /// Numbers of the files that changed before they were read.
    unsettled: Mutex<BTreeSet<usize>>,
}

/// Why a file cannot be read.
enum ReadFailure {
    /// The file has changed since the scan.
    Changed(io::Error),
    /// The system's error.
    Io(io::Error),
}

impl From<ReadFailure> for io::Error {
    fn from(failure: ReadFailure) -> Self {
        let (ReadFailure::Changed(error) | ReadFailure::Io(error)) = failure;
        error
    }
}

impl TreeStream {
    /// Scans a directory to send it. The manifest takes at most `limit` bytes.
    ///
    /// Errors: an entry cannot be read or goes on changing, with its path; the index cannot be
    /// read; [`HeadError`].
    pub fn scan(tree: &Tree, index: Option<&Index>, limit: u64) -> io::Result<Self> {
        let (stream, scan) = Self::scan_included(tree, &Filter::default(), index, limit)?;
        scan.whole()?;
        Ok(stream)
    }

    /// Scans the entries of a directory that the rules include and that can be read.
    ///
    /// Errors: see [`TreeStream::scan`].
    pub fn scan_included<'r>(
        tree: &Tree,
        rules: impl Into<ScanRules<'r>>,
        index: Option<&Index>,
        limit: u64,
    ) -> io::Result<(Self, Scan)> {
        let (mut nodes, mut first, mut held_bytes) = (BTreeMap::new(), None, 0);
        let mut keep = |hash, node: &[u8]| {
            if held_bytes <= limit && !nodes.contains_key(&hash) {
                held_bytes += node.len() as u64 + NODE_BYTES;
                nodes.insert(hash, node.to_vec());
            }
        };
        let mut blocks = Vec::new();
        let mut keep_blocks = |values: &[u8]| blocks.extend_from_slice(values);
        let mut note = |path: &[u8], problem: &Problem| {
            first.get_or_insert_with(|| format!("{}: {problem}", shown_below(tree.path(), path)));
        };
        let outputs = Outputs { nodes: &mut keep, blocks: &mut keep_blocks };
        let snapshot = read_with_blocks(tree, rules.into(), index, outputs, &mut note)?;
        let problem = first.map(|first| match snapshot.counts.unreadable + snapshot.counts.unsettled {
            1 => first,
            entries => format!("{first}, and {} more entries", entries - 1),
        });
        if held_bytes + blocks.len() as u64 > limit {
            return Err(io::Error::other(HeadError::Memory { limit }));
        }
        let head = encode(snapshot.id, &nodes, &blocks);
        drop(nodes);
        let manifest = Manifest::decode(head, limit).map_err(io::Error::other)?;
        let descriptor = tree.descriptor.try_clone()?;
        let folder = Folder::of_descriptor(descriptor, tree.path().to_owned(), Links::Refused);
        let stream = Self { folder, manifest, unsettled: Mutex::default() };
        Ok((stream, Scan { problem, counts: snapshot.counts }))
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads a range of the stream.
    ///
    /// Errors: the system's; a file is no longer as it was scanned; the range ends behind the
    /// stream.
    pub fn read(&self, range: ByteRange) -> io::Result<Vec<u8>> {
        self.read_or(range, |_, failure| Err(failure.into()))
    }

    /// Reads a range of the stream. Zeros stand for the bytes of files that are no longer as they
    /// were scanned, which count as unsettled from then on.
    ///
    /// Errors: as [`TreeStream::read`]; too many files are unsettled.
    pub fn read_settled(&self, range: ByteRange) -> io::Result<Vec<u8>> {
        self.read_or(range, |number, failure| match failure {
            ReadFailure::Changed(error) => {
                let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
                if unsettled.len() >= UNSETTLED_MAX && !unsettled.contains(&number) {
                    let text = format!("{error}; more than {UNSETTLED_MAX} files changed");
                    return Err(io::Error::other(text));
                }
                if unsettled.insert(number) {
                    tracing::warn!("{error}");
                }
                Ok(())
            }
            ReadFailure::Io(error) => Err(error),
        })
    }

    /// Ranges of the stream whose files changed before they were read.
    pub fn unsettled(&self) -> Vec<ByteRange> {
        let unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        unsettled.iter().map(|number| self.manifest.files[*number].range).collect()
    }

    fn read_or(
        &self,
        range: ByteRange,
        failed: impl Fn(usize, ReadFailure) -> io::Result<()>,
    ) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; range.len() as usize];
        let (mut filled, mut offset) = (0, range.start);
        if let Some(head) = self.manifest.head.get(offset as usize..) {
            filled = head.len().min(bytes.len());
            bytes[..filled].copy_from_slice(&head[..filled]);
            offset += filled as u64;
        }
        while filled < bytes.len() {
            let number = self.manifest.file_at(offset).ok_or(io::ErrorKind::UnexpectedEof)?;
            let file = &self.manifest.files[number];
            let take = ((file.range.end - offset) as usize).min(bytes.len() - filled);
            let target = &mut bytes[filled..filled + take];
            if let Err(failure) = self.read_file(number, offset - file.range.start, target) {
                target.fill(0);
                failed(number, failure)?;
            }
            filled += take;
            offset += take as u64;
        }
        Ok(bytes)
    }

    fn read_file(&self, number: usize, offset: u64, bytes: &mut [u8]) -> Result<(), ReadFailure> {
        let (span, path) = (&self.manifest.files[number], self.manifest.path(number));
        let shown = self.folder.path().join(OsStr::from_bytes(path));
        let changed = || {
            let path = crate::folder::shown(&shown);
            let reason = format!("{path}: changed while it was read: send it again when it rests");
            ReadFailure::Changed(io::Error::other(reason))
        };
        let file = match self.folder.file_at(OsStr::from_bytes(path)) {
            Ok(file) => file,
            // The name of the file, or of a directory above it, now has another kind of entry or
            // none.
            Err(OpenError::NotFound | OpenError::Link | OpenError::Folder | OpenError::Special) => {
                return Err(changed());
            }
            Err(error) => {
                let error = error.at(&shown);
                let is_other = error.kind() == io::ErrorKind::NotADirectory;
                return Err(if is_other { changed() } else { ReadFailure::Io(error) });
            }
        };
        let read = file.read_exact_at(bytes, offset);
        let found = at(&shown, file.metadata()).map_err(ReadFailure::Io)?;
        let modified = FileTime::new(found.mtime(), found.mtime_nsec().unsigned_abs());
        if found.len() != span.range.len() || modified != Ok(span.modified) {
            return Err(changed());
        }
        at(&shown, read).map_err(ReadFailure::Io)
    }

    /// Opens the file with this number.
    pub(super) fn open(&self, number: usize) -> io::Result<File> {
        let path = Path::new(OsStr::from_bytes(self.manifest.path(number)));
        self.folder.file_at(path).map_err(|error| error.at(&self.folder.path().join(path)))
    }

    /// The contents of another directory's stream that are in this directory: whole files, and
    /// blocks of large files with the same path.
    pub fn contents_of(&self, other: &Manifest) -> Vec<LocalContent> {
        let of = |number: usize| (self.manifest.files[number].content, number);
        let here: BTreeMap<FileHash, usize> = (0..self.manifest.files.len()).map(of).collect();
        let mut found = Vec::new();
        for (number, file) in other.files.iter().enumerate().filter(|(_, file)| !file.range.is_empty()) {
            // The file of the same path needs no copy.
            let same = self.manifest.find(other.path(number));
            let equal = same.filter(|same| self.manifest.files[*same].content == file.content);
            if let Some(source) = equal.or_else(|| here.get(&file.content).copied()) {
                let is_in_place = equal.is_some();
                found.push(LocalContent { range: file.range, source, offset: 0, is_in_place });
            } else if let Some(source) = same
                && let (Some(before), Some(after)) = (self.manifest.blocks(source), other.blocks(number))
            {
                found.extend(blocks::common_ranges(before, after).into_iter().map(|common| {
                    let (start, end) = (file.range.start + common.start, file.range.start + common.end);
                    let range = ByteRange { start, end };
                    LocalContent { range, source, offset: common.start, is_in_place: false }
                }));
            }
        }
        found
    }
}

/// A content of a stream that a directory has already.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LocalContent {
    /// Range of the content in the stream.
    pub range: ByteRange,
    /// Number of the file that has the content.
    pub(super) source: usize,
    /// Offset of the content in this file.
    pub(super) offset: u64,
    /// Whether the stream's manifest has this content at this file's path.
    pub(super) is_in_place: bool,
}

#[cfg(test)]
mod tests;
