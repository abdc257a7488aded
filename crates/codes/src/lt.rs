//! LT codes: each packet is a sum of some of a file's blocks, and any slightly more packets than blocks give back the file.
//!
//! Source: Luby, *LT codes* (FOCS 2002); Jiang, Li and Xu, *LTTP* (JSAC 2014), section III-C. A packet's *id* says which
//! blocks it sums, by a generator that is part of the format; its *degree* is how many. Three decoders stand behind
//! [`Decoder`]: LTTP's `standard` and `improved` (Algorithms 1 and 2), both by *peeling* (a packet with a single unknown
//! block gives that block), and [`Inactivation`], which solves the rest.
//!
//! They work over any [`Symbol`]: bytes on a wire, lengths in the simulator. Leaves out: how packets travel and how a file
//! becomes blocks (`gather`). Read [`Code`] and [`Decoder`] first.

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

/// The most blocks that a code is made for.
pub const BLOCKS_MAX: usize = 1 << 16;

/// An LT code over so many blocks. Encoder and decoders must have the same.
#[derive(Clone, Debug)]
pub struct Code {
    blocks: u32,
    /// Whether the first packets are the blocks.
    is_systematic: bool,
    /// How many blocks the others sum; `None` for the repair of [`Code::systematic`].
    degrees: Option<Arc<Degrees>>,
}

impl Code {
    /// The code over `blocks` blocks.
    ///
    /// Errors: no blocks or more than [`BLOCKS_MAX`], parameters out of their range.
    pub fn new(blocks: usize, params: &Params) -> Result<Self, ParamsError> {
        let code = Self::systematic(blocks)?;
        let degrees = Some(Arc::new(Degrees::new(blocks, params)?));
        Ok(Self { is_systematic: params.systematic, degrees, ..code })
    }

    /// The code over `blocks` blocks whose first packets are the blocks, in order, and all others repair: made so that as
    /// few as can be mend what is missing, whatever and how much that is. For [`Inactivation`]; peeling seldom gets through.
    ///
    /// The first packet of repair sums all blocks, so that it mends a single loss. Up to 256 blocks the others sum half of
    /// them. With more they sum 4 k / (n + 1), packet n, at least 32 and at most half: receivers should see repair in order
    /// and from its beginning, but for losses.
    ///
    /// Cost: m missing blocks take m + 1.7 packets of repair in the mean and m + 10 at the 99th percentile; m + 3.2 and m + 12
    /// where 500 of 10,000 are missing. One takes one. A packet of repair is a sum of k / 2 blocks, of 227 in the mean where
    /// 50 of 1,000 are missing, of 414 where 500 of 10,000 are.
    /// Errors: no blocks or more than [`BLOCKS_MAX`].
    pub fn systematic(blocks: usize) -> Result<Self, ParamsError> {
        if !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(ParamsError::Blocks(blocks));
        }
        Ok(Self { blocks: blocks as u32, is_systematic: true, degrees: None })
    }

    /// How many blocks there are.
    pub const fn blocks(&self) -> usize {
        self.blocks as usize
    }
    /// Whether the first packets are the blocks, in order.
    pub const fn is_systematic(&self) -> bool {
        self.is_systematic
    }
    /// The mean degree of the packets that are no blocks; of [`Code::systematic`]'s repair that of the first k.
    pub fn degree_mean(&self) -> f64 {
        match &self.degrees {
            Some(degrees) => degrees.mean(),
            None => repair::degree_mean(self.blocks),
        }
    }

    /// Which blocks the packet `id` sums, into `blocks`; what that held is forgotten. Each block comes once, in no order.
    ///
    /// Format: the bits are those of splitmix64 from a state that is mixed from the id; 32 bits for the degree, by the
    /// distribution's table, and 32 for each block in turn, those that come twice drawn again. In a systematic code the first
    /// packets are the blocks; the repair of [`Code::systematic`] is as `repair.rs` says.
    pub fn neighbours(&self, id: u32, blocks: &mut Vec<u32>) {
        blocks.clear();
        self.visit(id, |block| blocks.push(block));
    }

    /// Calls `visit` with each block that the packet `id` sums.
    fn visit(&self, id: u32, visit: impl FnMut(u32)) {
        // A bit for each block, on the stack: less to clear where there are few blocks.
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

    /// The packet `id` of these blocks, each `len` bytes long or shorter, as if padded with zeros.
    ///
    /// Shape: as many blocks as the code has.
    /// Panics: if there are others, or one is longer.
    pub fn encode<S: Symbol>(&self, blocks: &[S], id: u32, len: usize) -> S {
        assert_eq!(blocks.len(), self.blocks(), "as many blocks as the code has");
        let mut neighbours = Vec::new();
        self.neighbours(id, &mut neighbours);
        let terms: Vec<(u8, &S)> = neighbours.iter().map(|block| (1, &blocks[*block as usize])).collect();
        S::combine(&terms, len)
    }

    /// As [`Code::encode`], over bytes and into `packet`, whose length is that of all packets.
    ///
    /// Shape: as many blocks as the code has, each as long as the packet or shorter.
    /// Panics: if there are others, or one is longer.
    /// Cost: reads each block that the packet sums once; allocates nothing.
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

/// With so many blocks or fewer, blocks that were drawn are always marked in a table of all.
const FEW: u32 = 1_024;
/// With more, up to this degree a look along the blocks drawn so far is cheaper.
const SMALL: usize = 24;

/// splitmix64, 32 bits at a time.
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
    /// One below `end`, unless it is marked in the table, which it then is.
    #[inline]
    fn below_new(&mut self, end: u32, table: &mut [u64]) -> Option<u32> {
        let drawn = self.below(end);
        let (word, bit) = (&mut table[drawn as usize / 64], 1 << (drawn % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new.then_some(drawn)
    }
}

/// Gets blocks back from packets.
pub trait Decoder<S: Symbol> {
    /// Takes in a packet; one that was there before is ignored. True once all blocks are known.
    ///
    /// Shape: all packets of a decoder are of its length.
    /// Panics: if the symbol is of another.
    fn push(&mut self, id: u32, symbol: S) -> bool;
    /// Whether all blocks are known.
    fn is_complete(&self) -> bool;
    /// How many packets it has taken in, each id once.
    fn packets(&self) -> usize;
    /// The least number of packets that are still needed, as far as is known.
    fn lacks(&self) -> usize;
    /// The blocks in order, if all are known.
    fn into_blocks(self) -> Option<Vec<S>>;
}

#[cfg(test)]
mod tests;
