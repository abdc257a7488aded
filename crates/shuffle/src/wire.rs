//! The JSON that crosses the HTTP interface of `shuffle`'s coordinator.
//!
//! Leaves out: the messages of agents, which are `shuffle_proto::control`'s own. Read [`CoflowView`] first.

pub use anabranch_http::answer::{ErrorBody, HealthView};
pub use anabranch_shuffle_proto::control::{JoinRequest, LeaveRequest, LimitsReply, ReportsRequest};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use utoipa::ToSchema;

/// What carries all that some hosts send to others, and all that these send to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// Its name, the same for all hosts behind it.
    pub name: String,
    /// What it has for data, out and in; the same, too.
    pub rate_bps: u64,
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CoflowsView {
    /// By name.
    pub coflows: Vec<CoflowView>,
    /// Flows beyond the most that was asked for.
    pub flows_left_out: u64,
    /// The allocator that decides, as the coordinator's command line names it.
    #[serde(default)]
    pub allocator: String,
}

/// A coflow that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CoflowView {
    /// Its name.
    pub name: String,
    /// When its first flow was there, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Its flows that are no mice.
    pub flows: Vec<FlowView>,
}

/// A flow that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowView {
    /// Who sends it.
    pub host: String,
    /// The sender's end.
    #[schema(value_type = String)]
    pub local: SocketAddr,
    /// The receiver's.
    #[schema(value_type = String)]
    pub remote: SocketAddr,
    /// What it has still to move, as far as is known.
    pub remaining_bytes: u64,
    /// How fast it may be; null while nothing of it arrives, and it passes without a limit.
    pub rate_bps: Option<u64>,
}

/// The hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostsView {
    /// By name.
    pub hosts: Vec<HostView>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Its name.
    pub name: String,
    /// Whether its agent is there.
    pub up: bool,
    /// How often an agent of it has joined. One that has lifted its limits, as the coordinator was silent, joins again.
    #[serde(default)]
    pub joins: u64,
    /// What its link has for data, out and in.
    pub link_rate_bps: u64,
    /// What it shares with other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Uplink>,
}

/// Coflows that have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryView {
    /// The last one first.
    pub coflows: Vec<EndedView>,
}

/// A coflow that has ended: all its flows are through, or their programs have gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedView {
    /// Its name.
    pub name: String,
    /// When its first flow was there, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// When its last one had ended.
    pub ended_unix_ms: u64,
    /// How many flows it had that were no mice.
    pub flows: u64,
    /// What they had moved when they were last looked at. Stores of earlier versions have it as `bytes`.
    #[serde(alias = "bytes")]
    pub moved_bytes: u64,
}
