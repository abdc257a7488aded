//! The delivery protocol: the clusters that may serve a viewer, in order of preference. It needs
//! the last accepted decision and no state of viewers.
//!
//! Viewers of one place and bitrate are spread over the decision's clusters in proportion to the
//! decision's counts, by a number that each viewer keeps. While the proportions stay the same, each
//! viewer stays. If the proportions change, the minimum number of viewers moves (weighted
//! rendezvous hashing). Clusters of disconnected networks move to the end of the order at once. A
//! viewer whose place is not in the decision gets the clusters with the most viewers.
//!
//! Source: section 3.4.1, *Delivery Protocol*, steps 1 and 2; Schindelhauer and Schomaker,
//! *Weighted Distributed Hash Tables* (2005), for the hashing. Leaves out: answers to players
//! (`steering`). Read [`Delivery`] first.

use crate::broker::{ClusterId, Decision};
use anabranch_media::steering::Viewer;
use anabranch_units::{BitRate, PeerId, Seed};
use std::collections::{BTreeMap, BTreeSet};

/// Number of viewers on each cluster.
type Weights = BTreeMap<ClusterId, u64>;

/// A decision, indexed for answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delivery {
    round: u64,
    /// By city, provider and bitrate: number of viewers on each cluster.
    places: BTreeMap<String, BTreeMap<String, BTreeMap<BitRate, Weights>>>,
    /// The clusters with the most viewers overall.
    all: Weights,
}

/// Maximum number of clusters for a viewer whose place is not in the decision, to bound the cost of
/// ranking.
const ALL_MAX: usize = 32;

impl Delivery {
    /// Indexes a decision.
    pub fn new(decision: &Decision) -> Self {
        let mut new = Self { round: decision.round, ..Self::default() };
        for placed in &decision.placed {
            let (location, isp) = &decision.places[placed.place as usize];
            let place = new.places.entry(location.clone()).or_default().entry(isp.clone()).or_default();
            let weights = place.entry(placed.bitrate).or_default();
            if let Some((to, _)) = placed.to {
                *weights.entry(to).or_default() += u64::from(placed.sessions);
                *new.all.entry(to).or_default() += u64::from(placed.sessions);
            }
        }
        let mut most: Vec<(ClusterId, u64)> = std::mem::take(&mut new.all).into_iter().collect();
        most.sort_by_key(|(_, viewers)| std::cmp::Reverse(*viewers));
        new.all = spread(most).into_iter().collect();
        new
    }

    /// Round of the decision; 0 before the first.
    pub const fn round(&self) -> u64 {
        self.round
    }

    /// Returns up to `count` clusters for a viewer, best first; clusters of disconnected networks
    /// come last.
    ///
    /// Cost: linear in the clusters of the viewer's place, or in all clusters if there are none.
    pub fn order(&self, viewer: &Viewer, gone: &BTreeSet<PeerId>, count: usize) -> Vec<ClusterId> {
        let place = self.places.get(&viewer.location).and_then(|isps| isps.get(&viewer.isp));
        // The order begins with the clusters for the lowest bitrate at or above the viewer's, or
        // else for the highest bitrate. Clusters for other bitrates of the place follow, and then
        // clusters of all places.
        let same = place.and_then(|bitrates| {
            let above = bitrates.range(viewer.bitrate..).next();
            above.or_else(|| bitrates.last_key_value()).map(|(bitrate, _)| *bitrate)
        });
        let mut order = Vec::new();
        if let Some((place, same)) = place.zip(same) {
            rank_all(&mut order, &place[&same], viewer, gone);
            let others = place.iter().filter(|(bitrate, _)| **bitrate != same);
            others.for_each(|(_, weights)| rank_all(&mut order, weights, viewer, gone));
        }
        if order.len() < count || order.iter().all(|to| gone.contains(&to.network)) {
            rank_all(&mut order, &self.all, viewer, gone);
        }
        let (there, gone): (Vec<ClusterId>, Vec<ClusterId>) =
            order.into_iter().partition(|to| !gone.contains(&to.network));
        there.into_iter().chain(gone).take(count).collect()
    }
}

/// Moves the first cluster of each network to the front of `most`, and cuts the list at
/// [`ALL_MAX`].
fn spread(most: Vec<(ClusterId, u64)>) -> Vec<(ClusterId, u64)> {
    let mut networks = BTreeSet::new();
    let (first, more): (Vec<_>, Vec<_>) = most.into_iter().partition(|(to, _)| networks.insert(to.network));
    first.into_iter().chain(more).take(ALL_MAX).collect()
}

/// Appends the clusters of `weights` that are not in `order` yet, highest rank first.
fn rank_all(order: &mut Vec<ClusterId>, weights: &Weights, viewer: &Viewer, gone: &BTreeSet<PeerId>) {
    let new = weights.iter().filter(|(to, _)| !order.contains(*to));
    let mut ranked: Vec<(bool, f64, ClusterId)> = new
        .map(|(to, weight)| (gone.contains(&to.network), rank(viewer.number, *to, *weight), *to))
        .collect();
    ranked.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
    order.extend(ranked.into_iter().map(|(_, _, to)| to));
}

/// Rank of a cluster for a viewer. Each cluster ranks highest for a share of viewers proportional
/// to its weight.
fn rank(viewer: u64, to: ClusterId, weight: u64) -> f64 {
    let cluster = u64::from(to.network.0) << 32 | u64::from(to.cluster);
    let draw = 1.0 - Seed::new(viewer).stream("viewer", cluster).unit_f64();
    // Among exponentially distributed times with these rates, a time is the shortest with a
    // probability proportional to its rate.
    weight as f64 / -draw.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::ClientPlacement;

    fn to(network: u32, cluster: u32) -> ClusterId {
        ClusterId { network: PeerId(network), cluster }
    }

    fn decision(placed: &[(u32, u64, u32, Option<ClusterId>)]) -> Delivery {
        Delivery::new(&Decision {
            round: 7,
            places: vec![("a".into(), "x".into()), ("b".into(), "x".into())],
            placed: placed
                .iter()
                .map(|&(place, mbps, sessions, to)| ClientPlacement {
                    place,
                    bitrate: BitRate::mbps(mbps),
                    sessions,
                    to: to.map(|to| (to, 1.0)),
                })
                .collect(),
            prices_per_mbps: BTreeMap::new(),
            gap_share: 0.0,
            standings: BTreeMap::new(),
        })
    }

    fn viewer(location: &str, mbps: u64, number: u64) -> Viewer {
        Viewer { location: location.into(), isp: "x".into(), bitrate: BitRate::mbps(mbps), number }
    }

    fn firsts(delivery: &Delivery, gone: &BTreeSet<PeerId>) -> Vec<ClusterId> {
        (0..4_000).map(|number| delivery.order(&viewer("a", 2, number), gone, 3)[0]).collect()
    }

    #[test]
    fn viewers_follow_the_decisions_proportions_and_few_move() {
        let nobody = BTreeSet::new();
        let before = firsts(&decision(&[(0, 2, 30, Some(to(0, 1))), (0, 2, 10, Some(to(1, 1)))]), &nobody);
        let share =
            |of: &[ClusterId], to: ClusterId| of.iter().filter(|one| **one == to).count() as f64 / 4e3;
        assert!((share(&before, to(0, 1)) - 0.75).abs() < 0.03, "{}", share(&before, to(0, 1)));
        let after = firsts(
            &decision(&[(0, 2, 20, Some(to(0, 1))), (0, 2, 10, Some(to(1, 1))), (0, 2, 10, Some(to(2, 9)))]),
            &nobody,
        );
        assert!((share(&after, to(2, 9)) - 0.25).abs() < 0.03);
        let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count() as f64 / 4e3;
        assert!(moved < 0.33, "a quarter has to move: {moved}");
        let back = before.iter().zip(&after).filter(|(a, b)| **b == to(0, 1) && **a != to(0, 1)).count();
        assert_eq!(back, 0, "nobody moves to a cluster that has lost some");
    }

    #[test]
    fn clusters_of_disconnected_networks_rank_last() {
        let delivery =
            decision(&[(0, 2, 30, Some(to(0, 1))), (0, 2, 10, Some(to(1, 1))), (1, 2, 1, Some(to(2, 1)))]);
        let gone = BTreeSet::from([PeerId(0)]);
        for number in 0..100 {
            let order = delivery.order(&viewer("a", 2, number), &gone, 3);
            assert_eq!(order, [to(1, 1), to(2, 1), to(0, 1)]);
        }
        let order = delivery.order(&viewer("a", 2, 1), &BTreeSet::from([PeerId(0), PeerId(1)]), 2);
        assert_eq!(order[0], to(2, 1), "somebody elsewhere is better than nobody");
    }

    #[test]
    fn unmatched_viewers_get_clusters_of_other_bitrates_or_places() {
        let delivery = decision(&[(0, 2, 3, Some(to(0, 1))), (0, 5, 3, Some(to(1, 1))), (1, 2, 1, None)]);
        let first = |viewer: &Viewer| delivery.order(viewer, &BTreeSet::new(), 9)[0];
        // The cluster for the viewer's bitrate, else for the next higher bitrate, else for the
        // highest.
        assert_eq!(first(&viewer("a", 1, 1)), to(0, 1));
        assert_eq!(first(&viewer("a", 3, 1)), to(1, 1));
        assert_eq!(first(&viewer("a", 9, 1)), to(1, 1));
        assert_eq!(delivery.order(&viewer("nowhere", 1, 1), &BTreeSet::new(), 9).len(), 2);
        assert_eq!(
            delivery.order(&viewer("b", 2, 1), &BTreeSet::new(), 9).len(),
            2,
            "it is not served, but has a place"
        );
        assert_eq!(Delivery::default().order(&viewer("a", 1, 1), &BTreeSet::new(), 9), []);
    }
}
