//! Topologies, and their paths, routes, flows, trees and matchings.
//!
//! A [`Topology`] is a list of named sites and a list of *directed* links with capacity, delay and
//! cost; a full-duplex cable is two links. Systems plan with topologies, the emulator builds them,
//! and files describe them. A site may be a switch, which has no host. [`datacentre`] builds
//! networks of switches, and [`Routes`] has the links that packets take through a network.
//!
//! Leaves out: the decisions of a system (the system's `plan.rs`). Read [`Topology`] first.

pub mod builtin;
pub mod datacentre;
pub mod file;
mod flow;
mod hosts;
mod paths;
pub mod picture;
mod routes;
#[cfg(test)]
mod testing;
mod topology;
mod trees;

pub use flow::{Adjacency, Cut, LinkFlow, max_flow, min_cost_flow, min_cut};
pub use hosts::Hosts;
pub use paths::{decompose, disjoint_paths, distances, shortest_path};
pub use routes::Routes;
pub use topology::{
    CAPACITY_MAX, CAPACITY_SUM_MAX, DELAY_MAX, GeoPoint, LINKS_MAX, Link, LinkProperties,
    SITE_NAME_BYTES_MAX, SITES_MAX, Site, Topology, TopologyError, check_site_name,
};
pub use trees::{
    Arborescence, TERMINALS_EXACT_MAX, arborescence_price_bound, cheapest_arborescence, greedy_arborescence,
};
