//! Flow Chasing extended: the coflow that can finish first has precedence, and all flows of a
//! coflow finish with its last flow if links allow.
//!
//! In the paper every coflow keeps its pace when another coflow arrives, so a small coflow waits
//! for large coflows, and leftover rate is given to flows one by one. Three rules differ here.
//!
//! 1. *Order*: a coflow may take rate from coflows after it. The next in order is the coflow that
//!    would finish first behind those already ordered, if each link served coflows in that order:
//!    `min over k of max over l of (behind[l] + bits[k][l]) / rate[l]`. This is SEBF (Varys),
//!    except that a coflow is judged by the links where it waits rather than by its largest volume.
//! 2. *Chase*: a coflow's flows deliver the same part of their volumes in the same time, as long as
//!    links allow; where a link is full, the remaining flows continue together. The last flow
//!    finishes as early as possible, then the one before. MADD with backfilling instead serves the
//!    remaining flows one by one, without proportion.
//! 3. *No starvation*: a coflow that is present for longer than [`SLOWDOWN_DUE`] times its isolated
//!    completion time is due. Due coflows go first, in the order in which they became due. From
//!    then on a coflow waits only for the volumes of the coflows due before it, whatever arrives.
//!    (A coflow can become due only when a coflow arrives or completes. Coflows before it in the
//!    order complete sooner than it would, so that is soon.)
//!
//! The scheduler knows the volumes of arrived flows, and nothing about future flows.

use anabranch_fluid::{ActiveFlows, Allocator, CoflowId, CoflowOrder, Event, FlowId, LinkId, Plan};
use anabranch_units::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Slowdown, relative to the isolated completion time, from which a coflow precedes all later
/// coflows.
pub const SLOWDOWN_DUE: f64 = 20.0;

/// A rule to leave out, to measure its contribution.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ablation {
    /// Coflows are ordered by isolated completion time (SEBF).
    Order,
    /// A coflow's flows get the rates that its last flow needs (MADD); leftover rate goes to flows
    /// one by one.
    Chase,
    /// No coflow is ever due.
    Due,
}

/// Scheduler: earliest completion first, proportional rates within a coflow, no starvation.
#[derive(Clone, Debug, Default)]
pub struct ChasePlus {
    without: BTreeSet<Ablation>,
    plan: Plan,
    ranks: CoflowOrder,
    /// For each link, in seconds: load of the coflows ordered so far, and load of the current
    /// coflow.
    behind_s: Vec<f64>,
    load_s: Vec<f64>,
    /// Deadline of each coflow: its arrival plus [`SLOWDOWN_DUE`] times its isolated completion
    /// time. Growth of the coflow postpones it by the same multiple of the growth's isolated
    /// completion time.
    due: BTreeMap<CoflowId, Instant>,
}

/// A coflow that has no place in the order yet, with its load on each of its links in seconds.
struct WaitingCoflow {
    coflow: CoflowId,
    loads_s: Vec<(LinkId, f64)>,
}

impl WaitingCoflow {
    /// Returns the coflow's completion time behind these loads, and the index of the link that
    /// limits it.
    fn through_s(&self, behind_s: &[f64]) -> (f64, usize) {
        let through = |(at, _): (usize, &(LinkId, f64))| (self.on_link_s(behind_s, at), at);
        self.loads_s.iter().enumerate().map(through).fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a })
    }
    fn on_link_s(&self, behind_s: &[f64], at: usize) -> f64 {
        self.loads_s.get(at).map_or(0.0, |(link, load_s)| behind_s[link.0 as usize] + load_s)
    }
}

impl ChasePlus {
    /// Creates the allocator without these rules.
    pub fn without(parts: impl IntoIterator<Item = Ablation>) -> Self {
        Self { without: parts.into_iter().collect(), ..Self::default() }
    }

    fn order(&mut self, active: &ActiveFlows) -> Vec<CoflowId> {
        self.behind_s.clear();
        self.behind_s.resize(active.network().links(), 0.0);
        let (mut waiting, mut longest): (Vec<WaitingCoflow>, Vec<usize>) = (Vec::new(), Vec::new());
        for coflow in active.coflows() {
            let flows = active.flows_of(coflow).iter().map(|id| (*id, active.remaining_bits(*id)));
            let loads_s = loads_s(&mut self.load_s, active, flows);
            waiting.push(WaitingCoflow { coflow, loads_s });
        }
        let mut order = Vec::with_capacity(waiting.len());
        let mut due: Vec<(Instant, usize)> = Vec::new();
        let mut heap = BinaryHeap::new();
        for (at, one) in waiting.iter().enumerate() {
            let (through_s, link) = one.through_s(&self.behind_s);
            longest.push(link);
            let is_due = |at: &&Instant| **at <= active.now() && !self.without.contains(&Ablation::Due);
            if let Some(since) = self.due.get(&one.coflow).filter(is_due) {
                due.push((*since, at));
            } else {
                // Nonnegative floats compare like their bit patterns.
                heap.push(Reverse((through_s.to_bits(), at)));
            }
        }
        due.sort_unstable();
        let place = |at: usize, behind_s: &mut [f64], order: &mut Vec<CoflowId>| {
            waiting[at].loads_s.iter().for_each(|(link, load_s)| behind_s[link.0 as usize] += load_s);
            order.push(waiting[at].coflow);
        };
        due.iter().for_each(|(_, at)| place(*at, &mut self.behind_s, &mut order));
        // Each ordered coflow delays the remaining coflows, so the times in the heap may be too
        // early. Checking only the link that limited a coflow before usually shows this.
        while let Some(Reverse((_, at))) = heap.pop() {
            let next = heap.peek().filter(|_| !self.without.contains(&Ablation::Order)).map(|next| next.0);
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

    /// Sets the deadlines of coflows that have arrived or grown, and drops the deadlines of
    /// completed coflows.
    fn note_due(&mut self, event: &Event, active: &ActiveFlows) {
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
            // The conversion from float saturates, so a very long time cannot overflow.
            *due = (*due).max(active.now()) + Duration::from_ps((SLOWDOWN_DUE * alone_s * 1e12) as u64);
        }
    }
}

/// Returns the load of these flows on each of their links, in seconds. `by_link` is all zeros
/// before and after.
fn loads_s(
    by_link: &mut Vec<f64>,
    active: &ActiveFlows,
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
    // The first appearance of a link resets its load, so a second appearance yields zero.
    links.into_iter().map(|link| (link, std::mem::take(&mut by_link[link.0 as usize]))).collect()
}

impl Allocator for ChasePlus {
    /// Cost: when a coflow arrives, grows or completes, a few passes over the routes of all active
    /// flows; otherwise the flows on the links of completed flows.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        if !self.ranks.is_new_order(event, active) {
            return self.ranks.fill_changed(active);
        }
        self.note_due(event, active);
        let order = self.order(active);
        self.plan.begin(active);
        for coflow in &order {
            let flows = active.flows_of(*coflow);
            if self.without.contains(&Ablation::Chase) {
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
