//! Real sockets: TCP with per-hop settings, and mutual TLS.
//!
//! [`keys`] makes a working set of certificates; [`tls`] turns them into mutually authenticated connections and tells who
//! the other end is; [`socket`] is TCP as a hop needs it. A driver room: it may read clocks, open sockets and files. It
//! knows no system.
#![allow(clippy::disallowed_methods, reason = "a driver: sockets, files and clocks are its business")]

pub mod identity;
pub mod keys;
pub mod socket;
pub mod tls;
