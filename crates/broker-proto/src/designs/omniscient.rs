//! The broker has complete knowledge of all networks.

use super::{ClusterAnnouncement, Design};
use crate::world::{Offer, Site};

/// Every cluster of every network may serve every place, and all values are announced.
#[derive(Copy, Clone, Debug)]
pub struct Omniscient;

impl Design for Omniscient {
    fn name(&self) -> String {
        "omniscient".to_owned()
    }
    fn shares_clients(&self) -> bool {
        true
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        considered.to_vec()
    }
    fn opens_all(&self) -> bool {
        true
    }
    fn announce(&self, site: &Site) -> ClusterAnnouncement {
        ClusterAnnouncement { price_per_mbps: Some(site.cost_per_mbps), capacity: Some(site.room()) }
    }
}
