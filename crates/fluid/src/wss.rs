//! Weighted shuffle scheduling (WSS): the rates of a coflow's flows are proportional to their
//! volumes, so that they end together, and coflows share links fairly.
//!
//! Source: Chowdhury, Zaharia, Ma, Jordan and Stoica, *Managing Data Transfers in Computer Clusters
//! with Orchestra* (SIGCOMM 2011), section 5 for the WSS of shuffles, which weights each flow by
//! its volume, and section 3 for the weighted fair sharing of the inter-transfer controller, here
//! with equal weights of coflows. A flow's weight is the rate at which it would end together with
//! the other flows of its coflow if the coflow was alone; rates are weighted max-min. Coflows with
//! a common bottleneck link therefore get the same rate on the link. Differs: Orchestra's
//! controller divides every congested link evenly among coflows. Here a coflow has less weight on
//! links other than its bottleneck, in proportion to its lower need, because max-min rates require
//! a single weight per flow. Weights are computed from remaining volumes when a coflow arrives,
//! grows or completes; Orchestra's weights are computed from initial volumes. The rate of a flow
//! that completes before its coflow is shared by weight among flows on its links.

use crate::active::ActiveFlows;
use crate::allocator::{Allocator, Event};
use crate::filling::FillBuffers;
use crate::network::FlowId;
use crate::order::CoflowOrder;
use crate::plan::Plan;

/// Weighted fair sharing between coflows and within each coflow.
#[derive(Clone, Debug, Default)]
pub struct Wss {
    plan: Plan,
    filling: FillBuffers,
    ranks: CoflowOrder,
    /// Weights by flow.
    weights: Vec<f64>,
    rates: Vec<(FlowId, f64)>,
}

impl Allocator for Wss {
    /// Cost: when a coflow arrives, grows or completes, some passes over the routes of all active
    /// flows, and a heap operation per full link; otherwise the flows on the links of completed
    /// flows.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        let Self { plan, filling, ranks, weights, rates } = self;
        if !ranks.is_new_order(event, active) {
            return filling.fill_after(event, active, |id| (0, weights[id.0 as usize]), |_, _, _| {});
        }
        plan.begin(active);
        weights.resize(active.ids_end(), 0.0);
        rates.clear();
        for coflow in active.coflows() {
            let flows = active.flows_of(coflow);
            let time_s = plan.alone_s(active, flows);
            for id in flows {
                // A flow without remaining volume gets the weight of a bit: with weight 0 it would
                // never end.
                let weight = active.remaining_bits(*id).max(1.0) / if time_s > 0.0 { time_s } else { 1.0 };
                weights[id.0 as usize] = weight;
                rates.push((*id, weight));
            }
        }
        filling.fill(active, rates, |link| active.rate_bps(link));
        rates.iter().for_each(|(id, bps)| active.set_bps(*id, *bps));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{keeps_the_laws, networks};
    use crate::{CoflowId, Completion, Flow, LinkId, Network, run};
    use anabranch_units::{BitRate, ByteCount, Duration, Instant};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn wss_is_work_conserving((network, flows) in networks()) {
            keeps_the_laws(&network, &flows, Wss::default(), false);
        }

        #[test]
        fn flows_sharing_a_link_complete_together_in_isolation(
            (network, flows) in networks(), bytes in proptest::collection::vec(1u64..1_000_000, 24)
        ) {
            let link = |flow: &Flow| flow.route[0];
            let Some(first) = flows.first().map(link) else { return Ok(()) };
            let together = flows.iter().filter(|flow| link(flow) == first).zip(&bytes);
            // Only the first link can be the bottleneck: the rates of all other links are ample.
            let rate = |at| if LinkId(at) == first { BitRate::bps(10_000) } else { BitRate::mbps(1) };
            let narrow = Network::new((0..network.links() as u32).map(rate).collect()).expect("links have rates");
            let at_once = |(flow, bytes): (&Flow, &u64)| Flow {
                coflow: CoflowId(0),
                volume: ByteCount::new(*bytes),
                arrives: Instant::ZERO,
                grows: Box::default(),
                ..flow.clone()
            };
            let flows: Vec<Flow> = together.map(at_once).collect();
            let outcome = run(&narrow, &flows, &mut Wss::default()).expect("it ends");
            let last = outcome.coflows[&CoflowId(0)].completed.as_ps();
            for done in &outcome.flows {
                let early = last - done.completed.as_ps();
                prop_assert!(early <= 100 + last / 1_000_000, "{early} ps before the last, at {last} ps");
            }
        }
    }

    #[test]
    fn coflows_share_a_common_bottleneck_equally() {
        // Coflows on a common link: a flow of 30 Mbit; two flows of 5 and 10 Mbit.
        let network = Network::new(vec![BitRate::mbps(10)]).expect("it has a rate");
        let flow = |(coflow, mbit): (u32, u64)| Flow {
            coflow: CoflowId(coflow),
            route: Box::new([LinkId(0)]),
            volume: ByteCount::new(mbit * 125_000),
            arrives: Instant::ZERO,
            grows: Box::default(),
        };
        let flows: Vec<Flow> = [(0, 30), (1, 5), (1, 10)].map(flow).into();
        let outcome = run(&network, &flows, &mut Wss::default()).expect("it ends");
        let ms: Vec<u64> = outcome.flows.iter().map(|flow| flow.time().as_us().div_ceil(1000)).collect();
        assert_eq!(ms, [4_500, 3_000, 3_000]);
        let times: Vec<Duration> = outcome.coflows.values().map(Completion::time).collect();
        assert!(times[0] > times[1]);
    }
}
