//! Varys: the coflow with the shortest bottleneck is served first. Each flow is just fast enough to
//! end with its coflow's bottleneck, and the remaining rate is left to the next coflow.
//!
//! Source: Chowdhury, Zhong and Stoica, *Efficient Coflow Scheduling with Varys* (SIGCOMM 2014),
//! section 5: SEBF (smallest effective bottleneck first) gives the order, MADD (minimum allocation
//! for desired duration) sets rates, and backfilling distributes the remaining rates. Order and
//! rates are recomputed when a coflow arrives, grows or completes; a flow that completes before its
//! coflow leaves its rate to other flows on its links. Varys knows the volumes of flows that have
//! arrived, but no future flows. Differs: backfilling is greedy in the same order, flow by flow;
//! the paper's backfilling divides the remaining rate of a port among the flows of the port.

use crate::active::ActiveFlows;
use crate::allocator::{Allocator, Event};
use crate::coflowsim;
use crate::madd::Madd;
use crate::network::CoflowId;

/// Varys's state.
#[derive(Clone, Debug, Default)]
pub struct Varys {
    madd: Madd,
    like_coflowsim: Option<coflowsim::Rates>,
}

impl Varys {
    /// Creates an instance that follows CoflowSim's rules, for comparison: see
    /// [`crate::coflowsim`].
    pub fn like_coflowsim() -> Self {
        let rates = coflowsim::Rates::new(coflowsim::ServiceOrder::Bottleneck);
        Self { like_coflowsim: Some(rates), ..Self::default() }
    }
}

impl Allocator for Varys {
    /// Cost: a few passes over the routes of all active flows when a coflow arrives, grows or
    /// completes; otherwise the flows on the links of completed flows.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        if let Some(rates) = &mut self.like_coflowsim {
            return rates.allocate(event, active);
        }
        self.madd.allocate(event, active, |plan, active| {
            let mut order: Vec<(f64, CoflowId)> =
                active.coflows().map(|id| (plan.alone_s(active, active.flows_of(id)), id)).collect();
            // The sort is stable, so coflows with equal bottlenecks are ordered by id.
            order.sort_by(|a, b| a.0.total_cmp(&b.0));
            order.into_iter().map(|(_, id)| id).collect()
        });
    }
}
