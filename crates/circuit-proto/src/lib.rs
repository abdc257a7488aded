//! A reconfigurable data-centre network: racks behind a packet switch and an optical circuit switch.
//!
//! Source: Mukerjee, *Eliminating Adverse Control Plane Interactions in Independent Network Systems* (CMU-CS-18-106, 2018), chapter 2
//! (Etalon); each scheduler cites its own paper.
//!
//! Words used: a *circuit* joins one source rack to one destination rack at the circuit rate. A *matching* is a set of
//! circuits in which no rack sends twice and none receives twice. A *day* holds one matching for a time; a *night* is the
//! reconfiguration before it, in which no circuit carries anything. A *week* is the time that one schedule may take (§2.2.2).
//!
//! Entry points: [`Demand`] and [`Timing`] go into a [`Scheduler`], a [`Schedule`] comes out; [`Schedule::served`] says what
//! it carries, and [`bound::served_max`] what no schedule can exceed. A [`Controller`] does so week after week; [`Ledger`] has the
//! demand that programs announce. [`parallel`] has all demand in the least time over several switches, [`job`] the phases of a
//! training job on them. Leaves out: packets and queues (`fabric`).

pub mod bound;
pub mod control;
mod demand;
#[doc(hidden)]
pub mod exercise;
pub mod generate;
pub mod job;
pub mod ledger;
mod matching;
pub mod parallel;
mod schedule;
pub mod schedulers;
pub mod shaping;
pub mod simulated;
mod standing;
mod sums;
pub mod table;
mod timing;

pub use control::{ControlError, ControlSettings, Controller, Week};
pub use demand::{Demand, DemandError, RACKS_MAX};
pub use ledger::{Ledger, LedgerError};
pub use matching::{Matching, MatchingError};
pub use schedule::{Day, Schedule, ScheduleError};
pub use schedulers::{Kind, Plan, Scheduler};
pub use shaping::Shaping;
pub use timing::{Timing, TimingError};
