//! PRR: a flow keeps its way until its retransmission timer goes off.
//!
//! Source: Wetherall and others, *Improving Network Availability with Protective ReRoute* (2023), section 2.3; Linux does so since 4.2
//! (`sk_rethink_txhash` on a timeout). Leaves out: the acknowledging end, which changes its own way when data comes twice.

use super::{Fate, Spreader};
use anabranch_units::{Instant, RandomStream};

/// The way that a flow has.
#[derive(Debug)]
pub(super) struct Prr {
    random: RandomStream,
    value: u16,
}

impl Prr {
    pub(super) fn new(mut random: RandomStream) -> Self {
        let value = random.next_u64() as u16;
        Self { random, value }
    }
    pub(super) const fn value(&self) -> u16 {
        self.value
    }
    /// Takes another way.
    pub(super) fn redraw(&mut self) {
        self.value = self.random.next_u64() as u16;
    }
}

impl Spreader for Prr {
    fn choose(&mut self, _: Instant, _: usize) -> u16 {
        self.value
    }
    fn handle_fate(&mut self, _: Instant, _: u16, _: Fate) {}
    fn handle_timeout(&mut self, _: Instant) {
        self.redraw();
    }
}
