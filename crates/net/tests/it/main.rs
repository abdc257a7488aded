//! Integration tests of the net room: connections that open fast, datagrams over loopback, channels keyed from real sessions, and the fuzz corpus.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: sockets, files and the namespace's tables")]

mod datagram;
mod fast_open;
mod seal;
