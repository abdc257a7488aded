//! Coflows in an order, and the rate that a completed flow leaves to the next ones.

use crate::active::Active;
use crate::allocator::Event;
use crate::network::{CoflowId, FlowId};
use std::collections::BTreeMap;

/// The coflows that have active flows, in the order in which they came; those that came at once by their names.
pub(crate) fn by_arrival(active: &Active) -> Vec<CoflowId> {
    let mut order: Vec<CoflowId> = active.coflows().collect();
    order.sort_by_key(|id| active.coflow_so_far(*id).map(|(arrived, _)| arrived));
    order
}

/// The order in which coflows are served, first to last.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    order: Vec<CoflowId>,
    by_coflow: BTreeMap<CoflowId, u32>,
    /// Flows that may get more, in the order in which they do: by rank, then by what remains, then as they were inserted.
    candidates: Vec<(u32, u64, u64, FlowId)>,
}

impl Ranks {
    /// Sets the order.
    pub fn set(&mut self, order: Vec<CoflowId>) {
        self.by_coflow = order.iter().copied().zip(0..).collect();
        self.order = order;
    }
    /// Coflows in their order; some may have no active flows any more.
    pub fn order(&self) -> &[CoflowId] {
        &self.order
    }
    /// A coflow's place, from 0; last of all if it has none.
    pub fn of(&self, coflow: CoflowId) -> u32 {
        self.by_coflow.get(&coflow).copied().unwrap_or(u32::MAX)
    }
    /// Whether a coflow has come, has more to move or has gone, rather than some of a coflow's flows only.
    pub fn is_new_order(&self, event: &Event, active: &Active) -> bool {
        let has_gone = |id: &FlowId| active.flows_of(active.coflow(*id)).is_empty();
        !event.arrived.is_empty() || !event.grown.is_empty() || event.completed.iter().any(has_gone)
    }

    /// Gives what changes since the last decision have left of links to the flows there, in order; within a coflow to the
    /// one with the least to move first.
    ///
    /// Cost: the flows on those links.
    pub fn fill_changed(&mut self, active: &mut Active) {
        self.candidates.clear();
        let links = active.changed_links().iter().filter(|link| active.left_bps(**link) > 0.0);
        let by_coflow = &self.by_coflow;
        for id in links.flat_map(|link| active.flows_on(*link)) {
            if active.most_bps(*id) > 0.0 {
                let rank = by_coflow.get(&active.coflow(*id)).copied().unwrap_or(u32::MAX);
                // Not negative: ordered as its bits are.
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
