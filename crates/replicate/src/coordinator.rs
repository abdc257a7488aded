//! The controller's machine: it sees transfers through, whatever breaks (CodedBulk section 2.4).
//!
//! A transfer's life: everyone is asked what is there ([`Command::Inquire`]); what is missing is planned, alone or
//! together with what else runs ([`JointConfig`]); every site gets
//! its program, the source starts, destinations finish one by one, the codes are removed. When something breaks the
//! attempt is stopped and the next one is planned around it, from what each site already has.
//!
//! Sans-IO: time comes in as `now`, commands go out through [`Coordinator::poll_command`]. After any `submit`,
//! `cancel` or `handle_*`: drain [`Coordinator::poll_changed`] (and make those [`Coordinator::snapshot`]s durable), *then*
//! `poll_command` and `poll_event`, then read [`Coordinator::poll_timeout`]. In that order, a controller killed at any
//! time never uses an attempt's number twice.
//!
//! Leaves out: how messages travel and where snapshots are kept (the `api` room), and what a plan is (an injected
//! [`Planner`]). Read [`Coordinator`], [`TransferRequest`] and [`Event`] first.

mod audit;
mod planner;
mod ranges;
mod together;
mod transfer;

#[cfg(test)]
mod tests;

use crate::control::{
    Command, FailureKind, FileHash, HopSettings, Priority, Report, Run, SiteProgram, TransferId,
};
use crate::plan::{FlowId, Plan, Scheme};
use anabranch_graph::Topology;
use anabranch_units::{BitRate, Duration, Instant, LinkId, SiteId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use transfer::{Context, Transfer};

pub use planner::{DefaultPlanner, PlanRequest, Planner};
pub use together::JointConfig;

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferRequest {
    /// The site that holds the file.
    pub source: SiteId,
    /// The file there.
    pub source_path: String,
    /// Who wants it, and where to put it.
    pub destinations: Vec<Destination>,
    /// Sites that must not relay.
    #[serde(default)]
    pub avoid_sites: Vec<SiteId>,
    /// Links that must not be used.
    #[serde(default)]
    pub avoid_links: Vec<LinkId>,
    /// How to plan.
    #[serde(default)]
    pub scheme: SchemeChoice,
    /// How hops are run, where `hop_overrides` says nothing else.
    pub hop: HopSettings,
    /// Hops that are run differently.
    #[serde(default)]
    pub hop_overrides: Vec<HopOverride>,
    /// Ceiling on what the source sends.
    #[serde(default)]
    pub bandwidth_limit: Option<BitRate>,
    /// Bytes of a symbol, at least 1.
    pub symbol_bytes: u32,
    /// Packets that each virtual buffer holds, at least 1.
    pub buffer_packets: u16,
    /// What to do about data that arrives wrong.
    #[serde(default)]
    pub on_corrupt: CorruptPolicy,
    /// Whether uncoded data of the lowest priority fills what the plan's flows leave of the links ([`crate::plan::Group::fills`]).
    #[serde(default)]
    pub fill: bool,
}

/// A site that wants the file, and its name there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The site.
    pub site: SiteId,
    /// The file to write there.
    pub path: String,
}

/// One link's own settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopOverride {
    /// The link.
    pub link: LinkId,
    /// How it is run.
    pub hop: HopSettings,
}

/// How to plan a transfer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchemeChoice {
    /// The highest predicted rate, uncoded where they tie.
    #[default]
    Auto,
    /// [`Scheme::Coded`].
    Coded,
    /// [`Scheme::Packed`].
    Packed,
    /// [`Scheme::Steiner`].
    Steiner,
    /// [`Scheme::SteinerStoreAndForward`].
    SteinerStoreAndForward,
    /// [`Scheme::SteinerOneTree`].
    SteinerOneTree,
    /// [`Scheme::MultiPath`].
    MultiPath,
    /// [`Scheme::SinglePath`].
    SinglePath,
}

/// What to do about data that arrives wrong.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorruptPolicy {
    /// Name the relay, avoid it, send the data again.
    #[default]
    Repair,
    /// Give the destination up with the verdict `integrity`.
    Refuse,
}

/// Limits and patience.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinatorConfig {
    /// Transfers under way at once.
    pub transfers_max: usize,
    /// Transfers that are over and still remembered; the oldest goes first.
    pub finished_max: usize,
    /// Destinations of one transfer.
    pub destinations_max: usize,
    /// Bytes of a path.
    pub path_bytes_max: usize,
    /// Ranges that one site may report of one file; what is beyond counts as missing.
    pub ranges_max: usize,
    /// Events not yet polled; the oldest goes first.
    pub events_max: usize,
    /// How long a new transfer (and every transfer after a restart) waits for its sites to show up before it begins with
    /// those that are there.
    pub gather: Duration,
    /// How transfers that run at the same time are planned together; `None` plans each as if alone.
    pub joint: Option<JointConfig>,
    /// How long to wait for an inventory, besides `work_rate`.
    pub inquire_timeout: Duration,
    /// How long to wait until programs are installed.
    pub install_timeout: Duration,
    /// How long an attempt may stand still.
    pub stall_timeout: Duration,
    /// How long to wait for a finished file or a hash, besides `work_rate`.
    pub finish_timeout: Duration,
    /// How fast a site reads or checks a file at the very least.
    pub work_rate: BitRate,
    /// How long to wait for audits.
    pub audit_timeout: Duration,
    /// How long to wait after a hop failed, so that the loss of a site is known before the next plan: longer than a
    /// service waits for a silent site, or the next plan counts on it once more.
    pub settle: Duration,
    /// The first pause after an attempt that moved nothing; doubles each time.
    pub pause_min: Duration,
    /// The longest such pause.
    pub pause_max: Duration,
    /// Attempts in a row that move nothing before what is left is given up.
    pub idle_attempts_max: u32,
    /// Attempts altogether.
    pub attempts_max: u32,
    /// How long an absent or unreachable site is waited for.
    pub site_wait: Duration,
    /// How long a link that failed is left alone at first; doubles each time.
    pub avoid_min: Duration,
    /// The longest such time.
    pub avoid_max: Duration,
    /// How long a destination may hold the others back.
    pub slow_hold: Duration,
    /// Below which share of the planned rate the others count as held back.
    pub slow_share: f64,
    /// Share of the time that a destination's disk, or all flows into it, must be blocked to count as the cause.
    pub slow_blocked: f64,
    /// How often idle codes are removed again where the site may have missed it.
    pub sweep: Duration,
    /// Audits in one attempt.
    pub audits_max: u32,
    /// Wrong generations in one attempt after which a named relay is planned around at once.
    pub corrupt_max: u32,
    /// Attempts that left one destination with wrong data before it is given up.
    pub integrity_max: u32,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            transfers_max: 1_000,
            finished_max: 1_000,
            destinations_max: 256,
            path_bytes_max: 4_096,
            ranges_max: 65_536,
            events_max: 65_536,
            gather: Duration::from_secs(3),
            joint: None,
            inquire_timeout: Duration::from_secs(30),
            install_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            finish_timeout: Duration::from_secs(30),
            work_rate: BitRate::mbps(160),
            audit_timeout: Duration::from_secs(5),
            settle: Duration::from_secs(4),
            pause_min: Duration::from_ms(500),
            pause_max: Duration::from_secs(30),
            idle_attempts_max: 12,
            attempts_max: 10_000,
            site_wait: Duration::from_secs(600),
            avoid_min: Duration::from_secs(5),
            avoid_max: Duration::from_secs(60),
            slow_hold: Duration::from_secs(5),
            slow_share: 0.5,
            slow_blocked: 0.5,
            sweep: Duration::from_secs(30),
            audits_max: 8,
            corrupt_max: 16,
            integrity_max: 3,
        }
    }
}

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

/// Something worth a line in a log or a browser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The transfer.
    pub transfer: TransferId,
    /// Its attempt (0 before the first).
    pub attempt: u32,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened to a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum EventKind {
    /// It was accepted.
    Submitted,
    /// Sites are asked what they have.
    Inquiring,
    /// An attempt was planned and is being installed.
    Planned {
        /// How.
        scheme: Scheme,
        /// Predicted rate.
        rate: BitRate,
        /// No scheme can be faster.
        bound: BitRate,
        /// Who is served.
        destinations: Vec<SiteId>,
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
        destinations: Vec<DestinationProgress>,
    },
    /// The attempt was stopped; another follows if anything is left to do.
    Stopped {
        /// One line.
        reason: String,
    },
    /// A sink decoded a wrong generation.
    Corrupt {
        /// The sink.
        site: SiteId,
        /// The group.
        group: u16,
        /// The generation.
        generation: u64,
    },
    /// Digests prove that a site sent (or decoded) something wrong. It relays no more in this transfer.
    Suspected {
        /// The site.
        site: SiteId,
    },
    /// A slow destination is left for later, so that the others finish.
    Postponed {
        /// The site.
        site: SiteId,
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
        site: SiteId,
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

/// How far one destination is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DestinationProgress {
    /// The site.
    pub site: SiteId,
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
    /// What it is doing.
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
    /// What no scheme can exceed, bits per second.
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

/// What a transfer is doing.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PhaseName {
    /// Waiting for sites, for a pause to end, or for a last answer.
    Waiting,
    /// Asking what is there.
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
    /// Length of the file, once known.
    pub length: Option<u64>,
    /// Its hash, once known.
    pub hash: Option<FileHash>,
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

/// What must survive of one destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DestinationSnapshot {
    /// Bytes there when last heard of; only for show, the next attempt asks again.
    pub verified_bytes: u64,
    /// How often it was left for later.
    pub level: u8,
    /// Attempts that left it with wrong data.
    pub integrity: u32,
    /// How it ended.
    pub verdict: Option<Verdict>,
}

/// Why a transfer was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitError {
    /// A site id outside the topology.
    UnknownSite {
        /// The id.
        site: SiteId,
        /// Number of sites.
        sites: usize,
    },
    /// A link id outside the topology.
    UnknownLink {
        /// The id.
        link: LinkId,
        /// Number of links.
        links: usize,
    },
    /// Nobody wants the file.
    NoDestination,
    /// The source is among the destinations.
    SourceIsDestination {
        /// Its name.
        site: String,
    },
    /// A destination is named twice.
    DuplicateDestination {
        /// Its name.
        site: String,
    },
    /// The source or a destination is to be avoided.
    AvoidedEnd {
        /// Its name.
        site: String,
    },
    /// A number or a path is out of range.
    OutOfRange {
        /// What.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// A setting leaves nothing for what fills.
    FillWith {
        /// The setting.
        what: &'static str,
    },
    /// No links lead to a destination, even when all of them work.
    NoPath {
        /// The source's name.
        source: String,
        /// The destination's name.
        destination: String,
    },
    /// No more transfers for now.
    TooMany {
        /// The limit.
        limit: usize,
    },
}

impl std::fmt::Display for SubmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownSite { site, sites } => {
                write!(f, "site {site}: the topology has sites 0 to {}", sites - 1)
            }
            Self::UnknownLink { link, links } => write!(f, "link {link}: the topology has {links} links"),
            Self::NoDestination => write!(f, "no destination: name at least one site that wants the file"),
            Self::SourceIsDestination { site } => {
                write!(f, "site `{site}` is both source and destination: leave it out of the destinations")
            }
            Self::DuplicateDestination { site } => {
                write!(f, "destination `{site}` appears twice: name it once")
            }
            Self::FillWith { what } => {
                write!(
                    f,
                    "fill with {what}: fill takes what bulk flows leave of the links, so leave one of both out"
                )
            }
            Self::AvoidedEnd { site } => {
                write!(
                    f,
                    "site `{site}` is to be avoided but is the source or a destination: it can be one or the other"
                )
            }
            Self::OutOfRange { what, value, allowed } => write!(f, "{what} {value}: must be {allowed}"),
            Self::NoPath { source, destination } => write!(
                f,
                "no path from `{source}` to `{destination}` in this topology: avoid less, add a link or drop the \
                 destination"
            ),
            Self::TooMany { limit } => {
                write!(
                    f,
                    "{limit} transfers are under way, the most there may be: wait for one to end or cancel one"
                )
            }
        }
    }
}
impl std::error::Error for SubmitError {}

/// Why snapshots cannot be taken up again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreError {
    /// A transfer does not fit the topology.
    Unfit {
        /// The transfer.
        transfer: TransferId,
        /// Why.
        reason: String,
    },
}

impl std::fmt::Display for RestoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unfit { transfer, reason } => write!(
                f,
                "stored transfer {transfer} does not fit the topology ({reason}): start with the topology it was made \
                 on, or with an empty store"
            ),
        }
    }
}
impl std::error::Error for RestoreError {}

/// What the coordinator knows of one site.
#[derive(Clone, Debug, Default)]
struct SiteState {
    /// Changes when the site's process does.
    session: Option<u64>,
    up: bool,
    /// Where it listens for data, by incoming link.
    addresses: BTreeMap<LinkId, String>,
}

/// The machine: see the module.
pub struct Coordinator<P> {
    config: CoordinatorConfig,
    topology: Topology,
    planner: P,
    sites: Vec<SiteState>,
    transfers: BTreeMap<TransferId, Transfer>,
    next_transfer: u64,
    born: Instant,
    now: Instant,
    /// When to look whether running transfers gain by being planned anew.
    look_at: Option<Instant>,
    out: Outbox,
}

/// What waits to be polled.
#[derive(Debug, Default)]
struct Outbox {
    commands: VecDeque<(SiteId, Command)>,
    events: VecDeque<Event>,
    events_dropped: u64,
    changed: BTreeSet<TransferId>,
}

impl<P: Planner> Coordinator<P> {
    /// A coordinator with no sites up and no transfers.
    pub fn new(config: CoordinatorConfig, topology: Topology, planner: P, now: Instant) -> Self {
        let sites = vec![SiteState::default(); topology.sites().len()];
        Self {
            config,
            topology,
            planner,
            sites,
            transfers: BTreeMap::new(),
            next_transfer: 1,
            born: now,
            now,
            look_at: None,
            out: Outbox::default(),
        }
    }

    /// A coordinator that goes on where the one that wrote the snapshots was stopped. `next_transfer` is the next id that
    /// was never used ([`Coordinator::next_transfer`]); ids above the snapshots' are never used twice in any case.
    ///
    /// Errors: a snapshot that does not fit the topology.
    pub fn restore(
        config: CoordinatorConfig,
        topology: Topology,
        planner: P,
        now: Instant,
        next_transfer: TransferId,
        snapshots: Vec<TransferSnapshot>,
    ) -> Result<Self, RestoreError> {
        let mut new = Self::new(config, topology, planner, now);
        new.next_transfer = next_transfer.0.max(1);
        for snapshot in snapshots {
            let id = snapshot.id;
            let unfit = |reason: String| RestoreError::Unfit { transfer: id, reason };
            new.check(&snapshot.request).map_err(|e| unfit(e.to_string()))?;
            if snapshot.destinations.len() != snapshot.request.destinations.len() {
                return Err(unfit("its destinations do not match its request".into()));
            }
            let named = snapshot.suspects.iter().chain(&snapshot.informed);
            if let Some(site) =
                named.chain(snapshot.installed.iter().map(|(s, _)| s)).find(|s| s.index() >= new.sites.len())
            {
                return Err(unfit(format!("it names site {site}")));
            }
            new.next_transfer = new.next_transfer.max(id.0 + 1);
            let transfer = Transfer::restore(snapshot, now, new.config.gather);
            new.transfers.insert(id, transfer);
        }
        new.step_all();
        new.plan_waiting();
        Ok(new)
    }

    /// Goes on as one would that was [restored](Self::restore) from this one's snapshots: for a driver whose clock begins
    /// anew, as an [`Instant`] cannot say more than 213 days. `now` may lie before all that went before.
    ///
    /// No site is up until it registers again; commands that were not polled are gone, events and changes are not.
    pub fn restart(&mut self, now: Instant) {
        let restored = |t: &Transfer| Transfer::restore(t.snapshot(), now, self.config.gather);
        self.transfers = self.transfers.iter().map(|(id, t)| (*id, restored(t))).collect();
        self.sites.fill(SiteState::default());
        (self.born, self.now, self.look_at) = (now, now, None);
        self.out.commands.clear();
        self.step_all();
        self.plan_waiting();
    }

    /// The network.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The next id that [`Coordinator::submit`] gives out.
    pub fn next_transfer(&self) -> TransferId {
        TransferId(self.next_transfer)
    }

    /// Takes a transfer on.
    ///
    /// Errors: see [`SubmitError`]; nothing changes then.
    pub fn submit(&mut self, now: Instant, request: TransferRequest) -> Result<TransferId, SubmitError> {
        self.advance_clock(now);
        self.check(&request)?;
        if self.transfers.values().filter(|t| t.outcome().is_none()).count() >= self.config.transfers_max {
            return Err(SubmitError::TooMany { limit: self.config.transfers_max });
        }
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        let wait_for_all = now < self.born + self.config.gather;
        let transfer = Transfer::new(id, request, now + self.config.gather, wait_for_all);
        self.transfers.insert(id, transfer);
        self.with(id, |t, cx| t.submitted(cx));
        self.plan_waiting();
        self.evict();
        Ok(id)
    }

    fn check(&self, request: &TransferRequest) -> Result<(), SubmitError> {
        let sites = self.topology.sites().len();
        let links = self.topology.links().len();
        let ends = || std::iter::once(request.source).chain(request.destinations.iter().map(|d| d.site));
        if let Some(site) = ends().chain(request.avoid_sites.iter().copied()).find(|s| s.index() >= sites) {
            return Err(SubmitError::UnknownSite { site, sites });
        }
        let named_links =
            request.avoid_links.iter().copied().chain(request.hop_overrides.iter().map(|h| h.link));
        if let Some(link) = named_links.into_iter().find(|l| l.index() >= links) {
            return Err(SubmitError::UnknownLink { link, links });
        }
        let name = |s: SiteId| self.topology.site(s).name.clone();
        if request.destinations.is_empty() {
            return Err(SubmitError::NoDestination);
        }
        let mut seen = BTreeSet::new();
        for d in &request.destinations {
            if d.site == request.source {
                return Err(SubmitError::SourceIsDestination { site: name(d.site) });
            }
            if !seen.insert(d.site) {
                return Err(SubmitError::DuplicateDestination { site: name(d.site) });
            }
        }
        if let Some(site) = ends().find(|s| request.avoid_sites.contains(s)) {
            return Err(SubmitError::AvoidedEnd { site: name(site) });
        }
        let reached = self.reached(request);
        if let Some(d) = request.destinations.iter().find(|d| !reached.contains(&d.site)) {
            return Err(SubmitError::NoPath { source: name(request.source), destination: name(d.site) });
        }
        let limit = |what, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(SubmitError::OutOfRange { what, value, allowed: format!("{min} to {max}") })
            }
        };
        limit("destinations", request.destinations.len() as u64, 1, self.config.destinations_max as u64)?;
        limit("symbol_bytes", request.symbol_bytes.into(), 1, 16 << 20)?;
        limit("buffer_packets", request.buffer_packets.into(), 1, u16::MAX.into())?;
        for hop in std::iter::once(&request.hop).chain(request.hop_overrides.iter().map(|h| &h.hop)) {
            limit("stripes", hop.stripes.into(), 1, 64)?;
            if request.fill && hop.priority == Priority::Fill {
                return Err(SubmitError::FillWith { what: "hops of priority fill" });
            }
        }
        if let Some(rate) = request.bandwidth_limit {
            limit("bandwidth limit in bit/s", rate.as_bps(), 1, u64::MAX)?;
            if request.fill {
                return Err(SubmitError::FillWith { what: "a bandwidth limit" });
            }
        }
        let paths = std::iter::once(&request.source_path).chain(request.destinations.iter().map(|d| &d.path));
        for path in paths {
            limit("length of a path in bytes", path.len() as u64, 1, self.config.path_bytes_max as u64)?;
        }
        Ok(())
    }

    /// Sites to which links lead from the source, where nothing that must be avoided is passed.
    fn reached(&self, request: &TransferRequest) -> BTreeSet<SiteId> {
        let (mut reached, mut new) = (BTreeSet::from([request.source]), vec![request.source]);
        while let Some(site) = new.pop() {
            for link in self.topology.links_out(site).filter(|l| !request.avoid_links.contains(l)) {
                let to = self.topology.link(link).to;
                if !request.avoid_sites.contains(&to) && reached.insert(to) {
                    new.push(to);
                }
            }
        }
        reached
    }

    /// Gives a transfer up. False if there is none, or it is over.
    pub fn cancel(&mut self, now: Instant, id: TransferId) -> bool {
        self.advance_clock(now);
        let cancelled = self.with(id, |t, cx| t.cancel(cx)).unwrap_or(false);
        self.plan_waiting();
        cancelled
    }

    /// A site has registered: `session` changes when its process does, `addresses` say where it listens for data on each
    /// link that ends there.
    ///
    /// Panics: if the site is not of the topology. Addresses of links that do not end at the site are ignored.
    pub fn handle_site_up(
        &mut self,
        now: Instant,
        site: SiteId,
        session: u64,
        addresses: impl IntoIterator<Item = (LinkId, String)>,
    ) {
        self.advance_clock(now);
        let own = |l: &LinkId| l.index() < self.topology.links().len() && self.topology.link(*l).to == site;
        let addresses = addresses.into_iter().filter(|(l, _)| own(l)).collect();
        let state = &mut self.sites[site.index()];
        let restarted = state.session.is_some_and(|s| s != session);
        *state = SiteState { session: Some(session), up: true, addresses };
        self.with_all(|t, cx| t.handle_site_up(cx, site, restarted));
        self.plan_waiting();
    }

    /// A site's control connection has been lost for longer than the driver's grace time.
    ///
    /// Panics: if the site is not of the topology.
    pub fn handle_site_down(&mut self, now: Instant, site: SiteId) {
        self.advance_clock(now);
        if std::mem::take(&mut self.sites[site.index()].up) {
            self.with_all(|t, cx| t.handle_site_down(cx, site));
            self.plan_waiting();
        }
    }

    /// A site says something. Late reports of attempts that are over are ignored.
    ///
    /// Panics: if the site is not of the topology.
    pub fn handle_report(&mut self, now: Instant, site: SiteId, report: Report) {
        self.advance_clock(now);
        assert!(site.index() < self.sites.len(), "the driver knows the topology's sites");
        let run = report.run();
        let progress = matches!(report, Report::Progress { .. });
        if self.with(run.transfer, |t, cx| t.handle_report(cx, site, report)).is_none() && progress {
            // An attempt of a transfer that is forgotten here (its store was lost): nobody else would ever remove it.
            self.out.commands.push_back((site, Command::Uninstall { run }));
        }
        self.plan_waiting();
    }

    /// Time has come to a [`Coordinator::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance_clock(now);
        self.step_all();
        self.plan_waiting();
    }

    /// The next command, with the site that it is for. Commands for one site must reach it in this order.
    pub fn poll_command(&mut self) -> Option<(SiteId, Command)> {
        self.out.commands.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// The next transfer whose snapshot changed (or is gone, if [`Coordinator::snapshot`] has none).
    pub fn poll_changed(&mut self) -> Option<TransferId> {
        self.out.changed.pop_first()
    }

    /// When to call [`Coordinator::handle_timeout`]. There is one whenever a transfer is under way.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.transfers.values().filter_map(|t| t.deadline(&self.config)).chain(self.look_at).min()
    }

    /// What must survive of a transfer.
    pub fn snapshot(&self, id: TransferId) -> Option<TransferSnapshot> {
        self.transfers.get(&id).map(Transfer::snapshot)
    }

    /// How a transfer stands.
    pub fn status(&self, id: TransferId) -> Option<TransferStatus> {
        self.transfers.get(&id).map(|t| t.status(self.now))
    }

    /// Ids of all transfers that are remembered, ascending.
    pub fn transfer_ids(&self) -> impl Iterator<Item = TransferId> + '_ {
        self.transfers.keys().copied()
    }

    /// The plan of a transfer's present or last attempt (lost when the controller restarts).
    pub fn plan(&self, id: TransferId) -> Option<&Plan> {
        self.transfers.get(&id).and_then(Transfer::plan)
    }

    /// Whether the site is up.
    pub fn is_up(&self, site: SiteId) -> bool {
        self.sites.get(site.index()).is_some_and(|s| s.up)
    }

    /// Events that were dropped because nobody polled them.
    pub fn events_dropped(&self) -> u64 {
        self.out.events_dropped
    }

    fn advance_clock(&mut self, now: Instant) {
        debug_assert!(now >= self.now, "time never goes back");
        self.now = self.now.max(now);
    }

    fn with<T>(&mut self, id: TransferId, f: impl FnOnce(&mut Transfer, &mut Context<'_>) -> T) -> Option<T> {
        let transfer = self.transfers.get_mut(&id)?;
        let mut cx = Context {
            now: self.now,
            config: &self.config,
            topology: &self.topology,
            sites: &self.sites,
            planner: &self.planner,
            out: &mut self.out,
        };
        let before = transfer.outcome();
        let result = f(transfer, &mut cx);
        transfer.step(&mut cx);
        if before != transfer.outcome() && self.config.joint.is_some() {
            self.look_at = Some(self.now);
        }
        Some(result)
    }

    fn with_all(&mut self, mut f: impl FnMut(&mut Transfer, &mut Context<'_>)) {
        let ids: Vec<_> = self.transfers.keys().copied().collect();
        for id in ids {
            self.with(id, &mut f);
        }
    }

    fn step_all(&mut self) {
        self.with_all(|_, _| ());
        self.evict();
    }

    fn evict(&mut self) {
        let over: Vec<_> =
            self.transfers.iter().filter(|(_, t)| t.outcome().is_some()).map(|(id, _)| *id).collect();
        for id in over.iter().take(over.len().saturating_sub(self.config.finished_max)) {
            self.transfers.remove(id);
            self.out.changed.insert(*id);
        }
    }
}

impl Outbox {
    fn event(&mut self, limit: usize, event: Event) {
        if self.events.len() >= limit {
            self.events.pop_front();
            self.events_dropped += 1;
        }
        self.events.push_back(event);
    }
}

impl Report {
    /// The run that the report is about.
    pub fn run(&self) -> Run {
        match self {
            Self::Inventory { run, .. }
            | Self::Ready { run }
            | Self::Progress { run, .. }
            | Self::SourceDone { run, .. }
            | Self::Hashed { run, .. }
            | Self::SinkDone { run, .. }
            | Self::Corrupt { run, .. }
            | Self::Audit { run, .. }
            | Self::Completed { run }
            | Self::HopFailed { run, .. }
            | Self::Failed { run, .. } => *run,
        }
    }
}
