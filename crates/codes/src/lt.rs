//! LT codes: each packet is a sum of some of a file's blocks, and slightly more packets than blocks
//! recover the file, whichever packets arrive.
//!
//! Source: Luby, *LT codes* (FOCS 2002); Jiang, Li and Xu, *LTTP* (JSAC 2014), section III-C. A
//! packet's *id* determines its blocks, by a generator that is part of the format; its *degree* is
//! the number of these blocks. [`Decoder`] has three implementations. LTTP's `standard` and
//! `improved` (Algorithms 1 and 2) both work by *peeling*: a packet with a single unknown block
//! yields that block. [`Inactivation`] also solves the blocks that peeling leaves.
//!
//! The decoders work over any [`Symbol`]: bytes on a wire, or only lengths in the simulator. Leaves
//! out: the transport of packets, and the division of a file into blocks (`gather`). Read [`Code`]
//! and [`Decoder`] first.

mod degrees;
mod inactivation;
mod peeling;
pub(crate) mod plan;
mod repair;

pub use degrees::{Params, ParamsError};
pub use inactivation::Inactivation;
pub use peeling::Peeling;

use crate::kernel::XorSum;
use crate::{Symbol, xor_add};
use degrees::Degrees;
use std::sync::Arc;

/// Maximum number of blocks.
pub const BLOCKS_MAX: usize = 1 << 16;

/// An LT code for a number of blocks. Encoder and decoders must use the same code.
#[derive(Clone, Debug)]
pub struct Code {
    blocks: u32,
    /// True if the first packets are the blocks.
    is_systematic: bool,
    /// Degree distribution of the sums; `None` for the repair of [`Code::systematic`].
    degrees: Option<Arc<Degrees>>,
}

impl Code {
    /// Creates the code over `blocks` blocks.
    ///
    /// Errors: 0 blocks or more than [`BLOCKS_MAX`], or parameters out of range.
    pub fn new(blocks: usize, params: &Params) -> Result<Self, ParamsError> {
        let code = Self::systematic(blocks)?;
        let degrees = Some(Arc::new(Degrees::new(blocks, params)?));
        Ok(Self { is_systematic: params.systematic, degrees, ..code })
    }

    /// Creates the code over `blocks` blocks whose first packets are the blocks, in order, and
    /// whose further packets are repair. Repair packets can replace any missing blocks, in any
    /// number, and are designed for as few packets as possible. Decode with [`Inactivation`];
    /// peeling rarely succeeds.
    ///
    /// The first repair packet sums all blocks, so that it replaces a single loss. Up to 256
    /// blocks, each further packet sums half of them. With more blocks, packet n sums 4 k / (n +
    /// 1), at least 32 and at most half. So receivers should get repair packets in order from the
    /// first one, apart from losses.
    ///
    /// Cost: m missing blocks take m + 1.7 repair packets on average and m + 10 at the 99th
    /// percentile. With 500 of 10,000 blocks missing, they take m + 3.2 and m + 12. One missing
    /// block takes one packet. A repair packet is a sum of k / 2 blocks; of 227 on average with 50
    /// of 1,000 missing, of 414 with 500 of 10,000.
    /// Errors: 0 blocks or more than [`BLOCKS_MAX`].
    pub fn systematic(blocks: usize) -> Result<Self, ParamsError> {
        if !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(ParamsError::Blocks(blocks));
        }
        Ok(Self { blocks: blocks as u32, is_systematic: true, degrees: None })
    }

    /// Number of blocks.
    pub const fn blocks(&self) -> usize {
        self.blocks as usize
    }
    /// Returns true if the first packets are the blocks, in order.
    pub const fn is_systematic(&self) -> bool {
        self.is_systematic
    }
    /// Mean degree of the packets that are sums; for the repair of [`Code::systematic`], the mean
    /// over the first k repair packets.
    pub fn degree_mean(&self) -> f64 {
        match &self.degrees {
            Some(degrees) => degrees.mean(),
            None => repair::degree_mean(self.blocks),
        }
    }

    /// Writes the blocks summed by packet `id` to `blocks`, replacing its content. Each block
    /// occurs once, in no particular order.
    ///
    /// Format: a splitmix64 generator with a state derived from the id supplies the bits. 32 bits
    /// give the degree by the distribution's table, then 32 bits give each block; duplicates are
    /// drawn again. In a systematic code the first packets are the blocks; `repair.rs` describes
    /// the repair of [`Code::systematic`].
    pub fn neighbours(&self, id: u32, blocks: &mut Vec<u32>) {
        blocks.clear();
        self.visit(id, |block| blocks.push(block));
    }

    /// Calls `visit` with each block summed by packet `id`.
    fn visit(&self, id: u32, visit: impl FnMut(u32)) {
        // A bit for each block, on the stack; a smaller table takes less time to clear.
        if self.blocks <= FEW {
            self.draw::<{ FEW as usize / 64 }>(id, visit)
        } else {
            self.draw::<{ BLOCKS_MAX / 64 }>(id, visit)
        }
    }
    fn draw<const WORDS: usize>(&self, id: u32, mut visit: impl FnMut(u32)) {
        if self.is_systematic && id < self.blocks {
            return visit(id);
        }
        let mut bits = Bits::new(id);
        let Some(degrees) = &self.degrees else {
            return repair::draw::<WORDS>(id - self.blocks, self.blocks, bits, visit);
        };
        let degree = degrees.draw(bits.next());
        if self.blocks > FEW && degree <= SMALL {
            let mut drawn = [0; SMALL];
            let mut count = 0;
            while count < degree {
                let block = bits.below(self.blocks);
                if !drawn[..count].contains(&block) {
                    drawn[count] = block;
                    count += 1;
                    visit(block);
                }
            }
            return;
        }
        let mut table = [0; WORDS];
        let mut left = degree;
        while left > 0 {
            if let Some(block) = bits.below_new(self.blocks, &mut table) {
                left -= 1;
                visit(block);
            }
        }
    }

    /// Encodes the packet `id` of these blocks, `len` bytes long; shorter blocks count as padded
    /// with zeros.
    ///
    /// Shape: `blocks` has the code's number of blocks.
    /// Panics: if the number of blocks is wrong, or a block is longer than `len`.
    pub fn encode<S: Symbol>(&self, blocks: &[S], id: u32, len: usize) -> S {
        assert_eq!(blocks.len(), self.blocks(), "as many blocks as the code has");
        let mut neighbours = Vec::new();
        self.neighbours(id, &mut neighbours);
        let terms: Vec<(u8, &S)> = neighbours.iter().map(|block| (1, &blocks[*block as usize])).collect();
        S::combine(&terms, len)
    }

    /// Does the same as [`Code::encode`] over bytes, and writes the packet to `packet`, which has
    /// the common length of all packets.
    ///
    /// Shape: `blocks` has the code's number of blocks, each at most as long as the packet.
    /// Panics: if the number of blocks is wrong, or a block is longer than the packet.
    /// Cost: reads each summed block once; allocates nothing.
    ///
    /// ```
    /// use anabranch_codes::lt::{Code, Params};
    /// let code = Code::new(3, &Params { systematic: true, ..Params::tuned(3) })?;
    /// let mut packet = [0; 4];
    /// code.encode_into(&[b"some", b"more", b"end."], 1, &mut packet);
    /// assert_eq!(&packet, b"more");
    /// # Ok::<(), anabranch_codes::lt::ParamsError>(())
    /// ```
    pub fn encode_into<B: AsRef<[u8]>>(&self, blocks: &[B], id: u32, packet: &mut [u8]) {
        assert_eq!(blocks.len(), self.blocks(), "as many blocks as the code has");
        let len = packet.len();
        let mut sum = XorSum::new(packet);
        let mut are_whole = true;
        self.visit(id, |block| {
            let block = blocks[block as usize].as_ref();
            if block.len() == len { sum.add(block) } else { are_whole = false }
        });
        sum.finish();
        if !are_whole {
            self.visit(id, |block| {
                let block = blocks[block as usize].as_ref();
                assert!(
                    block.len() <= len,
                    "a block has {} bytes: must have at most {len}, as the packet",
                    block.len()
                );
                if block.len() < len {
                    xor_add(&[block], &mut packet[..block.len()]);
                }
            });
        }
    }
}

/// Maximum number of blocks for which a table always marks the drawn blocks.
const FEW: u32 = 1_024;
/// Maximum degree, with more blocks than [`FEW`], for which a search of the drawn blocks is cheaper
/// than the table.
const SMALL: usize = 24;

/// splitmix64, read 32 bits at a time.
pub(crate) struct Bits {
    state: u64,
    kept: Option<u32>,
}

impl Bits {
    pub(crate) fn new(id: u32) -> Self {
        let mixed = u64::from(id).wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x632b_e59b_d9b4_e019);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self { state: mixed ^ (mixed >> 32), kept: None }
    }
    #[inline]
    pub(crate) fn next(&mut self) -> u32 {
        if let Some(kept) = self.kept.take() {
            return kept;
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        self.kept = Some(z as u32);
        (z >> 32) as u32
    }
    #[inline]
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(end)) >> 32) as u32
    }
    /// Draws a number below `end` and marks it in the table; `None` if it is already marked.
    #[inline]
    fn below_new(&mut self, end: u32, table: &mut [u64]) -> Option<u32> {
        let drawn = self.below(end);
        let (word, bit) = (&mut table[drawn as usize / 64], 1 << (drawn % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new.then_some(drawn)
    }
}

/// Recovers blocks from packets.
pub trait Decoder<S: Symbol> {
    /// Adds a packet; duplicates are ignored. Returns true once all blocks are known.
    ///
    /// Shape: all packets of a decoder have the same length.
    /// Panics: if the symbol has another length.
    fn push(&mut self, id: u32, symbol: S) -> bool;
    /// Returns true if all blocks are known.
    fn is_complete(&self) -> bool;
    /// Number of packets added; duplicates are not counted.
    fn packets(&self) -> usize;
    /// Lower bound on the number of packets still needed.
    fn lacks(&self) -> usize;
    /// The blocks in order; `None` unless all are known.
    fn into_blocks(self) -> Option<Vec<S>>;
}

#[cfg(test)]
mod tests;
