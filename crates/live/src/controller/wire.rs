//! Bodies of the controller's requests and answers.
//!
//! Reports and messages to nodes are defined in `live_proto::control::messages`. Read [`NodeView`]
//! and [`LinkView`] first.

use crate::description::{Change, Description};
use anabranch_live_proto::Tier;
use anabranch_live_proto::control::messages::ToNode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use anabranch_http::answer::{ErrorBody, HealthView};

/// Answer to a report: the controller's messages for the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportReply {
    /// Messages, the oldest first.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<ToNode>,
    /// Number of the controller's lead.
    pub lead: u64,
    /// Version of the network. A node with an earlier version reads the network again.
    pub network: u64,
}

/// The network's description, with its lead and version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkView {
    /// Number of the leadership term in which this version came into force, or of a later term.
    pub lead: u64,
    /// Version: the number of changes, plus one.
    pub version: u64,
    /// Nodes, links, groups and channels.
    #[schema(value_type = Object)]
    pub network: Description,
}

/// Changes of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkChange {
    /// Version to change. If the network has another version, the request is refused, so that
    /// editors do not overwrite each other.
    pub version: u64,
    /// Changes, applied in order, all or none: `{"set_node": …}`, `{"remove_node": "NAME"}`, and
    /// the same for `link`, `group` and `channel`.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<Change>,
}

/// Version of a changed network.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkVersion {
    /// The new version, or the current version if the changes have no effect.
    pub version: u64,
}

/// State of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Name of the node.
    pub name: String,
    /// Tier: `source`, `reflector` or `edge`.
    #[schema(value_type = String)]
    pub tier: Tier,
    /// Whether the node's reports arrive.
    pub is_up: bool,
    /// Whether an operator drains the node.
    pub is_draining: bool,
    /// Version of the node's tables.
    pub version: String,
    /// Number of the node's streams.
    pub streams: u64,
    /// Number of the node's viewers.
    pub viewers: u64,
}

/// All nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodesView {
    /// Nodes, in the order of the description.
    pub nodes: Vec<NodeView>,
}

/// State of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// Node that sends video.
    pub from: String,
    /// Node that receives video.
    pub to: String,
    /// Declared capacity.
    pub capacity_bps: u64,
    /// Capacity that the nodes estimate; 0 if the link has failed.
    pub believed_bps: u64,
    /// Sum of the bitrates of the link's streams.
    pub used_bps: u64,
    /// Cost per Mbit/s.
    pub cost: f64, // tidy-allow: quantity (a price in any currency)
}

/// A stream of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamView {
    /// Name of the channel.
    pub channel: String,
    /// Name of the rendition.
    pub rendition: String,
    /// Bitrate of the stream.
    pub bitrate_bps: u64,
    /// Node that receives the stream.
    pub node: String,
    /// Node that sends the stream.
    pub parent: String,
}

/// Links and streams of the running trees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TreesView {
    /// Links, in the order of the description.
    pub links: Vec<LinkView>,
    /// Streams, sorted by node.
    pub streams: Vec<StreamView>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Number of the event; the first is 1.
    pub number: u64,
    /// Time of day, in milliseconds since 1970.
    pub unix_ms: u64,
    /// `silent`, `heard`, `places`, `tables`, `settled`, `drain`, `network` or `round`.
    pub kind: String,
    /// Name of the node, if the event concerns one.
    pub node: Option<String>,
    /// Description of the event.
    pub text: String,
}

/// A list of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventsView {
    /// Events, the oldest first.
    pub events: Vec<EventView>,
}

/// A round of the optimiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RoundView {
    /// Number of the round.
    pub number: u64,
    /// Time of day at which the plan was made, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Duration of the search, in seconds.
    pub took_s: f64,
    /// Certified gap to the optimum, as a share of the bound.
    pub gap_share: f64,
    /// Certified gap to the optimum, as a share of the plan's cost; none for a plan without cost.
    pub gap_of_cost_share: Option<f64>,
    /// Number of pairs of a group and a requested object.
    pub requests: u64,
    /// Number of these pairs that the plan serves.
    pub requests_served: u64,
    /// Number of running trees that were kept because the planned tree saved too little.
    pub kept_trees: u64,
}

/// A list of rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RoundsView {
    /// Rounds, the oldest first.
    pub rounds: Vec<RoundView>,
}

/// Request to start or end the drain of a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// True to start the drain, false to end it.
    pub drain: bool,
}
