//! The controller: turns reports of nodes into jobs for the optimiser, and plans into routing
//! tables and assignments of viewers to edges.
//!
//! Source: §4.3.1 (central control loop) and §4.4.1. The controller asks an optimiser for a plan
//! once per round, and moves the network to the plan in stages. A stage is one version of the
//! tables. It holds only routes whose links have room for them beside all running streams, so no
//! link is planned above its capacity at any time. Reflectors get the tables of a stage first, then
//! edges. Assignments of viewers are published after the tables. Differs: the thesis states no
//! order.
//!
//! The driver runs [`Controller::poll_job`] and hands the plan back. Leaves out: the optimiser; the
//! election among several controllers, which gives each lead its number. Read [`Controller`] and
//! [`PlanJob`] first.

mod plans;
mod stages;
mod views;

pub use plans::{Plan, PlanError, PlanJob};

use super::differences::{ApplyResult, DeltaReceiver};
use super::messages::{GroupId, Report, ToNode};
use super::node::{GROUPS_MAX, NODE_STREAMS_MAX};
use super::tables::{LinkState, RibEntry, RibUpdate, Version};
use crate::plan::VIEWERS_MAX;
use crate::plan::{SLACK_PPM_MAX, plannable};
use crate::{ChangeError, Network, NodeId, Object, Tier};
use anabranch_units::{BitRate, Duration, Instant, LinkId};
use plans::link_between;
use stages::PlanTransition;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Maximum number of groups of viewers that a controller accepts.
pub const CONTROLLER_GROUPS_MAX: usize = 65_536;
/// Maximum number of versions whose tables the controller keeps, as bases of differential updates.
pub const HISTORY_MAX: usize = 8;

/// Routes of one node from the controller.
type Table = Arc<BTreeMap<Object, RibEntry>>;

/// Timing and limits of a controller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    /// Time between two plans: about a minute (§4.5).
    pub round: Duration,
    /// Silence after which a node counts as failed.
    pub node_silence_max: Duration,
    /// Time in which the nodes of a stage must install their tables, and again in which they must
    /// move their streams.
    pub stage_timeout: Duration,
    /// Time after which an update is sent again to a node that has not installed it.
    pub resend_every: Duration,
    /// Share of each link that stays unplanned for local decisions, in millionths, below 1,000,000.
    pub slack_ppm: u32,
    /// Maximum number of running streams that are moved in one round, not counting streams on
    /// failed links.
    pub moves_max: usize,
    /// Change of a link's capacity that makes evidence stale, in percent. Must equal the nodes'
    /// setting.
    pub stale_percent: u32,
}

impl Default for ControllerSettings {
    fn default() -> Self {
        Self {
            round: Duration::from_secs(60),
            node_silence_max: Duration::from_secs(5),
            stage_timeout: Duration::from_secs(4),
            resend_every: Duration::from_secs(1),
            slack_ppm: 50_000,
            moves_max: 1_000,
            stale_percent: 20,
        }
    }
}

/// An event that the driver logs or acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerEvent {
    /// A node counts as failed.
    Silent(NodeId),
    /// A node has reported, for the first time or after a failure.
    Heard(NodeId),
    /// Assignments of viewers have changed: DNS and content steering must adopt them.
    Mapping,
    /// Tables of this version are being sent.
    Issued(Version),
    /// The tables match the plan, as far as capacities allow. This number of routes could not be
    /// moved.
    Settled(usize),
}

/// An invalid setting, group of viewers, or changed network.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerError {
    /// More groups than [`CONTROLLER_GROUPS_MAX`].
    TooMany(usize),
    /// A group that lists a node other than an edge.
    NotAnEdge(GroupId, NodeId),
    /// A slack of 1,000,000 ppm or more, which leaves no capacity to plan.
    Slack(u32),
    /// A changed network whose ids do not match.
    Network(ChangeError),
}

impl std::fmt::Display for ControllerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooMany(count) => {
                write!(f, "{count} groups: at most {CONTROLLER_GROUPS_MAX} are possible; join some")
            }
            Self::NotAnEdge(group, node) => write!(f, "group {}: node {} is no edge", group.0, node.0),
            Self::Network(error) => write!(f, "{error}"),
            Self::Slack(ppm) => write!(f, "slack_ppm {ppm}: must be below {SLACK_PPM_MAX}"),
        }
    }
}

impl std::error::Error for ControllerError {}

fn check_groups(network: &Network, groups: &[Vec<NodeId>]) -> Result<(), ControllerError> {
    if groups.len() > CONTROLLER_GROUPS_MAX {
        return Err(ControllerError::TooMany(groups.len()));
    }
    let is_edge =
        |node: &NodeId| network.nodes().get(node.index()).is_some_and(|node| node.tier == Tier::Edge);
    for (group, edges) in (0..).map(GroupId).zip(groups) {
        if let Some(node) = edges.iter().find(|node| !is_edge(node)) {
            return Err(ControllerError::NotAnEdge(group, *node));
        }
    }
    Ok(())
}

/// The controller's record of a node.
#[derive(Clone, Debug)]
struct NodeView {
    /// Whether the node was added at run time and has not reported yet.
    is_added: bool,
    life: u64,
    /// Time of the last report; `None` before the first and after a failure.
    heard_at: Option<Instant>,
    version: Version,
    links: BTreeMap<LinkId, LinkState>,
    streams: DeltaReceiver<Object, Option<NodeId>>,
    viewers: DeltaReceiver<(GroupId, Object), u64>,
    /// Time at which an update was last sent.
    sent_at: Option<Instant>,
}

impl NodeView {
    const fn new() -> Self {
        Self {
            is_added: false,
            life: 0,
            heard_at: None,
            version: Version { lead: 0, decision: 0 },
            links: BTreeMap::new(),
            streams: DeltaReceiver::new(NODE_STREAMS_MAX),
            viewers: DeltaReceiver::new(GROUPS_MAX),
            sent_at: None,
        }
    }
}

/// Deadlines of a controller.
#[derive(Copy, Clone, Debug)]
struct Timers {
    /// When to put out a job for the optimiser.
    round: Instant,
    /// When to check for silent nodes and advance the stage.
    tick: Instant,
}

/// State machine of the controller. See the module.
#[derive(Clone, Debug)]
pub struct Controller {
    network: Network,
    /// Edges of each group, the nearest first.
    groups: Vec<Vec<NodeId>>,
    settings: ControllerSettings,
    version: Version,
    nodes: Vec<NodeView>,
    /// Tables of the last [`HISTORY_MAX`] versions, by node.
    history: BTreeMap<Version, Vec<Table>>,
    staging: PlanTransition,
    /// Assignments of viewers to edges, as published.
    mapping: BTreeMap<(GroupId, Object), NodeId>,
    draining: BTreeSet<NodeId>,
    jobs: u64,
    /// The job whose plan is awaited.
    pending: Option<PlanJob>,
    timers: Timers,
    messages: VecDeque<(NodeId, ToNode)>,
    events: VecDeque<ControllerEvent>,
    job: Option<PlanJob>,
}

impl Controller {
    /// Creates a controller that takes the lead. `lead` must be higher than in all earlier leads.
    /// `groups` has the edges of each group of viewers, the nearest first.
    ///
    /// Errors: see [`ControllerError`].
    pub fn new(
        now: Instant,
        network: Network,
        groups: Vec<Vec<NodeId>>,
        lead: u64,
        settings: ControllerSettings,
    ) -> Result<Self, ControllerError> {
        if settings.slack_ppm >= SLACK_PPM_MAX {
            return Err(ControllerError::Slack(settings.slack_ppm));
        }
        check_groups(&network, &groups)?;
        let version = Version { lead, decision: 0 };
        let count = network.nodes().len();
        Ok(Self {
            nodes: vec![NodeView::new(); count],
            history: [(version, vec![Table::default(); count])].into(),
            network,
            groups,
            settings,
            version,
            staging: PlanTransition::default(),
            mapping: BTreeMap::new(),
            draining: BTreeSet::new(),
            jobs: 0,
            pending: None,
            timers: Timers { round: now + settings.node_silence_max, tick: now },
            messages: VecDeque::new(),
            events: VecDeque::new(),
            job: None,
        })
    }

    /// Version of the last tables.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Routes of a node in the last tables.
    pub fn table(&self, node: NodeId) -> impl Iterator<Item = &RibEntry> {
        self.tables()[node.index()].values()
    }

    /// Whether the tables match the plan, as far as capacities allow, and no stage is in progress.
    pub fn is_settled(&self) -> bool {
        self.staging.is_idle()
    }

    /// Nodes that are being drained.
    pub const fn draining(&self) -> &BTreeSet<NodeId> {
        &self.draining
    }

    /// Drains a node: the next plan excludes it, and it accepts no new stream.
    pub fn handle_drain(&mut self, now: Instant, node: NodeId) {
        if node.index() < self.nodes.len() && self.draining.insert(node) {
            self.timers.round = now;
            self.send(now, node, false);
        }
    }

    /// Ends the drain of a node.
    pub fn handle_undrain(&mut self, now: Instant, node: NodeId) {
        if self.draining.remove(&node) {
            self.timers.round = now;
            self.send(now, node, false);
        }
    }

    /// Takes a changed network: changed capacities and costs, added nodes and links. Capacity 0
    /// removes a link, and a drain removes a node. `groups` replaces the groups of viewers; ids of
    /// groups keep their meaning. The next plan is requested at once.
    ///
    /// Errors: see [`ControllerError`]; nothing is changed then.
    pub fn handle_network(
        &mut self,
        now: Instant,
        network: Network,
        groups: Vec<Vec<NodeId>>,
    ) -> Result<(), ControllerError> {
        network.check_extends(&self.network).map_err(ControllerError::Network)?;
        check_groups(&network, &groups)?;
        let count = network.nodes().len();
        self.nodes.resize_with(count, || NodeView { is_added: true, ..NodeView::new() });
        self.history.values_mut().for_each(|tables| tables.resize(count, Table::default()));
        (self.network, self.groups) = (network, groups);
        let places = self.mapping.len();
        let groups = &self.groups;
        self.mapping.retain(|(group, _), edge| {
            groups.get(group.0 as usize).is_some_and(|edges| edges.contains(edge))
        });
        if self.mapping.len() < places {
            self.events.push_back(ControllerEvent::Mapping);
        }
        // A plan of the earlier network can exceed the new capacities.
        (self.pending, self.job) = (None, None);
        self.staging.drop_target();
        self.timers.round = now;
        Ok(())
    }

    /// Takes a report and answers it. A reported capacity is limited to the declared capacity.
    pub fn handle_report(&mut self, now: Instant, node: NodeId, report: Report) {
        let Some(view) = self.nodes.get_mut(node.index()) else { return };
        if report.life < view.life {
            return;
        }
        if report.life > view.life {
            *view = NodeView::new();
        }
        if view.heard_at.is_none() {
            self.events.push_back(ControllerEvent::Heard(node));
        }
        view.is_added = false;
        (view.life, view.heard_at, view.version) = (report.life, Some(now), report.version);
        let own = |(link, state): (LinkId, LinkState)| {
            let known = self.network.links().get(link.index())?;
            let is_own = known.from == node || known.to == node;
            is_own.then_some((link, state))
        };
        view.links = report.links.into_iter().filter_map(own).collect();
        let resend = [view.streams.handle(report.streams), view.viewers.handle(report.viewers)];
        self.send(now, node, resend.contains(&ApplyResult::Gap));
        self.advance(now);
    }

    /// Takes the plan of a job.
    ///
    /// Errors: see [`PlanError`]; the tables stay as they are.
    pub fn handle_plan(&mut self, now: Instant, number: u64, plan: Plan) -> Result<(), PlanError> {
        let pending = self.pending.take_if(|job| job.number == number);
        let Some(job) = pending else {
            let pending = self.pending.as_ref().map(|job| job.number);
            return Err(PlanError::OtherJob { number, pending });
        };
        plan.check(&self.network, &job, &self.groups)?;
        self.begin(plan);
        self.advance(now);
        Ok(())
    }

    /// The edge for viewers of a group (DNS and content steering). A group without an assignment
    /// gets an edge that already has the object, or else its nearest edge (§4.4.2).
    pub fn edge_for(&self, group: GroupId, object: Object) -> Option<NodeId> {
        let edges = self.groups.get(group.0 as usize)?;
        let is_open = |edge: &NodeId| self.is_up(*edge) && !self.draining.contains(edge);
        let planned = self.mapping.get(&(group, object)).copied().filter(is_open);
        let open = || edges.iter().copied().filter(is_open);
        let has_object = |edge: &NodeId| self.nodes[edge.index()].streams.table().contains_key(&object);
        planned.or_else(|| open().find(has_object)).or_else(|| open().next())
    }

    /// Assignments of viewers to edges, as published.
    pub const fn mapping(&self) -> &BTreeMap<(GroupId, Object), NodeId> {
        &self.mapping
    }

    /// Next message to a node.
    pub fn poll_transmit(&mut self) -> Option<(NodeId, ToNode)> {
        self.messages.pop_front()
    }

    /// Next event.
    pub fn poll_event(&mut self) -> Option<ControllerEvent> {
        self.events.pop_front()
    }

    /// Next job for the optimiser.
    pub const fn poll_job(&mut self) -> Option<PlanJob> {
        self.job.take()
    }

    /// When [`Controller::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Instant {
        self.timers.round.min(self.timers.tick)
    }

    /// Performs all actions that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now >= self.timers.tick {
            self.watch_nodes(now);
            self.timers.tick = now + self.settings.resend_every;
            self.advance(now);
        }
        if now >= self.timers.round {
            let is_planned = self.plan();
            let settings = &self.settings;
            self.timers.round = now + if is_planned { settings.round } else { settings.resend_every };
        }
    }

    /// Marks nodes without recent reports as silent. If the controller itself was frozen, all nodes
    /// get a further silence period, and planning waits for the reports in the sockets.
    fn watch_nodes(&mut self, now: Instant) {
        let most = self.settings.node_silence_max;
        if now > self.timers.tick + most {
            self.nodes.iter_mut().filter_map(|view| view.heard_at.as_mut()).for_each(|at| *at = now);
            self.timers.round = self.timers.round.max(now + self.settings.resend_every);
            return;
        }
        for (view, node) in self.nodes.iter_mut().zip(0..) {
            if view.heard_at.is_some_and(|heard_at| now > heard_at + most) {
                view.heard_at = None;
                self.events.push_back(ControllerEvent::Silent(NodeId(node)));
            }
        }
    }

    /// Creates a job. If fewer than half of the nodes report, the controller itself is
    /// disconnected: it keeps its tables and creates no job. Added nodes that have not started,
    /// drained nodes, and nodes without links are not counted. Returns whether a job was created.
    fn plan(&mut self) -> bool {
        let nodes = (0..).map(NodeId).zip(&self.nodes);
        let counts = |node: NodeId| self.has_links(node) && !self.draining.contains(&node);
        let expected = nodes.filter(|(node, view)| !view.is_added && counts(*node));
        let (heard, silent): (Vec<_>, Vec<_>) = expected.partition(|(_, view)| view.heard_at.is_some());
        if heard.len() < silent.len() {
            return false;
        }
        self.jobs += 1;
        let job = PlanJob {
            number: self.jobs,
            capacities: self.plannable(),
            imports: self.imports(),
            demand: self.demand(),
            excluded: self.draining.clone(),
            running: Plan { parents: self.running(), edges: self.places() },
        };
        self.pending = Some(job.clone());
        self.job = Some(job);
        true
    }

    /// Whether a link of a node has capacity.
    fn has_links(&self, node: NodeId) -> bool {
        let links = [self.network.links_in(node), self.network.links_out(node)];
        links.into_iter().flatten().any(|link| self.network.link(*link).capacity > BitRate::bps(0))
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.nodes[node.index()].heard_at.is_some()
    }

    /// The state of a link, as its receiver reports it. The receiver has the capacity from the
    /// sender.
    fn link_state(&self, link: LinkId) -> LinkState {
        let ends = self.network.link(link);
        let reported = self.nodes[ends.to.index()].links.get(&link).copied();
        let is_up = self.is_up(ends.from) && self.is_up(ends.to);
        let reported = reported.filter(|_| is_up).unwrap_or(LinkState::Failed);
        reported.limited(ends.capacity)
    }

    fn capacities(&self) -> Vec<BitRate> {
        let links = (0..self.network.links().len() as u32).map(LinkId);
        links.map(|link| self.link_state(link).capacity()).collect()
    }

    fn plannable(&self) -> Vec<BitRate> {
        let of_link = |(rate, link): (BitRate, &crate::Link)| {
            let is_drained = self.draining.contains(&link.from) || self.draining.contains(&link.to);
            if is_drained { BitRate::bps(0) } else { plannable(rate, self.settings.slack_ppm) }
        };
        self.capacities().into_iter().zip(self.network.links()).map(of_link).collect()
    }

    fn views(&self) -> impl Iterator<Item = (NodeId, &NodeView)> {
        let nodes = (0..).map(NodeId).zip(&self.nodes);
        nodes.filter(|(_, view)| view.heard_at.is_some())
    }

    fn imports(&self) -> BTreeMap<Object, BTreeSet<NodeId>> {
        let mut imports: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let is_source = |node: &NodeId| self.network.node(*node).tier == Tier::Source;
        for (node, view) in self.views().filter(|(node, _)| is_source(node)) {
            let objects = view.streams.table().keys();
            objects.for_each(|object| {
                imports.entry(*object).or_default().insert(node);
            });
        }
        imports
    }

    /// Number of viewers by group and object, capped at [`VIEWERS_MAX`], the optimiser's limit.
    fn demand(&self) -> BTreeMap<(GroupId, Object), u64> {
        let mut demand = BTreeMap::new();
        for (_, view) in self.views() {
            let known =
                view.viewers.table().iter().filter(|((group, _), _)| (group.0 as usize) < self.groups.len());
            known.for_each(|(key, count)| {
                let sum: &mut u64 = demand.entry(*key).or_default();
                *sum = sum.saturating_add(*count).min(VIEWERS_MAX);
            });
        }
        demand
    }

    /// Parents of all reported streams whose links work.
    fn running(&self) -> BTreeMap<(NodeId, Object), NodeId> {
        let streams = self.views().flat_map(|(node, view)| {
            let streams = view.streams.table().iter();
            streams.filter_map(move |(object, parent)| Some(((node, *object), (*parent)?)))
        });
        let is_linked = |((node, _), parent): &((NodeId, Object), NodeId)| {
            let link = link_between(&self.network, *parent, *node);
            link.is_some_and(|link| self.link_state(link) != LinkState::Failed)
        };
        streams.filter(is_linked).collect()
    }

    /// Assignments of viewers: as published, or else the edges that report serving the group.
    fn places(&self) -> BTreeMap<(GroupId, Object), NodeId> {
        let watched = self.views().flat_map(|(node, view)| {
            let viewers = view.viewers.table().keys();
            let served = viewers.filter(|(_, object)| view.streams.table().contains_key(object));
            served.map(move |key| (*key, node))
        });
        let mut places: BTreeMap<_, _> = watched.collect();
        places.extend(self.mapping.iter().map(|(key, node)| (*key, *node)));
        places
    }

    /// Tables of the last version, by node.
    fn tables(&self) -> &Vec<Table> {
        self.history.get(&self.version).expect("the last version is kept")
    }

    /// Sends a node its drain state, and the newest tables if they are due and not installed.
    fn send(&mut self, now: Instant, node: NodeId, resend: bool) {
        let is_due = self.staging.is_open_to(self.network.node(node).tier);
        let view = &self.nodes[node.index()];
        let waits = view.sent_at.is_some_and(|sent_at| now < sent_at + self.settings.resend_every);
        let needs = is_due && !waits && view.version != self.version && self.version.decision > 0;
        let update = needs.then(|| self.update(node));
        if needs {
            self.nodes[node.index()].sent_at = Some(now);
        }
        let is_draining = self.draining.contains(&node);
        self.messages.push_back((node, ToNode { lead: self.version.lead, is_draining, resend, update }));
    }

    /// The update from a node's installed version to the newest one.
    fn update(&self, node: NodeId) -> RibUpdate {
        let (new, base) = (&self.tables()[node.index()], self.nodes[node.index()].version);
        let old = self.history.get(&base).map(|tables| &tables[node.index()]);
        let empty = Table::default();
        let from = old.unwrap_or(&empty);
        let is_new = |(object, entry): &(&Object, &RibEntry)| from.get(object) != Some(entry);
        let set = new.iter().filter(is_new).map(|(_, entry)| entry.clone()).collect();
        let removed = from.iter().filter(|(object, _)| !new.contains_key(object));
        let removed = removed.map(|(_, entry)| entry.prefix).collect();
        RibUpdate { version: self.version, base: old.map(|_| base), set, removed }
    }
}

#[cfg(test)]
mod tests;
