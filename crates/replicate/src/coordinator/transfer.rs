//! One transfer's state machine: phases, destinations, and what to do when something breaks.
//!
//! Every input changes what is known and then calls [`Transfer::step`], which alone decides what happens next; so no
//! order of inputs can leave a transfer without a deadline. Leaves out: other transfers. Read [`Phase`] and
//! [`Transfer::step`] first.

use super::together::{Busy, Demand, ceiling};
use super::{
    BitRate, Command, CoordinatorConfig, CorruptPolicy, DestinationProgress, DestinationSnapshot,
    DestinationStatus, Duration, Event, EventKind, FailureKind, FileHash, FlowId, HopSettings, Instant,
    LinkId, Outbox, Outcome, PhaseName, Plan, PlanRequest, Planner, Priority, Report, Run, SiteId,
    SiteProgram, SiteState, Topology, TransferId, TransferRequest, TransferSnapshot, TransferStatus, Verdict,
    audit, ranges,
};
use crate::control::{Attempt, ByteRange, FlowDigest, GroupProgram, Incoming, Outgoing, SinkProgram};
use crate::plan::{Input, Mode};
use anabranch_units::ByteCount;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Times that a site may leave a question unanswered before it counts as unreachable.
const STRIKES_MAX: u8 = 3;
/// Times that a destination may be left for later; after that it is served whatever it does to the others.
const LEVEL_MAX: u8 = 3;
/// Runs that are remembered for removal, per transfer.
const DEBTS_MAX: usize = 1_024;
/// The longest that reading or checking a file may take: 30 days.
const WORK_TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Over how long rates are averaged.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// The least time between two progress events.
const PROGRESS_EVERY: Duration = Duration::from_ms(500);

/// What a transfer may see and touch of the coordinator.
pub(super) struct Context<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a CoordinatorConfig,
    pub(super) topology: &'a Topology,
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
    /// How long reading or checking `length` bytes may take.
    fn work_time(&self, length: u64) -> Duration {
        work_time(self.config, length)
    }
}

/// How long reading or checking `length` bytes may take; whatever length a site claims, not beyond the clock's end.
fn work_time(config: &CoordinatorConfig, length: u64) -> Duration {
    config.work_rate.transmit_time(ByteCount::new(length)).min(WORK_TIME_MAX)
}

/// Bytes of a congestion control's name, its end included (Linux: `TCP_CA_NAME_MAX`).
const CONGESTION_CONTROL_BYTES: usize = 16;
/// Different names that are remembered of one transfer.
const CONGESTION_CONTROLS_MAX: usize = 8;

pub(super) struct Transfer {
    id: TransferId,
    request: TransferRequest,
    destinations: Vec<Target>,
    length: Option<u64>,
    hash: Option<FileHash>,
    attempts: u32,
    idle_attempts: u32,
    total_before: Option<u64>,
    phase: Phase,
    hashing: Option<Pending>,
    hash_strikes: u8,
    source_away: Option<Instant>,
    /// Links that failed lately.
    tired_links: BTreeMap<LinkId, Tired>,
    /// Sites that failed to set up their part lately, and slow ones.
    tired_sites: BTreeMap<SiteId, Tired>,
    /// Relays that were proven wrong or that refused their part; never used again.
    suspects: BTreeSet<SiteId>,
    /// A site refused a program with flows that fill: plans have none any more.
    unfilled: bool,
    /// What sites said that their connections ran on.
    congestion_controls: BTreeSet<String>,
    corrupt: u64,
    /// What sites still have to be told, and when it was last said.
    debts: BTreeMap<(SiteId, Debt), Option<Instant>>,
    informed: BTreeSet<SiteId>,
    last_plan: Option<Plan>,
    /// What the present or last attempt was planned together with.
    planned_with: Vec<TransferId>,
    /// When it was last stopped to be planned anew.
    moved_at: Option<Instant>,
    last_trouble: Option<String>,
    last_waiting: Option<String>,
    last_progress_event: Option<Instant>,
    cancelled: bool,
    outcome: Option<Outcome>,
}

/// Something that a site was asked and has not answered.
#[derive(Copy, Clone, Debug)]
struct Pending {
    run: Run,
    deadline: Instant,
}

/// Something that failed lately and is left alone for a while.
#[derive(Copy, Clone, Debug)]
struct Tired {
    strikes: u32,
    until: Instant,
    run: Run,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Debt {
    Uninstall(Run),
    Forget,
}

struct Target {
    site: SiteId,
    path: String,
    /// Verified ranges, normal.
    have: Vec<ByteRange>,
    /// Whether `have` is what the site said last, with nothing since that could have changed it for the worse.
    known: bool,
    /// Length and hash of a finished file that was there before.
    found: Option<(u64, FileHash)>,
    /// Bytes to show.
    shown_bytes: u64,
    level: u8,
    integrity: u32,
    /// Questions in a row that it left unanswered.
    strikes: u8,
    /// Files that it did not finish in time.
    finish_strikes: u8,
    away: Option<(Instant, Away)>,
    retry_at: Option<Instant>,
    finishing: Option<Pending>,
    /// The attempt in which it was told the hash before it had everything.
    told_ahead: Option<Run>,
    verdict: Option<Verdict>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Away {
    Down,
    NoPath(String),
}

enum Phase {
    /// Nothing is under way: begins an inquiry as soon as there is anybody to serve.
    Idle,
    /// Waits before the next inquiry.
    Settling {
        until: Instant,
        early: Early,
    },
    /// Asks what is there.
    Inquiring {
        run: Run,
        begun: Instant,
        waiting: BTreeSet<SiteId>,
        answered: BTreeSet<SiteId>,
    },
    /// All have answered: waits to be planned together with others.
    Planning {
        targets: Vec<SiteId>,
        length: u64,
        /// Until then whoever may come is waited for; taken once it is past.
        first: Option<Instant>,
        /// Until then those are waited for that have not answered or are to be planned anew.
        until: Instant,
        fresh: bool,
    },
    /// Programs are being installed; where they are, data flows already.
    Installing {
        attempt: Box<Running>,
        waiting: BTreeSet<SiteId>,
        deadline: Instant,
    },
    /// Every site has its program and its connections.
    Running(Box<Running>),
    Over,
}

/// What ends a wait before its time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Early {
    Never,
    /// The source and all destinations are up.
    Ends,
    /// All sites are up.
    Everybody,
}

struct Running {
    run: Run,
    plan: Plan,
    /// How fast the file may be sent, where the plan is a share.
    ceiling: Option<BitRate>,
    participants: BTreeSet<SiteId>,
    /// Those that do more than pass on what fills: without one of these the attempt is over.
    needed: BTreeSet<SiteId>,
    sinks: BTreeMap<SiteId, SinkState>,
    /// Bytes handed to TCP and share of time blocked, of each flow.
    flows: BTreeMap<FlowId, (u64, f64)>,
    source_done: bool,
    begun: Instant,
    active_at: Instant,
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
            shown_bytes: 0,
            level: 0,
            integrity: 0,
            strikes: 0,
            finish_strikes: 0,
            away: None,
            retry_at: None,
            finishing: None,
            told_ahead: None,
            verdict: None,
        }
    }
    fn open(&self) -> bool {
        self.verdict.is_none()
    }
    /// Everything is there, as far as is known.
    fn full(&self, length: Option<u64>) -> bool {
        self.known && length.is_some_and(|l| ranges::bytes(&self.have) == l)
    }
    fn set_have(&mut self, have: &[ByteRange], length: u64, ranges_max: usize) {
        self.have = ranges::normal(&have[..have.len().min(ranges_max)], length);
        self.known = true;
        self.shown_bytes = ranges::bytes(&self.have);
    }
}

/// The first line of what a peer said, cut: it ends up in one-line messages.
fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or("").chars().take(500).collect()
}

impl Transfer {
    pub(super) fn new(
        id: TransferId,
        request: TransferRequest,
        gather_until: Instant,
        everybody: bool,
    ) -> Self {
        let destinations = request.destinations.iter().map(|d| Target::new(d.site, d.path.clone())).collect();
        let early = if everybody { Early::Everybody } else { Early::Ends };
        Self {
            id,
            request,
            destinations,
            length: None,
            hash: None,
            attempts: 0,
            idle_attempts: 0,
            total_before: None,
            phase: Phase::Settling { until: gather_until, early },
            hashing: None,
            hash_strikes: 0,
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
            planned_with: Vec::new(),
            moved_at: None,
            last_trouble: None,
            last_waiting: None,
            last_progress_event: None,
            cancelled: false,
            outcome: None,
        }
    }

    pub(super) fn restore(s: TransferSnapshot, now: Instant, gather: Duration) -> Self {
        let mut new = Self::new(s.id, s.request, now + gather, true);
        for (target, old) in new.destinations.iter_mut().zip(s.destinations) {
            target.shown_bytes = old.verified_bytes;
            target.level = old.level;
            target.integrity = old.integrity;
            target.verdict = old.verdict;
        }
        new.length = s.length;
        new.hash = s.hash;
        new.attempts = s.attempts;
        new.idle_attempts = s.idle_attempts;
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
            length: self.length,
            hash: self.hash,
            destinations: self
                .destinations
                .iter()
                .map(|d| DestinationSnapshot {
                    verified_bytes: d.shown_bytes,
                    level: d.level,
                    integrity: d.integrity,
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

    pub(super) fn plan(&self) -> Option<&Plan> {
        self.running().map(|r| &r.plan).or(self.last_plan.as_ref())
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
                _ if self.hashing.is_some() || self.destinations.iter().any(|d| d.finishing.is_some()) => {
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
                    rate_bps: self.rate_bps(d.site, now),
                    postponed: d.open() && d.level > 0,
                    away: d.away.as_ref().map(|(_, away)| match away {
                        Away::Down => "the site does not answer".to_owned(),
                        Away::NoPath(reason) => reason.clone(),
                    }),
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

    fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Installing { attempt, .. } => Some(attempt),
            Phase::Running(attempt) => Some(attempt),
            _ => None,
        }
    }

    fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.phase {
            Phase::Installing { attempt, .. } => Some(attempt),
            Phase::Running(attempt) => Some(attempt),
            _ => None,
        }
    }

    fn shown(&self, d: &Target) -> u64 {
        if d.verdict == Some(Verdict::Done) {
            return self.length.unwrap_or(d.shown_bytes);
        }
        let sink = self.running().and_then(|r| r.sinks.get(&d.site)).filter(|s| !s.done);
        sink.map_or(d.shown_bytes, |s| s.base_bytes + s.verified_bytes)
    }

    fn rate_bps(&self, site: SiteId, now: Instant) -> u64 {
        let sink = self.running().and_then(|r| r.sinks.get(&site)).filter(|s| !s.done);
        sink.map_or(0, |s| s.rate_bps(now))
    }

    /// When something has to happen even if nobody says anything.
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
        self.source_away.iter().for_each(|&t| at(t + config.site_wait));
        self.hashing.iter().for_each(|p| at(p.deadline));
        for d in self.destinations.iter().filter(|d| d.open()) {
            d.away.iter().for_each(|(t, _)| at(*t + config.site_wait));
            d.retry_at.iter().for_each(|&t| at(t));
            d.finishing.iter().for_each(|p| at(p.deadline));
        }
        first
    }

    fn inquiry_deadline(&self, begun: Instant, config: &CoordinatorConfig) -> Instant {
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
        target.verdict = Some(verdict.clone());
        target.finishing = None;
        target.away = None;
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

impl Running {
    /// Whether some flows fill.
    fn is_filled(&self) -> bool {
        self.plan.groups.iter().any(|g| g.fills.is_some())
    }
    /// The source and all sinks have seen the end of it.
    fn ended(&self) -> bool {
        self.source_done && self.sinks.values().all(|s| s.done)
    }
}

/// Inputs.
impl Transfer {
    pub(super) fn submitted(&mut self, cx: &mut Context<'_>) {
        self.event(cx, EventKind::Submitted);
        self.changed(cx);
    }

    pub(super) fn cancel(&mut self, cx: &mut Context<'_>) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        self.cancelled = true;
        self.decide_all(cx, &Verdict::Failed { reason: "cancelled".into() });
        true
    }

    pub(super) fn handle_site_up(&mut self, cx: &mut Context<'_>, site: SiteId, restarted: bool) {
        for ((s, _), sent) in &mut self.debts {
            if *s == site {
                *sent = None;
            }
        }
        if self.outcome.is_some() {
            return;
        }
        // Hops that failed because of the restart deserve another try, and so does whoever had no path.
        if restarted {
            let touches = |l: LinkId| cx.topology.link(l).from == site || cx.topology.link(l).to == site;
            self.tired_links.retain(|&l, _| !touches(l));
            self.tired_sites.remove(&site);
        }
        for d in &mut self.destinations {
            if d.site == site || matches!(d.away, Some((_, Away::NoPath(_)))) {
                d.retry_at = None;
            }
            if d.site == site && restarted {
                d.known = false;
                d.found = None;
                d.finishing = None;
            }
        }
        if !restarted {
            return;
        }
        if site == self.request.source {
            self.hashing = None;
        }
        let again = matches!(&self.phase, Phase::Inquiring { waiting, .. } if waiting.contains(&site));
        if again {
            self.inquire(cx, site);
        }
        if self.running().is_some_and(|r| r.needed.contains(&site)) {
            let reason = format!("site {} was restarted", cx.name(site));
            self.stop(cx, reason, Duration::ZERO);
        }
    }

    pub(super) fn handle_site_down(&mut self, cx: &mut Context<'_>, site: SiteId) {
        for ((s, _), sent) in &mut self.debts {
            if *s == site {
                *sent = None;
            }
        }
        if self.outcome.is_some() {
            return;
        }
        if let Some(d) = self.target_mut(site) {
            d.known = false;
            d.found = None;
            d.finishing = None;
        }
        if site == self.request.source {
            self.hashing = None;
        }
        if let Phase::Inquiring { waiting, .. } = &mut self.phase {
            waiting.remove(&site);
            if site == self.request.source {
                self.phase = Phase::Idle;
            }
        }
        if self.running().is_some_and(|r| r.needed.contains(&site)) {
            let reason = format!("site {} is gone", cx.name(site));
            self.stop(cx, reason, Duration::ZERO);
        }
    }

    pub(super) fn handle_report(&mut self, cx: &mut Context<'_>, site: SiteId, report: Report) {
        let run = report.run();
        if self.outcome.is_some() {
            // A site that missed the removal keeps reporting: tell it again.
            if matches!(report, Report::Progress { .. }) && run.attempt.0 <= self.attempts {
                self.owe(site, Debt::Uninstall(run));
            }
            return;
        }
        match report {
            Report::Inventory { length, have, hash, .. } => {
                self.handle_inventory(cx, site, run, length, &have, hash)
            }
            Report::Ready { .. } => {
                if let Phase::Installing { attempt, waiting, .. } = &mut self.phase
                    && attempt.run == run
                {
                    waiting.remove(&site);
                    if let Some(d) = self.target_mut(site) {
                        d.strikes = 0;
                    }
                }
            }
            Report::Progress { verified_bytes, sink_stalled, flows, .. } => {
                let now = cx.now;
                let current = self.running().is_some_and(|r| r.run == run);
                if !current {
                    // Settling keeps no attempt: what still talks has missed the removal.
                    if run.attempt.0 < self.attempts || self.running().is_none() {
                        self.owe(site, Debt::Uninstall(run));
                    }
                    return;
                }
                for name in flows.iter().filter_map(|f| f.congestion_control.as_ref()) {
                    if name.len() < CONGESTION_CONTROL_BYTES
                        && self.congestion_controls.len() < CONGESTION_CONTROLS_MAX
                    {
                        self.congestion_controls.insert(name.clone());
                    }
                }
                let Some(r) = self.running_mut() else { return };
                let own = |f: FlowId| {
                    r.plan.flows.get(f.index()).is_some_and(|flow| cx.topology.link(flow.link).from == site)
                };
                for f in flows
                    .iter()
                    .filter(|f| own(f.flow))
                    .map(|f| (f.flow, f.sent_bytes, f.blocked))
                    .collect::<Vec<_>>()
                {
                    let entry = r.flows.entry(f.0).or_insert((0, 0.0));
                    // What fills counts where it arrives: it must not hide that nothing else moves.
                    if f.1 > entry.0 && !r.plan.fills(&r.plan.flows[f.0.index()]) {
                        r.active_at = now;
                    }
                    *entry = (f.1, f.2);
                }
                if let Some(sink) = r.sinks.get_mut(&site)
                    && !sink.done
                {
                    if verified_bytes > sink.verified_bytes {
                        r.active_at = now;
                    }
                    sink.stalled = sink_stalled;
                    sink.sample(now, verified_bytes);
                }
                self.show_progress(cx);
                self.look_for_slow(cx);
            }
            Report::SourceDone { hash, .. } => {
                if site != self.request.source {
                    return;
                }
                let current = self.running_mut().filter(|r| r.run == run);
                if let Some(r) = current {
                    r.source_done = true;
                    r.active_at = cx.now;
                    if let Some(hash) = hash {
                        self.learn_hash(cx, hash);
                    }
                }
            }
            Report::Hashed { hash, .. } => {
                if site == self.request.source && self.hashing.is_some_and(|p| p.run == run) {
                    self.hashing = None;
                    self.hash_strikes = 0;
                    self.learn_hash(cx, hash);
                }
            }
            Report::SinkDone { have, .. } => self.handle_sink_done(cx, site, run, &have),
            Report::Corrupt { group, generation, .. } => {
                self.handle_corrupt(cx, site, run, group, generation)
            }
            Report::Audit { group, generation, digests, .. } => {
                if let Some(r) = self.running_mut().filter(|r| r.run == run)
                    && let Some(a) =
                        r.audit.as_mut().filter(|a| a.group == group && a.generation == generation)
                    && a.waiting.remove(&site)
                {
                    // At most three sides of each flow are worth keeping.
                    let limit = r.plan.flows.len() * 3;
                    a.digests.insert(site, digests.into_iter().take(limit).collect());
                }
            }
            Report::Completed { .. } => {
                if let Some(d) = self.target_mut(site)
                    && (d.finishing.is_some_and(|p| p.run == run) || d.told_ahead == Some(run))
                {
                    self.decide(cx, site, Verdict::Done);
                    if let Some(sink) = self.running_mut().and_then(|r| r.sinks.get_mut(&site)) {
                        sink.done = true;
                    }
                }
            }
            Report::HopFailed { flow, peer, reason, .. } => {
                self.handle_hop_failed(cx, site, run, flow, peer, &reason)
            }
            Report::Failed { kind, reason, .. } => self.handle_failed(cx, site, run, kind, &reason),
        }
    }

    fn handle_inventory(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        run: Run,
        length: Option<u64>,
        have: &[ByteRange],
        hash: Option<FileHash>,
    ) {
        let source = self.request.source;
        match &mut self.phase {
            Phase::Inquiring { run: asked, waiting, answered, .. } if *asked == run => {
                if !waiting.remove(&site) {
                    return;
                }
                answered.insert(site);
            }
            _ => return,
        }
        if site == source {
            let Some(length) = length else {
                let reason = format!(
                    "site {} did not say the length of {}",
                    cx.name(source),
                    self.request.source_path
                );
                self.decide_all(cx, &Verdict::Failed { reason });
                return;
            };
            if self.length.is_some_and(|l| l != length) {
                let reason = format!(
                    "{} at {} changed during the transfer: send it again",
                    self.request.source_path,
                    cx.name(source)
                );
                self.decide_all(cx, &Verdict::Failed { reason });
                return;
            }
            if self.length.is_none() {
                self.length = Some(length);
                self.changed(cx);
            }
            if let Some(hash) = hash {
                self.learn_hash(cx, hash);
            } else if length == 0 {
                self.learn_hash(cx, FileHash(*blake3::hash(b"").as_bytes()));
            }
        } else if let Some(d) = self.destinations.iter_mut().find(|d| d.site == site && d.open()) {
            // The source's length may not be known yet; it cuts the ranges when it is.
            d.set_have(have, self.length.unwrap_or(u64::MAX), cx.config.ranges_max);
            d.found = length.zip(hash);
        }
    }

    fn learn_hash(&mut self, cx: &mut Context<'_>, hash: FileHash) {
        match self.hash {
            None => {
                self.hash = Some(hash);
                self.changed(cx);
            }
            Some(old) if old != hash => {
                let reason = format!(
                    "{} at {} changed during the transfer: send it again",
                    self.request.source_path,
                    cx.name(self.request.source)
                );
                self.decide_all(cx, &Verdict::Failed { reason });
            }
            Some(_) => {}
        }
    }

    fn handle_sink_done(&mut self, cx: &mut Context<'_>, site: SiteId, run: Run, have: &[ByteRange]) {
        let Some(length) = self.length else { return };
        let current = self.running().is_some_and(|r| r.run == run && r.sinks.contains_key(&site));
        let ranges_max = cx.config.ranges_max;
        let Some(d) = self.destinations.iter_mut().find(|d| d.site == site && d.open()) else { return };
        let finishing = d.finishing.is_some_and(|p| p.run == run);
        if !current && !finishing {
            return;
        }
        d.set_have(have, length, ranges_max);
        let full = d.full(Some(length));
        if finishing && !full {
            d.finishing = None;
            d.told_ahead = None;
            d.integrity += 1;
            let (integrity, missing) = (d.integrity, length - d.shown_bytes);
            let name = cx.name(site).to_owned();
            if integrity >= cx.config.integrity_max || self.request.on_corrupt == CorruptPolicy::Refuse {
                let reason = format!(
                    "{missing} bytes of the file at {name} did not match its hash, {integrity} times"
                );
                self.decide(cx, site, Verdict::Integrity { reason });
            } else {
                self.last_trouble =
                    Some(format!("{missing} bytes of the file at {name} did not match its hash"));
            }
            self.changed(cx);
            return;
        }
        let integrity_max = cx.config.integrity_max;
        let now = cx.now;
        let Some(sink) = self.running_mut().and_then(|r| {
            r.active_at = now;
            r.sinks.get_mut(&site)
        }) else {
            return;
        };
        if std::mem::replace(&mut sink.done, true) || full {
            return;
        }
        if sink.corrupt
            && let Some(d) = self.target_mut(site)
        {
            d.integrity += 1;
            if d.integrity >= integrity_max {
                let reason =
                    format!("data kept arriving wrong at {} in {} attempts", cx.name(site), d.integrity);
                self.decide(cx, site, Verdict::Integrity { reason });
            }
            self.changed(cx);
        }
    }

    fn handle_corrupt(&mut self, cx: &mut Context<'_>, site: SiteId, run: Run, group: u16, generation: u64) {
        let source = self.request.source;
        let refuse = self.request.on_corrupt == CorruptPolicy::Refuse;
        let (now, audits_max, audit_timeout) = (cx.now, cx.config.audits_max, cx.config.audit_timeout);
        let Some(r) = self.running_mut().filter(|r| r.run == run && r.sinks.contains_key(&site)) else {
            return;
        };
        if usize::from(group) >= r.plan.groups.len() {
            return;
        }
        r.corrupt = r.corrupt.saturating_add(1);
        r.sinks.get_mut(&site).expect("the filter above found it").corrupt = true;
        let mut ask = None;
        if r.audit.is_none() && r.audits < audits_max {
            r.audits += 1;
            let routed = r.plan.groups[usize::from(group)].mode == Mode::Routed;
            let vectors = if routed { Vec::new() } else { audit::vectors(&r.plan, group) };
            r.audit = Some(Audit {
                group,
                generation,
                complainant: site,
                waiting: r.participants.clone(),
                digests: BTreeMap::new(),
                deadline: now + audit_timeout,
            });
            ask = Some((r.participants.clone(), vectors));
        }
        if let Some((participants, vectors)) = ask {
            for p in participants {
                let vectors = if p == source { vectors.clone() } else { Vec::new() };
                cx.command(p, Command::Audit { run, group, generation, vectors });
            }
        }
        self.corrupt += 1;
        self.event(cx, EventKind::Corrupt { site, group, generation });
        if refuse {
            let reason =
                format!("generation {generation} of group {group} arrived wrong at {}", cx.name(site));
            self.decide(cx, site, Verdict::Integrity { reason: reason.clone() });
            self.stop(cx, reason, Duration::ZERO);
        } else {
            self.leave_suspects(cx);
        }
    }

    fn handle_hop_failed(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        run: Run,
        flow: FlowId,
        peer: SiteId,
        reason: &str,
    ) {
        // Only the first report of an attempt says which link failed. Those that follow may be its echo: sites take their
        // flows down at different moments, and a site that has done so looks like a broken hop to its neighbours.
        if self.running().is_none_or(|r| r.run != run) {
            return;
        }
        let failed = self.plan().and_then(|p| p.flows.get(flow.index()).filter(|f| !p.fills(f)));
        let Some(link) = failed.map(|f| f.link) else { return };
        let (from, to) = (cx.topology.link(link).from, cx.topology.link(link).to);
        if (site, peer) != (from, to) && (site, peer) != (to, from) {
            return;
        }
        let settle = cx.config.settle;
        let tired = self.tired_links.entry(link).or_insert(Tired::new(cx.now, self.id));
        tired.tire(cx.now + settle, run, cx.config);
        let line = format!(
            "the hop {} to {} failed, says {}: {}",
            cx.name(from),
            cx.name(to),
            cx.name(site),
            one_line(reason)
        );
        self.stop(cx, line, settle);
    }

    fn handle_failed(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        run: Run,
        kind: FailureKind,
        reason: &str,
    ) {
        let inquired = matches!(&self.phase, Phase::Inquiring { run: r, .. } if *r == run);
        let installed = self.running().is_some_and(|r| r.run == run && r.participants.contains(&site));
        let hashing = site == self.request.source && self.hashing.is_some_and(|p| p.run == run);
        let is_target = self.destinations.iter().any(|d| d.site == site && d.open());
        let finishing =
            self.destinations.iter().any(|d| d.site == site && d.finishing.is_some_and(|p| p.run == run));
        if !(inquired || installed || hashing || finishing) {
            return;
        }
        let line = format!("{}: {}", cx.name(site), one_line(reason));
        if installed && kind == FailureKind::Refused && self.running().is_some_and(Running::is_filled) {
            // Most likely for the buffers of the flows that fill. Without a site that only passes those on, nothing is lost.
            self.unfilled = true;
            if self.running().is_some_and(|r| r.needed.contains(&site)) {
                self.stop(cx, format!("{line} (the next plan fills nothing)"), Duration::ZERO);
            }
            return;
        }
        if site == self.request.source {
            self.decide_all(cx, &Verdict::Failed { reason: line });
        } else if is_target {
            if let Phase::Inquiring { waiting, .. } = &mut self.phase {
                waiting.remove(&site);
            }
            self.decide(cx, site, Verdict::Failed { reason: line.clone() });
            if installed && !(finishing && self.running().is_some_and(Running::ended)) {
                self.stop(cx, line, Duration::ZERO);
            }
        } else if installed {
            // A relay (or a destination that is over and relays) that cannot: never ask it again in this transfer.
            debug_assert!(matches!(
                kind,
                FailureKind::Refused | FailureKind::Unreadable | FailureKind::Unwritable
            ));
            self.suspects.insert(site);
            self.stop(cx, line, Duration::ZERO);
        }
    }

    fn show_progress(&mut self, cx: &mut Context<'_>) {
        if self.last_progress_event.is_some_and(|t| cx.now.saturating_since(t) < PROGRESS_EVERY) {
            return;
        }
        self.last_progress_event = Some(cx.now);
        let destinations = self
            .destinations
            .iter()
            .map(|d| DestinationProgress {
                site: d.site,
                verified_bytes: self.shown(d),
                rate_bps: self.rate_bps(d.site, cx.now),
            })
            .collect();
        self.event(cx, EventKind::Progress { length_bytes: self.length.unwrap_or(0), destinations });
    }

    /// Leaves a destination for later that keeps all the others under half of the planned rate.
    fn look_for_slow(&mut self, cx: &mut Context<'_>) {
        let (now, hold, share, blocked_min) =
            (cx.now, cx.config.slow_hold, cx.config.slow_share, cx.config.slow_blocked);
        let limit = self.request.bandwidth_limit;
        let levels: BTreeMap<SiteId, u8> = self.destinations.iter().map(|d| (d.site, d.level)).collect();
        let Phase::Running(r) = &mut self.phase else { return };
        let open: Vec<SiteId> = r.sinks.iter().filter(|(_, s)| !s.done).map(|(site, _)| *site).collect();
        if open.len() < 2 {
            return;
        }
        let wanted = limit.map_or(r.plan.rate, |l| l.min(r.plan.rate)).as_bps() as f64 * share;
        let blocked: BTreeMap<SiteId, bool> = open
            .iter()
            .map(|&site| {
                let inputs = r
                    .plan
                    .groups
                    .iter()
                    // What fills is blocked or idle whatever the destination does.
                    .filter(|g| g.fills.is_none())
                    .flat_map(|g| &g.sinks)
                    .filter(|s| s.site == site)
                    .flat_map(|s| &s.inputs);
                let mut any = false;
                let all = inputs
                    .map(|f| r.flows.get(f).is_some_and(|(_, b)| *b >= blocked_min))
                    .inspect(|_| any = true)
                    .all(|b| b);
                (site, all && any)
            })
            .collect();
        let everyone_blocked = blocked.values().all(|b| *b);
        let rates: BTreeMap<SiteId, u64> =
            open.iter().map(|&site| (site, r.sinks[&site].rate_bps(now))).collect();
        let mut worst: Option<(SiteId, bool, u64)> = None;
        for &site in &open {
            let rate = rates[&site];
            let held = rates.iter().filter(|(s, _)| **s != site).all(|(_, rate)| (*rate as f64) < wanted);
            let sink = r.sinks.get_mut(&site).expect("open is taken from sinks");
            let disk = sink.stalled >= blocked_min;
            if !held || !(disk || (blocked[&site] && !everyone_blocked)) {
                sink.slow_since = None;
                continue;
            }
            let since = *sink.slow_since.get_or_insert(now);
            // The disk is the surer sign; of equals the slower one.
            if now.saturating_since(since) >= hold
                && levels.get(&site).is_some_and(|l| *l < LEVEL_MAX)
                && worst.is_none_or(|(_, d, r)| (disk, std::cmp::Reverse(rate)) > (d, std::cmp::Reverse(r)))
            {
                worst = Some((site, disk, rate));
            }
        }
        let Some((slow, disk, rate)) = worst else { return };
        let (run, cause) = (r.run, if disk { "its disk" } else { "the way into it" });
        let reason = format!(
            "{cause} takes {} while {} was planned: the others go on without it, then it gets the rest",
            BitRate::bps(rate),
            r.plan.rate
        );
        if let Some(d) = self.target_mut(slow) {
            d.level += 1;
        }
        if !disk {
            let tired = self.tired_sites.entry(slow).or_insert(Tired::new(now, self.id));
            tired.tire(now, run, cx.config);
        }
        self.event(cx, EventKind::Postponed { site: slow, reason: reason.clone() });
        let name = cx.name(slow).to_owned();
        self.stop(cx, format!("{name} is slow: {reason}"), Duration::ZERO);
    }
}

impl Tired {
    fn new(now: Instant, transfer: TransferId) -> Self {
        Self { strikes: 0, until: now, run: Run { transfer, attempt: Attempt(0) } }
    }
    /// One more failure, counted once per run.
    fn tire(&mut self, from: Instant, run: Run, config: &CoordinatorConfig) {
        if self.run == run {
            return;
        }
        self.run = run;
        self.strikes += 1;
        self.until = from + doubled(config.avoid_min, self.strikes - 1, config.avoid_max);
    }
}

fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    let ps = u128::from(first.as_ps()) << times.min(40);
    if ps >= u128::from(most.as_ps()) { most } else { Duration::from_ps(ps as u64) }
}

/// Decisions.
impl Transfer {
    /// Does everything that what is known now calls for.
    pub(super) fn step(&mut self, cx: &mut Context<'_>) {
        // Each round ends a phase or gives a verdict, and no input makes more than a few of either due.
        for _ in 0..256 {
            if self.outcome.is_none() {
                self.watch_sites(cx);
                self.finish_files(cx);
            }
            if self.outcome.is_some() || !self.step_phase(cx) {
                break;
            }
        }
        self.settle_debts(cx);
    }

    /// Notices who is away for too long, and answers that did not come.
    fn watch_sites(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let site_wait = cx.config.site_wait;
        if cx.up(self.request.source) {
            self.source_away = None;
        } else {
            let since = *self.source_away.get_or_insert(now);
            if now >= since + site_wait {
                let reason = format!("the source {} was away for {site_wait}", cx.name(self.request.source));
                self.decide_all(cx, &Verdict::Failed { reason });
            }
        }
        if self.hashing.is_some_and(|p| now >= p.deadline) {
            self.hashing = None;
            self.hash_strikes += 1;
            if self.hash_strikes >= STRIKES_MAX {
                let reason =
                    format!("the source {} did not say the file's hash", cx.name(self.request.source));
                self.decide_all(cx, &Verdict::Failed { reason });
            }
        }
        let mut verdicts = Vec::new();
        for d in self.destinations.iter_mut().filter(|d| d.open()) {
            if d.retry_at.is_some_and(|t| now >= t) {
                d.retry_at = None;
            }
            if d.finishing.is_some_and(|p| now >= p.deadline) {
                d.finishing = None;
                d.told_ahead = None;
                d.known = false;
                d.finish_strikes += 1;
                if d.finish_strikes >= STRIKES_MAX {
                    let reason = format!("{} did not finish {} in time", cx.name(d.site), d.path);
                    verdicts.push((d.site, Verdict::Unreachable { reason }));
                    continue;
                }
            }
            match (&d.away, cx.up(d.site)) {
                (Some((_, Away::Down)), true) => d.away = None,
                (None | Some((_, Away::NoPath(_))), false) => {
                    let since = d.away.as_ref().map_or(now, |(t, _)| *t);
                    d.away = Some((since, Away::Down));
                }
                _ => {}
            }
            if let Some((since, away)) = &d.away
                && now >= *since + site_wait
            {
                let reason = match away {
                    Away::Down => format!("{} was away for {site_wait}", cx.name(d.site)),
                    Away::NoPath(reason) => {
                        format!("no way to {} for {site_wait}: {reason}", cx.name(d.site))
                    }
                };
                verdicts.push((d.site, Verdict::Unreachable { reason }));
            }
        }
        for (site, verdict) in verdicts {
            self.decide(cx, site, verdict);
        }
    }

    /// Has files checked and named when they are complete, and the source hashed where nobody knows the hash.
    fn finish_files(&mut self, cx: &mut Context<'_>) {
        let Some(length) = self.length else { return };
        if matches!(self.phase, Phase::Inquiring { .. }) {
            return;
        }
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        if let Some(hash) = self.hash {
            let found: Vec<_> = self
                .destinations
                .iter_mut()
                .filter(|d| d.open())
                .filter_map(|d| d.found.take().map(|(_, found)| (d.site, found == hash)))
                .collect();
            for (site, same) in found {
                if same {
                    self.decide(cx, site, Verdict::Done);
                }
            }
            let deadline = cx.now + cx.config.finish_timeout + cx.work_time(length);
            let arriving: BTreeSet<SiteId> = self.running().map_or_else(BTreeSet::new, |r| {
                r.sinks.iter().filter(|(_, s)| !s.done).map(|(site, _)| *site).collect()
            });
            for d in self.destinations.iter_mut().filter(|d| d.open() && d.finishing.is_none()) {
                let full = d.full(Some(length));
                if !cx.up(d.site) || !(full || arriving.contains(&d.site)) {
                    continue;
                }
                if full {
                    d.finishing = Some(Pending { run, deadline });
                }
                if d.told_ahead != Some(run) {
                    d.told_ahead = Some(run);
                    self.informed.insert(d.site);
                    let command = Command::Finish { run, path: d.path.clone(), length, hash };
                    cx.out.commands.push_back((d.site, command));
                }
            }
            return;
        }
        // A destination that is filled may have everything long before the source has sent the others theirs.
        let comes_anyway = self.running().is_some_and(|r| !r.source_done && !r.is_filled());
        let wanted = self.destinations.iter().any(|d| {
            d.open() && cx.up(d.site) && (d.found.is_some() || (d.full(Some(length)) && !comes_anyway))
        });
        if wanted && self.hashing.is_none() && cx.up(self.request.source) {
            self.hashing =
                Some(Pending { run, deadline: cx.now + cx.config.finish_timeout + cx.work_time(length) });
            cx.command(self.request.source, Command::Hash { run, path: self.request.source_path.clone() });
        }
    }

    /// One move of the phase; false if there is none to make.
    fn step_phase(&mut self, cx: &mut Context<'_>) -> bool {
        if self.destinations.iter().all(|d| !d.open()) {
            self.close(cx);
            return false;
        }
        let now = cx.now;
        match &mut self.phase {
            // The coordinator plans.
            Phase::Over | Phase::Planning { .. } => false,
            Phase::Idle => self.begin(cx),
            Phase::Settling { until, early } => {
                let there = match early {
                    Early::Never => false,
                    Early::Ends => {
                        cx.up(self.request.source)
                            && self.destinations.iter().all(|d| !d.open() || cx.up(d.site))
                    }
                    Early::Everybody => {
                        cx.topology.site_ids().all(|s| cx.up(s) || self.request.avoid_sites.contains(&s))
                    }
                };
                if now < *until && !there {
                    return false;
                }
                self.phase = Phase::Idle;
                true
            }
            Phase::Inquiring { begun, waiting, .. } => {
                let begun = *begun;
                if !waiting.is_empty() && now < self.inquiry_deadline(begun, cx.config) {
                    return false;
                }
                self.end_inquiry(cx);
                true
            }
            Phase::Installing { waiting, deadline, .. } => {
                if !waiting.is_empty() {
                    if now < *deadline {
                        return false;
                    }
                    let silent = waiting.clone();
                    self.blame_silent(cx, &silent);
                    return true;
                }
                let Phase::Installing { mut attempt, .. } = std::mem::replace(&mut self.phase, Phase::Idle)
                else {
                    unreachable!("the arm matched Installing");
                };
                attempt.begun = now;
                attempt.active_at = now;
                self.phase = Phase::Running(attempt);
                self.event(cx, EventKind::Started);
                true
            }
            Phase::Running(r) => {
                if let Some(a) = r.audit.take_if(|a| a.waiting.is_empty() || now >= a.deadline) {
                    let named = audit::suspects(&r.plan, cx.topology, a.group, a.complainant, &a.digests);
                    self.handle_suspects(cx, named);
                    return true;
                }
                if r.ended() {
                    return self.end_attempt(cx);
                }
                if now >= r.active_at + cx.config.stall_timeout {
                    let reason = format!("nothing moved for {}", cx.config.stall_timeout);
                    self.stop(cx, reason, Duration::ZERO);
                    return true;
                }
                false
            }
        }
    }

    fn handle_suspects(&mut self, cx: &mut Context<'_>, named: Vec<SiteId>) {
        for site in named {
            if self.suspects.insert(site) {
                self.event(cx, EventKind::Suspected { site });
                self.changed(cx);
            }
        }
        self.leave_suspects(cx);
    }

    /// Plans anew where a named relay spoils more than is worth waiting for.
    fn leave_suspects(&mut self, cx: &mut Context<'_>) {
        let corrupt_max = cx.config.corrupt_max;
        // Only a site that relays here can be planned around.
        let relays = |r: &Running| {
            r.plan.flows.iter().any(|f| {
                let from = cx.topology.link(f.link).from;
                from != r.plan.source && self.suspects.contains(&from)
            })
        };
        if self.running().is_some_and(|r| r.corrupt >= corrupt_max && relays(r)) {
            let names: Vec<_> = self.suspects.iter().map(|s| cx.name(*s)).collect();
            let reason = format!("data arrives wrong because of {}", names.join(", "));
            self.stop(cx, reason, Duration::ZERO);
        }
    }

    /// Sites that could be served now: open, up, not waiting for anything.
    fn eligible(&self, cx: &Context<'_>) -> Vec<usize> {
        let ready = |d: &Target| {
            d.open()
                && cx.up(d.site)
                && d.retry_at.is_none()
                && d.finishing.is_none()
                && d.found.is_none()
                && !d.full(self.length)
        };
        (0..self.destinations.len()).filter(|&i| ready(&self.destinations[i])).collect()
    }

    fn inquire(&mut self, cx: &mut Context<'_>, site: SiteId) {
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        let is_source = site == self.request.source;
        let path = if is_source {
            self.request.source_path.clone()
        } else {
            self.destinations.iter().find(|d| d.site == site).map(|d| d.path.clone()).unwrap_or_default()
        };
        self.informed.insert(site);
        cx.command(site, Command::Inquire { run, is_source, path });
    }

    fn begin(&mut self, cx: &mut Context<'_>) -> bool {
        let eligible = self.eligible(cx);
        if !cx.up(self.request.source) || eligible.is_empty() {
            let reason = if cx.up(self.request.source) {
                let open = self.destinations.iter().filter(|d| d.open());
                let names: Vec<_> = open.map(|d| cx.name(d.site)).collect();
                format!("waiting for {}", names.join(", "))
            } else {
                format!("waiting for the source {}", cx.name(self.request.source))
            };
            if self.last_waiting.as_ref() != Some(&reason) {
                self.last_waiting = Some(reason.clone());
                self.event(cx, EventKind::Waiting { reason });
            }
            return false;
        }
        self.last_waiting = None;
        if self.idle_attempts >= cx.config.idle_attempts_max || self.attempts >= cx.config.attempts_max {
            let trouble = self.last_trouble.clone().unwrap_or_else(|| "no reason is known".into());
            let reason =
                format!("{} attempts in a row moved nothing; the last: {trouble}", self.idle_attempts);
            let level = eligible.iter().map(|&i| self.destinations[i].level).min();
            let given_up: Vec<_> = eligible
                .iter()
                .map(|&i| &self.destinations[i])
                .filter(|d| Some(d.level) == level)
                .map(|d| (d.site, d.integrity))
                .collect();
            for (site, integrity) in given_up {
                let reason = reason.clone();
                self.decide(
                    cx,
                    site,
                    if integrity > 0 { Verdict::Integrity { reason } } else { Verdict::Failed { reason } },
                );
            }
            if self.attempts < cx.config.attempts_max {
                self.idle_attempts = 0;
            }
            return true;
        }
        self.attempts += 1;
        self.changed(cx);
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        let mut waiting: BTreeSet<SiteId> = eligible.iter().map(|&i| self.destinations[i].site).collect();
        waiting.insert(self.request.source);
        self.event(cx, EventKind::Inquiring);
        for &site in &waiting {
            self.inquire(cx, site);
        }
        self.phase = Phase::Inquiring { run, begun: cx.now, waiting, answered: BTreeSet::new() };
        true
    }

    /// All have answered, or will not: plans for those who did.
    fn end_inquiry(&mut self, cx: &mut Context<'_>) {
        let Phase::Inquiring { begun, waiting, answered, .. } =
            std::mem::replace(&mut self.phase, Phase::Idle)
        else {
            unreachable!("called only while inquiring");
        };
        self.blame_destinations(cx, &waiting, "did not say what it has");
        if !answered.contains(&self.request.source) {
            let reason = format!("the source {} did not answer", cx.name(self.request.source));
            self.pause(cx, reason, Duration::ZERO);
            return;
        }
        let Some(length) = self.length else { return };
        for d in self.destinations.iter_mut().filter(|d| answered.contains(&d.site)) {
            // What was reported before the length was known.
            d.found = d.found.filter(|(l, _)| *l == length);
            d.have = ranges::normal(&d.have, length);
            d.shown_bytes = ranges::bytes(&d.have);
        }
        let total = self.destinations.iter().map(|d| self.shown(d)).sum();
        if self.total_before.is_some_and(|before| total > before) {
            self.idle_attempts = 0;
        }
        self.total_before = Some(total);
        let eligible: Vec<usize> = self
            .eligible(cx)
            .into_iter()
            .filter(|&i| answered.contains(&self.destinations[i].site))
            .collect();
        let level = eligible.iter().map(|&i| self.destinations[i].level).min();
        let targets: Vec<SiteId> = eligible
            .iter()
            .map(|&i| &self.destinations[i])
            .filter(|d| Some(d.level) == level)
            .map(|d| d.site)
            .collect();
        if targets.is_empty() {
            return;
        }
        match &cx.config.joint {
            None => self.plan_and_install(cx, targets, length),
            Some(joint) => {
                let fresh = self.attempts == 1;
                let (first, until) = (fresh.then_some(begun + joint.gather), cx.now + joint.gather_max);
                self.phase = Phase::Planning { targets, length, first, until, fresh };
            }
        }
    }

    pub(super) fn inquires(&self) -> bool {
        matches!(self.phase, Phase::Inquiring { .. })
    }

    /// A first attempt waits for transfers that may be submitted, then, like a later one, only while some `inquire`.
    pub(super) fn plan_is_due(&mut self, now: Instant, inquiring: bool) -> bool {
        let Phase::Planning { first, until, .. } = &mut self.phase else { return false };
        first.take_if(|t| now >= *t);
        now >= *until || first.is_none() && !inquiring
    }

    /// What to plan for. Begins anew if what was known has changed since the inquiry.
    pub(super) fn waiting_demand(&mut self, cx: &mut Context<'_>) -> Option<Demand> {
        let Phase::Planning { targets, fresh, .. } = &self.phase else { return None };
        let (fresh, asked) = (*fresh, targets.clone());
        let there: Vec<SiteId> = self
            .eligible(cx)
            .into_iter()
            .map(|i| &self.destinations[i])
            .filter(|d| d.known)
            .map(|d| d.site)
            .collect();
        if !cx.up(self.request.source) || !asked.iter().all(|t| there.contains(t)) {
            self.phase = Phase::Idle;
            return None;
        }
        Some(self.demand(cx, asked, fresh))
    }

    fn demand(&self, cx: &Context<'_>, mut targets: Vec<SiteId>, fresh: bool) -> Demand {
        targets.sort_unstable();
        let (avoid_sites, avoid_links) = self.avoided(cx, &targets);
        let (id, source, scheme) = (self.id, self.request.source, self.request.scheme);
        let fill = self.request.fill && !self.unfilled;
        Demand { id, source, targets, avoid_sites, avoid_links, scheme, fill, fresh }
    }

    /// What it does now, if it still has something to move.
    pub(super) fn busy(&self, cx: &Context<'_>) -> Option<Busy> {
        let r = self.running()?;
        let open = r.sinks.iter().filter(|(_, s)| !s.done);
        let left = open.clone().map(|(_, s)| s.missing_bytes - s.verified_bytes).max()?;
        let targets = open.map(|(site, _)| *site).collect();
        let demand = self.demand(cx, targets, false);
        let (ceiling, left) = (r.ceiling, ByteCount::new(left));
        Some(Busy { demand, plan: r.plan.clone(), ceiling, left, moved_at: self.moved_at })
    }

    /// Installs the plan that was made together with those of `with`; without one, plans alone.
    pub(super) fn install_waiting(&mut self, cx: &mut Context<'_>, plan: Option<Plan>, with: &[TransferId]) {
        let (targets, length) = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Planning { targets, length, .. } => (targets, length),
            // It was over meanwhile.
            other => {
                self.phase = other;
                return;
            }
        };
        let mut sorted = targets.clone();
        sorted.sort_unstable();
        let (avoid_sites, avoid_links) = self.avoided(cx, &sorted);
        match plan {
            Some(plan)
                if usable(&plan, cx, self.request.source, &sorted, &avoid_sites, &avoid_links).is_ok() =>
            {
                for d in self.destinations.iter_mut().filter(|d| sorted.contains(&d.site)) {
                    d.away = None;
                }
                self.install(cx, plan, length, with);
            }
            _ => self.plan_and_install(cx, targets, length),
        }
    }

    /// Waits until others that run are stopped and can be planned with it.
    pub(super) fn wait_for_others(&mut self, new: Instant) {
        if let Phase::Planning { first, until, fresh, .. } = &mut self.phase {
            (*first, *until, *fresh) = (None, new, false);
        }
    }

    /// Stops the attempt, through no fault of anybody, to be planned with others.
    pub(super) fn plan_anew(&mut self, cx: &mut Context<'_>, reason: String) {
        if self.running().is_none() {
            return;
        }
        self.moved_at = Some(cx.now);
        self.remove_attempt(cx);
        self.phase = Phase::Idle;
        self.event(cx, EventKind::Stopped { reason });
        self.changed(cx);
    }

    fn blame_destinations(&mut self, cx: &mut Context<'_>, silent: &BTreeSet<SiteId>, what: &str) {
        let retry_at = cx.now + cx.config.pause_min;
        let mut over = Vec::new();
        for d in self.destinations.iter_mut().filter(|d| d.open() && silent.contains(&d.site)) {
            d.strikes += 1;
            d.retry_at = Some(retry_at);
            if d.strikes >= STRIKES_MAX {
                over.push((d.site, format!("{} {what}, {} times", cx.name(d.site), d.strikes)));
            }
        }
        for (site, reason) in over {
            self.decide(cx, site, Verdict::Unreachable { reason });
        }
    }

    fn blame_silent(&mut self, cx: &mut Context<'_>, silent: &BTreeSet<SiteId>) {
        self.blame_destinations(cx, silent, "did not set up its part");
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        for &site in silent {
            let tired = self.tired_sites.entry(site).or_insert(Tired::new(cx.now, self.id));
            tired.tire(cx.now, run, cx.config);
        }
        let names: Vec<_> = silent.iter().map(|s| cx.name(*s)).collect();
        let reason =
            format!("{} did not set up its part within {}", names.join(", "), cx.config.install_timeout);
        self.stop(cx, reason, Duration::ZERO);
    }

    /// Sites and links that must not be used to serve `targets` now.
    fn avoided(&self, cx: &Context<'_>, targets: &[SiteId]) -> (Vec<SiteId>, Vec<LinkId>) {
        let now = cx.now;
        let end = |s: SiteId| s == self.request.source || targets.contains(&s);
        let no_relay = |s: SiteId| {
            self.suspects.contains(&s)
                || self.request.avoid_sites.contains(&s)
                || self.tired_sites.get(&s).is_some_and(|t| now < t.until)
        };
        let sites = cx.topology.site_ids().filter(|&s| !end(s) && (no_relay(s) || !cx.up(s))).collect();
        let dead = |l: LinkId| {
            let link = cx.topology.link(l);
            self.request.avoid_links.contains(&l)
                || self.tired_links.get(&l).is_some_and(|t| now < t.until)
                || !cx.sites[link.to.index()].addresses.contains_key(&l)
                || !cx.up(link.from)
                || !cx.up(link.to)
                // A destination that must not relay only receives.
                || (link.from != self.request.source && end(link.from) && no_relay(link.from))
        };
        (sites, cx.topology.link_ids().filter(|&l| dead(l)).collect())
    }

    fn ask_planner(&self, cx: &Context<'_>, targets: &[SiteId]) -> Result<Plan, String> {
        let mut targets = targets.to_vec();
        targets.sort_unstable();
        let (avoid_sites, avoid_links) = self.avoided(cx, &targets);
        let plan = cx.planner.plan(&PlanRequest {
            topology: cx.topology,
            source: self.request.source,
            destinations: &targets,
            avoid_sites: &avoid_sites,
            avoid_links: &avoid_links,
            scheme: self.request.scheme,
            fill: self.request.fill && !self.unfilled,
        })?;
        usable(&plan, cx, self.request.source, &targets, &avoid_sites, &avoid_links)
            .map_err(|e| format!("the planner made an unusable plan: {e}"))?;
        Ok(plan)
    }

    fn plan_and_install(&mut self, cx: &mut Context<'_>, mut targets: Vec<SiteId>, length: u64) {
        let plan = match self.ask_planner(cx, &targets) {
            Ok(plan) => plan,
            Err(joint) => {
                // Serve those who can be served: one unreachable destination must not hold the others up.
                let mut lost = Vec::new();
                targets.retain(|&t| match self.ask_planner(cx, &[t]) {
                    Ok(_) => true,
                    Err(reason) => {
                        lost.push((t, reason));
                        false
                    }
                });
                let soonest = self.tired_links.values().chain(self.tired_sites.values()).map(|t| t.until);
                let retry_at = soonest.filter(|t| *t > cx.now).min().unwrap_or(cx.now + cx.config.avoid_max);
                for (site, reason) in lost {
                    let reason = one_line(&reason);
                    self.last_trouble = Some(reason.clone());
                    if let Some(d) = self.target_mut(site) {
                        d.retry_at = Some(retry_at);
                        let since = d.away.as_ref().map_or(cx.now, |(t, _)| *t);
                        d.away = Some((since, Away::NoPath(reason)));
                    }
                }
                if targets.is_empty() {
                    return;
                }
                match self.ask_planner(cx, &targets) {
                    Ok(plan) => plan,
                    Err(_) => {
                        // Each alone can be served, all together cannot: one after the other.
                        targets.truncate(1);
                        match self.ask_planner(cx, &targets) {
                            Ok(plan) => plan,
                            Err(_) => {
                                self.pause(cx, one_line(&joint), Duration::ZERO);
                                return;
                            }
                        }
                    }
                }
            }
        };
        for d in self.destinations.iter_mut().filter(|d| targets.contains(&d.site)) {
            d.away = None;
        }
        self.install(cx, plan, length, &[]);
    }

    fn install(&mut self, cx: &mut Context<'_>, plan: Plan, length: u64, with: &[TransferId]) {
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        let ceiling = ceiling(&plan, !with.is_empty());
        let programs = self.programs(cx, &plan, run, length, ceiling);
        self.planned_with = with.to_vec();
        let participants: BTreeSet<SiteId> = programs.keys().copied().collect();
        let needed: BTreeSet<SiteId> =
            programs.iter().filter(|(_, p)| does_bulk(p)).map(|(s, _)| *s).collect();
        let bulk = plan.groups.iter().filter(|g| g.fills.is_none());
        let served: Vec<SiteId> = bulk.flat_map(|g| &g.sinks).map(|s| s.site).collect();
        let sinks = self
            .destinations
            .iter()
            .filter(|d| served.contains(&d.site))
            .map(|d| {
                let base_bytes = ranges::bytes(&d.have);
                let sink = SinkState {
                    base_bytes,
                    missing_bytes: length - base_bytes,
                    verified_bytes: 0,
                    samples: VecDeque::from([(cx.now, 0)]),
                    stalled: 0.0,
                    slow_since: None,
                    done: false,
                    corrupt: false,
                };
                (d.site, sink)
            })
            .collect();
        self.event(
            cx,
            EventKind::Planned {
                scheme: plan.scheme,
                rate: plan.rate,
                bound: plan.bound,
                destinations: served,
                with: with.to_vec(),
            },
        );
        for (site, program) in programs {
            self.informed.insert(site);
            cx.command(site, Command::Install { program: Box::new(program) });
        }
        let attempt = Box::new(Running {
            run,
            plan,
            ceiling,
            participants,
            needed: needed.clone(),
            sinks,
            flows: BTreeMap::new(),
            source_done: false,
            begun: cx.now,
            active_at: cx.now,
            corrupt: 0,
            audits: 0,
            audit: None,
        });
        self.phase =
            Phase::Installing { attempt, waiting: needed, deadline: cx.now + cx.config.install_timeout };
        self.changed(cx);
    }

    fn programs(
        &self,
        cx: &Context<'_>,
        plan: &Plan,
        run: Run,
        length: u64,
        ceiling: Option<BitRate>,
    ) -> BTreeMap<SiteId, SiteProgram> {
        let have =
            |site: SiteId| self.destinations.iter().find(|d| d.site == site).map_or(&[][..], |d| &d.have);
        let groups: Vec<GroupProgram> = plan
            .groups
            .iter()
            .enumerate()
            .map(|(index, g)| {
                // Where a term is delayed, generations mix: at least one of zeros makes all symbols equally long.
                let delayed = plan
                    .flows
                    .iter()
                    .any(|f| usize::from(f.group) == index && f.terms.iter().any(|t| t.delayed));
                // What fills carries the same as the filled group.
                let of = g.fills.map_or(g, |f| &plan.groups[usize::from(f)]);
                let wanted: Vec<ByteRange> =
                    of.sinks.iter().flat_map(|s| ranges::missing(have(s.site), length)).collect();
                let fillers = || plan.groups.iter().filter(|f| f.fills == Some(index as u16));
                let filled = |site: SiteId| fillers().any(|f| f.sinks.iter().any(|s| s.site == site));
                GroupProgram {
                    streams: g.streams,
                    mode: g.mode,
                    work: ranges::normal(&wanted, length),
                    flush: g
                        .sinks
                        .iter()
                        .filter_map(|s| s.decode.as_ref())
                        .map(|d| d.lookahead)
                        .max()
                        .unwrap_or(0)
                        .max(u16::from(delayed)),
                    fills: g.fills,
                    filled: !g.sinks.is_empty() && g.sinks.iter().all(|s| filled(s.site)),
                }
            })
            .collect();
        let sent = ceiling.map(|rate| source_rate(plan, rate));
        let blank = |site: SiteId| SiteProgram {
            run,
            site,
            length,
            symbol_bytes: self.request.symbol_bytes,
            buffer_packets: self.request.buffer_packets,
            groups: groups.clone(),
            source_path: (site == self.request.source).then(|| self.request.source_path.clone()),
            incoming: Vec::new(),
            outgoing: Vec::new(),
            sinks: Vec::new(),
            store_and_forward: plan.store_and_forward,
            bandwidth_limit: self.request.bandwidth_limit.into_iter().chain(sent).min(),
        };
        let mut programs = BTreeMap::from([(self.request.source, blank(self.request.source))]);
        for (index, flow) in plan.flows.iter().enumerate() {
            let (id, link) = (FlowId(index as u32), cx.topology.link(flow.link));
            let mut hop = self.hop(flow.link).clone();
            if plan.fills(flow) {
                hop = HopSettings { stripes: 1, priority: Priority::Fill, ..hop };
            }
            programs.entry(link.to).or_insert_with(|| blank(link.to)).incoming.push(Incoming {
                flow: id,
                group: flow.group,
                from: link.from,
                from_name: cx.name(link.from).to_owned(),
                link: flow.link,
                stripes: hop.stripes,
            });
            let address = cx.sites[link.to.index()].addresses.get(&flow.link);
            programs.entry(link.from).or_insert_with(|| blank(link.from)).outgoing.push(Outgoing {
                flow: id,
                group: flow.group,
                to: link.to,
                to_name: cx.name(link.to).to_owned(),
                link: flow.link,
                address: address.expect("usable() refuses a link without address").clone(),
                terms: flow.terms.clone(),
                hop,
            });
        }
        for (index, group) in plan.groups.iter().enumerate() {
            for sink in &group.sinks {
                let path = self.destinations.iter().find(|d| d.site == sink.site).map(|d| d.path.clone());
                programs.entry(sink.site).or_insert_with(|| blank(sink.site)).sinks.push(SinkProgram {
                    group: index as u16,
                    inputs: sink.inputs.clone(),
                    decode: sink.decode.clone(),
                    path: path.expect("usable() refuses a sink that is no destination"),
                });
            }
        }
        programs
    }

    fn hop(&self, link: LinkId) -> &HopSettings {
        self.request.hop_overrides.iter().find(|h| h.link == link).map_or(&self.request.hop, |h| &h.hop)
    }

    /// The attempt's flows are over: goes on when the last file of it is finished.
    fn end_attempt(&mut self, cx: &mut Context<'_>) -> bool {
        let length = self.length;
        let Some(r) = self.running() else { return false };
        let unfinished = |d: &&Target| r.sinks.contains_key(&d.site) && d.open();
        if self.destinations.iter().filter(unfinished).any(|d| d.full(length)) {
            return false;
        }
        let missing: Vec<_> = self.destinations.iter().filter(unfinished).map(|d| cx.name(d.site)).collect();
        if missing.is_empty() {
            self.remove_attempt(cx);
            self.phase = Phase::Idle;
        } else {
            let what = if r.corrupt > 0 { "data arrived wrong" } else { "data is missing" };
            let reason = format!("{what} at {}", missing.join(", "));
            self.stop(cx, reason, Duration::ZERO);
        }
        true
    }

    /// Has the present attempt's virtual links removed everywhere.
    fn remove_attempt(&mut self, cx: &mut Context<'_>) {
        let shown: Vec<u64> = self.destinations.iter().map(|d| self.shown(d)).collect();
        let attempt = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Installing { attempt, .. } => attempt,
            Phase::Running(attempt) => attempt,
            other => {
                self.phase = other;
                return;
            }
        };
        for (d, shown) in self.destinations.iter_mut().zip(shown) {
            d.shown_bytes = shown;
            if attempt.sinks.get(&d.site).is_some_and(|s| !s.done) {
                d.known = false;
            }
        }
        for &site in &attempt.participants {
            self.owe(site, Debt::Uninstall(attempt.run));
        }
        self.last_plan = Some(attempt.plan);
        self.changed(cx);
    }

    /// Gives the attempt up; the next one begins after `settle` or the pause that idle attempts call for.
    fn stop(&mut self, cx: &mut Context<'_>, reason: String, settle: Duration) {
        self.remove_attempt(cx);
        self.pause(cx, reason, settle);
    }

    fn pause(&mut self, cx: &mut Context<'_>, reason: String, settle: Duration) {
        self.idle_attempts += 1;
        let pause = match self.idle_attempts {
            0 | 1 => Duration::ZERO,
            n => doubled(cx.config.pause_min, n - 2, cx.config.pause_max),
        };
        self.phase = Phase::Settling { until: cx.now + pause.max(settle), early: Early::Never };
        self.last_trouble = Some(reason.clone());
        self.event(cx, EventKind::Stopped { reason });
        self.changed(cx);
    }

    /// Every destination is over.
    fn close(&mut self, cx: &mut Context<'_>) {
        self.remove_attempt(cx);
        let count = |f: fn(&Verdict) -> bool| {
            self.destinations.iter().filter(|d| d.verdict.as_ref().is_some_and(f)).count()
        };
        let done = count(|v| *v == Verdict::Done);
        let outcome = if self.cancelled {
            Outcome::Cancelled
        } else if count(|v| matches!(v, Verdict::Integrity { .. })) > 0 {
            Outcome::Integrity
        } else if done == self.destinations.len() {
            Outcome::Done
        } else if done == 0 {
            Outcome::Failed
        } else {
            Outcome::SomeFailed
        };
        self.hashing = None;
        self.phase = Phase::Over;
        self.outcome = Some(outcome);
        for site in self.informed.clone() {
            self.owe(site, Debt::Forget);
        }
        self.event(cx, EventKind::Finished { outcome });
        self.changed(cx);
    }

    /// Tells sites that are up what they have not been told; a site that was told and stayed up needs no more.
    fn settle_debts(&mut self, cx: &mut Context<'_>) {
        let (now, sweep) = (cx.now, cx.config.sweep);
        let busy: BTreeSet<SiteId> =
            self.destinations.iter().filter(|d| d.finishing.is_some()).map(|d| d.site).collect();
        let mut paid = false;
        let (id, informed) = (self.id, &mut self.informed);
        self.debts.retain(|&(site, debt), sent| match *sent {
            // Not under a site that is just finishing the file.
            None if cx.sites[site.index()].up && !busy.contains(&site) => {
                *sent = Some(now);
                let command = match debt {
                    Debt::Uninstall(run) => Command::Uninstall { run },
                    Debt::Forget => Command::Forget { transfer: id },
                };
                cx.out.commands.push_back((site, command));
                true
            }
            Some(t) if now >= t + sweep => {
                paid = true;
                if debt == Debt::Forget {
                    informed.remove(&site);
                }
                false
            }
            _ => true,
        });
        if paid {
            self.changed(cx);
        }
    }
}

/// What the source of a plan of one group sends, as its pace counts it, while the file goes at `rate`: a piece of a routed
/// group once, one of a coded group as often as its symbols leave.
fn source_rate(plan: &Plan, rate: BitRate) -> BitRate {
    let mut bulk = plan.groups.iter().filter(|g| g.fills.is_none());
    let (Some(group), None) = (bulk.next(), bulk.next()) else { return rate };
    match group.mode {
        Mode::Routed => rate,
        Mode::Coded => {
            let streams = |f: &crate::plan::Flow| {
                f.terms.iter().filter(|t| matches!(t.input, Input::Stream(_))).count() as u64
            };
            BitRate::bps(
                rate.as_bps() * plan.flows.iter().filter(|f| !plan.fills(f)).map(streams).sum::<u64>()
                    / u64::from(group.streams),
            )
        }
    }
}

/// Whether a site does more in an attempt than pass on what fills.
fn does_bulk(p: &SiteProgram) -> bool {
    let groups = p.incoming.iter().map(|i| i.group).chain(p.outgoing.iter().map(|o| o.group));
    let mut groups = groups.chain(p.sinks.iter().map(|s| s.group));
    p.source_path.is_some() || groups.any(|g| p.groups[usize::from(g)].fills.is_none())
}

/// Whether a plan can be turned into programs here and now.
fn usable(
    plan: &Plan,
    cx: &Context<'_>,
    source: SiteId,
    targets: &[SiteId],
    avoid_sites: &[SiteId],
    avoid_links: &[LinkId],
) -> Result<(), String> {
    if plan.source != source {
        return Err(format!("its source is site {}", plan.source));
    }
    for (i, flow) in plan.flows.iter().enumerate() {
        if flow.link.index() >= cx.topology.links().len() || avoid_links.binary_search(&flow.link).is_ok() {
            return Err(format!("flow {i} uses link {}", flow.link));
        }
        let link = cx.topology.link(flow.link);
        if let Some(site) = [link.from, link.to].iter().find(|s| avoid_sites.binary_search(s).is_ok()) {
            return Err(format!("flow {i} uses site {site}"));
        }
        let Some(group) = plan.groups.get(usize::from(flow.group)) else {
            return Err(format!("flow {i} is of group {}", flow.group));
        };
        let from = link.from;
        for term in &flow.terms {
            let fits = match term.input {
                Input::Stream(s) => s < group.streams && from == source,
                Input::Flow(f) => plan.flows.get(f.index()).is_some_and(|g| {
                    g.link.index() < cx.topology.links().len() && cx.topology.link(g.link).to == from
                }),
            };
            if !fits {
                return Err(format!("flow {i} has an input that is not there"));
            }
        }
    }
    let (mut served, mut filled) = (BTreeSet::new(), BTreeSet::new());
    for (group, sink) in plan.groups.iter().flat_map(|g| g.sinks.iter().map(move |s| (g, s))) {
        let arrives =
            |f: &FlowId| plan.flows.get(f.index()).is_some_and(|g| cx.topology.link(g.link).to == sink.site);
        if !sink.inputs.iter().all(arrives) {
            return Err(format!("site {} takes in a flow that does not arrive there", sink.site));
        }
        let Some(fills) = group.fills else {
            if !targets.contains(&sink.site) || !served.insert(sink.site) {
                return Err(format!("site {} is served twice or for nothing", sink.site));
            }
            continue;
        };
        let other = plan.groups.get(usize::from(fills)).filter(|g| g.fills.is_none());
        let fits = group.mode == Mode::Routed
            && other.is_some_and(|g| g.sinks.iter().any(|s| s.site == sink.site))
            && filled.insert(sink.site);
        if !fits {
            return Err(format!("site {} is filled twice or for nothing", sink.site));
        }
    }
    match targets.iter().find(|t| !served.contains(t)) {
        Some(t) => Err(format!("destination {t} is not served")),
        None => Ok(()),
    }
}
