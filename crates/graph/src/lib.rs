//! Topologies and what is computed on them: paths, flows, trees, matchings.
//!
//! A [`Topology`] is a list of named sites and a list of *directed* links with capacity, delay and cost; a full-duplex
//! cable is two links. Systems plan on it, the emulator builds it, files describe it.
//!
//! Leaves out: what a system decides with these answers (that is the system's `plan.rs`). Read [`Topology`] first.

pub mod builtin;
pub mod file;
mod topology;

pub use topology::{LINKS_MAX, Link, LinkProperties, Place, SITES_MAX, Site, Topology, TopologyError};
