//! The controller: reports come in, plans are asked for, tables and places of viewers go out.
//!
//! Source: §4.3.1 (central control loop) and §4.4.1. The controller asks an optimiser for a plan
//! once a round, and leads the network to it in stages. A stage is one version of the tables. It
//! holds only routes whose links have room for them beside all streams that still run, so no link is
//! planned above its capacity at any time. The tables of a stage go to the reflectors first, then to
//! the edges; places of viewers follow the tables. The thesis gives no order; this one is ours.
//!
//! The driver runs [`Controller::poll_job`] and hands the plan back. Leaves out: the optimiser, the
//! election among several controllers (each lead has its number). Read [`Controller`] and
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

/// Most groups of viewers that a controller knows.
pub const CONTROLLER_GROUPS_MAX: usize = 65_536;
/// Most versions whose tables the controller keeps, to send differences from them.
pub const HISTORY_MAX: usize = 8;

/// Central entries of one node.
type Table = Arc<BTreeMap<Object, RibEntry>>;

/// Timing and limits of a controller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    /// Time between two plans: about a minute (§4.5).
    pub round: Duration,
    /// Silence after which a node counts as failed.
    pub node_silence_max: Duration,
    /// Time that the nodes of a stage have to install their tables, and then to move their streams.
    pub stage_timeout: Duration,
    /// Time after which an update is sent again to a node that has not installed it.
    pub resend_every: Duration,
    /// Share of each link that stays unplanned for local decisions, in millionths, below 1,000,000.
    pub slack_ppm: u32,
    /// Most running streams that are moved in one round, besides those on failed links.
    pub moves_max: usize,
    /// Change of a link's capacity that makes evidence stale, in percent: the nodes' setting.
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

/// A change that the driver records or acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerEvent {
    /// A node counts as failed.
    Silent(NodeId),
    /// A node is there, for the first time or again.
    Heard(NodeId),
    /// Places of viewers have changed: DNS and content steering take them over.
    Mapping,
    /// Tables of this version are on their way.
    Issued(Version),
    /// The tables are the plan's, or as near as capacities allow: this number of routes is left.
    Settled(usize),
}

/// A defect of the settings, or of the groups of viewers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerError {
    /// More groups than [`CONTROLLER_GROUPS_MAX`].
    TooMany(usize),
    /// A group at a node that is not an edge.
    NotAnEdge(GroupId, NodeId),
    /// A slack that leaves nothing to plan.
    Slack(u32),
    /// A changed network with other ids.
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
    /// Last report; `None` before the first and after a failure.
    heard_at: Option<Instant>,
    version: Version,
    links: BTreeMap<LinkId, LinkState>,
    streams: DeltaReceiver<Object, Option<NodeId>>,
    viewers: DeltaReceiver<(GroupId, Object), u64>,
    /// When an update was last sent.
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
    /// When to ask for a plan.
    round: Instant,
    /// When to look for silent nodes and at the stage.
    tick: Instant,
}

/// The machine. See the module.
#[derive(Clone, Debug)]
pub struct Controller {
    network: Network,
    /// Edges of each group, the nearest first.
    groups: Vec<Vec<NodeId>>,
    settings: ControllerSettings,
    version: Version,
    nodes: Vec<NodeView>,
    /// Tables of the last versions, by node.
    history: BTreeMap<Version, Vec<Table>>,
    staging: PlanTransition,
    /// Places of viewers, as published.
    mapping: BTreeMap<(GroupId, Object), NodeId>,
    draining: BTreeSet<NodeId>,
    jobs: u64,
    /// The job that waits for a plan.
    pending: Option<PlanJob>,
    timers: Timers,
    messages: VecDeque<(NodeId, ToNode)>,
    events: VecDeque<ControllerEvent>,
    job: Option<PlanJob>,
}

impl Controller {
    /// A controller that takes the lead: `lead` is higher than in all leads before. `groups` has the
    /// edges of each group of viewers, the nearest first.
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

    /// Whether the tables are the plan's, as far as capacities allow, and no stage is under way.
    pub fn is_settled(&self) -> bool {
        self.staging.is_idle()
    }

    /// Nodes that are being emptied.
    pub const fn draining(&self) -> &BTreeSet<NodeId> {
        &self.draining
    }

    /// Empties a node: the next plan leaves it out, and it takes no new stream.
    pub fn handle_drain(&mut self, now: Instant, node: NodeId) {
        if node.index() < self.nodes.len() && self.draining.insert(node) {
            self.timers.round = now;
            self.send(now, node, false);
        }
    }

    /// A node may carry streams again.
    pub fn handle_undrain(&mut self, now: Instant, node: NodeId) {
        if self.draining.remove(&node) {
            self.timers.round = now;
            self.send(now, node, false);
        }
    }

    /// Takes a changed network: other capacities and costs, further nodes and links. A link of
    /// capacity 0 and a drained node count as removed. `groups` replaces the groups of viewers; ids
    /// of groups keep their meaning. The next plan is asked for at once.
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

    /// Takes a report, and answers it. A reported capacity counts up to the declared one.
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

    /// The edge for viewers of a group (DNS and content steering). A group without a place in the
    /// plan gets an edge that already has the object, or else its nearest (§4.4.2).
    pub fn edge_for(&self, group: GroupId, object: Object) -> Option<NodeId> {
        let edges = self.groups.get(group.0 as usize)?;
        let is_open = |edge: &NodeId| self.is_up(*edge) && !self.draining.contains(edge);
        let planned = self.mapping.get(&(group, object)).copied().filter(is_open);
        let open = || edges.iter().copied().filter(is_open);
        let has_object = |edge: &NodeId| self.nodes[edge.index()].streams.table().contains_key(&object);
        planned.or_else(|| open().find(has_object)).or_else(|| open().next())
    }

    /// Places of viewers, as published.
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

    /// Does the work that is due.
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

    /// Notes silent nodes. A controller that was itself frozen gives all nodes one more silence, and
    /// plans after the reports that wait in its sockets.
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

    /// Puts a job out. A controller that hears less than half of the nodes is itself cut off: it
    /// keeps its tables, and puts out none. Added nodes that have not started, drained nodes, and
    /// nodes without links do not count. Returns whether there is a job.
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

    /// The state of a link: its receiver's report, which has the sender's capacity.
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

    /// Viewers of each group, at most [`VIEWERS_MAX`]: an optimiser takes no more.
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

    /// Parents of all streams that nodes report, over working links.
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

    /// Places of viewers, as published, or else as edges report them.
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

    /// Sends a node its state, and the last tables if it should have them and has not.
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

    /// The update of a node from the version that it has to the last one.
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
