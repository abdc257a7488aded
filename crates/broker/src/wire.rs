//! The JSON that crosses the broker's HTTP interface.
//!
//! Leaves out: the messages of the decision protocol, which are `broker_proto::messages`' own. Read [`NetworkMessage`] and [`DecisionView`]
//! first.

use anabranch_broker_proto::broker::ToNetwork;
pub use anabranch_broker_proto::messages::{
    Accepted, Assent, Bids, BidsReply, Call, Clients, ClusterAccepted, ClusterBid, ClusterRate, Proposal,
    Share, ShareAccepted, ShareBids,
};
pub use anabranch_http::answer::{ErrorBody, HealthView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// A network's agent is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Chosen at random each time that it joins.
    pub session: u64,
}

/// A message to a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkMessage {
    /// A round begins.
    Call(Call),
    /// So much would go to its clusters.
    Proposal(Proposal),
    /// What became of its bids.
    Accepted(Accepted),
}

impl NetworkMessage {
    /// A broker's message as it travels; `None` for a kind that this version cannot say.
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
    /// Those after the one that was asked for, oldest first, each with its number; none if none came in time.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<(u64, NetworkMessage)>,
}

/// Clients of a place, counted by who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceClients {
    /// Their city.
    pub location: String,
    /// Their internet provider.
    pub isp: String,
    /// How many, by bitrate.
    pub clients: Vec<Clients>,
}

/// The clients that there are, in place of those that the broker counts itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientsRequest {
    /// Place by place; none has the broker count again.
    pub places: Vec<PlaceClients>,
}

/// Clients that another broker has counted, of those that share a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountedRequest {
    /// Which one, by the name that it drew.
    pub broker: u64,
    /// Which part of what it has counted: another one of the same number takes its place.
    pub part: u32,
    /// Place by place.
    pub places: Vec<PlaceClients>,
}

/// What the broker that leads says to that: which networks there are. Players are sent to all others last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountedReply {
    /// The round that it has accepted last, 0 before there was one: a decision of a later one is newer than this.
    pub round: u64,
    /// Those whose agents are there.
    pub up: Vec<String>,
    /// Those that have time yet to join again, as the broker has just begun to lead.
    pub awaited: Vec<String>,
}

/// Whether players are steered.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SteeringRequest {
    /// With false players are told that there is none any more (status 410): who is told so does not ask again while it plays, and goes by
    /// its manifest.
    pub steers: bool,
}

/// What players have measured of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRequest {
    /// Its name.
    pub network: String,
    /// A score that it has bid, and the one that was measured there.
    #[serde(default)]
    pub scores: Option<(f64, f64)>,
    /// The share that it has sent of what clients who were placed on it wanted.
    #[serde(default)]
    pub delivered_share: Option<f64>,
}

/// The networks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworksView {
    /// In the order of the file of contracts.
    pub networks: Vec<NetworkView>,
}

/// A network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkView {
    /// Its name.
    pub name: String,
    /// Whether its agent is there.
    pub up: bool,
    /// The share of its bids that made sense of late.
    pub reputation: f64,
    /// What its capacities are multiplied by.
    pub capacity_trust: f64,
    /// What its scores are multiplied by.
    pub score_bias: f64,
    /// Rounds in which it did not bid in time.
    pub missed: u64,
    /// Clients that the last decision gives it, and what they get together.
    pub sessions: u64,
    /// See above.
    pub rate_bps: u64,
    /// Players that said, when they last asked, that they play by it.
    pub playing: u64,
}

/// The rounds of late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RoundsView {
    /// The last one last; a hundred at the most, since the broker began.
    pub rounds: Vec<RoundView>,
}

/// What came of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RoundView {
    /// Its number.
    pub round: u64,
    /// When it ended, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// How long it took from the call to networks; none if another broker led it.
    pub took_s: Option<f64>,
    /// Why it changed nothing; none if it was accepted.
    pub void: Option<String>,
    /// Clients by network's name. Of a round that changed nothing none, and so below.
    pub sessions: BTreeMap<String, u64>,
    /// Clients for whom there is no room.
    pub unplaced: u64,
    /// Of those who were placed before, how many have another cluster now.
    pub moved: u64,
    /// By how much the best decision may be better at the most.
    pub gap_share: f64,
}

/// The last decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// The round; 0 before there was one.
    pub round: u64,
    /// When it was accepted, in milliseconds since 1970.
    pub accepted_unix_ms: u64,
    /// By how much the best decision may be better at the most.
    pub gap_share: f64,
    /// Cities and providers.
    pub places: Vec<(String, String)>,
    /// Names of networks.
    pub networks: Vec<String>,
    /// Clients: their place's and network's numbers in these lists.
    pub placed: Vec<PlacedView>,
    /// What a megabit a second of each cluster in use costs: the network's number, the cluster's, the price.
    pub prices: Vec<(u32, u32, f64)>,
    /// What was thought of networks then. Decisions of before this was kept have none.
    #[serde(default)]
    pub standings: Vec<StandingView>,
}

/// What is thought of a network.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    /// The network's number.
    pub network: u32,
    /// The share of its bids that made sense of late.
    pub reputation: f64,
    /// What its capacities are multiplied by.
    pub capacity_trust: f64,
    /// What its scores are multiplied by.
    pub score_bias: f64,
    /// Rounds in which it did not bid in time.
    pub missed: u64,
}

/// Some clients, and where they go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacedView {
    /// The place's number.
    pub place: u32,
    /// What each of them gets.
    pub bitrate_bps: u64,
    /// How many.
    pub sessions: u32,
    /// The network's number, the cluster's, and the score that was bid; none if there is room for them nowhere.
    pub to: Option<(u32, u32, f64)>,
}
