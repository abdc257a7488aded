//! Validation of a network's bids: each bid is accepted or refused separately, with a reason.
//!
//! Leaves out: the deadline of bids (`broker`), and their truth (`standing`). Read [`check`] first.

use super::Contract;
use crate::designs::ClusterAnnouncement;
use crate::limits::{check_capacity, check_score};
use crate::messages::{Bids, BidsReply};
use anabranch_units::BitRate;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of reasons reported; further refusals are only counted.
const REASONS_MAX: usize = 20;

/// Valid bids of a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CheckedBids {
    /// True if no more bids follow.
    pub(super) is_all: bool,
    /// Number of valid bids.
    taken: u64,
    /// Announcements, by the cluster's id within the network.
    pub(super) clusters: BTreeMap<u32, ClusterAnnouncement>,
    /// Clusters and scores, by share.
    pub(super) shares: BTreeMap<u32, Vec<(u32, f64)>>,
}

/// Counts of accepted and refused bids.
#[derive(Default)]
struct Account(BidsReply);

impl Account {
    fn refuse(&mut self, count: u64, why: impl FnOnce() -> String) {
        self.0.refused += count;
        if count > 0 && self.0.reasons.len() < REASONS_MAX {
            self.0.reasons.push(why());
        }
    }
}

/// Validates bids for a round of `shares` shares, and adds the valid ones to `checked`. Returns the
/// counts and reasons of refusals. A bid is one cluster for one share.
pub(super) fn check(contract: &Contract, shares: u32, bids: Bids, checked: &mut CheckedBids) -> BidsReply {
    let mut account = Account::default();
    checked.is_all = !bids.more;
    for bid in bids.clusters {
        let cluster = bid.cluster;
        if checked.clusters.len() >= contract.clusters_max as usize {
            account
                .refuse(1, || format!("cluster {cluster}: there may be {} of them", contract.clusters_max));
            continue;
        }
        let most = contract.price_max_per_mbps;
        if let Some(price) = bid.price.filter(|price| !(0.0..=most).contains(price)) {
            account.refuse(1, || format!("cluster {cluster}: price {price} a Mbit/s: must be 0 to {most}"));
            continue;
        }
        let capacity = bid.capacity_bps.map(BitRate::bps);
        if let Some(Err(error)) = capacity.map(|capacity| check_capacity("capacity", capacity)) {
            account.refuse(1, || format!("cluster {cluster}: {error}"));
            continue;
        }
        let said = ClusterAnnouncement { price_per_mbps: bid.price, capacity };
        if checked.clusters.contains_key(&cluster) {
            account.refuse(1, || format!("cluster {cluster}: is said twice: the first counts"));
            continue;
        }
        checked.clusters.insert(cluster, said);
    }
    for of in bids.shares {
        let (share, count) = (of.share, of.clusters.len() as u64);
        if share >= shares {
            account.refuse(count, || format!("share {share}: there are {shares}, from 0 on"));
            continue;
        }
        if checked.shares.contains_key(&share) {
            account.refuse(count, || format!("share {share}: is said twice: the first counts"));
            continue;
        }
        let (mut taken, mut seen) = (Vec::new(), BTreeSet::new());
        for (cluster, score) in of.clusters {
            let why = if checked.taken == contract.bids_max {
                format!("there may be {} bids in a round", contract.bids_max)
            } else if let Err(error) = check_score(score) {
                error.to_string()
            } else if !checked.clusters.contains_key(&cluster) {
                "nothing that counts is said of this cluster".to_owned()
            } else if !seen.insert(cluster) {
                "is said twice: the first counts".to_owned()
            } else {
                checked.taken += 1;
                account.0.taken += 1;
                taken.push((cluster, score));
                continue;
            };
            account.refuse(1, || format!("share {share}, cluster {cluster}: {why}"));
        }
        if !taken.is_empty() {
            checked.shares.insert(share, taken);
        }
    }
    account.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{ClusterBid, ShareBids};
    use proptest::prelude::*;

    fn contract() -> Contract {
        Contract { clusters_max: 2, bids_max: 4, price_max_per_mbps: 10.0, ..Contract::default() }
    }

    fn cluster(cluster: u32) -> ClusterBid {
        ClusterBid { cluster, price: Some(1.0), capacity_bps: Some(1_000_000) }
    }

    #[test]
    fn each_invalid_bid_is_refused_separately_with_a_reason() {
        let bids = Bids {
            round: 1,
            clusters: vec![
                cluster(0),
                ClusterBid { price: Some(11.0), ..cluster(1) },
                cluster(0),
                cluster(3),
                cluster(4),
            ],
            shares: vec![
                ShareBids { share: 0, clusters: vec![(0, 1.0), (0, 2.0), (1, 1.0), (4, 1.0)] },
                ShareBids { share: 9, clusters: vec![(0, 1.0), (0, 2.0)] },
                ShareBids { share: 0, clusters: vec![(0, 3.0)] },
                ShareBids { share: 1, clusters: vec![(0, f64::NAN), (0, -1.0), (0, 2.0)] },
            ],
            more: false,
        };
        let mut checked = CheckedBids::default();
        let reply = check(&contract(), 2, bids, &mut checked);
        assert_eq!(checked.shares, BTreeMap::from([(0, vec![(0, 1.0)]), (1, vec![(0, 2.0)])]));
        assert_eq!((reply.taken, reply.refused), (2, 11));
        assert_eq!(
            reply.reasons,
            [
                "cluster 1: price 11 a Mbit/s: must be 0 to 10",
                "cluster 0: is said twice: the first counts",
                "cluster 4: there may be 2 of them",
                "share 0, cluster 0: is said twice: the first counts",
                "share 0, cluster 1: nothing that counts is said of this cluster",
                "share 0, cluster 4: nothing that counts is said of this cluster",
                "share 9: there are 2, from 0 on",
                "share 0: is said twice: the first counts",
                "share 1, cluster 0: score NaN: must be 0 to 10^9: choose a larger unit, or leave the cluster out",
                "share 1, cluster 0: score -1: must be 0 to 10^9: choose a larger unit, or leave the cluster out",
            ]
        );
    }

    #[test]
    fn bids_beyond_the_limit_are_refused_with_reasons() {
        let all = (0..1_000).map(|share| ShareBids { share, clusters: vec![(0, 1.0)] }).collect();
        let bids = Bids { round: 1, clusters: vec![cluster(0)], shares: all, more: true };
        let mut checked = CheckedBids::default();
        let reply = check(&contract(), 1_000, bids.clone(), &mut checked);
        assert_eq!((checked.shares.len(), reply.taken, reply.refused), (4, 4, 996));
        let more = check(&contract(), 1_000, bids, &mut checked);
        assert_eq!((checked.shares.len(), more.taken, checked.is_all), (4, 0, false));
        assert_eq!(
            (reply.reasons.len(), &*reply.reasons[0]),
            (20, "share 4, cluster 0: there may be 4 bids in a round")
        );
    }

    proptest! {
        /// For any input, valid bids are within the contract, and each bid is either accepted or
        /// refused.
        #[test]
        fn accepted_bids_stay_within_the_contract(
            clusters in proptest::collection::vec((0u32..6, proptest::option::of(proptest::num::f64::ANY), proptest::option::of(0u64..u64::MAX)), 0..8),
            shares in proptest::collection::vec((0u32..6, proptest::collection::vec((0u32..6, proptest::num::f64::ANY), 0..6)), 0..6),
        ) {
            let bids = Bids {
                round: 1,
                clusters: clusters
                    .iter()
                    .map(|&(cluster, price, capacity_bps)| ClusterBid { cluster, price, capacity_bps })
                    .collect(),
                shares: shares.iter().map(|(share, clusters)| ShareBids { share: *share, clusters: clusters.clone() }).collect(),
                more: false,
            };
            let all: usize = shares.iter().map(|(_, clusters)| clusters.len()).sum();
            let contract = contract();
            let mut checked = CheckedBids::default();
            let reply = check(&contract, 4, bids, &mut checked);
            let taken: usize = checked.shares.values().map(Vec::len).sum();
            prop_assert_eq!(taken as u64, reply.taken);
            prop_assert!(reply.taken + reply.refused >= all as u64 && taken <= contract.bids_max as usize);
            prop_assert!(checked.clusters.len() <= contract.clusters_max as usize);
            for said in checked.clusters.values() {
                prop_assert!(said.price_per_mbps.is_none_or(|price| (0.0..=10.0).contains(&price)));
            }
            for (share, bids) in &checked.shares {
                prop_assert!(*share < 4 && bids.iter().all(|(cluster, score)| checked.clusters.contains_key(cluster) && *score >= 0.0));
            }
        }
    }
}
