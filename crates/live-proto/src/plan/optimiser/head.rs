//! Bounds and trees of objects with hundreds of groups: one price per group, moved by Polyak steps.
//!
//! The constraint that each group is served once is relaxed by a price v for each group. At given
//! prices the path form splits into closed forms by reflector. An edge earns the payments of its
//! groups above their slot prices, minus the price of its way (`object_workspace`). A reflector
//! earns the sum over its edges, minus the price of its feed. The sum of all worths, minus all
//! prices, plus all positive earnings of reflectors, is an upper bound of the profit at any prices.

use super::dual::Dual;
use super::flat_program::NONE;
use super::object_workspace::{ObjectNetwork, ObjectWorkspace};

/// Lowest number of groups of a head object.
const HEAD_GROUPS: usize = 100;
/// Upper limit of the feeds' share of the cost of a head object's tree. Above it, branch and bound
/// over reflectors yields the better bound, because the relaxation lets several edges of one
/// reflector serve a group.
const FEEDS_SHARE_MAX: f64 = 0.2;
/// Number of steps without a better bound before the step length shrinks, and the factor of
/// shrinking.
const PATIENCE: u32 = 12;
const SHRINK: f64 = 0.6;
/// Step length at which the search ends, as a share of the distance to the best profit.
const STEP_MIN: f64 = 2e-3;
/// Number of steps between two trees derived from the prices.
const STEPS_PER_TREE: u32 = 80;

/// Whether the object of the current tree, whose profit is `profit`, is a head object. Head objects
/// are solved by prices instead of branch and bound.
pub(super) fn is_head(local: &ObjectWorkspace, profit: f64) -> bool {
    if local.part.groups() < HEAD_GROUPS {
        return false;
    }
    let served = local.open.slots.iter().zip(&local.part.worths).filter(|(slot, _)| **slot != NONE);
    let cost = served.map(|(_, worth)| worth).sum::<f64>() - profit;
    let feeds = local.open.uses.iter().zip(&local.part.feeds).filter(|(uses, _)| **uses > 0);
    feeds.map(|(_, feed)| feed).sum::<f64>() < FEEDS_SHARE_MAX * cost
}

/// Buffers of the price search.
#[derive(Default)]
pub(super) struct Head {
    prices: Vec<f64>,
    best: Vec<f64>,
    /// Sum of the groups' payments to each edge, before the price of a way.
    edges: Vec<f64>,
    reflectors: Vec<f64>,
    /// Number of profitable ways of each edge.
    opens: Vec<f64>,
    steps: Vec<f64>,
}

impl Head {
    /// Upper bound of the profit at the current prices. Stores the earnings of edges and
    /// reflectors.
    fn bound(&mut self, part: &ObjectNetwork) -> f64 {
        self.edges.clear();
        self.edges.resize(part.edges(), 0.0);
        let mut sum = 0.0;
        for group in 0..part.groups() {
            let price = self.prices[group];
            sum += part.worths[group] - price;
            for slot in part.slots(group) {
                let pays = price - part.slot_prices[slot];
                self.edges[part.slot_edges[slot] as usize] += pays.max(0.0);
            }
        }
        self.reflectors.clear();
        self.reflectors.extend(part.feeds.iter().map(|feed| -feed));
        for edge in 0..part.edges() {
            for way in part.ways(edge) {
                let earns = self.edges[edge] - part.way_prices[way];
                if earns > 0.0 {
                    self.reflectors[part.way_reflectors[way] as usize] += earns;
                }
            }
        }
        sum + self.reflectors.iter().filter(|&&earns| earns > 0.0).sum::<f64>()
    }

    /// Moves the prices by one Polyak step: by `length` times the step that would lower the bound
    /// by `distance`. Returns false at a minimum.
    fn step(&mut self, part: &ObjectNetwork, distance: f64, length: f64) -> bool {
        self.opens.clear();
        for edge in 0..part.edges() {
            let open = part.ways(edge).filter(|&way| {
                self.edges[edge] > part.way_prices[way]
                    && self.reflectors[part.way_reflectors[way] as usize] > 0.0
            });
            self.opens.push(open.count() as f64);
        }
        self.steps.clear();
        let mut norm = 0.0;
        for group in 0..part.groups() {
            let price = self.prices[group];
            let served: f64 = part
                .slots(group)
                .map(|slot| {
                    let opens = self.opens[part.slot_edges[slot] as usize];
                    if price > part.slot_prices[slot] { opens } else { 0.0 }
                })
                .sum();
            let mut slope = served - 1.0;
            if slope < 0.0 && price >= part.worths[group] {
                slope = 0.0;
            }
            self.steps.push(slope);
            norm += slope * slope;
        }
        if norm == 0.0 {
            return false;
        }
        let scale = length * distance / norm;
        for group in 0..part.groups() {
            let price = self.prices[group] - scale * self.steps[group];
            self.prices[group] = price.clamp(0.0, part.worths[group]);
        }
        true
    }

    /// Opens the edges that are profitable at the current prices, improves the tree, and returns
    /// its profit.
    fn tree(&self, local: &mut ObjectWorkspace) -> f64 {
        local.close_all();
        for edge in 0..local.part.edges() {
            let mut chosen = NONE;
            let mut least = self.edges[edge];
            for way in local.part.ways(edge) {
                let reflector = local.part.way_reflectors[way] as usize;
                if self.reflectors[reflector] > 0.0 && local.part.way_prices[way] < least {
                    least = local.part.way_prices[way];
                    chosen = way as u32;
                }
            }
            if chosen != NONE {
                local.open_edge(edge, chosen as usize);
            }
        }
        local.improve()
    }

    /// Searches prices, starting from the prices of `dual`, and trees, starting from the current
    /// tree with profit `first`. Returns the bound of the profit and the profit of the best tree.
    /// Leaves the best tree as the current tree.
    pub(super) fn search(
        &mut self,
        local: &mut ObjectWorkspace,
        dual: &mut Dual,
        first: f64,
        steps: u32,
        tolerance: f64,
    ) -> (f64, f64) {
        let mut profit = first;
        local.keep();
        let mut bound = dual.bound(&local.part);
        let tree = dual.saturated_tree(local);
        if tree > profit {
            profit = tree;
            local.keep();
        }
        let worth: f64 = local.part.worths.iter().sum();
        self.prices.clone_from(&dual.prices);
        self.best.clone_from(&dual.prices);
        let (mut length, mut idle) = (1.0, 0);
        for step in 1..=steps {
            let here = self.bound(&local.part);
            if here < bound {
                bound = here;
                idle = 0;
                self.best.clone_from(&self.prices);
            } else {
                idle += 1;
                if idle > PATIENCE {
                    length *= SHRINK;
                    idle = 0;
                    self.prices.clone_from(&self.best);
                    self.bound(&local.part);
                }
            }
            if step % STEPS_PER_TREE == 0 {
                let tree = self.tree(local);
                if tree > profit {
                    profit = tree;
                    local.keep();
                }
            }
            let is_close = bound - profit <= tolerance * (worth - bound).max(0.0);
            if is_close || length < STEP_MIN || !self.step(&local.part, here - profit, length) {
                break;
            }
        }
        local.restore();
        (bound.max(profit), profit)
    }
}
