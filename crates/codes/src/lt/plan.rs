//! Decoding plans: the sums of packets that yield the blocks. A plan follows from ids alone, before
//! any symbol is processed.
//!
//! A [`Plan`] is made once, as soon as a solution is possible. Blocks are peeled; whenever peeling
//! stops, one block is set aside as inactive. The packets that peeling does not use become
//! equations of the inactive blocks. Each later packet adds an equation, reduced by the earlier
//! ones: it is either useful or linearly dependent.

use crate::symbol::Sums;

/// Lists of numbers, stored consecutively.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    ends: Vec<u32>,
    items: Vec<u32>,
}

impl Rows {
    /// Creates an empty list of rows, with capacity for `items` items.
    pub fn with_capacity(items: usize) -> Self {
        Self { ends: Vec::new(), items: Vec::with_capacity(items) }
    }
    pub fn len(&self) -> usize {
        self.ends.len()
    }
    /// Adds an item to the open row, which is the last one.
    #[inline]
    pub fn push(&mut self, item: u32) {
        self.items.push(item);
    }
    pub fn end_row(&mut self) {
        self.ends.push(self.items.len() as u32);
    }
    /// Items of the row that is not ended yet.
    pub fn open_row(&self) -> &[u32] {
        &self.items[self.ends.last().map_or(0, |end| *end as usize)..]
    }
    pub fn forget_open_row(&mut self) {
        self.items.truncate(self.ends.last().map_or(0, |end| *end as usize));
    }
    pub fn row(&self, row: usize) -> &[u32] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.items[start..self.ends[row] as usize]
    }
}

/// State of a block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Unknown,
    /// Equal to the received symbol with this number.
    Given(u32),
    /// The peeled block with this number in `Plan::peeled`: its row yields it once earlier blocks
    /// are known.
    Peeled(u32),
    /// The inactive block with this number in `Plan::inactive`.
    Inactive(u32),
}

impl Block {
    /// Number of the received symbol that equals the block; `None` if there is none.
    pub fn given(&self) -> Option<u32> {
        if let Self::Given(symbol) = self { Some(*symbol) } else { None }
    }
}

/// A matrix of bits, stored by rows.
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
    fn row_mut(&mut self, row: usize) -> &mut [u64] {
        &mut self.bits[row * self.words..][..self.words]
    }
    /// Adds row `row` to row `to`, which must come before it.
    fn add(&mut self, to: usize, row: usize) {
        let (before, from) = self.bits.split_at_mut(row * self.words);
        xor_into(&mut before[to * self.words..][..self.words], &from[..self.words]);
    }
}

fn xor_into(sum: &mut [u64], row: &[u64]) {
    sum.iter_mut().zip(row).for_each(|(sum, row)| *sum ^= row);
}
fn flip(row: &mut [u64], column: usize) {
    row[column / 64] ^= 1 << (column % 64);
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

/// The unknown blocks, in order of decreasing `key`.
fn by_most(blocks: &[Block], key: impl Fn(u32) -> usize) -> Vec<u32> {
    let unknown = || (0..blocks.len() as u32).filter(|block| blocks[*block as usize] == Block::Unknown);
    let mut starts: Vec<u32> = Vec::new();
    for block in unknown() {
        let key = key(block);
        if key >= starts.len() {
            starts.resize(key + 1, 0);
        }
        starts[key] += 1;
    }
    let mut total = 0;
    for start in starts.iter_mut().rev() {
        total += std::mem::replace(start, total);
    }
    let mut sorted = vec![0; total as usize];
    for block in unknown() {
        let place = &mut starts[key(block)];
        sorted[*place as usize] = block;
        *place += 1;
    }
    sorted
}

/// Derivation of the blocks from rows. A row lists the blocks of a packet.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    blocks: Vec<Block>,
    /// Peeled blocks in the order in which they become known, each with its row.
    peeled: Vec<(u32, u32)>,
    inactive: Vec<u32>,
    /// The inactive blocks in each block's expression: for a peeled block, those in the sum of its
    /// row; for an inactive block, itself.
    parts: Bits,
    /// Linearly independent rows that serve as equations of the inactive blocks.
    equations: Vec<u32>,
    /// Reduced equations, at the index of their pivot, which is their first unknown; zeros if there
    /// is none. `sums` has the `equations` summed in each.
    reduced: Bits,
    sums: Bits,
    /// Buffer for an equation and its sum.
    scratch: Vec<u64>,
}

impl Plan {
    /// Creates the plan for these rows and given blocks.
    ///
    /// Cost: a few passes over the rows, and an elimination with as many unknowns as inactive
    /// blocks.
    pub fn new(rows: &Rows, blocks: Vec<Block>) -> Self {
        let (plan, used) = Self::peel(rows, blocks);
        let mut plan = plan.with_parts(rows);
        for row in (0..rows.len()).filter(|row| !used[*row]) {
            if plan.lacks() == 0 {
                break;
            }
            plan.add(rows.row(row), row);
        }
        plan
    }

    /// Lower bound on the number of missing rows.
    pub fn lacks(&self) -> usize {
        self.inactive.len() - self.equations.len()
    }

    /// Peels blocks and sets inactive blocks aside. Also returns which rows were used.
    fn peel(rows: &Rows, mut blocks: Vec<Block>) -> (Self, Vec<bool>) {
        let is_unknown = |blocks: &[Block], block: u32| blocks[block as usize] == Block::Unknown;
        // The rows that contain each unknown block. Filled from the back, so that ends become
        // starts.
        let mut ends = vec![0u32; blocks.len() + 1];
        for &block in &rows.items {
            ends[block as usize] += u32::from(is_unknown(&blocks, block));
        }
        let mut total = 0;
        for end in &mut ends {
            total += *end;
            *end = total;
        }
        let mut holders = vec![0u32; total as usize];
        // For each row, the number of its unknown blocks, and the xor of their numbers: with one
        // block left, the xor is its number.
        let mut unknown = vec![(0u32, 0u32); rows.len()];
        for (row, (left, sum)) in unknown.iter_mut().enumerate().rev() {
            for &block in rows.row(row).iter().filter(|block| is_unknown(&blocks, **block)) {
                let place = &mut ends[block as usize];
                *place -= 1;
                holders[*place as usize] = row as u32;
                *left += 1;
                *sum ^= block;
            }
        }
        let holders = |block: u32| &holders[ends[block as usize] as usize..ends[block as usize + 1] as usize];

        let mut used = vec![false; rows.len()];
        let (mut peeled, mut inactive) = (Vec::with_capacity(rows.len()), Vec::new());
        let mut ready: Vec<u32> =
            (0..rows.len() as u32).filter(|row| unknown[*row as usize].0 == 1).collect();
        // The blocks that are in the most rows are set aside first.
        let by_holders = by_most(&blocks, |block| holders(block).len());
        let count = by_holders.len();
        let mut next_inactive = by_holders.into_iter();
        while peeled.len() + inactive.len() < count {
            let block = match ready.pop() {
                Some(row) => {
                    let (1, block) = unknown[row as usize] else { continue };
                    used[row as usize] = true;
                    blocks[block as usize] = Block::Peeled(peeled.len() as u32);
                    peeled.push((block, row));
                    block
                }
                None => {
                    let mut candidates = next_inactive.by_ref().filter(|b| is_unknown(&blocks, *b));
                    let block = candidates.next().expect("there are blocks that are not known");
                    blocks[block as usize] = Block::Inactive(inactive.len() as u32);
                    inactive.push(block);
                    block
                }
            };
            for row in holders(block) {
                let (left, sum) = &mut unknown[*row as usize];
                *sum ^= block;
                *left -= 1;
                if *left == 1 {
                    ready.push(*row);
                }
            }
        }
        let columns = inactive.len();
        let mut parts = Bits::new(blocks.len(), columns);
        for (number, block) in inactive.iter().enumerate() {
            flip(parts.row_mut(*block as usize), number);
        }
        let plan = Self {
            blocks,
            peeled,
            inactive,
            parts,
            equations: Vec::with_capacity(columns),
            reduced: Bits::new(columns, columns),
            sums: Bits::new(columns, columns),
            scratch: Vec::new(),
        };
        (plan, used)
    }

    /// Writes to `sum` the inactive blocks in the sum of the row's blocks, with all peeled blocks
    /// substituted.
    fn gather(&self, row: &[u32], sum: &mut [u64]) {
        if let [sum] = sum {
            *sum = row.iter().fold(0, |sum, block| sum ^ self.parts.bits[*block as usize]);
            return;
        }
        sum.fill(0);
        row.iter().for_each(|block| xor_into(sum, self.parts.row(*block as usize)));
    }

    fn with_parts(mut self, rows: &Rows) -> Self {
        let mut sum = vec![0; self.parts.words];
        for (block, row) in &self.peeled {
            // The block's own parts are still zeros.
            self.gather(rows.row(*row as usize), &mut sum);
            self.parts.bits[*block as usize * sum.len()..][..sum.len()].copy_from_slice(&sum);
        }
        self
    }

    /// Adds a row as an equation. Returns false if it is linearly dependent, so that it need not be
    /// kept.
    pub fn add(&mut self, row: &[u32], number: usize) -> bool {
        let words = self.parts.words;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(2 * words, 0);
        let (equation, sum) = scratch.split_at_mut(words);
        self.gather(row, equation);
        sum.fill(0);
        let is_new = self.reduce(equation, sum, number);
        self.scratch = scratch;
        is_new
    }
    fn reduce(&mut self, equation: &mut [u64], sum: &mut [u64], number: usize) -> bool {
        let mut word = 0;
        while word < equation.len() {
            if equation[word] == 0 {
                word += 1;
                continue;
            }
            let pivot = word * 64 + equation[word].trailing_zeros() as usize;
            if self.reduced.row(pivot)[word] == 0 {
                flip(sum, self.equations.len());
                self.equations.push(number as u32);
                self.reduced.row_mut(pivot).copy_from_slice(equation);
                self.sums.row_mut(pivot).copy_from_slice(sum);
                return true;
            }
            xor_into(&mut equation[word..], &self.reduced.row(pivot)[word..]);
            xor_into(sum, self.sums.row(pivot));
        }
        false
    }

    /// Returns the sums to compute, and for each block the number of its symbol. Received symbols
    /// have the first numbers, computed symbols follow.
    ///
    /// `symbols` is the number of received symbols, `symbol_of` the number of each row's symbol.
    pub fn finish(mut self, rows: &Rows, symbols: usize, symbol_of: &[u32]) -> (Sums, Vec<u32>) {
        assert_eq!(self.lacks(), 0, "as many equations as inactive blocks");
        for pivot in (0..self.inactive.len()).rev() {
            let sums = &mut self.sums;
            // The first set bit is the pivot.
            ones(self.reduced.row(pivot)).skip(1).for_each(|other| sums.add(pivot, other));
        }
        let peeled_at = symbols as u32;
        let inactive_at = peeled_at + self.peeled.len() as u32;
        let equations_at = inactive_at + self.inactive.len() as u32;
        let place = |block: u32| match self.blocks[block as usize] {
            Block::Given(symbol) => symbol,
            Block::Peeled(number) => peeled_at + number,
            Block::Inactive(number) => inactive_at + number,
            Block::Unknown => unreachable!("all blocks are given, peeled or inactive"),
        };
        let places: Vec<u32> = (0..self.blocks.len() as u32).map(place).collect();
        let mut sums = Sums::new(symbols);
        // Rows are read once, most rows of peeled blocks twice, and half of the equations by each
        // inactive block.
        let inactive = self.inactive.len();
        sums.reserve(2 * (self.peeled.len() + inactive), 2 * rows.items.len() + inactive * inactive);
        let is_known = move |place: u32| !(inactive_at..equations_at).contains(&place);
        let place_of = places.as_slice();
        // Sums a row without its own block and without inactive blocks. Closures that capture by
        // move keep their data in registers.
        let known_of = |sums: &mut Sums, own: u32, row: u32| {
            let others = rows.row(row as usize).iter().map(move |block| place_of[*block as usize]);
            sums.set_some(
                own,
                symbol_of[row as usize],
                others.map(move |place| (place, is_known(place) & (place != own))),
            );
        };
        for (number, (_, row)) in self.peeled.iter().enumerate() {
            known_of(&mut sums, peeled_at + number as u32, *row);
        }
        for (number, row) in self.equations.iter().enumerate() {
            known_of(&mut sums, equations_at + number as u32, *row);
        }
        for number in 0..self.inactive.len() {
            sums.set(
                inactive_at + number as u32,
                ones(self.sums.row(number)).map(|e| equations_at + e as u32),
            );
        }
        for (number, (block, row)) in self.peeled.iter().enumerate() {
            let (own, parts) = (peeled_at + number as u32, self.parts.row(*block as usize));
            let added = parts.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            let row_places = rows.row(*row as usize);
            // Either adds the inactive blocks to the existing sum, or sums the row again, depending
            // on which reads fewer symbols.
            if added > 0 && added < row_places.len() {
                sums.add(own, ones(parts).map(|number| inactive_at + number as u32));
            } else if added > 0 {
                let others = row_places.iter().map(move |block| place_of[*block as usize]);
                sums.set_some(own, symbol_of[*row as usize], others.map(move |place| (place, place != own)));
            }
        }
        (sums, places)
    }
}
