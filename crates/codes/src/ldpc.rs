//! A systematic LDPC-staircase code for a small number of packets: each parity is the plain XOR of
//! some blocks and of the previous parity.
//!
//! With k blocks and r parities there are r equations: in each, some blocks, a parity and the
//! previous parity sum to zero. A block is in [`Code::degree`] equations, and the numbers of blocks
//! per equation differ by at most one. Lost packets are recovered by peeling, and then by
//! elimination (`lt::plan`). Occasionally more packets than blocks are needed; `xtask bench codes
//! --only fec` measures how often, compared with [`mds`](crate::mds), which never needs more.
//!
//! Source: Roca, Neumann and Furodet, RFC 5170 sections 4 and 6 (LDPC-Staircase). Differs: the
//! matrix is drawn by splitmix64, and with up to four equations a block is in fewer than three.
//! Read [`Code`] and [`Peeling`] first.

use crate::Symbol;
use crate::fixed::{FixedRate, SizeError};
use crate::lt::plan::{Block, Plan, Rows};
use crate::lt::{Bits, Decoder};

/// Maximum number of blocks, and maximum number of parities.
pub const BLOCKS_MAX: usize = 255;

/// The code for a number of blocks and of parities. Encoder and decoder must use the same numbers.
#[derive(Clone, Debug)]
pub struct Code {
    blocks: usize,
    /// The blocks in each equation.
    rows: Vec<Vec<u32>>,
}

impl Code {
    /// Number of blocks.
    pub const fn blocks(&self) -> usize {
        self.blocks
    }
    /// Number of parities.
    pub fn parities(&self) -> usize {
        self.rows.len()
    }
    /// Number of equations that contain a block.
    pub fn degree(&self) -> usize {
        degree(self.rows.len())
    }
}

impl FixedRate for Code {
    type Decoder<S: Symbol> = Peeling<S>;

    /// Errors: 0 blocks or 0 parities, or more than [`BLOCKS_MAX`] of either.
    fn new(blocks: usize, parities: usize) -> Result<Self, SizeError> {
        if !(1..=BLOCKS_MAX).contains(&blocks) || !(1..=BLOCKS_MAX).contains(&parities) {
            return Err(SizeError { blocks, parities, most: BLOCKS_MAX });
        }
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); parities];
        let mut bits = Bits::new((blocks * (BLOCKS_MAX + 1) + parities) as u32);
        for block in 0..blocks as u32 {
            // Draws one of the equations with the fewest blocks, so that the numbers of blocks per
            // equation differ by at most one.
            for _ in 0..degree(parities) {
                let free = |row: &Vec<u32>| row.last() != Some(&block);
                let least = rows.iter().filter(|row| free(row)).map(Vec::len).min().unwrap_or_default();
                let fits: Vec<usize> =
                    (0..parities).filter(|at| free(&rows[*at]) && rows[*at].len() == least).collect();
                let drawn = fits[bits.below(fits.len() as u32) as usize];
                rows[drawn].push(block);
            }
        }
        Ok(Self { blocks, rows })
    }

    fn encode<S: Symbol>(&self, blocks: &[S], len: usize) -> Vec<S> {
        assert_eq!(blocks.len(), self.blocks, "as many blocks as the code has");
        let mut parities: Vec<S> = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let blocks = row.iter().map(|block| &blocks[*block as usize]);
            let terms: Vec<(u8, &S)> = blocks.chain(parities.last()).map(|term| (1, term)).collect();
            parities.push(S::combine(&terms, len));
        }
        parities
    }

    fn decoder<S: Symbol>(&self, len: usize) -> Peeling<S> {
        Peeling::new(self.clone(), len)
    }
}

/// Number of equations that contain a block, given the number of parities.
fn degree(parities: usize) -> usize {
    match parities {
        1 | 2 => 1,
        3 | 4 => 2,
        _ => 3,
    }
}

/// A decoder that peels blocks, and solves the blocks that peeling leaves by elimination.
#[derive(Clone, Debug)]
pub struct Peeling<S> {
    code: Code,
    len: usize,
    /// The right side of all equations, a symbol of zeros; then the received symbols, each id once.
    symbols: Vec<S>,
    /// State of each block, then of each parity.
    places: Vec<Block>,
    /// All blocks, once they are known.
    blocks: Option<Vec<S>>,
}

impl<S: Symbol> Peeling<S> {
    /// Creates a decoder for packets of `len` bytes.
    pub fn new(code: Code, len: usize) -> Self {
        let places = vec![Block::Unknown; code.blocks + code.parities()];
        Self { code, len, symbols: vec![S::combine(&[], len)], places, blocks: None }
    }

    /// Computes all blocks if the received packets determine them.
    fn solve(&mut self) -> Option<Vec<S>> {
        let given = |place: &Block| place.given().map(|symbol| symbol as usize);
        let known = || self.places[..self.code.blocks].iter().map(given);
        if let Some(places) = known().collect::<Option<Vec<usize>>>() {
            return Some(places.into_iter().map(|symbol| self.symbols[symbol].clone()).collect());
        }
        let mut rows = Rows::with_capacity(self.code.blocks * self.code.degree() + 2 * self.code.parities());
        let first_parity = self.code.blocks as u32;
        for (number, row) in self.code.rows.iter().enumerate() {
            row.iter().for_each(|block| rows.push(*block));
            let own = first_parity + number as u32;
            rows.push(own);
            if number > 0 {
                rows.push(own - 1);
            }
            rows.end_row();
        }
        let plan = Plan::new(&rows, self.places.clone());
        if plan.lacks() > 0 {
            return None;
        }
        let (sums, places) = plan.finish(&rows, self.symbols.len(), &vec![0; rows.len()]);
        let made = S::run(&sums, &self.symbols, self.len);
        let of = |place: &u32| {
            let place = *place as usize;
            self.symbols.get(place).unwrap_or_else(|| &made[place - self.symbols.len()]).clone()
        };
        Some(places[..self.code.blocks].iter().map(of).collect())
    }
}

impl<S: Symbol> Decoder<S> for Peeling<S> {
    fn push(&mut self, id: u32, symbol: S) -> bool {
        assert_eq!(symbol.len(), self.len, "all packets of a decoder are of one length");
        if self.blocks.is_some() {
            return true;
        }
        let number = self.symbols.len() as u32;
        let Some(place) = self.places.get_mut(id as usize).filter(|place| **place == Block::Unknown) else {
            return false;
        };
        *place = Block::Given(number);
        self.symbols.push(symbol);
        if self.packets() >= self.code.blocks {
            self.blocks = self.solve();
        }
        self.blocks.is_some()
    }
    fn is_complete(&self) -> bool {
        self.blocks.is_some()
    }
    fn packets(&self) -> usize {
        self.symbols.len() - 1
    }
    fn lacks(&self) -> usize {
        let more = usize::from(self.packets() >= self.code.blocks);
        if self.blocks.is_some() {
            0
        } else {
            (self.code.blocks + more).saturating_sub(self.packets()).max(1)
        }
    }
    fn into_blocks(self) -> Option<Vec<S>> {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_endpoint::Bytes;
    use proptest::prelude::*;

    fn drawn(bits: &mut Bits, count: usize, len: usize) -> Vec<Bytes> {
        (0..count).map(|_| (0..len).map(|_| bits.below(256) as u8).collect::<Vec<u8>>().into()).collect()
    }

    /// Returns true if the equations have a unique solution given the packets `there`, by a plain
    /// elimination over all blocks and parities.
    fn is_solvable(code: &Code, there: &[bool]) -> bool {
        let mut rows: Vec<u128> = (0..code.parities())
            .map(|row| {
                let parities =
                    [code.blocks + row].into_iter().chain((row > 0).then(|| code.blocks + row - 1));
                let all = code.rows[row].iter().map(|block| *block as usize).chain(parities);
                all.filter(|place| !there[*place]).fold(0, |sum, place| sum ^ 1 << place)
            })
            .collect();
        let mut rank = 0;
        for place in 0..there.len() {
            if let Some(at) = (rank..rows.len()).find(|at| rows[*at] >> place & 1 == 1) {
                rows.swap(rank, at);
                let pivot = rows[rank];
                rows.iter_mut()
                    .skip(rank + 1)
                    .filter(|row| **row >> place & 1 == 1)
                    .for_each(|row| *row ^= pivot);
                rank += 1;
            }
        }
        rank == there.iter().filter(|there| !**there).count()
    }

    proptest! {
        #[test]
        fn blocks_decode_exactly_if_the_equations_have_a_solution(
            blocks in 1usize..=40, parities in 1usize..=12, len in 1usize..40, more in 0usize..6, seed: u32,
        ) {
            let mut bits = Bits::new(seed);
            let code = Code::new(blocks, parities).expect("few");
            let data = drawn(&mut bits, blocks, len);
            let all: Vec<Bytes> = data.iter().cloned().chain(code.encode(&data, len)).collect();
            let mut order: Vec<usize> = (0..all.len()).collect();
            for at in 0..order.len() {
                let other = at + bits.below((all.len() - at) as u32) as usize;
                order.swap(at, other);
            }
            let mut there = vec![false; all.len()];
            let mut decoder = code.decoder(len);
            for id in order.into_iter().take(blocks + more) {
                there[id] = true;
                let is_complete = decoder.push(id as u32, all[id].clone());
                // Fewer packets than blocks are never enough.
                let count = there.iter().filter(|there| **there).count();
                prop_assert_eq!(is_complete, count >= blocks && is_solvable(&code, &there));
                if is_complete {
                    prop_assert_eq!(decoder.into_blocks(), Some(data));
                    return Ok(());
                }
                prop_assert!(!decoder.push(id as u32, all[id].clone()), "what came twice is no news");
            }
        }

        #[test]
        fn equations_have_equal_numbers_of_blocks(blocks in 1usize..=255, parities in 1usize..=40) {
            let code = Code::new(blocks, parities).expect("few");
            let lengths: Vec<usize> = code.rows.iter().map(Vec::len).collect();
            prop_assert_eq!(lengths.iter().sum::<usize>(), blocks * code.degree());
            let (least, most) = (lengths.iter().min(), lengths.iter().max());
            prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 2), "{:?}", lengths);
        }
    }

    #[test]
    fn code_sizes_out_of_range_are_refused() {
        let error = Code::new(0, 4).expect_err("no blocks");
        assert_eq!(error.to_string(), "0 blocks and 4 parities: must be 1 to 255 each");
        assert!(Code::new(255, 255).is_ok() && Code::new(4, 0).is_err() && Code::new(256, 1).is_err());
    }
}
