//! The messages between hosts' agents and the coordinator: reports of flows, and limits of their rates.
//!
//! Requests and replies are JSON in the bodies of HTTP. Leaves out: how messages travel, and operators' requests. Everything here
//! comes from outside and is bounded by [`crate::Coordinator`].

pub use anabranch_units::FlowKey;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;

/// From an agent: what has become of a flow that its host sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "report", deny_unknown_fields)]
#[non_exhaustive]
pub enum Report {
    /// There is one, or one has more to move than was said. Said again, it changes nothing.
    Flow {
        /// Which.
        flow: FlowKey,
        /// Its coflow's name.
        coflow: String,
        /// All that it has had to move so far.
        size_bytes: u64,
        /// Whether that is all that anybody knows of, and more is likely to come: what its program has written.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        open_ended: bool,
    },
    /// So much of it has arrived.
    Moved {
        /// Which.
        flow: FlowKey,
        /// How much, in all.
        moved_bytes: u64,
    },
    /// It is through, or its program has gone.
    Ended {
        /// Which.
        flow: FlowKey,
    },
}

/// To an agent: how fast a flow may be from now on.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Which.
    pub flow: FlowKey,
    /// At most so fast, until it is said anew; `None` is no limit.
    pub rate_bps: Option<u64>,
}

/// An agent is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Chosen at random each time that it joins.
    pub session: u64,
    /// Those that flows to its host have; none is all that the coordinator takes for its host's.
    #[schema(value_type = Vec<String>)]
    pub addresses: Vec<IpAddr>,
    /// What its host's link has for data, out and in, unless the coordinator's file of hosts says it.
    pub link_rate_bps: u64,
    /// The flows that there are, or the first of them.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub reports: Vec<Report>,
}

/// What has become of flows. An empty one says that the agent is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportsRequest {
    /// The agent's session.
    pub session: u64,
    /// In order.
    #[schema(value_type = Vec<Object>)]
    pub reports: Vec<Report>,
}

/// An agent goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaveRequest {
    /// Its session.
    pub session: u64,
}

/// How fast flows may be from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitsReply {
    /// Those that have changed; none if none did in time.
    #[schema(value_type = Vec<Object>)]
    pub limits: Vec<Limit>,
}
