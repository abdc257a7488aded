//! The service with agents and players over real sockets on loopback; some tests run several
//! brokers around an etcd.

#![allow(clippy::disallowed_methods, reason = "tests of a driver")]

mod damaged;
mod service;
mod shared;
