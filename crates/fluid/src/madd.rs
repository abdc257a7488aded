//! MADD, minimum allocation for desired duration: coflows in an order, each as fast as earlier ones
//! allow, with its flows no faster than its bottleneck requires; then the rest to the next coflow.
//!
//! Source: Chowdhury, Zhong and Stoica, *Efficient Coflow Scheduling with Varys* (SIGCOMM 2014),
//! section 5. The caller gives the order: [`crate::Varys`]'s or [`crate::Fifo`]'s. Differs:
//! backfilling is greedy in the same order, flow by flow; Varys's divides it among flows of a port.

use crate::active::ActiveFlows;
use crate::allocator::Event;
use crate::network::CoflowId;
use crate::order::CoflowOrder;
use crate::plan::Plan;

/// Rates for coflows in an order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Madd {
    plan: Plan,
    ranks: CoflowOrder,
}

impl Madd {
    /// Recomputes rates when a coflow arrives, grows or completes; a flow that completes before its
    /// coflow leaves its rate to other flows on its links.
    ///
    /// Cost: a few walks along the routes of all active flows in the first case; the flows on the
    /// links of completed ones in the second.
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

    /// Rates of two equal flows that compete for link 2, in the order of arrival: after a flow of
    /// their coflow has freed its rate, and after another coflow has arrived. The names of `freed`
    /// flows are reused, last first.
    fn rates(mut allocator: impl Allocator, freed: [usize; 4]) -> [[f64; 2]; 2] {
        let network = Network::new([10, 10, 10, 1, 10].map(BitRate::mbps).to_vec()).expect("all have a rate");
        let mut active = ActiveFlows::new(network);
        let mb = |n: u64| ByteCount::new(n * 1_000_000);
        let before: Vec<FlowId> = (0..4).map(|_| active.insert(CoflowId(9), &[LinkId(4)], mb(1))).collect();
        active.decide(&mut allocator).expect("it decides");
        freed.into_iter().for_each(|at| active.remove(before[at]));
        active.decide(&mut allocator).expect("it decides");
        // The first competes with the pair on link 2, and the second sets the pace.
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

    /// #48: of equal flows the one with the lower index in memory was served first.
    #[test]
    fn equal_flows_are_served_in_arrival_order_anywhere() {
        for freed in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 3, 1]] {
            for rates in [rates(Fifo::default(), freed), rates(Varys::default(), freed)] {
                let is_first = rates.map(|[first, second]| first > 2.0 * second);
                assert_eq!(is_first, [true, true], "{freed:?}: {rates:?} b/s");
            }
        }
    }
}
