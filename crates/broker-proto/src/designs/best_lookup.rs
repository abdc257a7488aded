//! Many clusters for each place, with costs and capacities; but a network does not know the
//! broker's clients.

use super::{ClusterAnnouncement, Design, MATCHES_MANY, first};
use crate::world::{Offer, Site};

/// A network announces the whole capacity of each cluster. It cannot subtract its other traffic
/// without knowing the broker's clients.
#[derive(Copy, Clone, Debug)]
pub struct BestLookup;

impl Design for BestLookup {
    fn name(&self) -> String {
        "best-lookup".to_owned()
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        first(considered, MATCHES_MANY)
    }
    fn announce(&self, site: &Site) -> ClusterAnnouncement {
        ClusterAnnouncement { price_per_mbps: Some(site.cost_per_mbps), capacity: Some(site.capacity) }
    }
}
