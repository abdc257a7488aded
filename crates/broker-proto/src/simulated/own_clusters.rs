//! A simulated network's knowledge of its clusters.
//!
//! Leaves out: bids (`agent`). Read [`OwnClusters`].

use crate::agent::Estimates;
use crate::world::{Offer, Site, considered};
use anabranch_units::BitRate;
use std::collections::BTreeMap;

/// A network's knowledge of its clusters.
#[derive(Debug)]
pub(super) struct OwnClusters {
    pub(super) network: u32,
    pub(super) cost: f64,
    pub(super) capacities: Vec<BitRate>,
    /// Offers for each city.
    pub(super) offers: BTreeMap<String, Vec<Offer>>,
}

impl Estimates for OwnClusters {
    fn site(&self, cluster: u32) -> Option<Site> {
        let capacity = *self.capacities.get(cluster as usize)?;
        let (network, cost_per_mbps) = (self.network, self.cost);
        Some(Site { network, city: 0, cost_per_mbps, capacity, background: BitRate::bps(0) })
    }
    fn considered(&self, location: &str, isp: &str) -> Vec<Offer> {
        considered(self.all(location, isp), |_| self.cost)
    }
    fn all(&self, location: &str, _: &str) -> Vec<Offer> {
        self.offers.get(location).cloned().unwrap_or_default()
    }
}
