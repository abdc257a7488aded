//! Many clusters for each place, with costs but without capacities.

use super::{ClusterAnnouncement, Design, MATCHES_MANY, first};
use crate::world::{Offer, Site};

/// A network matches many clusters and announces the cost of each.
#[derive(Copy, Clone, Debug)]
pub struct DynamicMulticluster;

impl Design for DynamicMulticluster {
    fn name(&self) -> String {
        "dynamic-multicluster".to_owned()
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        first(considered, MATCHES_MANY)
    }
    fn announce(&self, site: &Site) -> ClusterAnnouncement {
        ClusterAnnouncement { price_per_mbps: Some(site.cost_per_mbps), capacity: None }
    }
}
