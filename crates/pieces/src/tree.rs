//! Hashing with BLAKE3: one pass gives both the hash of a piece and its part of the file's hash.
//!
//! BLAKE3 hashes a tree whose leaves are chunks of 1 KiB, and whose shape depends only on the
//! length (BLAKE3 specification, section 2.1). From its first whole chunk on, a piece is a sequence
//! of whole subtrees of its file's tree. The hashes of these subtrees (*chaining values*, section
//! 2.2) identify the piece as reliably as a separate hash, and combined they give the hash of the
//! file. A program that reads or writes a file once, piece by piece, therefore does not hash the
//! file twice.
//!
//! Leaves out: chunks that begin in one piece and end in another, which neither piece covers in the
//! hash of the file. Read [`PieceHasher`] and [`FileHasher`] first.

use crate::{ByteRange, FileHash, GenerationHash};
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use std::collections::{BTreeMap, VecDeque};

const CHUNK: u64 = blake3::CHUNK_LEN as u64;
/// Maximum number of subtrees, with gaps between them, that a [`FileHasher`] keeps: about 4 MiB.
const SUBTREES_MAX: usize = 65_536;

/// A whole subtree of a file's tree: its length in bytes, and its chaining value.
type Subtree = (u64, ChainingValue);

/// Hashes one piece, whose bytes may arrive in portions of any size.
pub struct PieceHasher {
    /// Lengths of the parts that have not begun: the head, if the piece begins within a chunk, and
    /// then the subtrees.
    ahead: VecDeque<u64>,
    /// Beginning of the current part in the file.
    start: u64,
    /// Number of missing bytes of the current part.
    lacks: u64,
    hasher: blake3::Hasher,
    /// Hash of the head: the bytes before the first whole chunk of the piece.
    head: Option<[u8; 32]>,
    done: Vec<Subtree>,
}

/// Lengths of the head and of the subtrees of `range`. Each subtree is as long as its position and
/// the range allow.
fn parts(range: ByteRange) -> VecDeque<u64> {
    let mut lengths = VecDeque::new();
    let mut at = range.start;
    while at < range.end {
        let left = range.end - at;
        let length = match at % CHUNK {
            // The last chunk may be shorter than a whole chunk.
            0 if left < CHUNK => left,
            // A subtree has a power of two of chunks.
            0 => (1 << left.ilog2()).min(1u64.checked_shl(at.trailing_zeros()).unwrap_or(u64::MAX)),
            // The head ends at the next chunk boundary.
            gone => left.min(CHUNK - gone),
        };
        lengths.push_back(length);
        at += length;
    }
    lengths
}

impl PieceHasher {
    /// Creates a hasher for the piece that consists of the bytes `range` of its file.
    ///
    /// Cost: as BLAKE3; a piece of several subtrees needs one more short hash.
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
            // BLAKE3's `reset` keeps the offset of the last subtree, so a new hasher is needed.
            self.hasher = blake3::Hasher::new();
            if self.start.is_multiple_of(CHUNK) {
                self.hasher.set_input_offset(self.start);
            }
        }
    }

    /// Hashes the next bytes of the piece. Bytes beyond the piece's end are ignored.
    ///
    /// Cost: BLAKE3 processes up to 16 chunks at once, so portions shorter than 8 KiB take up to
    /// five times as long.
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

    /// Hash of the piece; `None` if bytes are missing.
    pub fn finish(self) -> Option<Piece> {
        if self.lacks > 0 {
            return None;
        }
        let hash = identify(self.head.as_ref(), &self.done);
        let done: u64 = self.done.iter().map(|(length, _)| length).sum();
        Some(Piece { hash, start: self.start - done, subtrees: self.done })
    }

    /// Number of whole subtrees of the piece `range`, which begins with a chunk.
    pub(crate) fn subtrees(range: ByteRange) -> usize {
        parts(range).len()
    }
}

/// Hash that identifies a piece with this head and these subtrees.
fn identify(head: Option<&[u8; 32]>, subtrees: &[Subtree]) -> GenerationHash {
    GenerationHash(match (head, subtrees) {
        // A single value and the hash of several values differ only in their bits, which nobody
        // can choose.
        (Some(only), []) | (None, [(_, only)]) => *only,
        (head, subtrees) => {
            let mut all = blake3::Hasher::new();
            for value in head.into_iter().chain(subtrees.iter().map(|(_, value)| value)) {
                all.update(value);
            }
            *all.finalize().as_bytes()
        }
    })
}

/// Hash of a piece, and its part of the file's hash. The default value is the hash of no data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Hash that identifies the piece.
    pub hash: GenerationHash,
    /// Position of the piece's first subtree in the file.
    start: u64,
    subtrees: Vec<Subtree>,
}

impl Piece {
    /// The piece `range`, which begins with a chunk, by the chaining values of its subtrees; `None`
    /// for another number of values.
    pub(crate) fn of_values(range: ByteRange, values: impl Iterator<Item = ChainingValue>) -> Option<Self> {
        let lengths = parts(range);
        let subtrees: Vec<Subtree> = lengths.iter().copied().zip(values).collect();
        let hash = identify(None, &subtrees);
        (subtrees.len() == lengths.len()).then_some(Self { hash, start: range.start, subtrees })
    }

    /// Chaining values of its subtrees, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &ChainingValue> {
        self.subtrees.iter().map(|(_, value)| value)
    }
}

/// Combines the hashes of pieces into the hash of the file. Pieces may be inserted in any order,
/// repeatedly, and with any boundaries.
///
/// Cost: one short hash for each two neighbours. Neighbours become one subtree as soon as both are
/// known. Only few subtrees are therefore kept, for any order of pieces. For pieces in order, at
/// most one value per level of the tree is kept.
#[derive(Clone, Debug)]
pub struct FileHasher {
    length: u64,
    /// Known subtrees by the position of their first byte. They are disjoint, no two of them are
    /// the halves of a third subtree, and none of them is the whole file.
    known: BTreeMap<u64, Subtree>,
}

impl FileHasher {
    /// Creates a hasher for a file of `length` bytes, with no known bytes.
    pub const fn new(length: u64) -> Self {
        Self { length, known: BTreeMap::new() }
    }

    /// The file's length in bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Adds the subtrees of `piece` to the known subtrees. The piece must have the same bytes as
    /// known subtrees that it overlaps; otherwise call [`FileHasher::forget`] first. A part of the
    /// piece is ignored if it is not a subtree of the file (a chunk that ends before the file's
    /// end), or if it is the whole file. Subtrees beyond `SUBTREES_MAX` are ignored, too.
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
        // Of two subtrees that share a byte, one contains the other.
        if self.before(end).is_some_and(|(s, (l, _))| s <= start && end <= s + l) {
            return;
        }
        self.forget(ByteRange { start, end });
        // The halves of the whole file stay separate, because they are combined as its root. A
        // shorter last chunk stays separate, too, because the left end of its parent is known only
        // at the end.
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

    /// The last known subtree that begins before `end`.
    fn before(&self, end: u64) -> Option<(u64, Subtree)> {
        self.known.range(..end).next_back().map(|(start, subtree)| (*start, *subtree))
    }

    /// Removes every subtree that contains bytes of `range`, because these bytes have changed.
    pub fn forget(&mut self, range: ByteRange) {
        while let Some((start, _)) = self.before(range.end).filter(|(s, (l, _))| s + l > range.start) {
            self.known.remove(&start);
        }
    }

    /// Ranges of unknown bytes, ascending. They begin and end at chunk boundaries or at the file's
    /// end.
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

    /// Hash of the file. `None` if bytes are missing, if the file is empty, or if the file is a
    /// single subtree that was inserted as one piece. The hash of a subtree differs from the hash
    /// of a file with the same bytes.
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

    /// Hashes the bytes of `file` that `hasher` lacks, and returns the file's hash.
    fn complete(mut hasher: FileHasher, file: &[u8]) -> Option<FileHash> {
        for gap in hasher.missing() {
            hasher.insert(&piece(file, gap.start as usize, gap.end as usize, 5000));
        }
        hasher.finish()
    }

    proptest! {
        #[test]
        fn pieces_of_whole_chunks_hash_in_any_order(
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
            // 200,000 bytes are fewer than 2^8 chunks.
            prop_assert!(!is_ordered || most <= 9, "{} subtrees in order", most);
        }

        /// Bytes are overwritten repeatedly, a few chunks or a few bytes at a time. The reference
        /// is the hash of the final bytes.
        #[test]
        fn overwritten_bytes_are_forgotten(
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
                // A repeated insertion changes no subtree.
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
        fn hash_of_a_piece_depends_on_every_byte(start in 0usize..20_000, length in 1usize..20_000, flip: usize, portion in 1usize..5000) {
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
        fn bytes_beyond_the_end_of_a_piece_are_ignored(start in 0usize..4, length in 1usize..9000, more in 0usize..3000) {
            let (file, start) = (bytes(20_000), start * 1024);
            let mut hasher = PieceHasher::new(ByteRange { start: start as u64, end: (start + length) as u64 });
            hasher.update(&file[start..start + length + more]);
            prop_assert_eq!(hasher.finish().expect("all is there").hash, piece(&file, start, start + length, 700).hash);
        }
    }

    #[test]
    fn piece_that_lacks_bytes_has_no_hash() {
        for start in [0, 1024, 7] {
            let mut hasher = PieceHasher::new(ByteRange { start, end: start + 5000 });
            hasher.update(&bytes(4999));
            assert!(hasher.finish().is_none(), "from {start}");
        }
    }

    #[test]
    fn file_of_one_subtree_has_no_combined_hash() {
        for length in [0, 1, 1024, 4096] {
            let file = bytes(length);
            let whole = ByteRange { start: 0, end: length as u64 };
            let mut hasher = FileHasher::new(whole.end);
            hasher.insert(&piece(&file, 0, length, 100));
            assert_eq!(hasher.finish(), None, "{length} bytes");
        }
        // The hash of the file is known if it is inserted as two pieces.
        let file = bytes(4096);
        let mut hasher = FileHasher::new(4096);
        for (start, end) in [(2048, 4096), (0, 2048)] {
            hasher.insert(&piece(&file, start, end, 100));
        }
        assert_eq!(hasher.finish(), Some(FileHash(*blake3::hash(&file).as_bytes())));
    }

    #[test]
    fn subtrees_beyond_the_limit_are_ignored() {
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
        // A subtree that merges with its neighbours frees room.
        hasher.insert(&hashed(1));
        hasher.insert(&hashed(3));
        assert_eq!(hasher.known.len(), SUBTREES_MAX - 1);
        hasher.insert(&hashed(2 * SUBTREES_MAX as u64));
        assert_eq!(hasher.known.len(), SUBTREES_MAX);
    }
}
