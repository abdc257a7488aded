//! Tests of nodes over real sockets on loopback, below an origin whose answers each test scripts.

#![allow(clippy::disallowed_methods, reason = "tests of a driver")]

mod controlled;
mod dns;
mod doubled;
mod faults;
mod nginx;
mod origin;
mod players;
mod pull;
mod relay;
mod secure;
mod shared;
mod source;
