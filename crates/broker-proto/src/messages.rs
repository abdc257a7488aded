//! The messages of the decision protocol, between a broker and the agent of each content network.
//!
//! Source: the thesis, section 3.6.1. Differs: all clients of a place form one share, whatever
//! their bitrates and contents; a network announces a cluster's price and capacity once, not in
//! each bid. Requests and replies are JSON bodies of HTTP. Leaves out: transport, and the
//! validation of bids (`broker`).

use crate::limits::check_bitrate;
use anabranch_units::BitRate;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The broker's call, which starts a round (step 3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Number of the round, which its bids must name.
    pub round: u64,
    /// Name of the design, which determines matching and announcements.
    pub design: String,
    /// Places with clients.
    pub shares: Vec<Share>,
}

/// Clients of one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Number by which bids of this round name the share.
    pub share: u32,
    /// City of the clients, by a name that broker and networks agree on.
    pub location: String,
    /// Internet provider of the clients, by an agreed name.
    pub isp: String,
    /// Number of clients of each bitrate; empty if the design does not share them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Clients>,
}

/// Clients of one bitrate.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// Bitrate of each client; at most [`BITRATE_MAX`](crate::limits::BITRATE_MAX).
    #[serde(deserialize_with = "bitrate_bps")]
    pub bitrate_bps: u64,
    /// Number of clients.
    pub sessions: u32,
}

fn bitrate_bps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bps = u64::deserialize(deserializer)?;
    // Clients with bitrate 0 are skipped later.
    match check_bitrate(BitRate::bps(bps)) {
        Err(error) if bps > 0 => Err(D::Error::custom(error)),
        _ => Ok(bps),
    }
}

/// A network's bids in a round (step 5).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Bids {
    /// Number of the call's round.
    pub round: u64,
    /// Clusters in the bids, each once.
    pub clusters: Vec<ClusterBid>,
    /// Bids for each share.
    pub shares: Vec<ShareBids>,
    /// True if more bids of this round follow, because they exceed one message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// A network's announcement of one cluster.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterBid {
    /// Number chosen by the network, constant over all rounds.
    pub cluster: u32,
    /// Price per Mbit/s in the contract's unit of money, if the design asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Rate that the cluster can send to the broker's clients, in bits per second, if the design
    /// asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bps: Option<u64>,
}

/// The clusters that a network bids for a share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareBids {
    /// Number of the share in the call.
    pub share: u32,
    /// Clusters, each with the score that the network expects; lower is better.
    #[schema(value_type = Vec<Vec<f64>>)]
    pub clusters: Vec<(u32, f64)>,
}

/// The broker's answer to bids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BidsReply {
    /// Number of accepted bids.
    pub taken: u64,
    /// Number of refused bids.
    pub refused: u64,
    /// Reasons of the first refusals.
    pub reasons: Vec<String>,
}

/// The broker's proposal, in designs that ask networks: the rates that it would place on a
/// network's clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// Number of the round.
    pub round: u64,
    /// Number of the proposal in the round, from 1.
    pub attempt: u32,
    /// Clusters with a rate.
    pub clusters: Vec<ClusterRate>,
}

/// A cluster of a network, and a rate.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterRate {
    /// Id of the cluster, as the network numbers its clusters.
    pub cluster: u32,
    /// Proposed rate, or maximum rate in a refusal, in bits per second.
    pub rate_bps: u64,
}

/// A network's answer to a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Assent {
    /// Number of the proposal's round.
    pub round: u64,
    /// Number of the proposal.
    pub attempt: u32,
    /// Overloaded clusters, each with its maximum rate. An empty list is assent.
    pub refused: Vec<ClusterRate>,
}

/// Result of a network's bids (step 7), which the broker also sends to losing networks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BidResult {
    /// Number of the round.
    pub round: u64,
    /// All clusters that the network bid.
    pub clusters: Vec<ClusterResult>,
    /// Accepted bids; all other bids lost.
    pub shares: Vec<ShareResult>,
}

/// Result for one cluster.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterResult {
    /// Id of the cluster, as the network numbers its clusters.
    pub cluster: u32,
    /// Number of clients.
    pub sessions: u64,
    /// Total rate of these clients, in bits per second.
    pub rate_bps: u64,
    /// Gain of the broker from a further Mbit/s of this cluster, in the unit of the price: 0 if the
    /// cluster is not full. At shadow price 0, no bid for the cluster lost for lack of capacity.
    pub shadow_price: f64,
}

/// Clients placed on a cluster.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareResult {
    /// Number of the share in the call.
    pub share: u32,
    /// Id of the cluster, as the network numbers its clusters.
    pub cluster: u32,
    /// Bitrate of each client, in bits per second.
    pub bitrate_bps: u64,
    /// Number of clients.
    pub sessions: u32,
}
