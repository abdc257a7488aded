//! Output of a coordinator: verdicts, events, the status of a transfer, and its state that must
//! survive a restart.
//!
//! Leaves out: requests (`request`), and commands to sites ([`crate::control`]).

use super::TransferRequest;
use crate::control::{EntryCounts, LeftEntry, Run, TransferId, Unsettled};
use crate::plan::Scheme;
use anabranch_pieces::{Attributes, FileHash};
use anabranch_sets::comparison::Comparison;
use anabranch_units::{BitRate, SiteId};
use serde::{Deserialize, Serialize};

/// Result of a transfer for one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The file is at the destination: verified, synced and named.
    Done,
    /// The transfer failed.
    Failed {
        /// Reason, in one line of text.
        reason: String,
    },
    /// The site, or every path to it, remained unavailable.
    Unreachable {
        /// Reason, in one line of text.
        reason: String,
    },
    /// Data arrived wrong repeatedly. No wrong data was delivered.
    Integrity {
        /// Reason, in one line of text.
        reason: String,
    },
    /// The directory is at the destination, but for entries that another program changed there, or
    /// that changed at the source meanwhile.
    Conflict {
        /// Line that names such entries.
        reason: String,
    },
    /// A comparison found differences.
    Differs {
        /// Line with their counts.
        reason: String,
    },
}

/// Overall result of a transfer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every destination has the file.
    Done,
    /// Some destinations have the file, some do not.
    SomeFailed,
    /// No destination has the file.
    Failed,
    /// At least one destination was given up because data arrived wrong.
    Integrity,
    /// The user cancelled the transfer.
    Cancelled,
    /// Every destination has the directory, but at some of them entries were left that changed.
    Conflicts,
    /// A comparison found differences at some destination.
    Differs,
}

impl Outcome {
    /// The command line's exit code: 0 done, 1 failed, 3 some failed or conflicts, 4 integrity or
    /// differences, 5 cancelled.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::SomeFailed | Self::Conflicts => 3,
            Self::Integrity | Self::Differs => 4,
            Self::Cancelled => 5,
        }
    }
}

/// An event for a log or a browser; sites by id, or by name ([`Event::map_sites`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event<S = SiteId> {
    /// The transfer.
    pub transfer: TransferId,
    /// The number of the attempt; 0 before the first.
    pub attempt: u32,
    /// The event.
    #[serde(flatten)]
    pub kind: EventKind<S>,
}

impl<S> Event<S> {
    /// Returns the same event with each site replaced by `name(site)`.
    pub fn map_sites<T>(self, name: impl Fn(S) -> T) -> Event<T> {
        Event { transfer: self.transfer, attempt: self.attempt, kind: self.kind.map_sites(&name) }
    }
}

/// An event of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum EventKind<S = SiteId> {
    /// The transfer was accepted.
    Submitted,
    /// Sites are asked for their inventories.
    Inquiring,
    /// An attempt was planned and is being installed.
    Planned {
        /// The scheme.
        scheme: Scheme,
        /// Predicted rate.
        #[serde(rename = "rate_bps", with = "crate::bps")]
        rate: BitRate,
        /// Upper bound of the rate of any scheme.
        #[serde(rename = "bound_bps", with = "crate::bps")]
        bound: BitRate,
        /// Destinations of the attempt.
        destinations: Vec<S>,
        /// The transfers that were planned together with this one; empty if it was planned as if
        /// alone.
        with: Vec<TransferId>,
    },
    /// Every site is ready. The first data may have left earlier.
    Started,
    /// Progress, at most every half second.
    Progress {
        /// Length of the file in bytes.
        length_bytes: u64,
        /// Progress of each destination, in the request's order.
        destinations: Vec<DestinationProgress<S>>,
    },
    /// The attempt was stopped; another one follows if data is missing.
    Stopped {
        /// Reason, in one line of text.
        reason: String,
        /// The site that caused the stop, if the controller lost contact with it.
        #[serde(skip_serializing_if = "Option::is_none")]
        gone: Option<S>,
    },
    /// A sink decoded a wrong generation.
    Corrupt {
        /// The sink.
        site: S,
        /// The group.
        group: u16,
        /// The generation.
        generation: u64,
    },
    /// Digests prove that a site sent (or decoded) wrong data. It no longer relays in this
    /// transfer.
    Suspected {
        /// The site.
        site: S,
    },
    /// A destination that is slow or has no room is postponed, so that the others finish.
    Postponed {
        /// The site.
        site: S,
        /// Reason, in one line of text.
        reason: String,
    },
    /// The measured capacity of a link of the plan differs much from the declared capacity. Plans
    /// use the measured capacity.
    WrongCapacity {
        /// The site at the start of the link.
        from: S,
        /// The site at the end of the link.
        to: S,
        /// Capacity in the topology.
        #[serde(rename = "declared_bps", with = "crate::bps")]
        declared: BitRate,
        /// Measured rate.
        #[serde(rename = "carried_bps", with = "crate::bps")]
        carried: BitRate,
        /// Whether the link limited its traffic to this rate; otherwise it can carry at least as
        /// much.
        is_limit: bool,
    },
    /// The transfer cannot continue until a site or link returns.
    Waiting {
        /// Reason, in one line of text.
        reason: String,
    },
    /// The transfer has ended for a destination.
    Verdict {
        /// The site.
        site: S,
        /// Its result.
        #[serde(flatten)]
        verdict: Verdict,
    },
    /// The transfer has ended.
    Finished {
        /// Its result.
        outcome: Outcome,
    },
}

impl<S> EventKind<S> {
    /// Returns the same event with each site replaced by `name(site)`.
    pub fn map_sites<T>(self, name: &impl Fn(S) -> T) -> EventKind<T> {
        match self {
            Self::Submitted => EventKind::Submitted,
            Self::Inquiring => EventKind::Inquiring,
            Self::Planned { scheme, rate, bound, destinations, with } => {
                let destinations = destinations.into_iter().map(name).collect();
                EventKind::Planned { scheme, rate, bound, destinations, with }
            }
            Self::Started => EventKind::Started,
            Self::Progress { length_bytes, destinations } => {
                let each = destinations.into_iter().map(|d| DestinationProgress {
                    site: name(d.site),
                    verified_bytes: d.verified_bytes,
                    rate_bps: d.rate_bps,
                });
                EventKind::Progress { length_bytes, destinations: each.collect() }
            }
            Self::Stopped { reason, gone } => EventKind::Stopped { reason, gone: gone.map(name) },
            Self::Corrupt { site, group, generation } => {
                EventKind::Corrupt { site: name(site), group, generation }
            }
            Self::Suspected { site } => EventKind::Suspected { site: name(site) },
            Self::Postponed { site, reason } => EventKind::Postponed { site: name(site), reason },
            Self::WrongCapacity { from, to, declared, carried, is_limit } => {
                EventKind::WrongCapacity { from: name(from), to: name(to), declared, carried, is_limit }
            }
            Self::Waiting { reason } => EventKind::Waiting { reason },
            Self::Verdict { site, verdict } => EventKind::Verdict { site: name(site), verdict },
            Self::Finished { outcome } => EventKind::Finished { outcome },
        }
    }

    /// The event in one line for people, with sites named by `name`.
    pub fn in_words(&self, name: &dyn Fn(&S) -> String) -> String {
        match self {
            Self::Submitted => "begins".into(),
            Self::Inquiring => "asking sites for their inventories".into(),
            Self::Planned { scheme, rate, bound, with, .. } => {
                let ids: Vec<_> = with.iter().map(|t| t.0.to_string()).collect();
                let with = if ids.is_empty() {
                    String::new()
                } else {
                    format!(", together with transfer {}", ids.join(", "))
                };
                format!("planned: {scheme} at {rate} (no scheme exceeds {bound}){with}")
            }
            Self::Started => "every site is ready".into(),
            Self::Progress { length_bytes, destinations } => {
                let each = destinations.iter().map(|d| format!("{} {}", name(&d.site), d.verified_bytes));
                format!("of {length_bytes} bytes have arrived: {}", each.collect::<Vec<_>>().join(", "))
            }
            Self::Stopped { reason, .. } => format!("an attempt was stopped: {reason}"),
            Self::Corrupt { site, generation, .. } => {
                format!("data arrived wrong at {} (generation {generation})", name(site))
            }
            Self::Suspected { site } => {
                format!("{} changed data on its way, and passes nothing on from now on", name(site))
            }
            Self::Postponed { site, reason } => format!("{} is left for later: {reason}", name(site)),
            Self::WrongCapacity { from, to, declared, carried, is_limit } => {
                let least = if *is_limit { "" } else { "at least " };
                format!(
                    "link {} to {}: declared as {declared}, carried {least}{carried}; plans use the carried rate \
                     until the topology is corrected",
                    name(from),
                    name(to)
                )
            }
            Self::Waiting { reason } => reason.clone(),
            Self::Verdict { site, verdict } => format!("{}: {}", name(site), verdict.in_words()),
            Self::Finished { outcome } => format!("ended: {}", outcome.in_words()),
        }
    }
}

impl Verdict {
    /// The verdict in one line.
    pub fn in_words(&self) -> String {
        match self {
            Self::Done => "complete and verified".into(),
            Self::Failed { reason } => format!("failed: {reason}"),
            Self::Unreachable { reason } => format!("unreachable: {reason}"),
            Self::Integrity { reason } => format!("given up, as data arrived wrong: {reason}"),
            Self::Conflict { reason } => format!("has the rest: {reason}"),
            Self::Differs { reason } => format!("differs: {reason}"),
        }
    }

    /// The reason, unless the verdict is [`Verdict::Done`].
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Done => None,
            Self::Failed { reason }
            | Self::Unreachable { reason }
            | Self::Integrity { reason }
            | Self::Conflict { reason }
            | Self::Differs { reason } => Some(reason),
        }
    }

    /// The reason to be changed, unless the verdict is [`Verdict::Done`].
    pub fn reason_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Done => None,
            Self::Failed { reason }
            | Self::Unreachable { reason }
            | Self::Integrity { reason }
            | Self::Conflict { reason }
            | Self::Differs { reason } => Some(reason),
        }
    }

    /// Returns true if the destination has the data, with or without conflicts.
    pub const fn is_delivered(&self) -> bool {
        matches!(self, Self::Done | Self::Conflict { .. })
    }
}

impl Outcome {
    /// The outcome in a few words.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Done => "every destination is complete",
            Self::SomeFailed => "some destinations are complete, some are not",
            Self::Failed => "failed, no destination is complete",
            Self::Integrity => "data arrived wrong, and nothing wrong was delivered",
            Self::Cancelled => "cancelled",
            Self::Conflicts => "every destination has the directory, but for entries that changed",
            Self::Differs => "a destination differs from the source",
        }
    }
}

/// Progress of one destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DestinationProgress<S = SiteId> {
    /// The site.
    pub site: S,
    /// Existing and verified bytes of the file.
    pub verified_bytes: u64,
    /// Mean rate over the last 5 s, in bits per second.
    pub rate_bps: u64,
}

/// Status of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferStatus {
    /// The transfer.
    pub id: TransferId,
    /// Its phase.
    pub phase: PhaseName,
    /// The request.
    pub request: TransferRequest,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Length of the file, once known.
    pub length_bytes: Option<u64>,
    /// BLAKE3 of the file, once known.
    pub hash: Option<FileHash>,
    /// Scheme of the current or last attempt.
    pub scheme: Option<Scheme>,
    /// Predicted rate of that attempt in bits per second.
    pub planned_bps: Option<u64>,
    /// Upper bound of the rate of any scheme, in bits per second.
    pub bound_bps: Option<u64>,
    /// The transfers that were planned together with this attempt; empty if it was planned as if
    /// alone.
    pub planned_with: Vec<TransferId>,
    /// Status of each destination, in the request's order.
    pub destinations: Vec<DestinationStatus>,
    /// Number of generations that arrived wrong.
    pub corrupt: u64,
    /// Sites that provably sent wrong data.
    pub suspects: Vec<SiteId>,
    /// Congestion controls of the transfer's connections since the controller last started, by the
    /// kernel's names.
    pub congestion_controls: Vec<String>,
    /// Reason for which the last attempt was stopped; `None` if it was not stopped.
    pub last_trouble: Option<String>,
    /// Overall result; `None` while the transfer runs.
    pub outcome: Option<Outcome>,
}

/// Status of one destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DestinationStatus {
    /// The site.
    pub site: SiteId,
    /// The file at the site.
    pub path: String,
    /// Existing and verified bytes of the file.
    pub verified_bytes: u64,
    /// Bytes that arrived in attempts of this transfer, and not before it.
    pub moved_bytes: u64,
    /// Mean rate over the last 5 s, in bits per second.
    pub rate_bps: u64,
    /// Whether the destination is postponed: it is slow, has no room, or could not be connected to.
    pub postponed: bool,
    /// Reason for which the transfer waits for the site; `None` if it does not wait.
    pub away: Option<String>,
    /// Counts of the directory's entries, once they are written.
    pub entries: Option<EntryCounts>,
    /// The first entries that were left, once the directory is written.
    pub left: Vec<LeftEntry>,
    /// Differences from the source, once the destination compared its directory with it.
    pub comparison: Option<Comparison>,
    /// Result for this destination; `None` while the transfer to it runs.
    pub verdict: Option<Verdict>,
}

/// The phase of a transfer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PhaseName {
    /// The transfer waits for sites, for the end of a pause, or for a last answer.
    Waiting,
    /// Asking sites for their inventories.
    Inquiring,
    /// Programs are being installed.
    Installing,
    /// Data flows.
    Running,
    /// All data has arrived; files are being checked and named.
    Finishing,
    /// The transfer has ended.
    Over,
}

/// Everything about a transfer that must survive a restart of the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferSnapshot {
    /// The transfer.
    pub id: TransferId,
    /// The request.
    pub request: TransferRequest,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of consecutive attempts that moved no data.
    pub idle_attempts: u32,
    /// Number of attempts that ended for lack of room at a site.
    #[serde(default)]
    pub crowded_attempts: u32,
    /// Length of the file, once known.
    pub length: Option<u64>,
    /// The file's hash, once known.
    pub hash: Option<FileHash>,
    /// Of a directory: entries that its source cannot send.
    #[serde(default, skip_serializing_if = "Unsettled::is_empty")]
    pub unsettled: Unsettled,
    /// The file's attributes, once known.
    #[serde(default)]
    pub attributes: Option<Attributes>,
    /// State of each destination of the request.
    pub destinations: Vec<DestinationSnapshot>,
    /// Sites that no longer relay.
    pub suspects: Vec<SiteId>,
    /// Number of generations that arrived wrong.
    pub corrupt: u64,
    /// Sites that may still have a run's virtual links.
    pub installed: Vec<(SiteId, Run)>,
    /// Sites that received a command of the transfer and must be told to forget the transfer.
    pub informed: Vec<SiteId>,
    /// Overall result; `None` while the transfer runs.
    pub outcome: Option<Outcome>,
}

/// The state of one destination that must survive a restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DestinationSnapshot {
    /// Last known number of verified bytes, only for display: the next attempt asks the site again.
    pub verified_bytes: u64,
    /// Bytes that had arrived in attempts of this transfer when it was last saved. Later bytes of
    /// the running attempt are not counted after a restart of the controller.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Number of times that the destination was postponed.
    pub level: u8,
    /// Number of attempts after which the destination had wrong data.
    pub integrity: u32,
    /// Whether some of the destination's data may come from an earlier transfer, possibly of
    /// another file. `None` before the destination's first inventory.
    #[serde(default)]
    pub leftover: Option<bool>,
    /// Counts of the directory's entries, once they are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<EntryCounts>,
    /// The first entries that were left, once the directory is written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<LeftEntry>,
    /// Differences from the source, once the destination compared its directory with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
    /// Result for this destination; `None` while the transfer to it runs.
    pub verdict: Option<Verdict>,
}
