//! Varys: the transfer with the shortest bottleneck first, each flow just in time for it, and what is left to whoever is next.
//!
//! Source: Chowdhury, Zhong and Stoica, *Efficient Coflow Scheduling with Varys* (SIGCOMM 2014), section 5: SEBF (smallest
//! effective bottleneck first) orders, MADD (minimum allocation for desired duration) sets rates, backfilling gives away what
//! that leaves. Order and rates are set anew when a transfer arrives, grows or completes; a flow that completes before its
//! transfer leaves its links' rate to others. It knows the volumes of flows that have arrived, and of no others.
//! Differs: backfilling is greedy in the same order, flow by flow; Varys's own divides it among flows of a port.

use crate::active::Active;
use crate::allocator::{Allocator, Event};
use crate::network::TransferId;
use crate::order::Ranks;
use crate::plan::Plan;

/// Smallest effective bottleneck first.
#[derive(Clone, Debug, Default)]
pub struct Varys {
    plan: Plan,
    ranks: Ranks,
}

impl Allocator for Varys {
    /// Cost: a few walks along the routes of all active flows where a transfer arrives, grows or completes; else the flows on
    /// the links of those that have completed.
    fn allocate(&mut self, event: &Event, active: &mut Active) {
        let Self { plan, ranks } = self;
        if !ranks.is_new_order(event, active) {
            return ranks.fill_changed(active);
        }
        plan.begin(active);
        let mut order: Vec<(f64, TransferId)> =
            active.transfers().map(|id| (plan.alone_s(active, active.flows_of(id)), id)).collect();
        // Equal ones in the order of their names.
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, transfer) in &order {
            let flows = active.flows_of(*transfer);
            let time_s = plan.left_s(active, flows);
            if time_s.is_finite() {
                flows.iter().for_each(|id| plan.give(active, *id, active.remaining_bits(*id) / time_s));
            }
        }
        order.iter().for_each(|(_, transfer)| plan.fill(active, active.flows_of(*transfer)));
        plan.set(active);
        ranks.set(order.into_iter().map(|(_, transfer)| transfer).collect());
    }
}
