//! The JSON that crosses the broker's HTTP interface.
//!
//! Leaves out: the messages of the decision protocol (`broker_proto::messages`). Read
//! [`NetworkMessage`] and [`DecisionView`] first.

use anabranch_broker_proto::broker::ToNetwork;
pub use anabranch_broker_proto::messages::{
    Assent, BidResult, Bids, BidsReply, Call, Clients, ClusterBid, ClusterRate, ClusterResult, Proposal,
    Share, ShareBids, ShareResult,
};
pub use anabranch_http::answer::{ErrorBody, HealthView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Registration of a network's agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Session number, drawn at random at each registration.
    pub session: u64,
}

/// A message to a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkMessage {
    /// Start of a round.
    Call(Call),
    /// Clients that a proposed decision would place on each of the network's clusters.
    Proposal(Proposal),
    /// Result of the network's bids.
    Accepted(BidResult),
}

impl NetworkMessage {
    /// Converts a broker's message; `None` for a kind that this version does not know.
    pub(crate) fn of(message: ToNetwork) -> Option<Self> {
        match message {
            ToNetwork::Call(call) => Some(Self::Call(Arc::unwrap_or_clone(call))),
            ToNetwork::Proposal(proposal) => Some(Self::Proposal(proposal)),
            ToNetwork::Accepted(accepted) => Some(Self::Accepted(accepted)),
            _ => None,
        }
    }
}

impl From<NetworkMessage> for ToNetwork {
    fn from(message: NetworkMessage) -> Self {
        match message {
            NetworkMessage::Call(call) => Self::Call(Arc::new(call)),
            NetworkMessage::Proposal(proposal) => Self::Proposal(proposal),
            NetworkMessage::Accepted(accepted) => Self::Accepted(accepted),
        }
    }
}

/// Messages to a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesReply {
    /// Messages after the requested number, oldest first, each with its number. Empty if none
    /// arrived in time.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<(u64, NetworkMessage)>,
}

/// Clients of one city and provider, as counted by the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceClients {
    /// City of the clients.
    pub location: String,
    /// Internet provider of the clients.
    pub isp: String,
    /// Number of clients of each bitrate.
    pub clients: Vec<Clients>,
}

/// Clients to place, instead of the broker's own counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientsRequest {
    /// Clients of each place. An empty list makes the broker count again.
    pub places: Vec<PlaceClients>,
}

/// Viewers counted by one of several brokers that share a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountedRequest {
    /// Random name of the counting broker.
    pub broker: u64,
    /// Number of this part of the counts. A later part with the same number replaces it.
    pub part: u32,
    /// Viewers of each place.
    pub places: Vec<PlaceClients>,
}

/// The leader's reply to counts: the connected networks. Players get the clusters of all other
/// networks last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountedReply {
    /// Last accepted round, 0 before the first. A decision of a later round is newer than this
    /// reply.
    pub round: u64,
    /// Names of the networks whose agents are connected.
    pub up: Vec<String>,
    /// Names of the networks that still have time to join again, because the leader has just
    /// changed.
    pub awaited: Vec<String>,
}

/// Turns steering on or off.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SteeringRequest {
    /// If false, players get status 410: they send no further steering requests while they play,
    /// and follow their manifests.
    pub steers: bool,
}

/// Players' measurements of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRequest {
    /// Name of the network.
    pub network: String,
    /// A score that the network bid, and the score that players measured.
    #[serde(default)]
    pub scores: Option<(f64, f64)>,
    /// Share of the demand of the clients placed on the network that the network delivered.
    #[serde(default)]
    pub delivered_share: Option<f64>,
}

/// Lead among the brokers of one store, as one broker knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeadView {
    /// True if this broker leads.
    pub leads: bool,
    /// Address of another broker that leads. `None` if this broker leads or no leader is known.
    pub leader: Option<String>,
    /// Store of the decisions: a file, or the members of etcd.
    pub store: String,
    /// Error of the store, or reason why no round was stored. `None` if this broker is healthy.
    pub trouble: Option<String>,
}

/// List of networks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworksView {
    /// Networks in the order of the contracts file.
    pub networks: Vec<NetworkView>,
}

/// State of one network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkView {
    /// Name of the network.
    pub name: String,
    /// True if the network's agent is connected.
    pub up: bool,
    /// Share of the network's valid bids, averaged with more weight on recent rounds.
    pub reputation: f64,
    /// Factor applied to the network's capacities, at most 1.
    pub capacity_trust: f64,
    /// Factor applied to the network's scores, at least 1.
    pub score_bias: f64,
    /// Rounds without timely bids from the network.
    pub missed: u64,
    /// Clients that the decision in force places on the network.
    pub sessions: u64,
    /// Total bitrate of these clients, in bits per second.
    pub rate_bps: u64,
    /// Players whose last request named this network as the one in use.
    pub playing: u64,
}

/// Results of recent rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RoundsView {
    /// Rounds since the start of the broker, oldest first, 100 at most.
    pub rounds: Vec<RoundView>,
}

/// Result of one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RoundView {
    /// Number of the round.
    pub round: u64,
    /// [`DecisionView::number`] of an accepted round. `None` if the round was void.
    #[serde(default)]
    pub number: Option<u64>,
    /// Time of the end, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// Seconds from the call for bids to the end; none if another broker led the round.
    pub took_s: Option<f64>,
    /// Reason why the round changed nothing; none if its decision was accepted.
    pub void: Option<String>,
    /// Clients on each network. This field and the following ones are empty or 0 if the round
    /// changed nothing.
    pub sessions: BTreeMap<String, u64>,
    /// Clients without a cluster, for lack of capacity.
    pub unplaced: u64,
    /// Clients that moved to another cluster, among those placed before.
    pub moved: u64,
    /// Upper bound on the distance from the best decision, as a share.
    pub gap_share: f64,
}

/// A decision in its stored form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// Number of the round; 0 before the first.
    pub round: u64,
    /// Number of accepted rounds in the store, this one included; 0 before the first, and for
    /// decisions of brokers that stored no number.
    #[serde(default)]
    pub number: u64,
    /// Time of acceptance, in milliseconds since 1970.
    pub accepted_unix_ms: u64,
    /// Upper bound on the distance from the best decision, as a share.
    pub gap_share: f64,
    /// City and provider of each place.
    pub places: Vec<(String, String)>,
    /// Names of the networks.
    pub networks: Vec<String>,
    /// Groups of clients; places and networks are indices into these lists.
    pub placed: Vec<PlacementView>,
    /// Price per Mbit/s of each cluster in use: network index, cluster number, price.
    pub prices: Vec<(u32, u32, f64)>,
    /// Standing of each network at that time. Decisions stored by older versions have none.
    #[serde(default)]
    pub standings: Vec<NetworkTrustView>,
}

/// The broker's trust in a network.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkTrustView {
    /// Index of the network.
    pub network: u32,
    /// Share of the network's valid bids, averaged with more weight on recent rounds.
    pub reputation: f64,
    /// Factor applied to the network's capacities, at most 1.
    pub capacity_trust: f64,
    /// Factor applied to the network's scores, at least 1.
    pub score_bias: f64,
    /// Rounds without timely bids from the network.
    pub missed: u64,
}

/// Interchangeable clients, and their cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacementView {
    /// Index of the place.
    pub place: u32,
    /// Bitrate of each client, in bits per second.
    pub bitrate_bps: u64,
    /// Number of clients.
    pub sessions: u32,
    /// Network index, cluster number and bid score; none if no cluster has room.
    pub to: Option<(u32, u32, f64)>,
}
