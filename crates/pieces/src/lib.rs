//! Pieces of a file: ranges of its bytes, sets of them, and hashes by which a piece and the file are known.
//!
//! Leaves out: files themselves. Read [`RangeSet`], [`PieceHasher`] and [`FileHasher`] first.

mod attributes;
mod hash;
pub mod name;
mod range;
mod tree;

pub use attributes::Attributes;
pub use hash::{FileHash, GenerationHash};
pub use range::{ByteRange, RangeSet};
pub use tree::{FileHasher, Piece, PieceHasher};
