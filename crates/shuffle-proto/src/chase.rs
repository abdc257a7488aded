//! Flow Chasing as published: each flow finishes with its coflow's last flow, and leftover rate is
//! given to flows that can use it.
//!
//! Source: Ren and Wang, *Managing Flow Transfers in Enterprise Datacenter Networks with Flow
//! Chasing* (2016), which calls a coflow a transfer. When a flow arrives: Algorithm 1, then
//! equations 7 to 9 (every coflow that can finish earlier does, smallest first) and equation 10 (no
//! rate is left unused). When a flow completes: equations 7 to 10 for the coflows on its links
//! (section 4.3). Data announced later counts as an arriving flow (section 4.4).
//!
//! In short, with `bits[l]` the volume of a coflow on link `l`: the coflow finishes in `max_l
//! bits[l] / bps[l]` if all of its flows finish then.
//!
//! Differs: remaining volumes of coflows are compared when a coflow arrives or completes, not at
//! each flow's completion. Equations 7 to 9 then make all flows of a coflow finish together, so a
//! faster flow is slowed down.

use anabranch_fluid::{ActiveFlows, Allocator, CoflowId, CoflowOrder, Event, FlowId, LinkId, Plan, ROUNDING};
use std::collections::{BTreeMap, BTreeSet};

/// Order in which coflows get leftover rate.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Smallest total volume first (section 5.2, because real hosts do not know remaining volumes
    /// exactly).
    Total,
    /// Smallest remaining volume first (section 4.3).
    #[default]
    Remaining,
}

/// The paper's rate control.
#[derive(Clone, Debug)]
pub struct Chase {
    priority: Priority,
    is_work_conserving: bool,
    plan: Plan,
    ranks: CoflowOrder,
    /// For each coflow that could not be sped up: the link without spare rate. The entry is valid
    /// while the link has no spare rate.
    held_by: BTreeMap<CoflowId, LinkId>,
    /// For each link: volume of the current coflow, and its rate there.
    bits: Vec<f64>,
    given_bps: Vec<f64>,
    /// For each flow by id: true if the flow has just arrived.
    is_new: Vec<bool>,
}

impl Default for Chase {
    fn default() -> Self {
        Self::new(Priority::default(), true)
    }
}

impl Chase {
    /// Creates the allocator with this priority. Without work conservation, equation 10 is skipped.
    pub fn new(priority: Priority, is_work_conserving: bool) -> Self {
        Self {
            priority,
            is_work_conserving,
            plan: Plan::default(),
            ranks: CoflowOrder::default(),
            held_by: BTreeMap::new(),
            bits: Vec::new(),
            given_bps: Vec::new(),
            is_new: Vec::new(),
        }
    }

    /// Applies Algorithm 1 to each arrived flow. Returns each coflow's time to completion in
    /// seconds.
    fn intra_coflow(&mut self, event: &Event, active: &ActiveFlows) -> BTreeMap<CoflowId, f64> {
        let mut through_s = BTreeMap::new();
        // Lines 1 to 6: no flow finishes before its coflow's last flow.
        for coflow in active.coflows() {
            let flows = active.flows_of(coflow);
            let old = flows.iter().filter(|id| !self.is_new[id.0 as usize]);
            let time_s = old.map(|id| active.remaining_bits(*id) / active.bps(*id)).fold(0.0, f64::max);
            for id in flows.iter().filter(|id| !self.is_new[id.0 as usize]) {
                self.plan.give(active, *id, pace_bps(active.remaining_bits(*id), time_s));
            }
            through_s.insert(coflow, time_s);
        }
        // Lines 7 to 16 are applied coflow by coflow, because simultaneous flows have no meaningful
        // order.
        let mut coming: BTreeMap<CoflowId, Vec<FlowId>> = BTreeMap::new();
        for id in came(event).filter(|id| self.is_new[id.0 as usize]) {
            coming.entry(active.coflow(id)).or_default().push(id);
        }
        for flows in coming.values_mut() {
            // A flow that has both arrived and grown is listed only once.
            flows.sort_unstable();
            flows.dedup();
        }
        for (coflow, coming) in coming {
            let time_s = through_s.entry(coflow).or_default();
            self.arrive(active, coflow, &coming, time_s);
        }
        through_s
    }

    /// Applies lines 7 to 16 to the arrived flows of one coflow, which finishes in `time_s` without
    /// them.
    fn arrive(&mut self, active: &ActiveFlows, coflow: CoflowId, coming: &[FlowId], time_s: &mut f64) {
        let flows = active.flows_of(coflow);
        for id in flows.iter().filter(|id| !self.is_new[id.0 as usize]) {
            active.route(*id).for_each(|link| self.bits[link.0 as usize] += active.remaining_bits(*id));
            self.plan.give(active, *id, -self.plan.bps(*id));
        }
        for id in coming {
            let volume_bits = active.remaining_bits(*id);
            let left = |link: LinkId| {
                let used_bps = pace_bps(self.bits[link.0 as usize], *time_s);
                let left_bps = self.plan.left_bps(link) - used_bps;
                if left_bps > active.rate_bps(link) * ROUNDING { left_bps } else { 0.0 }
            };
            let most_bps = active.route(*id).map(left).fold(f64::INFINITY, f64::min);
            // Line 9: this flow is its coflow's last flow, and the other flows do not finish
            // earlier.
            *time_s = time_s.max(volume_bits / most_bps);
            active.route(*id).for_each(|link| self.bits[link.0 as usize] += volume_bits);
        }
        for id in flows {
            active.route(*id).for_each(|link| self.bits[link.0 as usize] = 0.0);
            self.plan.give(active, *id, pace_bps(active.remaining_bits(*id), *time_s));
        }
    }

    /// Returns the coflows in the order in which they get leftover rate.
    fn order(&self, active: &ActiveFlows) -> Vec<CoflowId> {
        let bits = |coflow| match self.priority {
            Priority::Total => active.coflow_so_far(coflow).map_or(0.0, |(_, bits)| bits),
            Priority::Remaining => active.flows_of(coflow).iter().map(|id| active.remaining_bits(*id)).sum(),
        };
        let mut order: Vec<(f64, CoflowId)> = active.coflows().map(|id| (bits(id), id)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        order.into_iter().map(|(_, coflow)| coflow).collect()
    }

    /// Applies equations 7 to 10 to all coflows.
    fn inter_coflow(&mut self, active: &mut ActiveFlows, through_s: &BTreeMap<CoflowId, f64>) {
        let Self { plan, .. } = self;
        let order = self.ranks.order();
        for coflow in order {
            let flows = active.flows_of(*coflow);
            flows.iter().for_each(|id| plan.give(active, *id, -plan.bps(*id)));
            let time_s = plan.left_s(active, flows).min(through_s[coflow]);
            for id in flows {
                plan.give(active, *id, pace_bps(active.remaining_bits(*id), time_s));
            }
        }
        if self.is_work_conserving {
            let mut flows: Vec<(f64, FlowId)> = Vec::new();
            for coflow in order {
                flows.clear();
                let all = active.flows_of(*coflow).iter();
                flows.extend(all.map(|id| (active.remaining_bits(*id), *id)));
                // The sort is stable: equal coflows keep the order of insertion.
                flows.sort_by(|a, b| a.0.total_cmp(&b.0));
                plan.fill(active, flows.iter().map(|(_, id)| id));
            }
        }
        plan.set(active);
    }

    /// Applies equations 7 to 9 to the coflows on links that a completed flow used.
    fn inter_coflow_on(&mut self, active: &mut ActiveFlows, links: &[LinkId]) {
        let there: BTreeSet<CoflowId> = links
            .iter()
            .filter(|link| active.left_bps(**link) > 0.0)
            .flat_map(|link| active.flows_on(*link))
            .map(|id| active.coflow(*id))
            .collect();
        let mut there: Vec<(u32, CoflowId)> = there.into_iter().map(|id| (self.ranks.of(id), id)).collect();
        there.sort_unstable();
        for (_, coflow) in there {
            let is_held = |link: &LinkId| active.left_bps(*link) == 0.0;
            if !self.held_by.get(&coflow).is_some_and(is_held) {
                self.speed_up(active, coflow);
            }
        }
    }

    /// Makes a coflow finish as early as the spare rate of its links allows, and records the link
    /// that limits it.
    fn speed_up(&mut self, active: &mut ActiveFlows, coflow: CoflowId) {
        let flows = active.flows_of(coflow);
        let mut through_s = 0.0f64;
        for id in flows {
            let (bits, bps) = (active.remaining_bits(*id), active.bps(*id));
            through_s = through_s.max(bits / bps);
            for link in active.route(*id) {
                self.bits[link.0 as usize] += bits;
                self.given_bps[link.0 as usize] += bps;
            }
        }
        let (mut time_s, mut held_by) = (0.0, None);
        for link in flows.iter().flat_map(|id| active.route(*id)) {
            let bits = std::mem::take(&mut self.bits[link.0 as usize]);
            let given_bps = std::mem::take(&mut self.given_bps[link.0 as usize]);
            let left_bps = active.left_bps(link);
            let link_s = bits / (left_bps + given_bps);
            if bits > 0.0 && link_s > time_s {
                (time_s, held_by) = (link_s, Some(link));
            }
        }
        if time_s < through_s * (1.0 - SPEED_UP_MIN) {
            for id in active.flows_of(coflow).to_vec() {
                active.set_bps(id, active.remaining_bits(id) / time_s);
            }
            // A slowed-down flow frees rate on other links, so recorded limits may no longer hold.
            self.held_by.clear();
        }
        self.held_by.extend(held_by.map(|link| (coflow, link)));
    }
}

/// Minimum relative gain of a coflow's time for a change of its rates. Smaller gains are rounding
/// errors.
const SPEED_UP_MIN: f64 = 1e-9;

/// Flows that Algorithm 1 treats as new: arrived flows and grown flows.
fn came(event: &Event) -> impl Iterator<Item = FlowId> {
    event.arrived.iter().copied().chain(event.grown.iter().map(|(id, _)| *id))
}

/// Rate in bits per second at which these bits finish in this time. Zero if the time is zero or
/// infinite.
fn pace_bps(bits: f64, time_s: f64) -> f64 {
    if time_s > 0.0 { bits / time_s } else { 0.0 }
}

impl Allocator for Chase {
    /// Cost: when a flow arrives, a few passes over the routes of all active flows, and a sort of
    /// these flows. When a flow completes, the flows on its links, and the flows of coflows there
    /// that can be sped up.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        self.bits.resize(active.network().links(), 0.0);
        self.given_bps.resize(active.network().links(), 0.0);
        if self.ranks.is_new_order(event, active) {
            self.ranks.set(self.order(active));
        }
        if event.arrived.is_empty() && event.grown.is_empty() {
            let links: Vec<LinkId> = event.completed.iter().flat_map(|id| active.route(*id)).collect();
            self.inter_coflow_on(active, &links);
            if self.is_work_conserving {
                self.ranks.fill_changed(active);
            }
            return;
        }
        self.is_new.clear();
        self.is_new.resize(active.ids_end(), false);
        came(event).for_each(|id| self.is_new[id.0 as usize] = true);
        // Flows that arrived and completed since the last decision are no longer present.
        event.completed.iter().for_each(|id| self.is_new[id.0 as usize] = false);
        self.held_by.clear();
        self.plan.begin(active);
        let through_s = self.intra_coflow(event, active);
        self.inter_coflow(active, &through_s);
    }
}

#[cfg(test)]
mod tests;
