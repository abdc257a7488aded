//! PRR: a flow keeps its path until its retransmission timer fires.
//!
//! Source: Wetherall and others, *Improving Network Availability with Protective ReRoute* (2023),
//! section 2.3; in Linux since 4.2 (`sk_rethink_txhash` on a timeout). Leaves out: the
//! acknowledging end, which changes its path on duplicate data.

use super::{PacketFate, Spreader};
use anabranch_units::{Instant, RandomStream};

/// Current path of a flow.
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
    /// Draws another path.
    pub(super) fn redraw(&mut self) {
        self.value = self.random.next_u64() as u16;
    }
}

impl Spreader for Prr {
    fn choose(&mut self, _: Instant, _: usize) -> u16 {
        self.value
    }
    fn handle_fate(&mut self, _: Instant, _: u16, _: PacketFate) {}
    fn handle_timeout(&mut self, _: Instant) {
        self.redraw();
    }
}
