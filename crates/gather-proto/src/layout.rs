//! Division of a pull's bytes into generations of blocks.
//!
//! Either all generations have the same number of blocks, or the first generations have one block
//! more than the later ones (RFC 6330 section 4.4.1.2 divides an object that way). All blocks have
//! the same length; the last block is padded with zeros.

use crate::mode::Mode;
use anabranch_codes::lt::{self, BLOCKS_MAX, Params};
use anabranch_codes::{Symbol, mds};
use std::fmt;
use std::ops::Range;

/// Division of a pull's bytes into generations of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    bytes: u64,
    block_bytes: u32,
    generations: u32,
    /// Number of blocks of a generation without the additional block.
    fewer: u32,
    /// Number of generations with one additional block.
    longer: u32,
}

/// Maximum block length in bytes: the longest UDP datagram without headers.
pub const BLOCK_BYTES_MAX: u32 = 65_000;

/// Minimum block length in bytes, unless the pull is shorter. Headers and bookkeeping are then
/// small in comparison with the block. A packet with one block of this length fits
/// [`crate::MTU_MIN`], headers included.
pub const BLOCK_BYTES_MIN: u32 = 480;

/// Why a pull's bytes cannot be divided.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// Block length out of range.
    BlockBytes(u32),
    /// Number of blocks per generation out of range.
    Blocks(u32),
    /// More generations than there are generation numbers.
    TooLong {
        /// Bytes to divide.
        bytes: u64,
        /// Maximum number of bytes with these blocks.
        limit: u64,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockBytes(n) => write!(f, "blocks of {n} B: must be 1 to {BLOCK_BYTES_MAX} B"),
            Self::Blocks(n) => write!(f, "generations of {n} blocks: must be 1 to {BLOCKS_MAX}"),
            Self::TooLong { bytes, limit } => {
                write!(f, "{bytes} B in one pull: at most {limit} B with these blocks")
            }
        }
    }
}
impl std::error::Error for LayoutError {}

impl Layout {
    /// Divides `bytes` into blocks of `block_bytes`, with at most `blocks_max` blocks per
    /// generation.
    ///
    /// Errors: see [`LayoutError`]. Zero bytes give zero generations.
    pub fn new(bytes: u64, block_bytes: u32, blocks_max: u32) -> Result<Self, LayoutError> {
        if !(1..=BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(LayoutError::BlockBytes(block_bytes));
        }
        if !(1..=BLOCKS_MAX as u32).contains(&blocks_max) {
            return Err(LayoutError::Blocks(blocks_max));
        }
        let blocks = bytes.div_ceil(block_bytes.into());
        let too_long = || LayoutError::TooLong {
            bytes,
            limit: u64::from(u32::MAX) * u64::from(blocks_max) * u64::from(block_bytes),
        };
        let generations = u32::try_from(blocks.div_ceil(blocks_max.into())).map_err(|_| too_long())?;
        let (fewer, longer) = match generations {
            0 => (0, 0),
            n => ((blocks / u64::from(n)) as u32, (blocks % u64::from(n)) as u32),
        };
        Ok(Self { bytes, block_bytes, generations, fewer, longer })
    }

    /// Number of bytes of the pull.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Block length in bytes.
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
    /// Number of generations.
    pub const fn generations(&self) -> u32 {
        self.generations
    }
    /// Number of blocks of the longest generation.
    pub const fn blocks_max(&self) -> u32 {
        self.fewer + (self.longer > 0) as u32
    }
    /// Number of blocks of a generation.
    ///
    /// Panics: in a debug build, if `generation` is out of range.
    pub fn blocks(&self, generation: u32) -> u32 {
        debug_assert!(generation < self.generations, "there is such a generation");
        self.fewer + u32::from(generation < self.longer)
    }
    /// Byte range of a generation within the pull.
    pub fn range(&self, generation: u32) -> Range<u64> {
        let blocks_before = |g: u32| u64::from(g) * u64::from(self.fewer) + u64::from(g.min(self.longer));
        let at = |g: u32| (blocks_before(g) * u64::from(self.block_bytes)).min(self.bytes);
        at(generation)..at(generation + 1)
    }
}

/// Code of a generation.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    /// MDS code for generations of a few blocks in [`Mode::Counted`]: as many packets as blocks
    /// suffice.
    Mds(mds::Code),
    Lt(lt::Code),
}

impl Code {
    /// Whether a generation of this many blocks uses [`Code::Mds`].
    pub(crate) fn is_mds(blocks: u32, mode: Mode) -> bool {
        mode == Mode::Counted && mds::Code::new(blocks as usize).is_ok()
    }
    fn new(blocks: u32, mode: Mode) -> Self {
        let lt = |code: Result<lt::Code, lt::ParamsError>| {
            Self::Lt(code.expect("a layout's generations have as many blocks as codes can"))
        };
        match (mode, mds::Code::new(blocks as usize)) {
            (Mode::Lttp, _) => lt(lt::Code::new(blocks as usize, &Params::LTTP)),
            (Mode::Counted, Ok(code)) => Self::Mds(code),
            (Mode::Counted, Err(_)) => lt(lt::Code::systematic(blocks as usize)),
        }
    }
    /// Encodes these blocks into the packet with this id.
    pub(crate) fn encode<S: Symbol>(&self, blocks: &[S], id: u32, len: usize) -> S {
        match self {
            Self::Mds(code) => code.encode(blocks, id, len),
            Self::Lt(code) => code.encode(blocks, id, len),
        }
    }
}

/// Codes of a layout's generations, which have at most two different numbers of blocks.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    longer: Option<Code>,
    fewer: Option<Code>,
    first_fewer: u32,
}

impl Codes {
    pub(crate) fn new(layout: &Layout, mode: Mode) -> Self {
        let code = |blocks| Code::new(blocks, mode);
        Self {
            longer: (layout.longer > 0).then(|| code(layout.fewer + 1)),
            fewer: (layout.fewer > 0).then(|| code(layout.fewer)),
            first_fewer: layout.longer,
        }
    }
    pub(crate) fn of(&self, generation: u32) -> &Code {
        let code = if generation < self.first_fewer { &self.longer } else { &self.fewer };
        code.as_ref().expect("generations have blocks")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn generations_cover_all_bytes_once_in_nearly_equal_parts(bytes in 0u64..3_000_000, block_bytes in 1u32..2_000, blocks_max in 1u32..300) {
            let layout = Layout::new(bytes, block_bytes, blocks_max).expect("within limits");
            let mut at = 0;
            for generation in 0..layout.generations() {
                let (range, blocks) = (layout.range(generation), layout.blocks(generation));
                prop_assert_eq!(range.start, at);
                at = range.end;
                prop_assert!((1..=blocks_max).contains(&blocks) && layout.blocks_max() - blocks <= 1);
                prop_assert_eq!((range.end - range.start).div_ceil(block_bytes.into()), u64::from(blocks));
            }
            prop_assert_eq!(at, bytes);
        }
    }

    #[test]
    fn values_beyond_the_limits_are_refused() {
        assert_eq!(Layout::new(1, 0, 1), Err(LayoutError::BlockBytes(0)));
        assert!(Layout::new(1, BLOCK_BYTES_MAX, 1).is_ok());
        assert_eq!(Layout::new(1, BLOCK_BYTES_MAX + 1, 1), Err(LayoutError::BlockBytes(65_001)));
        assert_eq!(Layout::new(1, 1, BLOCKS_MAX as u32 + 1), Err(LayoutError::Blocks(65_537)));
        assert!(Layout::new(u64::from(u32::MAX), 1, 1).is_ok());
        let error = Layout::new(1 << 32, 1, 1).expect_err("too many generations");
        assert_eq!(error.to_string(), "4294967296 B in one pull: at most 4294967295 B with these blocks");
    }
}
