//! Objects of hundreds of groups: one price for each group, moved by Polyak steps.
//!
//! "Each group is served once" is relaxed by a price v for each group. For given prices the path
//! form splits by reflector into closed forms: an edge earns what its groups pay above their slots,
//! less its way; a reflector earns the sum over its edges, less its feed. Worths less prices and
//! all earnings above zero are at least the best profit, whatever the prices.

use super::dual::Dual;
use super::flat_program::NONE;
use super::object_workspace::{ObjectNetwork, ObjectWorkspace};

/// Number of groups from which an object may be a head object.
const HEAD_GROUPS: usize = 100;
/// Most that feeds may cost of a head object's tree. Above it, branch and bound on reflectors has
/// the better bound, because the relaxation lets a group be served by several edges of one
/// reflector.
const FEEDS_SHARE_MAX: f64 = 0.2;
/// Steps without a better bound before the step length shrinks, and by what factor.
const PATIENCE: u32 = 12;
const SHRINK: f64 = 0.6;
/// Step length, of the whole way to the best profit, at which the search ends.
const STEP_MIN: f64 = 2e-3;
/// Steps between two trees read off the prices.
const STEPS_PER_TREE: u32 = 80;

/// Whether the object of the current tree, which has this profit, is a head object. Head objects
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

/// Workspace of the price search.
#[derive(Default)]
pub(super) struct Head {
    prices: Vec<f64>,
    best: Vec<f64>,
    /// Earnings of each edge before its way.
    edges: Vec<f64>,
    reflectors: Vec<f64>,
    /// Number of open ways of each edge.
    opens: Vec<f64>,
    steps: Vec<f64>,
}

impl Head {
    /// Bound of the profit at the current prices. Leaves the earnings of edges and reflectors
    /// behind.
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

    /// One Polyak step of `length` towards a bound of `target`. Returns false at a minimum.
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

    /// Opens the edges that earn at the current prices and improves that tree.
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

    /// Searches prices from the prices of `dual`, and trees from the current one, whose profit is
    /// `first`. Returns the bound of the profit and the profit of the best tree, which is the
    /// current one then.
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
