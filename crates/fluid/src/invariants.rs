//! Invariants of every allocator's decisions, checked during a run. Tests of allocators in this
//! crate and in other crates use them.

use crate::active::{ActiveFlows, ROUNDING};
use crate::allocator::{Allocator, Event};
use crate::network::{FlowId, LinkId};
use anabranch_units::Instant;

/// Tolerance for the moved volume of a completed flow, relative to the flow's volume, because sums
/// of rates and times are `f64`. The volume that a flow moves in a picosecond is tolerated in
/// addition, because completions are rounded to picoseconds.
const TOLERANCE: f64 = 1e-6;

/// Invariant to be checked after each decision. [`ActiveFlows::decide`] itself checks that no link
/// is overloaded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Conservation only: each flow moves exactly its volume.
    Conservation,
    /// Conservation, and each flow has a full link.
    WorkConserving,
    /// Conservation, and each flow has a full link on which no flow is faster.
    MaxMin,
}

/// Wraps an allocator. Checks that each completed flow has moved its whole volume, and checks the
/// invariant after each decision.
///
/// Panics: if a check fails.
#[derive(Clone, Debug)]
pub struct InvariantCheck<A> {
    inner: A,
    law: Invariant,
    /// Moved volume in bits, by flow.
    moved_bits: Vec<f64>,
    last: Option<(Instant, Vec<(FlowId, f64)>)>,
}

impl<A> InvariantCheck<A> {
    /// Wraps `inner`.
    pub const fn new(inner: A, law: Invariant) -> Self {
        Self { inner, law, moved_bits: Vec::new(), last: None }
    }

    fn check(&self, active: &ActiveFlows) {
        let mut fastest = vec![0.0f64; active.network().links()];
        let mut load = vec![0.0; active.network().links()];
        for id in active.ids() {
            for link in active.route(*id) {
                load[link.0 as usize] += active.bps(*id);
                fastest[link.0 as usize] = fastest[link.0 as usize].max(active.bps(*id));
            }
        }
        for id in active.ids() {
            let is_bottleneck = |link: LinkId| {
                let at = link.0 as usize;
                let is_first =
                    self.law != Invariant::MaxMin || active.bps(*id) >= fastest[at] * (1.0 - ROUNDING);
                load[at] >= active.rate_bps(link) * (1.0 - 2.0 * ROUNDING) && is_first
            };
            assert!(active.route(*id).any(is_bottleneck), "flow {} has no bottleneck", id.0);
        }
    }
}

impl<A: Allocator> Allocator for InvariantCheck<A> {
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        let mut rates = Vec::new();
        if let Some((since, last)) = self.last.take() {
            rates = last;
            let time_s = active.now().saturating_since(since).as_secs_f64();
            rates.iter().for_each(|(id, bps)| self.moved_bits[id.0 as usize] += bps * time_s);
        }
        for id in &event.completed {
            let (moved, volume) = (self.moved_bits[id.0 as usize], active.volume_bits(*id));
            // Completions are rounded to picoseconds.
            let more = rates.iter().find(|(other, _)| other == id).map_or(0.0, |(_, bps)| bps * 1e-12);
            assert!((moved - volume).abs() <= TOLERANCE * volume.max(1.0) + more, "{moved} of {volume} bits");
        }
        self.moved_bits.resize(active.ids_end(), 0.0);
        event.arrived.iter().for_each(|id| self.moved_bits[id.0 as usize] = 0.0);
        self.inner.allocate(event, active);
        if self.law != Invariant::Conservation {
            self.check(active);
        }
        self.last = Some((active.now(), active.ids().iter().map(|id| (*id, active.bps(*id))).collect()));
    }
    fn next_decision(&self, active: &ActiveFlows) -> Option<Instant> {
        self.inner.next_decision(active)
    }
}
