//! A training job on parallel switches: phases that compute and then send, and when its circuits turn.
//!
//! A phase begins when all phases that it waits for have ended. It computes, then it sends all its bytes; it ends with the last one.
//! The network serves one phase at a time, in the order of the file, and turns while the hosts compute. An iteration begins
//! when the one before has ended. The first phase finds its circuits standing: they are set up before the job starts.
//!
//! At each phase the job stays with the circuits that stand, turns to others that then stand, or runs a schedule of days
//! ([`crate::parallel`]). Over standing circuits hosts relay for each other.
//!
//! Entry points: a [`Job`] goes into a [`Planner`], a [`JobPlan`] comes out. Leaves out: phases that share the network,
//! delays of relays, and what a host computes while it relays.

mod failure;
mod file;
mod planner;

pub use failure::{Failures, FailuresError, JobFailure};
pub use file::FileError;
pub use planner::{Choice, JobPlan, Planner, Step};

use crate::parallel::{ParallelError, Switches};
use crate::{Demand, DemandError};
use anabranch_units::Duration;
use std::fmt;

/// Most hosts of a job.
pub const HOSTS_MAX: usize = 512;
/// Most spare hosts.
pub const SPARES_MAX: usize = 512;
/// Most phases of an iteration.
pub const PHASES_MAX: usize = 64;
/// Most phases of all iterations.
pub const STEPS_MAX: usize = 10_000;
/// Longest computation of a phase.
pub const COMPUTE_MAX: Duration = Duration::from_secs(86_400);

/// One phase of an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Name in tables.
    pub name: String,
    /// Phases that end before this one begins, by their number in the job.
    pub after: Vec<usize>,
    /// Time that the hosts compute before they send.
    pub compute: Duration,
    /// Bytes between the job's hosts.
    pub demand: Demand,
}

/// Phases of a job, and the switches that it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Hosts that compute, and spare hosts that stand by.
    pub hosts: usize,
    /// Hosts that take the place of a dead one.
    pub spares: usize,
    /// Switches with one port for each host.
    pub switches: Switches,
    /// Times that all phases run.
    pub iterations: usize,
    /// Phases of one iteration; each waits for earlier ones only.
    pub phases: Vec<Phase>,
}

/// A job that cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobError {
    /// Number of hosts outside 2 to [`HOSTS_MAX`].
    Hosts(usize),
    /// More spare hosts than [`SPARES_MAX`].
    Spares(usize),
    /// Number of phases outside 1 to [`PHASES_MAX`].
    Phases(usize),
    /// No iteration, or more phases in all than [`STEPS_MAX`].
    Iterations(usize),
    /// A phase that waits for itself or a later one.
    After {
        /// Name of the phase.
        phase: String,
    },
    /// A computation longer than [`COMPUTE_MAX`].
    Compute {
        /// Name of the phase.
        phase: String,
        /// Its computation.
        compute: Duration,
    },
    /// Demand for another number of hosts.
    Demand {
        /// Name of the phase.
        phase: String,
        /// The mistake.
        error: DemandError,
    },
    /// Switches that cannot be, or a job longer than 53 days.
    Switches(ParallelError),
    /// Bytes of a pair for which a plan has no circuits.
    Unplanned {
        /// Name of the phase.
        phase: String,
        /// Sending host.
        source: usize,
        /// Receiving host.
        destination: usize,
    },
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosts(hosts) => write!(f, "hosts {hosts}: must be 2 to {HOSTS_MAX}"),
            Self::Spares(spares) => write!(f, "spares {spares}: must be at most {SPARES_MAX}"),
            Self::Phases(phases) => write!(f, "{phases} phases: a job has 1 to {PHASES_MAX}"),
            Self::Iterations(iterations) => {
                write!(
                    f,
                    "iterations {iterations}: must be at least 1, with {STEPS_MAX} phases in all at most"
                )
            }
            Self::After { phase } => write!(f, "phase `{phase}`: waits for itself or a later phase"),
            Self::Compute { phase, compute } => {
                write!(f, "phase `{phase}`: compute {compute}: must be at most {COMPUTE_MAX}")
            }
            Self::Demand { phase, error } => write!(f, "phase `{phase}`: {error}"),
            Self::Switches(error) => error.fmt(f),
            Self::Unplanned { phase, source, destination } => {
                write!(
                    f,
                    "phase `{phase}`: {source} -> {destination} has bytes, and the plan has no circuits for them"
                )
            }
        }
    }
}

impl std::error::Error for JobError {}

impl From<ParallelError> for JobError {
    fn from(error: ParallelError) -> Self {
        Self::Switches(error)
    }
}

impl Job {
    /// Refuses a job that cannot be planned.
    ///
    /// Errors: a number or a time out of range, or a phase that does not wait for earlier ones only.
    pub fn check(&self) -> Result<(), JobError> {
        self.switches.check()?;
        if !(2..=HOSTS_MAX).contains(&self.hosts) {
            return Err(JobError::Hosts(self.hosts));
        }
        if self.spares > SPARES_MAX {
            return Err(JobError::Spares(self.spares));
        }
        if !(1..=PHASES_MAX).contains(&self.phases.len()) {
            return Err(JobError::Phases(self.phases.len()));
        }
        let steps = self.iterations.saturating_mul(self.phases.len());
        if !(1..=STEPS_MAX).contains(&steps) {
            return Err(JobError::Iterations(self.iterations));
        }
        let mut longest = 0u128;
        for (number, phase) in self.phases.iter().enumerate() {
            if phase.after.iter().any(|before| *before >= number) {
                return Err(JobError::After { phase: phase.name.clone() });
            }
            if phase.compute > COMPUTE_MAX {
                return Err(JobError::Compute { phase: phase.name.clone(), compute: phase.compute });
            }
            if phase.demand.racks() != self.hosts {
                let error = DemandError::Racks(phase.demand.racks());
                return Err(JobError::Demand { phase: phase.name.clone(), error });
            }
            // No choice takes longer than all bytes over one link, and a night for each matching.
            let sending: u128 =
                self.switches.times(&phase.demand)?.iter().map(|time| u128::from(*time)).sum();
            let nights = 2 * self.hosts as u128 * u128::from(self.switches.night.as_ps());
            longest += u128::from(phase.compute.as_ps()) + sending + nights;
        }
        if longest * self.iterations as u128 > u128::from(crate::parallel::LONGEST_PS) {
            return Err(ParallelError::Long.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
