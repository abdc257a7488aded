//! The controller: coordinator, store, and queues for sites and watchers, behind one lock.
//!
//! Each change becomes durable before its commands and events are sent. While the store is not
//! writable, nothing is sent. Leaves out: HTTP. Read [`Controller`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

mod log;

use crate::metrics::ControllerCounts;
use crate::store::{Store, StoreContents, TransferTimes};
use crate::wire::EventView;
use anabranch_graph::Topology;
use anabranch_http::metrics::Metrics;
use anabranch_http::store::StoreError;
use anabranch_net::refusals::Refusals;
use anabranch_replicate_proto::control::{Command, Report, TransferId};
use anabranch_replicate_proto::coordinator::{
    Answer, Coordinator, CoordinatorConfig, Event, EventKind, LinkStatus, Outcome, PlanRequest, Planner,
    SubmitError, SubmitResult, TransferRequest, TransferSnapshot, TransferStatus, Verdict,
};
use anabranch_replicate_proto::plan::Plan;
use anabranch_replicate_proto::sessions::{SiteSessions, site_sessions};
use anabranch_replicate_proto::unsaved_transfers::{NextAction, UnsavedTransfers};
use anabranch_sessions::{NotJoined, Position, ProbeResult};
use anabranch_units::text::printable;
use anabranch_units::{Duration, Instant, LinkId, SiteId};
use log::{EventLog, LoggedEvent, queue_id, unix_ms};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot, watch};

/// The controller's planner, boxed.
pub struct BoxedPlanner(Box<dyn Planner + Send + Sync>);

impl BoxedPlanner {
    /// Boxes a planner.
    pub fn new(planner: impl Planner + Send + Sync + 'static) -> Self {
        Self(Box::new(planner))
    }
}

impl Planner for BoxedPlanner {
    fn plan(&self, request: &PlanRequest<'_>) -> Result<Plan, String> {
        self.0.plan(request)
    }
    fn plan_together(&self, requests: &[PlanRequest<'_>], others: &[&Plan]) -> Vec<Result<Plan, String>> {
        self.0.plan_together(requests, others)
    }
}

/// Time under the lock above which sites' silence during that time does not count.
const LONG_WORK: Duration = Duration::from_ms(500);

/// Configuration of a controller.
pub struct ControllerConfig {
    /// The network.
    pub topology: Topology,
    /// Planner of the transfers.
    pub planner: BoxedPlanner,
    /// Limits and timeouts of the coordinator.
    pub coordinator: CoordinatorConfig,
    /// File of the durable store, created if it does not exist.
    pub store: PathBuf,
    /// Silence after which a site counts as down.
    pub site_grace: Duration,
}

impl ControllerConfig {
    /// Creates a configuration with every setting at its default.
    pub fn new(
        topology: Topology,
        planner: impl Planner + Send + Sync + 'static,
        store: impl Into<PathBuf>,
    ) -> Self {
        Self {
            topology,
            planner: BoxedPlanner::new(planner),
            coordinator: CoordinatorConfig::default(),
            store: store.into(),
            site_grace: Duration::from_secs(3),
        }
    }
}

/// Reason for not accepting a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitRefusal {
    /// The request is refused.
    Refused(SubmitError),
    /// The store is not writable, with the reason; the same request may succeed later.
    NotDurable(String),
}

impl std::fmt::Display for SubmitRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::NotDurable(trouble) => write!(f, "nothing was begun: {trouble}"),
        }
    }
}
impl std::error::Error for SubmitRefusal {}

impl From<SubmitError> for SubmitRefusal {
    fn from(error: SubmitError) -> Self {
        Self::Refused(error)
    }
}

/// Refusal of a registration: another process serves the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SiteTaken {
    /// Session of the process that serves the site.
    pub(crate) session: u64,
    /// Data address of the process that serves the site.
    pub(crate) address: String,
}

/// A cancellation is not durable yet, with the store's error. It takes effect once the store is
/// writable; if the controller ends before that, its next start resumes the transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotDurable(pub String);

impl std::fmt::Display for NotDurable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it stops as soon as the store can be written: {}", self.0)
    }
}
impl std::error::Error for NotDurable {}

/// A running controller; clones share it.
#[derive(Clone)]
pub struct Controller {
    shared: Arc<Shared>,
}

struct Shared {
    topology: Topology,
    site_grace: Duration,
    state: Mutex<State>,
    /// Wakes the driver when a deadline may have changed.
    moved: Notify,
    /// Wakes requests that wait for one site's commands.
    commands: Vec<Notify>,
    /// Wakes watchers.
    events: watch::Sender<u64>,
    /// Rate limit for log lines about registrations, which sites may repeat at will.
    notes: Refusals,
}

struct State {
    epoch: std::time::Instant,
    coordinator: Coordinator<BoxedPlanner>,
    store: Store,
    unsaved: UnsavedTransfers,
    sessions: SiteSessions,
    /// Data address of each site's process.
    data_addresses: Vec<String>,
    logs: BTreeMap<TransferId, EventLog>,
    times: BTreeMap<TransferId, TransferTimes>,
    counts: ControllerCounts,
    /// Waiting callers of each question to a source.
    asking: BTreeMap<TransferId, oneshot::Sender<Answer>>,
}

impl Controller {
    /// Opens the store and resumes its transfers. An [`anabranch_http::Server`] then drives the
    /// controller.
    ///
    /// Errors: a store that is unusable, or was written for another topology.
    pub fn open(config: ControllerConfig) -> Result<Self, StoreError> {
        let opened = Store::open(&config.store, &config.topology)?;
        Self::new(config, opened)
    }

    /// Creates a controller without a file, for exercises of requests.
    pub(crate) fn open_in_memory(config: ControllerConfig) -> Result<Self, StoreError> {
        let opened = Store::in_memory(&config.topology)?;
        Self::new(config, opened)
    }

    fn new(config: ControllerConfig, (store, stored): (Store, StoreContents)) -> Result<Self, StoreError> {
        let sites = config.topology.sites().len();
        let open = stored.snapshots.iter().filter(|s| s.outcome.is_none()).count();
        if open > 0 {
            tracing::info!("transfers of before that go on: {open}");
        }
        let coordinator = Coordinator::restore(
            config.coordinator,
            config.topology.clone(),
            config.planner,
            Instant::ZERO,
            stored.next_transfer,
            stored.snapshots,
        )
        .map_err(|e| StoreError::BadRecord { path: config.store.clone(), reason: e.to_string() })?
        .with_questions_from(queue_id());
        let state = State {
            epoch: std::time::Instant::now(),
            coordinator,
            store,
            unsaved: UnsavedTransfers::default(),
            sessions: site_sessions(config.site_grace),
            data_addresses: vec![String::new(); sites],
            logs: BTreeMap::new(),
            times: stored.times,
            counts: ControllerCounts::new(&config.topology),
            asking: BTreeMap::new(),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                topology: config.topology,
                site_grace: config.site_grace,
                state: Mutex::new(state),
                moved: Notify::new(),
                commands: (0..sites).map(|_| Notify::new()).collect(),
                events: watch::Sender::new(0),
                notes: Refusals::default(),
            }),
        })
    }

    /// Drives the deadlines of the coordinator and the timeouts of silent sites. Never returns;
    /// drop it to stop.
    pub(crate) async fn run(&self) {
        loop {
            let wait = {
                let mut state = self.lock();
                let now = state.now();
                self.handle_deadlines(&mut state, now);
                Self::next_deadline(&state).saturating_since(state.now())
            };
            let moved = self.shared.moved.notified();
            // One millisecond more: timers round down, and the loop would spin.
            let wait = wait.to_std() + std::time::Duration::from_millis(1);
            let _ = tokio::time::timeout(wait, moved).await;
        }
    }

    /// Returns the network.
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// Rate limit for log lines about registrations.
    pub(crate) fn notes(&self) -> &Refusals {
        &self.shared.notes
    }

    /// Submits a transfer, which is durable when this returns.
    ///
    /// Errors: see [`SubmitRefusal`].
    pub fn submit(&self, request: TransferRequest) -> Result<TransferId, SubmitRefusal> {
        let taken = self.take_on(|coordinator, now| coordinator.submit(now, request).map(SubmitResult::New));
        taken.map(|(SubmitResult::New(id) | SubmitResult::Attached(id))| id)
    }

    /// Submits a transfer, unless an equal one is active.
    ///
    /// Errors: see [`SubmitRefusal`].
    pub fn submit_or_attach(&self, request: TransferRequest) -> Result<SubmitResult, SubmitRefusal> {
        self.take_on(|coordinator, now| coordinator.submit_or_attach(now, request))
    }

    fn take_on(
        &self,
        submit: impl FnOnce(&mut Coordinator<BoxedPlanner>, Instant) -> Result<SubmitResult, SubmitError>,
    ) -> Result<SubmitResult, SubmitRefusal> {
        self.change(|state, now| {
            state.is_writable()?;
            let submitted = submit(&mut state.coordinator, now)?;
            self.drain(state, now);
            if let (SubmitResult::New(id), Err(error)) = (submitted, state.is_writable()) {
                state.coordinator.cancel(now, id);
                return Err(error);
            }
            Ok(submitted)
        })
    }

    /// Asks the source of a request for its file, without starting a transfer. Dropping the future
    /// cancels the question.
    ///
    /// Errors: see [`SubmitRefusal`].
    pub async fn ask_source(&self, request: TransferRequest) -> Result<Answer, SubmitRefusal> {
        let (sender, answer) = oneshot::channel();
        let id = self.change(|state, now| {
            state.is_writable()?;
            let id = state.coordinator.ask_source(now, request)?;
            state.asking.insert(id, sender);
            Ok::<_, SubmitRefusal>(id)
        })?;
        let _asking = WaitingCaller { controller: self, id };
        Ok(answer.await.unwrap_or_else(|_| Err("the controller ends: ask again".to_owned())))
    }

    /// Cancels a transfer durably. Returns false if no such transfer is active.
    ///
    /// Errors: see [`NotDurable`].
    pub fn cancel(&self, id: TransferId) -> Result<bool, NotDurable> {
        self.change(|state, now| {
            let cancelled = state.coordinator.cancel(now, id);
            self.drain(state, now);
            state.unsaved.trouble().map_or(Ok(cancelled), |trouble| Err(NotDurable(trouble.to_owned())))
        })
    }

    /// Status of a transfer.
    pub fn status(&self, id: TransferId) -> Option<TransferStatus> {
        self.lock().coordinator.status(id)
    }

    /// Status of the first remembered transfer after `id`.
    pub fn status_after(&self, id: TransferId) -> Option<TransferStatus> {
        let state = self.lock();
        state.coordinator.status(state.coordinator.next_after(id)?)
    }

    /// Plan of a transfer's current or last attempt, since the controller's start.
    pub fn plan(&self, id: TransferId) -> Option<Plan> {
        self.lock().coordinator.plan(id).cloned()
    }

    /// Plan of the attempt that served the most destinations, since the controller's start.
    pub fn widest_plan(&self, id: TransferId) -> Option<Plan> {
        self.lock().coordinator.widest_plan(id).cloned()
    }

    /// The declared and the measured capacity of a link.
    ///
    /// Panics: if the link is not in the topology.
    pub fn link(&self, link: LinkId) -> LinkStatus {
        self.lock().coordinator.link(link)
    }

    /// Times at which a transfer was accepted and ended.
    pub fn times(&self, id: TransferId) -> TransferTimes {
        self.lock().times.get(&id).copied().unwrap_or_default()
    }

    /// Returns true if a site is registered and responsive.
    pub fn is_up(&self, site: SiteId) -> bool {
        self.lock().coordinator.is_up(site)
    }

    /// Reason why the controller is unhealthy, if any: the store is not writable.
    pub fn trouble(&self) -> Option<String> {
        self.lock().unsaved.trouble().map(str::to_owned)
    }

    /// Registers a site's process. Without `take_over`, fails if another process of the same site
    /// still responds, and names that process. The probe takes at most 3 s.
    pub(crate) async fn register(
        &self,
        site: SiteId,
        session: u64,
        addresses: Vec<(LinkId, String)>,
        take_over: bool,
    ) -> Result<(u64, u64), SiteTaken> {
        if !take_over && let Some(other) = self.answers_still(site, session).await {
            return Err(other);
        }
        let name = self.shared.topology.site(site).name.clone();
        Ok(self.change(|state, now| {
            let address = addresses.first().map_or_else(|| "-".to_owned(), |(_, a)| a.clone());
            let joined = state.sessions.handle_join(now, &site, session, queue_id());
            let before = std::mem::replace(&mut state.data_addresses[site.index()], address.clone());
            if joined.has_replaced {
                tracing::warn!(site = name, "another relay takes the place of the one at {before}");
            }
            if joined.is_news {
                tracing::info!(site = name, data_at = address, "site is up");
            }
            state.coordinator.handle_site_up(now, site, session, addresses);
            (joined.after, joined.numbering)
        }))
    }

    /// Returns another process of the site if it responds to a probe.
    async fn answers_still(&self, site: SiteId, session: u64) -> Option<SiteTaken> {
        let probe = self.lock().sessions.probe(&site, session)?;
        self.shared.commands[site.index()].notify_waiters();
        const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(20);
        let mut left = probe.within.to_std();
        while !left.is_zero() {
            tokio::time::sleep(LOOK_EVERY).await;
            left = left.saturating_sub(LOOK_EVERY);
            let state = self.lock();
            match state.sessions.probe_result(&site, session, probe) {
                ProbeResult::Gone => return None,
                ProbeResult::Alive(session) => {
                    let address = state.data_addresses[site.index()].clone();
                    return Some(SiteTaken { session, address });
                }
                ProbeResult::Silent => {}
            }
        }
        None
    }

    pub(crate) fn reports(
        &self,
        site: SiteId,
        session: u64,
        batch: u64,
        reports: Vec<Report>,
    ) -> Result<(), NotJoined> {
        self.change(|state, now| {
            if !state.sessions.handle_batch(now, &site, session, batch)? {
                return Ok(());
            }
            for report in reports {
                state.counts.note_report(site, &report);
                state.coordinator.handle_report(now, site, report);
            }
            Ok(())
        })
    }

    /// Returns the commands after `position` as soon as there are any, at most `wait` from now.
    pub(crate) async fn commands(
        &self,
        site: SiteId,
        session: u64,
        position: Position,
        wait: std::time::Duration,
    ) -> Result<Vec<(u64, Command)>, NotJoined> {
        let end = tokio::time::Instant::now() + wait;
        let _guard = PollGuard::new(self, site);
        let mut probes = None;
        loop {
            let notified = self.shared.commands[site.index()].notified();
            {
                let mut state = self.lock();
                let now = state.now();
                if let Some(commands) =
                    state.sessions.poll_messages(now, &site, session, position, &mut probes)?
                {
                    return Ok(commands);
                }
            }
            if tokio::time::timeout_at(end, notified).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    /// Returns a transfer's events from number `from` on, and true if the transfer is over.
    pub(crate) fn events_from(&self, id: TransferId, from: u64) -> (Vec<(u64, EventView)>, bool) {
        let state = self.lock();
        let name = |site: SiteId| self.shared.topology.site(site).name.clone();
        let view = |logged: &LoggedEvent| EventView {
            event: logged.event.clone().map_sites(name),
            at_unix_ms: logged.at_unix_ms,
        };
        let over = state.coordinator.status(id).is_none_or(|s| s.outcome.is_some());
        let events = state.logs.get(&id).map_or_else(Vec::new, |log| {
            log.events.iter().filter(|e| e.number >= from).map(|e| (e.number, view(e))).collect()
        });
        (events, over)
    }

    pub(crate) fn watch_events(&self) -> watch::Receiver<u64> {
        self.shared.events.subscribe()
    }

    /// Metrics in Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        let state = self.lock();
        let mut all = Metrics::default();
        let topology = &self.shared.topology;
        let up = |site| ([topology.site(site).name.clone()], u64::from(state.coordinator.is_up(site)));
        let help = "1 if the site is registered and answers";
        all.gauges("replicate_site_up", help, ["site"], topology.site_ids().map(up));
        self.link_metrics(&state, &mut all);
        let statuses: Vec<_> =
            state.coordinator.transfer_ids().filter_map(|id| state.coordinator.status(id)).collect();
        let (open, over): (Vec<_>, Vec<_>) = statuses.iter().partition(|status| status.outcome.is_none());
        let counts = [(["open".to_owned()], open.len()), (["over".to_owned()], over.len())];
        all.gauges("replicate_transfers", "Transfers that are remembered", ["state"], counts);
        let verified = open.iter().flat_map(|status| &status.destinations).map(|to| to.verified_bytes);
        let help = "Bytes verified at all destinations of open transfers";
        all.gauge("replicate_verified_bytes", help, verified.sum::<u64>());
        let help = "Commands that sites have not acknowledged";
        all.gauge("replicate_commands_queued", help, state.sessions.waiting());
        all.counter("replicate_commands_total", "Commands given", state.sessions.messages());
        let help = "Sites dropped for not taking commands";
        all.counter("replicate_queue_overflows_total", help, state.sessions.overflows());
        let help = "Events that nobody took in time";
        all.counter("replicate_events_dropped_total", help, state.coordinator.events_dropped());
        state.counts.add_to(&mut all);
        all.text()
    }

    /// Rates of the measured links, and which links are declared with a wrong capacity.
    fn link_metrics(&self, state: &State, all: &mut Metrics) {
        let topology = &self.shared.topology;
        let name = |site| topology.site(site).name.clone();
        let (mut carried, mut wrong) = (Vec::new(), Vec::new());
        for id in topology.link_ids() {
            let (link, status) = (topology.link(id), state.coordinator.link(id));
            let Some(measured) = status.carried else { continue };
            let labels = [name(link.from), name(link.to)];
            carried.push((labels.clone(), measured.rate.as_bps()));
            wrong.push((labels, u64::from(status.is_wrong())));
        }
        let help = "Measured rate of the link: its limit, or a rate that it can carry at least";
        all.gauges("replicate_link_carried_bps", help, ["from", "to"], carried);
        let help = "1 if the declared capacity of the link differs from its rate by a factor of two";
        all.gauges("replicate_link_capacity_wrong", help, ["from", "to"], wrong);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug, which the panic's message reports. The state's tables
        // stay valid.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and sends the commands and events that result from the change.
    fn change<T>(&self, f: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.lock();
        let now = state.now();
        let result = f(&mut state, now);
        self.drain(&mut state, now);
        self.excuse(&mut state, now);
        drop(state);
        self.shared.moved.notify_one();
        result
    }

    /// Excuses sites for silence while the lock was held for long (a hard plan, a slow disk).
    fn excuse(&self, state: &mut State, began: Instant) {
        let now = state.now();
        if now.saturating_since(began) > LONG_WORK {
            state.sessions.excuse(now);
        }
    }

    fn drain(&self, state: &mut State, now: Instant) {
        loop {
            match state.unsaved.poll(now, &mut state.coordinator) {
                NextAction::Save(transfers) => state.save(now, &transfers),
                NextAction::LetOut => break,
                NextAction::Wait => return,
            }
        }
        while let Some((site, command)) = state.coordinator.poll_command() {
            if state.sessions.push(now, &site, command) {
                self.shared.commands[site.index()].notify_waiters();
            }
        }
        while let Some((id, answer)) = state.coordinator.poll_answer() {
            // The caller may have dropped its future.
            let _ = state.asking.remove(&id).map(|waiting| waiting.send(answer));
        }
        let mut news = false;
        while let Some(event) = state.coordinator.poll_event() {
            news = true;
            self.note(state, &event);
            state.note_counts(&event);
            state.logs.entry(event.transfer).or_insert_with(EventLog::new).push(event);
        }
        if news {
            self.shared.events.send_modify(|n| *n += 1);
        }
    }

    /// Logs the state of a transfer and its destinations; attempts are logged at debug level.
    fn note(&self, state: &State, event: &Event) {
        let name = |site: SiteId| self.shared.topology.site(site).name.clone();
        let (transfer, attempt) = (event.transfer.0, event.attempt);
        let mut line = event.kind.in_words(&|site: &SiteId| name(*site));
        if event.kind == EventKind::Submitted
            && let Some(TransferStatus { request, .. }) = state.coordinator.status(event.transfer)
        {
            let to: Vec<_> = request.destinations.iter().map(|d| name(d.site)).collect();
            let (path, from) = (&request.source_path, name(request.source));
            line = format!("begins: {path} from {from} to {}", to.join(", "));
        }
        let line = printable(&line);
        match &event.kind {
            EventKind::Submitted
            | EventKind::Waiting { .. }
            | EventKind::Verdict { verdict: Verdict::Done | Verdict::Differs { .. }, .. }
            | EventKind::Finished { outcome: Outcome::Done | Outcome::Differs | Outcome::Cancelled } => {
                tracing::info!(transfer, "{line}");
            }
            EventKind::Corrupt { .. }
            | EventKind::Suspected { .. }
            | EventKind::Postponed { .. }
            | EventKind::WrongCapacity { .. }
            | EventKind::Verdict { .. }
            | EventKind::Finished { .. } => tracing::warn!(transfer, "{line}"),
            _ => tracing::debug!(transfer, attempt, "{line}"),
        }
    }

    fn handle_deadlines(&self, state: &mut State, now: Instant) {
        for (site, _) in state.sessions.handle_timeout(now) {
            let name = &self.shared.topology.site(site).name;
            let grace = self.shared.site_grace.in_words();
            tracing::warn!(site = name, "site is away: silent for {grace}");
            state.counts.note_silent(site);
            state.coordinator.handle_site_down(now, site);
        }
        if state.coordinator.poll_timeout().is_some_and(|t| now >= t) {
            state.coordinator.handle_timeout(now);
        }
        self.drain(state, now);
        self.excuse(state, now);
    }

    fn next_deadline(state: &State) -> Instant {
        let all =
            [state.sessions.poll_timeout(), state.coordinator.poll_timeout(), state.unsaved.poll_timeout()];
        Instant::earliest(all).unwrap_or(Instant::MAX)
    }
}

impl State {
    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    /// Counts the ends of transfers for metrics.
    fn note_counts(&self, event: &Event) {
        match &event.kind {
            EventKind::Verdict { site, verdict } => {
                let status = self.coordinator.status(event.transfer);
                // A comparison delivers nothing.
                let status = status.filter(|status| !status.request.rules.compare);
                let length_bytes = status.and_then(|status| status.length_bytes).unwrap_or_default();
                self.counts.note_verdict(*site, verdict, length_bytes);
            }
            EventKind::Finished { outcome } => {
                let TransferTimes { began_unix_ms, ended_unix_ms } =
                    self.times.get(&event.transfer).copied().unwrap_or_default();
                let took = ended_unix_ms.zip(began_unix_ms).map(|(end, begin)| end.saturating_sub(begin));
                self.counts.note_end(*outcome, took.map(std::time::Duration::from_millis));
            }
            _ => {}
        }
    }

    /// Errors: the store is not writable.
    fn is_writable(&self) -> Result<(), SubmitRefusal> {
        self.unsaved.trouble().map_or(Ok(()), |trouble| Err(SubmitRefusal::NotDurable(trouble.to_owned())))
    }

    /// Makes transfers durable, or records the error.
    fn save(&mut self, now: Instant, transfers: &[TransferId]) {
        let changes: Vec<_> = transfers.iter().map(|&id| (id, self.coordinator.snapshot(id))).collect();
        self.note_times(&changes);
        let times = |id| self.times.get(&id).copied().unwrap_or_default();
        let changes: Vec<_> = changes.into_iter().map(|(id, s)| (id, s.map(|s| (s, times(id))))).collect();
        if let Err(error) = self.store.save(self.coordinator.next_transfer(), &changes) {
            let reason = error.to_string();
            // Writing is retried every second, so an unchanged error is logged once.
            if self.unsaved.trouble() != Some(&reason) {
                tracing::error!("nothing is begun or changed until it can be written: {reason}");
            }
            self.counts.store_errors += 1;
            return self.unsaved.handle_failed(now, reason);
        }
        if self.unsaved.trouble().is_some() {
            tracing::info!("the store can be written again");
        }
        for (id, _) in changes.iter().filter(|(_, kept)| kept.is_none()) {
            self.logs.remove(id);
        }
        self.unsaved.handle_saved();
    }

    /// Records the times of transfers that were just accepted or have just ended.
    fn note_times(&mut self, changes: &[(TransferId, Option<TransferSnapshot>)]) {
        let now = unix_ms();
        for (id, snapshot) in changes {
            let Some(snapshot) = snapshot else {
                self.times.remove(id);
                continue;
            };
            let times =
                self.times.entry(*id).or_insert(TransferTimes { began_unix_ms: now, ended_unix_ms: None });
            if snapshot.outcome.is_some() && times.ended_unix_ms.is_none() {
                times.ended_unix_ms = now;
            }
        }
    }
}

/// A caller that waits for the answer to a question.
struct WaitingCaller<'a> {
    controller: &'a Controller,
    id: TransferId,
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        let mut state = self.controller.lock();
        state.asking.remove(&self.id);
        state.coordinator.withdraw_question(self.id);
    }
}

/// Marks a site as alive while the connection of its long poll lasts.
struct PollGuard<'a> {
    controller: &'a Controller,
    site: SiteId,
}

impl<'a> PollGuard<'a> {
    fn new(controller: &'a Controller, site: SiteId) -> Self {
        controller.lock().sessions.begin_poll(&site);
        Self { controller, site }
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.controller.lock();
        let now = state.now();
        state.sessions.end_poll(now, &self.site);
        drop(state);
        self.controller.shared.moved.notify_one();
    }
}
