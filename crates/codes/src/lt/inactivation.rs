//! Decoding by peeling with inactivation: blocks that peeling leaves are solved by elimination, so
//! that few packets beyond the number of blocks are needed.
//!
//! If no packet has a single unknown block, one block is set aside (*inactive*) and treated as
//! known, and peeling continues. Every block is then a sum of packets and of inactive blocks. The
//! packets that peeling does not use are equations of the inactive blocks alone: a small dense
//! system. The system follows from ids alone (`plan.rs`), once there are as many packets as blocks;
//! each later packet adds an equation. Symbols are processed only when the system can be solved.
//!
//! Source: inactivation decoding as in RFC 6330 section 5.4.2 (first phase), Shokrollahi and others
//! (US 6,856,263).

use super::plan::{Block, Plan, Rows};
use super::{Code, Decoder};
use crate::Symbol;
use crate::symbol::Sums;

/// An inactivation decoder.
#[derive(Clone, Debug)]
pub struct Inactivation<S> {
    code: Code,
    len: usize,
    /// Received packets: first as many as blocks, then only packets that add an equation.
    symbols: Vec<S>,
    stage: Stage<S>,
}

#[derive(Clone, Debug)]
enum Stage<S> {
    /// Fewer packets than blocks.
    Gathering {
        /// Ids of the received packets that are sums.
        ids: IdSet,
        blocks: Vec<Block>,
        packets: Packets,
    },
    /// As many packets as blocks or more, but fewer linearly independent ones.
    Lacking {
        plan: Box<Plan>,
        packets: Packets,
    },
    Complete(Vec<S>),
}

/// The blocks of each received packet that is a sum.
#[derive(Clone, Debug, Default)]
struct Packets {
    rows: Rows,
    /// Index of each row's symbol.
    symbols: Vec<u32>,
}

impl<S: Symbol> Inactivation<S> {
    /// Creates a decoder for packets of `len` bytes.
    pub fn new(code: Code, len: usize) -> Self {
        let count = code.blocks();
        let items = if code.is_systematic { 0 } else { (count as f64 * 1.1 * code.degree_mean()) as usize };
        let stage = Stage::Gathering {
            ids: IdSet::new(count),
            blocks: vec![Block::Unknown; count],
            packets: Packets { rows: Rows::with_capacity(items), symbols: Vec::with_capacity(count) },
        };
        Self { code, len, symbols: Vec::with_capacity(count), stage }
    }

    /// Computes the blocks from the packets with the sums of a complete plan.
    fn solve(&mut self, (sums, places): (Sums, Vec<u32>)) -> Vec<S> {
        let symbols = std::mem::take(&mut self.symbols);
        let made = S::run(&sums, &symbols, self.len);
        let mut all: Vec<Option<S>> = symbols.into_iter().chain(made).map(Some).collect();
        places
            .into_iter()
            .map(|place| all[place as usize].take().expect("each block has a place of its own"))
            .collect()
    }
}

impl<S: Symbol> Decoder<S> for Inactivation<S> {
    fn push(&mut self, id: u32, symbol: S) -> bool {
        assert_eq!(symbol.len(), self.len, "all packets of a decoder are of one length");
        let number = self.symbols.len() as u32;
        match &mut self.stage {
            Stage::Complete(_) => return true,
            Stage::Gathering { ids, blocks, packets } => {
                let Packets { rows, symbols } = packets;
                self.code.visit(id, |block| rows.push(block));
                if let [block] = *rows.open_row() {
                    rows.forget_open_row();
                    let block = &mut blocks[block as usize];
                    if *block != Block::Unknown {
                        return false;
                    }
                    *block = Block::Given(number);
                } else if !ids.insert(id) {
                    rows.forget_open_row();
                    return false;
                } else {
                    rows.end_row();
                    symbols.push(number);
                }
                self.symbols.push(symbol);
                if self.symbols.len() < self.code.blocks() {
                    return false;
                }
                if rows.len() == 0 {
                    let places = blocks.iter().map(Block::given).collect::<Option<Vec<u32>>>();
                    let places = places.expect("as many packets as blocks, each of them another block");
                    self.stage = Stage::Complete(self.solve((Sums::new(self.symbols.len()), places)));
                    return true;
                }
                let packets = std::mem::take(packets);
                let plan = Box::new(Plan::new(&packets.rows, std::mem::take(blocks)));
                self.stage = Stage::Lacking { plan, packets };
            }
            Stage::Lacking { plan, packets: Packets { rows, symbols } } => {
                self.code.visit(id, |block| rows.push(block));
                if !plan.add(rows.open_row(), rows.len()) {
                    rows.forget_open_row();
                    return false;
                }
                rows.end_row();
                symbols.push(number);
                self.symbols.push(symbol);
            }
        }
        if self.lacks() > 0 {
            return false;
        }
        if let Stage::Lacking { plan, packets } =
            std::mem::replace(&mut self.stage, Stage::Complete(Vec::new()))
        {
            let solution = plan.finish(&packets.rows, self.symbols.len(), &packets.symbols);
            self.stage = Stage::Complete(self.solve(solution));
        }
        true
    }
    fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Complete(_))
    }
    fn packets(&self) -> usize {
        self.symbols.len()
    }
    fn lacks(&self) -> usize {
        match &self.stage {
            Stage::Gathering { .. } => self.code.blocks() - self.symbols.len(),
            Stage::Lacking { plan, .. } => plan.lacks(),
            Stage::Complete(_) => 0,
        }
    }
    fn into_blocks(self) -> Option<Vec<S>> {
        match self.stage {
            Stage::Complete(blocks) => Some(blocks),
            _ => None,
        }
    }
}

/// A set of ids: a hash table with at least as many empty slots as the maximum number of ids.
#[derive(Clone, Debug)]
struct IdSet {
    table: Vec<Option<u32>>,
    shift: u32,
}

impl IdSet {
    fn new(ids_max: usize) -> Self {
        let places = (2 * ids_max).next_power_of_two().max(2);
        Self { table: vec![None; places], shift: u32::BITS - places.trailing_zeros() }
    }
    /// Adds an id. Returns false if the set already contains it.
    fn insert(&mut self, id: u32) -> bool {
        let mut at = (id.wrapping_mul(0x9e37_79b9) >> self.shift) as usize;
        loop {
            match &mut self.table[at] {
                Some(there) if *there == id => return false,
                Some(_) => at = (at + 1) % self.table.len(),
                empty => {
                    *empty = Some(id);
                    return true;
                }
            }
        }
    }
}
