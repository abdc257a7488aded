//! Fixed-rate codes: so many parities of so many blocks, all made at once.
//!
//! Two stand behind [`FixedRate`]: [`mds::Unit`](crate::mds::Unit), of which any as many packets as blocks are enough, and
//! [`ldpc::Code`](crate::ldpc::Code), which is plain XOR and sometimes needs more. `xtask bench codes --only fec` says how often, and how fast both
//! are. Leaves out: codes without a fixed rate (`lt`). Read [`FixedRate`].

use crate::Symbol;
use crate::lt::Decoder;
use std::fmt;

/// A code of so many blocks and parities. Packets are numbered: blocks first, then parities.
pub trait FixedRate: Sized {
    /// Gets blocks back from packets.
    type Decoder<S: Symbol>: Decoder<S>;
    /// The code over `blocks` blocks with `parities` parities.
    ///
    /// Errors: numbers that no such code has.
    fn new(blocks: usize, parities: usize) -> Result<Self, SizeError>;
    /// All parities of these blocks, each `len` bytes long or shorter, as if padded with zeros.
    ///
    /// Shape: as many blocks as the code has.
    /// Panics: if there are others, or one is longer.
    fn encode<S: Symbol>(&self, blocks: &[S], len: usize) -> Vec<S>;
    /// A decoder of packets of `len` bytes.
    fn decoder<S: Symbol>(&self, len: usize) -> Self::Decoder<S>;
}

/// Numbers of blocks and parities that no code has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    /// The number of blocks.
    pub blocks: usize,
    /// The number of parities.
    pub parities: usize,
    /// The most of either.
    pub most: usize,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, parities, most } = self;
        write!(f, "{blocks} blocks and {parities} parities: must be 1 to {most} each")
    }
}
impl std::error::Error for SizeError {}
