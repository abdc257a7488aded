//! Exercise of networks' bids, for a fuzz target.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise_bids`].

use crate::broker::{Broker, Contract, Event, PlaceDemand, Settings};
use crate::designs::Marketplace;
use crate::messages::{Bids, Clients};
use anabranch_units::{Instant, PeerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Handles bids in JSON form in an open round of two places, before small bids of a second network.
/// Returns true if all bids were accepted.
///
/// Panics: if a bid is neither accepted nor refused, or a cluster gets more than was bid.
pub fn exercise_bids(bytes: &[u8]) -> bool {
    let Ok(bids) = serde_json::from_slice::<Bids>(bytes) else { return false };
    let settings = Settings::new(Arc::new(Marketplace::default()));
    let mut broker = Broker::new(Instant::ZERO, settings);
    let contract = Contract { clusters_max: 100, bids_max: 1_000, ..Contract::default() };
    for network in [PeerId(0), PeerId(1)] {
        broker.handle_joined(network, contract.clone());
    }
    let place = |location: &str| PlaceDemand {
        location: location.to_owned(),
        isp: "any".to_owned(),
        clients: vec![Clients { bitrate_bps: 1_000_000, sessions: 10 }],
    };
    broker.handle_gathered(vec![place("a"), place("b")]);
    broker.handle_timeout(Instant::ZERO);
    let count: u64 = bids.shares.iter().map(|of| of.clusters.len() as u64).sum();
    let said: BTreeMap<u32, u64> =
        bids.clusters.iter().rev().filter_map(|bid| Some((bid.cluster, bid.capacity_bps?))).collect();
    let reply = broker.handle_bids(PeerId(0), Bids { round: 1, ..bids });
    assert!(reply.taken + reply.refused >= count, "{reply:?}");
    let other = r#"{"round":1,"clusters":[{"cluster":1,"price":1.0,"capacity_bps":5000000}],"shares":[{"share":0,"clusters":[[1,9.0]]}],"more":false}"#;
    broker.handle_bids(PeerId(1), serde_json::from_str(other).expect("these are bids"));
    let at = broker.poll_timeout().unwrap_or(Instant::ZERO);
    broker.handle_timeout(at);
    if let Some(job) = broker.poll_job() {
        broker.handle_answer(at, &job, job.run());
    }
    while let Some(event) = broker.poll_event() {
        let Event::Accepted(decision) = event else { continue };
        let mut sent: BTreeMap<u32, u64> = BTreeMap::new();
        for placed in &decision.placed {
            if let Some((to, _)) = placed.to.filter(|(to, _)| to.network == PeerId(0)) {
                *sent.entry(to.cluster).or_default() += u64::from(placed.sessions) * placed.bitrate.as_bps();
            }
        }
        for (cluster, bps) in sent {
            assert!(said.get(&cluster).is_none_or(|most| bps <= *most), "cluster {cluster}: {bps} bit/s");
        }
    }
    reply.refused == 0 && reply.taken == count
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn corpus_inputs_are_accepted_or_refused_as_named() {
        assert!(replay("broker_bids", super::exercise_bids) >= 4);
    }
}
