//! `spray`: short flows use every path, coded against late packets; long flows yield to short
//! flows.
//!
//! Source: Hu and others, *CAPS: Coding-Based Adaptive Packet Spraying to Reduce Flow Completion
//! Time in Data Center* (2019). Recipe: layering, with transparency. A layer between TCP and IP
//! hides the reordering and congestion of a multi-path fabric; TCP above it and switches below it
//! are unchanged.
//!
//! Terms: a *short* flow has less than 100 kB to send, a *long* flow more. A *source packet* is a
//! packet of TCP; a *unit* is a number of consecutive source packets with common *parities*. Each
//! parity can replace any packet of its unit. A packet is *blocked* if it waits behind a long flow.
//! Senders learn the probability of blocking from *echoes*, which report the arrival of each
//! datagram. A *hold* is the receiver's maximum wait for an overtaken packet.
//!
//! Entry points: a [`Host`] is the layer of one host, a state machine without sockets; [`Datagram`]
//! is its message; [`model`] has the formulas. Packets are bytes, or the simulator's substitute
//! ([`Packet`]). [`ways`] chooses paths on hosts; [`kernel`] lists the kernel state that an agent
//! needs; [`simulated`] runs hosts in scenarios. Leaves out: path choice by switches
//! (`fabric::switch`), sockets, encryption and devices.

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
mod sent_datagrams;
pub mod simulated;
mod spread;
pub mod ways;

pub use config::{AGENT_HELD_MAX, Config, ConfigError, Parities, UnitSize};
pub use datagram::{Body, Datagram, ECHO_BYTES, Echo, FlowId, HEAD_BYTES_MAX};
pub use host::{DeliveredPacket, Host, HostCounts, OutgoingDatagram, OutgoingPacket, PeerView};
pub use memory::{PEER_FLOWS_MAX, PEER_MEMORY_MAX};
pub use packet::{CarriedPacket, Packet};
pub use repeats::UNHEARD_MAX;
pub use segment::{Segment, mark};
