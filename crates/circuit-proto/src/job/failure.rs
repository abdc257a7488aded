//! Dead hosts, ports and switches of a job, and the circuits that remain.
//!
//! A spare host replaces a dead host on all switches, because a circuit switch joins any ports.
//! Further spares replace the hosts with the most dead ports. Circuits of a dead port without a
//! spare move to other switches, and bytes whose standing circuit is dead take a detour over other
//! hosts.

use super::Job;
use crate::parallel::{Piece, PieceOrders, level::level, timed};
use crate::standing::DeadPorts;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Maximum number of failures in one list.
const LISTED_MAX: usize = 64;

/// Dead hosts, ports and switches of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Dead hosts, by number in the job.
    pub hosts: BTreeSet<usize>,
    /// Dead ports: switch and host.
    pub ports: BTreeSet<(usize, usize)>,
    /// Dead switches, whose ports are all dead.
    pub switches: BTreeSet<usize>,
}

/// Reason why a list of failures is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailuresError {
    /// Text that is not a list of failures.
    Form(String),
    /// More than 64 failures.
    Many(usize),
    /// A host or switch that the job does not have.
    NoSuch {
        /// Kind of the part: host or switch.
        part: &'static str,
        /// Number of the part.
        number: usize,
        /// Number of such parts in the job.
        count: usize,
    },
}

impl fmt::Display for FailuresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(text) => {
                write!(f, "failure `{text}`: write host=3, switch=0, or port=0:3 for switch 0 at host 3")
            }
            Self::Many(count) => write!(f, "{count} failures: at most {LISTED_MAX}"),
            Self::NoSuch { part, number, count } => {
                write!(f, "{part} {number}: the job has {part} numbers 0 to {}", count.saturating_sub(1))
            }
        }
    }
}

impl std::error::Error for FailuresError {}

/// Reason why a job cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobFailure {
    /// More dead or isolated hosts than spares.
    Hosts {
        /// Number of hosts that need a spare.
        dead: usize,
        /// Number of spare hosts.
        spares: usize,
    },
    /// No switch is left.
    Switches,
    /// Neither standing circuits nor a schedule of days reach all pairs of a phase.
    Unreachable {
        /// Name of the phase.
        phase: String,
    },
}

impl fmt::Display for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosts { dead, spares } => {
                write!(
                    f,
                    "{dead} hosts are dead or without ports, with {spares} spares: more spares are needed"
                )
            }
            Self::Switches => write!(f, "no switch is left"),
            Self::Unreachable { phase } => write!(f, "phase `{phase}`: no circuits reach all its pairs"),
        }
    }
}

impl std::error::Error for JobFailure {}

impl FromStr for Failures {
    type Err = FailuresError;

    /// Parses a list such as `host=3,port=0:5,switch=1`.
    ///
    /// Errors: text of another form, or more than 64 failures.
    fn from_str(text: &str) -> Result<Self, FailuresError> {
        let mut failures = Self::default();
        let count = text.split(',').count();
        if count > LISTED_MAX {
            return Err(FailuresError::Many(count));
        }
        for one in text.split(',') {
            let wrong = || FailuresError::Form(anabranch_units::text::printable(one).to_string());
            let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
            match one.split_once('=').ok_or_else(wrong)? {
                ("host", host) => failures.hosts.insert(number(host)?),
                ("switch", switch) => failures.switches.insert(number(switch)?),
                ("port", port) => {
                    let (switch, host) = port.split_once(':').ok_or_else(wrong)?;
                    failures.ports.insert((number(switch)?, number(host)?))
                }
                _ => return Err(wrong()),
            };
        }
        Ok(failures)
    }
}

impl Failures {
    /// Refuses failures of parts that `job` does not have.
    ///
    /// Errors: a host or a switch out of range.
    pub fn check(&self, job: &Job) -> Result<(), FailuresError> {
        let hosts = self.hosts.iter().chain(self.ports.iter().map(|(_, host)| host));
        let switches = self.switches.iter().chain(self.ports.iter().map(|(switch, _)| switch));
        for (part, number, count) in hosts
            .map(|host| ("host", *host, job.hosts))
            .chain(switches.map(|switch| ("switch", *switch, job.switches.count)))
        {
            if number >= count {
                return Err(FailuresError::NoSuch { part, number, count });
            }
        }
        Ok(())
    }

    /// Ports that stay dead after spare hosts have replaced dead hosts and hosts without ports,
    /// then the hosts with the most dead ports.
    ///
    /// Errors: more dead or isolated hosts than spares; no switch left.
    pub(super) fn dead_ports(&self, job: &Job) -> Result<DeadPorts, JobFailure> {
        let (hosts, switches) = (job.hosts, job.switches.count);
        if self.switches.len() >= switches {
            return Err(JobFailure::Switches);
        }
        let mut dead = vec![false; hosts * switches];
        for switch in 0..switches {
            for host in 0..hosts {
                dead[switch * hosts + host] =
                    self.switches.contains(&switch) || self.ports.contains(&(switch, host));
            }
        }
        // All ports of a dead host are dead. A spare host repairs no port of a dead switch.
        let left = || (0..switches).filter(|switch| !self.switches.contains(switch));
        let dead_of = |host: usize| match self.hosts.contains(&host) {
            true => left().count(),
            false => left().filter(|switch| dead[switch * hosts + host]).count(),
        };
        let mut damaged: Vec<(usize, usize)> =
            (0..hosts).map(|host| (dead_of(host), host)).filter(|(ports, _)| *ports > 0).collect();
        damaged.sort_by_key(|(ports, host)| (std::cmp::Reverse(*ports), *host));
        let lost = damaged.iter().filter(|(ports, _)| *ports == left().count()).count();
        if lost > job.spares {
            return Err(JobFailure::Hosts { dead: lost, spares: job.spares });
        }
        for (_, host) in damaged.into_iter().take(job.spares) {
            for switch in left() {
                dead[switch * hosts + host] = false;
            }
        }
        Ok(dead)
    }
}

/// Moves pieces whose ports are dead to the switches where these ports are least busy. `None` if a
/// pair's live ports share no switch.
///
/// The moved pieces go either between the other pieces, in the original order, or behind them; the
/// order with the shorter makespan is returned.
pub(super) fn moved(racks: usize, night: u64, orders: &PieceOrders, dead: &DeadPorts) -> Option<PieceOrders> {
    let makespan = |orders: &PieceOrders| timed(racks, night, orders).makespan();
    let (between, behind) =
        (moved_to(racks, night, orders, dead, 0)?, moved_to(racks, night, orders, dead, usize::MAX / 2)?);
    Some(if makespan(&behind) < makespan(&between) { behind } else { between })
}

/// Moves pieces whose ports are dead to positions `behind` later than their original ones.
fn moved_to(
    racks: usize,
    night: u64,
    orders: &PieceOrders,
    dead: &DeadPorts,
    behind: usize,
) -> Option<PieceOrders> {
    let is_dead = |switch: usize, piece: &Piece| {
        dead[switch * racks + piece.source] || dead[switch * racks + piece.destination]
    };
    let mut loads = vec![0u64; orders.len() * racks * 2];
    let mut kept: Vec<Vec<(usize, Piece)>> = Vec::new();
    let mut homeless: Vec<(usize, Piece)> = Vec::new();
    for (switch, order) in orders.iter().enumerate() {
        let mut on = Vec::new();
        for (place, piece) in order.iter().copied().enumerate() {
            if is_dead(switch, &piece) {
                homeless.push((place, piece));
                continue;
            }
            for port in [piece.source, racks + piece.destination] {
                loads[switch * 2 * racks + port] += night + piece.length;
            }
            on.push((place, piece));
        }
        kept.push(on);
    }
    homeless.sort_by_key(|(place, piece)| (std::cmp::Reverse(piece.length), *place));
    for (place, piece) in homeless {
        let ports =
            |switch: usize| [piece.source, racks + piece.destination].map(|port| switch * 2 * racks + port);
        let busiest = |switch: &usize| ports(*switch).map(|port| loads[port]).into_iter().max();
        let switch = (0..orders.len()).filter(|switch| !is_dead(*switch, &piece)).min_by_key(busiest)?;
        for port in ports(switch) {
            loads[port] += night + piece.length;
        }
        kept[switch].push((place + behind, piece));
    }
    let in_order = |mut on: Vec<(usize, Piece)>| {
        on.sort_by_key(|(place, _)| *place);
        on.into_iter().map(|(_, piece)| piece).collect()
    };
    Some(level(racks, night, kept.into_iter().map(in_order).collect(), &|switch, piece| {
        !is_dead(switch, piece)
    }))
}
