//! Bodies of the controller's requests and answers.
//!
//! Reports and messages are the control's own (`live_proto::control::messages`). Read [`NodeView`] and
//! [`LinkView`] first.

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
    /// Version of the network. A node with an earlier one reads the network again.
    pub network: u64,
}

/// The network, with the numbers by which a later one is known.
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
    /// Version that is changed. Another one is refused, so that editors do not overwrite each other.
    pub version: u64,
    /// Changes, made in this order, all of them or none: `{"set_node": …}`, `{"remove_node": "NAME"}`, and the
    /// same for `link`, `group` and `channel`.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<Change>,
}

/// Version of a changed network.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkVersion {
    /// The new version; the present one if nothing differs.
    pub version: u64,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// `source`, `reflector` or `edge`.
    #[schema(value_type = String)]
    pub tier: Tier,
    /// Whether it reports.
    pub is_up: bool,
    /// Whether an operator empties it.
    pub is_draining: bool,
    /// Version of its tables.
    pub version: String,
    /// Number of its streams.
    pub streams: u64,
    /// Number of its viewers.
    pub viewers: u64,
}

/// All nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodesView {
    /// In the order of the description.
    pub nodes: Vec<NodeView>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// Node that sends video.
    pub from: String,
    /// Node that receives video.
    pub to: String,
    /// Declared capacity.
    pub capacity_bps: u64,
    /// Capacity that the nodes report; 0 if the link has failed.
    pub believed_bps: u64,
    /// Sum of the bitrates of its streams.
    pub used_bps: u64,
    /// Price of a Mbit/s.
    pub cost: f64, // tidy-allow: quantity (a price in any currency)
}

/// A stream of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamView {
    /// Name of the channel.
    pub channel: String,
    /// Name of the rendition.
    pub rendition: String,
    /// Its bitrate.
    pub bitrate_bps: u64,
    /// Node that receives it.
    pub node: String,
    /// Node that sends it.
    pub parent: String,
}

/// Links and streams: the trees as they run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TreesView {
    /// In the order of the description.
    pub links: Vec<LinkView>,
    /// By node.
    pub streams: Vec<StreamView>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Its number; the first is 1.
    pub number: u64,
    /// Time of day, in milliseconds since 1970.
    pub unix_ms: u64,
    /// `silent`, `heard`, `places`, `tables`, `settled`, `drain`, `network` or `round`.
    pub kind: String,
    /// The node that it is about.
    pub node: Option<String>,
    /// Its description.
    pub text: String,
}

/// Events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventsView {
    /// The oldest first.
    pub events: Vec<EventView>,
}

/// A round of the optimiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RoundView {
    /// Its number.
    pub number: u64,
    /// Time of day of the plan, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Duration of the search.
    pub took_s: f64,
    /// Certified gap, as a share of the bound.
    pub gap_share: f64,
    /// The same gap as a share of the cost.
    pub gap_of_cost_share: Option<f64>,
    /// Requests of groups for objects.
    pub requests: u64,
    /// Requests that the plan serves.
    pub requests_served: u64,
    /// Trees that stayed because another one saved too little.
    pub kept_trees: u64,
}

/// Rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RoundsView {
    /// The oldest first.
    pub rounds: Vec<RoundView>,
}

/// Request to empty a node, or to have it carry streams again.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Whether the node is emptied.
    pub drain: bool,
}
