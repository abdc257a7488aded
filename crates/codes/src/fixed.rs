//! Fixed-rate codes: a fixed number of parities for a fixed number of blocks, all computed at once.
//!
//! [`FixedRate`] has two implementations. [`mds::Unit`](crate::mds::Unit) recovers the blocks from
//! any packets, as many as blocks. [`ldpc::Code`](crate::ldpc::Code) uses plain XOR and sometimes
//! needs more packets. `xtask bench codes --only fec` measures how often, and the speed of both
//! codes. Leaves out: codes without a fixed rate (`lt`). Read [`FixedRate`].

use crate::Symbol;
use crate::lt::Decoder;
use std::fmt;

/// A code with a number of blocks and of parities. Packets are numbered: first the blocks, then the
/// parities.
pub trait FixedRate: Sized {
    /// Decoder that recovers blocks from packets.
    type Decoder<S: Symbol>: Decoder<S>;
    /// Creates the code over `blocks` blocks with `parities` parities.
    ///
    /// Errors: numbers that the code does not support.
    fn new(blocks: usize, parities: usize) -> Result<Self, SizeError>;
    /// Encodes all parities of these blocks, each `len` bytes long; shorter blocks count as padded
    /// with zeros.
    ///
    /// Shape: `blocks` has the code's number of blocks.
    /// Panics: if the number of blocks is wrong, or a block is longer than `len`.
    fn encode<S: Symbol>(&self, blocks: &[S], len: usize) -> Vec<S>;
    /// Creates a decoder for packets of `len` bytes.
    fn decoder<S: Symbol>(&self, len: usize) -> Self::Decoder<S>;
}

/// Numbers of blocks and parities that a code does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of parities.
    pub parities: usize,
    /// Maximum number of blocks, and maximum number of parities.
    pub most: usize,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, parities, most } = self;
        write!(f, "{blocks} blocks and {parities} parities: must be 1 to {most} each")
    }
}
impl std::error::Error for SizeError {}
