//! A controller's round: converts its job to the optimiser's program, and the plan to routes.
//!
//! Source: §4.5 ("run about once a minute"). Differs: the thesis sets no price on moves of running
//! streams. By [`RoundSettings::move_price`] a running tree is kept if the planned tree saves too
//! little. Leaves out: when a round is due ([`crate::control::controller`]). Read [`Round`] first.

use crate::control::controller::{Plan, PlanJob};
use crate::control::messages::GroupId;
use crate::network::{ChannelId, Network, NetworkError, NodeId, Object};
use crate::plan::optimiser::{OptimiseError, Optimiser, Prices};
use crate::plan::{
    self, BITRATE_MAX, Group, GroupLink, ObjectId, Offer, Priority, Program, ProgramError, Request,
    VIEWERS_MAX,
};
use anabranch_units::{BitRate, LinkId};
use std::collections::{BTreeMap, BTreeSet};

/// An edge of a group, with the cost per Mbit/s from the edge to the group.
pub type GroupEdge = (NodeId, f64);

/// The operator's settings for all rounds.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct RoundSettings {
    /// The operator's preference among bitrates.
    pub priority: Priority,
    /// Weight of cost: the cost of a path of cost 60 at the mean bitrate, as a share of a mean
    /// viewer's value.
    pub cost_share: f64,
    /// Whether a request counts once per viewer. If false, it counts once per group.
    pub counts_viewers: bool,
    /// Price of moving one running stream to another parent, in the unit of a link's cost times
    /// Mbit/s.
    pub move_price: f64,
    /// Settings of the optimiser.
    pub optimiser: Optimiser,
}

impl Default for RoundSettings {
    fn default() -> Self {
        Self {
            priority: Priority::Balanced,
            cost_share: 0.1,
            counts_viewers: true,
            move_price: 10.0,
            optimiser: Optimiser::default(),
        }
    }
}

/// Results of a solved round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundReport {
    /// Number of the job.
    pub number: u64,
    /// Certified gap of the optimiser's plan, as a share of its bound.
    pub gap: f64,
    /// Gap of the plan as a share of its cost; `None` for a plan without cost.
    pub gap_of_cost: Option<f64>,
    /// Number of requests of groups, and number of served requests.
    pub requests: (usize, usize),
    /// Number of objects whose running tree was kept because the planned tree saves too little.
    pub kept_trees: usize,
}

/// Reason why a round cannot be planned.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RoundError {
    /// The network with the job's capacities is invalid.
    Network(NetworkError),
    /// The optimiser's input is invalid.
    Program(ProgramError),
    /// The optimiser refuses its settings or prices.
    Optimise(OptimiseError),
}

impl std::fmt::Display for RoundError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Network(error) => write!(f, "{error}"),
            Self::Program(error) => write!(f, "{error}"),
            Self::Optimise(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for RoundError {}

/// Solves the jobs of one controller. Each round starts from the prices of the last round.
#[derive(Clone, Debug)]
pub struct Round {
    settings: RoundSettings,
    prices: Option<Prices>,
}

/// The program of one round, and the objects by its ids.
struct Input {
    program: Program,
    objects: Vec<Object>,
}

impl Round {
    /// Creates the state before the first round.
    pub const fn new(settings: RoundSettings) -> Self {
        Self { settings, prices: None }
    }

    /// Solves a job. `groups` has the edges of each group.
    ///
    /// Requests for objects that no source imports are ignored, and viewers above [`VIEWERS_MAX`]
    /// are not counted.
    /// Errors: see [`RoundError`].
    pub fn solve(
        &mut self,
        network: &Network,
        groups: &[Vec<GroupEdge>],
        job: &PlanJob,
    ) -> Result<(Plan, RoundReport), RoundError> {
        let input = self.input(network, groups, job)?;
        let program = &input.program;
        let counts = (network.links().len(), program.group_links().len());
        let former = self.prices.take();
        let former = former.filter(|prices| (prices.links.len(), prices.group_links.len()) == counts);
        let solved = self.settings.optimiser.optimise(program, former.as_ref());
        let (answer, prices) = solved.map_err(RoundError::Optimise)?;
        self.prices = Some(prices);
        let mut routes = routes(&input, &answer);
        let served = routes.edges.len();
        let kept_trees = keep_running(network, groups, job, self.settings.move_price, &mut routes);
        let report = RoundReport {
            number: job.number,
            gap: answer.gap(),
            gap_of_cost: answer.gap_of_cost(),
            requests: (program.requests().len(), served),
            kept_trees,
        };
        Ok((routes, report))
    }

    fn input(
        &self,
        network: &Network,
        groups: &[Vec<GroupEdge>],
        job: &PlanJob,
    ) -> Result<Input, RoundError> {
        let links = network.links().iter().zip(&job.capacities);
        let links = links.map(|(link, capacity)| crate::Link { capacity: *capacity, ..*link }).collect();
        let network = Network::new(network.nodes().to_vec(), links).map_err(RoundError::Network)?;
        let known = |(group, object): &(GroupId, Object)| {
            (group.0 as usize) < groups.len() && job.imports.contains_key(object)
        };
        let demand = job.demand.iter().filter(|(key, viewers)| known(key) && **viewers > 0);
        let demand: Vec<_> = demand.collect();
        let objects: BTreeSet<Object> = demand.iter().map(|((_, object), _)| *object).collect();
        let objects: Vec<Object> = objects.into_iter().collect();
        // Imports depend on the bitrate, but the program's holders only on the channel. So each
        // object becomes a channel.
        let channel = |at: usize| ChannelId(at as u32);
        let holders = objects.iter().enumerate();
        let holders =
            holders.map(|(at, object)| (channel(at), job.imports[object].iter().copied().collect()));
        let offers = objects.iter().enumerate().map(|(at, object)| Offer {
            object: Object { channel: channel(at), bitrate: object.bitrate },
            importance: 1.0,
        });
        let (holders, offers) = (holders.collect(), offers.collect::<Vec<_>>());
        let id = |object: &Object| objects.binary_search(object).expect("collected above") as u32;
        let request = |&((group, object), viewers): &(&(GroupId, Object), &u64)| Request {
            object: ObjectId(id(object)),
            group: plan::GroupId(group.0),
            viewers: (*viewers).min(VIEWERS_MAX),
        };
        let requests: Vec<_> = demand.iter().map(request).collect();
        let settings = plan::Settings {
            priority: self.settings.priority,
            counts_viewers: self.settings.counts_viewers,
            ..plan::Settings::default()
        };
        let settings = settings.normalised(&offers, &requests, self.settings.cost_share);
        let named = (0..).zip(groups);
        let group_links = named.clone().flat_map(|(group, edges)| {
            let is_open = |(edge, _): &&GroupEdge| !job.excluded.contains(edge);
            edges.iter().filter(is_open).map(move |(edge, cost)| GroupLink {
                edge: *edge,
                group: plan::GroupId(group),
                capacity: BITRATE_MAX,
                cost: *cost,
            })
        });
        let sides = (named.map(|(city, _)| Group { city, asn: 0 }).collect(), group_links.collect());
        let program = Program::new(network, sides, (offers, requests), holders, settings);
        Ok(Input { program: program.map_err(RoundError::Program)?, objects })
    }
}

fn routes(input: &Input, answer: &plan::Plan) -> Plan {
    let mut routes = Plan::default();
    for tree in &answer.trees {
        let object = input.objects[tree.object.index()];
        for link in &tree.links {
            let link = input.program.network().link(*link);
            routes.parents.insert((link.to, object), link.from);
        }
        for link in &tree.group_links {
            let link = input.program.group_links()[link.index()];
            routes.edges.insert((GroupId(link.group.0), object), link.edge);
        }
    }
    routes
}

/// Parents of one object's nodes, and edges of its groups.
#[derive(Clone, Default)]
struct ObjectTree {
    parents: BTreeMap<NodeId, NodeId>,
    edges: BTreeMap<GroupId, NodeId>,
}

fn trees(plan: &Plan) -> BTreeMap<Object, ObjectTree> {
    let mut trees: BTreeMap<Object, ObjectTree> = BTreeMap::new();
    for ((node, object), parent) in &plan.parents {
        trees.entry(*object).or_default().parents.insert(*node, *parent);
    }
    for ((group, object), edge) in &plan.edges {
        trees.entry(*object).or_default().edges.insert(*group, *edge);
    }
    trees
}

/// Prices and capacities for the choice between the running and the planned tree of an object.
struct Choice<'a> {
    links: BTreeMap<(NodeId, NodeId), LinkId>,
    network: &'a Network,
    groups: &'a [Vec<GroupEdge>],
    job: &'a PlanJob,
}

impl Choice<'_> {
    /// The running tree without the nodes that serve no group of `planned`. `None` if the running
    /// tree does not serve all these groups from a source that imports the object, over working
    /// links.
    fn usable(&self, object: Object, running: &ObjectTree, planned: &ObjectTree) -> Option<ObjectTree> {
        let mut tree = ObjectTree::default();
        for group in planned.edges.keys() {
            let edge = *running.edges.get(group)?;
            let is_edge = self.groups[group.0 as usize].iter().any(|(of_group, _)| *of_group == edge);
            if !is_edge || self.job.excluded.contains(&edge) {
                return None;
            }
            tree.edges.insert(*group, edge);
            let mut node = edge;
            while let Some(parent) = running.parents.get(&node) {
                let link = self.links.get(&(*parent, node))?;
                if self.job.capacities[link.index()] < object.bitrate {
                    return None;
                }
                tree.parents.insert(node, *parent);
                node = *parent;
            }
            if !self.job.imports.get(&object)?.contains(&node) {
                return None;
            }
        }
        Some(tree)
    }

    /// Cost of a tree, in the unit of a link's cost times Mbit/s.
    fn cost(&self, object: Object, tree: &ObjectTree) -> f64 {
        let of_link = |(node, parent): (&NodeId, &NodeId)| {
            self.links.get(&(*parent, *node)).map_or(0.0, |link| self.network.link(*link).cost)
        };
        let of_group = |(group, edge): (&GroupId, &NodeId)| {
            let edges = &self.groups[group.0 as usize];
            edges.iter().find(|(of_group, _)| of_group == edge).map_or(0.0, |(_, cost)| *cost)
        };
        let links: f64 = tree.parents.iter().map(of_link).sum();
        let groups: f64 = tree.edges.iter().map(of_group).sum();
        (links + groups) * object.bitrate.as_mbps_f64()
    }

    fn links_of<'b>(&'b self, tree: &'b ObjectTree) -> impl Iterator<Item = LinkId> + 'b {
        tree.parents.iter().filter_map(|(node, parent)| self.links.get(&(*parent, *node)).copied())
    }
}

/// Keeps running trees that cost little more than the planned trees, as far as capacities allow.
/// Returns the number of kept trees.
fn keep_running(
    network: &Network,
    groups: &[Vec<GroupEdge>],
    job: &PlanJob,
    move_price: f64,
    plan: &mut Plan,
) -> usize {
    let ends = network.links().iter().zip(0..).map(|(link, id)| ((link.from, link.to), LinkId(id)));
    let choice = Choice { links: ends.collect(), network, groups, job };
    let mut loads: Vec<u64> = vec![0; network.links().len()];
    let running = trees(&job.running);
    let planned = trees(plan);
    for (object, tree) in &planned {
        choice.links_of(tree).for_each(|link| loads[link.index()] += object.bitrate.as_bps());
    }
    let mut kept = 0;
    for (object, tree) in planned {
        let bps = object.bitrate.as_bps();
        let Some(old) = running.get(&object).and_then(|running| choice.usable(object, running, &tree)) else {
            continue;
        };
        let moved = tree.parents.iter().filter(|(node, parent)| {
            job.running.parents.get(&(**node, object)).is_some_and(|running| running != *parent)
        });
        let moved = moved.count()
            + tree.edges.iter().filter(|(group, edge)| old.edges.get(group) != Some(edge)).count();
        let saving = choice.cost(object, &old) - choice.cost(object, &tree);
        if moved == 0 || saving >= move_price * moved as f64 {
            continue;
        }
        choice.links_of(&tree).for_each(|link| loads[link.index()] -= bps);
        let fits = |link: LinkId| {
            BitRate::bps(loads[link.index()].saturating_add(bps)) <= job.capacities[link.index()]
        };
        let chosen = if choice.links_of(&old).all(fits) { old } else { tree.clone() };
        choice.links_of(&chosen).for_each(|link| loads[link.index()] += bps);
        if chosen.parents == tree.parents && chosen.edges == tree.edges {
            continue;
        }
        kept += 1;
        for node in tree.parents.keys() {
            plan.parents.remove(&(*node, object));
        }
        plan.parents.extend(chosen.parents.iter().map(|(node, parent)| ((*node, object), *parent)));
        plan.edges.extend(chosen.edges.iter().map(|(group, edge)| ((*group, object), *edge)));
    }
    kept
}

#[cfg(test)]
mod tests;
