//! The active flows: the remaining volume and the rate of each flow, and the next completion.
//!
//! The cost of a decision is proportional to its changes. A flow's volume is updated only when its
//! rate changes, completions wait in a heap, and each link and each coflow has a list of its flows.
//! [`crate::run`] advances the active flows in virtual time; a program that sets the rates of real
//! flows advances them by a real clock.

use crate::allocator::{Allocator, Event};
use crate::network::{CoflowId, FlowId, LinkId, Network, NetworkError};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

/// A flow counts as complete if its remaining transfer time is at most this duration. Times are
/// whole picoseconds, and volumes are rounded in between.
pub(crate) const COMPLETE_WITHIN: Duration = Duration::from_ps(10);
/// Relative rounding error of a link's rate. The load may exceed the rate by this error, and a
/// smaller unused rate counts as 0.
pub const ROUNDING: f64 = 1e-9;
/// A decision counts as large if it changes more than one in `MANY` flows.
const MANY: usize = 16;
/// Number of changes after which link loads are summed again, so that rounding errors do not
/// accumulate.
const CHANGES_MAX: usize = 1 << 16;

/// The active flows of a network.
#[derive(Clone, Debug)]
pub struct ActiveFlows {
    network: Network,
    now: Instant,
    slots: Vec<Slot>,
    /// Ids for new flows.
    free: Vec<FlowId>,
    /// Number of flows inserted so far.
    inserted: u64,
    ids: Vec<FlowId>,
    /// Completion times at the current rates, in the order of `ids`. A flow that never completes
    /// has [`Instant::MAX`].
    completes_at: Vec<Instant>,
    links: Vec<Link>,
    coflows: BTreeMap<CoflowId, Group>,
    event: Event,
    changed: DecisionChanges,
    completions: Completions,
}

#[derive(Clone, Debug)]
struct Slot {
    coflow: CoflowId,
    arrived: Instant,
    volume_bits: f64,
    /// Remaining bits at time `since`. The rate `bps` applies from `since` on.
    remaining_bits: f64,
    bps: f64,
    since: Instant,
    hops: SmallVec<[Hop; 2]>,
    /// Index in `ids`.
    place: u32,
    /// Number of flows inserted before this flow.
    serial: u64,
    /// Number of changes of the rate. It identifies stale completions.
    changes: u32,
}

/// A link of a flow's route, and the flow's index in the link's list.
#[derive(Copy, Clone, Debug)]
struct Hop {
    link: LinkId,
    place: u32,
}

#[derive(Clone, Debug)]
struct Link {
    rate_bps: f64,
    load_bps: f64,
    flows: Vec<FlowId>,
    is_touched: bool,
}

impl Link {
    const fn new(rate: BitRate) -> Self {
        Self { rate_bps: rate.as_bps() as f64, load_bps: 0.0, flows: Vec::new(), is_touched: false }
    }
}

#[derive(Clone, Debug)]
struct Group {
    arrived: Instant,
    /// Total volume of all flows of the coflow so far.
    volume_bits: f64,
    /// Active flows in the order of insertion.
    flows: Vec<FlowId>,
}

/// Changes of the current decision.
#[derive(Clone, Debug, Default)]
struct DecisionChanges {
    links: Vec<LinkId>,
    flows: usize,
    since_summed: usize,
    error: Option<DecisionError>,
}

/// Completions at the current rates.
#[derive(Clone, Debug)]
enum Completions {
    /// Time, flow, and the flow's number of changes when the entry was added. An entry with an
    /// older number is stale.
    Heap(BinaryHeap<Reverse<(Instant, FlowId, u32)>>),
    /// After a large decision: updating the heap would cost more than searching all flows for the
    /// first completion.
    Scan,
}

/// Reason why a decision is invalid.
#[derive(Copy, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DecisionError {
    /// The allocator gave a flow an invalid rate.
    Rate {
        /// Flow.
        flow: FlowId,
        /// Rate in bits per second.
        bps: f64,
    },
    /// The flows of a link exceed the link's rate.
    Overload {
        /// Link.
        link: LinkId,
        /// Sum of the rates of the link's flows, in bits per second.
        bps: f64,
    },
}

impl fmt::Display for DecisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { flow, bps } => write!(f, "flow {} is given {bps} b/s", flow.0),
            Self::Overload { link, bps } => write!(f, "link {}: its flows are given {bps} b/s", link.0),
        }
    }
}
impl std::error::Error for DecisionError {}

impl Slot {
    fn remaining_bits(&self, now: Instant) -> f64 {
        (self.remaining_bits - self.bps * now.saturating_since(self.since).as_secs_f64()).max(0.0)
    }
    /// Returns the time at which the flow completes.
    fn completes_at(&self) -> Instant {
        let ps = (self.remaining_bits / self.bps * 1e12).ceil();
        if ps < u64::MAX as f64 { self.since + Duration::from_ps(ps as u64) } else { Instant::MAX }
    }
}

impl ActiveFlows {
    /// Creates an instance without flows, at time 0.
    pub fn new(network: Network) -> Self {
        let link = |id| Link::new(network.rate(LinkId(id)));
        Self {
            links: (0..network.links() as u32).map(link).collect(),
            network,
            now: Instant::ZERO,
            slots: Vec::new(),
            free: Vec::new(),
            inserted: 0,
            ids: Vec::new(),
            completes_at: Vec::new(),
            coflows: BTreeMap::new(),
            event: Event::default(),
            changed: DecisionChanges::default(),
            completions: Completions::Scan,
        }
    }

    /// Adds a link to the network.
    ///
    /// Errors: see [`NetworkError`].
    pub fn add_link(&mut self, rate: BitRate) -> Result<LinkId, NetworkError> {
        let id = self.network.push(rate)?;
        self.links.push(Link::new(rate));
        Ok(id)
    }
    /// Sets a link's rate for the next decision. If the rate changes, each flow of the link counts
    /// as grown by 0 bits, so that allocators recompute its rate.
    ///
    /// Errors: [`NetworkError::NoRate`].
    /// Panics: if the link does not exist.
    pub fn set_link_rate(&mut self, link: LinkId, rate: BitRate) -> Result<(), NetworkError> {
        self.network.set_rate(link, rate)?;
        let link = &mut self.links[link.0 as usize];
        let rate_bps = rate.as_bps() as f64;
        if std::mem::replace(&mut link.rate_bps, rate_bps) != rate_bps {
            self.event.grown.extend(link.flows.iter().map(|id| (*id, 0.0)));
        }
        Ok(())
    }

    /// Advances the time to a later instant. Flows move at the current rates.
    ///
    /// Panics: if the instant is in the past.
    pub fn advance(&mut self, now: Instant) {
        assert!(now >= self.now, "time does not go back");
        self.now = now;
    }

    /// Adds a flow with rate 0, and returns its id.
    ///
    /// Panics: if the route is empty, contains a link twice or contains a link that does not exist.
    pub fn insert(&mut self, coflow: CoflowId, route: &[LinkId], volume: ByteCount) -> FlowId {
        let is_twice = route.iter().enumerate().any(|(at, link)| route[..at].contains(link));
        assert!(!route.is_empty() && !is_twice, "a route crosses at least one link, and each once");
        let volume_bits = 8.0 * volume.as_u64() as f64;
        let id = self.free.pop().unwrap_or(FlowId(self.slots.len() as u32));
        let now = self.now;
        let group = self.coflows.entry(coflow).or_insert_with(|| Group {
            arrived: now,
            volume_bits: 0.0,
            flows: Vec::new(),
        });
        group.volume_bits += volume_bits;
        let slot = Slot {
            coflow,
            arrived: now,
            volume_bits,
            remaining_bits: volume_bits,
            bps: 0.0,
            since: now,
            hops: route
                .iter()
                .map(|link| Hop { link: *link, place: self.links[link.0 as usize].flows.len() as u32 })
                .collect(),
            place: self.ids.len() as u32,
            serial: self.inserted,
            changes: self.slots.get(id.0 as usize).map_or(0, |slot| slot.changes.wrapping_add(1)),
        };
        self.inserted += 1;
        group.flows.push(id);
        self.ids.push(id);
        self.completes_at.push(slot.completes_at());
        slot.hops.iter().for_each(|hop| self.links[hop.link.0 as usize].flows.push(id));
        match self.slots.get_mut(id.0 as usize) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        self.event.arrived.push(id);
        id
    }

    /// Increases the volume of an active flow.
    pub fn grow(&mut self, id: FlowId, volume: ByteCount) {
        let bits = 8.0 * volume.as_u64() as f64;
        self.settle(id);
        let slot = &mut self.slots[id.0 as usize];
        slot.volume_bits += bits;
        slot.remaining_bits += bits;
        self.coflows.get_mut(&slot.coflow).expect("an active flow's coflow is there").volume_bits += bits;
        self.schedule(id);
        self.event.grown.push((id, bits));
    }

    /// Removes a flow, complete or incomplete. The flow's id stays valid until the next decision.
    pub fn remove(&mut self, id: FlowId) {
        self.write_bps(id, 0.0);
        let slot = &mut self.slots[id.0 as usize];
        slot.changes = slot.changes.wrapping_add(1);
        let (place, serial, coflow) = (slot.place, slot.serial, slot.coflow);
        for at in 0..slot.hops.len() {
            let Hop { link, place } = self.slots[id.0 as usize].hops[at];
            let flows = &mut self.links[link.0 as usize].flows;
            flows.swap_remove(place as usize);
            if let Some(moved) = flows.get(place as usize) {
                let hops = &mut self.slots[moved.0 as usize].hops;
                hops.iter_mut().find(|hop| hop.link == link).expect("it crosses the link").place = place;
            }
        }
        self.ids.swap_remove(place as usize);
        self.completes_at.swap_remove(place as usize);
        if let Some(moved) = self.ids.get(place as usize) {
            self.slots[moved.0 as usize].place = place;
        }
        let group = self.coflows.get_mut(&coflow).expect("an active flow's coflow is there");
        let slots = &self.slots;
        group.flows.remove(group.flows.partition_point(|id| slots[id.0 as usize].serial < serial));
        if group.flows.is_empty() {
            self.coflows.remove(&coflow);
        }
        self.event.completed.push(id);
    }

    /// Removes an aborted flow, and subtracts its unsent volume from the volume of its coflow. See
    /// [`ActiveFlows::remove`].
    pub fn withdraw(&mut self, id: FlowId) {
        let left_bits = self.remaining_bits(id);
        let coflow = self.slots[id.0 as usize].coflow;
        self.coflows.get_mut(&coflow).expect("an active flow's coflow is there").volume_bits -= left_bits;
        self.remove(id);
    }

    /// Sets the remaining volume of a flow, as reported by the flow's sender.
    pub fn observe(&mut self, id: FlowId, remaining: ByteCount) {
        let slot = &mut self.slots[id.0 as usize];
        (slot.remaining_bits, slot.since) = (8.0 * remaining.as_u64() as f64, self.now);
        self.schedule(id);
    }

    /// Calls the allocator with all events since its last decision. The allocator sets rates.
    ///
    /// Errors: see [`DecisionError`]. The allocator's rates stay in force.
    pub fn decide(&mut self, allocator: &mut impl Allocator) -> Result<(), DecisionError> {
        let mut event = std::mem::take(&mut self.event);
        allocator.allocate(&event, self);
        self.free.append(&mut event.completed);
        event.arrived.clear();
        event.grown.clear();
        self.event = event;
        self.settle_changes()
    }

    /// Returns a copy for a decision outside of this instance. The copy takes over the events since
    /// the last decision; they are cleared in this instance. [`ActiveFlows::adopt`] adopts the
    /// rates of the copy.
    pub fn fork(&mut self) -> Self {
        let copy = self.clone();
        let mut event = std::mem::take(&mut self.event);
        // New flows may reuse the ids of completed flows. The id of a flow that is active in the
        // copy is not reused before the next decision.
        self.free.append(&mut event.completed);
        copy
    }

    /// Adopts the rates decided on a copy for flows that are still active. Flows inserted after the
    /// copy was made have no rate, and events since then stay pending for the next decision.
    pub fn adopt(&mut self, decided: &Self) {
        for id in &decided.ids {
            if self.is_active(*id) {
                self.set_bps(*id, decided.bps(*id));
            }
        }
        // A link whose rate has changed since the copy was made may be overloaded. The next
        // decision corrects the overload.
        let _ = self.settle_changes();
    }

    /// Returns true if the flow is active.
    pub fn is_active(&self, id: FlowId) -> bool {
        let place = self.slots.get(id.0 as usize).map(|slot| slot.place as usize);
        place.is_some_and(|place| self.ids.get(place) == Some(&id))
    }

    /// Updates the state after changes of rates.
    ///
    /// Errors: an invalid rate, or an overloaded link.
    fn settle_changes(&mut self) -> Result<(), DecisionError> {
        if self.changed.since_summed > CHANGES_MAX.max(4 * self.ids.len()) {
            self.sum_loads();
        }
        let are_many = std::mem::take(&mut self.changed.flows) * MANY > self.ids.len();
        if !are_many && matches!(self.completions, Completions::Scan) {
            self.heap_completions();
        }
        let Self { links, changed, .. } = self;
        let mut overload = None;
        for id in changed.links.drain(..) {
            let link = &mut links[id.0 as usize];
            link.is_touched = false;
            if link.load_bps > link.rate_bps * (1.0 + ROUNDING) {
                overload.get_or_insert(DecisionError::Overload { link: id, bps: link.load_bps });
            }
        }
        changed.error.take().or(overload).map_or(Ok(()), Err)
    }

    /// Returns the time of the first completion at the current rates.
    pub fn next_completion(&mut self) -> Option<Instant> {
        let Self { completions, slots, completes_at, .. } = self;
        let first = match completions {
            Completions::Scan => completes_at.iter().copied().min(),
            Completions::Heap(heap) => loop {
                match heap.peek() {
                    Some(Reverse((_, id, changes))) if slots[id.0 as usize].changes != *changes => {
                        heap.pop();
                    }
                    first => break first.map(|Reverse((at, ..))| *at),
                }
            },
        };
        first.filter(|at| *at < Instant::MAX)
    }

    /// Removes the flows that are complete now, and returns their ids.
    pub fn complete(&mut self) -> Vec<FlowId> {
        let until = self.now + COMPLETE_WITHIN;
        let Self { completions, slots, ids, completes_at, .. } = self;
        let mut through = Vec::new();
        match completions {
            Completions::Scan => {
                let all = ids.iter().zip(&*completes_at);
                through.extend(all.filter(|(_, at)| **at <= until).map(|(id, _)| *id));
            }
            Completions::Heap(heap) => {
                while let Some(Reverse((_, id, changes))) =
                    heap.peek().filter(|Reverse((at, ..))| *at <= until)
                {
                    through.extend((slots[id.0 as usize].changes == *changes).then_some(*id));
                    heap.pop();
                }
            }
        }
        through.sort_unstable();
        for id in &through {
            self.remove(*id);
            self.slots[id.0 as usize].remaining_bits = 0.0;
        }
        through
    }

    fn heap_completions(&mut self) {
        let Self { slots, ids, completes_at, .. } = self;
        let entry = |(id, at): (&FlowId, &Instant)| Reverse((*at, *id, slots[id.0 as usize].changes));
        let all = ids.iter().zip(&*completes_at).filter(|(_, at)| **at < Instant::MAX);
        self.completions = Completions::Heap(all.map(entry).collect());
    }

    /// Sets a flow's rate in bits per second. The rate stays until the next call.
    pub fn set_bps(&mut self, id: FlowId, bps: f64) {
        if !(bps >= 0.0 && bps.is_finite()) {
            self.changed.error.get_or_insert(DecisionError::Rate { flow: id, bps });
        } else if bps != self.slots[id.0 as usize].bps {
            self.write_bps(id, bps);
            self.schedule(id);
        }
    }

    fn write_bps(&mut self, id: FlowId, bps: f64) {
        self.settle(id);
        let slot = &mut self.slots[id.0 as usize];
        let more = bps - std::mem::replace(&mut slot.bps, bps);
        for hop in &slot.hops {
            let link = &mut self.links[hop.link.0 as usize];
            link.load_bps += more;
            if !std::mem::replace(&mut link.is_touched, true) {
                self.changed.links.push(hop.link);
            }
        }
        self.changed.flows += 1;
        self.changed.since_summed += 1;
    }

    fn settle(&mut self, id: FlowId) {
        let slot = &mut self.slots[id.0 as usize];
        (slot.remaining_bits, slot.since) = (slot.remaining_bits(self.now), self.now);
    }

    /// Updates the completion time of a flow after a change of its rate or volume.
    fn schedule(&mut self, id: FlowId) {
        let slot = &mut self.slots[id.0 as usize];
        slot.changes = slot.changes.wrapping_add(1);
        let at = slot.completes_at();
        self.completes_at[slot.place as usize] = at;
        let flows = self.ids.len();
        match &mut self.completions {
            Completions::Heap(_) if self.changed.flows * MANY > flows => {
                self.completions = Completions::Scan;
            }
            Completions::Heap(heap) => {
                if at < Instant::MAX {
                    heap.push(Reverse((at, id, slot.changes)));
                }
                if heap.len() > 4 * flows + 64 {
                    self.heap_completions();
                }
            }
            Completions::Scan => {}
        }
    }

    fn sum_loads(&mut self) {
        let Self { links, slots, .. } = self;
        for link in links {
            link.load_bps = link.flows.iter().map(|id| slots[id.0 as usize].bps).sum();
        }
        self.changed.since_summed = 0;
    }

    /// Returns the current time.
    pub const fn now(&self) -> Instant {
        self.now
    }
    /// Returns the network.
    pub const fn network(&self) -> &Network {
        &self.network
    }
    /// Returns the ids of all active flows, in an arbitrary order that is the same in every run.
    pub fn ids(&self) -> &[FlowId] {
        &self.ids
    }
    /// Returns an upper bound of the active flows' indices: the required size of a table indexed by
    /// flow.
    pub const fn ids_end(&self) -> usize {
        self.slots.len()
    }
    /// Returns the coflows with active flows, ordered by id.
    pub fn coflows(&self) -> impl Iterator<Item = CoflowId> {
        self.coflows.keys().copied()
    }
    /// Returns the active flows of a coflow, in the order of insertion.
    pub fn flows_of(&self, coflow: CoflowId) -> &[FlowId] {
        self.coflows.get(&coflow).map_or(&[], |group| &group.flows)
    }
    /// Returns the number of flows inserted before this flow. Ids are reused and give no order.
    pub fn serial(&self, id: FlowId) -> u64 {
        self.slots[id.0 as usize].serial
    }
    /// Returns the arrival of a coflow with active flows, and the total volume of the coflow's
    /// flows since then, in bits.
    pub fn coflow_so_far(&self, coflow: CoflowId) -> Option<(Instant, f64)> {
        self.coflows.get(&coflow).map(|group| (group.arrived, group.volume_bits))
    }
    /// Returns the active flows on a link, in an arbitrary order.
    pub fn flows_on(&self, link: LinkId) -> &[FlowId] {
        &self.links[link.0 as usize].flows
    }
    /// Returns the links on which the rate of a flow has changed since the last decision, including
    /// the links of removed flows.
    pub fn changed_links(&self) -> &[LinkId] {
        &self.changed.links
    }
    /// Returns the links of a flow's route.
    pub fn route(&self, id: FlowId) -> impl ExactSizeIterator<Item = LinkId> {
        self.slots[id.0 as usize].hops.iter().map(|hop| hop.link)
    }
    /// Returns the coflow of a flow.
    pub fn coflow(&self, id: FlowId) -> CoflowId {
        self.slots[id.0 as usize].coflow
    }
    /// Returns the time of a flow's arrival.
    pub fn arrived(&self, id: FlowId) -> Instant {
        self.slots[id.0 as usize].arrived
    }
    /// Returns the total volume of a flow, in bits.
    pub fn volume_bits(&self, id: FlowId) -> f64 {
        self.slots[id.0 as usize].volume_bits
    }
    /// Returns the remaining volume of a flow, in bits.
    pub fn remaining_bits(&self, id: FlowId) -> f64 {
        self.slots[id.0 as usize].remaining_bits(self.now)
    }
    /// Returns the rate of a flow, in bits per second.
    pub fn bps(&self, id: FlowId) -> f64 {
        self.slots[id.0 as usize].bps
    }
    /// Returns the rate of a link, in bits per second.
    pub fn rate_bps(&self, link: LinkId) -> f64 {
        self.links[link.0 as usize].rate_bps
    }
    /// Returns the unused rate of a link, in bits per second, or 0 if it is only a rounding error.
    pub fn left_bps(&self, link: LinkId) -> f64 {
        let link = &self.links[link.0 as usize];
        let left_bps = link.rate_bps - link.load_bps;
        if left_bps > link.rate_bps * ROUNDING { left_bps } else { 0.0 }
    }
    /// Returns the unused rate along a flow's route, in bits per second.
    pub fn most_bps(&self, id: FlowId) -> f64 {
        self.route(id).map(|link| self.left_bps(link)).fold(f64::INFINITY, f64::min)
    }
}
