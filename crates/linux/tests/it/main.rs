//! Tests of the kernel's interfaces on this machine. Tests that the machine cannot run print the
//! reason and pass.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: they use the clock, threads and sockets")]

mod congestion;
mod namespaces;
mod retcp;
mod wire;
