//! An order of coflows, and the redistribution of a completed flow's rate in this order.

use crate::active::ActiveFlows;
use crate::allocator::Event;
use crate::network::{CoflowId, FlowId};
use std::collections::BTreeMap;

/// Returns the coflows with active flows in the order of arrival; simultaneous coflows are ordered
/// by id.
pub(crate) fn by_arrival(active: &ActiveFlows) -> Vec<CoflowId> {
    let mut order: Vec<CoflowId> = active.coflows().collect();
    order.sort_by_key(|id| active.coflow_so_far(*id).map(|(arrived, _)| arrived));
    order
}

/// The order in which coflows are served.
#[derive(Clone, Debug, Default)]
pub struct CoflowOrder {
    order: Vec<CoflowId>,
    by_coflow: BTreeMap<CoflowId, u32>,
    /// Flows that may get more rate, in the order of service: rank, remaining volume in bits,
    /// serial number, id.
    candidates: Vec<(u32, u64, u64, FlowId)>,
}

impl CoflowOrder {
    /// Sets the order.
    pub fn set(&mut self, order: Vec<CoflowId>) {
        self.by_coflow = order.iter().copied().zip(0..).collect();
        self.order = order;
    }
    /// Returns the coflows in their order. Some of them may have no active flows any more.
    pub fn order(&self) -> &[CoflowId] {
        &self.order
    }
    /// Returns the position of a coflow, starting at 0, or the maximum if the coflow is not in the
    /// order.
    pub fn of(&self, coflow: CoflowId) -> u32 {
        self.by_coflow.get(&coflow).copied().unwrap_or(u32::MAX)
    }
    /// Returns true if a coflow has arrived, grown or ended. Returns false if only some flows of a
    /// coflow have completed.
    pub fn is_new_order(&self, event: &Event, active: &ActiveFlows) -> bool {
        let has_gone = |id: &FlowId| active.flows_of(active.coflow(*id)).is_empty();
        !event.arrived.is_empty() || !event.grown.is_empty() || event.completed.iter().any(has_gone)
    }

    /// Distributes the unused rates of links that have changed since the last decision to flows on
    /// these links, coflow by coflow in the order. Within a coflow, the flow with the smallest
    /// remaining volume comes first.
    ///
    /// Cost: the flows on these links.
    pub fn fill_changed(&mut self, active: &mut ActiveFlows) {
        self.candidates.clear();
        let links = active.changed_links().iter().filter(|link| active.left_bps(**link) > 0.0);
        let by_coflow = &self.by_coflow;
        for id in links.flat_map(|link| active.flows_on(*link)) {
            if active.most_bps(*id) > 0.0 {
                let rank = by_coflow.get(&active.coflow(*id)).copied().unwrap_or(u32::MAX);
                // Remaining volumes are not negative, so they sort like their bits.
                self.candidates.push((rank, active.remaining_bits(*id).to_bits(), active.serial(*id), *id));
            }
        }
        self.candidates.sort_unstable();
        for (.., id) in &self.candidates {
            let more_bps = active.most_bps(*id);
            if more_bps > 0.0 {
                active.set_bps(*id, active.bps(*id) + more_bps);
            }
        }
    }
}
