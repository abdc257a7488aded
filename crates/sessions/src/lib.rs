//! Sessions between a controller and its peers, as machines without I/O.
//!
//! The controller's side is [`Sessions`]: the present process of each peer, whether the process is
//! alive, and which messages are queued for it. The peer's side is [`PeerSession`]: whether it has
//! joined, and which messages it has received. [`Controllers`] selects the controller that a peer
//! asks next, and the time of the request; [`Backoff`] computes the pauses. The system defines the
//! types of messages and peer ids.
//!
//! Leaves out: the transport of requests, the contents of messages, durability. Read [`Sessions`]
//! and [`SessionsConfig`] first.

mod backoff;
mod controller;
mod controllers;
mod peer;
#[cfg(test)]
mod tests;

pub use backoff::Backoff;
pub use controller::{
    JoinReply, NotJoined, OverflowRule, Position, Probe, ProbeResult, Rejoin, Sessions, SessionsConfig,
};
pub use controllers::{Controllers, Failure, Retry};
pub use peer::PeerSession;
