//! A site's disk: partial files, as `anabranch_disk::partial` keeps them, and finished files, which
//! have their name.
//!
//! A finished file is durable. A partial file was never synced: a loss of power may remove, halve
//! or keep any piece, with or without its entry in the journal. The journal is therefore trusted
//! only as far as the bytes match its hashes.

use super::directories::Files;
use anabranch_pieces::{ByteRange, FileHash, GenerationHash, PieceHasher, RangeSet};
use anabranch_units::RandomStream;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The disk has no room.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DiskFull;

/// Result of finishing a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishResult {
    Named,
    Missing(Vec<ByteRange>),
    OtherFile,
}

/// A partial file.
#[derive(Clone, Debug)]
struct Partial {
    /// Number of the partial file. A file that is started again under the same name has another
    /// number.
    number: u64,
    bytes: Vec<u8>,
    journal: Vec<(ByteRange, GenerationHash)>,
    have: RangeSet,
}

#[derive(Clone, Debug, Default)]
pub struct Disk {
    partial: BTreeMap<String, Partial>,
    /// The partial files that the process has open.
    open: BTreeSet<String>,
    finished: BTreeMap<String, Arc<Vec<u8>>>,
    /// Directories by path, with their files.
    pub directories: BTreeMap<String, Files>,
    begun: u64,
    pub is_full: bool,
}

pub fn piece_hash(range: ByteRange, bytes: &[u8]) -> GenerationHash {
    let mut hasher = PieceHasher::new(range);
    hasher.update(bytes);
    hasher.finish().expect("all of the piece").hash
}

pub fn file_hash(bytes: &[u8]) -> FileHash {
    FileHash(*blake3::hash(bytes).as_bytes())
}

fn at(range: ByteRange) -> std::ops::Range<usize> {
    range.start as usize..range.end as usize
}

impl Partial {
    /// Reads the journal, and keeps the pieces that match it.
    fn verify(&mut self) {
        let (bytes, mut have) = (&self.bytes, RangeSet::default());
        self.journal.retain(|(range, hash)| {
            let is_there = range.end <= bytes.len() as u64;
            let is_right = is_there && piece_hash(*range, &bytes[at(*range)]) == *hash;
            if is_right {
                have.insert(*range);
            }
            is_right
        });
        self.have = have;
    }

    fn resize(&mut self, length: u64) {
        if self.bytes.len() as u64 != length {
            self.bytes.resize(length as usize, 0);
            self.verify();
        }
    }
}

impl Disk {
    /// The contents of a finished file.
    pub fn finished(&self, path: &str) -> Option<&Arc<Vec<u8>>> {
        self.finished.get(path)
    }

    /// Whether the process has no partial file open.
    pub fn has_none_open(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens the partial file of a name; `None` if it does not exist.
    fn existing(&mut self, path: &str) -> Result<Option<&mut Partial>, DiskFull> {
        let Some(partial) = self.partial.get_mut(path) else { return Ok(None) };
        if self.open.insert(path.to_owned()) {
            partial.verify();
            let lacks = partial.bytes.len() as u64 - partial.have.total();
            if self.is_full && lacks > 0 {
                self.open.remove(path);
                return Err(DiskFull);
            }
            if partial.have.is_empty() {
                self.open.remove(path);
                self.partial.remove(path);
                return Ok(None);
            }
        }
        Ok(self.partial.get_mut(path))
    }

    /// Opens or starts the partial file of a name and returns its number.
    pub fn begin(&mut self, path: &str, length: u64) -> Result<u64, DiskFull> {
        let is_full = self.is_full;
        if self.existing(path)?.is_none() {
            if is_full && length > 0 {
                return Err(DiskFull);
            }
            self.begun += 1;
            let bytes = vec![0; length as usize];
            let new = Partial { number: self.begun, bytes, journal: Vec::new(), have: RangeSet::default() };
            self.open.insert(path.to_owned());
            self.partial.insert(path.to_owned(), new);
        }
        let partial = self.partial.get_mut(path).expect("begun above");
        partial.resize(length);
        if is_full && partial.have.total() < length {
            return Err(DiskFull);
        }
        Ok(partial.number)
    }

    /// The bytes of a directory's stream that arrives, and its verified ranges; `None` if no byte
    /// has arrived.
    pub fn stream(&mut self, path: &str) -> Option<(&[u8], &RangeSet)> {
        let partial = self.partial.get_mut(path)?;
        if self.open.insert(path.to_owned()) {
            partial.verify();
            if partial.have.is_empty() {
                self.remove_stream(path);
            }
        }
        self.partial.get(path).map(|partial| (&*partial.bytes, &partial.have))
    }

    /// Forgets all bytes of a stream.
    pub fn forget_stream(&mut self, path: &str) {
        let Some(partial) = self.partial.get_mut(path) else { return };
        partial.journal.clear();
        partial.have = RangeSet::default();
    }

    /// Removes a stream whose directory is written.
    pub fn remove_stream(&mut self, path: &str) {
        self.partial.remove(path);
        self.open.remove(path);
    }

    /// The verified ranges of a partial file.
    pub fn have(&mut self, path: &str) -> Result<Vec<ByteRange>, DiskFull> {
        Ok(self.existing(path)?.map_or_else(Vec::new, |partial| partial.have.ranges().to_vec()))
    }

    /// The verified ranges of a file that an attempt writes; `None` if the file is finished, or if
    /// the partial file of this name has another number.
    pub fn have_of(&self, path: &str, number: u64) -> Option<Vec<ByteRange>> {
        let partial = self.partial.get(path).filter(|partial| partial.number == number);
        partial.map(|partial| partial.have.ranges().to_vec())
    }

    /// Writes a piece to the file with that number. The write is ignored if the file is finished.
    pub fn write(
        &mut self,
        (path, number): (&str, u64),
        range: ByteRange,
        bytes: &[u8],
        hash: GenerationHash,
    ) -> Result<(), DiskFull> {
        let Some(partial) = self.partial.get_mut(path).filter(|partial| partial.number == number) else {
            return Ok(());
        };
        if self.is_full {
            return Err(DiskFull);
        }
        partial.bytes[at(range)].copy_from_slice(&bytes[..range.len() as usize]);
        partial.journal.push((range, hash));
        partial.have.insert(range);
        Ok(())
    }

    /// Checks a file and gives it its name.
    pub fn finish(
        &mut self,
        path: &str,
        length: u64,
        hash: FileHash,
        replace: bool,
    ) -> Result<FinishResult, DiskFull> {
        if length == 0 {
            self.begin(path, 0)?;
        }
        let there = self.finished.get(path).map(|bytes| file_hash(bytes));
        let Some(partial) = self.existing(path)? else {
            return Ok(if there == Some(hash) { FinishResult::Named } else { FinishResult::Missing(vec![]) });
        };
        partial.resize(length);
        if file_hash(&partial.bytes) != hash {
            partial.verify();
            if partial.have.total() == length {
                partial.journal.clear();
                partial.have = RangeSet::default();
            }
            return Ok(FinishResult::Missing(partial.have.ranges().to_vec()));
        }
        if there.is_some_and(|there| there != hash) && !replace {
            return Ok(FinishResult::OtherFile);
        }
        let partial = self.partial.remove(path).expect("it is open");
        self.open.remove(path);
        self.finished.insert(path.to_owned(), Arc::new(partial.bytes));
        Ok(FinishResult::Named)
    }

    /// Closes all files except those in `written`.
    pub fn close_but(&mut self, written: &BTreeSet<String>) {
        self.open.retain(|path| written.contains(path));
        self.drop_empty();
    }

    /// Handles the end of the process, or a loss of power if `power` is given.
    pub fn crash(&mut self, power: Option<&mut RandomStream>) {
        self.open.clear();
        let Some(random) = power else { return };
        for partial in self.partial.values_mut() {
            let (bytes, journal) = (&mut partial.bytes, &mut partial.journal);
            journal.retain(|(range, _)| {
                let half = at(*range).start + at(*range).len() / 2;
                match random.below(8) {
                    0 => bytes[at(*range)].fill(0),
                    1 => bytes[half..at(*range).end].fill(0),
                    2 => return false,
                    _ => {}
                }
                true
            });
        }
    }

    /// Flips a bit of a partial file that no process has open. Returns false if there is no such
    /// file.
    pub fn flip(&mut self, random: &mut RandomStream) -> bool {
        let closed =
            self.partial.iter_mut().filter(|(path, p)| !self.open.contains(*path) && !p.bytes.is_empty());
        let mut closed: Vec<_> = closed.map(|(_, partial)| partial).collect();
        if closed.is_empty() {
            return false;
        }
        let which = random.below(closed.len() as u64) as usize;
        let bytes = &mut closed[which].bytes;
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        true
    }

    /// Removes closed partial files without data.
    fn drop_empty(&mut self) {
        let open = &self.open;
        self.partial.retain(|path, partial| open.contains(path) || !partial.have.is_empty());
    }
}
