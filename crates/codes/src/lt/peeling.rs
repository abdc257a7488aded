//! Decoding by peeling: LTTP's Algorithms 1 (`standard`) and 2 (`improved`).
//!
//! Both algorithms recover the same blocks from the same packets, but process packets at different
//! times. `improved` processes each packet on arrival. `standard` starts once there are as many
//! packets as blocks, and again with each packet of degree one.

use super::{Code, Decoder};
use crate::Symbol;
use std::collections::BTreeSet;

/// A packet with two or more unknown blocks: these blocks, and the sum of them.
#[derive(Clone, Debug)]
struct PendingPacket<S> {
    blocks: Vec<u32>,
    symbol: S,
}

/// A peeling decoder.
#[derive(Clone, Debug)]
pub struct Peeling<S> {
    code: Code,
    is_standard: bool,
    len: usize,
    seen: BTreeSet<u32>,
    blocks: Vec<Option<S>>,
    known: usize,
    waiting: Vec<Option<PendingPacket<S>>>,
    /// For each block, the waiting packets that contain it.
    wanted_by: Vec<Vec<u32>>,
    /// Packets not yet processed by `standard`.
    unread: Vec<(u32, S)>,
}

impl<S: Symbol> Peeling<S> {
    /// Creates a decoder with LTTP's Algorithm 2, for packets of `len` bytes.
    pub fn improved(code: Code, len: usize) -> Self {
        Self::new(code, len, false)
    }
    /// Creates a decoder with LTTP's Algorithm 1, for packets of `len` bytes.
    pub fn standard(code: Code, len: usize) -> Self {
        Self::new(code, len, true)
    }
    fn new(code: Code, len: usize, is_standard: bool) -> Self {
        let blocks = code.blocks();
        Self {
            code,
            is_standard,
            len,
            seen: BTreeSet::new(),
            blocks: (0..blocks).map(|_| None).collect(),
            known: 0,
            waiting: Vec::new(),
            wanted_by: vec![Vec::new(); blocks],
            unread: Vec::new(),
        }
    }

    fn take_in(&mut self, id: u32, symbol: S) {
        let mut blocks = Vec::new();
        self.code.neighbours(id, &mut blocks);
        let mut terms = vec![(1, &symbol)];
        blocks.retain(|block| match &self.blocks[*block as usize] {
            Some(known) => {
                terms.push((1, known));
                false
            }
            None => true,
        });
        if blocks.is_empty() {
            return;
        }
        let symbol = if terms.len() > 1 { S::combine(&terms, self.len) } else { symbol };
        if let [block] = blocks[..] {
            return self.learn(block, symbol);
        }
        let number = self.waiting.len() as u32;
        blocks.iter().for_each(|block| self.wanted_by[*block as usize].push(number));
        self.waiting.push(Some(PendingPacket { blocks, symbol }));
    }

    fn learn(&mut self, block: u32, symbol: S) {
        let mut ripple = vec![(block, symbol)];
        while let Some((block, symbol)) = ripple.pop() {
            if self.blocks[block as usize].is_some() {
                continue;
            }
            for number in std::mem::take(&mut self.wanted_by[block as usize]) {
                let slot = &mut self.waiting[number as usize];
                let Some(packet) = slot else { continue };
                packet.blocks.retain(|b| *b != block);
                packet.symbol = S::combine(&[(1, &packet.symbol), (1, &symbol)], self.len);
                if let [last] = packet.blocks[..]
                    && let Some(packet) = slot.take()
                {
                    ripple.push((last, packet.symbol));
                }
            }
            self.blocks[block as usize] = Some(symbol);
            self.known += 1;
        }
    }
}

impl<S: Symbol> Decoder<S> for Peeling<S> {
    fn push(&mut self, id: u32, symbol: S) -> bool {
        assert_eq!(symbol.len(), self.len, "all packets of a decoder are of one length");
        if self.is_complete() || !self.seen.insert(id) {
            return self.is_complete();
        }
        if !self.is_standard {
            self.take_in(id, symbol);
            return self.is_complete();
        }
        let mut blocks = Vec::new();
        self.code.neighbours(id, &mut blocks);
        let received = self.seen.len();
        self.unread.push((id, symbol));
        let begins = received == self.code.blocks() || received > self.code.blocks() && blocks.len() == 1;
        if begins {
            for (id, symbol) in std::mem::take(&mut self.unread) {
                self.take_in(id, symbol);
            }
        }
        self.is_complete()
    }
    fn is_complete(&self) -> bool {
        self.known == self.blocks.len()
    }
    fn packets(&self) -> usize {
        self.seen.len()
    }
    fn lacks(&self) -> usize {
        let missing = self.blocks.len() - self.known;
        // Each waiting packet can yield a block; a peeling decoder needs at least one more packet.
        let waiting = self.waiting.iter().flatten().count() + self.unread.len();
        missing.saturating_sub(waiting).max(usize::from(missing > 0))
    }
    fn into_blocks(self) -> Option<Vec<S>> {
        self.blocks.into_iter().collect()
    }
}
