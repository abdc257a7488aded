//! The coordinator, who has been heard from, and what is on its way to agents and to the store, behind one lock.
//!
//! Requests change the state and wake the driver, which decides and wakes the agents that have something to be told. It lets
//! every request that is already here go first, and so decides once for all of them. Leaves out: HTTP. Read
//! [`CoordinatorService`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

use super::store::History;
use super::wire::{
    self, EndedView, FlowView, HostView, JoinRequest, ReportsRequest, TransferView, TransfersView,
};
use crate::metrics::Metrics;
use crate::server::Service;
use crate::store::StoreError;
use anabranch_fluid::Allocator;
use anabranch_net::keys::System;
use anabranch_shuffle::control::Limit;
use anabranch_shuffle::coordinator::{self, Coordinator, Ended, Host, ReportError, Settings, Uplink};
use anabranch_units::{BitRate, Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

type BoxedAllocator = Box<dyn Allocator + Send>;

/// How long to wait before a failed write to the store is tried again.
const STORE_RETRY: std::time::Duration = std::time::Duration::from_secs(1);
/// A decision that takes longer than this excuses agents that were not heard meanwhile.
const LONG_DECISION: Duration = Duration::from_ms(200);
/// The most ended transfers that wait for the store; of more, the oldest are dropped.
const UNSAVED_MAX: usize = 4_096;

/// How a coordinator is set up.
pub struct CoordinatorServiceConfig {
    /// Makes what decides. Called at the start, and whenever the clock begins anew.
    pub allocator: Box<dyn Fn() -> BoxedAllocator + Send + Sync>,
    /// Its name, for those who look.
    pub allocator_name: String,
    /// How flows are told apart.
    pub settings: Settings,
    /// The file in which transfers that have ended are kept; made if it is not there.
    pub store: PathBuf,
    /// How long an agent may be silent before it counts as gone.
    pub silence_max: Duration,
    /// After how long the clock begins anew, as [`Instant`] ends after 213 days: as soon as no transfer is under way then,
    /// after twice as long in any case. Agents join again, as after a restart of the process.
    pub clock_max: Duration,
}

impl CoordinatorServiceConfig {
    /// A coordinator with every setting at its default.
    pub fn new(
        allocator: impl Fn() -> BoxedAllocator + Send + Sync + 'static,
        store: impl Into<PathBuf>,
    ) -> Self {
        Self {
            allocator: Box::new(allocator),
            allocator_name: String::new(),
            settings: Settings::default(),
            store: store.into(),
            silence_max: Duration::from_secs(1),
            clock_max: Duration::from_secs(100 * 86_400),
        }
    }
}

/// A running coordinator; clones are the same one.
#[derive(Clone)]
pub struct CoordinatorService {
    shared: Arc<Shared>,
}

struct Shared {
    config: CoordinatorServiceConfig,
    state: Mutex<State>,
    /// Wakes the driver.
    changed: Notify,
    history: Arc<History>,
    /// Wakes who writes the store.
    ended: Notify,
}

struct State {
    epoch: std::time::Instant,
    coordinator: Coordinator<BoxedAllocator>,
    agents: BTreeMap<String, Agent>,
    /// Whether something has been said since the last decision.
    undecided: bool,
    unsaved: VecDeque<EndedView>,
    store_error: Option<String>,
    counters: Counters,
}

/// A host's agent that has joined and not gone.
struct Agent {
    session: u64,
    heard_at: Instant,
    /// Wakes who waits for its limits.
    limits: Arc<Notify>,
}

/// Counts since the start, for metrics.
#[derive(Default)]
struct Counters {
    joins: u64,
    silent: u64,
    reports: u64,
    reports_refused: u64,
    decisions: u64,
    decision_seconds: f64,
    decisions_failed: u64,
    limits: u64,
    store_errors: u64,
}

impl CoordinatorService {
    /// Opens the store; nobody has joined yet. A [`crate::Server`] then drives it.
    ///
    /// Errors: a store that cannot be used.
    pub fn open(config: CoordinatorServiceConfig) -> Result<Self, StoreError> {
        let history = History::open(&config.store)?;
        Ok(Self::new(config, history))
    }

    /// The same without a file, for what only talks to it.
    pub(super) fn open_in_memory(config: CoordinatorServiceConfig) -> Result<Self, StoreError> {
        let history = History::in_memory()?;
        Ok(Self::new(config, history))
    }

    fn new(config: CoordinatorServiceConfig, history: History) -> Self {
        let history = Arc::new(history);
        let state = State {
            epoch: std::time::Instant::now(),
            coordinator: Coordinator::new(config.settings, (config.allocator)()),
            agents: BTreeMap::new(),
            undecided: false,
            unsaved: VecDeque::new(),
            store_error: None,
            counters: Counters::default(),
        };
        let (state, changed, ended) = (Mutex::new(state), Notify::new(), Notify::new());
        Self { shared: Arc::new(Shared { config, state, changed, history, ended }) }
    }

    pub(super) fn join(&self, name: &str, request: JoinRequest) -> Result<(), ReportError> {
        let JoinRequest { session, addresses, link_rate_bps, uplinks, reports } = request;
        let uplink = |said: wire::Uplink| Uplink { name: said.name, rate: BitRate::bps(said.rate_bps) };
        let uplinks = uplinks.into_iter().map(uplink).collect();
        self.change(|state, now| {
            let host = Host { addresses, rate: BitRate::bps(link_rate_bps), uplinks };
            state.coordinator.handle_join(now, name, session, host)?;
            state.counters.joins += 1;
            let agent = Agent { session, heard_at: now, limits: Arc::new(Notify::new()) };
            if let Some(earlier) = state.agents.insert(name.to_owned(), agent) {
                // Who waits for its limits hears that another has joined.
                earlier.limits.notify_waiters();
            }
            state.report(now, name, ReportsRequest { session, reports })
        })
    }

    pub(super) fn reports(&self, name: &str, request: ReportsRequest) -> Result<(), ReportError> {
        self.change(|state, now| {
            state.hear(now, name, request.session)?;
            state.report(now, name, request)
        })
    }

    pub(super) fn leave(&self, name: &str, session: u64) {
        self.change(|state, now| {
            if state.agents.get(name).is_some_and(|agent| agent.session == session) {
                state.gone(now, name);
            }
        });
    }

    /// Limits that have not been said, as soon as there are any, at most `wait` from now.
    pub(super) async fn limits(
        &self,
        name: &str,
        session: u64,
        wait: std::time::Duration,
    ) -> Result<Vec<Limit>, ReportError> {
        let end = tokio::time::Instant::now() + wait;
        let changed = {
            let mut state = self.lock();
            let now = state.now();
            state.hear(now, name, session)?.limits.clone()
        };
        loop {
            let notified = changed.notified();
            {
                let mut state = self.lock();
                state.agent(name, session)?;
                let limits = state.coordinator.poll_limits(name, session);
                if !limits.is_empty() {
                    state.counters.limits += limits.len() as u64;
                    return Ok(limits);
                }
            }
            if tokio::time::timeout_at(end, notified).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    pub(super) fn transfers(&self, flows_max: usize) -> TransfersView {
        let mut state = self.lock();
        let (now, now_unix_ms) = (state.now(), unix_ms());
        let under_way = state.coordinator.transfers(now);
        drop(state);
        let (mut room, mut flows_left_out) = (flows_max, 0);
        let transfers = under_way.into_iter().map(|transfer| {
            let shown = transfer.flows.len().min(room);
            room -= shown;
            flows_left_out += (transfer.flows.len() - shown) as u64;
            let flows = transfer.flows.into_iter().take(shown).map(|flow| FlowView {
                host: flow.host,
                local: flow.flow.local,
                remote: flow.flow.remote,
                remaining_bytes: flow.remaining.as_u64(),
                rate_bps: flow.rate.map(BitRate::as_bps),
            });
            let since_unix_ms =
                now_unix_ms.saturating_sub(now.saturating_since(transfer.since).as_us() / 1_000);
            TransferView { name: transfer.name, since_unix_ms, flows: flows.collect() }
        });
        let transfers = transfers.collect();
        TransfersView { transfers, flows_left_out, allocator: self.shared.config.allocator_name.clone() }
    }

    pub(super) fn hosts(&self) -> Vec<HostView> {
        let state = self.lock();
        let uplink =
            |(name, rate): (&str, BitRate)| wire::Uplink { name: name.to_owned(), rate_bps: rate.as_bps() };
        let view = |host: coordinator::HostView<'_>| HostView {
            name: host.name.to_owned(),
            up: host.is_up,
            link_rate_bps: host.rate.as_bps(),
            uplinks: host.uplinks.into_iter().map(uplink).collect(),
        };
        state.coordinator.hosts().map(view).collect()
    }

    pub(super) async fn history(&self, count: usize) -> Result<Vec<EndedView>, StoreError> {
        let history = self.shared.history.clone();
        let read = tokio::task::spawn_blocking(move || history.last(count));
        read.await.expect("reading does not panic, and the runtime is there while requests are")
    }

    /// What is wrong, if anything: the store cannot be written.
    pub fn trouble(&self) -> Option<String> {
        self.lock().store_error.clone()
    }

    pub(super) fn metrics(&self) -> String {
        let state = self.lock();
        let mut text = Metrics::default();
        let ups = state.coordinator.hosts().filter(|host| host.is_up).count() as u64;
        let (flows, active, transfers) = state.coordinator.count();
        let counters = &state.counters;
        let counts: [(&str, &str, &str, u64); 11] = [
            ("hosts_up", "gauge", "Hosts whose agents are there.", ups),
            ("flows", "gauge", "Flows that are under way, but for mice.", flows as u64),
            ("flows_lending", "gauge", "Of them, those that are idle or slow.", (flows - active) as u64),
            ("transfers", "gauge", "Transfers that are under way.", transfers as u64),
            ("joins_total", "counter", "Times that agents have joined.", counters.joins),
            ("silent_total", "counter", "Agents that left without a word.", counters.silent),
            ("reports_total", "counter", "Reports taken.", counters.reports),
            ("reports_refused_total", "counter", "Requests with a report refused.", counters.reports_refused),
            ("decisions_failed_total", "counter", "Decisions that were none.", counters.decisions_failed),
            ("limits_total", "counter", "Limits said.", counters.limits),
            ("store_errors_total", "counter", "Failed writes to the store.", counters.store_errors),
        ];
        for (name, kind, help, value) in counts {
            text.metric(&format!("shuffle_{name}"), kind, help, &Metrics::plain(value));
        }
        let took = [
            ("_sum".to_owned(), counters.decision_seconds),
            ("_count".to_owned(), counters.decisions as f64),
        ];
        text.metric("shuffle_decision_seconds", "summary", "How long decisions took.", &took);
        text.text()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug that the panic's own message tells of; the state's tables stay valid.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and has the driver see to what follows.
    fn change<T>(&self, f: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.lock();
        let now = state.now();
        let result = f(&mut state, now);
        state.undecided = true;
        drop(state);
        self.shared.changed.notify_one();
        result
    }

    /// Decides now; what drives it decides by itself.
    pub(super) fn decide_once(&self) {
        let mut state = self.lock();
        self.decide(&mut state);
        assert_eq!(state.counters.decisions_failed, 0, "links carry what is decided");
    }

    async fn decide_on_and_on(&self) {
        loop {
            let wait = {
                let mut state = self.lock();
                self.renew_clock(&mut state);
                self.see_to_silence(&mut state);
                let is_due = state.coordinator.poll_timeout().is_some_and(|at| at <= state.now());
                if std::mem::take(&mut state.undecided) || is_due {
                    self.decide(&mut state);
                }
                let now = state.now();
                let clock = Instant::ZERO + self.shared.config.clock_max;
                let silent =
                    state.agents.values().map(|agent| agent.heard_at + self.shared.config.silence_max);
                let next = silent
                    .chain(state.coordinator.poll_timeout())
                    .fold(if now < clock { clock } else { now + Duration::from_secs(60) }, Instant::min);
                next.saturating_since(now)
            };
            // A millisecond more: timers fire early by their rounding, and would spin.
            let wait = wait.to_std() + std::time::Duration::from_millis(1);
            let _ = tokio::time::timeout(wait, self.shared.changed.notified()).await;
            // Requests that are here already go first.
            tokio::task::yield_now().await;
        }
    }

    fn decide(&self, state: &mut State) {
        let began = state.now();
        let is_decided = state.coordinator.decide(began).unwrap_or_else(|error| {
            state.counters.decisions_failed += 1;
            tracing::error!("the limits of before hold: {error}");
            true
        });
        let ended = state.now();
        let took = ended.saturating_since(began);
        if is_decided {
            state.counters.decisions += 1;
            state.counters.decision_seconds += took.as_secs_f64();
        }
        if took > LONG_DECISION {
            // Nobody could be heard while the lock was held.
            state.agents.values_mut().for_each(|agent| agent.heard_at = ended);
        }
        for (name, _) in state.coordinator.hosts_changed() {
            if let Some(agent) = state.agents.get(name) {
                agent.limits.notify_waiters();
            }
        }
        let now_unix_ms = unix_ms();
        let mut is_ended = false;
        while let Some(Ended { name, since, at, flows, bytes }) = state.coordinator.poll_ended() {
            is_ended = true;
            let ago =
                |then: Instant| now_unix_ms.saturating_sub(ended.saturating_since(then).as_us() / 1_000);
            if state.unsaved.len() >= UNSAVED_MAX {
                state.unsaved.pop_front();
            }
            let (began_unix_ms, ended_unix_ms) = (ago(since), ago(at));
            let bytes = bytes.as_u64();
            state.unsaved.push_back(EndedView { name, began_unix_ms, ended_unix_ms, flows, bytes });
        }
        if is_ended {
            self.shared.ended.notify_one();
        }
    }

    fn see_to_silence(&self, state: &mut State) {
        let now = state.now();
        let is_silent = |agent: &Agent| now >= agent.heard_at + self.shared.config.silence_max;
        let silent: Vec<String> =
            state.agents.iter().filter(|(_, agent)| is_silent(agent)).map(|(name, _)| name.clone()).collect();
        for name in silent {
            tracing::warn!("host {name}: its agent has fallen silent, and counts as gone");
            state.counters.silent += 1;
            state.gone(now, &name);
        }
    }

    /// Begins the clock anew if it has run for long enough.
    fn renew_clock(&self, state: &mut State) {
        let Shared { config, .. } = &*self.shared;
        let may = Instant::ZERO + config.clock_max;
        let is_idle = state.coordinator.count() == (0, 0, 0);
        if state.now() < may || state.now() < may + config.clock_max && !is_idle {
            return;
        }
        tracing::info!("the clock begins anew: agents join again");
        state.epoch = std::time::Instant::now();
        state.coordinator = Coordinator::new(config.settings, (config.allocator)());
        std::mem::take(&mut state.agents).values().for_each(|agent| agent.limits.notify_waiters());
    }

    async fn save_on_and_on(&self) {
        loop {
            let unsaved = Vec::from(std::mem::take(&mut self.lock().unsaved));
            if unsaved.is_empty() {
                self.shared.ended.notified().await;
                continue;
            }
            let history = self.shared.history.clone();
            let saved = tokio::task::spawn_blocking(move || (history.add(&unsaved), unsaved)).await;
            let Ok((result, unsaved)) = saved else { return };
            if self.is_saved(result, unsaved) {
                continue;
            }
            tokio::time::sleep(STORE_RETRY).await;
        }
    }

    /// Notes how writing went; what was not written is kept for another try.
    fn is_saved(&self, result: Result<(), StoreError>, unsaved: Vec<EndedView>) -> bool {
        let mut state = self.lock();
        state.store_error = result.err().map(|error| error.to_string());
        let Some(error) = &state.store_error else { return true };
        tracing::error!("{error}");
        state.counters.store_errors += 1;
        // What has come meanwhile is younger.
        unsaved.into_iter().rev().for_each(|ended| state.unsaved.push_front(ended));
        let surplus = state.unsaved.len().saturating_sub(UNSAVED_MAX);
        state.unsaved.drain(..surplus);
        false
    }
}

impl Service for CoordinatorService {
    const SYSTEM: System = System::Shuffle;

    fn router(&self) -> axum::Router {
        super::http::router(self.clone())
    }

    async fn drive(self) {
        tokio::join!(self.decide_on_and_on(), self.save_on_and_on());
    }
}

impl State {
    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_std(self.epoch.elapsed())
    }

    fn agent(&mut self, name: &str, session: u64) -> Result<&mut Agent, ReportError> {
        let agent = self.agents.get_mut(name).filter(|agent| agent.session == session);
        agent.ok_or_else(|| ReportError::NotJoined(name.to_owned()))
    }

    /// Notes that the host's present agent said something.
    fn hear(&mut self, now: Instant, name: &str, session: u64) -> Result<&mut Agent, ReportError> {
        let agent = self.agent(name, session)?;
        agent.heard_at = now;
        Ok(agent)
    }

    fn report(&mut self, now: Instant, name: &str, request: ReportsRequest) -> Result<(), ReportError> {
        let ReportsRequest { session, reports } = request;
        self.counters.reports += reports.len() as u64;
        let taken = self.coordinator.handle_reports(now, name, session, &reports);
        self.counters.reports_refused += u64::from(taken.is_err());
        taken
    }

    fn gone(&mut self, now: Instant, name: &str) {
        if let Some(agent) = self.agents.remove(name) {
            self.coordinator.handle_leave(now, name, agent.session);
            self.undecided = true;
            agent.limits.notify_waiters();
        }
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
