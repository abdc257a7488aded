//! What hosts' agents and the coordinator say to each other: what flows there are, and how fast they may be.
//!
//! Leaves out: how messages travel. Everything here comes from outside and is bounded by [`crate::Coordinator`].

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A TCP connection, as the host that sends over it sees it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowKey {
    /// The sender's address.
    pub local: SocketAddr,
    /// The receiver's.
    pub remote: SocketAddr,
}

/// From an agent: what has become of a flow that its host sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "report", deny_unknown_fields)]
#[non_exhaustive]
pub enum Report {
    /// There is one, or one has more to move than was said. Said again, it changes nothing.
    Flow {
        /// Which.
        flow: FlowKey,
        /// What waits for it.
        transfer: String,
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
