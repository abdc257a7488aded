//! Plans with a certificate: Lagrangian relaxation of link capacities.
//!
//! At given prices of capacity the best tree of each object is sought independently: a two-level
//! facility location (`object_workspace`). Dual ascent and branch and bound (`dual`), or prices of
//! its groups (`head`), bound its profit from above. The sum of the objects' bounds and of the
//! value of all capacities bounds the objective of every plan. Prices move by incremental mirror
//! descent (`prices`). Trees within capacities are found by placing objects in order of profit, and
//! are then improved at falling prices (`repair`).
//!
//! Invariants: a plan satisfies [`super::check`]; its bound is at least the objective of any plan;
//! equal inputs yield equal plans.
//! Cost: linear in the requests for each pass. Read [`Optimiser`] first.

mod dual;
mod flat_program;
mod head;
mod object_workspace;
mod prices;
mod repair;

#[cfg(test)]
mod tests;

use super::answer::{Plan, Tree};
use super::problem::{ObjectId, Program};
use anabranch_units::{LinkId, Seed};
use dual::{Dual, Limits};
use flat_program::{FlatProgram, NONE, Paths, PriceView};
use head::{Head, is_head};
use object_workspace::{ObjectWorkspace, QUICK_ROUNDS, single};
use prices::{Descent, Duals, Marks, capacity_value};
use repair::{PlacedTrees, Repair, Search};

/// Effort of a search.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Optimiser {
    /// Number of passes over all objects, at least 1.
    pub passes: u32,
    /// Number of batches in a pass, at least 1. Prices move after each batch. A pass has at most
    /// one batch per object.
    pub batches: u32,
    /// Seed of the random order of objects.
    pub seed: Seed,
}

impl Default for Optimiser {
    fn default() -> Self {
        Self { passes: 20, batches: 64, seed: Seed::new(1) }
    }
}

/// Prices of capacity, per Mbit/s, in units of the objective. The next round of the same network
/// starts from these prices.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// Price of each link of the network.
    pub links: Vec<f64>,
    /// Price of each group link.
    pub group_links: Vec<f64>,
}

/// Reason why a round cannot be planned.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptimiseError {
    /// The search has no passes, or its passes have no batches.
    NoEffort {
        /// [`Optimiser::passes`].
        passes: u32,
        /// [`Optimiser::batches`].
        batches: u32,
    },
    /// The numbers of prices do not match the program's links.
    Prices {
        /// Links and group links of the program.
        expected: (usize, usize),
        /// Prices of links and group links.
        given: (usize, usize),
    },
}

impl std::fmt::Display for OptimiseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoEffort { passes, batches } => {
                write!(f, "{passes} passes of {batches} batches: a search needs at least 1 of each")
            }
            Self::Prices { expected: (links, group_links), given: (given, given_groups) } => write!(
                f,
                "prices of {given} links and {given_groups} group links: the program has {links} and \
                 {group_links}; start without prices"
            ),
        }
    }
}

impl std::error::Error for OptimiseError {}

/// Number of passes with quick trees. Later passes start from the trees of the pass before.
const QUICK_PASSES: u32 = 6;
/// Number of passes between two computations of the bound.
const PASSES_PER_BOUND: u32 = 7;
/// After the quick passes, each pass searches one object in this many by branch and bound.
const SEARCH_EVERY: u32 = 4;
/// Limits of the search of one object in a pass.
const PASS_LIMITS: Limits = Limits { nodes: 15, tolerance: 0.005 };
/// Limits of the search of one object for the bound.
const BOUND_LIMITS: Limits = Limits { nodes: 101, tolerance: 0.001 };
/// Limits for the bound of an object with many groups: steps, and tolerance as a share of its cost.
const HEAD_STEPS: u32 = 1_000;
const HEAD_TOLERANCE: f64 = 0.002;
/// Margin added to the bound for rounding errors, as a share of the sums in the bound.
const ROUNDING: f64 = 1e-11;

/// Maximum number of requests that all restarts of a small program place together.
const SMALL_PLACEMENTS: usize = 12_000;
/// The same limit while the gap is above [`WIDE_GAP`].
const WIDE_PLACEMENTS: usize = 48_000;
/// Maximum number of restarts of a small program.
const SMALL_RESTARTS: usize = 200;
/// Relative gap above which the gap counts as wide.
const WIDE_GAP: f64 = 0.005;

/// State of one optimisation.
struct Run<'a> {
    flat: &'a FlatProgram,
    local: ObjectWorkspace,
    dual: Dual,
    head: Head,
    marks: Marks,
    /// Best trees at the current prices.
    paths: Paths,
    /// Profit of each object per unit of capacity value that its tree uses.
    densities: Vec<f64>,
    bound: f64,
    best_duals: Option<Duals>,
    best: PlacedTrees,
}

impl Optimiser {
    /// Plans one round. `former` holds the prices of the last round.
    ///
    /// Errors: no passes or no batches; prices for another number of links.
    pub fn optimise(
        &self,
        program: &Program,
        former: Option<&Prices>,
    ) -> Result<(Plan, Prices), OptimiseError> {
        let &Self { passes, batches, .. } = self;
        if passes == 0 || batches == 0 {
            return Err(OptimiseError::NoEffort { passes, batches });
        }
        let expected = (program.network().links().len(), program.group_links().len());
        if let Some(prices) = former {
            let given = (prices.links.len(), prices.group_links.len());
            if given != expected {
                return Err(OptimiseError::Prices { expected, given });
            }
        }
        let flat = FlatProgram::new(program);
        let mut run = Run::new(&flat);
        let former = former.map(|prices| (&prices.links[..], &prices.group_links[..]));
        run.search(self, former);
        let plan = run.plan();
        let duals = run.best_duals.take();
        Ok((plan, prices(&flat, duals, expected)))
    }
}

/// Converts prices to the ids of links and group links.
fn prices(flat: &FlatProgram, duals: Option<Duals>, (links, group_links): (usize, usize)) -> Prices {
    let mut prices = Prices { links: vec![0.0; links], group_links: vec![0.0; group_links] };
    let Some(duals) = duals else { return prices };
    for reflector in 0..flat.reflectors {
        for feed in flat.feeds.leading_to(reflector) {
            prices.links[flat.feeds.ids[feed] as usize] = duals.of_feed(flat, reflector, feed);
        }
    }
    for (&id, price) in flat.trunks.ids.iter().zip(duals.trunks) {
        prices.links[id as usize] = price;
    }
    for (&id, price) in flat.tails.ids.iter().zip(duals.tails) {
        prices.group_links[id as usize] = price;
    }
    prices
}

impl<'a> Run<'a> {
    fn new(flat: &'a FlatProgram) -> Self {
        Self {
            flat,
            local: ObjectWorkspace::new(flat),
            dual: Dual::default(),
            head: Head::default(),
            marks: Marks::new(flat),
            paths: Paths::new(flat.objects.groups.len()),
            densities: vec![0.0; flat.objects.len()],
            bound: f64::INFINITY,
            best_duals: None,
            best: PlacedTrees::new(flat),
        }
    }

    fn search(&mut self, optimiser: &Optimiser, former: Option<(&[f64], &[f64])>) {
        let flat = self.flat;
        if flat.objects.groups.is_empty() {
            self.bound = 0.0;
            return;
        }
        let mut descent = Descent::new(flat, former);
        let mut order: Vec<u32> = (0..flat.objects.len() as u32).collect();
        let mut stream = optimiser.seed.stream("objects", 0);
        for pass in 0..optimiser.passes {
            stream.shuffle(&mut order);
            if pass <= QUICK_PASSES || (pass - QUICK_PASSES).is_multiple_of(PASSES_PER_BOUND) {
                descent.restart_average();
            }
            let Self { local, dual, paths, .. } = self;
            descent.pass((pass, optimiser.batches as usize), &order, paths, |object, view, paths| {
                respond(flat, (local, dual), (object, pass), view, paths);
            });
            let is_last = pass + 1 == optimiser.passes;
            let is_due =
                pass + 1 > QUICK_PASSES && (pass + 1 - QUICK_PASSES).is_multiple_of(PASSES_PER_BOUND);
            if is_last || is_due {
                let duals = descent.average();
                self.bound(&duals, descent.floor());
                self.repair(&duals);
                if is_last {
                    self.restart(optimiser, &duals);
                }
                if self.bound <= self.best.objective {
                    break;
                }
            }
        }
    }

    /// Bounds all plans at these prices, and computes the tree and density of each object.
    fn bound(&mut self, duals: &Duals, floor: f64) {
        let flat = self.flat;
        let priced = |costs: &[f64], duals: &[f64]| -> Vec<f64> {
            costs.iter().zip(duals).map(|(cost, dual)| cost + dual).collect()
        };
        let (trunks, tails) =
            (priced(&flat.trunks.costs, &duals.trunks), priced(&flat.tails.costs, &duals.tails));
        let value = capacity_value(flat, duals);
        let (mut bound, mut size) = (value, value);
        for object in 0..flat.objects.len() {
            let set = flat.objects.sets[object] as usize;
            let view = PriceView {
                tails: &tails,
                trunks: &trunks,
                feeds: duals.of_set(flat, set),
                tail_rooms: &flat.tails.rooms,
                trunk_rooms: &flat.trunks.rooms,
            };
            let pairs = flat.objects.pairs(object);
            let (object_bound, profit) = if pairs.len() == 1 {
                let path = single(flat, object, pairs.start, &view);
                let (profit, tail, trunk) = path.unwrap_or((0.0, NONE, NONE));
                self.paths.tails[pairs.start] = tail;
                self.paths.trunks[pairs.start] = trunk;
                (profit, profit)
            } else {
                self.search_object(object, &view)
            };
            let rate = flat.objects.rates[object];
            bound += object_bound * rate;
            size += flat.objects.worths[pairs].iter().sum::<f64>() * rate;
            self.densities[object] = profit / (self.priced_use(object, duals) + floor);
        }
        bound += ROUNDING * size;
        if bound < self.bound {
            self.bound = bound;
            self.best_duals = Some(duals.clone());
        }
    }

    fn search_object(&mut self, object: usize, view: &PriceView<'_>) -> (f64, f64) {
        let flat = self.flat;
        let pairs = flat.objects.pairs(object);
        let Self { local, dual, head, paths, .. } = self;
        let profit = local.solve(flat, object, view, paths.of(pairs.clone()));
        let found = if is_head(local, profit) {
            head.search(local, dual, profit, HEAD_STEPS, HEAD_TOLERANCE)
        } else {
            dual.search(local, profit, BOUND_LIMITS)
        };
        local.write(paths, pairs.start);
        found
    }

    /// Value of the capacity that an object's tree uses, per Mbit/s.
    fn priced_use(&mut self, object: usize, duals: &Duals) -> f64 {
        let flat = self.flat;
        let feeds = duals.of_set(flat, flat.objects.sets[object] as usize);
        let mut used = 0.0;
        self.marks.begin();
        for pair in flat.objects.pairs(object) {
            if self.paths.tails[pair] == NONE {
                continue;
            }
            let (tail, trunk) = (self.paths.tails[pair] as usize, self.paths.trunks[pair] as usize);
            used += duals.tails[tail];
            if self.marks.is_new_edge(flat.tails.parents[tail] as usize) {
                used += duals.trunks[trunk];
                let reflector = flat.trunks.parents[trunk] as usize;
                if self.marks.is_new_reflector(reflector) {
                    let costs = flat.feeds.leading_to(reflector).map(|feed| flat.feeds.costs[feed]);
                    used += feeds[reflector] - costs.fold(feeds[reflector], f64::min);
                }
            }
        }
        used
    }

    /// Places the objects within capacities, in order of decreasing density.
    fn repair(&mut self, duals: &Duals) {
        let mut order: Vec<u32> = (0..self.flat.objects.len() as u32).collect();
        order.sort_by(|&a, &b| self.densities[b as usize].total_cmp(&self.densities[a as usize]));
        let mut search = Search { local: &mut self.local, dual: &mut self.dual };
        Repair::new(self.flat, duals).run(&order, &self.paths, &mut search, &mut self.best);
    }

    /// Repeats the repair at perturbed prices.
    fn restart(&mut self, optimiser: &Optimiser, duals: &Duals) {
        let requests = self.flat.objects.groups.len();
        let restarts = |placements: usize| (placements / requests).min(SMALL_RESTARTS) as u32;
        let mut stream = optimiser.seed.stream("restarts", 0);
        let mut repair = Repair::new(self.flat, duals);
        let mut done = 0;
        for (least_gap, count) in [(0.0, restarts(SMALL_PLACEMENTS)), (WIDE_GAP, restarts(WIDE_PLACEMENTS))] {
            if self.bound - self.best.objective > least_gap * self.bound && count > done {
                let mut search = Search { local: &mut self.local, dual: &mut self.dual };
                let hints = (duals, &self.paths);
                repair.restart(count - done, hints, &mut stream, &mut search, &mut self.best);
                done = count;
            }
        }
    }

    /// The best trees as a plan, with their service and cost.
    fn plan(&self) -> Plan {
        let (trees, service, cost) = trees(self.flat, &self.best);
        let objective = service - cost;
        debug_assert!(
            objective <= self.bound * (1.0 + 1e-9),
            "the bound {} is below {objective}",
            self.bound
        );
        Plan { trees, service, cost, bound: self.bound.max(objective) }
    }
}

/// Trees of the placed objects, with their total service and cost.
fn trees(flat: &FlatProgram, placed: &PlacedTrees) -> (Vec<Tree>, f64, f64) {
    let (mut service, mut cost) = (0.0, 0.0);
    let mut trees = Vec::new();
    for object in 0..flat.objects.len() {
        let mut tree = Tree { object: ObjectId(object as u32), links: Vec::new(), group_links: Vec::new() };
        let (mut feeds, mut trunks) = (Vec::new(), Vec::new());
        let rate = flat.objects.rates[object];
        for pair in flat.objects.pairs(object) {
            let tail = placed.paths.tails[pair];
            if tail == NONE {
                continue;
            }
            service += rate * flat.objects.worths[pair];
            cost += rate * flat.tails.costs[tail as usize];
            tree.group_links.push(flat.tail_id(tail));
            trunks.push(placed.paths.trunks[pair]);
            feeds.push(placed.feeds[pair]);
        }
        for (links, used) in [(&flat.feeds, &mut feeds), (&flat.trunks, &mut trunks)] {
            used.sort_unstable();
            used.dedup();
            cost += used.iter().map(|&link| rate * links.costs[link as usize]).sum::<f64>();
            tree.links.extend(used.iter().map(|&link| FlatProgram::link_id(links, link)));
        }
        if !tree.group_links.is_empty() {
            tree.links.sort_unstable_by_key(|&LinkId(id)| id);
            tree.group_links.sort_unstable();
            trees.push(tree);
        }
    }
    (trees, service, cost)
}

/// Trees of the objects in the order given. Each is the best tree found within the capacity left by
/// the objects before it.
///
/// `order` lists objects by index; other objects get no tree.
/// Panics: for an object that the program does not have.
pub fn trees_in_order(program: &Program, order: &[u32]) -> Vec<Tree> {
    let flat = FlatProgram::new(program);
    let (mut local, mut dual) = (ObjectWorkspace::new(&flat), Dual::default());
    let mut placed = PlacedTrees::new(&flat);
    let hints = Paths::new(flat.objects.groups.len());
    let mut search = Search { local: &mut local, dual: &mut dual };
    Repair::without_prices(&flat).place_in_order(order, &hints, &mut search, &mut placed);
    trees(&flat, &placed).0
}

/// Finds the tree of one object in a pass of the descent.
fn respond(
    flat: &FlatProgram,
    (local, dual): (&mut ObjectWorkspace, &mut Dual),
    (object, pass): (usize, u32),
    view: &PriceView<'_>,
    paths: &mut Paths,
) {
    let pairs = flat.objects.pairs(object);
    if pairs.len() == 1 {
        let path = single(flat, object, pairs.start, view);
        let (tail, trunk) = path.map_or((NONE, NONE), |(_, tail, trunk)| (tail, trunk));
        paths.tails[pairs.start] = tail;
        paths.trunks[pairs.start] = trunk;
        return;
    }
    if pass < QUICK_PASSES {
        local.fill(flat, object, view);
        local.respond(QUICK_ROUNDS);
    } else {
        let profit = local.solve(flat, object, view, paths.of(pairs.clone()));
        let is_searched = pass == QUICK_PASSES || (object as u32 + pass).is_multiple_of(SEARCH_EVERY);
        if is_searched && !is_head(local, profit) {
            dual.search(local, profit, PASS_LIMITS);
        }
    }
    local.write(paths, pairs.start);
}
