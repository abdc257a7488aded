//! Coflows in an order, and the redistribution of a completed flow's rate.

use crate::active::ActiveFlows;
use crate::allocator::Event;
use crate::network::{CoflowId, FlowId};
use std::collections::BTreeMap;

/// Coflows with active flows in the order of arrival; simultaneous ones by name.
pub(crate) fn by_arrival(active: &ActiveFlows) -> Vec<CoflowId> {
    let mut order: Vec<CoflowId> = active.coflows().collect();
    order.sort_by_key(|id| active.coflow_so_far(*id).map(|(arrived, _)| arrived));
    order
}

/// The order in which coflows are served, first to last.
#[derive(Clone, Debug, Default)]
pub struct CoflowOrder {
    order: Vec<CoflowId>,
    by_coflow: BTreeMap<CoflowId, u32>,
    /// Flows that may get more, in the order of service: by rank, then by remaining volume, then by
    /// insertion.
    candidates: Vec<(u32, u64, u64, FlowId)>,
}

impl CoflowOrder {
    /// Sets the order.
    pub fn set(&mut self, order: Vec<CoflowId>) {
        self.by_coflow = order.iter().copied().zip(0..).collect();
        self.order = order;
    }
    /// Coflows in their order; some may have no active flows any more.
    pub fn order(&self) -> &[CoflowId] {
        &self.order
    }
    /// Position of a coflow, from 0; the maximum if it has none.
    pub fn of(&self, coflow: CoflowId) -> u32 {
        self.by_coflow.get(&coflow).copied().unwrap_or(u32::MAX)
    }
    /// Whether a coflow has arrived, grown or ended, rather than only some of a coflow's flows.
    pub fn is_new_order(&self, event: &Event, active: &ActiveFlows) -> bool {
        let has_gone = |id: &FlowId| active.flows_of(active.coflow(*id)).is_empty();
        !event.arrived.is_empty() || !event.grown.is_empty() || event.completed.iter().any(has_gone)
    }

    /// Gives unused rates of links that changed since the last decision to flows there, in order;
    /// within a coflow the flow with the least remaining volume comes first.
    ///
    /// Cost: the flows on those links.
    pub fn fill_changed(&mut self, active: &mut ActiveFlows) {
        self.candidates.clear();
        let links = active.changed_links().iter().filter(|link| active.left_bps(**link) > 0.0);
        let by_coflow = &self.by_coflow;
        for id in links.flat_map(|link| active.flows_on(*link)) {
            if active.most_bps(*id) > 0.0 {
                let rank = by_coflow.get(&active.coflow(*id)).copied().unwrap_or(u32::MAX);
                // Not negative: sorts like its bits.
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
