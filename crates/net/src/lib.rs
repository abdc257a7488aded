//! Real sockets: TCP with per-hop settings, mutual TLS, and UDP at speed, with datagrams sealed by a TLS session's keys.
//!
//! [`keys`] makes a working set of certificates; [`tls`] turns them into mutually authenticated connections and tells the
//! other end's identity; [`public`] is TLS with strangers; [`socket`] is TCP as a hop needs it, [`cause`] says why a connection failed. [`datagram`] is UDP for many
//! datagrams a second, and [`seal`] makes datagrams that only the two ends of a TLS session can write and read.
//! [`admission`] is for listeners: which connections are let in, and which are dropped when there are too many; [`refusals`] is for
//! their log. [`local`] is for programs of the same host. [`random`] makes numbers that nobody can guess, [`private`] opens files that are their owner's alone. A driver room: it
//! may read clocks, open sockets and files. It knows no system.
#![allow(clippy::disallowed_methods, reason = "a driver: sockets, files and clocks are its business")]

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
