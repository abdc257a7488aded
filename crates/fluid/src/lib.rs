//! A flow-level network model: each flow is a volume on a route, and moves at a rate set by an
//! [`Allocator`].
//!
//! Rates change only at events (a flow arrives, a flow completes), so the cost of a run depends on
//! the number of events, not on volumes. Packets, queues and round trips are not modelled: the
//! allocator gives the rates that a transport would reach.
//!
//! Terms: a *coflow* is a group of flows that is complete with its last flow (Chowdhury and Stoica,
//! *Coflow*, HotNets 2012). Its completion time is from its first flow's arrival to its last flow's
//! completion. A flow is *active* from its arrival to its completion.
//!
//! Entry points: [`run`] takes a [`Network`] and [`Flow`]s with an allocator, and returns an
//! [`Outcome`]; [`benchmark`] parses recorded coflows. [`MaxMin`] is the fair baseline, [`Srf`]
//! orders flows, [`Wss`] shares among coflows, and [`Fifo`], [`Aalo`], [`Varys`] and [`Sincronia`]
//! order them; [`coflowsim`] has the rules of the reference simulator. Leaves out: enforcing a
//! program's rates (systems and drivers).

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
