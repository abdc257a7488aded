//! Rate control for coflows that minimises the mean coflow completion time.
//!
//! A stage of a computation waits for the last of the flows that feed it. Together these flows are
//! a *coflow* (Chowdhury and Stoica, *Coflow*, HotNets 2012). A flow that completes before its
//! coflow's last flow gains nothing and delays other flows on its links. So each flow gets the rate
//! at which it completes together with the last flow.
//!
//! Source: Ren and Wang, *Managing Flow Transfers in Enterprise Datacenter Networks with Flow
//! Chasing* (2016).
//!
//! Entry points: [`Chase`] decides as the paper does, and [`ChasePlus`] extends it; both are
//! allocators for [`anabranch_fluid::run`]. [`Coordinator`] applies any allocator to real flows,
//! which hosts' agents report by [`control`]. An [`Agent`] is informed of flows by [`announcement`]
//! and [`rules`], keeps them in [`announced_flows::AnnouncedFlows`], and has limits enforced
//! ([`enforcement`]). [`hosts`] lists the hosts whose agents may join. [`simulated`] runs all parts
//! in the packet simulator.
//!
//! Leaves out: the other schedulers (`fluid`), the transport of messages and the enforcement of
//! rates (drivers).

pub mod agent;
pub mod announced_flows;
pub mod announcement;
mod chase;
mod chase_plus;
pub mod control;
pub mod coordinator;
pub mod enforcement;
#[doc(hidden)]
pub mod exercise;
pub mod hosts;
pub mod rules;
mod scheduler;
pub mod sessions;
pub mod simulated;
pub mod state;

pub use agent::Agent;
pub use chase::{Chase, Priority};
pub use chase_plus::{Ablation, ChasePlus, SLOWDOWN_DUE};
pub use coordinator::Coordinator;
pub use scheduler::{BoxedAllocator, Scheduler, UnknownScheduler};
pub use sessions::Sessions;
