//! Rates for the flows of coflows, so that the mean coflow completes early.
//!
//! A stage waits for the last of the flows that feed it. Together they are a *coflow* (Chowdhury and Stoica, *Coflow*, HotNets
//! 2012). A flow that is through before its coflow's last has gained nothing, and has kept others from their links. So each flow
//! gets the rate at which it is through with that last one.
//!
//! Source: Ren and Wang, *Managing Flow Transfers in Enterprise Datacenter Networks with Flow Chasing* (2016).
//!
//! Entry points: [`Chase`] decides as the paper does, [`ChasePlus`] better; both are allocators for [`anabranch_fluid::run`].
//! [`Coordinator`] has any allocator decide for real flows, of which the agents of their hosts tell it by [`control`];
//! an [`Agent`] hears of them by [`announcement`], finds them by [`rules`], keeps a [`book::Book`] of them, and has limits
//! enforced ([`enforcement`]);
//! [`hosts`] lists the hosts whose agents may join. [`simulated`] has all of it run in the packet simulator.
//! Leaves out: the other schedulers (`fluid`), how messages travel and enforcing rates (drivers).

pub mod agent;
pub mod announcement;
pub mod book;
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
pub use chase_plus::{ChasePlus, SLOWDOWN_DUE, Without};
pub use coordinator::Coordinator;
pub use scheduler::{BoxedAllocator, Scheduler, UnknownScheduler};
pub use sessions::Sessions;
