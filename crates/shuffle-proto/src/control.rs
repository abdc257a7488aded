//! Messages between hosts' agents and the coordinator: reports of flows, and rate limits.
//!
//! Requests and replies are JSON bodies of HTTP. Leaves out: transport, and operators' requests.
//! All input comes from outside and is bounded by [`crate::Coordinator`].

pub use anabranch_units::FlowKey;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;

/// An update about a flow that the agent's host sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "report", deny_unknown_fields)]
#[non_exhaustive]
pub enum Report {
    /// A flow exists, or has more data than reported before. A repeated report has no effect.
    Flow {
        /// Addresses and ports of the flow.
        flow: FlowKey,
        /// Name of the flow's coflow.
        coflow: String,
        /// Total bytes of the flow so far.
        size_bytes: u64,
        /// True if the size is only the bytes written so far, and more is likely to follow.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        open_ended: bool,
    },
    /// Progress of a flow.
    Moved {
        /// Addresses and ports of the flow.
        flow: FlowKey,
        /// Total bytes delivered.
        moved_bytes: u64,
    },
    /// The flow is complete, or its program has exited.
    Ended {
        /// Addresses and ports of the flow.
        flow: FlowKey,
    },
}

/// New rate limit of a flow, for its host's agent.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Addresses and ports of the flow.
    pub flow: FlowKey,
    /// Maximum rate in bits per second until the next limit; `None` means no limit.
    pub rate_bps: Option<u64>,
}

/// Registration of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Session number, drawn at random at each registration.
    pub session: u64,
    /// Addresses of flows to the agent's host. If empty, the coordinator uses the host's known
    /// addresses.
    #[schema(value_type = Vec<String>)]
    pub addresses: Vec<IpAddr>,
    /// Goodput of the host's link in each direction, in bits per second. The coordinator's hosts
    /// file overrides it.
    pub link_rate_bps: u64,
    /// Reports of the existing flows, or of the first of them.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub reports: Vec<Report>,
}

/// Updates about flows. An empty request is a keep-alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportsRequest {
    /// Session of the agent.
    pub session: u64,
    /// Reports, in order.
    #[schema(value_type = Vec<Object>)]
    pub reports: Vec<Report>,
}

/// Deregistration of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaveRequest {
    /// Session of the agent.
    pub session: u64,
}

/// New rate limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitsReply {
    /// Changed limits; empty if none changed in time.
    #[schema(value_type = Vec<Object>)]
    pub limits: Vec<Limit>,
}
