//! Messages between nodes of neighbouring tiers, and between a node and the controller.
//!
//! Every message can be lost, late or repeated. Requests and answers name the attempt that they
//! belong to; heartbeats carry a digest of all attempts, by which the two ends of a link find out
//! what was lost. Source: §4.4.2 and §4.4.3; the form of the messages is ours.

use super::differences::Delta;
use super::ledger::Digest;
use super::neighbours::{Offer, Reach};
use super::tables::{LinkState, RibUpdate, Version};
use crate::{NodeId, Object};
use anabranch_units::{BitRate, LinkId};
use serde::{Deserialize, Serialize};

/// A group of viewers at one place in one autonomous system.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

/// The decision from which a request results: it is passed on with the requests that follow.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cause {
    /// Node that decided.
    pub node: NodeId,
    /// The node's attempt.
    pub attempt: u64,
}

/// Reason for which a stream is refused, or ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The link to the requester has no capacity for it.
    NoCapacity,
    /// The capacity of the link to the requester fell below its streams.
    Evicted,
    /// No parent can deliver the object.
    NoParent,
    /// The source does not import the object, or no longer.
    NotImported,
    /// An operator empties the node.
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

/// A message to a parent. `life` is the child's: a later life has a higher number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToParent {
    /// Life of the child's process.
    pub life: u64,
    /// Contents.
    pub body: ChildMessage,
}

/// Contents of a message to a parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildMessage {
    /// The child asks for a stream.
    Subscribe {
        /// The stream.
        object: Object,
        /// Number of the attempt, higher than in all earlier requests of the child.
        attempt: u64,
        /// Version that routed the request; `None` after a local decision.
        version: Option<Version>,
        /// Decision from which the request results.
        cause: Cause,
    },
    /// The child gives up this attempt and all earlier ones for the object.
    Unsubscribe {
        /// The stream.
        object: Object,
        /// The attempt.
        attempt: u64,
    },
    /// The child is up.
    Heartbeat(Digest),
    /// All attempts of the child at this parent, as the parent has asked for.
    Held {
        /// The child's last attempt at any parent.
        last_attempt: u64,
        /// The attempts that count.
        held: Vec<(Object, u64)>,
    },
    /// The child has missed an advertisement.
    Resend,
    /// Capacity of the link as the child has measured it.
    Measured(BitRate),
}

/// A message to a child. `life` is the parent's: a later life has a higher number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToChild {
    /// Life of the parent's process.
    pub life: u64,
    /// Contents.
    pub body: ParentMessage,
}

/// Contents of a message to a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParentMessage {
    /// The stream can be fetched.
    Granted {
        /// The stream.
        object: Object,
        /// The attempt.
        attempt: u64,
    },
    /// The stream cannot be fetched, or no longer.
    Refused {
        /// The stream.
        object: Object,
        /// The attempt.
        attempt: u64,
        /// The reason.
        why: Refusal,
    },
    /// The parent is up.
    Heartbeat(Offer),
    /// Distances and capacities, as differences (Table 4.2).
    Advertisement(Delta<Object, Reach>),
    /// The parent asks for all attempts of the child: the digests differ.
    Compare,
}

/// State of a node, sent to the controller every period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Life of the node's process.
    pub life: u64,
    /// Version of its central entries.
    pub version: Version,
    /// Whether it takes no new stream.
    pub is_draining: bool,
    /// Links to and from the node, as it sees them.
    pub links: Vec<(LinkId, LinkState)>,
    /// Streams with the parent that delivers each; `None` for an imported stream.
    pub streams: Delta<Object, Option<NodeId>>,
    /// Viewers of each group, the refused ones of the last seconds included.
    pub viewers: Delta<(GroupId, Object), u64>,
}

/// A message of the controller to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToNode {
    /// Number of the controller's lead.
    pub lead: u64,
    /// Whether the node must take no new stream.
    pub is_draining: bool,
    /// Whether the controller has missed a report.
    pub resend: bool,
    /// New central entries.
    pub update: Option<RibUpdate>,
}
