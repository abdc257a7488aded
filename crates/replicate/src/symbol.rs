//! What one packet carries, and the hash by which a generation is known.
//!
//! A symbol is real bytes on a network and a bare length in the simulator; the machines are the same over both.

use crate::control::ByteRange;
use crate::tree::{Piece, PieceHasher};
pub use anabranch_codes::Symbol;
use anabranch_endpoint::{Bytes, Len};

/// BLAKE3 of a generation's plain bytes (coded group) or of a chunk's (routed group), padding left out, as part of their
/// file's tree: see [`crate::tree`].
///
/// It travels in the header of every packet, copied by relays, and tells a sink at once whether what it decoded is what
/// the source read. All zero for the zeros that flush a code out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct GenerationHash(pub [u8; 32]);

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
