//! The stages that lead from the current tables to a plan.
//!
//! A stage adds the routes whose links have room beside all streams that may still run on them.
//! These are the streams of the last tables, and the streams that nodes report. When the nodes have
//! moved their streams, the capacity of the old routes is free for the next stage.
//!
//! Local decisions can fill two links of a node with each other's planned streams. Neither stream
//! can move without an interruption, so the next stage keeps both streams in the tables where they
//! run. The planned route returns when its link has room. A route without room and without a
//! running stream leaves the tables.

use super::{Controller, ControllerEvent, Plan, Table, link_between};
use crate::control::controller::HISTORY_MAX;
use crate::control::messages::GroupId;
use crate::control::tables::{Evidence, LinkState, Origin, Prefix, RibEntry, Version, Viewership};
use crate::{NodeId, Object, Tier};
use anabranch_units::{BitRate, Instant, LinkId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Routes of all nodes.
type Routes = BTreeMap<(NodeId, Object), NodeId>;

/// Progress of a stage.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No stage is in progress.
    #[default]
    Idle,
    /// The reflectors install the tables, since this time.
    Reflectors(Instant),
    /// The edges install the tables, since this time.
    Edges(Instant),
    /// Nodes move their streams, since this time.
    Moves(Instant),
}

/// Progress of the transition from the current tables to a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanTransition {
    target: Option<Plan>,
    stage: Stage,
    /// Number of running streams that this round may still move.
    moves_left: usize,
}

impl PlanTransition {
    pub(super) fn is_idle(&self) -> bool {
        self.target.is_none() && self.stage == Stage::Idle
    }

    /// Drops the plan: no stage follows the stage in progress.
    pub(super) fn drop_target(&mut self) {
        self.target = None;
    }

    /// Whether nodes of this tier may receive the last tables in this stage.
    pub(super) fn is_open_to(&self, tier: Tier) -> bool {
        tier != Tier::Edge || !matches!(self.stage, Stage::Reflectors(_))
    }
}

/// Streams that may use each link during a stage, and the links' loads.
struct StageLoad {
    streams: BTreeSet<(LinkId, Object)>,
    loads_bps: Vec<u64>,
}

impl StageLoad {
    /// Adds the stream if the link has room. Returns whether the link has the stream.
    fn take(&mut self, link: LinkId, object: Object, capacity: BitRate) -> bool {
        let load = self.loads_bps[link.index()].saturating_add(object.bitrate.as_bps());
        if self.streams.contains(&(link, object)) {
            return true;
        }
        let fits = load <= capacity.as_bps();
        if fits {
            self.add(link, object);
        }
        fits
    }

    fn add(&mut self, link: LinkId, object: Object) {
        if self.streams.insert((link, object)) {
            let load = &mut self.loads_bps[link.index()];
            *load = load.saturating_add(object.bitrate.as_bps());
        }
    }
}

impl Controller {
    /// Sets a plan as the target. Tables being sent are installed first. Moves in progress count as
    /// running streams in the next stage.
    pub(super) fn begin(&mut self, plan: Plan) {
        if matches!(self.staging.stage, Stage::Moves(_)) {
            self.staging.stage = Stage::Idle;
        }
        self.staging.target = Some(plan);
        self.staging.moves_left = self.settings.moves_max;
    }

    /// Advances the stage as far as possible now.
    pub(super) fn advance(&mut self, now: Instant) {
        let timeout = self.settings.stage_timeout;
        let is_over = |since: Instant| now >= since + timeout;
        match self.staging.stage {
            Stage::Idle if self.staging.target.is_some() => self.next_stage(now),
            Stage::Idle => {}
            Stage::Reflectors(since) => {
                if is_over(since) || self.have_installed(Tier::Reflector) {
                    self.staging.stage = Stage::Edges(now);
                    self.send_tables(now, Tier::Edge);
                }
            }
            Stage::Edges(since) => {
                if is_over(since) || self.have_installed(Tier::Edge) {
                    self.publish();
                    self.staging.stage = Stage::Moves(now);
                }
            }
            Stage::Moves(since) => {
                if is_over(since) || self.have_moved() {
                    self.staging.stage = Stage::Idle;
                    self.advance(now);
                }
            }
        }
    }

    /// Whether all live nodes of a tier have installed the last tables.
    fn have_installed(&self, tier: Tier) -> bool {
        let of_tier = |node: &NodeId| self.network.node(*node).tier == tier;
        self.views().filter(|(node, _)| of_tier(node)).all(|(_, view)| view.version == self.version)
    }

    /// Whether all reported streams follow the last tables.
    fn have_moved(&self) -> bool {
        self.running().into_iter().all(|((node, object), parent)| {
            self.tables()[node.index()].get(&object).is_none_or(|entry| entry.next_hop == parent)
        })
    }

    /// Issues the tables of the next stage, or ends the round.
    fn next_stage(&mut self, now: Instant) {
        let Some(target) = self.staging.target.take() else { return };
        let present = self.routes();
        let (next, left, moves_left) = self.staged(&present, &target);
        let tables = self.entries(&next);
        // The first tables of a lead are always issued, because they replace all entries of earlier
        // leads.
        if &tables == self.tables() && self.version.decision > 0 {
            // Assignments of viewers may still differ.
            self.staging.target = Some(target);
            self.publish();
            self.staging.target = None;
            return self.events.push_back(ControllerEvent::Settled(left));
        }
        self.staging.target = Some(target);
        self.staging.moves_left = moves_left;
        let decision = self.version.decision + 1;
        self.version = Version { decision, ..self.version };
        self.history.insert(self.version, tables);
        while self.history.len() > HISTORY_MAX {
            self.history.pop_first();
        }
        self.events.push_back(ControllerEvent::Issued(self.version));
        self.staging.stage = Stage::Reflectors(now);
        self.send_tables(now, Tier::Reflector);
        self.send_tables(now, Tier::Source);
        self.advance(now);
    }

    fn send_tables(&mut self, now: Instant, tier: Tier) {
        let nodes: Vec<NodeId> = self.network.tier(tier).filter(|node| self.is_up(*node)).collect();
        for node in nodes {
            self.nodes[node.index()].sent_at = None;
            self.send(now, node, false);
        }
    }

    /// The routes of the last tables.
    fn routes(&self) -> Routes {
        let nodes = (0..).map(NodeId).zip(self.tables());
        let routes = nodes.flat_map(|(node, table)| {
            table.iter().map(move |(object, entry)| ((node, *object), entry.next_hop))
        });
        routes.collect()
    }

    /// The load of these routes on the links.
    fn in_use<'a>(&self, routes: impl IntoIterator<Item = (&'a (NodeId, Object), &'a NodeId)>) -> StageLoad {
        let links = self.network.links().len();
        let mut used = StageLoad { streams: BTreeSet::new(), loads_bps: vec![0; links] };
        for ((node, object), parent) in routes {
            if let Some(link) = link_between(&self.network, *parent, *node) {
                used.add(link, *object);
            }
        }
        used
    }

    /// The routes of the last tables that nodes follow or can move to, because the link has room
    /// beside all running streams. If a running stream cannot move, its current route is used.
    /// Routes over failed links stay until the plan replaces them.
    fn attainable(&self, present: &Routes, running: &Routes) -> Routes {
        let mut used = self.in_use(running);
        let capacities = self.capacities();
        let mut routes = Routes::new();
        for tier in [Tier::Reflector, Tier::Edge] {
            let of_tier = |(node, _): &(NodeId, Object)| self.network.node(*node).tier == tier;
            for (key, parent) in present.iter().filter(|(key, _)| of_tier(key)) {
                let object = key.1;
                let link = link_between(&self.network, *parent, key.0).expect("plans are checked");
                let of_parent = (*parent, object);
                let is_fed = self.network.node(*parent).tier == Tier::Source
                    || running.contains_key(&of_parent)
                    || routes.contains_key(&of_parent);
                let mut has_room = || used.take(link, object, capacities[link.index()]);
                if self.link_state(link) == LinkState::Failed || (is_fed && has_room()) {
                    routes.insert(*key, *parent);
                } else if let Some(parent) = running.get(key) {
                    routes.insert(*key, *parent);
                }
            }
        }
        routes
    }

    /// The routes of the next stage, the number of the target's routes that are still missing, and
    /// the number of moves still allowed.
    fn staged(&self, present: &Routes, target: &Plan) -> (Routes, usize, usize) {
        let (capacities, running) = (self.capacities(), self.running());
        // Nodes keep the last tables until they install the next tables.
        let mut used = self.in_use(present.iter().chain(&running));
        let mut moves_left = self.staging.moves_left;
        let mut left = 0;
        let mut next = self.attainable(present, &running);
        next.retain(|key, _| target.parents.contains_key(key));
        for tier in [Tier::Reflector, Tier::Edge] {
            let of_tier = |(node, _): &(NodeId, Object)| self.network.node(*node).tier == tier;
            for (key, parent) in target.parents.iter().filter(|(key, _)| of_tier(key)) {
                if next.get(key) == Some(parent) {
                    continue;
                }
                let (node, object) = *key;
                let link = link_between(&self.network, *parent, node).expect("plans are checked");
                let is_fed = self.network.node(*parent).tier == Tier::Source
                    || next.get(&(*parent, object)) == target.parents.get(&(*parent, object));
                let is_move = running.get(key).is_some_and(|running| running != parent);
                // A route that was just removed from the tables is still in force at its node.
                let is_withdrawn = present.get(key) == Some(parent);
                let is_allowed = !is_withdrawn && (!is_move || moves_left > 0);
                if is_fed && is_allowed && used.take(link, object, capacities[link.index()]) {
                    next.insert(*key, *parent);
                    moves_left -= usize::from(is_move);
                } else {
                    left += 1;
                }
            }
        }
        (next, left, moves_left)
    }

    /// Table entries for these routes. An entry with an equal route and valid evidence is reused.
    fn entries(&self, routes: &Routes) -> Vec<Table> {
        let viewers = self.viewers();
        let percent = self.settings.stale_percent;
        let version = Version { decision: self.version.decision + 1, ..self.version };
        let mut tables: Vec<BTreeMap<Object, RibEntry>> = vec![BTreeMap::new(); self.nodes.len()];
        for ((node, object), next_hop) in routes {
            let old = self.tables()[node.index()].get(object).filter(|entry| {
                let holds = !entry.evidence.is_stale(percent, |link| self.link_state(link));
                entry.next_hop == *next_hop && holds
            });
            let entry = old.cloned().unwrap_or_else(|| {
                let link = link_between(&self.network, *next_hop, *node).expect("plans are checked");
                let viewers = viewers.get(&(*node, *object)).copied().unwrap_or(0);
                let evidence = Evidence {
                    links: vec![(link, self.link_state(link))],
                    viewers: vec![Viewership { object: *object, viewers }],
                };
                let (origin, prefix) = (Origin::Central, Prefix::Object(*object));
                RibEntry { origin, prefix, next_hop: *next_hop, version, evidence }
            });
            tables[node.index()].insert(*object, entry);
        }
        let share = |(table, old): (BTreeMap<Object, RibEntry>, &Table)| {
            if table == **old { Arc::clone(old) } else { Arc::new(table) }
        };
        tables.into_iter().zip(self.tables()).map(share).collect()
    }

    /// Number of viewers of each object at each node.
    fn viewers(&self) -> BTreeMap<(NodeId, Object), u64> {
        let mut viewers = BTreeMap::new();
        for (node, view) in self.views() {
            for ((_, object), count) in view.viewers.table() {
                let sum: &mut u64 = viewers.entry((node, *object)).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        viewers
    }

    /// Publishes the assignments of viewers to edges that have installed their tables.
    fn publish(&mut self) {
        let Some(target) = &self.staging.target else { return };
        let tables = self.tables();
        let is_ready = |edge: NodeId, object: Object| {
            let view = &self.nodes[edge.index()];
            view.version == self.version && tables[edge.index()].contains_key(&object)
        };
        let mut mapping: BTreeMap<(GroupId, Object), NodeId> = BTreeMap::new();
        for (key, edge) in &target.edges {
            let place = if is_ready(*edge, key.1) { Some(*edge) } else { self.mapping.get(key).copied() };
            if let Some(place) = place {
                mapping.insert(*key, place);
            }
        }
        if mapping != self.mapping {
            self.mapping = mapping;
            self.events.push_back(ControllerEvent::Mapping);
        }
    }
}
