//! Trees within capacities. Objects are placed in order of profit per unit of capacity value, then
//! their trees are improved at falling prices.

use super::dual::{Dual, Limits};
use super::flat_program::{FAR, FlatProgram, NONE, Paths, PriceView};
use super::head::is_head;
use super::object_workspace::{ObjectWorkspace, single};
use super::prices::{Duals, Marks};
use anabranch_units::RandomStream;

/// Share of the prices that applies in each phase.
const PHASES: [f64; 5] = [1.0, 1.0, 0.7, 0.3, 0.0];
/// Limits of branch and bound for one object in a phase.
const LIMITS: Limits = Limits { nodes: 15, tolerance: 0.003 };
/// In each later phase one object in this many is solved by branch and bound; the trees of the
/// other objects are only improved.
const AFRESH_EVERY: usize = 4;
/// Largest loss of the priced objective at which a new tree replaces the old tree.
const LOSS_MAX: f64 = 1e-12;

/// Trees within capacities, and the capacity that they leave.
#[derive(Clone)]
pub(super) struct PlacedTrees {
    pub(super) paths: Paths,
    /// Feed of each served pair.
    pub(super) feeds: Vec<u32>,
    feed_rooms: Vec<u64>,
    trunk_rooms: Vec<u64>,
    tail_rooms: Vec<u64>,
    pub(super) objective: f64,
}

impl PlacedTrees {
    pub(super) fn new(flat: &FlatProgram) -> Self {
        let pairs = flat.objects.groups.len();
        Self {
            paths: Paths::new(pairs),
            feeds: vec![NONE; pairs],
            feed_rooms: flat.feeds.rooms.clone(),
            trunk_rooms: flat.trunks.rooms.clone(),
            tail_rooms: flat.tails.rooms.clone(),
            objective: 0.0,
        }
    }
}

/// Share of the perturbed prices that applies in each phase of a restart.
const RESTART_PHASES: [f64; 3] = [0.7, 0.3, 0.0];
/// Largest relative perturbation of a price in a restart.
const NOISE: f64 = 0.5;
/// Largest factor on the prices in a restart without trees.
const SHARE_MAX: f64 = 1.5;
/// Every restart whose number is divisible by this number begins without trees; other restarts
/// begin with the best trees.
const FROM_NOTHING_EVERY: u32 = 2;

/// Repair of trees at one set of prices.
pub(super) struct Repair<'a> {
    pub(super) flat: &'a FlatProgram,
    /// Prices of capacity, without the links' costs.
    feed_duals: Vec<f64>,
    trunk_duals: Vec<f64>,
    tail_duals: Vec<f64>,
    trunk_prices: Vec<f64>,
    tail_prices: Vec<f64>,
    marks: Marks,
    former: Vec<(u32, u32, u32)>,
    feeds: Vec<u32>,
    feed_prices: Vec<f64>,
}

/// Buffers for the search of one object.
pub(super) struct Search<'a> {
    pub(super) local: &'a mut ObjectWorkspace,
    pub(super) dual: &'a mut Dual,
}

impl<'a> Repair<'a> {
    pub(super) fn new(flat: &'a FlatProgram, duals: &Duals) -> Self {
        let mut repair = Self::without_prices(flat);
        for reflector in 0..flat.reflectors {
            for feed in flat.feeds.leading_to(reflector) {
                repair.feed_duals[feed] = duals.of_feed(flat, reflector, feed);
            }
        }
        repair.trunk_duals.clone_from(&duals.trunks);
        repair.tail_duals.clone_from(&duals.tails);
        repair
    }

    /// Creates a repair in which capacity has no price, only the links' costs.
    pub(super) fn without_prices(flat: &'a FlatProgram) -> Self {
        Self {
            flat,
            feed_duals: vec![0.0; flat.feeds.len()],
            trunk_duals: vec![0.0; flat.trunks.len()],
            tail_duals: vec![0.0; flat.tails.len()],
            trunk_prices: Vec::new(),
            tail_prices: Vec::new(),
            marks: Marks::new(flat),
            former: Vec::new(),
            feeds: Vec::new(),
            feed_prices: Vec::new(),
        }
    }

    /// Places the objects in `order` without earlier trees, searching from the trees of `hints`.
    /// Then improves the trees, and keeps the result of the best phase in `best`.
    pub(super) fn run(
        &mut self,
        order: &[u32],
        hints: &Paths,
        search: &mut Search<'_>,
        best: &mut PlacedTrees,
    ) {
        let mut placed = PlacedTrees::new(self.flat);
        self.place_in_order(order, hints, search, &mut placed);
        self.improve(order, &PHASES[1..], search, &mut placed, best);
    }

    /// Places the objects in `order`, each within the capacity that is left.
    pub(super) fn place_in_order(
        &mut self,
        order: &[u32],
        hints: &Paths,
        search: &mut Search<'_>,
        placed: &mut PlacedTrees,
    ) {
        self.set_prices(PHASES[0]);
        for &object in order {
            self.place(object as usize, hints, search, placed, PHASES[0]);
            placed.objective += self.apply(object as usize, placed, true).0;
        }
    }

    /// Seeks better trees for all objects, once for each share of the prices. Keeps the result of
    /// the best phase in `best`.
    fn improve(
        &mut self,
        order: &[u32],
        shares: &[f64],
        search: &mut Search<'_>,
        placed: &mut PlacedTrees,
        best: &mut PlacedTrees,
    ) {
        if placed.objective > best.objective {
            best.clone_from(placed);
        }
        for (phase, &share) in shares.iter().enumerate() {
            self.set_prices(share);
            placed.objective = 0.0;
            for &object in order {
                placed.objective += self.replace(object as usize, phase + 1, search, placed, share);
            }
            if placed.objective > best.objective {
                best.clone_from(placed);
            }
        }
    }

    /// Repeats the repair `count` times at perturbed prices and in random orders.
    pub(super) fn restart(
        &mut self,
        count: u32,
        (duals, hints): (&Duals, &Paths),
        stream: &mut RandomStream,
        search: &mut Search<'_>,
        best: &mut PlacedTrees,
    ) {
        let mut order: Vec<u32> = (0..self.flat.objects.len() as u32).collect();
        let exact = Self::new(self.flat, duals);
        for restart in 1..=count {
            let is_from_nothing = restart.is_multiple_of(FROM_NOTHING_EVERY);
            let share = if is_from_nothing { SHARE_MAX * stream.unit_f64() } else { 1.0 };
            let mut noise = |price: &f64| share * price * (1.0 + NOISE * (2.0 * stream.unit_f64() - 1.0));
            self.feed_duals = exact.feed_duals.iter().map(&mut noise).collect();
            self.trunk_duals = exact.trunk_duals.iter().map(&mut noise).collect();
            self.tail_duals = exact.tail_duals.iter().map(&mut noise).collect();
            stream.shuffle(&mut order);
            if is_from_nothing {
                self.run(&order, hints, search, best);
            } else {
                let mut placed = best.clone();
                self.improve(&order, &RESTART_PHASES, search, &mut placed, best);
            }
        }
    }

    fn set_prices(&mut self, share: f64) {
        let flat = self.flat;
        let priced = |costs: &[f64], duals: &[f64]| {
            costs.iter().zip(duals).map(|(cost, dual)| cost + share * dual).collect()
        };
        self.trunk_prices = priced(&flat.trunks.costs, &self.trunk_duals);
        self.tail_prices = priced(&flat.tails.costs, &self.tail_duals);
    }

    /// Chooses the feed into each reflector for `object`: the cheapest feed with room, and among
    /// equals the feed with the least room.
    fn choose_feeds(&mut self, object: usize, placed: &PlacedTrees, share: f64) {
        let flat = self.flat;
        let (bps, set) = (flat.objects.bps[object], flat.objects.sets[object] as usize);
        self.feeds.clear();
        self.feed_prices.clear();
        for reflector in 0..flat.reflectors {
            let (mut chosen, mut least, mut room) = (NONE, FAR, u64::MAX);
            for feed in flat.feeds.leading_to(reflector) {
                let feed_room = placed.feed_rooms[feed];
                if feed_room < bps || !flat.has_feed(set, feed) {
                    continue;
                }
                let price = flat.feeds.costs[feed] + share * self.feed_duals[feed];
                if price < least || (price == least && feed_room < room) {
                    (chosen, least, room) = (feed as u32, price, feed_room);
                }
            }
            self.feeds.push(chosen);
            self.feed_prices.push(least);
        }
    }

    /// Finds a tree for an unplaced object within the remaining capacity. Writes the tree without
    /// subtracting its capacity.
    fn place(
        &mut self,
        object: usize,
        hints: &Paths,
        search: &mut Search<'_>,
        placed: &mut PlacedTrees,
        share: f64,
    ) {
        self.choose_feeds(object, placed, share);
        let pairs = self.flat.objects.pairs(object);
        self.solve(object, hints.of(pairs), true, search, placed);
    }

    /// Solves `object` within the remaining capacity, from the trees of `hint`, and writes its
    /// paths.
    fn solve(
        &mut self,
        object: usize,
        hint: (&[u32], &[u32]),
        is_afresh: bool,
        search: &mut Search<'_>,
        placed: &mut PlacedTrees,
    ) {
        let flat = self.flat;
        let pairs = flat.objects.pairs(object);
        let view = PriceView {
            tails: &self.tail_prices,
            trunks: &self.trunk_prices,
            feeds: &self.feed_prices,
            tail_rooms: &placed.tail_rooms,
            trunk_rooms: &placed.trunk_rooms,
        };
        if pairs.len() == 1 {
            let path = single(flat, object, pairs.start, &view);
            let (tail, trunk) = path.map_or((NONE, NONE), |(_, tail, trunk)| (tail, trunk));
            placed.paths.tails[pairs.start] = tail;
            placed.paths.trunks[pairs.start] = trunk;
        } else {
            let Search { local, dual } = search;
            let profit = local.solve(flat, object, &view, hint);
            if is_afresh && !is_head(local, profit) {
                dual.search(local, profit, LIMITS);
            }
            local.write(&mut placed.paths, pairs.start);
        }
        for pair in pairs {
            let trunk = placed.paths.trunks[pair];
            placed.feeds[pair] =
                if trunk == NONE { NONE } else { self.feeds[flat.trunks.parents[trunk as usize] as usize] };
        }
    }

    /// Seeks a better tree for a placed object. Returns the objective of the tree that is kept.
    fn replace(
        &mut self,
        object: usize,
        phase: usize,
        search: &mut Search<'_>,
        placed: &mut PlacedTrees,
        share: f64,
    ) -> f64 {
        let pairs = self.flat.objects.pairs(object);
        let (old, old_use) = self.apply(object, placed, false);
        self.choose_feeds(object, placed, share);
        let paths = &placed.paths;
        let mut former = std::mem::take(&mut self.former);
        former.clear();
        former.extend(pairs.clone().map(|pair| (paths.tails[pair], paths.trunks[pair], placed.feeds[pair])));
        let tails: Vec<u32> = if pairs.len() > 1 { paths.tails[pairs.clone()].to_vec() } else { Vec::new() };
        let trunks: Vec<u32> =
            if pairs.len() > 1 { paths.trunks[pairs.clone()].to_vec() } else { Vec::new() };
        let is_afresh = (object + phase).is_multiple_of(AFRESH_EVERY);
        self.solve(object, (&tails, &trunks), is_afresh, search, placed);
        let (new, new_use) = self.apply(object, placed, true);
        let is_kept = new - share * new_use >= old - share * old_use - LOSS_MAX;
        if !is_kept {
            self.apply(object, placed, false);
            for (pair, &(tail, trunk, feed)) in pairs.zip(&former) {
                placed.paths.tails[pair] = tail;
                placed.paths.trunks[pair] = trunk;
                placed.feeds[pair] = feed;
            }
            self.apply(object, placed, true);
        }
        self.former = former;
        if is_kept { new } else { old }
    }

    /// Subtracts the capacity of an object's tree, or adds it back. Returns the objective of the
    /// tree and the value of its capacity.
    fn apply(&mut self, object: usize, placed: &mut PlacedTrees, is_taken: bool) -> (f64, f64) {
        let flat = self.flat;
        let bps = flat.objects.bps[object];
        let change = |room: &mut u64| {
            if is_taken {
                *room -= bps;
            } else {
                *room += bps;
            }
        };
        let (mut objective, mut used) = (0.0, 0.0);
        self.marks.begin();
        for pair in flat.objects.pairs(object) {
            if placed.paths.tails[pair] == NONE {
                continue;
            }
            let tail = placed.paths.tails[pair] as usize;
            objective += flat.objects.worths[pair] - flat.tails.costs[tail];
            used += self.tail_duals[tail];
            change(&mut placed.tail_rooms[tail]);
            if !self.marks.is_new_edge(flat.tails.parents[tail] as usize) {
                continue;
            }
            let trunk = placed.paths.trunks[pair] as usize;
            objective -= flat.trunks.costs[trunk];
            used += self.trunk_duals[trunk];
            change(&mut placed.trunk_rooms[trunk]);
            if self.marks.is_new_reflector(flat.trunks.parents[trunk] as usize) {
                let feed = placed.feeds[pair] as usize;
                objective -= flat.feeds.costs[feed];
                used += self.feed_duals[feed];
                change(&mut placed.feed_rooms[feed]);
            }
        }
        let rate = flat.objects.rates[object];
        (objective * rate, used * rate)
    }
}
