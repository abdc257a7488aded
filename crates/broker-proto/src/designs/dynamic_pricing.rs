//! One cluster for each place, with its cost.

use super::{ClusterAnnouncement, Design, first};
use crate::world::{Offer, Site};

/// For each place a network offers its cheapest cluster, and announces the cluster's cost.
#[derive(Copy, Clone, Debug)]
pub struct DynamicPricing;

impl Design for DynamicPricing {
    fn name(&self) -> String {
        "dynamic-pricing".to_owned()
    }
    fn matching(&self, considered: &[Offer]) -> Vec<Offer> {
        first(considered, 1)
    }
    fn announce(&self, site: &Site) -> ClusterAnnouncement {
        ClusterAnnouncement { price_per_mbps: Some(site.cost_per_mbps), capacity: None }
    }
}
