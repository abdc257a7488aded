//! One pass of BLAKE3 for a piece of a file and for the file.
//!
//! BLAKE3 hashes a tree whose leaves are chunks of 1 KiB, and whose shape follows from the length alone (BLAKE3
//! specification, section 2.1). A piece that begins with a chunk is a run of whole subtrees of its file's tree. Their
//! hashes (*chaining values*, section 2.2) tell whether the piece is right as surely as a hash of its own would, and put
//! together in order they are the file's hash. So who reads a file once, piece by piece, need not hash it twice.
//!
//! Leaves out: pieces that begin within a chunk, which get a hash of their own and say nothing of the file. Read
//! [`PieceHasher`] and [`FileHasher`] first.

use crate::control::{ByteRange, FileHash};
use crate::symbol::GenerationHash;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use std::collections::VecDeque;

const CHUNK: u64 = blake3::CHUNK_LEN as u64;

/// A whole subtree of a file's tree: bytes, and chaining value.
type Subtree = (u64, ChainingValue);

/// Hashes one piece, whose bytes may come in any portions.
pub struct PieceHasher {
    /// Lengths of the subtrees that are not begun.
    ahead: VecDeque<u64>,
    /// Where the subtree that is being hashed begins, and what it still lacks.
    start: u64,
    lacks: u64,
    hasher: blake3::Hasher,
    done: Vec<Subtree>,
    /// The piece does not begin with a chunk.
    unaligned: bool,
}

/// The lengths of the subtrees that `range` is made of: each as long as its place and the range allow.
fn subtrees(range: ByteRange) -> VecDeque<u64> {
    let mut lengths = VecDeque::new();
    let mut at = range.start;
    while at < range.end {
        let left = range.end - at;
        // A power of two of chunks, or what is left of the last chunk.
        let fits = if left < CHUNK { left } else { 1 << left.ilog2() };
        let length = if at == 0 { fits } else { fits.min(1 << at.trailing_zeros()) };
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
        let unaligned = !range.start.is_multiple_of(CHUNK);
        let ahead = if unaligned { VecDeque::from([range.len()]) } else { subtrees(range) };
        let mut hasher = Self {
            ahead,
            start: range.start,
            lacks: 0,
            hasher: blake3::Hasher::new(),
            done: Vec::new(),
            unaligned,
        };
        hasher.begin();
        hasher
    }

    fn begin(&mut self) {
        if let Some(length) = self.ahead.pop_front() {
            self.lacks = length;
            // Its `reset` keeps the offset of the last subtree.
            self.hasher = blake3::Hasher::new();
            if !self.unaligned {
                self.hasher.set_input_offset(self.start);
            }
        }
    }

    /// Takes in the next bytes; those beyond the piece's end are left out.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.lacks > 0 {
            let (now, rest) =
                bytes.split_at(bytes.len().min(usize::try_from(self.lacks).unwrap_or(usize::MAX)));
            self.hasher.update(now);
            self.lacks -= now.len() as u64;
            bytes = rest;
            if self.lacks == 0 && !self.unaligned {
                let length = self.hasher.count();
                self.done.push((length, self.hasher.finalize_non_root()));
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
        let hash = match &self.done[..] {
            // Not told apart from one subtree's value by anything but its bits, which nobody can choose.
            _ if self.unaligned => *self.hasher.finalize().as_bytes(),
            [(_, only)] => *only,
            several => {
                let mut all = blake3::Hasher::new();
                for (_, value) in several {
                    all.update(value);
                }
                *all.finalize().as_bytes()
            }
        };
        Some(Piece { hash: GenerationHash(hash), subtrees: self.done })
    }
}

/// A piece's hash, and what it says of the file's.
pub struct Piece {
    /// By which the piece is known.
    pub hash: GenerationHash,
    subtrees: Vec<Subtree>,
}

/// Puts a file's hash together from those of all its pieces, in order.
#[derive(Default)]
pub struct FileHasher {
    /// Subtrees that wait for their right neighbour, from the left.
    waiting: Vec<Subtree>,
}

impl FileHasher {
    /// Takes in the next piece, which must begin where the last one ended, the first at 0, each with a chunk.
    pub fn push(&mut self, piece: Piece) {
        for subtree in piece.subtrees {
            // Only now, as what is merged here is surely not the root.
            while let [.., (left_length, left), (right_length, right)] = self.waiting[..]
                && left_length == right_length
            {
                self.waiting.truncate(self.waiting.len() - 2);
                let value = merge_subtrees_non_root(&left, &right, Mode::Hash);
                self.waiting.push((left_length + right_length, value));
            }
            self.waiting.push(subtree);
        }
    }

    /// The file's hash; `None` if it is a single subtree, whose hash as a file is another than as a part of one.
    pub fn finish(mut self) -> Option<FileHash> {
        let (_, mut right) = self.waiting.pop()?;
        let (_, first) = *self.waiting.first()?;
        for (_, left) in self.waiting.drain(1..).rev() {
            right = merge_subtrees_non_root(&left, &right, Mode::Hash);
        }
        Some(FileHash(*merge_subtrees_root(&first, &right, Mode::Hash).as_bytes()))
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

    proptest! {
        #[test]
        fn pieces_of_whole_chunks_make_up_the_files_hash(length in 1usize..200_000, chunks in 1usize..40, portion in 1usize..5000) {
            let (file, size) = (bytes(length), chunks * 1024);
            let mut whole = FileHasher::default();
            for start in (0..length).step_by(size) {
                whole.push(piece(&file, start, length.min(start + size), portion));
            }
            match whole.finish() {
                Some(hash) => prop_assert_eq!(hash.0, *blake3::hash(&file).as_bytes()),
                None => prop_assert!(length <= size, "several pieces are several subtrees"),
            }
        }

        #[test]
        fn a_pieces_hash_depends_on_every_byte(start in 0usize..20_000, length in 1usize..20_000, flip: usize, portion in 1usize..5000) {
            let mut file = bytes(40_000);
            let end = start + length;
            let hash = piece(&file, start, end, portion).hash;
            prop_assert_eq!(hash, piece(&file, start, end, length).hash);
            if start % 1024 != 0 {
                prop_assert_eq!(hash.0, *blake3::hash(&file[start..end]).as_bytes());
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
        let file = bytes(4096);
        let mut whole = FileHasher::default();
        whole.push(piece(&file, 0, 4096, 100));
        assert_eq!(whole.finish(), None);
        assert_eq!(FileHasher::default().finish(), None);
    }
}
