//! How networks and the broker decide together: the thesis's designs. All have the same seven steps, and differ in three of them, *share*, *matching*
//! and *announce*.
//!
//! Source: section 3.4.2 and Table 3.2; how many clusters each matches, section 3.5.1. Leaves out: the steps that are the same (`broker`). Read
//! [`Design`] first; each is a file.

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

/// The most clusters that a network matches for a place, where it matches many.
pub const MATCHES_MANY: usize = 100;

/// What a network says of one of its clusters. What it does not say the broker takes from its contract.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Announced {
    /// What a megabit a second from it costs.
    pub price_per_mbps: Option<f64>,
    /// What it can send to the broker's clients.
    pub capacity: Option<BitRate>,
}

/// Three steps of the decision protocol.
pub trait Design: Send + Sync {
    /// What it is called in commands and tables.
    fn name(&self) -> String;

    /// Step 3, *share*: whether networks are told of the clients.
    fn shares_clients(&self) -> bool {
        false
    }

    /// Step 4, *matching*: which of the clusters that a network considers for a place it lets the broker have. They are sorted, the cheapest first.
    fn matching(&self, considered: &[Offer]) -> Vec<Offer>;

    /// Whether a network lets the broker have clusters that it does not consider, too.
    fn opens_all(&self) -> bool {
        false
    }

    /// Step 5, *announce*: what a network says of a cluster.
    fn announce(&self, site: &Site) -> Announced;

    /// Whether networks are asked before a decision counts, and may refuse it.
    fn asks(&self) -> bool {
        false
    }
}

/// The first of these, so many at the most.
fn first(considered: &[Offer], count: usize) -> Vec<Offer> {
    considered[..considered.len().min(count)].to_vec()
}

/// All of them, in the order of Table 3.3, and then the one that the thesis leaves aside.
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

/// The design that is called so; `multicluster-N` and `marketplace-N` match up to N clusters for a place.
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

    /// Table 3.2, line by line: whether clients are shared, how many clusters are matched, and whether cost and capacity are announced.
    #[test]
    fn each_differs_from_the_others_as_the_table_says() {
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
                // It does not know which of its traffic the broker's clients are.
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
