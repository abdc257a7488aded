//! The packet simulator: scenarios, workloads, runs in virtual time.
//!
//! A scenario file describes network, transport and workloads ([`scenario`]). A [`Plan`] is a
//! validated scenario with all names resolved. A [`Simulation`] is one run of a plan over a
//! [`Fabric`](anabranch_fabric::Fabric), with the same elements that the emulator runs in real
//! time. An [`Outcome`] is its result. The same plan and seed give the same run, event by event.
//!
//! Terms: a *workload* is traffic that a scenario requests, and a *job* is its traffic in one run.
//! A *flow* is bytes from one host to another. A *trial* is one of several runs that differ in
//! their seed. A *point* is one combination of swept settings.
//!
//! Leaves out: real time (`emu`), flow-level models (`fluid`), systems ([`system`] connects them),
//! and running many trials at once. Read [`scenario::Scenario`], [`Plan`] and [`Simulation`] first.

pub mod circuits;
mod end;
mod error;
#[doc(hidden)]
pub mod exercise;
mod network;
mod plan;
mod probe;
mod report;
mod rows;
mod run;
pub mod scenario;
mod sizes;
pub mod system;
mod topologies;
pub mod traffic;

pub use end::{End, Msg, Report, UdpSink};
pub use error::PlanError;
pub use network::{Network, NetworkError};
pub use plan::Plan;
pub use rows::{
    CoflowRow, CompletionTimes, FlowEnd, FlowRow, LatencyRow, LinkRow, NetworkRow, Outcome, Sample, WeekRow,
    WorkloadRow,
};
pub use run::Simulation;
pub use sizes::{Sizes, SizesError};
