//! The service with agents and players over real sockets on loopback.

#![allow(clippy::disallowed_methods, reason = "tests of a driver")]

mod service;
