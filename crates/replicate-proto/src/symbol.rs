//! Symbols, one in each packet.
//!
//! A symbol is real bytes on a network and a bare length in the simulator; the machines are the same over both.

pub use anabranch_codes::Symbol;
use anabranch_endpoint::{Bytes, Len};
use anabranch_pieces::{ByteRange, Piece, PieceHasher};

/// A symbol whose generations can be checked.
pub trait CheckedSymbol: Symbol {
    /// The piece that `parts` are, put end to end and cut to the length of `range`, which they are of the file; the default
    /// where they are fewer bytes.
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
