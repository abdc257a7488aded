//! A network at the level of flows: each flow is a volume on a route, and moves at a rate that an [`Allocator`] sets.
//!
//! Nothing happens between two events (a flow arrives, a flow completes), so a run is as long as it has events, whatever the
//! volumes. Packets, queues and round trips are not modelled: the allocator gives the rates that a transport would reach.
//!
//! Words used: a *coflow* is a group of flows of which only the last one's completion counts (Chowdhury and Stoica, *Coflow*,
//! HotNets 2012). Its completion time is from its first flow's arrival to its last flow's completion. A flow
//! is *active* from its arrival to its completion.
//!
//! Entry points: [`Network`] and [`Flow`]s go into [`run`] with an allocator, [`Outcome`] comes out; [`benchmark`] reads
//! recorded coflows. [`MaxMin`] is the fair baseline, [`Srf`] orders flows, [`Wss`] shares among coflows, and [`Fifo`],
//! [`Aalo`], [`Varys`] and [`Sincronia`] order them; [`coflowsim`] is how the reference simulator has it. Leaves out: how a
//! program's rates are enforced (systems and drivers).

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
mod watched;
mod wss;

pub use aalo::{Aalo, AaloError};
pub use active::{Active, DecisionError, ROUNDING};
pub use allocator::{Allocator, Event};
pub use fifo::Fifo;
pub use max_min::MaxMin;
pub use network::{CoflowId, Flow, FlowId, LinkId, Network, NetworkError};
pub use order::Ranks;
pub use plan::Plan;
pub use run::{Completion, Outcome, RunError, run, run_in_epochs};
pub use sincronia::Sincronia;
pub use srf::Srf;
pub use varys::Varys;
pub use watched::{Law, Watched};
pub use wss::Wss;
