//! The client's disk: the received bytes of each object, and the files that survive the client's
//! process.

use anabranch_gather_proto::fetch::ObjectId;
use anabranch_pieces::{ByteRange, RangeSet};
use anabranch_units::{Duration, Instant, RandomStream};
use std::collections::VecDeque;
use std::ops::Range;

pub fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// An order of the client to its disk.
#[derive(Clone, Debug)]
pub enum DiskOrder {
    Open(ObjectId, u64),
    Write(ObjectId, Range<u64>, Vec<u8>),
    Finish(ObjectId, [u8; 32]),
}

impl DiskOrder {
    pub const fn object(&self) -> ObjectId {
        match self {
            Self::Open(object, _) | Self::Write(object, ..) | Self::Finish(object, _) => *object,
        }
    }
}

/// The file of an object.
#[derive(Debug, Default)]
pub struct File {
    bytes: Vec<u8>,
    have: RangeSet,
    last: Option<ByteRange>,
    pub named: Option<Vec<u8>>,
}

impl File {
    /// Allocates `bytes` bytes, unless the file has that length already. Returns the missing
    /// ranges.
    pub fn open(&mut self, bytes: u64) -> Vec<Range<u64>> {
        if self.bytes.len() as u64 != bytes {
            *self = Self { bytes: vec![0; bytes as usize], ..Self::default() };
        }
        self.have.missing(bytes).into_iter().map(|range| range.start..range.end).collect()
    }

    pub fn write(&mut self, range: &Range<u64>, bytes: &[u8]) {
        assert!(self.named.is_none(), "nothing is written to what has its name");
        let range = ByteRange { start: range.start, end: range.end };
        let lacks = self.have.missing(self.bytes.len() as u64);
        let is_new = lacks.iter().any(|lack| lack.start <= range.start && range.end <= lack.end);
        assert!(is_new, "what is there is not fetched again: {range:?}");
        self.bytes[range.start as usize..range.end as usize].copy_from_slice(bytes);
        self.have.insert(range);
        self.last = Some(range);
    }

    /// Gives the file its final name if its hash is `expected`. Otherwise all its bytes are missing
    /// again.
    pub fn finish(&mut self, expected: [u8; 32]) -> bool {
        let length = self.bytes.len() as u64;
        assert!(self.have.missing(length).is_empty(), "all of it was written before it is finished");
        assert!(self.named.is_none(), "it is named once");
        let is_right = hash(&self.bytes) == expected;
        if is_right {
            self.named = Some(self.bytes.clone());
        } else {
            (self.have, self.last) = (RangeSet::default(), None);
        }
        is_right
    }

    /// Loses the last write in half of the cases, because the client was killed.
    fn lose_last(&mut self, random: &mut RandomStream) {
        let Some(last) = self.last.take().filter(|_| random.below(2) == 0) else { return };
        let around = |range: &ByteRange| {
            let before = ByteRange { start: range.start, end: range.end.min(last.start) };
            let after = ByteRange { start: range.start.max(last.end), end: range.end };
            [before, after]
        };
        let left = self.have.ranges().iter().flat_map(around).filter(|range| range.start < range.end);
        self.have = RangeSet::from_ranges(left.collect::<Vec<_>>());
    }
}

/// The client's disk.
#[derive(Debug)]
pub struct Disk {
    pub files: Vec<File>,
    pub full_until: Instant,
    /// Delay of each order's execution.
    pub delay: Duration,
    /// Rate of bit flips per write, in parts per million.
    pub rot_ppm: u32,
    /// Pending orders, in sequence.
    pub orders: VecDeque<DiskOrder>,
}

impl Disk {
    pub fn new() -> Self {
        let (files, orders) = (Vec::new(), VecDeque::new());
        Self { files, full_until: Instant::ZERO, delay: Duration::ZERO, rot_ppm: 0, orders }
    }

    pub fn has_all(&self) -> bool {
        self.files.iter().all(|file| file.named.is_some())
    }

    /// Ends the client's process. If the process is killed, each file may lose its last write.
    pub fn end_run(&mut self, random: &mut RandomStream, is_killed: bool) {
        self.orders.clear();
        if is_killed {
            self.files.iter_mut().for_each(|file| file.lose_last(random));
        }
    }

    pub fn heal(&mut self) {
        (self.full_until, self.delay, self.rot_ppm) = (Instant::ZERO, Duration::ZERO, 0);
    }
}

/// Flips a random bit, unless `bytes` is empty.
pub fn flip(random: &mut RandomStream, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
    }
}
