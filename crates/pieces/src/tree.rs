//! One pass of BLAKE3 for a piece of a file and for the file.
//!
//! BLAKE3 hashes a tree whose leaves are chunks of 1 KiB, and whose shape follows from the length alone (BLAKE3
//! specification, section 2.1). From its first whole chunk on, a piece is a run of whole subtrees of its file's tree. Their
//! hashes (*chaining values*, section 2.2) tell whether the piece is right as surely as a hash of its own would, and put
//! together they are the file's hash. So a program that reads or writes a file once, piece by piece, need not hash it twice.
//!
//! Leaves out: chunks that begin in one piece and end in another; neither piece's hash says anything of them for the file. Read
//! [`PieceHasher`] and [`FileHasher`] first.

use crate::{ByteRange, FileHash, GenerationHash};
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use std::collections::{BTreeMap, VecDeque};

const CHUNK: u64 = blake3::CHUNK_LEN as u64;
/// The most subtrees, with gaps between them, of which a [`FileHasher`] keeps the values: some 4 MiB.
const SUBTREES_MAX: usize = 65_536;

/// A whole subtree of a file's tree: bytes, and chaining value.
type Subtree = (u64, ChainingValue);

/// Hashes one piece, whose bytes may come in any portions.
pub struct PieceHasher {
    /// Lengths of what is not begun: of the head, where the piece begins within a chunk, and of the subtrees.
    ahead: VecDeque<u64>,
    /// Where what is being hashed begins, and what it still lacks.
    start: u64,
    lacks: u64,
    hasher: blake3::Hasher,
    /// The hash of the head: what comes before the piece's first whole chunk.
    head: Option<[u8; 32]>,
    done: Vec<Subtree>,
}

/// The lengths of the head and the subtrees that `range` is made of: each as long as its place and the range allow.
fn parts(range: ByteRange) -> VecDeque<u64> {
    let mut lengths = VecDeque::new();
    let mut at = range.start;
    while at < range.end {
        let left = range.end - at;
        let length = match at % CHUNK {
            // What there is of the last chunk.
            0 if left < CHUNK => left,
            // A power of two of chunks.
            0 => (1 << left.ilog2()).min(1u64.checked_shl(at.trailing_zeros()).unwrap_or(u64::MAX)),
            // The head.
            gone => left.min(CHUNK - gone),
        };
        lengths.push_back(length);
        at += length;
    }
    lengths
}

impl PieceHasher {
    /// For the piece that is `range` of its file.
    ///
    /// Cost: as BLAKE3's; several subtrees add one short hash.
    pub fn new(range: ByteRange) -> Self {
        let mut hasher = Self {
            ahead: parts(range),
            start: range.start,
            lacks: 0,
            hasher: blake3::Hasher::new(),
            head: None,
            done: Vec::new(),
        };
        hasher.begin();
        hasher
    }

    fn begin(&mut self) {
        if let Some(length) = self.ahead.pop_front() {
            self.lacks = length;
            // Its `reset` keeps the offset of the last subtree.
            self.hasher = blake3::Hasher::new();
            if self.start.is_multiple_of(CHUNK) {
                self.hasher.set_input_offset(self.start);
            }
        }
    }

    /// Takes in the next bytes; those beyond the piece's end are left out.
    ///
    /// Cost: BLAKE3 takes up to 16 chunks at once, so portions shorter than 8 KiB take up to five times as long.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.lacks > 0 {
            let (now, rest) =
                bytes.split_at(bytes.len().min(usize::try_from(self.lacks).unwrap_or(usize::MAX)));
            self.hasher.update(now);
            self.lacks -= now.len() as u64;
            bytes = rest;
            if self.lacks == 0 {
                let length = self.hasher.count();
                if self.start.is_multiple_of(CHUNK) {
                    self.done.push((length, self.hasher.finalize_non_root()));
                } else {
                    self.head = Some(*self.hasher.finalize().as_bytes());
                }
                self.start += length;
                self.begin();
            }
        }
    }

    /// The piece's hash; `None` if bytes are missing.
    pub fn finish(self) -> Option<Piece> {
        if self.lacks > 0 {
            return None;
        }
        let hash = match (&self.head, &self.done[..]) {
            // Not told apart from several values' hash by anything but its bits, which nobody can choose.
            (Some(only), []) | (None, [(_, only)]) => *only,
            (head, subtrees) => {
                let mut all = blake3::Hasher::new();
                for value in head.iter().chain(subtrees.iter().map(|(_, value)| value)) {
                    all.update(value);
                }
                *all.finalize().as_bytes()
            }
        };
        let done: u64 = self.done.iter().map(|(length, _)| length).sum();
        Some(Piece { hash: GenerationHash(hash), start: self.start - done, subtrees: self.done })
    }
}

/// A piece's hash, and its part of the file's. The default is the hash that nothing has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// By which the piece is known.
    pub hash: GenerationHash,
    /// Where its first subtree begins.
    start: u64,
    subtrees: Vec<Subtree>,
}

/// Puts a file's hash together from those of its pieces, which may come in any order, more than once and with any
/// boundaries.
///
/// Cost: one short hash for each two neighbours, which become one subtree as soon as both are known; so it keeps
/// little in any order of pieces, and pieces in order need no more than one value for each level of the tree.
#[derive(Clone, Debug)]
pub struct FileHasher {
    length: u64,
    /// Subtrees by their first byte: disjoint, no two of them the halves of a third, none the whole file.
    known: BTreeMap<u64, Subtree>,
}

impl FileHasher {
    /// For a file of `length` bytes, of which nothing is known.
    pub const fn new(length: u64) -> Self {
        Self { length, known: BTreeMap::new() }
    }

    /// The file's length in bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Takes in the subtrees of `piece`, beside those known already: both must be of the same bytes, else
    /// [`FileHasher::forget`] comes first. A part that is no subtree of the file (a chunk cut short before the file's end), or is
    /// all of it, does not count; nor do subtrees beyond `SUBTREES_MAX`.
    pub fn insert(&mut self, piece: &Piece) {
        let mut start = piece.start;
        for (length, value) in &piece.subtrees {
            self.insert_subtree(start, *length, *value);
            start += length;
        }
    }

    fn insert_subtree(&mut self, mut start: u64, mut length: u64, mut value: ChainingValue) {
        let end = start + length;
        if end > self.length || length == self.length || length < CHUNK && end < self.length {
            return;
        }
        // Subtrees that share a byte lie one in the other.
        if self.before(end).is_some_and(|(s, (l, _))| s <= start && end <= s + l) {
            return;
        }
        self.forget(ByteRange { start, end });
        // The halves of the whole file stay apart: they are put together as its root. So does a last chunk that is shorter:
        // how far what it belongs to reaches to the left is known at the end.
        while length >= CHUNK && 2 * length < self.length {
            let sibling = start ^ length;
            let Some((_, other)) = self.known.get(&sibling).filter(|(l, _)| *l == length) else { break };
            let (left, right) = if sibling < start { (other, &value) } else { (&value, other) };
            value = merge_subtrees_non_root(left, right, Mode::Hash);
            self.known.remove(&sibling);
            start = start.min(sibling);
            length *= 2;
        }
        if self.known.len() < SUBTREES_MAX {
            self.known.insert(start, (length, value));
        }
    }

    /// The last subtree that begins before `end`.
    fn before(&self, end: u64) -> Option<(u64, Subtree)> {
        self.known.range(..end).next_back().map(|(start, subtree)| (*start, *subtree))
    }

    /// Forgets every subtree with bytes of `range`: they are others now.
    pub fn forget(&mut self, range: ByteRange) {
        while let Some((start, _)) = self.before(range.end).filter(|(s, (l, _))| s + l > range.start) {
            self.known.remove(&start);
        }
    }

    /// The bytes of which nothing is known: ascending ranges that begin with a chunk and end with one, or with the file.
    pub fn missing(&self) -> Vec<ByteRange> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for (start, (length, _)) in &self.known {
            gaps.push(ByteRange { start: at, end: *start });
            at = start + length;
        }
        gaps.push(ByteRange { start: at, end: self.length });
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// The file's hash; `None` if bytes are missing, or it is a single subtree that came as one piece (or empty), whose hash
    /// as a file is another than as a part of one.
    pub fn finish(&self) -> Option<FileHash> {
        let mut subtrees = self.known.iter().rev();
        let (start, (length, right)) = subtrees.next()?;
        if start + length != self.length {
            return None;
        }
        let (mut start, mut right) = (*start, *right);
        for (left_start, (length, left)) in subtrees {
            if left_start + length != start {
                return None;
            }
            if *left_start == 0 {
                return Some(FileHash(*merge_subtrees_root(left, &right, Mode::Hash).as_bytes()));
            }
            (start, right) = (*left_start, merge_subtrees_non_root(left, &right, Mode::Hash));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
    }
    fn piece(file: &[u8], start: usize, end: usize, portion: usize) -> Piece {
        let mut hasher = PieceHasher::new(ByteRange { start: start as u64, end: end as u64 });
        file[start..end].chunks(portion).for_each(|b| hasher.update(b));
        hasher.finish().expect("all bytes were taken in")
    }

    /// Hashes what `hasher` lacks of `file`, and says what the file's hash is.
    fn complete(mut hasher: FileHasher, file: &[u8]) -> Option<FileHash> {
        for gap in hasher.missing() {
            hasher.insert(&piece(file, gap.start as usize, gap.end as usize, 5000));
        }
        hasher.finish()
    }

    proptest! {
        #[test]
        fn pieces_of_whole_chunks_make_up_the_files_hash_in_any_order(
            length in 1usize..200_000,
            chunks in 1usize..40,
            portion in 1usize..5000,
            keys in proptest::collection::vec(any::<u32>(), 200),
            is_ordered: bool,
        ) {
            let (file, size) = (bytes(length), chunks * 1024);
            let mut starts: Vec<usize> = (0..length).step_by(size).collect();
            if !is_ordered {
                starts.sort_by_key(|start| keys[start / size]);
            }
            let mut hasher = FileHasher::new(length as u64);
            let mut most = 0;
            for start in &starts {
                let end = length.min(start + size);
                hasher.insert(&piece(&file, *start, end, portion));
                most = most.max(hasher.known.len());
            }
            match hasher.finish() {
                Some(hash) => {
                    prop_assert_eq!(hash.0, *blake3::hash(&file).as_bytes());
                    prop_assert!(hasher.missing().is_empty());
                }
                None => prop_assert!(length <= size, "several pieces are several subtrees"),
            }
            // 200,000 bytes are less than 2^8 chunks.
            prop_assert!(!is_ordered || most <= 9, "{} subtrees in order", most);
        }

        /// Bytes are written over and over, a few chunks or some bytes at a time; the plain twin is the hash of what is there
        /// in the end.
        #[test]
        fn what_is_written_over_is_forgotten(
            length in 1usize..40_000,
            writes in proptest::collection::vec((any::<usize>(), 1usize..12_000, any::<bool>(), 0u8..3), 0..40),
        ) {
            let mut file = bytes(length);
            let mut hasher = FileHasher::new(length as u64);
            let mut gaps = crate::RangeSet::default();
            for (start, size, is_aligned, flip) in writes {
                let start = if is_aligned { start % length / 1024 * 1024 } else { start % length };
                let end = length.min(if is_aligned { start + size.next_multiple_of(1024) } else { start + size });
                file[start..end].iter_mut().for_each(|b| *b ^= flip);
                let range = ByteRange { start: start as u64, end: end as u64 };
                hasher.forget(range);
                hasher.insert(&piece(&file, start, end, 700));
                gaps.insert(range);
                // Twice is as good as once.
                let before = hasher.known.clone();
                hasher.insert(&piece(&file, start, end, 1024));
                prop_assert_eq!(&before, &hasher.known);
            }
            for gap in hasher.missing() {
                prop_assert!(gap.start % 1024 == 0 && (gap.end % 1024 == 0 || gap.end == length as u64));
            }
            for gap in gaps.missing(length as u64) {
                prop_assert!(hasher.missing().iter().any(|m| m.start <= gap.start && gap.end <= m.end));
            }
            match complete(hasher, &file) {
                Some(hash) => prop_assert_eq!(hash.0, *blake3::hash(&file).as_bytes()),
                None => prop_assert!(length <= 1024 || length.is_power_of_two(), "a single subtree"),
            }
        }

        #[test]
        fn a_pieces_hash_depends_on_every_byte(start in 0usize..20_000, length in 1usize..20_000, flip: usize, portion in 1usize..5000) {
            let mut file = bytes(40_000);
            let end = start + length;
            let hash = piece(&file, start, end, portion).hash;
            prop_assert_eq!(hash, piece(&file, start, end, length).hash);
            if start % 1024 != 0 {
                let (head, rest) = file[start..end].split_at(length.min(1024 - start % 1024));
                let mut values = blake3::hash(head).as_bytes().to_vec();
                if !rest.is_empty() {
                    let rest = piece(&file, end - rest.len(), end, portion);
                    rest.subtrees.iter().for_each(|(_, value)| values.extend(value));
                    values = blake3::hash(&values).as_bytes().to_vec();
                }
                prop_assert_eq!(&hash.0[..], values);
            }
            file[start + flip % length] ^= 1;
            prop_assert_ne!(hash, piece(&file, start, end, portion).hash);
        }

        #[test]
        fn a_piece_ends_where_it_ends(start in 0usize..4, length in 1usize..9000, more in 0usize..3000) {
            let (file, start) = (bytes(20_000), start * 1024);
            let mut hasher = PieceHasher::new(ByteRange { start: start as u64, end: (start + length) as u64 });
            hasher.update(&file[start..start + length + more]);
            prop_assert_eq!(hasher.finish().expect("all is there").hash, piece(&file, start, start + length, 700).hash);
        }
    }

    #[test]
    fn a_piece_that_lacks_bytes_has_no_hash() {
        for start in [0, 1024, 7] {
            let mut hasher = PieceHasher::new(ByteRange { start, end: start + 5000 });
            hasher.update(&bytes(4999));
            assert!(hasher.finish().is_none(), "from {start}");
        }
    }

    #[test]
    fn a_file_of_one_subtree_is_left_to_its_reader() {
        for length in [0, 1, 1024, 4096] {
            let file = bytes(length);
            let whole = ByteRange { start: 0, end: length as u64 };
            let mut hasher = FileHasher::new(whole.end);
            hasher.insert(&piece(&file, 0, length, 100));
            assert_eq!(hasher.finish(), None, "{length} bytes");
        }
        // In two pieces it is known.
        let file = bytes(4096);
        let mut hasher = FileHasher::new(4096);
        for (start, end) in [(2048, 4096), (0, 2048)] {
            hasher.insert(&piece(&file, start, end, 100));
        }
        assert_eq!(hasher.finish(), Some(FileHash(*blake3::hash(&file).as_bytes())));
    }

    #[test]
    fn what_is_too_much_to_keep_is_missing() {
        let length = (2 * SUBTREES_MAX as u64 + 2) * CHUNK;
        let mut hasher = FileHasher::new(length);
        let (file, chunk) = (vec![0; 1024], |i: u64| ByteRange { start: i * CHUNK, end: (i + 1) * CHUNK });
        let hashed = |i: u64| {
            let mut hasher = PieceHasher::new(chunk(i));
            hasher.update(&file);
            hasher.finish().expect("a chunk")
        };
        (0..=SUBTREES_MAX as u64).for_each(|i| hasher.insert(&hashed(2 * i)));
        assert_eq!(hasher.known.len(), SUBTREES_MAX);
        // A neighbour takes no more room, and so there is room again.
        hasher.insert(&hashed(1));
        hasher.insert(&hashed(3));
        assert_eq!(hasher.known.len(), SUBTREES_MAX - 1);
        hasher.insert(&hashed(2 * SUBTREES_MAX as u64));
        assert_eq!(hasher.known.len(), SUBTREES_MAX);
    }
}
