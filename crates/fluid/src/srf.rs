//! Shortest remaining first, flow by flow, as approximated by pFabric's switches.
//!
//! Source: Alizadeh et al., *pFabric: Minimal Near-Optimal Datacenter Transport* (SIGCOMM 2013),
//! section 3, the ideal algorithm: flows are served in the order of their remaining volumes, each
//! flow on links that no better flow fills. Flows with equal remaining volumes are ordered by id.
//! Coflows are ignored. Differs: in the source a flow either has a link or does not have it; with
//! links of different rates, a flow gets the rate that better flows leave. The order is updated at
//! decisions: two flows on a link may swap between decisions, but the swap takes effect at the next
//! decision.

use crate::active::ActiveFlows;
use crate::allocator::{Allocator, Event};
use crate::greedy::GreedyRates;

/// Serves the flow with the smallest remaining volume first.
#[derive(Clone, Debug, Default)]
pub struct Srf {
    greedy: GreedyRates,
}

impl Allocator for Srf {
    /// Cost: for each flow whose rate changes, the routes that use its links.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        // Volumes are not negative, so they sort like their bits.
        self.greedy.allocate(event, active, |active, id| active.remaining_bits(id).to_bits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::greedy::tests::GreedyCheck;
    use crate::plan::Plan;
    use crate::testing::{keeps_the_laws, networks, on_one_link};
    use crate::{CoflowId, Completion, FlowId, run};
    use proptest::prelude::*;

    /// Serves the coflows of a link in a fixed order.
    struct FixedOrder(Vec<u32>);
    impl Allocator for FixedOrder {
        fn allocate(&mut self, _: &Event, active: &mut ActiveFlows) {
            let mut plan = Plan::default();
            plan.begin(active);
            self.0.iter().for_each(|name| plan.fill(active, active.flows_of(CoflowId(*name))));
            plan.set(active);
        }
    }

    fn permutations(of: &[u32]) -> Vec<Vec<u32>> {
        if of.is_empty() {
            return vec![Vec::new()];
        }
        let others = |first: u32| of.iter().copied().filter(|other| *other != first).collect::<Vec<_>>();
        let starting = |first: &u32| {
            let rest = permutations(&others(*first));
            rest.into_iter().map(|rest| [vec![*first], rest].concat()).collect::<Vec<_>>()
        };
        of.iter().flat_map(starting).collect()
    }

    proptest! {
        #[test]
        fn srf_rates_equal_a_full_greedy_fill((network, flows) in networks()) {
            let key = |_: &Srf, active: &ActiveFlows, id: FlowId| active.remaining_bits(id).to_bits();
            keeps_the_laws(&network, &flows, GreedyCheck { inner: Srf::default(), key }, false);
        }

        #[test]
        fn srf_has_the_lowest_mean_on_one_link(rows in proptest::collection::vec((1u64..50_000, 0u64..500), 1..6)) {
            let (network, flows) = on_one_link(&rows);
            let sum_s = |mut allocator: Box<dyn Allocator>| -> f64 {
                let outcome = run(&network, &flows, &mut allocator).expect("it ends");
                outcome.flows.iter().map(Completion::time).map(|time| time.as_secs_f64()).sum()
            };
            let srf_s = sum_s(Box::<Srf>::default());
            for order in permutations(&(0..flows.len() as u32).collect::<Vec<_>>()) {
                let other_s = sum_s(Box::new(FixedOrder(order.clone())));
                prop_assert!(srf_s <= other_s + 1e-9, "{srf_s} s in all, {other_s} s in the order {order:?}");
            }
        }
    }
}
