//! Flow Chasing, further: the coflow that could be through first goes first, and all of its flows chase its last.
//!
//! The paper keeps every coflow's pace when another comes, so a small one waits for large ones, and the rest goes to
//! flows one after the other. Three things differ here.
//!
//! 1. *Order*: a coflow may take from those after it. The next in order is the one that would be through first behind those
//!    before it, if each link served coflows in that order: `min over k of max over l of (behind[l] + bits[k][l]) / rate[l]`.
//!    This is SEBF (Varys), but a coflow counts at the links where it waits, not where it has most to move.
//! 2. *Chase*: a coflow's flows move the same part of their volumes in the same time, as long as links let them; where
//!    a link is full, the others go on together. Its last flow is as early as it can be, then the one before. MADD followed by
//!    backfilling instead serves a coflow's other flows one after the other, in no proportion.
//! 3. *Nobody starves*: a coflow that has been there for longer than [`SLOWDOWN_DUE`] times what it needs alone is due. Those
//!    that are due are first, in the order in which they became so. From then on a coflow waits for no more than those that
//!    were due before it have to move, whatever comes. (Coflows become due when a coflow comes or goes; those before
//!    it in the order go sooner than it would, so that is soon.)
//!
//! The scheduler knows the volumes of flows that have arrived, and nothing of flows to come.

use anabranch_fluid::{Active, Allocator, CoflowId, Event, FlowId, LinkId, Plan, Ranks};
use anabranch_units::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A coflow that takes so many times what it would alone goes before all that came after it.
pub const SLOWDOWN_DUE: f64 = 20.0;

/// Which of the three is left out, to see what each one brings.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Without {
    /// Coflows are ordered by what each needs alone (SEBF).
    Order,
    /// A coflow's flows get what its last needs (MADD); what that leaves goes to one after the other.
    Chase,
    /// No coflow is ever due.
    Due,
}

/// Earliest completion first, each coflow's flows together, and nobody starves.
#[derive(Clone, Debug, Default)]
pub struct ChasePlus {
    without: BTreeSet<Without>,
    plan: Plan,
    ranks: Ranks,
    /// By link, in seconds: what the coflows that have their place have to move over it; and the one at hand.
    behind_s: Vec<f64>,
    load_s: Vec<f64>,
    /// When a coflow is due: so many times what it needs alone after it came. What comes later puts that off by so many
    /// times what that needs alone.
    due: BTreeMap<CoflowId, Instant>,
}

/// A coflow that is to have its place, and what it has to move over each of its links, in seconds.
struct Waiting {
    coflow: CoflowId,
    loads_s: Vec<(LinkId, f64)>,
}

impl Waiting {
    /// When it would be through behind these, and the place of the link that it waits for longest.
    fn through_s(&self, behind_s: &[f64]) -> (f64, usize) {
        let through = |(at, _): (usize, &(LinkId, f64))| (self.on_link_s(behind_s, at), at);
        self.loads_s.iter().enumerate().map(through).fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a })
    }
    fn on_link_s(&self, behind_s: &[f64], at: usize) -> f64 {
        self.loads_s.get(at).map_or(0.0, |(link, load_s)| behind_s[link.0 as usize] + load_s)
    }
}

impl ChasePlus {
    /// All but these.
    pub fn without(parts: impl IntoIterator<Item = Without>) -> Self {
        Self { without: parts.into_iter().collect(), ..Self::default() }
    }

    fn order(&mut self, active: &Active) -> Vec<CoflowId> {
        self.behind_s.clear();
        self.behind_s.resize(active.network().links(), 0.0);
        let (mut waiting, mut longest): (Vec<Waiting>, Vec<usize>) = (Vec::new(), Vec::new());
        for coflow in active.coflows() {
            let flows = active.flows_of(coflow).iter().map(|id| (*id, active.remaining_bits(*id)));
            let loads_s = loads_s(&mut self.load_s, active, flows);
            waiting.push(Waiting { coflow, loads_s });
        }
        let mut order = Vec::with_capacity(waiting.len());
        let mut due: Vec<(Instant, usize)> = Vec::new();
        let mut heap = BinaryHeap::new();
        for (at, one) in waiting.iter().enumerate() {
            let (through_s, link) = one.through_s(&self.behind_s);
            longest.push(link);
            let is_due = |at: &&Instant| **at <= active.now() && !self.without.contains(&Without::Due);
            if let Some(since) = self.due.get(&one.coflow).filter(is_due) {
                due.push((*since, at));
            } else {
                // Not negative: ordered as their bits are.
                heap.push(Reverse((through_s.to_bits(), at)));
            }
        }
        due.sort_unstable();
        let place = |at: usize, behind_s: &mut [f64], order: &mut Vec<CoflowId>| {
            waiting[at].loads_s.iter().for_each(|(link, load_s)| behind_s[link.0 as usize] += load_s);
            order.push(waiting[at].coflow);
        };
        due.iter().for_each(|(_, at)| place(*at, &mut self.behind_s, &mut order));
        // Those with a place only put others off: what was put there earlier may be too early. The link that one waited for
        // longest says so mostly, without a look at the others.
        while let Some(Reverse((_, at))) = heap.pop() {
            let next = heap.peek().filter(|_| !self.without.contains(&Without::Order)).map(|next| next.0);
            let is_after = |through_s: f64| next.is_some_and(|next| (through_s.to_bits(), at) > next);
            let mut through_s = waiting[at].on_link_s(&self.behind_s, longest[at]);
            if !is_after(through_s) {
                (through_s, longest[at]) = waiting[at].through_s(&self.behind_s);
            }
            if is_after(through_s) {
                heap.push(Reverse((through_s.to_bits(), at)));
            } else {
                place(at, &mut self.behind_s, &mut order);
            }
        }
        order
    }

    /// Notes when coflows that have come, or have more to move, are due.
    fn note_due(&mut self, event: &Event, active: &Active) {
        self.due.retain(|coflow, _| !active.flows_of(*coflow).is_empty());
        let mut came: BTreeMap<CoflowId, Vec<(FlowId, f64)>> = BTreeMap::new();
        let arrived = event.arrived.iter().map(|id| (*id, active.volume_bits(*id)));
        for (id, bits) in arrived.chain(event.grown.iter().copied()) {
            came.entry(active.coflow(id)).or_default().push((id, bits));
        }
        for (coflow, flows) in came {
            let loads_s = loads_s(&mut self.load_s, active, flows.into_iter());
            let alone_s = loads_s.iter().map(|(_, load_s)| *load_s).fold(0.0, f64::max);
            let due = self.due.entry(coflow).or_insert(active.now());
            // A conversion of floats saturates.
            *due = (*due).max(active.now()) + Duration::from_ps((SLOWDOWN_DUE * alone_s * 1e12) as u64);
        }
    }
}

/// What these flows have to move over each of their links, in seconds; `by_link` is all zeros before and after.
fn loads_s(
    by_link: &mut Vec<f64>,
    active: &Active,
    flows: impl Iterator<Item = (FlowId, f64)>,
) -> Vec<(LinkId, f64)> {
    by_link.resize(active.network().links(), 0.0);
    let mut links = Vec::new();
    for (id, bits) in flows {
        for link in active.route(id) {
            let load_s = &mut by_link[link.0 as usize];
            if *load_s == 0.0 {
                links.push(link);
            }
            *load_s += bits / active.rate_bps(link);
        }
    }
    // A link that is there twice had nothing on it at first.
    links.into_iter().map(|link| (link, std::mem::take(&mut by_link[link.0 as usize]))).collect()
}

impl Allocator for ChasePlus {
    /// Cost: when a coflow arrives, grows or completes, a few walks along the routes of all active flows; else the flows on
    /// the links of those that have completed.
    fn allocate(&mut self, event: &Event, active: &mut Active) {
        if !self.ranks.is_new_order(event, active) {
            return self.ranks.fill_changed(active);
        }
        self.note_due(event, active);
        let order = self.order(active);
        self.plan.begin(active);
        for coflow in &order {
            let flows = active.flows_of(*coflow);
            if self.without.contains(&Without::Chase) {
                let time_s = self.plan.left_s(active, flows);
                if time_s.is_finite() {
                    flows
                        .iter()
                        .for_each(|id| self.plan.give(active, *id, active.remaining_bits(*id) / time_s));
                }
                self.plan.fill(active, flows);
            } else {
                self.plan.fill_evenly(active, flows);
            }
        }
        self.plan.set(active);
        self.ranks.set(order);
    }
}

#[cfg(test)]
mod tests;
