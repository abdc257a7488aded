//! Output of a coordinator: verdicts, events, how a transfer stands, and its state that must survive.
//!
//! Leaves out: requests (`request`), and commands to sites ([`crate::control`]).

use super::TransferRequest;
use crate::control::{Run, TransferId};
use crate::plan::Scheme;
use anabranch_pieces::{Attributes, FileHash};
use anabranch_units::{BitRate, SiteId};
use serde::{Deserialize, Serialize};

/// How a transfer ended for one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The file is there, verified, synced and named.
    Done,
    /// It could not be done.
    Failed {
        /// One line.
        reason: String,
    },
    /// The site, or every way to it, stayed away.
    Unreachable {
        /// One line.
        reason: String,
    },
    /// Data kept arriving wrong. Nothing wrong was delivered.
    Integrity {
        /// One line.
        reason: String,
    },
}

/// How a transfer ended altogether.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every destination has the file.
    Done,
    /// Some have it, some do not.
    SomeFailed,
    /// None has it.
    Failed,
    /// At least one was given up because data arrived wrong.
    Integrity,
    /// The user gave it up.
    Cancelled,
}

impl Outcome {
    /// The command line's exit code: 0 done, 1 failed, 3 some failed, 4 integrity, 5 cancelled.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::SomeFailed => 3,
            Self::Integrity => 4,
            Self::Cancelled => 5,
        }
    }
}

/// Something worth a line in a log or a browser; sites by id, or by name ([`Event::map_sites`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event<S = SiteId> {
    /// The transfer.
    pub transfer: TransferId,
    /// Its attempt (0 before the first).
    pub attempt: u32,
    /// The event.
    #[serde(flatten)]
    pub kind: EventKind<S>,
}

impl<S> Event<S> {
    /// The same, with other names for sites.
    pub fn map_sites<T>(self, name: impl Fn(S) -> T) -> Event<T> {
        Event { transfer: self.transfer, attempt: self.attempt, kind: self.kind.map_sites(&name) }
    }
}

/// An event of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum EventKind<S = SiteId> {
    /// It was accepted.
    Submitted,
    /// Sites are asked for their inventories.
    Inquiring,
    /// An attempt was planned and is being installed.
    Planned {
        /// How.
        scheme: Scheme,
        /// Predicted rate.
        #[serde(rename = "rate_bps", with = "crate::bps")]
        rate: BitRate,
        /// No scheme can be faster.
        #[serde(rename = "bound_bps", with = "crate::bps")]
        bound: BitRate,
        /// Who is served.
        destinations: Vec<S>,
        /// The transfers that it was planned together with; none if it was planned as if alone.
        with: Vec<TransferId>,
    },
    /// Every site is ready. The first data may have left before.
    Started,
    /// How far things are, at most every half second.
    Progress {
        /// Length of the file.
        length_bytes: u64,
        /// One for each destination, in the request's order.
        destinations: Vec<DestinationProgress<S>>,
    },
    /// The attempt was stopped; another follows if anything is left to do.
    Stopped {
        /// One line.
        reason: String,
        /// The site that is why, if the controller no longer hears of one.
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
    /// Digests prove that a site sent (or decoded) something wrong. It relays no more in this transfer.
    Suspected {
        /// The site.
        site: S,
    },
    /// A destination that is slow or has no room is left for later, so that the others finish.
    Postponed {
        /// The site.
        site: S,
        /// One line.
        reason: String,
    },
    /// Nothing can be done until something comes back.
    Waiting {
        /// One line.
        reason: String,
    },
    /// A destination is over.
    Verdict {
        /// The site.
        site: S,
        /// How.
        #[serde(flatten)]
        verdict: Verdict,
    },
    /// The transfer is over.
    Finished {
        /// How.
        outcome: Outcome,
    },
}

impl<S> EventKind<S> {
    /// The same, with other names for sites.
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
            Self::Waiting { reason } => EventKind::Waiting { reason },
            Self::Verdict { site, verdict } => EventKind::Verdict { site: name(site), verdict },
            Self::Finished { outcome } => EventKind::Finished { outcome },
        }
    }

    /// The event in one line for people, sites by `name`.
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
            Self::Done => "has the file, verified".into(),
            Self::Failed { reason } => format!("failed: {reason}"),
            Self::Unreachable { reason } => format!("unreachable: {reason}"),
            Self::Integrity { reason } => format!("given up, as data arrived wrong: {reason}"),
        }
    }
}

impl Outcome {
    /// The outcome in a few words.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Done => "every destination has the file",
            Self::SomeFailed => "some destinations have the file, some do not",
            Self::Failed => "failed, no destination has the file",
            Self::Integrity => "data arrived wrong, and nothing wrong was delivered",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How far one destination is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DestinationProgress<S = SiteId> {
    /// The site.
    pub site: S,
    /// Bytes of the file that are there and verified.
    pub verified_bytes: u64,
    /// Over the last seconds, bits per second.
    pub rate_bps: u64,
}

/// How a transfer stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferStatus {
    /// The transfer.
    pub id: TransferId,
    /// Its phase.
    pub phase: PhaseName,
    /// What was asked for.
    pub request: TransferRequest,
    /// Attempts so far.
    pub attempts: u32,
    /// Length of the file, once known.
    pub length_bytes: Option<u64>,
    /// BLAKE3 of the file, once known.
    pub hash: Option<FileHash>,
    /// How the present or last attempt was planned.
    pub scheme: Option<Scheme>,
    /// Its predicted rate, bits per second.
    pub planned_bps: Option<u64>,
    /// The rate that no scheme can exceed, bits per second.
    pub bound_bps: Option<u64>,
    /// The transfers that this attempt was planned together with; none if it was planned as if alone.
    pub planned_with: Vec<TransferId>,
    /// One for each destination, in the request's order.
    pub destinations: Vec<DestinationStatus>,
    /// Generations that arrived wrong.
    pub corrupt: u64,
    /// Sites that were proven to have sent something wrong.
    pub suspects: Vec<SiteId>,
    /// The congestion controls that its connections ran on since the controller last started, by the kernel's names.
    pub congestion_controls: Vec<String>,
    /// Why the last attempt was stopped, if one was.
    pub last_trouble: Option<String>,
    /// How it ended.
    pub outcome: Option<Outcome>,
}

/// How one destination stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DestinationStatus {
    /// The site.
    pub site: SiteId,
    /// The file there.
    pub path: String,
    /// Bytes of the file that are there and verified.
    pub verified_bytes: u64,
    /// Over the last seconds, bits per second.
    pub rate_bps: u64,
    /// True while it is left for later because it is slow.
    pub postponed: bool,
    /// Why it is waited for, if it is.
    pub away: Option<String>,
    /// How it ended.
    pub verdict: Option<Verdict>,
}

/// The phase of a transfer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PhaseName {
    /// Waiting for sites, for a pause to end, or for a last answer.
    Waiting,
    /// Asking sites for their inventories.
    Inquiring,
    /// Programs are on their way.
    Installing,
    /// Data flows.
    Running,
    /// Data is there; files are being checked and named.
    Finishing,
    /// Over.
    Over,
}

/// Everything about a transfer that must survive a restart of the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferSnapshot {
    /// The transfer.
    pub id: TransferId,
    /// What was asked for.
    pub request: TransferRequest,
    /// Attempts whose numbers are used.
    pub attempts: u32,
    /// Attempts in a row that moved nothing.
    pub idle_attempts: u32,
    /// Attempts that ended for lack of room at a site.
    #[serde(default)]
    pub crowded_attempts: u32,
    /// Length of the file, once known.
    pub length: Option<u64>,
    /// Its hash, once known.
    pub hash: Option<FileHash>,
    /// The file's attributes, once known.
    #[serde(default)]
    pub attributes: Option<Attributes>,
    /// One for each destination of the request.
    pub destinations: Vec<DestinationSnapshot>,
    /// Sites that relay no more.
    pub suspects: Vec<SiteId>,
    /// Generations that arrived wrong.
    pub corrupt: u64,
    /// Sites that may still hold a run's virtual links.
    pub installed: Vec<(SiteId, Run)>,
    /// Sites that have heard of the transfer.
    pub informed: Vec<SiteId>,
    /// How it ended.
    pub outcome: Option<Outcome>,
}

/// The state of one destination that must survive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DestinationSnapshot {
    /// Bytes there when last heard of; only for show, the next attempt asks again.
    pub verified_bytes: u64,
    /// How often it was left for later.
    pub level: u8,
    /// Attempts that left it with wrong data.
    pub integrity: u32,
    /// Whether some of it may be what an earlier transfer left, of another file perhaps; none before it first answered.
    #[serde(default)]
    pub leftover: Option<bool>,
    /// How it ended.
    pub verdict: Option<Verdict>,
}
