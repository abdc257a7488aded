//! The controller as a service. Nodes report and get their tables in the answers. Operators view
//! the network, drain nodes, and change the network.
//!
//! A node posts its report each second, and the answer has the messages for the node. The optimiser
//! runs in a separate thread. Directories are published for DNS and steering. The lead, the drained
//! nodes and the network are stored before any message depends on them. Several controllers share a
//! store in etcd, and one of them leads. Leaves out: the decisions
//! (`live_proto::control::controller`, `live_proto::round`). Read [`ControllerService`] first.

pub mod client;
#[doc(hidden)]
pub mod exercise;
pub mod follow;
mod http;
mod registry;
mod store_effects;
#[cfg(test)]
mod tests;
mod views;
pub mod wire;

pub use http::openapi;

use crate::description::{Change, Description, DescriptionError, Layout};
use anabranch_election::Replica;
use anabranch_http::lease::{EtcdConfig, EtcdConfigError, EtcdStore, FileStore, LeaseError, SharedStore};
use anabranch_live_proto::control::controller::{
    Controller, ControllerError as MachineError, ControllerEvent, ControllerSettings, PlanJob,
};
use anabranch_live_proto::control::messages::{Report, ToNode};
use anabranch_live_proto::directory::Directory;
use anabranch_live_proto::round::{Round, RoundSettings};
use anabranch_live_proto::{NodeId, Object};
use anabranch_units::{Duration, Instant};
use registry::{ControllerState, Registry};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};
use wire::{EventView, ReportReply, RoundView};

/// Maximum number of events, and of rounds, kept for operators.
const HISTORY_MAX: usize = 1_000;
/// Maximum number of messages kept for one node until its next report.
const MAILBOX_MAX: usize = 64;
/// Shortest time between two log lines that a node reports, unless it was silent between them.
const HEARD_LOG_PAUSE: Duration = Duration::from_secs(10);
/// Nice value of the optimiser's thread (nice(1)).
const NICE: i32 = 10;
/// Duration of a lead whose store no other controller uses.
const LEASE_ALONE: Duration = Duration::from_secs(600);
/// Longest wait of an operator's request for the store.
const STORE_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// Where the lead, the drained nodes and the network are stored.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreConfig {
    /// A file that only this controller uses. It is created if it does not exist.
    File(PathBuf),
    /// In memory, lost at the end of the process. For tests.
    Memory,
    /// In etcd, shared with other controllers. Only one of them leads.
    Etcd(EtcdConfig),
}

/// Configuration of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The network for a new store. A store that already has a network keeps it.
    pub description: Description,
    /// Store of the lead, the drained nodes and the network.
    pub store: StoreConfig,
    /// Timing and limits.
    pub settings: ControllerSettings,
    /// Settings of the optimiser's rounds.
    pub round: RoundSettings,
}

impl ControllerConfig {
    /// Creates a configuration with default settings. `store` is a file, or `None` for memory.
    pub fn new(description: Description, store: Option<&Path>) -> Self {
        Self {
            description,
            store: store.map_or(StoreConfig::Memory, |path| StoreConfig::File(path.to_owned())),
            settings: ControllerSettings::default(),
            round: RoundSettings::default(),
        }
    }
}

/// Reason why a controller cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControllerError {
    /// The description is invalid.
    Description(DescriptionError),
    /// The description's groups or a setting are invalid.
    Machine(MachineError),
    /// The store cannot be used.
    Store(LeaseError),
    /// A setting of etcd is invalid.
    Etcd(EtcdConfigError),
}

impl std::fmt::Display for ControllerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Description(error) => write!(f, "{error}"),
            Self::Machine(error) => write!(f, "{error}"),
            Self::Store(error) => write!(f, "{error}"),
            Self::Etcd(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ControllerError {}

/// Refusal of a request by an operator or a node. No state is changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RequestRefusal {
    /// Another controller leads. Holds its address if known.
    Follows(Option<String>),
    /// The network has no node with this name.
    UnknownNode(String),
    /// The network has changed in the meantime: version in the request, current version.
    OtherVersion(u64, u64),
    /// The change is invalid.
    Bad(DescriptionError),
    /// The store has not answered in time. Holds its last error.
    NotStored(String),
}

impl std::fmt::Display for RequestRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Follows(Some(leader)) => write!(f, "this controller does not lead: ask {leader}"),
            Self::Follows(None) => f.write_str("no controller leads at present: ask again"),
            Self::UnknownNode(name) => write!(f, "node `{name}`: no such node in the network's description"),
            Self::OtherVersion(asked, now) => {
                write!(f, "version {asked} of the network: it has version {now}: read it and change that one")
            }
            Self::Bad(error) => write!(f, "{error}"),
            Self::NotStored(error) => {
                write!(f, "not stored within {} s, and in force once it is: {error}", STORE_TIME.as_secs())
            }
        }
    }
}

/// The controller. Clones share its state.
#[derive(Clone)]
pub struct ControllerService {
    shared: Arc<Shared>,
}

struct Shared {
    settings: ControllerSettings,
    state: Mutex<State>,
    round: Mutex<Round>,
    store: Arc<dyn SharedStore<ControllerState>>,
    /// The machine has a new deadline or job, or the store is ready for the next request.
    changed: Notify,
    /// An event or round was added, a state was stored, or the lead has ended.
    told: Notify,
    directory: watch::Sender<Arc<Directory>>,
    epoch: tokio::time::Instant,
}

struct State {
    replica: Replica<Registry>,
    /// The network, as stored.
    layout: Arc<Layout>,
    /// Version of the network.
    version: u64,
    /// State of the lead. `None` while another controller leads.
    lead: Option<LeadState>,
    events: VecDeque<EventView>,
    events_ever: u64,
    rounds: VecDeque<RoundView>,
    /// Number of messages dropped by full mailboxes.
    dropped: u64,
    reports: u64,
    /// Number of planned routes that could not be installed when the tables last settled.
    settled_left: Option<usize>,
    store_error: Option<String>,
    /// When the log last said that a node reports, since the node was last silent.
    heard_logged: BTreeMap<String, Instant>,
}

/// State of a controller that leads.
struct LeadState {
    machine: Controller,
    mailboxes: BTreeMap<NodeId, VecDeque<ToNode>>,
    /// The stored state that the machine uses.
    kept: Arc<ControllerState>,
}

impl State {
    /// The lead and the network of this controller.
    ///
    /// Errors: another controller leads.
    fn leading(&self) -> Result<(&LeadState, &Layout), RequestRefusal> {
        let lead = self.lead.as_ref();
        lead.map(|lead| (lead, &*self.layout)).ok_or_else(|| self.follows())
    }

    fn follows(&self) -> RequestRefusal {
        RequestRefusal::Follows(self.replica.leader().map(str::to_owned))
    }

    /// Whether to log that a node reports. A node may claim a restart in each report.
    fn logs_heard(&mut self, node: &str, now: Instant) -> bool {
        let last = self.heard_logged.get(node);
        let is_due = last.is_none_or(|at| now.saturating_since(*at) >= HEARD_LOG_PAUSE);
        if is_due {
            self.heard_logged.insert(node.to_owned(), now);
        }
        is_due
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl ControllerService {
    /// Opens the store. With a file as store, the controller takes the next lead at once.
    ///
    /// Errors: see [`ControllerError`].
    pub fn open(config: ControllerConfig) -> Result<Self, ControllerError> {
        let first = Arc::new(config.description);
        let layout = Layout::new(Description::clone(&first)).map_err(ControllerError::Description)?;
        let epoch = tokio::time::Instant::now();
        // Invalid settings must be reported to the caller now, not when a later lead begins.
        let (network, groups) = (layout.network().clone(), layout.group_edges());
        Controller::new(Instant::ZERO, network, groups, 1, config.settings)
            .map_err(ControllerError::Machine)?;
        let file = |error| ControllerError::Store(LeaseError::File(error));
        let store: Arc<dyn SharedStore<ControllerState>> = match config.store {
            StoreConfig::File(path) => Arc::new(FileStore::open(&path).map_err(file)?),
            StoreConfig::Memory => Arc::new(FileStore::in_memory().map_err(file)?),
            StoreConfig::Etcd(etcd) => Arc::new(EtcdStore::new(etcd).map_err(ControllerError::Etcd)?),
        };
        let lease = store.lease().map_or(LEASE_ALONE, Duration::from_std);
        let state = State {
            // The current time exceeds the numbers of all earlier decisions.
            replica: Replica::new(Instant::ZERO, Arc::clone(&first), lease, unix_ms()),
            layout: Arc::new(layout),
            version: 0,
            lead: None,
            events: VecDeque::new(),
            events_ever: 0,
            rounds: VecDeque::new(),
            dropped: 0,
            reports: 0,
            settled_left: None,
            store_error: None,
            heard_logged: BTreeMap::new(),
        };
        let shared = Shared {
            settings: config.settings,
            state: Mutex::new(state),
            round: Mutex::new(Round::new(config.round)),
            store,
            changed: Notify::new(),
            told: Notify::new(),
            directory: watch::Sender::new(Arc::default()),
            epoch,
        };
        let service = Self { shared: Arc::new(shared) };
        service.lead_alone().map_err(ControllerError::Store)?;
        if *lock(&service.shared.state).layout.description() != *first {
            tracing::warn!("the store's network counts, and differs from the given one: see `live network`");
        }
        Ok(service)
    }

    /// The current network.
    pub fn layout(&self) -> Arc<Layout> {
        Arc::clone(&lock(&self.shared.state).layout)
    }

    /// Whether this controller leads.
    pub fn leads(&self) -> bool {
        lock(&self.shared.state).lead.is_some()
    }

    fn follows(&self) -> RequestRefusal {
        lock(&self.shared.state).follows()
    }

    /// Receiver of the directory at each change, for DNS and steering in this process.
    pub fn directory(&self) -> watch::Receiver<Arc<Directory>> {
        self.shared.directory.subscribe()
    }

    fn now(&self) -> Instant {
        Instant::from_std(self.shared.epoch.elapsed())
    }

    /// Calls the machine, then handles its messages and events.
    fn with<T>(&self, call: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = lock(&self.shared.state);
        let result = call(&mut state, self.now());
        self.settle(&mut state);
        drop(state);
        self.shared.changed.notify_one();
        result
    }

    /// Distributes the machine's messages to mailboxes, and handles its events.
    fn settle(&self, state: &mut State) {
        let Some(LeadState { machine, mailboxes, .. }) = &mut state.lead else { return };
        while let Some((node, message)) = machine.poll_transmit() {
            let mailbox = mailboxes.entry(node).or_default();
            if mailbox.len() >= MAILBOX_MAX {
                mailbox.pop_front();
                state.dropped += 1;
            }
            mailbox.push_back(message);
        }
        let events: Vec<ControllerEvent> = std::iter::from_fn(|| machine.poll_event()).collect();
        let is_news = |event: &ControllerEvent| !matches!(event, ControllerEvent::Issued(_));
        let is_published = events.iter().any(is_news);
        events.iter().for_each(|event| self.note(state, event));
        if is_published {
            self.publish(state);
        }
    }

    fn note(&self, state: &mut State, event: &ControllerEvent) {
        let name = |node: &NodeId| state.layout.entry(*node).name.clone();
        let (kind, node, text) = match event {
            ControllerEvent::Silent(node) => ("silent", Some(name(node)), "it does not report".to_owned()),
            ControllerEvent::Heard(node) => ("heard", Some(name(node)), "it reports".to_owned()),
            ControllerEvent::Mapping => ("places", None, "places of viewers have changed".to_owned()),
            ControllerEvent::Issued(version) => {
                state.settled_left = None;
                ("tables", None, format!("tables {version} are on their way"))
            }
            // Every round settles, so only a changed number is an event.
            ControllerEvent::Settled(left) if state.settled_left.replace(*left) == Some(*left) => return,
            ControllerEvent::Settled(left) => {
                ("settled", None, format!("{left} routes of the plan are left"))
            }
            _ => return,
        };
        match (kind, &node) {
            ("silent", Some(node)) => {
                state.heard_logged.remove(node);
                tracing::warn!("node {node}: it does not report, and counts as failed");
            }
            ("heard", Some(node)) if state.logs_heard(node, self.now()) => {
                tracing::info!("node {node}: it reports");
            }
            (_, Some(node)) => tracing::debug!("node {node}: {text}"),
            (_, None) => tracing::debug!("{text}"),
        }
        self.add_event(state, kind, node, text);
    }

    fn add_event(&self, state: &mut State, kind: &str, node: Option<String>, text: String) {
        state.events_ever += 1;
        let event =
            EventView { number: state.events_ever, unix_ms: unix_ms(), kind: kind.to_owned(), node, text };
        state.events.push_back(event);
        if state.events.len() > HISTORY_MAX {
            state.events.pop_front();
        }
        self.shared.told.notify_waiters();
    }

    /// Publishes the directory if it has changed.
    fn publish(&self, state: &State) {
        let Some(LeadState { machine, .. }) = &state.lead else { return };
        let is_open = |node| machine.is_open(node);
        let objects = |node| machine.streams(node).map(|(object, _)| object).collect();
        let directory = state.layout.directory(machine.version(), machine.mapping(), is_open, objects);
        self.shared.directory.send_if_modified(|published| {
            let is_new = **published != directory;
            if is_new {
                *published = Arc::new(directory);
            }
            is_new
        });
    }

    /// Handles a node's report. Returns the messages for the node.
    ///
    /// Errors: another controller leads; unknown node.
    fn report(&self, node: &str, report: Report) -> Result<ReportReply, RequestRefusal> {
        self.with(|state, now| {
            let follows = state.follows();
            let lead = state.lead.as_mut().ok_or(follows)?;
            let unknown = || RequestRefusal::UnknownNode(node.to_owned());
            let id = state.layout.network().find(node).ok_or_else(unknown)?;
            state.reports += 1;
            lead.machine.handle_report(now, id, report);
            self.settle(state);
            let lead = state.lead.as_mut().expect("found above");
            let messages = lead.mailboxes.remove(&id).map(Vec::from).unwrap_or_default();
            Ok(ReportReply { messages, lead: lead.kept.lead, network: state.version })
        })
    }

    /// Starts or ends the drain of a node. The change is stored before it takes effect.
    async fn drain(&self, name: &str, drains: bool) -> Result<(), RequestRefusal> {
        self.decide(|layout, kept| {
            let is_there = layout.network().find(name).is_some();
            if !is_there || layout.description().removed.nodes.contains(name) {
                return Err(RequestRefusal::UnknownNode(name.to_owned()));
            }
            let name = name.to_owned();
            Ok(if drains { kept.draining.insert(name) } else { kept.draining.remove(&name) })
        })
        .await
        .map(drop)
    }

    /// Changes the network if it still has this version. The change is stored before it takes
    /// effect. Returns the new version.
    async fn change(&self, version: u64, changes: Vec<Change>) -> Result<u64, RequestRefusal> {
        let decided = self.decide(|layout, kept| {
            if kept.version != version {
                return Err(RequestRefusal::OtherVersion(version, kept.version));
            }
            // The layout may lack decisions that are not stored yet.
            let mut head = None;
            let description = kept.network.as_ref().filter(|head| *head != layout.description());
            if let Some(description) = description {
                head = Some(Layout::new(description.clone()).map_err(RequestRefusal::Bad)?);
            }
            let changed = head.as_ref().unwrap_or(layout).changed(changes).map_err(RequestRefusal::Bad)?;
            let is_new = kept.network.as_ref() != Some(changed.description());
            if is_new {
                kept.version += 1;
                kept.network = Some(changed.description().clone());
            }
            Ok(is_new)
        });
        decided.await
    }

    /// Decides on a change of the stored state, and waits until it is in force. Returns the version
    /// of the network. `change` returns false if it changes nothing.
    async fn decide(
        &self,
        change: impl FnOnce(&Layout, &mut ControllerState) -> Result<bool, RequestRefusal>,
    ) -> Result<u64, RequestRefusal> {
        let (version, round, lead) = {
            let mut state = lock(&self.shared.state);
            let lead = state.leading()?.0.kept.lead;
            let layout = Arc::clone(&state.layout);
            let follows = state.follows();
            let registry = state.replica.leading().ok_or(follows)?;
            let mut next = registry.head().clone();
            if !change(&layout, &mut next)? {
                return Ok(next.version);
            }
            (next.version, registry.decide(next), lead)
        };
        self.shared.changed.notify_one();
        let until = tokio::time::Instant::now() + STORE_TIME;
        loop {
            let told = self.shared.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let error = {
                let state = lock(&self.shared.state);
                let (LeadState { kept, .. }, _) = state.leading()?;
                if kept.lead != lead {
                    return Err(state.follows());
                }
                if kept.round >= round {
                    return Ok(version);
                }
                state.store_error.clone()
            };
            if tokio::time::timeout_at(until, told).await.is_err() {
                return Err(RequestRefusal::NotStored(error.unwrap_or_else(|| "no answer yet".to_owned())));
            }
        }
    }

    /// Runs deadlines, jobs and requests to the store. Never returns; stops when dropped.
    async fn go_on(&self) {
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let (job, ask, wait) = {
                let mut state = lock(&self.shared.state);
                let now = self.now();
                state.replica.handle_timeout(now);
                self.take_turns(&mut state);
                let ask = state.replica.poll_ask(now);
                let layout = Arc::clone(&state.layout);
                let machine = state.lead.as_mut().map(|lead| &mut lead.machine);
                let (job, due) = match machine {
                    Some(machine) => (machine.poll_job(), Some(machine.poll_timeout())),
                    None => (None, None),
                };
                let due = due.into_iter().chain(state.replica.poll_timeout()).min();
                let wait = due.map_or(LEASE_ALONE, |due| due.saturating_since(now));
                (job.map(|job| (job, layout)), ask, wait.to_std())
            };
            if let Some((job, layout)) = job {
                let service = self.clone();
                tasks.spawn(async move { service.solve(job, layout).await });
            }
            if let Some((number, ask)) = ask {
                let service = self.clone();
                tasks.spawn(async move { service.ask_store(number, ask).await });
            }
            while tasks.try_join_next().is_some() {}
            // One millisecond is added because timers may fire early by their rounding.
            let wait = tokio::time::sleep(wait + std::time::Duration::from_millis(1));
            tokio::select! {
                () = wait => self.with(|state, now| {
                    if let Some(lead) = &mut state.lead {
                        lead.machine.handle_timeout(now);
                    }
                }),
                () = self.shared.changed.notified() => {}
            }
        }
    }

    async fn solve(&self, job: PlanJob, layout: Arc<Layout>) {
        let shared = Arc::clone(&self.shared);
        let began = std::time::Instant::now();
        let solved = tokio::task::spawn_blocking(move || {
            // The priority applies to this thread only. If it cannot be changed, the thread runs as
            // before.
            let _ = rustix::process::setpriority_process(None, NICE);
            let solved = lock(&shared.round).solve(layout.network(), layout.groups(), &job);
            (job.number, solved)
        });
        let (number, solved) = solved.await.expect("a round does not panic, and the runtime is there");
        let took_s = began.elapsed().as_secs_f64();
        self.with(|state, now| {
            let (plan, report) = match solved {
                Ok(solved) => solved,
                Err(error) => {
                    tracing::error!("round {number}: {error}");
                    return self.add_event(state, "round", None, format!("round {number}: {error}"));
                }
            };
            let Some(lead) = &mut state.lead else { return };
            if let Err(error) = lead.machine.handle_plan(now, number, plan) {
                // A later job has replaced this job, or the network has changed in the meantime.
                tracing::warn!("round {number}: {error}");
                return self.add_event(state, "round", None, format!("round {number}: {error}"));
            }
            let view = RoundView {
                number,
                unix_ms: unix_ms(),
                took_s,
                gap_share: report.gap,
                gap_of_cost_share: report.gap_of_cost,
                requests: report.requests.0 as u64,
                requests_served: report.requests.1 as u64,
                kept_trees: report.kept_trees as u64,
            };
            tracing::info!(
                "round {number}: {} of {} requests served, at most {:.2} % from the best, {took_s:.3} s",
                view.requests_served,
                view.requests,
                100.0 * view.gap_share
            );
            state.rounds.push_back(view);
            if state.rounds.len() > HISTORY_MAX {
                state.rounds.pop_front();
            }
            self.shared.told.notify_waiters();
        });
    }

    /// Time between two rounds.
    pub fn round_time(&self) -> Duration {
        self.shared.settings.round
    }

    /// Releases the lead, so that another controller need not wait until the lease expires.
    pub async fn give_lead_back(&self) {
        if self.shared.store.lease().is_none() {
            return;
        }
        let store = Arc::clone(&self.shared.store);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.leave()).await {
            tracing::warn!("{error}: another controller leads once the lease is over");
        }
    }
}

/// Streams in the reports of live nodes, each with its node and parent.
fn running<'a>(
    machine: &'a Controller,
    layout: &'a Layout,
) -> impl Iterator<Item = (Object, NodeId, NodeId)> + 'a {
    let nodes = (0..layout.network().nodes().len() as u32).map(NodeId);
    let up = nodes.filter(|node| machine.is_reporting(*node));
    up.flat_map(move |node| {
        machine.streams(node).filter_map(move |(object, parent)| Some((object, node, parent?)))
    })
}
