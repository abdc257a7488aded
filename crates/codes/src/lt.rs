//! LT codes: any packets are sums of some of a file's blocks, and slightly more of them than there are blocks give it back.
//!
//! Source: Luby, *LT codes* (FOCS 2002); Jiang, Li and Xu, *LTTP* (JSAC 2014), section III-C. A packet's *id* says which
//! blocks it sums, by a generator that is part of the format; its *degree* is how many. Three decoders stand behind
//! [`Decoder`]: LTTP's `standard` and `improved` (Algorithms 1 and 2), both by *peeling* (a packet all of whose blocks but
//! one are known gives that one), and [`Inactivation`], which solves what peeling leaves.
//!
//! They work over any [`Symbol`](crate::Symbol): bytes on a wire, lengths in the simulator. Leaves out: how packets travel and how a file
//! becomes blocks (`gather`). Read [`Code`] and [`Decoder`] first.

mod degrees;
mod inactivation;
mod peeling;

pub use degrees::{Params, ParamsError};
pub use inactivation::Inactivation;
pub use peeling::Peeling;

use crate::Symbol;
use degrees::Degrees;

/// The most blocks that a code is made for.
pub const BLOCKS_MAX: usize = 1 << 16;

/// An LT code over so many blocks. Encoder and decoders must have the same.
#[derive(Clone, Debug)]
pub struct Code {
    blocks: u32,
    systematic: bool,
    degrees: Degrees,
}

impl Code {
    /// The code over `blocks` blocks.
    ///
    /// Errors: no blocks or more than [`BLOCKS_MAX`], parameters out of their range.
    pub fn new(blocks: usize, params: &Params) -> Result<Self, ParamsError> {
        if !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(ParamsError::Blocks(blocks));
        }
        let degrees = Degrees::new(blocks, params)?;
        Ok(Self { blocks: blocks as u32, systematic: params.systematic, degrees })
    }

    /// How many blocks there are.
    pub const fn blocks(&self) -> usize {
        self.blocks as usize
    }
    /// The mean degree of packets, where the code is not systematic.
    pub const fn degree_mean(&self) -> f64 {
        self.degrees.mean()
    }

    /// Which blocks the packet `id` sums, into `blocks`; what that held is forgotten. Each block comes once, in no order.
    ///
    /// Format: the bits are those of splitmix64 from a state that is mixed from the id; 32 bits for the degree, by the
    /// distribution's table, and 32 for each block in turn, those that come twice drawn again. In a systematic code the first
    /// packets are the blocks.
    pub fn neighbours(&self, id: u32, blocks: &mut Vec<u32>) {
        blocks.clear();
        if self.systematic && id < self.blocks {
            return blocks.push(id);
        }
        let mut bits = Bits::new(id);
        let degree = self.degrees.draw(bits.next());
        if degree <= SMALL {
            while blocks.len() < degree {
                let block = bits.below(self.blocks);
                if !blocks.contains(&block) {
                    blocks.push(block);
                }
            }
            return;
        }
        let mut seen = vec![0u64; self.blocks().div_ceil(64)];
        while blocks.len() < degree {
            let block = bits.below(self.blocks);
            let (word, bit) = (block as usize / 64, 1 << (block % 64));
            if seen[word] & bit == 0 {
                seen[word] |= bit;
                blocks.push(block);
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
}

/// Up to this degree a look along the blocks drawn so far is cheaper than a table of all.
const SMALL: usize = 24;

/// splitmix64, 32 bits at a time.
struct Bits {
    state: u64,
    kept: Option<u32>,
}

impl Bits {
    fn new(id: u32) -> Self {
        let mixed = u64::from(id).wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x632b_e59b_d9b4_e019);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self { state: mixed ^ (mixed >> 32), kept: None }
    }
    fn next(&mut self) -> u32 {
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
    fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(end)) >> 32) as u32
    }
}

/// Gets blocks back from packets.
pub trait Decoder<S: Symbol> {
    /// Takes in a packet; one that was there before is ignored. True once all blocks are known.
    ///
    /// Shape: all packets of a decoder are of one length.
    fn push(&mut self, id: u32, symbol: S) -> bool;
    /// Whether all blocks are known.
    fn is_complete(&self) -> bool;
    /// The least number of packets that are still needed, as far as is known.
    fn lacks(&self) -> usize;
    /// The blocks in order, if all are known.
    fn into_blocks(self) -> Option<Vec<S>>;
}

#[cfg(test)]
mod tests;
