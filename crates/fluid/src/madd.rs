//! MADD (minimum allocation for desired duration). MADD serves coflows in a given order. Each
//! coflow completes as early as the preceding coflows allow, and each of its flows is only as fast
//! as the coflow's bottleneck requires. The remaining rate is left to the following coflows.
//!
//! Source: Chowdhury, Zhong and Stoica, *Efficient Coflow Scheduling with Varys* (SIGCOMM 2014),
//! section 5. The caller ([`crate::Varys`] or [`crate::Fifo`]) gives the order. Differs:
//! backfilling is greedy in the same order, flow by flow; Varys divides the remaining rate of a
//! port among the flows of the port.

use crate::active::ActiveFlows;
use crate::allocator::Event;
use crate::network::CoflowId;
use crate::order::CoflowOrder;
use crate::plan::Plan;

/// MADD's state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Madd {
    plan: Plan,
    ranks: CoflowOrder,
}

impl Madd {
    /// Recomputes all rates when a coflow arrives, grows or completes. When a flow completes before
    /// its coflow, gives the flow's rate to other flows on its links.
    ///
    /// Cost: when a coflow arrives, grows or completes, a few passes over the routes of all active
    /// flows; otherwise the flows on the links of completed flows.
    pub fn allocate(
        &mut self,
        event: &Event,
        active: &mut ActiveFlows,
        order: impl FnOnce(&mut Plan, &ActiveFlows) -> Vec<CoflowId>,
    ) {
        let Self { plan, ranks } = self;
        if !ranks.is_new_order(event, active) {
            return ranks.fill_changed(active);
        }
        plan.begin(active);
        let order = order(plan, active);
        for coflow in &order {
            let flows = active.flows_of(*coflow);
            let time_s = plan.left_s(active, flows);
            if time_s.is_finite() {
                flows.iter().for_each(|id| plan.give(active, *id, active.remaining_bits(*id) / time_s));
            }
        }
        order.iter().for_each(|coflow| plan.fill(active, active.flows_of(*coflow)));
        plan.set(active);
        ranks.set(order);
    }
}

#[cfg(test)]
mod tests {
    use crate::{ActiveFlows, Allocator, CoflowId, Fifo, FlowId, LinkId, Network, Varys};
    use anabranch_units::{BitRate, ByteCount};

    /// Returns the rates of two equal flows that compete for link 2, in the order of arrival: first
    /// after a flow of the same coflow has freed its rate, then after the arrival of another
    /// coflow. The ids of the flows `freed` are reused, the last id first.
    fn rates(mut allocator: impl Allocator, freed: [usize; 4]) -> [[f64; 2]; 2] {
        let network = Network::new([10, 10, 10, 1, 10].map(BitRate::mbps).to_vec()).expect("all have a rate");
        let mut active = ActiveFlows::new(network);
        let mb = |n: u64| ByteCount::new(n * 1_000_000);
        let before: Vec<FlowId> = (0..4).map(|_| active.insert(CoflowId(9), &[LinkId(4)], mb(1))).collect();
        active.decide(&mut allocator).expect("it decides");
        freed.into_iter().for_each(|at| active.remove(before[at]));
        active.decide(&mut allocator).expect("it decides");
        // The first flow competes with the pair on link 2; the second flow is the coflow's
        // bottleneck.
        let coflow = CoflowId(0);
        let wide = active.insert(coflow, &[LinkId(2)], mb(20));
        active.insert(coflow, &[LinkId(3)], mb(20));
        let pair = [0, 1].map(|link| active.insert(coflow, &[LinkId(link), LinkId(2)], mb(10)));
        active.decide(&mut allocator).expect("it decides");
        active.remove(wide);
        active.decide(&mut allocator).expect("it decides");
        let left = pair.map(|id| active.bps(id));
        active.insert(CoflowId(1), &[LinkId(4)], mb(1));
        active.decide(&mut allocator).expect("it decides");
        [left, pair.map(|id| active.bps(id))]
    }

    /// Regression test of #48: of equal flows, the flow with the lower index in memory was served
    /// first.
    #[test]
    fn equal_flows_are_served_in_arrival_order() {
        for freed in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 3, 1]] {
            for rates in [rates(Fifo::default(), freed), rates(Varys::default(), freed)] {
                let is_first = rates.map(|[first, second]| first > 2.0 * second);
                assert_eq!(is_first, [true, true], "{freed:?}: {rates:?} b/s");
            }
        }
    }
}
