//! The controller as a service: nodes report, tables go back with the answers; operators look and drain.
//!
//! A node posts its report each second and takes the messages for it from the answer. The optimiser
//! runs apart from the requests. Directories of places go out to DNS and steering. The lead and the
//! drained nodes are stored before anything that depends on them leaves. Leaves out: the decisions
//! (`live_proto::control::controller`, `live_proto::round`). Read [`ControllerService`] first.

pub mod client;
pub mod follow;
mod http;
pub mod wire;

use crate::description::{Description, Layout};
use anabranch_election::StoreAsk;
use anabranch_http::lease::{FileStore, LeaseError, SharedStore, Stored};
use anabranch_http::metrics::{Metrics, quoted};
use anabranch_live_proto::control::controller::{
    Controller, ControllerError as MachineError, ControllerEvent, ControllerSettings, PlanJob,
};
use anabranch_live_proto::control::messages::{Report, ToNode};
use anabranch_live_proto::directory::Directory;
use anabranch_live_proto::round::{Round, RoundSettings};
use anabranch_live_proto::{NodeId, Object};
use anabranch_units::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};
use wire::{EventView, LinkView, NodeView, RoundView, StreamView};

/// Most events and rounds that are kept for operators.
const HISTORY_MAX: usize = 1_000;
/// Most messages that wait for one node's next report.
const MAILBOX_MAX: usize = 64;
/// Priority of the optimiser's thread, as nice(1) has it.
const NICE: i32 = 10;

/// Set-up of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The network.
    pub description: Description,
    /// File for the lead and the drained nodes. `None`: in memory, for tests.
    pub store: Option<PathBuf>,
    /// Timing and limits.
    pub settings: ControllerSettings,
    /// The optimiser's choices.
    pub round: RoundSettings,
}

impl ControllerConfig {
    /// A controller with default settings.
    pub fn new(description: Description, store: Option<&Path>) -> Self {
        Self {
            description,
            store: store.map(Path::to_owned),
            settings: ControllerSettings::default(),
            round: RoundSettings::default(),
        }
    }
}

/// A controller that cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControllerError {
    /// A defect of the description.
    Description(crate::description::DescriptionError),
    /// A defect of its groups, or a setting.
    Machine(MachineError),
    /// The store cannot be used.
    Store(LeaseError),
}

impl std::fmt::Display for ControllerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Description(error) => write!(f, "{error}"),
            Self::Machine(error) => write!(f, "{error}"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ControllerError {}

/// State of a controller that outlives it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Number of writes.
    round: u64,
    /// Number of the last lead.
    lead: u64,
    /// Names of the drained nodes.
    draining: BTreeSet<String>,
}

impl Stored for Kept {
    const FORMAT: &'static str = "live 1";

    fn round(&self) -> u64 {
        self.round
    }
}

/// The controller; clones share it.
#[derive(Clone)]
pub struct ControllerService {
    shared: Arc<Shared>,
}

struct Shared {
    layout: Layout,
    settings: ControllerSettings,
    state: Mutex<State>,
    round: Mutex<Round>,
    /// State as the store has it; locked while the store is written.
    kept: Mutex<Kept>,
    store: Box<dyn SharedStore<Kept>>,
    /// The machine has a new deadline, or a job.
    changed: Notify,
    /// An event or a round has been added.
    told: Notify,
    directory: watch::Sender<Arc<Directory>>,
    epoch: tokio::time::Instant,
}

struct State {
    machine: Controller,
    mailboxes: BTreeMap<NodeId, VecDeque<ToNode>>,
    events: VecDeque<EventView>,
    events_ever: u64,
    rounds: VecDeque<RoundView>,
    /// Messages that a full mailbox has dropped.
    dropped: u64,
    reports: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl ControllerService {
    /// Opens the store, and takes the next lead.
    ///
    /// Errors: see [`ControllerError`].
    pub fn open(config: ControllerConfig) -> Result<Self, ControllerError> {
        let layout = Layout::new(config.description).map_err(ControllerError::Description)?;
        let store = |error| ControllerError::Store(LeaseError::File(error));
        let keeper: Box<dyn SharedStore<Kept>> = match &config.store {
            Some(path) => Box::new(FileStore::open(path).map_err(store)?),
            None => Box::new(FileStore::in_memory().map_err(store)?),
        };
        let last = keeper.answer(&StoreAsk::Read).map_err(ControllerError::Store)?;
        let mut kept = match last {
            anabranch_election::StoreTold::Last { decision: Some(kept), .. } => Kept::clone(&kept),
            _ => Kept::default(),
        };
        kept.lead += 1;
        keep(&*keeper, &mut kept).map_err(ControllerError::Store)?;
        let epoch = tokio::time::Instant::now();
        let (network, groups) = (layout.network().clone(), layout.group_edges());
        let now = Instant::from_std(epoch.elapsed());
        let machine = Controller::new(now, network, groups, kept.lead, config.settings);
        let mut machine = machine.map_err(ControllerError::Machine)?;
        let drained = kept.draining.iter().filter_map(|name| layout.network().find(name));
        drained.for_each(|node| machine.handle_drain(now, node));
        let state = State {
            machine,
            mailboxes: BTreeMap::new(),
            events: VecDeque::new(),
            events_ever: 0,
            rounds: VecDeque::new(),
            dropped: 0,
            reports: 0,
        };
        let shared = Shared {
            layout,
            settings: config.settings,
            state: Mutex::new(state),
            round: Mutex::new(Round::new(config.round)),
            kept: Mutex::new(kept),
            store: keeper,
            changed: Notify::new(),
            told: Notify::new(),
            directory: watch::Sender::new(Arc::default()),
            epoch,
        };
        let service = Self { shared: Arc::new(shared) };
        service.publish(&lock(&service.shared.state));
        Ok(service)
    }

    /// The network.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// Places of viewers as they change: for DNS and steering within this process.
    pub fn directory(&self) -> watch::Receiver<Arc<Directory>> {
        self.shared.directory.subscribe()
    }

    fn now(&self) -> Instant {
        Instant::from_std(self.shared.epoch.elapsed())
    }

    /// One call of the machine, and all that follows from it.
    fn with<T>(&self, call: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = lock(&self.shared.state);
        let result = call(&mut state, self.now());
        let State { machine, mailboxes, dropped, .. } = &mut *state;
        while let Some((node, message)) = machine.poll_transmit() {
            let mailbox = mailboxes.entry(node).or_default();
            if mailbox.len() >= MAILBOX_MAX {
                mailbox.pop_front();
                *dropped += 1;
            }
            mailbox.push_back(message);
        }
        let mut is_news = false;
        while let Some(event) = state.machine.poll_event() {
            is_news |= matches!(
                event,
                ControllerEvent::Mapping | ControllerEvent::Silent(_) | ControllerEvent::Heard(_)
            );
            self.note(&mut state, &event);
        }
        if is_news {
            self.publish(&state);
        }
        drop(state);
        self.shared.changed.notify_one();
        result
    }

    fn note(&self, state: &mut State, event: &ControllerEvent) {
        let name = |node: &NodeId| self.shared.layout.entry(*node).name.clone();
        let (kind, node, text) = match event {
            ControllerEvent::Silent(node) => ("silent", Some(name(node)), "it does not report".to_owned()),
            ControllerEvent::Heard(node) => ("heard", Some(name(node)), "it reports".to_owned()),
            ControllerEvent::Mapping => ("places", None, "places of viewers have changed".to_owned()),
            ControllerEvent::Issued(version) => {
                ("tables", None, format!("tables {version} are on their way"))
            }
            ControllerEvent::Settled(left) => {
                ("settled", None, format!("{left} routes of the plan are left"))
            }
            _ => return,
        };
        match (kind, &node) {
            ("silent", Some(node)) => tracing::warn!("node {node}: it does not report, and counts as failed"),
            ("heard", Some(node)) => tracing::info!("node {node}: it reports"),
            _ => tracing::debug!("{text}"),
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

    /// Publishes the places of viewers.
    fn publish(&self, state: &State) {
        let machine = &state.machine;
        let is_open = |node| machine.is_open(node);
        let objects = |node| machine.streams(node).map(|(object, _)| object).collect();
        let directory = self.shared.layout.directory(machine.version(), machine.mapping(), is_open, objects);
        self.shared.directory.send_replace(Arc::new(directory));
    }

    /// Takes a node's report. Returns the messages for the node.
    fn report(&self, node: NodeId, report: Report) -> Vec<ToNode> {
        self.with(|state, now| {
            state.reports += 1;
            state.machine.handle_report(now, node, report);
        });
        lock(&self.shared.state).mailboxes.remove(&node).map(Vec::from).unwrap_or_default()
    }

    /// Empties a node, or fills it again. Stored before it takes effect.
    fn drain(&self, node: NodeId, drains: bool) -> Result<(), LeaseError> {
        let name = self.shared.layout.entry(node).name.clone();
        // Two operators write one after the other: neither overwrites the other's drain.
        let mut kept = lock(&self.shared.kept);
        let mut next = kept.clone();
        let is_new = if drains { next.draining.insert(name.clone()) } else { next.draining.remove(&name) };
        if !is_new {
            return Ok(());
        }
        keep(&*self.shared.store, &mut next)?;
        *kept = next;
        self.with(|state, now| {
            let text = if drains {
                state.machine.handle_drain(now, node);
                "an operator drains it"
            } else {
                state.machine.handle_undrain(now, node);
                "an operator has it carry streams again"
            };
            tracing::info!("node {name}: {text}");
            self.add_event(state, "drain", Some(name), text.to_owned());
            self.publish(state);
        });
        Ok(())
    }

    /// Runs deadlines and jobs. Never returns; dropped to stop.
    async fn go_on(&self) {
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let (job, wait) = {
                let mut state = lock(&self.shared.state);
                let job = state.machine.poll_job();
                let due = state.machine.poll_timeout();
                (job, due.saturating_since(self.now()).to_std())
            };
            if let Some(job) = job {
                let service = self.clone();
                tasks.spawn(async move { service.solve(job).await });
            }
            while tasks.try_join_next().is_some() {}
            // A millisecond more: timers fire early by their rounding.
            let wait = tokio::time::sleep(wait + std::time::Duration::from_millis(1));
            tokio::select! {
                () = wait => self.with(|state, now| state.machine.handle_timeout(now)),
                () = self.shared.changed.notified() => {}
            }
        }
    }

    async fn solve(&self, job: PlanJob) {
        let shared = Arc::clone(&self.shared);
        let began = std::time::Instant::now();
        let solved = tokio::task::spawn_blocking(move || {
            // This thread's alone. Where it may not, it runs as before.
            let _ = rustix::process::setpriority_process(None, NICE);
            let layout = &shared.layout;
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
            if let Err(error) = state.machine.handle_plan(now, number, plan) {
                // A later job has replaced it, or the network has changed meanwhile.
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

    /// Nodes as operators see them.
    fn nodes(&self) -> Vec<NodeView> {
        let state = lock(&self.shared.state);
        let nodes = self.shared.layout.description().nodes.iter().zip((0..).map(NodeId));
        let view = |(entry, node): (&crate::description::NodeEntry, NodeId)| NodeView {
            name: entry.name.clone(),
            tier: entry.tier,
            is_up: state.machine.is_reporting(node),
            is_draining: state.machine.draining().contains(&node),
            version: state.machine.installed(node).to_string(),
            streams: state.machine.streams(node).count() as u64,
            viewers: state.machine.viewers_at(node).map(|(_, viewers)| viewers).sum(),
        };
        nodes.map(view).collect()
    }

    /// Links with the streams that nodes report on them.
    fn links(&self) -> Vec<LinkView> {
        let state = lock(&self.shared.state);
        let layout = &self.shared.layout;
        let name = |node: NodeId| layout.entry(node).name.clone();
        let mut used: BTreeMap<(NodeId, NodeId), u64> = BTreeMap::new();
        for (object, node, parent) in running(&state.machine, layout) {
            *used.entry((parent, node)).or_default() += object.bitrate.as_bps();
        }
        let links = layout.network().links().iter().zip(state.machine.believed());
        let view = |(link, believed): (&anabranch_live_proto::Link, anabranch_units::BitRate)| LinkView {
            from: name(link.from),
            to: name(link.to),
            capacity_bps: link.capacity.as_bps(),
            believed_bps: believed.as_bps(),
            used_bps: used.get(&(link.from, link.to)).copied().unwrap_or(0),
            cost: link.cost,
        };
        links.map(view).collect()
    }

    /// Streams that nodes report.
    fn streams(&self) -> Vec<StreamView> {
        let state = lock(&self.shared.state);
        let layout = &self.shared.layout;
        let view = |(object, node, parent): (Object, NodeId, NodeId)| {
            let (channel, rendition) = layout.names(object)?;
            Some(StreamView {
                channel: channel.to_owned(),
                rendition: rendition.to_owned(),
                bitrate_bps: object.bitrate.as_bps(),
                node: layout.entry(node).name.clone(),
                parent: layout.entry(parent).name.clone(),
            })
        };
        running(&state.machine, layout).filter_map(view).collect()
    }

    /// Events after this number, at most `wait` from now if there are none yet.
    async fn events(&self, after: u64, wait: std::time::Duration) -> Vec<EventView> {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let told = self.shared.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let found: Vec<EventView> = {
                let state = lock(&self.shared.state);
                state.events.iter().filter(|event| event.number > after).cloned().collect()
            };
            if !found.is_empty() || tokio::time::timeout_at(until, told).await.is_err() {
                return found;
            }
        }
    }

    fn rounds(&self) -> Vec<RoundView> {
        lock(&self.shared.state).rounds.iter().cloned().collect()
    }

    /// Metrics in Prometheus' format.
    fn metrics(&self) -> String {
        let mut text = Metrics::default();
        let (nodes, links) = (self.nodes(), self.links());
        let state = lock(&self.shared.state);
        let version = state.machine.version();
        let up = nodes.iter().filter(|node| node.is_up).count() as u64;
        let all: [(&str, &str, &str, u64); 7] = [
            ("nodes_up", "gauge", "Nodes that report.", up),
            ("lead", "gauge", "Number of the lead.", version.lead),
            ("decision", "gauge", "Number of the last tables of this lead.", version.decision),
            ("reports_total", "counter", "Reports of nodes.", state.reports),
            ("rounds", "gauge", "Rounds that are kept for operators.", state.rounds.len() as u64),
            ("events_total", "counter", "Events.", state.events_ever),
            ("messages_dropped_total", "counter", "Messages that full mailboxes dropped.", state.dropped),
        ];
        for (name, kind, help, value) in all {
            text.metric(&format!("live_controller_{name}"), kind, help, &Metrics::plain(value));
        }
        drop(state);
        let label = |node: &NodeView| format!("{{node=\"{}\"}}", quoted(&node.name));
        let viewers: Vec<_> = nodes.iter().map(|node| (label(node), node.viewers)).collect();
        text.metric("live_viewers", "gauge", "Viewers that nodes report.", &viewers);
        let label =
            |link: &LinkView| format!("{{from=\"{}\",to=\"{}\"}}", quoted(&link.from), quoted(&link.to));
        let used: Vec<_> = links.iter().map(|link| (label(link), link.used_bps)).collect();
        text.metric("live_link_used_bps", "gauge", "Sum of the bitrates of a link's streams.", &used);
        let believed: Vec<_> = links.iter().map(|link| (label(link), link.believed_bps)).collect();
        text.metric("live_link_capacity_bps", "gauge", "Capacity of a link as nodes report it.", &believed);
        text.text()
    }

    /// The trouble that `/healthz` states.
    fn trouble(&self) -> Option<String> {
        let nodes = self.nodes();
        let silent = nodes.iter().filter(|node| !node.is_up).count();
        (2 * silent > nodes.len()).then(|| format!("{silent} of {} nodes do not report", nodes.len()))
    }

    /// Time between two rounds.
    pub fn round_time(&self) -> Duration {
        self.shared.settings.round
    }
}

/// Streams with node and parent, as the nodes that are up report them.
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

/// Writes the state.
fn keep(store: &dyn SharedStore<Kept>, kept: &mut Kept) -> Result<(), LeaseError> {
    kept.round += 1;
    let before = anabranch_election::Stamp::default();
    let decision = Arc::new(kept.clone());
    store.answer(&StoreAsk::Keep { epoch: 1, decided: kept.round, before, decision }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    const NODES: usize = 16;

    fn description() -> Description {
        let text: String = (0..NODES)
            .map(|node| {
                format!(
                    "[[node]]\nname = \"e{node}\"\ntier = \"edge\"\nmedia = \"http://127.0.0.1:{}\"\n",
                    7_000 + node
                )
            })
            .collect();
        Description::from_toml(&text).expect("a good description")
    }

    fn drained(service: &ControllerService) -> usize {
        service.nodes().iter().filter(|node| node.is_draining).count()
    }

    #[test]
    fn drains_at_the_same_time_outlive_the_controller() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = ControllerConfig::new(description(), Some(&folder.path().join("live.redb")));
        let service = ControllerService::open(config.clone()).expect("a new store");
        let lead = lock(&service.shared.state).machine.version().lead;
        let together = Barrier::new(NODES);
        std::thread::scope(|scope| {
            for node in (0..NODES as u32).map(NodeId) {
                let (service, together) = (&service, &together);
                scope.spawn(move || {
                    together.wait();
                    service.drain(node, true).expect("a store");
                });
            }
        });
        service.drain(NodeId(3), false).expect("a store");
        assert_eq!(drained(&service), NODES - 1);
        drop(service);
        let service = ControllerService::open(config).expect("the store of before");
        assert_eq!(drained(&service), NODES - 1);
        assert!(lock(&service.shared.state).machine.version().lead > lead);
    }
}
