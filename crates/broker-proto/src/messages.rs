//! The messages of the decision protocol, between a broker and the agent of each content network.
//!
//! Source: the thesis, section 3.6.1. Differs: clients of a place are one share, whatever their bitrates and contents; a network says a cluster's price and
//! capacity once, and not in each bid. Requests and replies are JSON in the bodies of HTTP. Leaves out: how they travel. What comes from a
//! network is checked bid by bid by `broker`.

use crate::limits::check_bitrate;
use anabranch_units::BitRate;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// From the broker, step 3: a round begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Which round. Bids are for it alone.
    pub round: u64,
    /// The design's name: what networks are to match and to announce.
    pub design: String,
    /// Where there are clients.
    pub shares: Vec<Share>,
}

/// Clients of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// What bids call it, in this round.
    pub share: u32,
    /// Their city, by a name that broker and networks agree on.
    pub location: String,
    /// Their internet provider, the same.
    pub isp: String,
    /// How many there are; none where the design does not share them.
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
    /// How many they are.
    pub sessions: u32,
}

fn bitrate_bps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bps = u64::deserialize(deserializer)?;
    // Clients of no bitrate are none, and are passed over.
    match check_bitrate(BitRate::bps(bps)) {
        Err(error) if bps > 0 => Err(D::Error::custom(error)),
        _ => Ok(bps),
    }
}

/// From a network, step 5: its bids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Bids {
    /// The call's.
    pub round: u64,
    /// The clusters that it bids, each once.
    pub clusters: Vec<ClusterBid>,
    /// For which clients.
    pub shares: Vec<ShareBids>,
    /// Whether more bids of this round follow: many do not fit into one message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// What a network says of one of its clusters.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterBid {
    /// A number that the network has chosen; the same in each round.
    pub cluster: u32,
    /// What each megabit a second costs, in the unit of money of the contract, if the design has it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// What it can send to the broker's clients, if the design has it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bps: Option<u64>,
}

/// The clusters that a network bids for a share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareBids {
    /// The call's number for it.
    pub share: u32,
    /// Clusters, each with the score that the network expects; less is better.
    #[schema(value_type = Vec<Vec<f64>>)]
    pub clusters: Vec<(u32, f64)>,
}

/// From the broker, in answer to bids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BidsReply {
    /// How many bids count.
    pub taken: u64,
    /// How many do not.
    pub refused: u64,
    /// Why, for the first of them.
    pub reasons: Vec<String>,
}

/// From the broker, where the design asks: what it would place on a network's clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// The round.
    pub round: u64,
    /// Which proposal of the round, from 1 on.
    pub attempt: u32,
    /// Clusters that would get something.
    pub clusters: Vec<ClusterRate>,
}

/// A cluster, and a rate.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterRate {
    /// The network's number for it.
    pub cluster: u32,
    /// What it would send, or the most that it will.
    pub rate_bps: u64,
}

/// From a network, in answer to a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Assent {
    /// The proposal's.
    pub round: u64,
    /// The proposal's.
    pub attempt: u32,
    /// Clusters that would get more than they can send now, each with the most that it can. None is assent.
    pub refused: Vec<ClusterRate>,
}

/// From the broker, step 7: what became of a network's bids. Also to those that lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Accepted {
    /// The round.
    pub round: u64,
    /// All clusters that it bid.
    pub clusters: Vec<ClusterAccepted>,
    /// Bids that were accepted; all others were not.
    pub shares: Vec<ShareAccepted>,
}

/// What a cluster gets.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterAccepted {
    /// The network's number for it.
    pub cluster: u32,
    /// Clients.
    pub sessions: u64,
    /// What they get together.
    pub rate_bps: u64,
    /// By how much the broker would be better off with each further megabit a second of it, in the units of the price: 0 where it is not full. A bid
    /// that lost by price lost for another reason than a full cluster.
    pub shadow_price: f64,
}

/// Clients who were placed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareAccepted {
    /// The call's number for their place.
    pub share: u32,
    /// The network's number for the cluster.
    pub cluster: u32,
    /// What each of them gets.
    pub bitrate_bps: u64,
    /// How many.
    pub sessions: u32,
}
