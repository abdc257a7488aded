//! Several clusters for each place, at the network's single price.

use super::{ClusterAnnouncement, Design, first};
use crate::world::{Offer, Site};

/// A network matches its cheapest clusters, and the broker learns the score of each.
#[derive(Copy, Clone, Debug)]
pub struct Multicluster {
    /// Maximum number of clusters for a place; the thesis has 2 and 100.
    pub clusters: usize,
}

impl Design for Multicluster {
    fn name(&self) -> String {
        format!("multicluster-{}", self.clusters)
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        first(considered, self.clusters)
    }
    fn announce(&self, _: &Site) -> ClusterAnnouncement {
        ClusterAnnouncement::default()
    }
}
