//! Live video over trees of relays: a central optimiser, and local control of each relay, without
//! I/O.
//!
//! Source: VDN, in Mukerjee, *Eliminating Adverse Control Plane Interactions in Independent Network Systems* (2018), chapter 4.
//!
//! A [`Network`] has tiers of nodes with links between them. An [`Object`] is one channel at one
//! bitrate. [`plan`] decides which links carry which object. [`control`] combines this plan with
//! the local state of each node. [`relay`] fetches each object once and forwards it to all viewers.
//! [`directory`] maps viewers to edges. [`simulated`] runs the whole system in the simulator.
//! Leaves out: sockets, clocks, encoding of video.

pub mod control;
pub mod directory;
mod network;
pub mod origin;
pub mod plan;
pub mod play;
pub mod relay;
pub mod round;
pub mod simulated;

pub use network::{
    ChangeError, ChannelId, LINKS_MAX, Link, NAME_BYTES_MAX, NODES_MAX, Network, NetworkError, Node, NodeId,
    Object, Tier,
};
