//! A reconfigurable data-centre network: racks behind a packet switch and an optical circuit
//! switch.
//!
//! Source: Mukerjee, *Eliminating Adverse Control Plane Interactions in Independent Network
//! Systems* (CMU-CS-18-106, 2018), called *the thesis*, chapter 2 (Etalon); each scheduler cites
//! its own paper.
//!
//! Words used: a *circuit* joins one source rack to one destination rack at the circuit rate. A
//! *matching* is a set of circuits in which each rack sends at most once and receives at most once.
//! A *day* is the time for which a matching is in place. A *night* is the reconfiguration before a
//! day, in which circuits carry no bytes. A *week* is the maximum length of one schedule (§2.2.2).
//!
//! Entry points: a [`Scheduler`] makes a [`Schedule`] from [`Demand`] and [`Timing`].
//! [`Schedule::served`] is the demand that the schedule carries, and [`bound::served_max`] an upper
//! bound for every schedule. A [`Controller`] plans one week after another; a [`Ledger`] has the
//! demand that programs announce. [`parallel`] serves all demand in the minimum time over several
//! switches, and [`job`] plans the phases of a training job on such switches. Leaves out: packets
//! and queues (`fabric`).

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
