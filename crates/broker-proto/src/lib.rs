//! A broker that places viewers on the clusters of content networks, and the networks that bid for them, without I/O.
//!
//! Source: VDX, in Mukerjee, *Eliminating Adverse Control Plane Interactions in Independent Network Systems* (2018), chapter 3. So far: step 6 of its
//! decision protocol, *optimise*.
//!
//! A [`Market`] has clusters with capacities and prices, places whose viewers may be served from some of them, and groups of alike
//! viewers. [`Optimiser`] finds where each viewer goes, and says with each answer how far from the best it can be at the most.
//! Invariant: no cluster is ever given more than its capacity. Leaves out: sockets and clocks. Read [`Market`], then [`Optimiser`].

mod branch;
mod generator;
mod market;
mod optimiser;

pub use generator::{Shape, generate};
pub use market::{Candidate, Cluster, Group, Market, MarketError};
pub use optimiser::{Answer, Optimiser, Placement};
