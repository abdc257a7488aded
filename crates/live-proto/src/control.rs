//! Hybrid control of relays: the controller's decisions, combined with the local state of each
//! node.
//!
//! Source: VDN, §4.2.4 to §4.4. The controller plans trees slowly, for the whole network. A node
//! overrides a planned route at once if the evidence for the route has changed, and returns to the
//! plan when the evidence agrees again. Requests travel up the tiers and video travels down, so no
//! route can form a loop.
//!
//! Leaves out: sockets, the optimiser. Read [`tables`] and [`local`] first.

pub mod audience;
pub mod capacity;
pub mod controller;
pub mod differences;
pub mod exercise;
pub mod ledger;
pub mod local;
pub mod messages;
pub mod neighbours;
pub mod node;
pub mod tables;
