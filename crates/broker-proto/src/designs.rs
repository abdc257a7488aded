//! The thesis's designs of joint decisions by networks and the broker. All designs have the same
//! seven steps, and differ in three steps: *share*, *matching* and *announce*.
//!
//! Source: section 3.4.2 and Table 3.2; numbers of matched clusters, section 3.5.1. Leaves out: the
//! common steps (`broker`). Read [`Design`] first; each design is a file.

mod best_lookup;
mod brokered;
mod dynamic_multicluster;
mod dynamic_pricing;
mod marketplace;
mod multicluster;
mod omniscient;
mod transactions;

pub use best_lookup::BestLookup;
pub use brokered::Brokered;
pub use dynamic_multicluster::DynamicMulticluster;
pub use dynamic_pricing::DynamicPricing;
pub use marketplace::Marketplace;
pub use multicluster::Multicluster;
pub use omniscient::Omniscient;
pub use transactions::Transactions;

use crate::world::{Offer, Site};
use anabranch_units::BitRate;
use std::sync::Arc;

/// Number of clusters that a network matches for a place, in designs that match many.
pub const MATCHES_MANY: usize = 100;

/// A network's announcement of one cluster. The contract supplies missing values.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct ClusterAnnouncement {
    /// Price per Mbit/s.
    pub price_per_mbps: Option<f64>,
    /// Rate that the cluster can send to the broker's clients.
    pub capacity: Option<BitRate>,
}

/// The three variable steps of the decision protocol.
pub trait Design: Send + Sync {
    /// Name of the design in commands and tables.
    fn name(&self) -> String;

    /// Step 3, *share*: returns true if the broker tells networks the number of clients.
    fn shares_clients(&self) -> bool {
        false
    }

    /// Step 4, *matching*: selects the clusters to offer to the broker. `considered` has the
    /// clusters considered for a place, sorted by cost.
    fn matching(&self, considered: &[Offer]) -> Vec<Offer>;

    /// Returns true if a network also offers clusters that it does not consider.
    fn opens_all(&self) -> bool {
        false
    }

    /// Step 5, *announce*: returns the announcement of a cluster.
    fn announce(&self, site: &Site) -> ClusterAnnouncement;

    /// Returns true if networks must assent before a decision counts.
    fn asks(&self) -> bool {
        false
    }
}

/// Returns the first `count` clusters, or all if there are fewer.
fn first(considered: &[Offer], count: usize) -> Vec<Offer> {
    considered[..considered.len().min(count)].to_vec()
}

/// All designs, in the order of Table 3.3, followed by Transactions, which the thesis leaves aside.
pub fn all() -> Vec<Arc<dyn Design>> {
    vec![
        Arc::new(Brokered),
        Arc::new(Multicluster { clusters: 2 }),
        Arc::new(Multicluster { clusters: MATCHES_MANY }),
        Arc::new(DynamicPricing),
        Arc::new(DynamicMulticluster),
        Arc::new(BestLookup),
        Arc::new(Marketplace::default()),
        Arc::new(Omniscient),
        Arc::new(Transactions),
    ]
}

/// Returns the design of this name. In `multicluster-N` and `marketplace-N`, a network offers at
/// most N clusters for each location.
pub fn by_name(name: &str) -> Option<Arc<dyn Design>> {
    let count =
        |prefix| name.strip_prefix(prefix).and_then(|count: &str| count.parse().ok()).filter(|n| *n > 0);
    if let Some(clusters) = count("multicluster-") {
        return Some(Arc::new(Multicluster { clusters }));
    }
    if let Some(bids) = count("marketplace-") {
        return Some(Arc::new(Marketplace { bids }));
    }
    all().into_iter().find(|design| design.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn considered() -> Vec<Offer> {
        (0..150).map(|cluster| Offer { cluster, score: 1.0 + f64::from(cluster) }).collect()
    }

    /// The rows of Table 3.2: whether clients are shared, number of matched clusters, announced
    /// cost and announced capacity.
    #[test]
    fn designs_differ_as_table_3_2_lists() {
        let site = Site {
            network: 0,
            city: 0,
            cost_per_mbps: 3.0,
            capacity: BitRate::mbps(100),
            background: BitRate::mbps(30),
        };
        let rows: Vec<_> = all()
            .iter()
            .map(|design| {
                let said = design.announce(&site);
                let capacity_mbps = said.capacity.map(|rate| rate.as_bps() / 1_000_000);
                let matched = design.matching(&considered()).len();
                (design.name(), design.shares_clients(), matched, said.price_per_mbps, capacity_mbps)
            })
            .collect();
        let row = |name: &str, shares, matched, price, capacity| {
            (name.to_owned(), shares, matched, price, capacity)
        };
        assert_eq!(
            rows,
            [
                row("brokered", false, 1, None, None),
                row("multicluster-2", false, 2, None, None),
                row("multicluster-100", false, 100, None, None),
                row("dynamic-pricing", false, 1, Some(3.0), None),
                row("dynamic-multicluster", false, 100, Some(3.0), None),
                // The network cannot distinguish the broker's clients from its other clients, so it
                // announces all.
                row("best-lookup", false, 100, Some(3.0), Some(100)),
                row("marketplace", true, 100, Some(3.0), Some(70)),
                row("omniscient", true, 150, Some(3.0), Some(70)),
                row("transactions", true, 100, Some(3.0), Some(70)),
            ]
        );
        for design in all() {
            assert_eq!(by_name(&design.name()).map(|found| found.name()), Some(design.name()));
        }
        assert_eq!(by_name("marketplace-7").map(|found| found.matching(&considered()).len()), Some(7));
        assert!(["marketplace-0", "marketplace-x", "auction", ""].iter().all(|name| by_name(name).is_none()));
        let asking: Vec<String> = all().iter().filter(|design| design.asks()).map(|d| d.name()).collect();
        assert_eq!(asking, ["transactions"]);
    }
}
