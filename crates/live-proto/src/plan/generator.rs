//! Topologies and workloads drawn by the rules of §4.7.1, with its published statistics.
//!
//! The thesis's traces are not public. Read [`TopologyShape`] for the network and [`Workload`] for
//! the requests. The thesis states no value for three assumptions. A city's share of requests falls
//! with its rank to the power 0.9. 3,000 client groups share 2,587 cities. Costs are normally
//! distributed with mean 30 and deviation 8. Leaves out: the number of clients. Each request is one
//! viewer.

mod complete;
mod demand;
mod draws;
mod topology;

pub use complete::TooManyArrivals;
pub use demand::{Arrival, Trace, Workload, WorkloadKind, demand};
pub use topology::{ShapeError, Topology, TopologyShape};

#[cfg(test)]
mod tests;
