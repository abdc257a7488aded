//! State machine of one transfer: phases, destinations, and reactions to failures.
//!
//! Every input changes the transfer's knowledge and then calls [`Transfer::step`], which alone
//! decides the next action. No order of inputs can therefore leave a transfer without a deadline.
//! Leaves out: other transfers. This file contains a transfer's state and its status; inputs,
//! steps, planning and programs have their own modules. Read [`Phase`] and [`Transfer::step`]
//! first.

mod capacities;
mod entries;
mod inputs;
mod planning;
mod programs;
mod room;
mod slow;
mod step;

use super::classes::ByteClass;
use super::{
    BitRate, Command, CoordinatorConfig, DestinationSnapshot, DestinationStatus, Duration, Event, EventKind,
    FileHash, FlowId, Instant, LinkId, Links, Outbox, Outcome, PhaseName, Plan, Planner, Run, SiteId,
    SiteState, Submitter, Topology, TransferId, TransferRequest, TransferSnapshot, TransferStatus, Verdict,
    ranges,
};
use crate::control::{Attempt, EntryCounts, FlowDigest, LeftEntry, Unsettled};
use anabranch_pieces::{Attributes, ByteRange};
use anabranch_sets::comparison::Comparison;
use anabranch_sets::folding::{Collisions, Folding};
use anabranch_units::ByteCount;
use anabranch_units::text::printable;
use room::CrowdedSite;
pub(super) use room::FreedRoom;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Number of consecutive unanswered questions after which a site counts as unreachable.
const STRIKES_MAX: u8 = 3;
/// Maximum number of times that a destination may be postponed. After that, its data is sent
/// regardless of the effect on other destinations.
const LEVEL_MAX: u8 = 3;
/// Maximum number of runs per transfer that are remembered for removal.
const DEBTS_MAX: usize = 1_024;
/// Maximum time for reading or checking a file: 30 days.
const WORK_TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Timeout of an inventory of a directory, whose site may have to read all files.
const SCAN_TIMEOUT: Duration = Duration::from_secs(1_800);
/// Window over which rates are averaged.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// Minimum interval between two progress events.
const PROGRESS_EVERY: Duration = Duration::from_ms(500);

/// The parts of the coordinator that a transfer may read and change.
pub(super) struct Context<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a CoordinatorConfig,
    pub(super) topology: &'a Topology,
    pub(super) links: &'a mut Links,
    pub(super) sites: &'a [SiteState],
    pub(super) planner: &'a dyn Planner,
    pub(super) out: &'a mut Outbox,
}

impl Context<'_> {
    fn name(&self, site: SiteId) -> &str {
        &self.topology.site(site).name
    }
    fn up(&self, site: SiteId) -> bool {
        self.sites[site.index()].up
    }
    fn command(&mut self, site: SiteId, command: Command) {
        self.out.commands.push_back((site, command));
    }
    /// Maximum time for reading or checking `length` bytes.
    fn work_time(&self, length: u64) -> Duration {
        work_time(self.config, length)
    }
}

/// Maximum time for reading or checking `length` bytes. It is bounded for any claimed length, so
/// that the clock cannot overflow.
fn work_time(config: &CoordinatorConfig, length: u64) -> Duration {
    config.work_rate.transmit_time(ByteCount::new(length)).min(WORK_TIME_MAX)
}

/// Length of a congestion control's name, including its terminator (Linux: `TCP_CA_NAME_MAX`).
const CONGESTION_CONTROL_BYTES: usize = 16;
/// Maximum number of different names that are remembered per transfer.
const CONGESTION_CONTROLS_MAX: usize = 8;

pub(super) struct Transfer {
    id: TransferId,
    request: TransferRequest,
    destinations: Vec<Target>,
    length: Option<u64>,
    hash: Option<FileHash>,
    head: StreamHead,
    /// The file's attributes in the source's last report.
    attributes: Option<Attributes>,
    attempts: u32,
    idle_attempts: u32,
    total_before: Option<u64>,
    phase: Phase,
    hash_question: HashQuestion,
    source_away: Option<Instant>,
    /// Links that failed recently.
    tired_links: BTreeMap<LinkId, AvoidedResource>,
    /// Sites that recently failed to set up their part, and slow sites.
    tired_sites: BTreeMap<SiteId, AvoidedResource>,
    /// Relays that provably sent wrong data or refused their part; never used again.
    suspects: BTreeSet<SiteId>,
    /// Whether a site refused a program with filling flows. Further plans then have none.
    unfilled: bool,
    /// The congestion controls that sites reported for their connections.
    congestion_controls: BTreeSet<String>,
    corrupt: u64,
    /// Messages that sites must still receive, and when each was last sent.
    debts: BTreeMap<(SiteId, Debt), Option<Instant>>,
    informed: BTreeSet<SiteId>,
    last_plan: Option<Plan>,
    /// Plan of an earlier attempt that served more destinations than the last one.
    wider_plan: Option<Plan>,
    /// The transfers that were planned together with the current or last attempt.
    planned_with: Vec<TransferId>,
    /// Last time at which an attempt was stopped to plan the transfer again, and number of such
    /// stops.
    replanned: Option<(Instant, u32)>,
    last_trouble: Option<String>,
    /// Text of the last announced wait: the sites and the reasons.
    last_waiting: Option<String>,
    /// Sites that had no room for their part when they were last asked.
    crowded: BTreeMap<SiteId, CrowdedSite>,
    /// Number of attempts that ended for lack of room. They do not count towards the limit.
    crowded_attempts: u32,
    /// Whether all destinations have waited for room once.
    has_waited_for_room: bool,
    last_progress_event: Option<Instant>,
    cancelled: bool,
    outcome: Option<Outcome>,
}

/// Head of a directory's stream, from which a destination learns what it lacks.
#[derive(Clone, Debug, Default)]
struct StreamHead {
    /// Length of the stream, by the source's last report. `None` for a file.
    bytes: Option<u64>,
    /// Destinations with another snapshot that lack the head, by their last inventories.
    lacking: BTreeSet<SiteId>,
    /// The current attempt sends the head only.
    goes_first: bool,
    /// The class that the current attempt serves; `None` for an attempt for all destinations.
    class: Option<ByteClass>,
    /// Number of completed attempts that each served one class ([`ByteClass`]).
    classes_served: u32,
    /// Entries that the source cannot send. Destinations do without them.
    unsettled: Unsettled,
    /// Entries whose names are equal under a folding, by the source's last report.
    collisions: Vec<Collisions>,
    /// Differences between names that the file systems of destinations ignore.
    foldings: BTreeMap<SiteId, Folding>,
    /// Snapshots whose ranges destinations have, by their last inventories.
    arriving: BTreeMap<SiteId, FileHash>,
    /// Counts of the entries at destinations that wrote the directory.
    written: BTreeMap<SiteId, EntryCounts>,
    /// The first entries that destinations left.
    left: BTreeMap<SiteId, Vec<LeftEntry>>,
    /// Comparisons of destinations with the source.
    compared: BTreeMap<SiteId, Comparison>,
}

/// The question for the file's hash.
#[derive(Copy, Clone, Debug, Default)]
struct HashQuestion {
    pending: Option<PendingQuestion>,
    /// Number of consecutive unanswered questions.
    strikes: u8,
    /// When to ask again, after the source was too busy to answer.
    retry_at: Option<Instant>,
}

/// A question that a site has not answered.
#[derive(Copy, Clone, Debug)]
struct PendingQuestion {
    run: Run,
    deadline: Instant,
}

/// A link or site that failed recently and is avoided for some time.
#[derive(Copy, Clone, Debug)]
struct AvoidedResource {
    strikes: u32,
    until: Instant,
    run: Run,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Debt {
    Uninstall(Run),
    Forget,
}

/// A finished file at a destination.
#[derive(Copy, Clone)]
struct FinishedFile {
    length: u64,
    hash: FileHash,
    /// The file's permissions at the destination, if reported.
    mode: Option<u32>,
}

struct Target {
    site: SiteId,
    path: String,
    /// Verified ranges, normalised.
    have: Vec<ByteRange>,
    /// Whether `have` is the site's last report and nothing has happened since that could have
    /// invalidated it.
    known: bool,
    /// A finished file that the destination had before this transfer.
    found: Option<FinishedFile>,
    bytes: step::TargetBytes,
    level: u8,
    integrity: u32,
    /// Whether some of the destination's data may come from an earlier transfer, possibly of
    /// another file. `None` before the destination's first inventory.
    leftover: Option<bool>,
    /// Number of consecutive unanswered questions.
    strikes: u8,
    /// Number of times that the site did not finish the file in time.
    finish_strikes: u8,
    away: Option<(Instant, OutageKind)>,
    unreached: Option<UnreachableSite>,
    /// Whether the site, or a site on the path of its data, had no room.
    waits_for_room: bool,
    retry_at: Option<Instant>,
    finishing: Option<PendingQuestion>,
    /// The attempt in which the site received the hash before it had all data.
    told_ahead: Option<Run>,
    verdict: Option<Verdict>,
}

/// Failed attempts of another site to connect to a destination.
#[derive(Clone, Debug)]
struct UnreachableSite {
    since: Instant,
    tries: u32,
    /// The connecting site, the address and the reason, in one line.
    line: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OutageKind {
    Down,
    NoPath(String),
}

enum Phase {
    /// Nothing is running: an inquiry begins as soon as a destination can be served.
    Idle,
    /// Waits before the next inquiry.
    Settling {
        until: Instant,
        early: WaitEnd,
    },
    /// Asks sites for their data.
    Inquiring {
        run: Run,
        begun: Instant,
        waiting: BTreeSet<SiteId>,
        answered: BTreeSet<SiteId>,
    },
    /// All sites have answered: waits to be planned together with other transfers.
    Planning {
        targets: Vec<SiteId>,
        length: u64,
        /// End of the wait for any new transfer; `None` once this time is past.
        first: Option<Instant>,
        /// End of the wait for transfers that have not completed their inquiries or that will be
        /// planned again.
        until: Instant,
        fresh: bool,
    },
    /// Programs are being installed. Sites that have their program may already send data.
    Installing {
        attempt: Box<RunningAttempt>,
        waiting: BTreeSet<SiteId>,
        deadline: Instant,
    },
    /// Every site has its program and its connections.
    Running(Box<RunningAttempt>),
    Over,
}

/// Condition that ends a wait early.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum WaitEnd {
    Never,
    /// The source and all destinations are up.
    Ends,
    /// All sites are up.
    Everybody,
}

struct RunningAttempt {
    run: Run,
    plan: Plan,
    /// Maximum rate at which the file may be sent, if the plan was made together with other
    /// transfers' plans.
    ceiling: Option<BitRate>,
    /// For each destination, the plan's rate with the measured capacities of all links. Only hops
    /// to this destination count with at least their declared capacity.
    expected: BTreeMap<SiteId, BitRate>,
    /// Links of the plan whose wrong declared capacity was announced.
    wrong_links: BTreeSet<LinkId>,
    participants: BTreeSet<SiteId>,
    /// Sites that do more than relay filling flows. The attempt ends if one of them is lost.
    needed: BTreeSet<SiteId>,
    sinks: BTreeMap<SiteId, SinkState>,
    /// Bytes passed to TCP and fraction of time blocked, of each flow.
    flows: BTreeMap<FlowId, (u64, f64)>,
    source_done: bool,
    begun: Instant,
    active_at: Instant,
    /// Time of the last check for slow destinations.
    looked_at: Instant,
    corrupt: u32,
    audits: u32,
    audit: Option<Audit>,
}

struct SinkState {
    base_bytes: u64,
    missing_bytes: u64,
    verified_bytes: u64,
    samples: VecDeque<(Instant, u64)>,
    stalled: f64,
    /// Total time in which the sink's disk, or the path into the sink, delayed the flows.
    held: Duration,
    slow_since: Option<Instant>,
    done: bool,
    corrupt: bool,
}

struct Audit {
    group: u16,
    generation: u64,
    complainant: SiteId,
    waiting: BTreeSet<SiteId>,
    digests: BTreeMap<SiteId, Vec<FlowDigest>>,
    deadline: Instant,
}

impl SinkState {
    fn sample(&mut self, now: Instant, bytes: u64) {
        self.verified_bytes = self.verified_bytes.max(bytes.min(self.missing_bytes));
        self.samples.push_back((now, self.verified_bytes));
        while self.samples.len() > 64
            || self.samples.get(1).is_some_and(|(t, _)| now.saturating_since(*t) >= RATE_WINDOW)
        {
            self.samples.pop_front();
        }
    }
    fn rate_bps(&self, now: Instant) -> u64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return 0 };
        if now.saturating_since(last.0) > RATE_WINDOW {
            return 0;
        }
        BitRate::average(ByteCount::new(last.1 - first.1), last.0.saturating_since(first.0))
            .map_or(0, BitRate::as_bps)
    }
}

impl Target {
    fn new(site: SiteId, path: String) -> Self {
        Self {
            site,
            path,
            have: Vec::new(),
            known: false,
            found: None,
            bytes: step::TargetBytes::default(),
            level: 0,
            integrity: 0,
            leftover: None,
            strikes: 0,
            finish_strikes: 0,
            away: None,
            unreached: None,
            waits_for_room: false,
            retry_at: None,
            finishing: None,
            told_ahead: None,
            verdict: None,
        }
    }
    fn open(&self) -> bool {
        self.verdict.is_none()
    }
    /// Ranges of the first `length` bytes that the destination lacks.
    fn missing(&self, length: u64) -> Vec<ByteRange> {
        let ends = self.have.partition_point(|range| range.start < length);
        ranges::missing(&ranges::normal(&self.have[..ends], length), length)
    }
    /// Order in which destinations are served: lower values first.
    fn turn(&self) -> (bool, bool, u8) {
        (self.unreached.is_some(), self.waits_for_room, self.level)
    }
    /// Whether the destination has all data, as far as the controller knows.
    fn full(&self, length: Option<u64>) -> bool {
        self.known && length.is_some_and(|l| ranges::bytes(&self.have) == l)
    }
    /// Counts ranges that the source cannot send as ranges that the destination has.
    fn add_unsettled(&mut self, unsettled: &[ByteRange], length: u64) {
        if !unsettled.is_empty() {
            self.have = ranges::normal(&[&self.have, unsettled].concat(), length);
        }
    }
    fn set_have(&mut self, have: &[ByteRange], length: u64, ranges_max: usize) {
        self.have = ranges::normal(&have[..have.len().min(ranges_max)], length);
        self.known = true;
        self.bytes.shown = ranges::bytes(&self.have);
    }
}

/// Beginnings of lines that describe a connection attempt to an address.
const CANNOT_CONNECT: &str = "cannot connect to";
const THE_HOP: &str = "the hop";

/// A line of a status or an event without the result of a connection attempt. Only operators may
/// read this result. Otherwise a site could make other sites connect to any address and learn what
/// exists there.
pub fn without_connecting(line: &str) -> &str {
    let told = [CANNOT_CONNECT, THE_HOP].into_iter().filter_map(|begin| line.find(begin)).min();
    let end = told.and_then(|at| line[at..].find(": ").map(|colon| at + colon));
    end.map_or(line, |end| &line[..end])
}

/// Text from a peer, made printable and shortened for one-line messages.
pub(super) fn one_line(text: &str) -> String {
    printable(text.trim()).chars().take(500).collect()
}

impl Transfer {
    pub(super) fn new(
        id: TransferId,
        request: TransferRequest,
        gather_until: Instant,
        everybody: bool,
    ) -> Self {
        let destinations = request.destinations.iter().map(|d| Target::new(d.site, d.path.clone())).collect();
        let early = if everybody { WaitEnd::Everybody } else { WaitEnd::Ends };
        Self {
            id,
            request,
            destinations,
            length: None,
            hash: None,
            head: StreamHead::default(),
            attributes: None,
            attempts: 0,
            idle_attempts: 0,
            total_before: None,
            phase: Phase::Settling { until: gather_until, early },
            hash_question: HashQuestion::default(),
            source_away: None,
            tired_links: BTreeMap::new(),
            tired_sites: BTreeMap::new(),
            suspects: BTreeSet::new(),
            unfilled: false,
            congestion_controls: BTreeSet::new(),
            corrupt: 0,
            debts: BTreeMap::new(),
            informed: BTreeSet::new(),
            last_plan: None,
            wider_plan: None,
            planned_with: Vec::new(),
            replanned: None,
            last_trouble: None,
            last_waiting: None,
            crowded: BTreeMap::new(),
            crowded_attempts: 0,
            has_waited_for_room: false,
            last_progress_event: None,
            cancelled: false,
            outcome: None,
        }
    }

    pub(super) fn restore(s: TransferSnapshot, now: Instant, gather: Duration) -> Self {
        let mut new = Self::new(s.id, s.request, now + gather, true);
        for (target, old) in new.destinations.iter_mut().zip(s.destinations) {
            new.head.written.extend(old.entries.map(|entries| (target.site, entries)));
            new.head.left.extend((!old.left.is_empty()).then_some((target.site, old.left)));
            new.head.compared.extend(old.comparison.map(|comparison| (target.site, comparison)));
            target.bytes.shown = old.verified_bytes;
            target.bytes.moved = old.moved_bytes;
            target.level = old.level;
            target.integrity = old.integrity;
            target.leftover = old.leftover;
            target.verdict = old.verdict;
        }
        new.length = s.length;
        new.hash = s.hash;
        new.head.unsettled = s.unsettled;
        new.attributes = s.attributes;
        new.attempts = s.attempts;
        new.idle_attempts = s.idle_attempts;
        new.crowded_attempts = s.crowded_attempts;
        new.suspects = s.suspects.into_iter().collect();
        new.corrupt = s.corrupt;
        new.informed = s.informed.into_iter().collect();
        new.debts = s.installed.into_iter().map(|(site, run)| ((site, Debt::Uninstall(run)), None)).collect();
        if s.outcome.is_some() {
            new.debts.extend(new.informed.iter().map(|&site| ((site, Debt::Forget), None)));
            new.phase = Phase::Over;
            new.outcome = s.outcome;
        }
        new
    }

    pub(super) fn snapshot(&self) -> TransferSnapshot {
        let debts = self.debts.keys().filter_map(|&(site, debt)| match debt {
            Debt::Uninstall(run) => Some((site, run)),
            Debt::Forget => None,
        });
        let live = self.running().into_iter().flat_map(|r| r.participants.iter().map(|&s| (s, r.run)));
        TransferSnapshot {
            id: self.id,
            request: self.request.clone(),
            attempts: self.attempts,
            idle_attempts: self.idle_attempts,
            crowded_attempts: self.crowded_attempts,
            length: self.length,
            hash: self.hash,
            unsettled: self.head.unsettled.clone(),
            attributes: self.attributes,
            destinations: self
                .destinations
                .iter()
                .map(|d| DestinationSnapshot {
                    verified_bytes: d.bytes.shown,
                    moved_bytes: self.moved_bytes(d),
                    level: d.level,
                    integrity: d.integrity,
                    leftover: d.leftover,
                    entries: self.head.written.get(&d.site).copied(),
                    left: self.head.left.get(&d.site).cloned().unwrap_or_default(),
                    comparison: self.head.compared.get(&d.site).cloned(),
                    verdict: d.verdict.clone(),
                })
                .collect(),
            suspects: self.suspects.iter().copied().collect(),
            corrupt: self.corrupt,
            installed: debts.chain(live).collect(),
            informed: self.informed.iter().copied().collect(),
            outcome: self.outcome,
        }
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    pub(super) fn request(&self) -> &TransferRequest {
        &self.request
    }

    pub(super) fn submitter(&self) -> Submitter {
        self.request.submitter
    }

    pub(super) fn plan(&self) -> Option<&Plan> {
        self.running().map(|r| &r.plan).or(self.last_plan.as_ref())
    }

    /// Of the attempts' plans, the last one with the most destinations.
    pub(super) fn widest_plan(&self) -> Option<&Plan> {
        let plans = [self.wider_plan.as_ref(), self.last_plan.as_ref(), self.running().map(|r| &r.plan)];
        plans.into_iter().flatten().max_by_key(|plan| plan.destinations.len())
    }

    pub(super) fn status(&self, now: Instant) -> TransferStatus {
        let plan = self.plan();
        TransferStatus {
            id: self.id,
            phase: match &self.phase {
                Phase::Over => PhaseName::Over,
                Phase::Inquiring { .. } => PhaseName::Inquiring,
                Phase::Installing { .. } => PhaseName::Installing,
                Phase::Running(r) if !(r.source_done && r.sinks.values().all(|s| s.done)) => {
                    PhaseName::Running
                }
                _ if self.hash_question.pending.is_some()
                    || self.destinations.iter().any(|d| d.finishing.is_some()) =>
                {
                    PhaseName::Finishing
                }
                _ => PhaseName::Waiting,
            },
            request: self.request.clone(),
            attempts: self.attempts,
            length_bytes: self.length,
            hash: self.hash,
            scheme: plan.map(|p| p.scheme),
            planned_bps: plan.map(|p| p.rate.as_bps()),
            bound_bps: plan.map(|p| p.bound.as_bps()),
            planned_with: self.planned_with.clone(),
            destinations: self
                .destinations
                .iter()
                .map(|d| DestinationStatus {
                    site: d.site,
                    path: d.path.clone(),
                    verified_bytes: self.shown(d),
                    moved_bytes: self.moved_bytes(d),
                    rate_bps: self.rate_bps(d.site, now),
                    postponed: d.open() && d.turn() > (false, false, 0),
                    away: match (&d.away, &d.unreached) {
                        (Some((_, OutageKind::Down)), _) => Some("the site does not answer".to_owned()),
                        (_, Some(unreached)) => Some(unreached.line.clone()),
                        (Some((_, OutageKind::NoPath(reason))), None) => Some(reason.clone()),
                        (None, None) => None,
                    },
                    entries: self.head.written.get(&d.site).copied(),
                    left: self.head.left.get(&d.site).cloned().unwrap_or_default(),
                    comparison: self.head.compared.get(&d.site).cloned(),
                    verdict: d.verdict.clone(),
                })
                .collect(),
            corrupt: self.corrupt,
            congestion_controls: self.congestion_controls.iter().cloned().collect(),
            suspects: self.suspects.iter().copied().collect(),
            last_trouble: self.last_trouble.clone(),
            outcome: self.outcome,
        }
    }

    fn running(&self) -> Option<&RunningAttempt> {
        match &self.phase {
            Phase::Installing { attempt, .. } => Some(attempt),
            Phase::Running(attempt) => Some(attempt),
            _ => None,
        }
    }

    fn running_mut(&mut self) -> Option<&mut RunningAttempt> {
        match &mut self.phase {
            Phase::Installing { attempt, .. } => Some(attempt),
            Phase::Running(attempt) => Some(attempt),
            _ => None,
        }
    }

    fn shown(&self, d: &Target) -> u64 {
        if d.verdict.as_ref().is_some_and(Verdict::is_delivered) {
            return self.length.unwrap_or(d.bytes.shown);
        }
        let sink = self.running().and_then(|r| r.sinks.get(&d.site)).filter(|s| !s.done);
        sink.map_or(d.bytes.shown, |s| s.base_bytes + s.verified_bytes)
    }

    /// Bytes that arrived at a destination in attempts of this transfer.
    fn moved_bytes(&self, d: &Target) -> u64 {
        let Some(sink) = self.running().and_then(|r| r.sinks.get(&d.site)) else { return d.bytes.moved };
        // The last report of progress may precede the last bytes.
        let in_attempt = if d.verdict.as_ref().is_some_and(Verdict::is_delivered) {
            sink.missing_bytes
        } else if sink.done {
            sink.verified_bytes.max(d.bytes.shown.saturating_sub(sink.base_bytes))
        } else {
            sink.verified_bytes
        };
        d.bytes.moved.saturating_add(in_attempt)
    }

    fn rate_bps(&self, site: SiteId, now: Instant) -> u64 {
        let sink = self.running().and_then(|r| r.sinks.get(&site)).filter(|s| !s.done);
        sink.map_or(0, |s| s.rate_bps(now))
    }

    /// Next time at which an action is due even without input.
    pub(super) fn deadline(&self, config: &CoordinatorConfig) -> Option<Instant> {
        let mut first: Option<Instant> = None;
        let mut at = |t: Instant| first = Some(first.map_or(t, |f| f.min(t)));
        self.debts.values().flatten().for_each(|&t| at(t + config.sweep));
        if self.outcome.is_some() {
            return first;
        }
        match &self.phase {
            Phase::Idle | Phase::Over => {}
            Phase::Settling { until, .. } => at(*until),
            Phase::Inquiring { begun, .. } => at(self.inquiry_deadline(*begun, config)),
            Phase::Planning { first, until, .. } => at(first.unwrap_or(*until)),
            Phase::Installing { deadline, .. } => at(*deadline),
            Phase::Running(r) => {
                if !r.ended() {
                    at(r.active_at + config.stall_timeout);
                }
                r.audit.iter().for_each(|a| at(a.deadline));
            }
        }
        let site_wait = self.site_wait(config);
        self.source_away.iter().for_each(|&t| at(t + site_wait));
        self.hash_question.pending.iter().for_each(|p| at(p.deadline));
        self.hash_question.retry_at.iter().for_each(|&t| at(t));
        for d in self.destinations.iter().filter(|d| d.open()) {
            d.away.iter().for_each(|(t, _)| at(*t + site_wait));
            d.retry_at.iter().for_each(|&t| at(t));
            d.finishing.iter().for_each(|p| at(p.deadline));
        }
        first
    }

    /// Time after which an absent site is given up. A comparison is a question, which is not worth
    /// a long wait.
    fn site_wait(&self, config: &CoordinatorConfig) -> Duration {
        if self.request.rules.compare {
            config.inquire_timeout.min(config.site_wait)
        } else {
            config.site_wait
        }
    }

    fn inquiry_deadline(&self, begun: Instant, config: &CoordinatorConfig) -> Instant {
        if self.request.is_directory() {
            return begun + SCAN_TIMEOUT;
        }
        begun + config.inquire_timeout + work_time(config, self.length.unwrap_or(0))
    }

    fn event(&self, cx: &mut Context<'_>, kind: EventKind) {
        cx.out.event(cx.config.events_max, Event { transfer: self.id, attempt: self.attempts, kind });
    }

    fn changed(&self, cx: &mut Context<'_>) {
        cx.out.changed.insert(self.id);
    }

    fn target_mut(&mut self, site: SiteId) -> Option<&mut Target> {
        self.destinations.iter_mut().find(|d| d.site == site)
    }

    fn decide(&mut self, cx: &mut Context<'_>, site: SiteId, verdict: Verdict) {
        let Some(target) = self.destinations.iter_mut().find(|d| d.site == site && d.open()) else { return };
        let verdict = match (verdict, &self.head.unsettled.left_out) {
            (Verdict::Done, Some(line)) => {
                Verdict::Conflict { reason: format!("{}: {line}", cx.name(self.request.source)) }
            }
            (Verdict::Conflict { reason }, Some(line)) => {
                Verdict::Conflict { reason: format!("{reason}; {}: {line}", cx.name(self.request.source)) }
            }
            (verdict, _) => verdict,
        };
        target.verdict = Some(verdict.clone());
        target.finishing = None;
        (target.away, target.unreached) = (None, None);
        self.event(cx, EventKind::Verdict { site, verdict });
        self.changed(cx);
    }

    fn decide_all(&mut self, cx: &mut Context<'_>, verdict: &Verdict) {
        let open: Vec<_> = self.destinations.iter().filter(|d| d.open()).map(|d| d.site).collect();
        for site in open {
            self.decide(cx, site, verdict.clone());
        }
    }

    fn owe(&mut self, site: SiteId, debt: Debt) {
        if self.debts.len() >= DEBTS_MAX {
            self.debts.pop_first();
        }
        self.debts.entry((site, debt)).or_insert(None);
    }
}

impl RunningAttempt {
    /// Whether the plan has filling groups.
    fn is_filled(&self) -> bool {
        self.plan.groups.iter().any(|g| g.fills.is_some())
    }
    /// Whether the source and all sinks have reached the end.
    fn ended(&self) -> bool {
        self.source_done && self.sinks.values().all(|s| s.done)
    }
}

impl AvoidedResource {
    fn new(now: Instant, transfer: TransferId) -> Self {
        Self { strikes: 0, until: now, run: Run { transfer, attempt: Attempt(0) } }
    }
    /// Records one more failure, counted once per run.
    fn tire(&mut self, from: Instant, run: Run, config: &CoordinatorConfig) {
        if self.run == run {
            return;
        }
        self.run = run;
        self.strikes += 1;
        self.until = from + config.avoid.after(self.strikes - 1);
    }
}
