//! A flow-level network model. Each flow is a volume on a route, and moves at a rate set by an
//! [`Allocator`].
//!
//! Rates change only at events (the arrival or the completion of a flow), so the cost of a run
//! depends on the number of events, not on volumes. Packets, queues and round trips are not
//! modelled: the allocator sets the rates that a transport would reach.
//!
//! Terms: a *coflow* is a group of flows that is complete when its last flow is complete (Chowdhury
//! and Stoica, *Coflow*, HotNets 2012). The completion time of a coflow is the time from its first
//! flow's arrival to its last flow's completion. A flow is *active* from its arrival to its
//! completion.
//!
//! Entry points: [`run`] takes a [`Network`], [`Flow`]s and an allocator, and returns an
//! [`Outcome`]; [`benchmark`] parses recorded coflows. [`MaxMin`] is the fair baseline, [`Srf`]
//! orders flows, [`Wss`] shares rates among coflows, and [`Fifo`], [`Aalo`], [`Varys`] and
//! [`Sincronia`] order coflows; [`coflowsim`] implements the rules of the reference simulator.
//! Leaves out: enforcing the rates of a program's flows (systems and drivers do that).

mod aalo;
mod active;
mod allocator;
pub mod benchmark;
pub mod bound;
pub mod coflowsim;
mod fifo;
mod filling;
pub mod generate;
mod greedy;
mod invariants;
mod madd;
mod max_min;
mod network;
mod order;
mod plan;
mod run;
mod sincronia;
mod srf;
#[cfg(test)]
mod testing;
mod varys;
mod wss;

pub use aalo::{Aalo, AaloError};
pub use active::{ActiveFlows, DecisionError, ROUNDING};
pub use allocator::{Allocator, Event};
pub use fifo::Fifo;
pub use invariants::{Invariant, InvariantCheck};
pub use max_min::MaxMin;
pub use network::{CoflowId, Flow, FlowId, LinkId, Network, NetworkError};
pub use order::CoflowOrder;
pub use plan::Plan;
pub use run::{Completion, Outcome, RunError, run, run_in_epochs};
pub use sincronia::Sincronia;
pub use srf::Srf;
pub use varys::Varys;
pub use wss::Wss;
