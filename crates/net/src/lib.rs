//! Real sockets: TCP with per-hop settings, and mutual TLS.
//!
//! A driver room: it may read clocks, open sockets and files. It knows no system.
#![expect(clippy::disallowed_methods, reason = "a driver: sockets, files and clocks are its business")]

pub mod identity;
pub mod socket;
