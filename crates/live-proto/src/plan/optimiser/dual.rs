//! Upper bounds of one object's profit: dual ascent on the path form, and branch and bound on
//! reflectors.
//!
//! The path form has one variable for each combination of group, edge and reflector. Its dual has a
//! price v for each group, and the group's payments for ways and feeds (`object_workspace` defines
//! ways and slots, `flat_program` defines feeds). The price v is at most the level of each path,
//! which is the slot price plus payments. All payments for a way or a feed sum to at most its
//! price. The sum of worth minus v over all groups is then an upper bound of the profit (weak
//! duality).

use super::flat_program::{FAR, NONE};
use super::object_workspace::{ObjectNetwork, ObjectWorkspace};

/// Steps of the ascent, as shares of the highest cost among the groups' cheapest paths.
const LEVELS: [f64; 4] = [0.01, 0.04, 0.16, 0.64];
/// A slack below this share of its price counts as used up.
const SPENT: f64 = 1e-9;

/// Limits of branch and bound.
#[derive(Copy, Clone, Debug)]
pub(super) struct Limits {
    /// Maximum number of nodes in the search tree.
    pub(super) nodes: usize,
    /// Gap between bound and profit at which the search ends, as a share of the cost: the smaller
    /// of the bound and the total worth minus the bound.
    pub(super) tolerance: f64,
}

/// A node of branch and bound: open and closed reflectors, as bit sets, and the next reflector to
/// branch on.
#[derive(Copy, Clone)]
struct Node {
    bound: f64,
    /// Reflector to branch on. `None` if no reflector is left.
    branch: Option<u8>,
    open: u64,
    closed: u64,
}

/// Buffers of the ascent and of branch and bound.
#[derive(Default)]
pub(super) struct Dual {
    /// Price of each group.
    pub(super) prices: Vec<f64>,
    /// Cost of each group's cheapest path, at most the group's worth.
    limits: Vec<f64>,
    is_done: Vec<bool>,
    /// Level of each path, by slot, then by way.
    levels: Vec<f64>,
    level_starts: Vec<u32>,
    way_slacks: Vec<f64>,
    feed_slacks: Vec<f64>,
    /// Feed prices at the current node of branch and bound.
    feeds: Vec<f64>,
    /// Number of groups that pay for each reflector.
    payers: Vec<u32>,
    /// Lowest level of a group's paths through each reflector.
    nearest: Vec<f64>,
    nodes: Vec<Node>,
}

impl Dual {
    /// Raises the prices of all groups. Returns the upper bound of the profit at the feed prices in
    /// `self`.
    fn ascend(&mut self, part: &ObjectNetwork) -> f64 {
        let reflectors = part.feeds.len();
        self.way_slacks.clone_from(&part.way_prices);
        self.feed_slacks.clone_from(&self.feeds);
        self.payers.clear();
        self.payers.resize(reflectors, 0);
        self.nearest.resize(reflectors, FAR);
        self.levels.clear();
        self.level_starts.clear();
        for (slot, &edge) in part.slot_edges.iter().enumerate() {
            self.level_starts.push(self.levels.len() as u32);
            let ways = part.ways(edge as usize).len();
            self.levels.resize(self.levels.len() + ways, part.slot_prices[slot]);
        }
        self.prices.clear();
        self.limits.clear();
        let mut dearest = 0.0f64;
        for group in 0..part.groups() {
            let (mut cheapest, mut path) = (part.worths[group], part.worths[group]);
            for slot in part.slots(group) {
                let price = part.slot_prices[slot];
                cheapest = cheapest.min(price);
                for way in part.ways(part.slot_edges[slot] as usize) {
                    let feed = self.feeds[part.way_reflectors[way] as usize];
                    path = path.min(price + part.way_prices[way] + feed);
                }
            }
            self.prices.push(cheapest);
            self.limits.push(path);
            dearest = dearest.max(path);
        }
        self.is_done.clear();
        self.is_done.resize(part.groups(), false);
        for level in LEVELS.into_iter().chain([f64::INFINITY]) {
            for group in 0..part.groups() {
                if self.is_done[group] {
                    continue;
                }
                let target = (level * dearest).min(self.limits[group]);
                if target > self.prices[group] {
                    let raised = self.raise(part, group, target);
                    self.is_done[group] = raised < target || raised >= self.limits[group];
                    self.prices[group] = raised;
                }
            }
        }
        part.worths.iter().zip(&self.prices).map(|(worth, price)| worth - price).sum()
    }

    /// Raises one group's price towards `target` as far as the slacks allow, and subtracts the
    /// payments from the slacks. Returns the new price.
    #[inline]
    fn raise(&mut self, part: &ObjectNetwork, group: usize, target: f64) -> f64 {
        let current = self.prices[group];
        self.nearest.fill(FAR);
        for slot in part.slots(group) {
            let first = self.level_starts[slot] as usize;
            for (at, way) in part.ways(part.slot_edges[slot] as usize).enumerate() {
                let reach = self.levels[first + at] + self.way_slacks[way];
                let nearest = &mut self.nearest[part.way_reflectors[way] as usize];
                *nearest = nearest.min(reach);
            }
        }
        let mut price = target;
        for (nearest, slack) in self.nearest.iter().zip(&self.feed_slacks) {
            price = price.min(nearest + slack);
        }
        if price <= current {
            return current;
        }
        // From here `nearest` holds the payment for each reflector.
        for (reflector, nearest) in self.nearest.iter_mut().enumerate() {
            let payment = (price - *nearest).max(0.0);
            *nearest = payment;
            if payment > 0.0 {
                self.payers[reflector] += 1;
                self.feed_slacks[reflector] = (self.feed_slacks[reflector] - payment).max(0.0);
            }
        }
        for slot in part.slots(group) {
            let first = self.level_starts[slot] as usize;
            for (at, way) in part.ways(part.slot_edges[slot] as usize).enumerate() {
                let level = &mut self.levels[first + at];
                *level += self.nearest[part.way_reflectors[way] as usize];
                if price > *level {
                    self.way_slacks[way] = (self.way_slacks[way] - (price - *level)).max(0.0);
                    *level = price;
                }
            }
        }
        price
    }

    /// Upper bound of the profit without branching. Leaves the groups' prices in [`Dual::prices`].
    pub(super) fn bound(&mut self, part: &ObjectNetwork) -> f64 {
        self.feeds.clone_from(&part.feeds);
        self.ascend(part)
    }

    /// Opens each edge with a way whose way price and feed price are fully paid, over the cheapest
    /// of these ways. Improves the resulting tree and returns its profit.
    pub(super) fn saturated_tree(&self, local: &mut ObjectWorkspace) -> f64 {
        local.close_all();
        for edge in 0..local.part.edges() {
            let mut chosen = NONE;
            let mut least = f64::INFINITY;
            for way in local.part.ways(edge) {
                let (price, reflector) =
                    (local.part.way_prices[way], local.part.way_reflectors[way] as usize);
                let feed = self.feeds[reflector];
                let is_paid =
                    self.way_slacks[way] <= SPENT * price && self.feed_slacks[reflector] <= SPENT * feed;
                if is_paid && feed < FAR && price < least {
                    least = price;
                    chosen = way as u32;
                }
            }
            if chosen != NONE {
                local.open_edge(edge, chosen as usize);
            }
        }
        local.improve()
    }

    /// Computes the bound of one node, and improves the best tree from this node.
    fn visit(&mut self, local: &mut ObjectWorkspace, node: &mut Node, best: &mut f64, distance: f64) {
        let mut fixed = 0.0;
        self.feeds.clone_from(&local.part.feeds);
        for (reflector, feed) in self.feeds.iter_mut().enumerate() {
            if node.open >> reflector & 1 == 1 {
                fixed += *feed;
                *feed = 0.0;
            } else if node.closed >> reflector & 1 == 1 {
                *feed = FAR;
            }
        }
        node.bound = node.bound.min(self.ascend(&local.part) - fixed);
        node.branch = None;
        if node.bound <= *best + distance {
            return;
        }
        let mut most = 0;
        for (reflector, &payers) in self.payers.iter().enumerate() {
            if (node.open | node.closed) >> reflector & 1 == 0 && payers > most {
                most = payers;
                node.branch = Some(reflector as u8);
            }
        }
        let profit = self.saturated_tree(local);
        if profit > *best {
            *best = profit;
            local.keep();
        }
    }

    /// Branch and bound over reflectors, from the current tree with profit `first`. Returns the
    /// bound of the profit and the profit of the best tree. Leaves the best tree as the current
    /// tree.
    pub(super) fn search(&mut self, local: &mut ObjectWorkspace, first: f64, limits: Limits) -> (f64, f64) {
        let mut best = first;
        local.keep();
        let mut root = Node { bound: f64::INFINITY, branch: None, open: 0, closed: 0 };
        self.visit(local, &mut root, &mut best, 0.0);
        let worth: f64 = local.part.worths.iter().sum();
        let distance = limits.tolerance * root.bound.min(worth - root.bound).max(0.0);
        self.nodes.clear();
        self.nodes.push(root);
        let mut pruned = best;
        let mut count = 1;
        let bound = loop {
            let highest = (0..self.nodes.len())
                .max_by(|&a, &b| self.nodes[a].bound.total_cmp(&self.nodes[b].bound))
                .map(|at| (at, self.nodes[at]));
            let Some((at, node)) = highest else { break pruned };
            let Some(reflector) = node.branch else { break node.bound };
            if node.bound <= best + distance || count >= limits.nodes {
                break node.bound;
            }
            self.nodes.swap_remove(at);
            let bit = 1u64 << reflector;
            for (open, closed) in [(node.open | bit, node.closed), (node.open, node.closed | bit)] {
                let mut child = Node { bound: node.bound, branch: None, open, closed };
                self.visit(local, &mut child, &mut best, distance);
                count += 1;
                if child.bound > best + distance {
                    self.nodes.push(child);
                } else {
                    pruned = pruned.max(child.bound);
                }
            }
        };
        local.restore();
        (bound.max(pruned).max(best), best)
    }
}
