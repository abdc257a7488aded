//! A training job on parallel switches: phases that compute and then send, and a plan of when
//! circuits change.
//!
//! A phase begins when all phases that it depends on have ended. The phase computes, then sends all
//! its bytes; it ends with the last byte. The network serves one phase at a time, in the order of
//! the file, and reconfigures while the hosts compute. An iteration begins when the previous one
//! has ended. The circuits of the first phase are set up before the job starts.
//!
//! *Standing circuits* are kept in place for a whole phase or longer. For each phase, the job keeps
//! the standing circuits, changes to others, or runs a schedule of days ([`crate::parallel`]). Over
//! standing circuits, hosts relay for each other.
//!
//! Entry points: a [`Planner`] makes a [`JobPlan`] of a [`Job`]. Leaves out: phases that share the
//! network, delays of relays, and the effect of relaying on a host's computation.

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

/// Maximum number of hosts of a job.
pub const HOSTS_MAX: usize = 512;
/// Maximum number of spare hosts.
pub const SPARES_MAX: usize = 512;
/// Maximum number of phases of an iteration.
pub const PHASES_MAX: usize = 64;
/// Maximum number of phases over all iterations.
pub const STEPS_MAX: usize = 10_000;
/// Maximum computing time of a phase.
pub const COMPUTE_MAX: Duration = Duration::from_secs(86_400);

/// One phase of an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Name of the phase in tables.
    pub name: String,
    /// Phases that must end before this phase begins, by their number in the job.
    pub after: Vec<usize>,
    /// Time that the hosts compute before they send.
    pub compute: Duration,
    /// Bytes between the job's hosts.
    pub demand: Demand,
}

/// Phases of a job, and the switches of its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of hosts that compute, without the spare hosts.
    pub hosts: usize,
    /// Number of spare hosts; a spare host can replace a dead host.
    pub spares: usize,
    /// Switches with one port for each host.
    pub switches: Switches,
    /// Number of times that all phases run.
    pub iterations: usize,
    /// Phases of one iteration; each depends only on earlier phases.
    pub phases: Vec<Phase>,
}

/// Reason why a job cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobError {
    /// Number of hosts outside 2 to [`HOSTS_MAX`].
    Hosts(usize),
    /// More spare hosts than [`SPARES_MAX`].
    Spares(usize),
    /// Number of phases outside 1 to [`PHASES_MAX`].
    Phases(usize),
    /// No iteration, or more phases over all iterations than [`STEPS_MAX`].
    Iterations(usize),
    /// A phase that depends on itself or on a later phase.
    After {
        /// Name of the phase.
        phase: String,
    },
    /// A computation longer than [`COMPUTE_MAX`].
    Compute {
        /// Name of the phase.
        phase: String,
        /// Computing time of the phase.
        compute: Duration,
    },
    /// Demand for another number of hosts.
    Demand {
        /// Name of the phase.
        phase: String,
        /// The mistake.
        error: DemandError,
    },
    /// Invalid settings of the switches, or a job longer than 53 days.
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
    /// Errors: a number or a time out of range; a phase that does not depend only on earlier
    /// phases.
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
            // Upper bound of any choice: all bytes over one link, and a night for each matching.
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
