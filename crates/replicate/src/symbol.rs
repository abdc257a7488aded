//! What one packet carries, and the hash by which a generation is known.
//!
//! A symbol is real bytes on a network and a bare length in the simulator; the machines are the same over both.

use crate::control::ByteRange;
use crate::tree::PieceHasher;
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
    /// Hash of `parts` put end to end and cut to the length of `range`, which they are of the file.
    fn generation_hash(parts: &[Self], range: ByteRange) -> GenerationHash;
}

impl CheckedSymbol for Bytes {
    fn generation_hash(parts: &[Self], range: ByteRange) -> GenerationHash {
        let mut hasher = PieceHasher::new(range);
        parts.iter().for_each(|part| hasher.update(part));
        // Fewer bytes than the range has are no piece: the hash that nothing has.
        hasher.finish().map_or_else(GenerationHash::default, |piece| piece.hash)
    }
}

impl CheckedSymbol for Len {
    fn generation_hash(_: &[Self], _: ByteRange) -> GenerationHash {
        GenerationHash::default()
    }
}
