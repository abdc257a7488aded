//! Pieces of a file: ranges of bytes, sets of ranges, and hashes that identify a piece and the
//! file.
//!
//! Leaves out: the files themselves. Read [`RangeSet`], [`PieceHasher`] and [`FileHasher`] first.

mod attributes;
pub mod blocks;
mod hash;
pub mod name;
mod range;
mod tree;

pub use attributes::Attributes;
pub use hash::{FileHash, GenerationHash};
pub use range::{ByteRange, RangeSet};
pub use tree::{FileHasher, Piece, PieceHasher};
