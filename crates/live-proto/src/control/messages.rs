//! Messages between nodes of adjacent tiers, and between a node and the controller.
//!
//! Every message can be lost, delayed or repeated. Requests and answers carry the number of their
//! attempt. Heartbeats carry a digest of all attempts, by which the two ends of a link detect
//! losses.
//! Source: §4.4.2 and §4.4.3. Differs: the thesis does not define the messages.

use super::differences::Delta;
use super::ledger::Digest;
use super::neighbours::{Offer, Reach};
use super::tables::{LinkState, RibUpdate, Version};
use crate::{NodeId, Object};
use anabranch_units::{BitRate, LinkId};
use serde::{Deserialize, Serialize};

/// A group of viewers at one location in one autonomous system.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

/// The local decision from which a request results. Further requests that result from the request
/// carry the same cause.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cause {
    /// Node that made the decision.
    pub node: NodeId,
    /// Number of the node's attempt.
    pub attempt: u64,
}

/// Reason why a stream is refused or ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The link to the requester lacks capacity for the stream.
    NoCapacity,
    /// The capacity of the link to the requester fell below the sum of its streams.
    Evicted,
    /// No parent can deliver the object.
    NoParent,
    /// The source does not import the object, or has ended the import.
    NotImported,
    /// The node is drained.
    Draining,
    /// The node has no record of the attempt.
    NotHeld,
    /// A table of the node is full.
    TableFull,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoCapacity => {
                "the link has no capacity for the stream: ask another node, or a lower bitrate"
            }
            Self::Evicted => "the capacity of the link fell below its streams",
            Self::NoParent => "no parent can deliver the object: ask another edge, or a lower bitrate",
            Self::NotImported => "the source does not import the object",
            Self::Draining => "the node is being drained: ask another",
            Self::NotHeld => "the node has no record of the attempt: ask again",
            Self::TableFull => "a table of the node is full: ask another",
        })
    }
}

/// A message to a parent. Messages of a later incarnation of the child replace all state of earlier
/// incarnations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToParent {
    /// Incarnation number of the child's process. It grows with each restart.
    pub life: u64,
    /// Body of the message.
    pub body: ChildMessage,
}

/// Body of a message to a parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildMessage {
    /// Requests a stream.
    Subscribe {
        /// Object of the stream.
        object: Object,
        /// Number of the attempt, higher than of all earlier requests of the child.
        attempt: u64,
        /// Version that routed the request; `None` after a local decision.
        version: Option<Version>,
        /// Local decision from which the request results.
        cause: Cause,
    },
    /// Withdraws this attempt and all earlier attempts for the object.
    Unsubscribe {
        /// Object of the stream.
        object: Object,
        /// Number of the attempt.
        attempt: u64,
    },
    /// Periodic sign that the child is up, with the digest of its attempts.
    Heartbeat(Digest),
    /// All attempts of the child at this parent, in reply to `Compare`.
    Held {
        /// The child's last attempt at any parent.
        last_attempt: u64,
        /// The attempts still in force.
        held: Vec<(Object, u64)>,
    },
    /// Requests the whole advertisement, because a message is missing.
    Resend,
    /// Capacity of the link, as measured by the child.
    Measured(BitRate),
}

/// A message to a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToChild {
    /// Incarnation number of the parent's process. It grows with each restart.
    pub life: u64,
    /// Body of the message.
    pub body: ParentMessage,
}

/// Body of a message to a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParentMessage {
    /// Grants a request: the stream can be fetched.
    Granted {
        /// Object of the stream.
        object: Object,
        /// Number of the attempt.
        attempt: u64,
    },
    /// Refuses a request, or ends a granted stream.
    Refused {
        /// Object of the stream.
        object: Object,
        /// Number of the attempt.
        attempt: u64,
        /// Reason of the refusal.
        why: Refusal,
    },
    /// Periodic sign that the parent is up, with the state of the link.
    Heartbeat(Offer),
    /// Changes of the advertised distances and capacities (Table 4.2).
    Advertisement(Delta<Object, Reach>),
    /// Requests the list of the child's attempts, because the digests differ.
    Compare,
}

/// State of a node, sent to the controller every period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Incarnation number of the node's process. It grows with each restart.
    pub life: u64,
    /// Version of the installed central entries.
    pub version: Version,
    /// Whether the node accepts no new stream.
    pub is_draining: bool,
    /// States of the links to and from the node, as the node estimates them.
    pub links: Vec<(LinkId, LinkState)>,
    /// Streams with the parent that delivers each; `None` as parent of an imported stream.
    pub streams: Delta<Object, Option<NodeId>>,
    /// Number of viewers by group and object, including viewers refused recently
    /// ([`demand_memory`](super::node::Settings::demand_memory)).
    pub viewers: Delta<(GroupId, Object), u64>,
}

/// A message of the controller to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToNode {
    /// Number of the controller's lead.
    pub lead: u64,
    /// Whether the node is drained and must accept no new stream.
    pub is_draining: bool,
    /// Whether the controller has missed a report and needs all entries.
    pub resend: bool,
    /// Update of the central entries.
    pub update: Option<RibUpdate>,
}
