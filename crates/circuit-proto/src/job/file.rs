//! Parser of jobs in TOML.
//!
//! Leaves out: the rules of a job, which [`Job::check`] enforces. Read [`Job::from_str`] first.

use super::{Job, JobError, Phase};
use crate::parallel::Switches;
use crate::{Demand, generate};
use anabranch_units::{BitRate, ByteCount, Duration, Seed};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// Maximum size of a file, in bytes.
const FILE_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a phase's name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Number of large flows, and of small flows, of each host in the pattern `experts`.
const FLOWS: (usize, usize) = (4, 12);

/// Reason why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileError {
    /// A file longer than 16 MiB.
    Large {
        /// Size of the file in bytes.
        bytes: usize,
    },
    /// Text that is not a job.
    Wrong {
        /// Line of the mistake, from 1.
        line: usize,
        /// The mistake, and how to correct it.
        reason: String,
    },
    /// A job that cannot be planned.
    Job(JobError),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Large { bytes } => write!(f, "{bytes} bytes: a job has at most {FILE_BYTES_MAX}"),
            Self::Wrong { line, reason } => write!(f, "line {line}: {reason}"),
            Self::Job(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FileError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    hosts: usize,
    #[serde(default)]
    spares: usize,
    switches: usize,
    rate: BitRate,
    night: Duration,
    #[serde(default = "one")]
    iterations: usize,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    phase: Vec<toml::Spanned<PhaseTable>>,
}

fn one() -> usize {
    1
}

/// Pattern of a phase's demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Pattern {
    /// Ring all-reduce of `bytes`: each host sends 2 (N - 1) / N of `bytes` to the next host.
    RingAllReduce,
    /// `bytes` from each host, shared equally among all other hosts.
    AllToAll,
    /// `bytes` from each host, except the last, to the next host.
    Pipeline,
    /// `bytes` from each host to experts on drawn hosts: 70 % in 4 flows, 30 % in 12 flows.
    Experts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PhaseTable {
    name: String,
    after: Option<Vec<String>>,
    #[serde(default)]
    compute: Duration,
    pattern: Option<Pattern>,
    bytes: Option<ByteCount>,
    #[serde(default)]
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    from: usize,
    to: usize,
    bytes: ByteCount,
}

impl PhaseTable {
    fn demand(&self, hosts: usize, seed: u64) -> Result<Demand, String> {
        let bytes = match (self.pattern, self.bytes) {
            (Some(_), None) => return Err("a pattern needs `bytes`".to_owned()),
            (None, Some(_)) => {
                return Err("`bytes` needs a `pattern`; those of pairs stand in each pair".to_owned());
            }
            (_, bytes) => bytes.unwrap_or(ByteCount::ZERO),
        };
        let mut demand = match self.pattern {
            None => Demand::new(hosts),
            Some(Pattern::RingAllReduce) => {
                let sent = u128::from(bytes.as_u64()) * 2 * (hosts as u128 - 1) / hosts as u128;
                let sent = u64::try_from(sent).map_err(|_| format!("bytes {bytes}: too many"))?;
                generate::ring(hosts, ByteCount::new(sent))
            }
            Some(Pattern::AllToAll) => generate::all_to_all(hosts, bytes),
            Some(Pattern::Pipeline) => Demand::new(hosts).and_then(|mut demand| {
                (1..hosts).try_for_each(|host| demand.add(host - 1, host, bytes))?;
                Ok(demand)
            }),
            Some(Pattern::Experts) => generate::skewed(hosts, bytes, FLOWS.0, FLOWS.1, Seed::new(seed)),
        }
        .map_err(|error| error.to_string())?;
        for pair in &self.pairs {
            demand.add(pair.from, pair.to, pair.bytes).map_err(|error| error.to_string())?;
        }
        Ok(demand)
    }
}

impl FromStr for Job {
    type Err = FileError;

    /// Parses a job.
    ///
    /// Errors: text that is not a job, with the line of the mistake; a job that [`Job::check`]
    /// refuses.
    fn from_str(text: &str) -> Result<Self, FileError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(FileError::Large { bytes: text.len() });
        }
        let line = |at: usize| 1 + text.get(..at).map_or(0, |before| before.matches('\n').count());
        let file: File = toml::from_str(text).map_err(|error| FileError::Wrong {
            line: error.span().map_or(1, |span| line(span.start)),
            reason: error.message().lines().collect::<Vec<_>>().join(" "),
        })?;
        // Checked before matrices of this size are allocated.
        if !(2..=super::HOSTS_MAX).contains(&file.hosts) {
            return Err(FileError::Job(JobError::Hosts(file.hosts)));
        }
        if file.phase.len() > super::PHASES_MAX {
            return Err(FileError::Job(JobError::Phases(file.phase.len())));
        }
        let mut phases: Vec<Phase> = Vec::new();
        for table in &file.phase {
            let wrong = |reason: String| FileError::Wrong { line: line(table.span().start), reason };
            let phase = table.get_ref();
            let shown: String = phase.name.chars().take(NAME_BYTES_MAX).collect();
            let is_name = anabranch_units::text::is_printable(&phase.name) && !phase.name.is_empty();
            if !is_name
                || phase.name.len() > NAME_BYTES_MAX
                || phases.iter().any(|other| other.name == phase.name)
            {
                let name = anabranch_units::text::printable(&shown);
                let reason = format!("must be 1 to {NAME_BYTES_MAX} printable bytes, of one phase only");
                return Err(wrong(format!("phase `{name}`: {reason}")));
            }
            let number = |name: &String| {
                let found = phases.iter().position(|phase| phase.name == *name);
                let name = anabranch_units::text::printable(name);
                found.ok_or_else(|| {
                    wrong(format!("phase `{shown}`: after `{name}`: no earlier phase has this name"))
                })
            };
            let after = match &phase.after {
                Some(names) => names.iter().map(number).collect::<Result<_, _>>()?,
                None => phases.len().checked_sub(1).into_iter().collect(),
            };
            let demand = phase
                .demand(file.hosts, file.seed)
                .map_err(|reason| wrong(format!("phase `{shown}`: {reason}")))?;
            phases.push(Phase { name: phase.name.clone(), after, compute: phase.compute, demand });
        }
        let job = Self {
            hosts: file.hosts,
            spares: file.spares,
            switches: Switches { count: file.switches, rate: file.rate, night: file.night },
            iterations: file.iterations,
            phases,
        };
        job.check().map_err(FileError::Job)?;
        Ok(job)
    }
}
