//! Weighted max-min allocation of the links' remaining rates to a set of flows: the rates of all
//! flows rise together, in proportion to the weights, until a link is full.
//!
//! Source: progressive filling (Bertsekas and Gallager, *Data Networks*, section 6.5.2) with
//! weights. [`crate::MaxMin`] is faster for all flows without weights.

use crate::active::ActiveFlows;
use crate::allocator::Event;
use crate::network::{FlowId, LinkId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Buffers that are reused by later calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct FillBuffers {
    links: Vec<Level>,
    /// Links of the given flows.
    used: Vec<LinkId>,
    /// Indices of the given flows, grouped by link.
    crossing: Vec<u32>,
    is_set: Vec<bool>,
    /// Links, ordered by their remaining rate per unit of weight.
    heap: BinaryHeap<Reverse<(u64, LinkId)>>,
    candidates: Vec<(u32, FlowId)>,
    group: Vec<(FlowId, f64)>,
}

#[derive(Copy, Clone, Debug, Default)]
struct Level {
    left_bps: f64,
    /// Total weight of the link's flows without a rate.
    weight: f64,
    unset: u32,
    /// Range of the link's flows in `crossing`.
    begins: u32,
    ends: u32,
}

impl Level {
    /// Returns the remaining rate per unit of weight. It is not negative, so it sorts like its
    /// bits.
    fn share_bits(&self) -> u64 {
        (self.left_bps.max(0.0) / self.weight).to_bits()
    }
}

impl FillBuffers {
    /// Replaces the weight of each flow by its rate. Weights must be above 0.
    ///
    /// Cost: the links of the flows' routes, and a heap operation per full link.
    pub fn fill(
        &mut self,
        active: &ActiveFlows,
        flows: &mut [(FlowId, f64)],
        left_bps: impl Fn(LinkId) -> f64,
    ) {
        self.list(active, flows, left_bps);
        let Self { links, used, crossing, is_set, heap, .. } = self;
        heap.clear();
        heap.extend(used.iter().map(|link| Reverse((links[link.0 as usize].share_bits(), *link))));
        while let Some(Reverse((bits, at))) = heap.pop() {
            let link = &mut links[at.0 as usize];
            if link.unset == 0 {
                continue;
            }
            // Subtractions have rounded the weight, and small weights may be lost next to large
            // weights, so the weight is summed again.
            let there = &crossing[link.begins as usize..link.ends as usize];
            let unset = there.iter().filter(|flow| !is_set[**flow as usize]);
            link.weight = unset.map(|flow| flows[*flow as usize].1).sum();
            // The share of a link only grows while flows with smaller shares get their rates, so
            // the share of an earlier heap entry may be too low.
            let now = link.share_bits();
            if now > bits {
                heap.push(Reverse((now, at)));
                continue;
            }
            let share_bps = f64::from_bits(now);
            for flow in there {
                if std::mem::replace(&mut is_set[*flow as usize], true) {
                    continue;
                }
                let (id, weight) = flows[*flow as usize];
                let bps = weight * share_bps;
                flows[*flow as usize].1 = bps;
                for link in active.route(id) {
                    let link = &mut links[link.0 as usize];
                    link.left_bps -= bps;
                    link.weight -= weight;
                    link.unset -= 1;
                }
            }
        }
    }

    /// Groups the flows by link.
    fn list(&mut self, active: &ActiveFlows, flows: &[(FlowId, f64)], left_bps: impl Fn(LinkId) -> f64) {
        let Self { links, used, crossing, is_set, .. } = self;
        links.resize_with(active.network().links(), Level::default);
        is_set.clear();
        is_set.resize(flows.len(), false);
        used.drain(..).for_each(|link| links[link.0 as usize] = Level::default());
        for (id, weight) in flows {
            for at in active.route(*id) {
                let link = &mut links[at.0 as usize];
                if link.unset == 0 {
                    link.left_bps = left_bps(at);
                    used.push(at);
                }
                link.weight += weight;
                link.unset += 1;
            }
        }
        let mut begins = 0;
        for link in &*used {
            let link = &mut links[link.0 as usize];
            (link.begins, link.ends) = (begins, begins);
            begins += link.unset;
        }
        crossing.resize(begins as usize, 0);
        for (flow, (id, _)) in (0..).zip(flows) {
            for link in active.route(*id) {
                let ends = &mut links[link.0 as usize].ends;
                crossing[*ends as usize] = flow;
                *ends += 1;
            }
        }
    }

    /// Distributes the rates of completed flows to other flows on their links: by rank, and by
    /// weight within a rank. Calls `on_more` with the increase of each flow's rate.
    ///
    /// Cost: the flows on these links.
    pub fn fill_after(
        &mut self,
        event: &Event,
        active: &mut ActiveFlows,
        rank_and_weight: impl Fn(FlowId) -> (u32, f64),
        mut on_more: impl FnMut(&ActiveFlows, FlowId, f64),
    ) {
        let mut links: Vec<LinkId> = event.completed.iter().flat_map(|id| active.route(*id)).collect();
        links.sort_unstable();
        links.dedup();
        links.retain(|link| active.left_bps(*link) > 0.0);
        let mut candidates = std::mem::take(&mut self.candidates);
        let there = links.iter().flat_map(|link| active.flows_on(*link));
        candidates
            .extend(there.filter(|id| active.most_bps(**id) > 0.0).map(|id| (rank_and_weight(*id).0, *id)));
        candidates.sort_unstable();
        candidates.dedup();
        let mut group = std::mem::take(&mut self.group);
        for equals in candidates.chunk_by(|a, b| a.0 == b.0) {
            let hungry = equals.iter().filter(|(_, id)| active.most_bps(*id) > 0.0);
            group.extend(hungry.map(|(_, id)| (*id, rank_and_weight(*id).1)));
            self.fill(active, &mut group, |link| active.left_bps(link));
            for (id, more_bps) in group.drain(..) {
                active.set_bps(id, active.bps(id) + more_bps);
                on_more(active, id, more_bps);
            }
        }
        candidates.clear();
        (self.candidates, self.group) = (candidates, group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::networks;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_flow_has_a_bottleneck_in_weighted_max_min(
            (network, flows) in networks(), weights in proptest::collection::vec(1u64..1_000_000, 24)
        ) {
            let mut active = ActiveFlows::new(network);
            let insert = |flow: &crate::Flow| active.insert(flow.coflow, &flow.route, flow.volume);
            let ids: Vec<FlowId> = flows.iter().map(insert).collect();
            let of = |id: &FlowId| weights[id.0 as usize] as f64;
            let mut rates: Vec<(FlowId, f64)> = ids.iter().map(|id| (*id, of(id))).collect();
            let mut filling = FillBuffers::default();
            // State from an earlier call must have no effect.
            filling.fill(&active, &mut rates.clone(), |_| 1.0);
            filling.fill(&active, &mut rates, |link| active.rate_bps(link));
            for (id, bps) in &rates {
                let is_bottleneck = |link: LinkId| {
                    let there = rates.iter().filter(|(other, _)| active.route(*other).any(|at| at == link));
                    let all_bps: f64 = there.clone().map(|(_, bps)| bps).sum();
                    let most = there.map(|(other, bps)| bps / of(other)).fold(0.0, f64::max);
                    prop_assert!(all_bps <= active.rate_bps(link) * (1.0 + 1e-9));
                    Ok(all_bps >= active.rate_bps(link) * (1.0 - 1e-9) && bps / of(id) >= most * (1.0 - 1e-9))
                };
                let links: Result<Vec<bool>, TestCaseError> = active.route(*id).map(is_bottleneck).collect();
                prop_assert!(links?.contains(&true), "flow {} has no bottleneck", id.0);
            }
        }
    }
}
