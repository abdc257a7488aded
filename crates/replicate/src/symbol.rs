//! What one packet carries, and the hash by which a generation is known.
//!
//! A symbol is real bytes on a network and a bare length in the simulator; the machines are the same over both.

pub use anabranch_codes::Symbol;
use anabranch_endpoint::{Bytes, Len};

/// BLAKE3 of a generation's plain bytes (coded group) or of a chunk's (routed group), padding left out.
///
/// It travels in the header of every packet, copied by relays, and tells a sink at once whether what it decoded is what
/// the source read. All zero for the zeros that flush a code out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct GenerationHash(pub [u8; 32]);

/// A symbol whose generations can be checked.
pub trait CheckedSymbol: Symbol {
    /// Hash of the first `length` bytes of `parts` put end to end.
    fn generation_hash(parts: &[Self], length: usize) -> GenerationHash;
}

impl CheckedSymbol for Bytes {
    fn generation_hash(parts: &[Self], length: usize) -> GenerationHash {
        let mut hasher = blake3::Hasher::new();
        let mut left = length;
        for part in parts {
            let take = left.min(part.len());
            hasher.update(&part[..take]);
            left -= take;
        }
        GenerationHash(*hasher.finalize().as_bytes())
    }
}

impl CheckedSymbol for Len {
    fn generation_hash(_: &[Self], _: usize) -> GenerationHash {
        GenerationHash::default()
    }
}
