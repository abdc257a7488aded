//! Integration tests of the net room: datagrams over loopback.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: sockets, files and the namespace's tables")]

mod datagram;
