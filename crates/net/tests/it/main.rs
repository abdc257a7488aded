//! Integration tests of the net room: datagrams over loopback, channels keyed from real sessions, and the fuzz corpus.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: sockets, files and the namespace's tables")]

mod datagram;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod seal;
#[path = "../../../skip.rs"]
mod skip;
