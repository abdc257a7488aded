//! Exercises of the parsers of outside bytes, for fuzz targets: an operator's files, stored
//! decisions, requests, a broker's replies.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise_contracts`] first.

use crate::contracts::Contracts;
use crate::decision_form::read_decision;
use crate::service::{BrokerService, BrokerServiceConfig, StoreConfig};
use crate::wire::{BidsReply, CountedReply, DecisionView, MessagesReply, NetworkMessage};
use anabranch_broker_proto::agent_session::{parts, totals};
use anabranch_broker_proto::broker::{NetworkTrust, Settings};
use anabranch_broker_proto::delivery::Delivery;
use anabranch_broker_proto::{Agent, Estimates, Offer, Site, designs};
use anabranch_http::exercise::requests;
use anabranch_media::steering::Viewer;
use anabranch_net::keys::Role;
use anabranch_net::tls::PeerIdentity;
use anabranch_units::{BitRate, PeerId};
use std::collections::BTreeSet;

const CONTRACTS: &str = "[[network]]\nname = \"a\"\n[[network.cluster]]\nnumber = 1\nhost = \"a1.example\"\n[[network]]\nname = \"b\"\n";

/// Parses a contracts file. Returns true if it is valid.
pub fn exercise_contracts(bytes: &[u8]) -> bool {
    let Ok(contracts) = String::from_utf8_lossy(bytes).parse::<Contracts>() else { return false };
    for network in contracts.numbers() {
        assert_eq!(contracts.number(contracts.name(network)), Some(network));
    }
    assert_eq!(contracts.catalogue().len(), contracts.numbers().count());
    true
}

/// Parses a stored decision. Returns true if it is valid.
pub fn exercise_stored(bytes: &[u8]) -> bool {
    let Ok(view) = serde_json::from_slice::<DecisionView>(bytes) else { return false };
    let decision = read_decision(&view, &CONTRACTS.parse().expect("it is right"));
    assert!(decision.standings.values().all(NetworkTrust::is_possible));
    let delivery = Delivery::new(&decision);
    for (location, isp) in view.places.iter().take(100) {
        let viewer =
            Viewer { location: location.clone(), isp: isp.clone(), bitrate: BitRate::bps(1), number: 1 };
        let order = delivery.order(&viewer, &BTreeSet::new(), 3);
        assert!(order.iter().all(|to| to.network.index() < 2));
    }
    true
}

/// Handles each line as a request of the agent of network `a`, as in `POST /v1/networks/a/join
/// {"session":1}`. A line after `!` is an operator's request, and a line after `!!` another
/// broker's. Returns true if no request was refused.
///
/// Panics: if a refusal reports an internal error, or an agent's request was accepted for another
/// network.
pub fn exercise_requests(bytes: &[u8]) -> bool {
    let settings = Settings::new(designs::by_name("marketplace").expect("it is a design"));
    let contracts = CONTRACTS.parse().expect("it is right");
    let config = BrokerServiceConfig::new(settings, contracts, "");
    let config = BrokerServiceConfig { store: StoreConfig::Memory, ..config };
    let service = BrokerService::open(config).expect("memory can be written");
    let peer = |role, name: &str| PeerIdentity { system: crate::SYSTEM, role, name: name.to_owned() };
    let peers =
        [peer(Role::Site, "a"), peer(Role::Operator, "operator"), peer(Role::Controller, "controller")];
    requests(&crate::http::router(service.clone()), peers, bytes, || {
        let networks = service.networks();
        assert!(networks.iter().all(|network| network.name == "a" || !network.up));
        assert!(networks.iter().all(|network| (0.0..=1.0).contains(&network.capacity_trust)));
    })
}

/// A network whose first four clusters serve all places.
struct EverywhereNetwork;

impl Estimates for EverywhereNetwork {
    fn site(&self, cluster: u32) -> Option<Site> {
        let (capacity, background) = (BitRate::gbps(1), BitRate::mbps(1));
        (cluster < 4).then_some(Site { network: 0, city: 0, cost_per_mbps: 1.0, capacity, background })
    }
    fn considered(&self, location: &str, isp: &str) -> Vec<Offer> {
        self.all(location, isp)
    }
    fn all(&self, _: &str, _: &str) -> Vec<Offer> {
        (0..4).map(|cluster| Offer { cluster, score: f64::from(cluster) }).collect()
    }
}

/// Parses a broker's reply to an agent, or the leader's reply to another broker. Returns true if it
/// is valid.
///
/// Panics: if an agent bids for clients outside its call, or assents to more than a cluster's
/// capacity.
pub fn exercise_replies(bytes: &[u8]) -> bool {
    if serde_json::from_slice::<BidsReply>(bytes).is_ok()
        || serde_json::from_slice::<CountedReply>(bytes).is_ok()
    {
        return true;
    }
    let Ok(MessagesReply { messages }) = serde_json::from_slice(bytes) else { return false };
    let (mut agent, broker) = (Agent::default(), PeerId(0));
    for (_, message) in messages {
        match message {
            NetworkMessage::Call(call) => {
                let Some(design) = designs::by_name(&call.design) else { continue };
                let sent = parts(agent.handle_call(broker, &*design, &EverywhereNetwork, &call));
                assert!(sent.iter().rev().skip(1).all(|part| part.more));
                let shares: BTreeSet<u32> = call.shares.iter().map(|share| share.share).collect();
                assert!(sent.iter().flat_map(|part| &part.shares).all(|bid| shares.contains(&bid.share)));
            }
            NetworkMessage::Proposal(proposal) => {
                let assent = agent.handle_proposal(&EverywhereNetwork, broker, &proposal);
                let refused = |cluster| assent.refused.iter().any(|refused| refused.cluster == cluster);
                let most = BitRate::gbps(1).as_bps();
                assert!(proposal.clusters.iter().all(|of| of.rate_bps <= most || refused(of.cluster)));
            }
            NetworkMessage::Accepted(accepted) => {
                agent.handle_accepted(broker, &accepted);
                let _ = (totals(&accepted), agent.committed_bps(0), agent.expected_bps(broker, 0));
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn corpus_inputs_are_accepted_or_refused_as_named() {
        assert!(replay("broker_contracts", super::exercise_contracts) >= 4);
        assert!(replay("broker_stored", super::exercise_stored) >= 3);
        assert!(replay("broker_http", super::exercise_requests) >= 8);
        assert!(replay("broker_replies", super::exercise_replies) >= 6);
    }
}
