//! Transfers in an order, and what a flow that has completed leaves to those that come next in it.

use crate::active::Active;
use crate::allocator::Event;
use crate::network::{FlowId, LinkId, TransferId};
use std::collections::BTreeMap;

/// The transfers that have active flows, in the order in which they came; those that came at once by their names.
pub(crate) fn by_arrival(active: &Active) -> Vec<TransferId> {
    let mut order: Vec<TransferId> = active.transfers().collect();
    order.sort_by_key(|id| active.transfer_so_far(*id).map(|(arrived, _)| arrived));
    order
}

/// The order in which transfers are served, first to last.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    by_transfer: BTreeMap<TransferId, u32>,
    /// Flows that may get more, in the order in which they do.
    candidates: Vec<(u32, FlowId)>,
}

impl Ranks {
    /// Sets the order.
    pub fn set(&mut self, order: impl IntoIterator<Item = TransferId>) {
        self.by_transfer = order.into_iter().zip(0..).collect();
    }
    /// A transfer's place, from 0; last of all if it has none.
    pub fn of(&self, transfer: TransferId) -> u32 {
        self.by_transfer.get(&transfer).copied().unwrap_or(u32::MAX)
    }
    /// Whether a transfer has come, has more to move or has gone, rather than some of a transfer's flows only.
    pub fn is_new_order(&self, event: &Event, active: &Active) -> bool {
        let has_gone = |id: &FlowId| active.flows_of(active.transfer(*id)).is_empty();
        !event.arrived.is_empty() || !event.grown.is_empty() || event.completed.iter().any(has_gone)
    }

    /// Gives what flows that have completed leave of their links to others there, in order.
    ///
    /// Cost: the flows on those links.
    pub fn fill_after(&mut self, event: &Event, active: &mut Active) {
        let mut links: Vec<LinkId> = event.completed.iter().flat_map(|id| active.route(*id)).collect();
        links.sort_unstable();
        links.dedup();
        links.retain(|link| active.left_bps(*link) > 0.0);
        self.candidates.clear();
        for id in links.iter().flat_map(|link| active.flows_on(*link)) {
            if active.most_bps(*id) > 0.0 {
                self.candidates.push((self.of(active.transfer(*id)), *id));
            }
        }
        self.candidates.sort_unstable();
        for (_, id) in &self.candidates {
            let more_bps = active.most_bps(*id);
            if more_bps > 0.0 {
                active.set_bps(*id, active.bps(*id) + more_bps);
            }
        }
    }
}
