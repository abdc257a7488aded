//! A systematic code in which any packets, as many as blocks, recover the blocks: *maximum distance
//! separable* (MDS).
//!
//! The first packets are the blocks, in order. Each later packet, a *parity*, is a sum of all
//! blocks with coefficients of GF(2^8). The first parity is plain XOR. With k blocks, 256 - k
//! parities (the first ones) are rows of a Cauchy matrix with scaled columns, so that every square
//! submatrix is invertible. Further parities are possible in any number: their coefficients are
//! drawn from the packet's id. With such parities, k packets fail to decode with a probability of
//! about one in 255.
//!
//! The code is meant for small numbers of blocks and of losses. With many blocks, sparse sums
//! (`lt`) cost less, but need a few more packets.
//!
//! Source for the matrix: Blömer and others, *An XOR-Based Erasure-Resilient Coding Scheme* (1995),
//! section 3. Leaves out: the choice and number of packets to send. Read [`Code`] and
//! [`Elimination`] first; [`Unit`] is for senders and receivers of whole units of packets.

mod unit;

pub use unit::{TooManyErasures, Unit, UnitError};

use crate::lt::{Bits, Decoder};
use crate::{Gf, Matrix, Symbol, gf_dot, gf_mul_add};
use std::fmt;

/// Maximum number of blocks: the field has one element for each block, and one for a parity.
pub const BLOCKS_MAX: usize = 255;
/// Number of elements of the field.
const FIELD: usize = 256;

/// A number of blocks that the code does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlocksError(
    /// The number of blocks.
    pub usize,
);

impl fmt::Display for BlocksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks: must be 1 to {BLOCKS_MAX}", self.0)
    }
}
impl std::error::Error for BlocksError {}

/// The code for a number of blocks. Encoder and decoder must use the same number.
///
/// ```
/// use anabranch_codes::mds::{Code, Elimination};
/// use anabranch_codes::lt::Decoder;
/// use anabranch_endpoint::Bytes;
/// let blocks = [Bytes::from_static(b"some"), Bytes::from_static(b"more"), Bytes::from_static(b"end.")];
/// let code = Code::new(3)?;
/// let mut decoder = Elimination::new(code, 4);
/// decoder.push(1, code.encode(&blocks, 1, 4));
/// decoder.push(3, code.encode(&blocks, 3, 4));
/// assert!(decoder.push(9, code.encode(&blocks, 9, 4)));
/// assert_eq!(decoder.into_blocks(), Some(blocks.to_vec()));
/// # Ok::<(), anabranch_codes::mds::BlocksError>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Code {
    blocks: u8,
}

impl Code {
    /// Creates the code over `blocks` blocks.
    ///
    /// Errors: 0 blocks or more than [`BLOCKS_MAX`].
    pub fn new(blocks: usize) -> Result<Self, BlocksError> {
        let fits = u8::try_from(blocks).ok().filter(|blocks| *blocks > 0);
        fits.map(|blocks| Self { blocks }).ok_or(BlocksError(blocks))
    }
    /// Number of blocks.
    pub const fn blocks(self) -> usize {
        self.blocks as usize
    }

    /// The coefficient of each block in the packet `id`.
    ///
    /// Format: for parity n and block c, let x = k + n and y = c, both as elements of the field.
    /// The coefficient is (k + y) / (x + y). Parities beyond the field draw their coefficients with
    /// splitmix64 from the id, as `lt` draws degrees: 32 bits give four, the lowest byte first.
    pub fn coefficients(self, id: u32) -> Vec<u8> {
        let blocks = self.blocks();
        let Some(parity) = (id as usize).checked_sub(blocks) else {
            let mut unit = vec![0; blocks];
            unit[id as usize] = 1;
            return unit;
        };
        if blocks + parity < FIELD {
            let (first, x) = (Gf(self.blocks), Gf((blocks + parity) as u8));
            // Elements of blocks are smaller than the elements of all parities, so no sum is zero.
            let of = |y: u8| (first + Gf(y)).div(x + Gf(y)).expect("two elements that differ").0;
            return (0..self.blocks).map(of).collect();
        }
        let mut bits = Bits::new(id);
        let mut drawn = Vec::with_capacity(blocks + 3);
        while drawn.len() < blocks {
            drawn.extend(bits.next().to_le_bytes());
        }
        drawn.truncate(blocks);
        drawn
    }

    /// Encodes the packet `id` of these blocks, `len` bytes long; shorter blocks count as padded
    /// with zeros.
    ///
    /// Shape: `blocks` has the code's number of blocks.
    /// Panics: if the number of blocks is wrong, or a block is longer than `len`.
    /// Cost: a parity reads all blocks once; a block of `len` bytes is cloned.
    pub fn encode<S: Symbol>(self, blocks: &[S], id: u32, len: usize) -> S {
        assert_eq!(blocks.len(), self.blocks(), "as many blocks as the code has");
        if let Some(block) = blocks.get(id as usize) {
            return S::combine(&[(1, block)], len);
        }
        S::combine(&terms(&self.coefficients(id), blocks), len)
    }

    /// Does the same as [`Code::encode`] over bytes, and writes the packet to `packet`, which has
    /// the common length of all packets.
    ///
    /// Shape: `blocks` has the code's number of blocks, each at most as long as the packet.
    /// Panics: if the number of blocks is wrong, or a block is longer than the packet.
    pub fn encode_into<B: AsRef<[u8]>>(self, blocks: &[B], id: u32, packet: &mut [u8]) {
        assert_eq!(blocks.len(), self.blocks(), "as many blocks as the code has");
        let (coefficients, len) = (self.coefficients(id), packet.len());
        let blocks = || coefficients.iter().zip(blocks).map(|(factor, block)| (*factor, block.as_ref()));
        let (factors, whole): (Vec<u8>, Vec<&[u8]>) =
            blocks().filter(|(factor, block)| *factor != 0 && block.len() == len).unzip();
        gf_dot(&factors, &whole, packet);
        for (factor, block) in blocks().filter(|(_, block)| block.len() != len) {
            assert!(
                block.len() < len,
                "a block has {} bytes: must have at most {len}, as the packet",
                block.len()
            );
            gf_mul_add(&[factor], &[block], &mut packet[..block.len()]);
        }
    }
}

/// The blocks whose coefficient in a sum is not zero, each with its coefficient.
fn terms<'a, S>(coefficients: &[u8], symbols: impl IntoIterator<Item = &'a S>) -> Vec<(u8, &'a S)> {
    let all = coefficients.iter().copied().zip(symbols);
    all.filter(|(coefficient, _)| *coefficient != 0).collect()
}

/// A decoder that eliminates the missing blocks once there are as many packets as blocks.
///
/// Cost: until then packets are only stored. Then m missing blocks take a sum of k symbols each,
/// and m^3 operations on bytes. Memory is k symbols.
#[derive(Clone, Debug)]
pub struct Elimination<S> {
    code: Code,
    len: usize,
    blocks: Vec<Option<S>>,
    known: usize,
    /// Parities, each id once, and blocks received after the set of missing blocks was fixed.
    others: Vec<(u32, S)>,
    /// Equations for the missing blocks; `None` until there are as many packets as blocks.
    missing: Option<ErasureEquations>,
    is_complete: bool,
}

/// The missing blocks, and equations for them from the parities.
#[derive(Clone, Debug)]
struct ErasureEquations {
    blocks: Vec<usize>,
    /// Independent rows over the missing blocks, each with the index of its leading 1, at which
    /// later rows are zero.
    rows: Vec<(usize, Vec<Gf>)>,
}

impl ErasureEquations {
    /// Adds the row of a packet with these coefficients. Returns false if it depends linearly on
    /// earlier rows.
    fn add(&mut self, coefficients: &[u8]) -> bool {
        let mut row: Vec<Gf> = self.blocks.iter().map(|block| Gf(coefficients[*block])).collect();
        for (pivot, other) in &self.rows {
            let factor = row[*pivot];
            if !factor.is_zero() {
                row.iter_mut().zip(other).for_each(|(cell, other)| *cell += factor * *other);
            }
        }
        let Some(pivot) = row.iter().position(|cell| !cell.is_zero()) else { return false };
        let inverse = row[pivot].inverse().expect("it is not zero");
        row.iter_mut().for_each(|cell| *cell *= inverse);
        self.rows.push((pivot, row));
        true
    }
}

impl<S: Symbol> Elimination<S> {
    /// Creates a decoder for packets of `len` bytes.
    pub fn new(code: Code, len: usize) -> Self {
        let blocks = std::iter::repeat_with(|| None).take(code.blocks()).collect();
        Self { code, len, blocks, known: 0, others: Vec::new(), missing: None, is_complete: false }
    }

    /// Computes the missing blocks from as many independent packets as there are missing blocks.
    fn solve(&mut self) {
        let Some(ErasureEquations { blocks: missing, .. }) = self.missing.take() else { return };
        let others = std::mem::take(&mut self.others);
        let coefficients: Vec<Vec<u8>> = others.iter().map(|(id, _)| self.code.coefficients(*id)).collect();
        let of_missing: Vec<Vec<u8>> =
            coefficients.iter().map(|row| missing.iter().map(|block| row[*block]).collect()).collect();
        let matrix = Matrix::from_rows(&of_missing).expect("all rows are of the missing blocks");
        let inverse = matrix.inverse().expect("the rows are independent");
        let rows: Vec<&[u8]> = coefficients.iter().map(Vec::as_slice).collect();
        let made: Vec<S> = (0..missing.len())
            .map(|at| {
                let factors: Vec<u8> = (0..others.len()).map(|other| inverse[(at, other)].0).collect();
                let mut of_blocks = vec![0; self.code.blocks()];
                gf_dot(&factors, &rows, &mut of_blocks);
                let known = of_blocks.iter().zip(&self.blocks);
                let known = known.filter_map(|(factor, block)| Some((*factor, block.as_ref()?)));
                let mut terms = terms(&factors, others.iter().map(|(_, symbol)| symbol));
                terms.extend(known.filter(|(factor, _)| *factor != 0));
                S::combine(&terms, self.len)
            })
            .collect();
        for (block, symbol) in missing.into_iter().zip(made) {
            self.blocks[block] = Some(symbol);
        }
        (self.known, self.is_complete) = (self.code.blocks(), true);
    }
}

impl<S: Symbol> Decoder<S> for Elimination<S> {
    fn push(&mut self, id: u32, symbol: S) -> bool {
        assert_eq!(symbol.len(), self.len, "all packets of a decoder are of one length");
        if self.is_complete {
            return true;
        }
        let is_known = self.blocks.get(id as usize).is_some_and(Option::is_some);
        if is_known || self.others.iter().any(|(other, _)| *other == id) {
            return false;
        }
        match &mut self.missing {
            Some(missing) => {
                if !missing.add(&self.code.coefficients(id)) {
                    return false;
                }
                self.others.push((id, symbol));
            }
            None => {
                match self.blocks.get_mut(id as usize) {
                    Some(block) => (*block, self.known) = (Some(symbol), self.known + 1),
                    None => self.others.push((id, symbol)),
                }
                if self.packets() < self.code.blocks() {
                    return false;
                }
                let blocks = (0..self.blocks.len()).filter(|block| self.blocks[*block].is_none()).collect();
                let mut missing = ErasureEquations { blocks, rows: Vec::new() };
                self.others.retain(|(id, _)| missing.add(&self.code.coefficients(*id)));
                self.missing = Some(missing);
            }
        }
        if self.lacks() > 0 {
            return false;
        }
        self.solve();
        true
    }
    fn is_complete(&self) -> bool {
        self.is_complete
    }
    fn packets(&self) -> usize {
        self.known + self.others.len()
    }
    fn lacks(&self) -> usize {
        if self.is_complete { 0 } else { self.code.blocks() - self.packets() }
    }
    fn into_blocks(self) -> Option<Vec<S>> {
        self.blocks.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_endpoint::{Bytes, Len};
    use proptest::prelude::*;

    fn data(random: &mut Bits, blocks: usize, len: usize) -> Vec<Bytes> {
        let mut block = |_| Bytes::from((0..len).map(|_| random.below(256) as u8).collect::<Vec<u8>>());
        (0..blocks).map(&mut block).collect()
    }
    /// Draws `count` distinct ids below `end`, in random order.
    fn drawn(random: &mut Bits, end: u32, count: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..end).collect();
        (0..ids.len()).for_each(|at| {
            let other = at + random.below((ids.len() - at) as u32) as usize;
            ids.swap(at, other);
        });
        ids.truncate(count);
        ids
    }

    proptest! {
        #[test]
        fn any_k_distinct_packets_recover_k_blocks(blocks in 1usize..=BLOCKS_MAX, len in 0usize..40, seed: u32) {
            let mut random = Bits::new(seed);
            let (code, data) = (Code::new(blocks).expect("a good number"), data(&mut random, blocks, len));
            let mut decoder = Elimination::new(code, len);
            let ids = drawn(&mut random, FIELD as u32, blocks);
            for (count, id) in ids.into_iter().enumerate() {
                prop_assert_eq!(decoder.lacks(), blocks - count);
                let packet = code.encode(&data, id, len);
                let mut same = vec![7; len];
                code.encode_into(&data, id, &mut same);
                prop_assert_eq!(&same, &packet);
                let is_complete = decoder.push(id, packet);
                prop_assert_eq!(is_complete, count + 1 == blocks);
                // A duplicate has no effect.
                prop_assert_eq!(decoder.push(id, code.encode(&data, id, len)), is_complete);
            }
            prop_assert_eq!(decoder.into_blocks(), Some(data));
        }

        #[test]
        fn few_extra_packets_suffice_for_drawn_parities(blocks in 1usize..=BLOCKS_MAX, lost in 1usize..20, first in 0u32..u32::MAX - 1000, seed: u32) {
            let mut random = Bits::new(seed);
            let (code, data) = (Code::new(blocks).expect("a good number"), data(&mut random, blocks, 9));
            let mut decoder = Elimination::new(code, 9);
            let kept = drawn(&mut random, blocks as u32, blocks.saturating_sub(lost));
            let sums = (first.max(blocks as u32)..).take(lost + 6);
            let count = kept.into_iter().chain(sums).position(|id| decoder.push(id, code.encode(&data, id, 9)));
            prop_assert!(count.is_some_and(|count| count < blocks + 6), "{:?}", count);
            prop_assert_eq!(decoder.into_blocks(), Some(data));
        }
    }

    #[test]
    fn short_block_counts_as_padded_with_zeros() {
        let code = Code::new(3).expect("a good number");
        let (short, whole) = ([&b"some"[..], b"mo", b""], [&b"some"[..], b"mo\0\0", b"\0\0\0\0"]);
        for id in [1, 3, 4, 300] {
            let packet = |blocks: &[&[u8]; 3]| {
                let mut packet = [9; 4];
                code.encode_into(blocks, id, &mut packet);
                packet
            };
            assert_eq!(packet(&short), packet(&whole), "packet {id}");
            assert_eq!(code.encode(&short.map(Bytes::from_static), id, 4)[..], packet(&whole));
        }
    }

    #[test]
    fn first_parity_is_plain_xor() {
        for blocks in [1, 2, 17, 184, BLOCKS_MAX] {
            let code = Code::new(blocks).expect("a good number");
            assert_eq!(code.coefficients(blocks as u32), vec![1; blocks]);
        }
    }

    #[test]
    fn parity_coefficients_match_the_recorded_format() {
        // The coefficients are a wire format: clients and servers of different builds must agree.
        let code = Code::new(5).expect("a good number");
        assert_eq!(code.coefficients(2), [0, 0, 1, 0, 0]);
        assert_eq!(code.coefficients(6), [143, 210, 200, 245, 142]);
        assert_eq!(code.coefficients(300), [149, 5, 143, 233, 26]);
    }

    #[test]
    fn late_block_is_used_as_a_sum() {
        let mut random = Bits::new(1);
        let (code, data) = (Code::new(4).expect("a good number"), data(&mut random, 4, 8));
        // Drawn parities whose coefficient for block 0 is zero.
        let mut ids = (256u32..).filter(|id| code.coefficients(*id)[0] == 0);
        let mut decoder = Elimination::new(code, 8);
        let mut push = |id: u32| decoder.push(id, code.encode(&data, id, 8));
        assert!(!push(1));
        for _ in 0..20 {
            assert!(!push(ids.next().expect("there are many")), "block 0 is in none of them");
        }
        assert!(push(0));
        assert_eq!(decoder.packets(), 4);
        assert_eq!(decoder.into_blocks(), Some(data));
    }

    #[test]
    fn lengths_decode_like_bytes() {
        let code = Code::new(10).expect("a good number");
        let mut decoder = Elimination::new(code, 7);
        let complete = (5..15).map(|id| decoder.push(id, code.encode(&[Len(7); 10], id, 7))).last();
        assert_eq!(complete, Some(true));
        assert_eq!(decoder.into_blocks(), Some(vec![Len(7); 10]));
    }

    #[test]
    fn block_counts_out_of_range_are_refused() {
        assert_eq!(Code::new(0), Err(BlocksError(0)));
        assert!(Code::new(BLOCKS_MAX).is_ok());
        let error = Code::new(256).expect_err("one too many");
        assert_eq!(error.to_string(), "256 blocks: must be 1 to 255");
    }
}
