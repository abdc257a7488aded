//! The JSON bodies of the HTTP interface of `shuffle`'s coordinator.
//!
//! Leaves out: the messages of agents (`shuffle_proto::control`). Read [`CoflowView`] first.

pub use anabranch_http::answer::{ErrorBody, HealthView};
pub use anabranch_shuffle_proto::control::{JoinRequest, LeaveRequest, LimitsReply, ReportsRequest};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use utoipa::ToSchema;

/// A link that several hosts share for their traffic to and from all other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// Name of the uplink, the same for all hosts behind it.
    pub name: String,
    /// Goodput of the uplink each way, in bits per second, the same for all hosts behind it.
    pub rate_bps: u64,
}

/// Active coflows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CoflowsView {
    /// Coflows, by name.
    pub coflows: Vec<CoflowView>,
    /// Number of flows beyond the requested maximum.
    pub flows_left_out: u64,
    /// Name of the allocator, as on the coordinator's command line.
    #[serde(default)]
    pub allocator: String,
}

/// An active coflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CoflowView {
    /// Name of the coflow.
    pub name: String,
    /// Time of the first flow, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Flows of the coflow, without mice.
    pub flows: Vec<FlowView>,
}

/// An active flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowView {
    /// Name of the sending host.
    pub host: String,
    /// Address and port of the sender.
    #[schema(value_type = String)]
    pub local: SocketAddr,
    /// Address and port of the receiver.
    #[schema(value_type = String)]
    pub remote: SocketAddr,
    /// Known number of bytes left to send.
    pub remaining_bytes: u64,
    /// Limit of the flow in bits per second; null while none of its bytes arrive, because it then
    /// has no limit.
    pub rate_bps: Option<u64>,
}

/// The hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostsView {
    /// Hosts, by name.
    pub hosts: Vec<HostView>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Name of the host.
    pub name: String,
    /// True if the host's agent is connected.
    pub up: bool,
    /// Number of times that an agent of the host has joined. An agent that lifted its limits during
    /// a silence of the coordinator joins again.
    #[serde(default)]
    pub joins: u64,
    /// Goodput of the host's link each way, in bits per second.
    pub link_rate_bps: u64,
    /// Links that the host shares with other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Uplink>,
}

/// Coflows that have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryView {
    /// Coflows, newest first.
    pub coflows: Vec<EndedCoflowView>,
}

/// An ended coflow: all its flows are complete, or their programs have exited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedCoflowView {
    /// Name of the coflow.
    pub name: String,
    /// Time of the first flow, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// Time at which the last flow had ended, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// Number of flows, without mice.
    pub flows: u64,
    /// Bytes sent as of the last report. Stores of earlier versions name it `bytes`.
    #[serde(alias = "bytes")]
    pub moved_bytes: u64,
}
