//! Real sockets: TCP and TLS.
//!
//! [`keys`] makes a working set of certificates; [`tls`] turns them into mutually authenticated connections and tells who
//! the other end is.

pub mod keys;
pub mod tls;
