//! The coordinator under the real clock: its state machine behind one lock, and the writer of ended
//! coflows.
//!
//! The state machine ([`anabranch_shuffle_proto::Sessions`]) tracks agents and waiting requests.
//! Requests change it and wake the driver, which makes decisions. A decision works on a copy of the
//! flows, so that requests are answered during a decision. The driver handles all pending requests
//! first, so that one decision covers all of them. Leaves out: HTTP. Read [`CoordinatorService`]
//! first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

use crate::store::History;
use crate::wire::{
    self, CoflowView, CoflowsView, EndedCoflowView, FlowView, HostView, JoinRequest, ReportsRequest,
};
use anabranch_http::metrics::{Counter, Histogram, Metrics, seconds};
use anabranch_http::store::StoreError;
use anabranch_shuffle_proto::BoxedAllocator;
use anabranch_shuffle_proto::control::Limit;
use anabranch_shuffle_proto::coordinator::{self, Decision, EndedCoflow, Host, ReportError};
use anabranch_shuffle_proto::hosts::{HostPosition, Hosts};
use anabranch_shuffle_proto::sessions::{Event, Sessions, SessionsConfig};
use anabranch_units::{BitRate, Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, oneshot};

/// Interval between a failed write to the store and the next attempt.
const STORE_RETRY: std::time::Duration = std::time::Duration::from_secs(1);
/// Maximum time between two passes of the driver if no deadline is due.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Duration of a decision above which the next decision is delayed by the same time, which leaves
/// half of a processor to other work.
const COSTLY_DECISION: Duration = Duration::from_ms(20);
/// Maximum number of ended coflows that wait for the store. Above it the oldest are dropped.
const UNSAVED_MAX: usize = 4_096;

/// Configuration of a coordinator.
pub struct CoordinatorServiceConfig {
    /// Creates the allocator, at the start and whenever the clock restarts.
    pub allocator: Box<dyn Fn() -> BoxedAllocator + Send + Sync>,
    /// Name of the allocator, as shown to operators.
    pub allocator_name: String,
    /// Classification of flows, and timeouts of agents.
    pub sessions: SessionsConfig,
    /// File for ended coflows, created if it does not exist.
    pub store: PathBuf,
    /// Addresses, links and uplinks of the hosts. Without this list, a host has its agent's source
    /// address and no uplinks.
    pub hosts: Option<Hosts>,
    /// True if agents may claim any address for their hosts, which suits a network whose agents are
    /// all trusted.
    pub are_addresses_trusted: bool,
}

impl CoordinatorServiceConfig {
    /// Creates a configuration with every setting at its default.
    pub fn new(
        allocator: impl Fn() -> BoxedAllocator + Send + Sync + 'static,
        store: impl Into<PathBuf>,
    ) -> Self {
        Self {
            allocator: Box::new(allocator),
            allocator_name: String::new(),
            sessions: SessionsConfig::default(),
            store: store.into(),
            hosts: None,
            are_addresses_trusted: false,
        }
    }
}

/// Reason for refusing an agent that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinError {
    /// The state machine refuses the agent.
    Refused(ReportError),
    /// The host is missing from the hosts file.
    Unknown(String),
    /// The agent claims an address that does not belong to its host.
    Address {
        /// The claimed address.
        address: IpAddr,
        /// Name of the agent's host.
        host: String,
        /// Source address of the agent.
        from: IpAddr,
        /// True if the hosts file lists the host's addresses.
        is_in_file: bool,
    },
}

impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "{error}"),
            Self::Unknown(host) => {
                write!(f, "host {host}: is not in the coordinator's --hosts file: add it there")
            }
            Self::Address { address, host, is_in_file: true, .. } => write!(
                f,
                "address {address}: is not host {host}'s by the coordinator's --hosts file: add it there, or leave --address out"
            ),
            Self::Address { address, host, from, .. } => write!(
                f,
                "address {address}: host {host} speaks from {from}, and has no other: leave --address out, or name the host's addresses in the coordinator's --hosts file"
            ),
        }
    }
}

impl From<ReportError> for JoinError {
    fn from(error: ReportError) -> Self {
        Self::Refused(error)
    }
}

impl CoordinatorServiceConfig {
    /// Determines a host's addresses, link and uplinks from the hosts file if there is one.
    /// Otherwise the agent's source address is the host's only address. An agent on the
    /// coordinator's machine may claim any address of this machine.
    fn place(&self, name: &str, from: IpAddr, said: Host) -> Result<Host, JoinError> {
        let placed = self.hosts.as_ref().map(|hosts| hosts.place(name).cloned());
        let placed =
            placed.map(|placed| placed.ok_or_else(|| JoinError::Unknown(name.to_owned()))).transpose()?;
        let HostPosition { addresses: known, link, uplinks } =
            placed.unwrap_or(HostPosition { addresses: Vec::new(), link: None, uplinks: Vec::new() });
        let is_in_file = !known.is_empty();
        let is_its = |address: IpAddr| match address.to_canonical() {
            address if is_in_file => known.contains(&address),
            address if self.are_addresses_trusted || address == from => true,
            // Only an address of this machine can be bound. Binding a socket sends no packet.
            address => from.is_loopback() && UdpSocket::bind((address, 0)).is_ok(),
        };
        for address in &said.addresses {
            coordinator::check_address(*address)?;
        }
        if let Some(address) = said.addresses.iter().find(|address| !is_its(**address)) {
            let (address, host) = (*address, name.to_owned());
            return Err(JoinError::Address { address, host, from, is_in_file });
        }
        let addresses = match (said.addresses.is_empty(), is_in_file) {
            (false, _) => said.addresses,
            (true, true) => known,
            (true, false) => vec![from],
        };
        Ok(Host { addresses, rate: link.unwrap_or(said.rate), uplinks })
    }
}

/// A running coordinator; clones share it.
#[derive(Clone)]
pub struct CoordinatorService {
    shared: Arc<Shared>,
}

struct Shared {
    config: CoordinatorServiceConfig,
    state: Mutex<State>,
    /// Wakes the driver.
    changed: Notify,
    /// Store of ended coflows; `None` if they are not stored.
    history: Option<Arc<History>>,
    /// Wakes the writer of the store.
    ended: Notify,
}

struct State {
    epoch: std::time::Instant,
    machine: Sessions<BoxedAllocator>,
    /// Requests that wait for limits, by the state machine's numbers. The state machine limits
    /// their number.
    waiting: BTreeMap<u64, oneshot::Sender<Result<Vec<Limit>, ReportError>>>,
    /// Time of the driver's next pass, unless a request wakes the driver earlier.
    looks_at: Instant,
    unsaved: VecDeque<EndedCoflowView>,
    store_error: Option<String>,
    counters: Counters,
}

/// Counters since the start for metrics that the state machine does not count.
struct Counters {
    joins_refused: u64,
    decision_seconds: Histogram,
    decisions_failed: u64,
    store_errors: u64,
    moved_bytes: Counter,
    coflow_seconds: Histogram,
}

impl Counters {
    fn new() -> Self {
        Self {
            joins_refused: 0,
            decision_seconds: seconds(),
            decisions_failed: 0,
            store_errors: 0,
            moved_bytes: Counter::default(),
            coflow_seconds: seconds(),
        }
    }
}

/// A request that waits for limits. Dropping the value cancels the request.
struct WaitingReport<'a> {
    service: &'a CoordinatorService,
    name: &'a str,
    number: u64,
}

impl Drop for WaitingReport<'_> {
    fn drop(&mut self) {
        let mut state = self.service.lock();
        // The table has only unanswered requests.
        if state.waiting.remove(&self.number).is_some() {
            state.machine.handle_given_up(self.name, self.number);
        }
    }
}

impl CoordinatorService {
    /// Opens the store and creates the service, with no agent joined. An [`anabranch_http::Server`]
    /// then drives the service.
    ///
    /// Errors: the store is unusable.
    pub fn open(config: CoordinatorServiceConfig) -> Result<Self, StoreError> {
        let history = History::open(&config.store)?;
        Ok(Self::new(config, Some(history)))
    }

    /// Creates a service without a store, for exercises of requests.
    pub(crate) fn without_history(config: CoordinatorServiceConfig) -> Self {
        Self::new(config, None)
    }

    fn new(config: CoordinatorServiceConfig, history: Option<History>) -> Self {
        let history = history.map(Arc::new);
        let state = State {
            epoch: std::time::Instant::now(),
            machine: Sessions::new(config.sessions, (config.allocator)()),
            waiting: BTreeMap::new(),
            looks_at: Instant::ZERO,
            unsaved: VecDeque::new(),
            store_error: None,
            counters: Counters::new(),
        };
        let (state, changed, ended) = (Mutex::new(state), Notify::new(), Notify::new());
        Self { shared: Arc::new(Shared { config, state, changed, history, ended }) }
    }

    /// Registers a host's agent with source address `from`.
    pub(crate) fn join(&self, name: &str, from: IpAddr, request: JoinRequest) -> Result<(), JoinError> {
        let JoinRequest { session, addresses, link_rate_bps, reports } = request;
        let said = Host { addresses, rate: BitRate::bps(link_rate_bps), uplinks: Vec::new() };
        let joined = self.shared.config.place(name, from, said).and_then(|host| {
            let rate = host.rate;
            self.change(|machine, now| machine.handle_join(now, name, session, host, &reports))?;
            Ok(rate)
        });
        match &joined {
            Ok(rate) => tracing::info!("host {name} has joined, from {from}, with a link of {rate}"),
            Err(_) => self.lock().counters.joins_refused += 1,
        }
        joined.map(drop)
    }

    pub(crate) fn reports(&self, name: &str, request: ReportsRequest) -> Result<(), ReportError> {
        let ReportsRequest { session, reports } = request;
        self.change(|machine, now| machine.handle_reports(now, name, session, &reports))
    }

    pub(crate) fn leave(&self, name: &str, session: u64) {
        self.change(|machine, now| machine.handle_leave(now, name, session));
    }

    /// Returns the unsent limits as soon as there are any, or no limits after `wait`.
    pub(crate) async fn limits(
        &self,
        name: &str,
        session: u64,
        wait: std::time::Duration,
    ) -> Result<Vec<Limit>, ReportError> {
        let (tell, told) = oneshot::channel();
        let (waiting, is_sooner) = {
            let mut state = self.lock();
            let now = state.now();
            let until = now + Duration::from_std(wait);
            let number = state.machine.handle_limits(now, name, session, until)?;
            state.waiting.insert(number, tell);
            state.answer();
            (WaitingReport { service: self, name, number }, until < state.looks_at)
        };
        if is_sooner {
            self.shared.changed.notify_one();
        }
        let answer = told.await.expect("the machine answers each request, which the service hands on");
        drop(waiting);
        answer
    }

    pub(crate) fn coflows(&self, flows_max: usize) -> CoflowsView {
        let mut state = self.lock();
        let (now, now_unix_ms) = (state.now(), unix_ms());
        let under_way = state.machine.coflows(now);
        drop(state);
        let (mut room, mut flows_left_out) = (flows_max, 0);
        let coflows = under_way.into_iter().map(|coflow| {
            let shown = coflow.flows.len().min(room);
            room -= shown;
            flows_left_out += (coflow.flows.len() - shown) as u64;
            let flows = coflow.flows.into_iter().take(shown).map(|flow| FlowView {
                host: flow.host,
                local: flow.flow.local,
                remote: flow.flow.remote,
                remaining_bytes: flow.remaining.as_u64(),
                rate_bps: flow.rate.map(BitRate::as_bps),
            });
            let since_unix_ms =
                now_unix_ms.saturating_sub(now.saturating_since(coflow.since).as_us() / 1_000);
            CoflowView { name: coflow.name, since_unix_ms, flows: flows.collect() }
        });
        let coflows = coflows.collect();
        CoflowsView { coflows, flows_left_out, allocator: self.shared.config.allocator_name.clone() }
    }

    pub(crate) fn hosts(&self) -> Vec<HostView> {
        let state = self.lock();
        let uplink =
            |(name, rate): (&str, BitRate)| wire::Uplink { name: name.to_owned(), rate_bps: rate.as_bps() };
        let view = |host: coordinator::HostView<'_>| HostView {
            name: host.name.to_owned(),
            up: host.is_up,
            joins: host.joins,
            link_rate_bps: host.rate.as_bps(),
            uplinks: host.uplinks.into_iter().map(uplink).collect(),
        };
        state.machine.coordinator().hosts().map(view).collect()
    }

    pub(crate) async fn history(&self, count: usize) -> Result<Vec<EndedCoflowView>, StoreError> {
        let Some(history) = self.shared.history.clone() else { return Ok(Vec::new()) };
        let read = tokio::task::spawn_blocking(move || history.last(count));
        read.await.expect("reading does not panic, and the runtime is there while requests are")
    }

    /// Reason why the coordinator is unhealthy: the store is not writable. `None` while it is
    /// healthy.
    pub fn trouble(&self) -> Option<String> {
        self.lock().store_error.clone()
    }

    pub(crate) fn metrics(&self) -> String {
        let state = self.lock();
        let mut text = Metrics::default();
        let (coordinator, counts) = (state.machine.coordinator(), state.machine.counts());
        let ups = coordinator.hosts().filter(|host| host.is_up).count();
        let (flows, active, coflows) = coordinator.count();
        let counters = &state.counters;
        let mut gauge = |name: &str, help, value: usize| text.gauge(&format!("shuffle_{name}"), help, value);
        gauge("hosts_up", "Hosts with a joined agent", ups);
        gauge("flows", "Flows under way, without mice", flows);
        gauge("flows_lending", "Flows under way that are idle or slow", flows - active);
        gauge("coflows", "Coflows under way", coflows);
        let mut count = |name: &str, help, value: u64| text.counter(&format!("shuffle_{name}"), help, value);
        count("joins_total", "Times that agents have joined", counts.joins);
        count("joins_refused_total", "Agents that were refused", counters.joins_refused);
        count("silent_total", "Agents that fell silent", counts.silent);
        count("reports_total", "Reports taken", counts.reports);
        count("reports_refused_total", "Requests with a report refused", counts.reports_refused);
        count("decisions_failed_total", "Decisions without a result", counters.decisions_failed);
        count("limits_total", "Limits told to agents", counts.limits);
        count("store_errors_total", "Failed writes to the store", counters.store_errors);
        let help = "Bytes that the flows of ended coflows moved, as last reported";
        text.add("shuffle_moved_bytes_total", help, counters.moved_bytes.clone());
        let help = "Completion time of coflows";
        text.add("shuffle_coflow_seconds", help, counters.coflow_seconds.clone());
        text.add("shuffle_decision_seconds", "Duration of decisions", counters.decision_seconds.clone());
        text.text()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug, which the panic's own message reports. The tables of the
        // state stay valid.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an event to the state machine at the current time, and wakes the driver.
    fn change<T>(&self, f: impl FnOnce(&mut Sessions<BoxedAllocator>, Instant) -> T) -> T {
        let mut state = self.lock();
        let now = state.now();
        let result = f(&mut state.machine, now);
        state.answer();
        drop(state);
        self.shared.changed.notify_one();
        result
    }

    /// Makes one decision, for exercises. Otherwise the driver makes the decisions.
    pub(crate) fn decide_once(&self) {
        self.decide();
        assert_eq!(self.lock().counters.decisions_failed, 0, "links carry what is decided");
    }

    /// Makes decisions, and writes ended coflows, until dropped.
    pub(crate) async fn go_on(&self) {
        tokio::join!(self.decide_on_and_on(), self.save_on_and_on());
    }

    async fn decide_on_and_on(&self) {
        loop {
            // A blocking task, because this task also accepts connections.
            let service = self.clone();
            let decided = tokio::task::spawn_blocking(move || service.decide()).await;
            let took = decided.expect("deciding does not panic, and the runtime is there");
            let wait = {
                let mut state = self.lock();
                let now = state.now();
                let latest = now + LOOK_EVERY;
                state.looks_at = state.machine.poll_timeout().map_or(latest, |at| at.min(latest));
                state.looks_at.saturating_since(now)
            };
            if took > COSTLY_DECISION {
                tokio::time::sleep(took.to_std()).await;
            }
            // One millisecond is added because timers round down, so the loop would spin.
            let wait = wait.to_std() + std::time::Duration::from_millis(1);
            let _ = tokio::time::timeout(wait, self.shared.changed.notified()).await;
            // Pending requests are handled first.
            tokio::task::yield_now().await;
        }
    }

    /// Handles deadlines, and makes a decision if one is due. Requests are answered during the
    /// decision. Returns the duration of the decision.
    fn decide(&self) -> Duration {
        let (began, decision) = {
            let mut state = self.lock();
            let now = state.now();
            state.machine.handle_timeout(now);
            let decision = state.machine.begin_decision(now);
            self.settle(&mut state);
            (now, decision)
        };
        let Some(mut decision) = decision else { return Duration::ZERO };
        decision.make();
        let mut state = self.lock();
        self.take(&mut state, began, decision)
    }

    /// Applies a decision that was started at `began`. Returns the decision's duration.
    fn take(&self, state: &mut State, began: Instant, decision: Decision<BoxedAllocator>) -> Duration {
        let now = state.now();
        if let Err(error) = state.machine.end_decision(now, decision) {
            state.counters.decisions_failed += 1;
            tracing::error!("the limits of before hold: {error}");
        }
        let took = state.now().saturating_since(began);
        state.counters.decision_seconds.observe(took.as_secs_f64());
        self.settle(state);
        took
    }

    /// Answers requests, and logs events.
    fn settle(&self, state: &mut State) {
        state.answer();
        let (now, now_unix_ms) = (state.now(), unix_ms());
        let mut is_ended = false;
        while let Some(event) = state.machine.poll_event() {
            match event {
                Event::Left(name) => tracing::info!("host {name} has left"),
                Event::Silent(name) => {
                    tracing::warn!("host {name}: its agent has fallen silent, and counts as gone");
                }
                Event::Begun(name) => tracing::info!("coflow {name} has begun"),
                Event::Ended(ended) => {
                    is_ended = true;
                    state.keep(ended, now, now_unix_ms);
                }
            }
        }
        if is_ended {
            self.shared.ended.notify_one();
        }
    }

    async fn save_on_and_on(&self) {
        loop {
            let unsaved = Vec::from(std::mem::take(&mut self.lock().unsaved));
            if unsaved.is_empty() {
                self.shared.ended.notified().await;
                continue;
            }
            let Some(history) = self.shared.history.clone() else { continue };
            let saved = tokio::task::spawn_blocking(move || (history.add(&unsaved), unsaved)).await;
            let Ok((result, unsaved)) = saved else { return };
            if self.is_saved(result, unsaved) {
                continue;
            }
            tokio::time::sleep(STORE_RETRY).await;
        }
    }

    /// Records the result of a write, and returns true if it succeeded. Unwritten coflows are kept
    /// for the next attempt.
    fn is_saved(&self, result: Result<(), StoreError>, unsaved: Vec<EndedCoflowView>) -> bool {
        let mut state = self.lock();
        state.store_error = result.err().map(|error| error.to_string());
        let Some(error) = &state.store_error else { return true };
        tracing::error!("{error}");
        state.counters.store_errors += 1;
        // Coflows that ended during the write are newer.
        unsaved.into_iter().rev().for_each(|ended| state.unsaved.push_front(ended));
        let surplus = state.unsaved.len().saturating_sub(UNSAVED_MAX);
        state.unsaved.drain(..surplus);
        false
    }
}

impl State {
    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    /// Sends the state machine's answers to their requests. If a request was cancelled meanwhile,
    /// its agent joins again.
    fn answer(&mut self) {
        while let Some((number, answer)) = self.machine.poll_answer() {
            if let Some(waiting) = self.waiting.remove(&number) {
                let _ = waiting.send(answer);
            }
        }
    }

    /// Queues an ended coflow for the store.
    fn keep(&mut self, ended: EndedCoflow, now: Instant, now_unix_ms: u64) {
        let EndedCoflow { name, since, at, flows, bytes } = ended;
        let ago = |then: Instant| now_unix_ms.saturating_sub(now.saturating_since(then).as_us() / 1_000);
        let took_s = at.saturating_since(since).as_secs_f64();
        self.counters.moved_bytes.inc_by(bytes.as_u64());
        self.counters.coflow_seconds.observe(took_s);
        tracing::info!("coflow {name} has ended: {flows} flows moved {bytes} in {took_s:.1} s");
        if self.unsaved.len() >= UNSAVED_MAX {
            self.unsaved.pop_front();
        }
        let (began_unix_ms, ended_unix_ms, moved_bytes) = (ago(since), ago(at), bytes.as_u64());
        self.unsaved.push_back(EndedCoflowView { name, began_unix_ms, ended_unix_ms, flows, moved_bytes });
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
