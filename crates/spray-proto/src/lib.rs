//! `spray`: short flows go over every path, coded so that a late packet delays nobody; long flows keep out of their way.
//!
//! Source: Hu and others, *CAPS: Coding-Based Adaptive Packet Spraying to Reduce Flow Completion Time in Data Center* (2019).
//! Recipe: layering, with transparency. A layer between TCP and IP makes of a fabric with many paths, some of them crowded, one that seems to
//! have no reordering; TCP above it and switches below it stay as they are.
//!
//! Words used: a *short* flow has less than 100 kB to send, a *long* one more. A *source packet* is one that TCP sent; a *unit* is so many of
//! them that follow each other, for which *parities* are made, each as good as any of them. A packet is *blocked* where it waits
//! behind a long flow; how likely that is, senders learn from *echoes*: the other end says when each datagram came. A *hold* is how long the
//! receiving end waits for a packet that others have overtaken.
//!
//! Entry points: a [`Host`] is the layer of one host, a machine without sockets; [`Datagram`] is what travels; [`model`] has the formulas.
//! Packets are bytes, or what the simulator has in their place ([`Packet`]). [`ways`] chooses paths where only hosts can; [`kernel`] says what an agent's host needs; [`simulated`] runs hosts in scenarios. Leaves out: how switches
//! choose paths (`fabric::switch`), sockets, encryption and devices.

mod blocking;
mod config;
pub mod control;
mod datagram;
mod decoder;
mod encoder;
#[doc(hidden)]
pub mod exercise;
mod host;
pub mod kernel;
pub mod link;
mod memory;
pub mod model;
mod packet;
#[cfg(test)]
mod pair;
mod repeats;
mod segment;
mod sent;
pub mod simulated;
mod spread;
pub mod ways;

pub use config::{AGENT_HELD_MAX, Config, ConfigError, Parities, UnitSize};
pub use datagram::{Body, Datagram, ECHO_BYTES, Echo, FlowId, HEAD_BYTES_MAX};
pub use host::{Arrived, Counts, Host, Leaving, Outgoing, PeerView};
pub use memory::{PEER_FLOWS_MAX, PEER_MEMORY_MAX};
pub use packet::{Carried, Packet};
pub use repeats::UNHEARD_MAX;
pub use segment::{Segment, mark};
