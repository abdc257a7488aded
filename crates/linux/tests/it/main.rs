//! The kernel's interfaces as this machine has them. Tests that it cannot run print why and pass.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: they use the clock, threads and sockets")]

mod congestion;
mod namespaces;
mod retcp;
mod wire;
