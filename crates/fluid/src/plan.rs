//! Rates under construction, for allocators that set all rates at once.

use crate::active::{ActiveFlows, ROUNDING};
use crate::filling::FillBuffers;
use crate::network::{FlowId, LinkId};

/// A rate for each active flow, and the unused rate of each link.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    links: Vec<Link>,
    /// Rates in bits per second, by flow.
    bps: Vec<f64>,
    filling: FillBuffers,
}

#[derive(Clone, Debug, Default)]
struct Link {
    rate_bps: f64,
    left_bps: f64,
    /// Remaining volume of the given flows on the link.
    bits: f64,
}

impl Link {
    /// Returns the unused rate, or 0 if it is only a rounding error.
    fn left_bps(&self) -> f64 {
        if self.left_bps > self.rate_bps * ROUNDING { self.left_bps } else { 0.0 }
    }
}

impl Plan {
    /// Begins a new plan, in which each flow has rate 0.
    pub fn begin(&mut self, active: &ActiveFlows) {
        self.links.resize_with(active.network().links(), Link::default);
        for (id, link) in (0..).map(LinkId).zip(&mut self.links) {
            link.rate_bps = active.rate_bps(id);
            link.left_bps = link.rate_bps;
        }
        self.bps.clear();
        self.bps.resize(active.ids_end(), 0.0);
    }

    /// Returns a flow's planned rate, in bits per second.
    pub fn bps(&self, id: FlowId) -> f64 {
        self.bps[id.0 as usize]
    }
    /// Returns the unused rate of a link, in bits per second, or 0 if it is only a rounding error.
    pub fn left_bps(&self, link: LinkId) -> f64 {
        self.links[link.0 as usize].left_bps()
    }
    /// Returns the unused rate along a flow's route, in bits per second.
    pub fn most_bps(&self, active: &ActiveFlows, id: FlowId) -> f64 {
        active.route(id).map(|link| self.left_bps(link)).fold(f64::INFINITY, f64::min)
    }

    /// Adds `bps` to a flow's rate. The links of the flow must have this rate unused. A negative
    /// value decreases the rate.
    pub fn give(&mut self, active: &ActiveFlows, id: FlowId, bps: f64) {
        self.bps[id.0 as usize] += bps;
        active.route(id).for_each(|link| self.links[link.0 as usize].left_bps -= bps);
    }
    /// Gives each of these flows, in the given order, all the unused rate of its links.
    pub fn fill<'a>(&mut self, active: &ActiveFlows, flows: impl IntoIterator<Item = &'a FlowId>) {
        for id in flows {
            let most_bps = self.most_bps(active, *id);
            if most_bps > 0.0 {
                self.give(active, *id, most_bps);
            }
        }
    }

    /// Distributes unused rates to these flows so that the flows move equal fractions of their
    /// remaining volumes as long as links allow: the slowest flow gets its maximum, then the second
    /// slowest flow, and so on.
    ///
    /// Source: progressive filling, weighted by remaining volumes. Cost: the routes of the flows,
    /// and a heap operation per full link.
    pub fn fill_evenly(&mut self, active: &ActiveFlows, flows: &[FlowId]) {
        // Flows on a full link get nothing, and the other flows continue.
        let can_go_on = flows.iter().filter(|id| self.most_bps(active, **id) > 0.0);
        let mut bps: Vec<(FlowId, f64)> =
            can_go_on.map(|id| (*id, active.remaining_bits(*id))).filter(|(_, bits)| *bits > 0.0).collect();
        let mut filling = std::mem::take(&mut self.filling);
        filling.fill(active, &mut bps, |link| self.left_bps(link));
        bps.into_iter().for_each(|(id, bps)| self.give(active, id, bps));
        self.filling = filling;
    }

    /// Returns the time in seconds in which these flows could complete together with the whole
    /// rates of their links.
    pub fn alone_s(&mut self, active: &ActiveFlows, flows: &[FlowId]) -> f64 {
        self.together_s(active, flows, |link| link.rate_bps)
    }
    /// Returns the time in seconds in which these flows could complete together with the unused
    /// rates of their links. The time is infinite if a link is full.
    pub fn left_s(&mut self, active: &ActiveFlows, flows: &[FlowId]) -> f64 {
        self.together_s(active, flows, Link::left_bps)
    }
    fn together_s(&mut self, active: &ActiveFlows, flows: &[FlowId], bps: impl Fn(&Link) -> f64) -> f64 {
        for id in flows {
            let bits = active.remaining_bits(*id);
            active.route(*id).for_each(|link| self.links[link.0 as usize].bits += bits);
        }
        let mut longest_s = 0.0f64;
        for link in flows.iter().flat_map(|id| active.route(*id)) {
            let link = &mut self.links[link.0 as usize];
            if link.bits > 0.0 {
                longest_s = longest_s.max(std::mem::take(&mut link.bits) / bps(link));
            }
        }
        longest_s
    }

    /// Sets the rates of all active flows.
    pub fn set(&self, active: &mut ActiveFlows) {
        for place in 0..active.ids().len() {
            let id = active.ids()[place];
            active.set_bps(id, self.bps(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{CoflowId, Network};
    use anabranch_units::{BitRate, ByteCount};
    use proptest::prelude::*;

    /// In each round, raises the rates of all flows that can still grow, in proportion to their
    /// remaining volumes, until a link is full. Ends when no flow can grow.
    fn fill_in_rounds(plan: &mut Plan, active: &ActiveFlows, flows: &[FlowId]) {
        let mut flows = flows.to_vec();
        loop {
            flows.retain(|id| plan.most_bps(active, *id) > 0.0);
            if flows.is_empty() {
                return;
            }
            let time_s = plan.left_s(active, &flows);
            flows.iter().for_each(|id| plan.give(active, *id, active.remaining_bits(*id) / time_s));
        }
    }

    proptest! {
        #[test]
        fn even_filling_equals_filling_in_rounds(
            rates in proptest::collection::vec(1u64..1_000, 1..7),
            flows in proptest::collection::vec(
                (proptest::collection::btree_set(0usize..7, 1..4), 1u64..100_000, any::<bool>()),
                1..30,
            ),
        ) {
            let links = rates.len();
            let network = Network::new(rates.iter().map(|rate| BitRate::bps(rate * 1_000)).collect());
            let mut active = ActiveFlows::new(network.expect("all have a rate"));
            let (mut first, mut all) = (Vec::new(), Vec::new());
            for (route, bytes, is_first) in flows {
                let mut route: Vec<LinkId> = route.iter().map(|at| LinkId((at % links) as u32)).collect();
                route.sort_unstable();
                route.dedup();
                let id = active.insert(CoflowId(0), &route, ByteCount::new(bytes));
                all.push(id);
                first.extend(is_first.then_some(id));
            }
            let (mut ours, mut plain) = (Plan::default(), Plan::default());
            ours.begin(&active);
            plain.begin(&active);
            for flows in [&first, &all] {
                ours.fill_evenly(&active, flows);
                fill_in_rounds(&mut plain, &active, flows);
            }
            for id in &all {
                let (ours, plain) = (ours.bps(*id), plain.bps(*id));
                prop_assert!((ours - plain).abs() <= 1e-6 * plain.max(1.0), "{ours} and {plain} b/s");
            }
        }
    }
}
