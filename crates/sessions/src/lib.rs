//! Sessions between a controller and its peers, as machines without I/O.
//!
//! The controller's side is [`Sessions`]: which process speaks for each peer, whether it is alive,
//! and which messages wait for it. The peer's side is [`PeerSession`]: whether it has joined, and
//! which messages it has taken over. [`Controllers`] says which of several controllers a peer asks
//! next, and after which pause; [`Backoff`] has the pauses. Messages and peer ids are the system's
//! own types.
//!
//! Leaves out: how requests travel, what messages mean, durability. Read [`Sessions`] and
//! [`SessionsConfig`] first.

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
