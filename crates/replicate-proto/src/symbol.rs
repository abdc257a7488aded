//! Symbols, one in each packet.
//!
//! A symbol is real bytes on a network and only a length in the simulator; the machines are the
//! same for both.

pub use anabranch_codes::Symbol;
use anabranch_endpoint::{Bytes, Len};
use anabranch_pieces::{ByteRange, Piece, PieceHasher};

/// A symbol whose generations can be checked.
pub trait CheckedSymbol: Symbol {
    /// The piece that consists of `parts`, concatenated and truncated to the length of `range`, the
    /// piece's position in the file. Returns the default if there are too few bytes.
    fn hash_piece(parts: &[Self], range: ByteRange) -> Piece;
}

impl CheckedSymbol for Bytes {
    fn hash_piece(parts: &[Self], range: ByteRange) -> Piece {
        let mut hasher = PieceHasher::new(range);
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finish().unwrap_or_default()
    }
}

impl CheckedSymbol for Len {
    fn hash_piece(_: &[Self], _: ByteRange) -> Piece {
        Piece::default()
    }
}
