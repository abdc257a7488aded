//! FIFO: coflows are served in the order of their arrival. Each flow is just fast enough to end
//! with its coflow's bottleneck, and the remaining rate is left to the next coflow.
//!
//! Source: the order is the baseline of Chowdhury and Stoica's work on coflows (*Efficient Coflow
//! Scheduling Without Prior Knowledge*, SIGCOMM 2015, section 2, and their simulator,
//! github.com/coflow/coflowsim). Rates are MADD's, as in that simulator: the first coflow is as
//! fast as the network allows, its flows end together, and the second coflow gets the remaining
//! rate. FIFO thus differs from [`crate::Varys`] only by the order, and the difference of their
//! results is the benefit of Varys's order. A coflow arrives with its first flow; simultaneous
//! coflows are ordered by id. Differs: MADD needs the volumes of flows that have arrived; a FIFO
//! without known volumes would share the remaining rate among a coflow's flows.

use crate::active::ActiveFlows;
use crate::allocator::{Allocator, Event};
use crate::coflowsim;
use crate::madd::Madd;
use crate::order::by_arrival;

/// FIFO's state.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    madd: Madd,
    like_coflowsim: Option<coflowsim::Rates>,
}

impl Fifo {
    /// Creates an instance that follows CoflowSim's rules, for comparison: see
    /// [`crate::coflowsim`].
    pub fn like_coflowsim() -> Self {
        let rates = coflowsim::Rates::new(coflowsim::ServiceOrder::Arrival);
        Self { like_coflowsim: Some(rates), ..Self::default() }
    }
}

impl Allocator for Fifo {
    /// Cost: a few passes over the routes of all active flows when a coflow arrives, grows or
    /// completes; otherwise the flows on the links of completed flows.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        if let Some(rates) = &mut self.like_coflowsim {
            return rates.allocate(event, active);
        }
        self.madd.allocate(event, active, |_, active| by_arrival(active));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{keeps_the_laws, networks, on_one_link};
    use crate::{CoflowId, Completion, Outcome, run};
    use anabranch_units::Instant;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fifo_is_work_conserving((network, flows) in networks()) {
            keeps_the_laws(&network, &flows, Fifo::default(), false);
        }

        #[test]
        fn coflows_on_one_link_complete_in_arrival_order(
            rows in proptest::collection::vec((1u64..100_000, 0u64..1_000), 1..12)
        ) {
            let (network, flows) = on_one_link(&rows);
            let outcome = run(&network, &flows, &mut Fifo::default()).expect("it ends");
            let row = |(done, name): (&Completion, u32)| (done.arrived, name, done.completed);
            let mut order: Vec<_> = outcome.flows.iter().zip(0..).map(row).collect();
            order.sort_unstable();
            prop_assert!(order.is_sorted_by_key(|(.., completed)| *completed), "{order:?}");
        }

        #[test]
        fn first_coflow_is_as_fast_as_alone((network, mut flows) in networks()) {
            for flow in &mut flows {
                flow.grows = Box::default();
                if flow.coflow == CoflowId(0) {
                    flow.arrives = Instant::ZERO;
                }
            }
            let alone: Vec<_> = flows.iter().filter(|flow| flow.coflow == CoflowId(0)).cloned().collect();
            let done = |outcome: Outcome| outcome.coflows.get(&CoflowId(0)).map(|all| all.completed.as_ps());
            let (beside, alone) = (
                done(run(&network, &flows, &mut Fifo::default()).expect("it ends")),
                done(run(&network, &alone, &mut Fifo::default()).expect("it ends")),
            );
            if let (Some(beside), Some(alone)) = (beside, alone) {
                prop_assert!(beside.abs_diff(alone) as f64 <= 100.0 + 1e-6 * alone as f64, "{beside} ps, {alone} ps alone");
            }
        }
    }
}
