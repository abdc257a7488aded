//! Real sockets: TCP with per-hop settings, mutual TLS, and fast UDP with datagrams sealed by a TLS
//! session's keys.
//!
//! [`keys`] makes a working set of certificates; [`tls`] turns them into mutually authenticated
//! connections and identifies the peer; [`public`] is TLS with unauthenticated peers. [`socket`]
//! configures TCP for a hop, [`cause`] explains failed connections. [`datagram`] is UDP at high
//! rates, and [`seal`] makes datagrams that only the two ends of a TLS session can write and read.
//! [`admission`] limits a listener's connections; [`refusals`] limits log lines about refused ones.
//! [`local`] listens for programs of the same host. [`random`] draws unpredictable numbers,
//! [`private`] opens files that only their owner may read. A driver crate: it may read clocks, open
//! sockets and files. The crate depends on no system.
#![allow(clippy::disallowed_methods, reason = "a driver: sockets, files and clocks are its business")]

pub mod address;
pub mod admission;
pub mod cause;
pub mod certificate;
pub mod datagram;
pub mod identity;
pub mod keys;
pub mod local;
mod party;
pub mod private;
pub mod public;
mod random;
pub mod refusals;
pub mod resolve;
pub mod revoked;
pub mod seal;
pub mod socket;
pub mod timer;
pub mod tls;

#[doc(hidden)]
pub use linkme;
pub use random::random;
