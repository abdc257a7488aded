//! A host's agent: it reports the host's flows, and enforces the coordinator's rate limits.
//!
//! The state machine [`anabranch_shuffle_proto::Agent`] decides when the agent joins, lists
//! connections, reports and lifts limits. This module supplies the clock, the kernel's list of
//! connections, the coordinator's answers, programs' announcements, and a thread that sets limits.
//!
//! The agent keeps `net.ipv4.tcp_tso_rtt_log` at 0 while it runs, so that raised limits take effect
//! soon (see `pace::set_tso_rtt_log`). Read [`Agent`] and [`AgentConfig`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

pub mod announce;
pub mod enforce;
mod error;
pub mod guard;
mod metrics;
mod ports;

pub use anabranch_net::local::ListenError;
pub use error::AgentError;

use crate::Client;
use anabranch_http::ClientError;
use anabranch_net::address::lookup;
use anabranch_net::identity::Identity;
use anabranch_net::random;
use anabranch_pace::{
    FlowReader, FlowState, Listing, Pacer, PacerOptions, addresses, link_rate, set_tso_rtt_log, tso_rtt_log,
};
use anabranch_shuffle_proto::agent::{
    self as machine, AgentAction, Answer, CONNECTIONS_MAX, Event, Failure, LIMITS_WAIT, Notice, REPLY_MAX,
};
use anabranch_shuffle_proto::announced_flows::ListedConnection;
use anabranch_shuffle_proto::announcement::Announcement;
use anabranch_shuffle_proto::coordinator::{ADDRESSES_MAX, check_name};
use anabranch_shuffle_proto::rules::Rules;
use anabranch_units::{BitRate, ByteCount, Instant};
use enforce::{Enforcer, StateFile};
use metrics::{AgentMetrics, Cause};
use std::collections::BTreeMap;
use std::fs::remove_file;
use std::future::{Future, pending};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

/// Configuration of an agent.
pub struct AgentConfig {
    /// Name of the host, as in its certificate.
    pub name: String,
    /// Address of the coordinator, as `HOST:PORT` or `https://HOST:PORT`.
    pub coordinator: String,
    /// Goodput of the host's link in each direction. `None`: derived from the device of the default
    /// route.
    pub link_rate: Option<BitRate>,
    /// Addresses of flows to this host. If empty, the coordinator decides.
    pub addresses: Vec<IpAddr>,
    /// Rules by which flows are announced on behalf of their programs.
    pub rules: Rules,
    /// Socket on which programs announce their flows; `None` for no socket.
    pub listen: Option<ListenConfig>,
    /// Mechanisms with which limits may be enforced.
    pub pacer: PacerOptions,
    /// True if the agent keeps `net.ipv4.tcp_tso_rtt_log` at 0 for the network namespace, so that
    /// raised limits take effect soon.
    pub has_small_bursts: bool,
    /// File that lists the flows with limits, so that the guard or the next agent can lift the
    /// limits of a killed agent. Created if it does not exist; locked by one agent at a time.
    pub state: PathBuf,
    /// Command that starts the agent's guard; it must call [`guard::watch`] with the same state
    /// file and device. With `None`, a killed agent's limits stay until the next agent.
    pub guard: Option<Command>,
}

/// A Unix socket over which programs announce flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    /// Path of the socket.
    pub path: PathBuf,
    /// Group that may use the socket in addition to the owner, by name or number.
    pub group: Option<String>,
}

impl AgentConfig {
    /// Creates a configuration without a guard, with every setting at its default.
    pub fn new(name: impl Into<String>, coordinator: impl Into<String>, state: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            coordinator: coordinator.into(),
            link_rate: None,
            addresses: Vec::new(),
            rules: Rules::default(),
            listen: None,
            pacer: PacerOptions::default(),
            has_small_bursts: true,
            state: state.into(),
            guard: None,
        }
    }
}

/// A host's agent.
pub struct Agent {
    name: String,
    client: Client,
    link_rate: BitRate,
    shared: Arc<Shared>,
    reader: Arc<Mutex<FlowReader>>,
    enforcer: Enforcer,
    metrics: Arc<AgentMetrics>,
    announcements: Option<(UnixListener, FlowReader)>,
    /// Rules by which flows are announced on behalf of their programs.
    rules: Rules,
    /// Files and processes to remove after the agent's end.
    leavings: AgentLeftovers,
}

struct AgentLeftovers {
    listen: Option<PathBuf>,
    state: PathBuf,
    device: Option<String>,
    guard: Option<Child>,
}

/// State shared by the announcement server and the agent's task.
struct Shared {
    clocked: Mutex<ClockedAgent>,
    /// Wakes the agent's task.
    changed: Notify,
}

/// The state machine and its clock.
struct ClockedAgent {
    machine: machine::Agent,
    epoch: std::time::Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts the kernel's state of a connection for the state machine.
fn seen(state: &FlowState) -> ListedConnection {
    let bytes = |count: Option<ByteCount>| count.map_or(0, ByteCount::as_u64);
    let sent = bytes(state.bytes_sent).saturating_sub(bytes(state.bytes_retransmitted));
    // SYN and FIN each count one byte among acknowledged bytes. Older kernels do not count sent
    // bytes.
    let acked_bytes = bytes(state.bytes_acked).min(state.bytes_sent.map_or(u64::MAX, |_| sent));
    ListedConnection {
        flow: state.flow,
        cookie: state.cookie(),
        user: state.uid,
        may_send: state.may_send,
        acked_bytes,
        written_bytes: sent.max(acked_bytes).saturating_add(bytes(state.bytes_not_sent)),
        limit: state.pacing_limit,
    }
}

/// Sets the kernel to small bursts, so that raised limits take effect soon. The value to restore is
/// read from the state file, because a killed agent may have left its own value in the kernel.
fn small_bursts(state: &mut StateFile) {
    let mut set = || match tso_rtt_log()? {
        0 => Ok(()),
        log => {
            state.note_tso_rtt_log(Some(log))?;
            set_tso_rtt_log(0)
        }
    };
    match set() {
        // Older kernels have no such setting, and always send small bursts.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("limits that are raised take effect late: {error}"),
        Ok(()) => {}
    }
}

fn failure(error: ClientError) -> Failure {
    let line = error.to_string();
    match error {
        ClientError::Refused { status: 409, .. } => Failure::NotJoined(line),
        // Keys of another host, or invalid settings: a retry cannot succeed.
        ClientError::Refused { status: 400 | 403, .. } | ClientError::Settings(_) => Failure::Refused(line),
        _ => Failure::Passing(line),
    }
}

impl ClockedAgent {
    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }
}

impl Shared {
    /// Applies an event to the state machine at the current time.
    fn change<T>(&self, change: impl FnOnce(&mut machine::Agent, Instant) -> T) -> T {
        let mut clocked = lock(&self.clocked);
        let now = clocked.now();
        change(&mut clocked.machine, now)
    }
}

/// Next step of the agent's task.
enum AgentStep {
    Event(Event),
    Ask(u64, AgentAction),
}

#[derive(Default)]
struct RequestsInFlight {
    tasks: JoinSet<(u64, Result<Answer, Failure>)>,
    handles: BTreeMap<u64, AbortHandle>,
}

impl RequestsInFlight {
    fn begin(&mut self, number: u64, answer: impl Future<Output = Result<Answer, Failure>> + Send + 'static) {
        let handle = self.tasks.spawn(async move { (number, answer.await) });
        self.handles.insert(number, handle);
    }

    /// Cancels requests whose answer the state machine no longer awaits.
    fn keep_only(&mut self, is_awaited: impl Fn(u64) -> bool) {
        self.handles.retain(|number, handle| {
            let is_kept = is_awaited(*number);
            if !is_kept {
                handle.abort();
            }
            is_kept
        });
    }

    /// Waits for the next answer. Never completes without a request in flight.
    async fn next(&mut self) -> (u64, Result<Answer, Failure>) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(answered)) => return answered,
                // The request was cancelled.
                Some(Err(_)) => {}
                None => pending().await,
            }
        }
    }
}

impl Agent {
    /// Lifts limits of an earlier agent, and opens sockets and files. [`Agent::run`] starts the
    /// work.
    ///
    /// Errors: see [`AgentError`].
    /// Panics: outside of a tokio runtime.
    pub fn start(config: AgentConfig, identity: &Identity) -> Result<Self, AgentError> {
        let AgentConfig { name, coordinator, addresses: named, rules, listen, pacer: options, .. } = config;
        check_name(&name).map_err(AgentError::Name)?;
        let client =
            Client::new(&coordinator, identity, REPLY_MAX.to_std()).map_err(AgentError::Coordinator)?;
        let link_rate = match config.link_rate {
            Some(rate) if rate.as_bps() == 0 => return Err(AgentError::ZeroLink),
            Some(rate) => rate,
            None => link_rate().map_err(AgentError::Link)?,
        };
        if named.len() > ADDRESSES_MAX {
            return Err(AgentError::TooManyAddresses(named.len()));
        }
        let addresses_here = addresses()?;
        let (mut state, left) = StateFile::open(&config.state)?;
        let mut pacer = Pacer::new(&options).map_err(AgentError::Pacer)?;
        for missing in pacer.missing() {
            tracing::warn!("{missing}");
        }
        let lifted = left.lift(&mut state, &mut pacer)?;
        if lifted > 0 {
            tracing::warn!("limits of {lifted} flows that an agent had left are lifted");
        }
        let announcements = match &listen {
            Some(ListenConfig { path, group }) => {
                Some((anabranch_net::local::listen(path, group.as_deref())?, FlowReader::new()?))
            }
            None => None,
        };
        let reader = FlowReader::new()?;
        if config.has_small_bursts {
            small_bursts(&mut state);
        }
        let guard = config.guard.and_then(|command| {
            let warn = |error: &std::io::Error| {
                tracing::warn!("no guard: if this agent is killed, limits stay until the next one: {error}");
            };
            guard::start(command).inspect_err(warn).ok()
        });
        let machine = machine::AgentConfig {
            addresses: named,
            addresses_here,
            rules: rules.clone(),
            ..machine::AgentConfig::new(link_rate)
        };
        let clocked = ClockedAgent {
            machine: machine::Agent::new(Instant::ZERO, machine),
            epoch: std::time::Instant::now(),
        };
        let metrics = Arc::new(AgentMetrics::new());
        Ok(Self {
            name,
            client,
            link_rate,
            shared: Arc::new(Shared { clocked: Mutex::new(clocked), changed: Notify::new() }),
            reader: Arc::new(Mutex::new(reader)),
            enforcer: Enforcer::start(pacer, state, Arc::clone(&metrics))?,
            metrics,
            announcements,
            rules,
            leavings: AgentLeftovers {
                listen: listen.map(|listen| listen.path),
                state: config.state,
                device: options.device,
                guard,
            },
        })
    }

    /// Goodput of the host's link in each direction.
    pub const fn link_rate(&self) -> BitRate {
        self.link_rate
    }

    /// Address of the coordinator, as `host:port`.
    pub fn coordinator(&self) -> &str {
        self.client.address()
    }

    /// Returns a function that gives the agent's metrics in Prometheus' text format, also while the
    /// agent runs.
    pub fn metrics(&self) -> impl Fn() -> String + Clone + Send + Sync + use<> {
        let metrics = Arc::clone(&self.metrics);
        move || metrics.text()
    }

    /// Runs until `end` completes. Then lifts the limits, leaves the coordinator and restores the
    /// kernel's settings.
    ///
    /// Errors: the coordinator refuses this agent for good; a setting could not be restored.
    pub async fn run(mut self, end: impl Future<Output = ()>) -> Result<(), AgentError> {
        let announcements = self.announcements.take();
        let (shared, metrics) = (self.shared.clone(), Arc::clone(&self.metrics));
        let answering = async {
            match announcements {
                Some((listener, reader)) => {
                    let take = move |said: &Announcement, seen: &ListedConnection| {
                        let taken =
                            shared.change(|machine, now| machine.handle_announcement(now, said, seen));
                        shared.changed.notify_one();
                        taken.inspect_err(|_| metrics.note_failure(Cause::Announcement))
                    };
                    let take = announce::of_own_flows(reader, take);
                    announce::answer(listener, take, announce::IDLE_MAX).await;
                }
                None => pending().await,
            }
        };
        let rules = std::mem::take(&mut self.rules);
        let naming =
            async { if rules.is_empty() { pending().await } else { ports::name_uncovered(rules).await } };
        let ended = tokio::select! {
            never = naming => match never {},
            line = self.work() => Err(AgentError::GivenUp(line)),
            () = answering => Ok(()),
            () = end => Ok(()),
        };
        self.leave().await;
        let Self { leavings, enforcer, .. } = self;
        drop(enforcer);
        let set_back = leavings.clear();
        ended.and(set_back)
    }

    /// Executes the state machine's actions until it gives up. Returns the reason in one line.
    async fn work(&self) -> String {
        let mut under_way = RequestsInFlight::default();
        loop {
            while let Some(next) = self.next() {
                match next {
                    AgentStep::Event(Event::Order(order)) => self.enforcer.order(order).await,
                    AgentStep::Event(Event::Notice(notice)) => self.say(&notice),
                    AgentStep::Event(Event::GivenUp(line)) => {
                        self.metrics.note_failure(Cause::Refused);
                        return line;
                    }
                    AgentStep::Ask(number, ask) => self.begin(&mut under_way, number, ask),
                }
            }
            let due = {
                let clocked = lock(&self.shared.clocked);
                under_way.keep_only(|number| clocked.machine.is_awaited(number));
                self.metrics.is_joined.set(clocked.machine.is_joined().into());
                let now = clocked.now();
                clocked.machine.poll_timeout().map(|at| at.saturating_since(now).to_std())
            };
            let due = async {
                match due {
                    Some(left) => sleep(left).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                (number, answer) = under_way.next() => {
                    self.take_answer(number, answer);
                }
                () = self.shared.changed.notified() => {}
                () = due => self.shared.change(machine::Agent::handle_timeout),
            }
        }
    }

    fn take_answer(&self, number: u64, answer: Result<Answer, Failure>) {
        let listed = match &answer {
            Ok(Answer::Listing { flows, .. }) => Some(flows.clone()),
            _ => None,
        };
        let known = self.shared.change(|machine, now| {
            machine.handle_answer(now, number, answer);
            listed.is_some().then(|| machine.connections())
        });
        if let (Some(flows), Some(known)) = (listed, known) {
            self.metrics.note_listing(&flows, &known, std::time::Instant::now());
        }
    }

    fn next(&self) -> Option<AgentStep> {
        let machine = &mut lock(&self.shared.clocked).machine;
        let event = machine.poll_event().map(AgentStep::Event);
        event.or_else(|| machine.poll_ask().map(|(number, ask)| AgentStep::Ask(number, ask)))
    }

    fn say(&self, notice: &Notice) {
        self.metrics.note(notice);
        match notice {
            Notice::Joined => tracing::info!("joined coordinator {}", self.client.address()),
            Notice::Back | Notice::Rejoins(_) => tracing::info!("{notice}"),
            Notice::StillAway(_) => tracing::debug!("{notice}"),
            Notice::Away(_) | Notice::Silent | Notice::Unlisted(_) | Notice::Cut(_) | Notice::Full => {
                tracing::warn!("{notice}");
            }
        }
    }

    /// Starts an action of the state machine.
    fn begin(&self, under_way: &mut RequestsInFlight, number: u64, ask: AgentAction) {
        let (client, name) = (self.client.clone(), self.name.clone());
        let within = REPLY_MAX.to_std();
        let (metrics, begun) = (Arc::clone(&self.metrics), std::time::Instant::now());
        let took = move || metrics.report_seconds.observe(begun.elapsed().as_secs_f64());
        match ask {
            AgentAction::Prepare => under_way.begin(number, async move {
                // The address of a name may change. If the lookup fails, the client's request fails
                // as well, and its error is reported.
                let found = timeout(within, lookup(client.address())).await;
                let coordinator = found.ok().and_then(Result::ok);
                let failed = |error| Failure::Refused(format!("/dev/urandom: {error}"));
                Ok(Answer::Prepared { coordinator, session: random().map_err(failed)? })
            }),
            AgentAction::Look => {
                let (reader, shared) = (self.reader.clone(), self.shared.clone());
                under_way.begin(number, async move {
                    // Reading the kernel's list of connections takes some microseconds for each
                    // flow.
                    let listing = spawn_blocking(move || list(&reader, &shared)).await;
                    let listing = listing.map_err(std::io::Error::other).and_then(|listing| listing);
                    let Listing { flows, left_out } =
                        listing.map_err(|error| Failure::Passing(error.to_string()))?;
                    let flows = flows.iter().map(seen).collect();
                    Ok(Answer::Listing { flows, left_out: left_out as u64 })
                });
            }
            AgentAction::Join(request) => under_way.begin(number, async move {
                let joined = client.join(&name, &request, within).await;
                took();
                joined.map(|()| Answer::Taken).map_err(failure)
            }),
            AgentAction::Report(request) => under_way.begin(number, async move {
                let reported = client.report(&name, &request, within).await;
                took();
                reported.map(|()| Answer::Taken).map_err(failure)
            }),
            AgentAction::Limits { session } => under_way.begin(number, async move {
                let limits = client.limits(&name, session, LIMITS_WAIT.to_std(), within).await;
                limits.map(Answer::Limits).map_err(failure)
            }),
            // This action is requested only at the agent's end.
            AgentAction::Leave { .. } => {}
        }
    }

    async fn leave(&self) {
        self.shared.change(machine::Agent::handle_end);
        while let Some(next) = self.next() {
            match next {
                AgentStep::Event(Event::Order(order)) => self.enforcer.order(order).await,
                AgentStep::Ask(_, AgentAction::Leave { session }) => {
                    self.enforcer.done().await;
                    let _ = self.client.leave(&self.name, session, REPLY_MAX.to_std() / 2).await;
                }
                AgentStep::Event(_) | AgentStep::Ask(..) => {}
            }
        }
        self.enforcer.done().await;
    }
}

/// Lists this host's connections. If there are too many, announced connections have precedence.
fn list(reader: &Mutex<FlowReader>, shared: &Shared) -> std::io::Result<Listing> {
    let mut reader = lock(reader);
    let listing = reader.list(CONNECTIONS_MAX)?;
    if listing.left_out == 0 {
        return Ok(listing);
    }
    let known = lock(&shared.clocked).machine.connections();
    reader.list_with(CONNECTIONS_MAX, |flow| known.contains(&flow))
}

impl AgentLeftovers {
    /// Removes the socket. The guard restores the burst setting if there is a guard, else this
    /// process does.
    fn clear(self) -> Result<(), AgentError> {
        if let Some(path) = &self.listen {
            let _ = remove_file(path);
        }
        if let Some(mut guard) = self.guard {
            drop(guard.stdin.take());
            let _ = guard.wait();
            return Ok(());
        }
        guard::clean_up(&self.state, self.device.as_deref())
    }
}
