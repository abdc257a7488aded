//! Blocks of large files: what two versions of a file have in common.
//!
//! A block is 1 MiB of a file, at a multiple of 1 MiB; the last one may be shorter. The chaining
//! values of its subtrees identify it ([`crate::PieceHasher`]), and the values of all blocks give
//! the hash of the file. So a list of values is checked against the hash. A value depends on the
//! place of its bytes: a block that moved within a file is another block.
//!
//! Leaves out: blocks by content, which would find moved bytes. Read [`BlockHasher`] and
//! [`common_ranges`] first.

use crate::{ByteRange, FileHash, FileHasher, Piece, PieceHasher};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 1 << 20;
/// Minimum size of a file that is compared by blocks. Smaller files are sent whole.
pub const BLOCKED_BYTES_MIN: u64 = 8 << 20;
/// Bytes of a chaining value.
const VALUE_BYTES: usize = 32;

/// Returns true if a file of this size is compared by blocks.
pub const fn has_blocks(size_bytes: u64) -> bool {
    size_bytes >= BLOCKED_BYTES_MIN
}

fn blocks(size_bytes: u64) -> impl Iterator<Item = ByteRange> {
    (0..size_bytes.div_ceil(BLOCK_BYTES)).map(move |number| {
        let start = number * BLOCK_BYTES;
        ByteRange { start, end: size_bytes.min(start + BLOCK_BYTES) }
    })
}

/// Bytes of the values of a file's blocks; `None` if they do not fit into memory.
pub fn values_bytes(size_bytes: u64) -> Option<usize> {
    let whole = usize::try_from(size_bytes / BLOCK_BYTES).ok()?;
    let last = ByteRange { start: size_bytes / BLOCK_BYTES * BLOCK_BYTES, end: size_bytes };
    whole.checked_add(PieceHasher::subtrees(last))?.checked_mul(VALUE_BYTES)
}

/// Hashes a file, and its blocks.
pub struct BlockHasher {
    size_bytes: u64,
    /// Beginning of the next block.
    next: u64,
    block: PieceHasher,
    /// Missing bytes of the block.
    lacks: u64,
    file: FileHasher,
    values: Vec<u8>,
}

impl BlockHasher {
    /// Creates a hasher for a file of `size_bytes`, which must have blocks ([`has_blocks`]).
    ///
    /// Cost: as BLAKE3, and 32 bytes of memory a block.
    pub fn new(size_bytes: u64) -> Self {
        let first = ByteRange { start: 0, end: 0 };
        let mut hasher = Self {
            size_bytes,
            next: 0,
            block: PieceHasher::new(first),
            lacks: 0,
            file: FileHasher::new(size_bytes),
            values: Vec::new(),
        };
        hasher.begin();
        hasher
    }

    fn begin(&mut self) {
        let range = ByteRange { start: self.next, end: self.size_bytes.min(self.next + BLOCK_BYTES) };
        (self.block, self.lacks, self.next) = (PieceHasher::new(range), range.len(), range.end);
    }

    /// Hashes the next bytes. Bytes beyond the file's end are ignored.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.lacks > 0 {
            let take = bytes.len().min(usize::try_from(self.lacks).unwrap_or(usize::MAX));
            let (now, rest) = bytes.split_at(take);
            self.block.update(now);
            self.lacks -= now.len() as u64;
            bytes = rest;
            if self.lacks == 0 {
                let done =
                    std::mem::replace(&mut self.block, PieceHasher::new(ByteRange { start: 0, end: 0 }));
                let piece = done.finish().expect("the block is whole");
                self.file.insert(&piece);
                piece.values().for_each(|value| self.values.extend_from_slice(value));
                self.begin();
            }
        }
    }

    /// The hash of the file, and the values of its blocks; `None` if bytes are missing.
    pub fn finish(self) -> Option<(FileHash, Vec<u8>)> {
        Some((self.file.finish()?, self.values))
    }
}

/// The blocks of a file with their values.
fn pieces(size_bytes: u64, mut values: &[u8]) -> impl Iterator<Item = Piece> {
    blocks(size_bytes).map_while(move |range| {
        let bytes = PieceHasher::subtrees(range) * VALUE_BYTES;
        let (of_block, rest) = values.split_at_checked(bytes)?;
        values = rest;
        let of_block = of_block.chunks_exact(VALUE_BYTES).map(|value| value.try_into().expect("32 bytes"));
        Piece::of_values(range, of_block)
    })
}

/// Checks whether `values` are the values of the blocks of a file with this hash.
pub fn are_of(values: &[u8], size_bytes: u64, hash: FileHash) -> bool {
    if !has_blocks(size_bytes) || values_bytes(size_bytes) != Some(values.len()) {
        return false;
    }
    let mut file = FileHasher::new(size_bytes);
    pieces(size_bytes, values).for_each(|piece| file.insert(&piece));
    file.finish() == Some(hash)
}

/// Ranges that two files have in common, each file by its size and the values of its blocks.
pub fn common_ranges(one: (u64, &[u8]), other: (u64, &[u8])) -> Vec<ByteRange> {
    let mut common: Vec<ByteRange> = Vec::new();
    let ranges = blocks(one.0).zip(blocks(other.0));
    let pairs = pieces(one.0, one.1).zip(pieces(other.0, other.1));
    for ((range, its), (piece, other)) in ranges.zip(pairs) {
        if range != its || piece != other {
            continue;
        }
        match common.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => common.push(range),
        }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hashed(bytes: &[u8], portion: usize) -> (FileHash, Vec<u8>) {
        let mut hasher = BlockHasher::new(bytes.len() as u64);
        bytes.chunks(portion).for_each(|bytes| hasher.update(bytes));
        hasher.finish().expect("all bytes are there")
    }

    fn file(length: usize) -> Vec<u8> {
        (0..length as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn values_give_the_hash_and_show_changed_blocks(
            more in 0usize..(3 << 20),
            portion in 1_000usize..400_000,
            edits in proptest::collection::vec(any::<usize>(), 0..4),
            cut in 0usize..(2 << 20),
        ) {
            let before = file((BLOCKED_BYTES_MIN as usize) + more);
            let (hash, values) = hashed(&before, portion);
            let size = before.len() as u64;
            prop_assert_eq!(hash.0, *blake3::hash(&before).as_bytes());
            prop_assert_eq!(values_bytes(size), Some(values.len()));
            prop_assert!(are_of(&values, size, hash));
            let mut after = before.clone();
            after.truncate(before.len().saturating_sub(cut).max(BLOCKED_BYTES_MIN as usize));
            let mut is_changed = vec![false; after.len().div_ceil(BLOCK_BYTES as usize)];
            for edit in edits {
                let at = edit % after.len();
                after[at] ^= 0x55;
                is_changed[at / BLOCK_BYTES as usize] = true;
            }
            let (_, new) = hashed(&after, portion);
            let common = common_ranges((size, &values), (after.len() as u64, &new));
            for (number, range) in blocks(after.len() as u64).enumerate() {
                let is_common = common.iter().any(|c| c.start <= range.start && range.end <= c.end);
                let bytes = range.start as usize..range.end as usize;
                let is_equal = before.get(bytes.clone()) == Some(&after[bytes]);
                let has_place = blocks(size).any(|block| block == range);
                prop_assert_eq!(is_common, is_equal && has_place, "block {}", number);
            }
        }

        #[test]
        fn changed_values_are_not_the_files(at: usize, more in 0usize..2_000) {
            let bytes = file((BLOCKED_BYTES_MIN as usize) + more);
            let (hash, mut values) = hashed(&bytes, 100_000);
            let at = at % values.len();
            values[at] ^= 1;
            prop_assert!(!are_of(&values, bytes.len() as u64, hash));
            values[at] ^= 1;
            values.pop();
            prop_assert!(!are_of(&values, bytes.len() as u64, hash));
        }
    }

    #[test]
    fn hash_needs_every_byte() {
        let bytes = file(BLOCKED_BYTES_MIN as usize);
        let mut hasher = BlockHasher::new(bytes.len() as u64);
        hasher.update(&bytes[1..]);
        assert!(hasher.finish().is_none());
        assert_eq!(values_bytes(u64::MAX).is_some(), cfg!(target_pointer_width = "64"));
    }
}
