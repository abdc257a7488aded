//! Decoding by peeling with inactivation: what peeling leaves is solved by elimination, so that hardly more packets are needed
//! than there are blocks.
//!
//! Where no packet is left with a single unknown block, one block is set aside (*inactive*) as if it were known, and peeling
//! goes on; every block then is a sum of packets and of inactive blocks. The packets that peeling did not use are equations
//! of the inactive blocks alone: a small dense system. All of this is found out from ids alone, before any symbol is touched;
//! as long as it cannot be solved, that also says how many packets are lacking.
//!
//! Source: inactivation decoding as in RFC 6330 section 5.4.2 (first phase), Shokrollahi and others (US 6,856,263).

use super::{Code, Decoder};
use crate::Symbol;
use std::collections::BTreeSet;

/// An inactivation decoder.
#[derive(Clone, Debug)]
pub struct Inactivation<S> {
    code: Code,
    len: usize,
    seen: BTreeSet<u32>,
    packets: Rows,
    symbols: Vec<S>,
    /// No solution is looked for before so many packets have come.
    try_at: usize,
    solved: Option<Vec<S>>,
}

/// Lists of numbers, one behind the other.
#[derive(Clone, Debug, Default)]
struct Rows {
    ends: Vec<usize>,
    items: Vec<u32>,
}

impl Rows {
    fn len(&self) -> usize {
        self.ends.len()
    }
    fn push(&mut self, items: &[u32]) {
        self.items.extend_from_slice(items);
        self.ends.push(self.items.len());
    }
    fn row(&self, row: usize) -> &[u32] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[start..self.ends[row]]
    }
    /// For each of `columns` numbers, the rows that hold it.
    fn transposed(&self, columns: usize) -> Self {
        let mut counts = vec![0; columns];
        self.items.iter().for_each(|item| counts[*item as usize] += 1);
        let mut next: Vec<usize> = Vec::with_capacity(columns);
        let mut ends = Vec::with_capacity(columns);
        let mut end = 0;
        for count in counts {
            next.push(end);
            end += count;
            ends.push(end);
        }
        let mut items = vec![0; self.items.len()];
        for row in 0..self.len() {
            for item in self.row(row) {
                let place = &mut next[*item as usize];
                items[*place] = row as u32;
                *place += 1;
            }
        }
        Self { ends, items }
    }
}

impl<S: Symbol> Inactivation<S> {
    /// A decoder of packets of `len` bytes.
    pub fn new(code: Code, len: usize) -> Self {
        let try_at = code.blocks();
        let packets = Rows::default();
        Self { code, len, seen: BTreeSet::new(), packets, symbols: Vec::new(), try_at, solved: None }
    }
}

impl<S: Symbol> Decoder<S> for Inactivation<S> {
    fn push(&mut self, id: u32, symbol: S) -> bool {
        if self.is_complete() || !self.seen.insert(id) {
            return self.is_complete();
        }
        let mut blocks = Vec::new();
        self.code.neighbours(id, &mut blocks);
        self.packets.push(&blocks);
        self.symbols.push(symbol);
        if self.packets.len() >= self.try_at {
            match Solution::find(&self.packets, self.code.blocks()) {
                Ok(solution) => self.solved = Some(solution.apply(&self.packets, &self.symbols, self.len)),
                Err(lacks) => self.try_at = self.packets.len() + lacks,
            }
        }
        self.is_complete()
    }
    fn is_complete(&self) -> bool {
        self.solved.is_some()
    }
    fn lacks(&self) -> usize {
        if self.is_complete() { 0 } else { self.try_at - self.packets.len() }
    }
    fn into_blocks(self) -> Option<Vec<S>> {
        self.solved
    }
}

/// What is known of a block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Block {
    Unknown,
    /// The packet of this number gives it, once those before it are known.
    Peeled(u32),
    /// It is the inactive block of this number.
    Inactive(u32),
}

/// How the blocks follow from the packets.
#[derive(Debug)]
struct Solution {
    blocks: Vec<Block>,
    /// Peeled blocks, in the order in which they become known.
    order: Vec<u32>,
    inactive: Vec<u32>,
    /// Of each block, which inactive ones are part of what its packet gives: so many words of bits each.
    parts: Bits,
    /// Packets that give the inactive blocks, and of each inactive block the sum of which of them it is.
    dense: Vec<u32>,
    sums: Bits,
}

/// Rows of bits.
#[derive(Clone, Debug)]
struct Bits {
    words: usize,
    bits: Vec<u64>,
}

impl Bits {
    fn new(rows: usize, columns: usize) -> Self {
        let words = columns.div_ceil(64);
        Self { words, bits: vec![0; rows * words] }
    }
    fn row(&self, row: usize) -> &[u64] {
        &self.bits[row * self.words..][..self.words]
    }
    fn add(&mut self, to: usize, row: usize) {
        for word in 0..self.words {
            let added = self.bits[row * self.words + word];
            self.bits[to * self.words + word] ^= added;
        }
    }
}

fn xor_into(sum: &mut [u64], row: &[u64]) {
    sum.iter_mut().zip(row).for_each(|(sum, row)| *sum ^= row);
}
fn has(row: &[u64], column: usize) -> bool {
    row[column / 64] >> (column % 64) & 1 == 1
}
fn ones(row: &[u64]) -> impl Iterator<Item = usize> + '_ {
    row.iter().enumerate().flat_map(|(word, bits)| {
        let mut bits = *bits;
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(word * 64 + bit)
        })
    })
}

/// Peels, and sets aside what must be; packets that were used are marked.
fn peel(packets: &Rows, count: usize) -> (Vec<Block>, Vec<u32>, Vec<u32>, Vec<bool>) {
    let holders = packets.transposed(count);
    let mut left: Vec<u32> = (0..packets.len()).map(|p| packets.row(p).len() as u32).collect();
    // Of a packet with one unknown block left, this is the block.
    let mut unknown: Vec<u32> =
        (0..packets.len()).map(|p| packets.row(p).iter().fold(0, |sum, block| sum ^ block)).collect();
    let mut used = vec![false; packets.len()];
    let (mut blocks, mut order, mut inactive) = (vec![Block::Unknown; count], Vec::new(), Vec::new());
    let mut ready: Vec<u32> = (0..packets.len() as u32).filter(|p| left[*p as usize] == 1).collect();
    // Set aside first what most packets hold.
    let mut by_holders: Vec<u32> = (0..count as u32).collect();
    by_holders.sort_by_key(|block| std::cmp::Reverse(holders.row(*block as usize).len()));
    let mut next_inactive = by_holders.into_iter();
    while order.len() + inactive.len() < count {
        let block = match ready.pop() {
            Some(packet) => {
                let at = packet as usize;
                if used[at] || left[at] != 1 {
                    continue;
                }
                used[at] = true;
                blocks[unknown[at] as usize] = Block::Peeled(packet);
                order.push(unknown[at]);
                unknown[at]
            }
            None => {
                let mut unknown = next_inactive.by_ref().filter(|b| blocks[*b as usize] == Block::Unknown);
                let block = unknown.next().expect("there are blocks that are not known");
                blocks[block as usize] = Block::Inactive(inactive.len() as u32);
                inactive.push(block);
                block
            }
        };
        for packet in holders.row(block as usize) {
            let at = *packet as usize;
            if used[at] {
                continue;
            }
            unknown[at] ^= block;
            left[at] -= 1;
            if left[at] == 1 {
                ready.push(*packet);
            }
        }
    }
    (blocks, order, inactive, used)
}

impl Solution {
    /// How `count` blocks follow from these packets.
    ///
    /// Errors: how many packets are lacking at least.
    fn find(packets: &Rows, count: usize) -> Result<Self, usize> {
        let (blocks, order, inactive, used) = peel(packets, count);
        let mut parts = Bits::new(count, inactive.len());
        // The inactive blocks in what a packet gives, all its peeled blocks replaced.
        let gather = |parts: &Bits, packet: usize, but: Option<u32>| {
            let mut sum = vec![0; parts.words];
            for block in packets.row(packet).iter().filter(|block| Some(**block) != but) {
                match blocks[*block as usize] {
                    Block::Inactive(number) => sum[number as usize / 64] ^= 1 << (number % 64),
                    _ => xor_into(&mut sum, parts.row(*block as usize)),
                }
            }
            sum
        };
        for block in &order {
            let Block::Peeled(packet) = blocks[*block as usize] else { continue };
            let sum = gather(&parts, packet as usize, Some(*block));
            parts.bits[*block as usize * parts.words..][..sum.len()].copy_from_slice(&sum);
        }
        let needed = inactive.len();
        let mut dense = Vec::new();
        // By pivot: an equation whose first unknown it is, and which packets it sums.
        let mut pivots: Vec<Option<(Vec<u64>, Vec<u64>)>> = vec![None; needed];
        for packet in (0..packets.len()).filter(|packet| !used[*packet]) {
            if dense.len() == needed {
                break;
            }
            let mut equation = gather(&parts, packet, None);
            let mut sum = vec![0; needed.div_ceil(64)];
            sum[dense.len() / 64] |= 1 << (dense.len() % 64);
            let pivot = loop {
                let Some(first) = ones(&equation).next() else { break None };
                match &pivots[first] {
                    None => break Some(first),
                    Some((other, of)) => {
                        xor_into(&mut equation, other);
                        xor_into(&mut sum, of);
                    }
                }
            };
            if let Some(pivot) = pivot {
                pivots[pivot] = Some((equation, sum));
                dense.push(packet as u32);
            }
        }
        if dense.len() < needed {
            return Err(needed - dense.len());
        }
        let mut sums = Bits::new(needed, needed);
        for pivot in (0..needed).rev() {
            let (equation, sum) = pivots[pivot].as_ref().expect("as many as are needed");
            sums.bits[pivot * sums.words..][..sum.len()].copy_from_slice(sum);
            for later in (pivot + 1..needed).filter(|later| has(equation, *later)) {
                sums.add(pivot, later);
            }
        }
        Ok(Self { blocks, order, inactive, parts, dense, sums })
    }

    /// The blocks.
    fn apply<S: Symbol>(&self, packets: &Rows, symbols: &[S], len: usize) -> Vec<S> {
        let sum = |terms: &[(u8, &S)]| S::combine(terms, len);
        let mut known: Vec<Option<S>> = (0..self.blocks.len()).map(|_| None).collect();
        // What a packet gives without its inactive blocks and without `but`.
        let part = |known: &[Option<S>], packet: u32, but: Option<u32>| {
            let mut terms = vec![(1, &symbols[packet as usize])];
            for block in packets.row(packet as usize).iter().filter(|block| Some(**block) != but) {
                terms.extend(known[*block as usize].as_ref().map(|symbol| (1, symbol)));
            }
            sum(&terms)
        };
        for block in &self.order {
            if let Block::Peeled(packet) = self.blocks[*block as usize] {
                known[*block as usize] = Some(part(&known, packet, Some(*block)));
            }
        }
        let equations: Vec<S> = self.dense.iter().map(|packet| part(&known, *packet, None)).collect();
        for (number, block) in self.inactive.iter().enumerate() {
            let terms: Vec<(u8, &S)> = ones(self.sums.row(number)).map(|e| (1, &equations[e])).collect();
            known[*block as usize] = Some(sum(&terms));
        }
        let unknown = "all blocks are peeled or inactive";
        for block in &self.order {
            let (parts, Block::Peeled(packet)) =
                (self.parts.row(*block as usize), self.blocks[*block as usize])
            else {
                continue;
            };
            let added = parts.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            if added == 0 {
                continue;
            }
            let row = packets.row(packet as usize);
            // Either the inactive blocks are added to what there is, or the packet is looked at again: whichever reads less.
            let symbol = if added < row.len() {
                let inactive = |number: usize| known[self.inactive[number] as usize].as_ref().expect(unknown);
                let so_far = known[*block as usize].as_ref().expect(unknown);
                let terms: Vec<(u8, &S)> =
                    std::iter::once((1, so_far)).chain(ones(parts).map(|n| (1, inactive(n)))).collect();
                sum(&terms)
            } else {
                part(&known, packet, Some(*block))
            };
            known[*block as usize] = Some(symbol);
        }
        known.into_iter().map(|symbol| symbol.expect(unknown)).collect()
    }
}
