//! Answers to players' steering requests: manifests with the pathways that the last accepted
//! decision prefers.
//!
//! A network is a pathway of the players' manifests, and a cluster is a clone of it. Leaves out:
//! the formats of requests and manifests (`media::steering`), the order of the clusters
//! (`delivery`). Read [`answer`].

use crate::delivery::Delivery;
use anabranch_media::steering::{PATHWAYS_MAX, PathwayTable, SteeringManifest, SteeringQuery};
use anabranch_units::PeerId;
use std::collections::BTreeSet;

/// Pathways of all networks.
pub type Catalogue = PathwayTable<PeerId>;

/// Answers a player's request; clusters of the networks in `gone` are last. Returns `None` if no
/// network is known.
///
/// Source: VDX, section 3.4.1, *Delivery Protocol*.
pub fn answer(
    delivery: &Delivery,
    catalogue: &Catalogue,
    gone: &BTreeSet<PeerId>,
    query: &SteeringQuery,
    ttl_s: u32,
) -> Option<SteeringManifest> {
    let order = delivery.order(&query.viewer, gone, PATHWAYS_MAX);
    let preferred = order.into_iter().map(|to| (to.network, to.cluster));
    SteeringManifest::new(preferred, catalogue, gone, query, ttl_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{ClientPlacement, ClusterId, Decision};
    use anabranch_media::steering::{Dialect, Pathway, TTL_S, Viewer};
    use anabranch_units::BitRate;
    use std::collections::BTreeMap;

    #[test]
    fn clusters_of_the_decision_rank_first() {
        let to = |network, cluster| ClusterId { network: PeerId(network), cluster };
        let placed =
            |to| ClientPlacement { place: 0, bitrate: BitRate::mbps(3), sessions: 5, to: Some((to, 1.0)) };
        let delivery = Delivery::new(&Decision {
            round: 3,
            places: vec![("nowhere".into(), "none".into())],
            placed: vec![placed(to(0, 4)), placed(to(1, 0))],
            prices_per_mbps: BTreeMap::new(),
            gap_share: 0.0,
            standings: BTreeMap::new(),
        });
        let pathway = |id: &str, hosts: &[(u32, &str)]| Pathway {
            id: id.into(),
            hosts: hosts.iter().map(|(cluster, host)| (*cluster, (*host).to_owned())).collect(),
        };
        let catalogue = Catalogue::from([
            (PeerId(0), pathway("alpha", &[(4, "a4.example")])),
            (PeerId(1), pathway("beta", &[])),
            (PeerId(2), pathway("gamma", &[])),
        ]);
        let viewer =
            Viewer { location: "nowhere".into(), isp: "none".into(), number: 1, bitrate: BitRate::mbps(3) };
        let query = SteeringQuery::new(Dialect::Hls, viewer);
        let of = |gone: &BTreeSet<PeerId>| {
            answer(&delivery, &catalogue, gone, &query, TTL_S).expect("there are networks").pathway_priority
        };
        let mut all = of(&BTreeSet::new());
        assert_eq!(all.split_off(2), ["alpha", "gamma"], "the pathways of the manifest come last");
        all.sort_unstable();
        assert_eq!(all, ["alpha.4", "beta"]);
        assert_eq!(of(&BTreeSet::from([PeerId(0)])), ["beta", "alpha.4", "gamma", "alpha"]);
        let none = answer(&delivery, &Catalogue::new(), &BTreeSet::new(), &query, TTL_S);
        assert_eq!(none, None);
    }
}
