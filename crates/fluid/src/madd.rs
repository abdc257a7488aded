//! MADD, minimum allocation for desired duration: coflows in an order, each as fast as those before it let it be
//! and no flow of it faster than that takes; then the rest to the next coflow.
//!
//! Source: Chowdhury, Zhong and Stoica, *Efficient Coflow Scheduling with Varys* (SIGCOMM 2014), section 5. The order is
//! its user's: [`crate::Varys`]'s or [`crate::Fifo`]'s.
//! Differs: backfilling is greedy in the same order, flow by flow; Varys's own divides it among flows of a port.

use crate::active::Active;
use crate::allocator::Event;
use crate::network::CoflowId;
use crate::order::Ranks;
use crate::plan::Plan;

/// Rates for coflows that come in an order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Madd {
    plan: Plan,
    ranks: Ranks,
}

impl Madd {
    /// Sets rates anew where a coflow arrives, grows or completes; a flow that completes before its coflow leaves its
    /// links' rate to others.
    ///
    /// Cost: a few walks along the routes of all active flows in the one case; the flows on the links of those that have
    /// completed in the other.
    pub fn allocate(
        &mut self,
        event: &Event,
        active: &mut Active,
        order: impl FnOnce(&mut Plan, &Active) -> Vec<CoflowId>,
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
