//! VDX: the broker tells networks the number of clients, and the networks bid for the clients.

use super::{ClusterAnnouncement, Design, MATCHES_MANY, first};
use crate::world::{Offer, Site};

/// A network knows the broker's clients, so it announces the capacity that its other traffic
/// leaves.
#[derive(Copy, Clone, Debug)]
pub struct Marketplace {
    /// Maximum number of clusters that a network bids for a place.
    pub bids: usize,
}

impl Default for Marketplace {
    fn default() -> Self {
        Self { bids: MATCHES_MANY }
    }
}

impl Design for Marketplace {
    fn name(&self) -> String {
        if self.bids == MATCHES_MANY {
            "marketplace".to_owned()
        } else {
            format!("marketplace-{}", self.bids)
        }
    }
    fn shares_clients(&self) -> bool {
        true
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        first(considered, self.bids)
    }
    fn announce(&self, site: &Site) -> ClusterAnnouncement {
        ClusterAnnouncement { price_per_mbps: Some(site.cost_per_mbps), capacity: Some(site.room()) }
    }
}
