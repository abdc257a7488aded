//! The index of a tree: hashes of its files, kept between scans.
//!
//! A file whose size, times, inode and device did not change is not read again. A file that changed
//! shortly before it was read is not kept, since a later change within the clock's granularity
//! would leave the same times. Source: Git, "Racy Git", technical documentation.
//! Differs: Git compares with the time of its index; here an entry is left out, and its file is
//! read again by the next scan.
//!
//! The index can be deleted at any time. One of another format or of another tree is emptied, and a
//! file of another program is refused. All pages are checked on opening: a damaged index is moved
//! aside, and a new one is made. Damage in the header can make it look like another program's file.
//! Read [`Index`] first.

mod exercise;

pub use exercise::exercise_damage;

use super::Stat;
use crate::folder::secrets::STORE_MAGIC;
use crate::folder::{reworded, shown};
use anabranch_pieces::FileHash;
use anabranch_sets::{Attributes, FileTime};
use redb::{
    Database, ReadOnlyTable, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableHandle as _,
    WriteTransaction,
};
use std::io::{self, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("tree-index");
/// Values of the blocks of large files ([`anabranch_pieces::blocks`]).
const BLOCKS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("tree-blocks");
/// Contents and attributes that transfers gave to entries.
const SENT: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("tree-sent");
/// Changes to [`SENT`] that apply once the next tree is published. An empty value removes a record.
const STAGED: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("tree-staged");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("tree-index-meta");
/// Version of the records.
const FORMAT: &[u8] = b"1";
/// Memory for pages of the index.
const CACHE_BYTES: usize = 32 << 20;
/// Number of entries written in one transaction. A killed scan keeps the earlier transactions.
const BATCH: usize = 50_000;
/// Bytes of blocks' values that are written at once.
const BATCH_BLOCKS_BYTES: usize = 16 << 20;
/// Bytes of an entry: size, times, inode, device, hash.
const ENTRY_BYTES: usize = 80;
/// Minimum age of a file's times, when its content is read, with which the index keeps its hash. A
/// younger file may change again without a new time: FAT's clock has steps of two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// Bytes of a record in [`SENT`]: hash, mode, time, origin.
const SENT_BYTES: usize = 56;
/// Key in [`META`] of the origin whose transfer is writing, or broke off while it wrote.
const WRITING: &str = "tree-writing";
/// Key in [`META`] of the tree that is about to replace the tree of the index.
const NEXT: &str = "tree-next";

/// Number of a source: its site, and its directory there. 0 stands for an unknown one.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin(pub u64);

impl Origin {
    /// Returns true if both are the same known source.
    pub(super) fn is(self, other: Self) -> bool {
        self == other && self.0 != 0
    }
}

/// Content and attributes that a transfer gave to an entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// The source of the transfer.
    pub(super) origin: Origin,
    /// Hash of the content; of a symbolic link, of its target.
    pub(super) content: FileHash,
    /// Mode and time of a file.
    pub(super) attributes: Attributes,
}

impl Sent {
    fn encode(&self) -> [u8; SENT_BYTES] {
        let mut bytes = [0; SENT_BYTES];
        bytes[..32].copy_from_slice(&self.content.0);
        bytes[32..36].copy_from_slice(&self.attributes.mode.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.attributes.modified.seconds().to_le_bytes());
        bytes[44..48].copy_from_slice(&self.attributes.modified.nanos().to_le_bytes());
        bytes[48..].copy_from_slice(&self.origin.0.to_le_bytes());
        bytes
    }

    /// Reads a record; `None` for any other bytes.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SENT_BYTES] = bytes.try_into().ok()?;
        let (content, rest) = bytes.split_first_chunk::<32>()?;
        let (mode, rest) = rest.split_first_chunk()?;
        let (seconds, rest) = rest.split_first_chunk()?;
        let (nanos, origin) = rest.split_first_chunk()?;
        let nanos = u32::from_le_bytes(*nanos);
        let origin = Origin(u64::from_le_bytes(origin.try_into().ok()?));
        let modified = FileTime::new(i64::from_le_bytes(*seconds), nanos.into()).ok()?;
        let attributes = Attributes { mode: u32::from_le_bytes(*mode), modified };
        Some(Self { origin, content: FileHash(*content), attributes })
    }
}

/// Hashes of a tree's files by path, and records of the transfers to its entries.
pub struct Index {
    path: PathBuf,
    database: Database,
    /// Age from which a file is kept.
    settled: Duration,
    /// Whether records of transfers are of a tree that is not published.
    is_staging: bool,
}

/// The key of a tree in [`META`].
fn tree_key(root: &Stat) -> Vec<u8> {
    [root.device.to_le_bytes(), root.inode.to_le_bytes()].concat()
}

/// Applies the records of a tree that was published.
fn adopt(begun: &WriteTransaction) -> Result<(), redb::Error> {
    {
        let staged = begun.open_table(STAGED)?;
        let mut sent = begun.open_table(SENT)?;
        for entry in staged.iter()? {
            let (path, record) = entry?;
            if record.value().is_empty() {
                sent.remove(path.value())?;
            } else {
                sent.insert(path.value(), record.value())?;
            }
        }
    }
    begun.delete_table(STAGED)?;
    Ok(())
}

/// Key of a path: in the order of a manifest, because no name has a zero byte.
fn key(path: &[u8]) -> Vec<u8> {
    path.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
}

fn encode(stat: &Stat, hash: &FileHash) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..8].copy_from_slice(&stat.size_bytes.to_le_bytes());
    for (at, time) in [(8, stat.modified), (20, stat.changed)] {
        bytes[at..at + 8].copy_from_slice(&time.seconds().to_le_bytes());
        bytes[at + 8..at + 12].copy_from_slice(&time.nanos().to_le_bytes());
    }
    bytes[32..40].copy_from_slice(&stat.inode.to_le_bytes());
    bytes[40..48].copy_from_slice(&stat.device.to_le_bytes());
    bytes[48..].copy_from_slice(&hash.0);
    bytes
}

/// The hash of an entry, if it is of the unchanged file.
fn decode(entry: &[u8], stat: &Stat) -> Option<FileHash> {
    let hash = FileHash(*entry.last_chunk()?);
    (entry == encode(stat, &hash)).then_some(hash)
}

/// Returns the hash of an entry if the file is the same. Only its time of change may differ.
fn decode_relinked(entry: &[u8], stat: &Stat) -> Option<FileHash> {
    let hash = FileHash(*entry.last_chunk()?);
    let mut expected = encode(stat, &hash);
    expected[20..32].copy_from_slice(entry.get(20..32)?);
    (entry == expected).then_some(hash)
}

/// Returns true if `stat` is of a file whose changes after `now` will show in its times, on a clock
/// that is coarser than `granularity` at no time.
fn is_settled(stat: &Stat, now: SystemTime, granularity: Duration) -> bool {
    let Ok(since) = now.duration_since(SystemTime::UNIX_EPOCH) else { return false };
    let Some(limit) = since.checked_sub(granularity) else { return false };
    let nanos = limit.subsec_nanos().into();
    let limit = i64::try_from(limit.as_secs()).ok().and_then(|seconds| FileTime::new(seconds, nanos).ok());
    limit.is_some_and(|limit| stat.modified < limit && stat.changed < limit)
}

const DAMAGED: &str = "damaged: remove it; the next run makes a new one";

fn failed(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("index {}: {error}", shown(path)))
}

/// Does `work` on the store at `path`: redb panics on some damaged pages.
fn guarded<T>(path: &Path, work: impl FnOnce() -> T) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| failed(path, DAMAGED))
}

/// First bytes of a file; empty if there is none.
fn begin_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut begin = Vec::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(STORE_MAGIC.len() as u64).read_to_end(&mut begin).map(|_| begin),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(begin),
        Err(error) => Err(error),
    }
}

fn foreign(path: &Path) -> io::Error {
    failed(path, "another program's file has this name, and stays: name another file")
}

/// Why an index is not opened.
enum OpenFailure {
    Io(Box<dyn std::error::Error>),
    /// Another store has the name.
    Foreign,
    Damaged,
}

impl OpenFailure {
    fn at(self, path: &Path) -> io::Error {
        match self {
            Self::Io(error) => failed(path, error),
            Self::Foreign => foreign(path),
            Self::Damaged => failed(path, DAMAGED),
        }
    }
}

impl Index {
    /// Opens the index of the tree whose root folder has these facts, or makes a new one. A damaged
    /// index is moved to `PATH.damaged`.
    ///
    /// Errors: the file is not an index, cannot be made, or is open in another process.
    pub fn open(path: &Path, root: &Stat) -> io::Result<Self> {
        let begin = begin_of(path).map_err(|e| reworded(&e, format!("index {}: {e}", shown(path))))?;
        // A process that was killed while redb made the file leaves zeros.
        if begin != STORE_MAGIC && begin.iter().any(|byte| *byte != 0) {
            return Err(foreign(path));
        }
        let tree = tree_key(root);
        match Self::open_for(path, &tree) {
            Err(OpenFailure::Damaged) => {}
            other => return other.map_err(|failure| failure.at(path)),
        }
        let mut aside = path.as_os_str().to_owned();
        aside.push(".damaged");
        tracing::warn!("index {}: damaged: moved to {}", shown(path), shown(Path::new(&aside)));
        std::fs::rename(path, &aside).map_err(|e| reworded(&e, format!("index {}: {e}", shown(path))))?;
        Self::open_for(path, &tree).map_err(|failure| failure.at(path))
    }

    fn open_for(path: &Path, tree: &[u8]) -> Result<Self, OpenFailure> {
        // redb panics on some damaged files.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let mut database = Database::builder().set_cache_size(CACHE_BYTES).create(path)?;
            if !database.check_integrity()? {
                tracing::warn!("index {}: damaged: the last changes in it are lost", shown(path));
            }
            let begun = database.begin_write()?;
            let names: Vec<String> = begun.list_tables()?.map(|table| table.name().to_owned()).collect();
            if !names.is_empty() && !names.iter().any(|name| name == META.name()) {
                return Ok((database, false));
            }
            {
                let mut meta = begun.open_table(META)?;
                let is = |key, value: &[u8]| {
                    Ok::<_, redb::Error>(meta.get(key)?.is_some_and(|found| found.value() == value))
                };
                if is(NEXT, tree)? && is("format", FORMAT)? {
                    adopt(&begun)?;
                    meta.insert("tree", tree)?;
                    meta.remove(NEXT)?;
                } else if !is("tree", tree)? || !is("format", FORMAT)? {
                    meta.insert("tree", tree)?;
                    meta.insert("format", FORMAT)?;
                    meta.remove(WRITING)?;
                    meta.remove(NEXT)?;
                    begun.delete_table(ENTRIES)?;
                    begun.delete_table(BLOCKS)?;
                    begun.delete_table(SENT)?;
                    begun.delete_table(STAGED)?;
                }
                begun.open_table(ENTRIES)?;
                begun.open_table(BLOCKS)?;
                begun.open_table(SENT)?;
            }
            begun.commit()?;
            Ok::<_, redb::Error>((database, true))
        }));
        match opened {
            Ok(Ok((database, true))) => {
                Ok(Self { path: path.to_owned(), database, settled: SETTLED, is_staging: false })
            }
            Ok(Ok((_, false))) => Err(OpenFailure::Foreign),
            Ok(Err(redb::Error::Io(error))) if error.kind() != io::ErrorKind::InvalidData => {
                Err(OpenFailure::Io(error.into()))
            }
            Ok(Err(redb::Error::UpgradeRequired(_))) => Err(OpenFailure::Foreign),
            Ok(Err(error @ redb::Error::DatabaseAlreadyOpen)) => Err(OpenFailure::Io(Box::new(error))),
            Ok(Err(_)) | Err(_) => Err(OpenFailure::Damaged),
        }
    }

    /// Calls `scan` with a reader of the entries, which takes paths in the order of a manifest and
    /// keeps new hashes. With `is_whole`, entries of paths that were not taken are dropped.
    ///
    /// Errors: an error of `scan`; the index cannot be read or written.
    pub(super) fn with<T>(
        &self,
        is_whole: bool,
        scan: impl FnOnce(&mut Lookups<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let wrong = |error: &dyn std::fmt::Display| failed(&self.path, error);
        let read = self.database.begin_read().map_err(|e| wrong(&e))?;
        let table = read.open_table(ENTRIES).map_err(|e| wrong(&e))?;
        let blocks = read.open_table(BLOCKS).map_err(|e| wrong(&e))?;
        let entries = table.iter().map_err(|e| wrong(&e))?;
        let entries =
            entries.map(|entry| entry.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())));
        let mut lookups = Lookups {
            index: self,
            entries: Box::new(entries),
            next: None,
            is_at_end: false,
            is_whole,
            batch: Vec::new(),
            blocks,
            batch_blocks: Vec::new(),
            batch_blocks_bytes: 0,
        };
        let result = scan(&mut lookups)?;
        lookups.finish()?;
        Ok(result)
    }

    /// The record of the last transfer that wrote the entry of a path; `None` if none did.
    ///
    /// Errors: the index cannot be read.
    pub(super) fn sent(&self, path: &[u8]) -> io::Result<Option<Sent>> {
        let read = || {
            let table = self.database.begin_read()?.open_table(SENT)?;
            let found = table.get(key(path).as_slice())?;
            Ok::<_, redb::Error>(found.and_then(|found| Sent::decode(found.value())))
        };
        guarded(&self.path, read)?.map_err(|error| failed(&self.path, error))
    }

    /// Prepares for the tree with root `next`, which is about to replace the tree of the index.
    /// Later records of transfers apply once the index is opened for that tree. Then the hashes
    /// stay, too.
    ///
    /// Errors: the index cannot be written.
    pub fn stage(&mut self, next: &Stat) -> io::Result<()> {
        let tree = tree_key(next);
        self.update(|begun| {
            begun.delete_table(STAGED)?;
            begun.open_table(STAGED)?;
            begun.open_table(META)?.insert(NEXT, tree.as_slice())?;
            Ok(())
        })?;
        self.is_staging = true;
        Ok(())
    }

    /// Records entries that a transfer wrote.
    ///
    /// Errors: the index cannot be written.
    pub(super) fn note_sent(&self, batch: &[(Vec<u8>, Sent)]) -> io::Result<()> {
        self.update(|begun| {
            let mut table = begun.open_table(if self.is_staging { STAGED } else { SENT })?;
            batch.iter().try_for_each(|(path, sent)| {
                table.insert(key(path).as_slice(), sent.encode().as_slice())?;
                Ok(())
            })
        })
    }

    /// Removes the records of entries that were deleted.
    ///
    /// Errors: the index cannot be written.
    pub(super) fn forget_sent(&self, paths: &[Vec<u8>]) -> io::Result<()> {
        let nothing: &[u8] = &[];
        self.update(|begun| {
            let mut table = begun.open_table(if self.is_staging { STAGED } else { SENT })?;
            paths.iter().try_for_each(|path| {
                if self.is_staging {
                    table.insert(key(path).as_slice(), nothing)?;
                } else {
                    table.remove(key(path).as_slice())?;
                }
                Ok(())
            })
        })
    }

    /// The source whose transfer is writing, or broke off while it wrote.
    ///
    /// Errors: the index cannot be read.
    pub fn writing(&self) -> io::Result<Origin> {
        let read = || {
            let table = self.database.begin_read()?.open_table(META)?;
            let found = table.get(WRITING)?;
            let origin = found.and_then(|found| found.value().try_into().ok().map(u64::from_le_bytes));
            Ok::<_, redb::Error>(Origin(origin.unwrap_or_default()))
        };
        guarded(&self.path, read)?.map_err(|error| failed(&self.path, error))
    }

    /// Records the source whose transfer begins to write.
    ///
    /// Errors: the index cannot be written.
    pub fn note_writing(&self, origin: Origin) -> io::Result<()> {
        self.update(|begun| {
            begun.open_table(META)?.insert(WRITING, origin.0.to_le_bytes().as_slice())?;
            Ok(())
        })
    }

    /// Makes changes in one transaction.
    fn update(&self, change: impl Fn(&WriteTransaction) -> Result<(), redb::Error>) -> io::Result<()> {
        let write = || {
            let begun = self.database.begin_write()?;
            change(&begun)?;
            begun.commit()?;
            Ok::<_, redb::Error>(())
        };
        guarded(&self.path, write)?.map_err(|error| failed(&self.path, error))
    }

    fn write(&self, batch: &[Update], of_blocks: &[Stored]) -> Result<(), redb::Error> {
        let begun = self.database.begin_write()?;
        {
            let mut table = begun.open_table(ENTRIES)?;
            let mut blocks = begun.open_table(BLOCKS)?;
            for (key, entry) in batch {
                match entry {
                    Some(entry) => drop(table.insert(key.as_slice(), entry.as_slice())?),
                    None => {
                        table.remove(key.as_slice())?;
                        blocks.remove(key.as_slice())?;
                    }
                }
            }
            for (key, values) in of_blocks {
                blocks.insert(key.as_slice(), values.as_slice())?;
            }
        }
        begun.commit()?;
        Ok(())
    }
}

/// A key, and its new entry; `None` if it is dropped.
type Update = (Vec<u8>, Option<[u8; ENTRY_BYTES]>);
/// A stored key with its entry.
type Stored = (Vec<u8>, Vec<u8>);

/// Entries of an index, read along with a scan.
pub(super) struct Lookups<'i> {
    index: &'i Index,
    entries: Box<dyn Iterator<Item = Result<Stored, redb::StorageError>> + 'i>,
    next: Option<Stored>,
    is_at_end: bool,
    is_whole: bool,
    batch: Vec<Update>,
    blocks: ReadOnlyTable<&'static [u8], &'static [u8]>,
    batch_blocks: Vec<Stored>,
    batch_blocks_bytes: usize,
}

impl Lookups<'_> {
    fn peek(&mut self) -> io::Result<Option<&Stored>> {
        if self.next.is_none() && !self.is_at_end {
            let next = guarded(&self.index.path, || self.entries.next())?.transpose();
            self.next = next.map_err(|error| failed(&self.index.path, error))?;
            self.is_at_end = self.next.is_none();
        }
        Ok(self.next.as_ref())
    }

    /// The hash of an unchanged file. Paths come in the order of a manifest.
    pub(super) fn hash(&mut self, path: &[u8], stat: &Stat) -> io::Result<Option<FileHash>> {
        self.find(path, |entry| decode(entry, stat))
    }

    /// The hash of a file whose names alone changed. Paths come in the order of a manifest.
    pub(super) fn relinked(&mut self, path: &[u8], stat: &Stat) -> io::Result<Option<FileHash>> {
        self.find(path, |entry| decode_relinked(entry, stat))
    }

    fn find(
        &mut self,
        path: &[u8],
        read: impl Fn(&[u8]) -> Option<FileHash>,
    ) -> io::Result<Option<FileHash>> {
        let key = key(path);
        while let Some((stored, entry)) = self.peek()? {
            match stored.as_slice().cmp(key.as_slice()) {
                std::cmp::Ordering::Less => self.pass()?,
                std::cmp::Ordering::Equal => {
                    let hash = read(entry.as_slice());
                    self.next = None;
                    return Ok(hash);
                }
                std::cmp::Ordering::Greater => break,
            }
        }
        Ok(None)
    }

    /// Passes an entry whose path was not taken.
    fn pass(&mut self) -> io::Result<()> {
        match self.next.take() {
            Some((stored, _)) if self.is_whole => self.update((stored, None)),
            _ => Ok(()),
        }
    }

    /// Keeps a hash; without one, drops the entry.
    pub(super) fn keep(&mut self, path: &[u8], entry: Option<(&Stat, &FileHash)>) -> io::Result<()> {
        self.update((key(path), entry.map(|(stat, hash)| encode(stat, hash))))
    }

    /// The kept values of a large file's blocks, which may be of an earlier content.
    pub(super) fn blocks(&self, path: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let read = || {
            Ok::<_, redb::StorageError>(self.blocks.get(key(path).as_slice())?.map(|v| v.value().to_vec()))
        };
        guarded(&self.index.path, read)?.map_err(|error| failed(&self.index.path, error))
    }

    /// Keeps the values of a large file's blocks.
    pub(super) fn keep_blocks(&mut self, path: &[u8], values: &[u8]) -> io::Result<()> {
        self.batch_blocks_bytes += values.len();
        self.batch_blocks.push((key(path), values.to_vec()));
        if self.batch_blocks_bytes >= BATCH_BLOCKS_BYTES { self.write() } else { Ok(()) }
    }

    fn update(&mut self, update: Update) -> io::Result<()> {
        self.batch.push(update);
        if self.batch.len() >= BATCH { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        let written = guarded(&self.index.path, || self.index.write(&self.batch, &self.batch_blocks));
        self.batch.clear();
        self.batch_blocks.clear();
        self.batch_blocks_bytes = 0;
        written?.map_err(|error| failed(&self.index.path, error))
    }

    /// Returns true if a file with these facts, read from `begun` on, can be kept.
    pub(super) fn is_settled(&self, stat: &Stat, begun: SystemTime) -> bool {
        is_settled(stat, begun, self.index.settled)
    }

    fn finish(mut self) -> io::Result<()> {
        while self.is_whole && self.peek()?.is_some() {
            self.pass()?;
        }
        if self.batch.is_empty() && self.batch_blocks.is_empty() { Ok(()) } else { self.write() }
    }
}

#[cfg(test)]
mod tests;
