//! Prices of link capacities, moved by incremental mirror descent.
//!
//! All links into one reflector share a price: the capacity of a source's feed is worth this price
//! minus the feed's cost. A reflector has one price for each set of sources that hold a channel.
//! Links that all requests together cannot fill have no price.

use super::flat_program::{FAR, FlatProgram, Paths, PriceView};

/// First step: the exponent, to base e, by which the price of a link at twice its capacity rises in
/// a pass.
const STEP: f64 = 3.0;
/// Decay of the step per pass.
const STEP_DECAY: f64 = 0.5;
/// First prices of feeds, trunks and tails, as shares of the price at which the sources' tier
/// fills.
const FIRST: [f64; 3] = [1.0, 0.05, 0.01];
/// Lowest price, as a share of the price at which the sources' tier fills. An average price of at
/// most [`NONE_BELOW`] times the lowest price counts as zero.
const FLOOR: f64 = 1e-5;
const NONE_BELOW: f64 = 2.0;
/// Lower limit of the first price, as a share of the objects' median density: reflectors and edges
/// may fill before the sources do.
const DENSITY_SHARE: f64 = 0.02;
/// Number of batches between two updates of the tails' prices.
const TAIL_BATCHES: usize = 4;
/// Number of passes by which the step of a warm start has already decayed. A smaller step preserves
/// good prices better, and corrects bad prices more slowly.
const WARM_PASSES: f64 = 16.0;

/// Prices of capacity: of the inflow of each reflector for each set of holding sources, of trunks,
/// and of tails.
#[derive(Clone, Debug)]
pub(super) struct Duals {
    /// Inflow prices by set, then by reflector, including the cheapest feed's cost. [`FAR`] if the
    /// set has no feed.
    pub(super) feeds: Vec<f64>,
    pub(super) trunks: Vec<f64>,
    pub(super) tails: Vec<f64>,
}

impl Duals {
    fn zero(flat: &FlatProgram) -> Self {
        Self {
            feeds: vec![0.0; flat.feed_sets.len() * flat.reflectors],
            trunks: vec![0.0; flat.trunks.len()],
            tails: vec![0.0; flat.tails.len()],
        }
    }
    /// Price of a feed's capacity: the highest excess of any set's price over the feed's cost.
    pub(super) fn of_feed(&self, flat: &FlatProgram, reflector: usize, feed: usize) -> f64 {
        let sets = 0..flat.feed_sets.len();
        let prices = sets.filter(|&set| flat.has_feed(set, feed)).map(|set| {
            let price = self.feeds[set * flat.reflectors + reflector];
            if price < FAR { price - flat.feeds.costs[feed] } else { 0.0 }
        });
        prices.fold(0.0, f64::max)
    }
    /// Inflow prices of all reflectors for `set`.
    pub(super) fn of_set(&self, flat: &FlatProgram, set: usize) -> &[f64] {
        &self.feeds[set * flat.reflectors..(set + 1) * flat.reflectors]
    }
}

/// State of the descent.
pub(super) struct Descent<'a> {
    flat: &'a FlatProgram,
    pub(super) duals: Duals,
    /// Cost of the cheapest feed by set and reflector.
    cheapest: Vec<f64>,
    /// Lowest price of a capacity.
    floor: f64,
    /// Trunks and tails that all requests together would overload.
    busy_trunks: Vec<u32>,
    busy_tails: Vec<u32>,
    sums: Duals,
    batches: f64,
    tail_batches: f64,
    used: Duals,
    /// Trunk and tail prices, each with the link's cost added.
    trunk_prices: Vec<f64>,
    tail_prices: Vec<f64>,
    is_warm: bool,
    marks: Marks,
}

/// Edges and reflectors already visited in the current tree.
pub(super) struct Marks {
    edges: Vec<u32>,
    reflectors: Vec<u32>,
    mark: u32,
}

impl Marks {
    pub(super) fn new(flat: &FlatProgram) -> Self {
        Self { edges: vec![0; flat.edges], reflectors: vec![0; flat.reflectors], mark: 0 }
    }
    pub(super) fn begin(&mut self) {
        self.mark += 1;
    }
    /// Marks `edge`. Returns whether it was not yet visited in this tree.
    pub(super) fn is_new_edge(&mut self, edge: usize) -> bool {
        std::mem::replace(&mut self.edges[edge], self.mark) != self.mark
    }
    /// Marks `reflector`. Returns whether it was not yet visited in this tree.
    pub(super) fn is_new_reflector(&mut self, reflector: usize) -> bool {
        std::mem::replace(&mut self.reflectors[reflector], self.mark) != self.mark
    }
}

/// First estimate of a price: the density (value per Mbit/s) of the object that fills the sources'
/// tier, in order of density. At least the mean cost of a feed and a share of the median density.
fn filling_density(flat: &FlatProgram) -> f64 {
    let objects = &flat.objects;
    let density = |object: usize| objects.worths[objects.pairs(object)].iter().sum::<f64>();
    let mut order: Vec<(f64, f64)> =
        (0..objects.len()).map(|object| (density(object), objects.rates[object])).collect();
    order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let median = order.get(order.len() / 2).map_or(0.0, |object| object.0);
    let mut demand = 0.0;
    let mut filling = 0.0;
    let capacity: f64 = flat.feeds.capacities.iter().sum();
    for (density, rate) in order {
        demand += rate;
        if demand > capacity && filling == 0.0 {
            filling = density;
        }
    }
    let mean_cost = flat.feeds.costs.iter().sum::<f64>() / flat.feeds.len().max(1) as f64;
    filling.max(mean_cost).max(DENSITY_SHARE * median)
}

/// Trunks and tails for which the total rate of all requests exceeds the capacity.
fn busy_links(flat: &FlatProgram) -> (Vec<u32>, Vec<u32>) {
    let objects = &flat.objects;
    let mut edge_load = vec![0.0; flat.edges];
    let mut group_load = vec![0.0; flat.tails.starts.len() - 1];
    let mut marks = Marks::new(flat);
    for object in 0..objects.len() {
        marks.begin();
        for pair in objects.pairs(object) {
            group_load[objects.groups[pair] as usize] += objects.rates[object];
            for tail in flat.tails.leading_to(objects.groups[pair] as usize) {
                let edge = flat.tails.parents[tail] as usize;
                if marks.is_new_edge(edge) {
                    edge_load[edge] += objects.rates[object];
                }
            }
        }
    }
    let mut busy = (Vec::new(), Vec::new());
    for (edge, load) in edge_load.into_iter().enumerate() {
        busy.0.extend(
            flat.trunks
                .leading_to(edge)
                .filter(|&trunk| load > flat.trunks.capacities[trunk])
                .map(|n| n as u32),
        );
    }
    for (group, load) in group_load.into_iter().enumerate() {
        busy.1.extend(
            flat.tails.leading_to(group).filter(|&tail| load > flat.tails.capacities[tail]).map(|n| n as u32),
        );
    }
    busy
}

impl<'a> Descent<'a> {
    /// Creates a descent from `former` prices, indexed by link and group link, or from an estimate.
    pub(super) fn new(flat: &'a FlatProgram, former: Option<(&[f64], &[f64])>) -> Self {
        let scale = filling_density(flat).max(1e-12);
        let (busy_trunks, busy_tails) = busy_links(flat);
        let mut duals = Duals::zero(flat);
        let mut cheapest = vec![FAR; duals.feeds.len()];
        let floor = FLOOR * scale;
        for set in 0..flat.feed_sets.len() {
            for reflector in 0..flat.reflectors {
                let at = set * flat.reflectors + reflector;
                let held = flat.feeds.leading_to(reflector).filter(|&feed| flat.has_feed(set, feed));
                cheapest[at] = held.clone().map(|feed| flat.feeds.costs[feed]).fold(FAR, f64::min);
                duals.feeds[at] = match former {
                    _ if cheapest[at] >= FAR => FAR,
                    None => cheapest[at] + FIRST[0] * scale,
                    Some((links, _)) => held
                        .map(|feed| flat.feeds.costs[feed] + links[flat.feeds.ids[feed] as usize])
                        .fold(FAR, f64::min)
                        .max(cheapest[at] + floor),
                };
            }
        }
        for &trunk in &busy_trunks {
            let former = former.map(|(links, _)| links[flat.trunks.ids[trunk as usize] as usize].max(floor));
            duals.trunks[trunk as usize] = former.unwrap_or(FIRST[1] * scale);
        }
        for &tail in &busy_tails {
            let former = former.map(|(_, tails)| tails[flat.tails.ids[tail as usize] as usize].max(floor));
            duals.tails[tail as usize] = former.unwrap_or(FIRST[2] * scale);
        }
        Self {
            flat,
            duals,
            cheapest,
            floor,
            busy_trunks,
            busy_tails,
            sums: Duals::zero(flat),
            batches: 0.0,
            tail_batches: 0.0,
            used: Duals::zero(flat),
            trunk_prices: flat.trunks.costs.clone(),
            tail_prices: flat.tails.costs.clone(),
            is_warm: former.is_some(),
            marks: Marks::new(flat),
        }
    }

    /// Lowest price of a capacity.
    pub(super) fn floor(&self) -> f64 {
        self.floor
    }
    /// Discards the prices averaged so far.
    pub(super) fn restart_average(&mut self) {
        self.sums.feeds.fill(0.0);
        self.sums.trunks.fill(0.0);
        self.sums.tails.fill(0.0);
        self.batches = 0.0;
        self.tail_batches = 0.0;
    }
    /// Average prices since the last restart. Averages near the lowest price count as zero.
    pub(super) fn average(&self) -> Duals {
        let mean = |sums: &[f64], count: f64| {
            let mean = sums.iter().map(|sum| sum / count);
            mean.map(|price| if price <= NONE_BELOW * self.floor { 0.0 } else { price }).collect::<Vec<f64>>()
        };
        let feeds = self.sums.feeds.iter().zip(&self.cheapest).map(|(sum, cheapest)| {
            let mean = sum / self.batches;
            if mean <= cheapest + NONE_BELOW * self.floor { *cheapest } else { mean }
        });
        let mut duals = Duals {
            feeds: feeds.collect(),
            trunks: mean(&self.sums.trunks, self.batches),
            tails: mean(&self.sums.tails, self.tail_batches),
        };
        settle(self.flat, &mut duals);
        duals
    }

    /// Runs one pass over the objects in `order`, in `batches`. `respond` writes the best tree of
    /// each object at the given prices.
    pub(super) fn pass(
        &mut self,
        (pass, batches): (u32, usize),
        order: &[u32],
        paths: &mut Paths,
        mut respond: impl FnMut(usize, &PriceView<'_>, &mut Paths),
    ) {
        let flat = self.flat;
        let done = if self.is_warm { WARM_PASSES } else { 0.0 };
        let step = STEP / (1.0 + STEP_DECAY * (f64::from(pass) + done));
        let batches = batches.clamp(1, order.len().max(1));
        let mut tail_share = 0.0;
        for batch in 0..batches {
            let range = batch * order.len() / batches..(batch + 1) * order.len() / batches;
            let share = range.len() as f64 / order.len().max(1) as f64;
            for &trunk in &self.busy_trunks {
                let trunk = trunk as usize;
                self.trunk_prices[trunk] = flat.trunks.costs[trunk] + self.duals.trunks[trunk];
                self.used.trunks[trunk] = 0.0;
            }
            if batch % TAIL_BATCHES == 0 {
                for &tail in &self.busy_tails {
                    let tail = tail as usize;
                    self.tail_prices[tail] = flat.tails.costs[tail] + self.duals.tails[tail];
                    self.used.tails[tail] = 0.0;
                }
                tail_share = 0.0;
            }
            tail_share += share;
            self.used.feeds.fill(0.0);
            for &object in &order[range] {
                let object = object as usize;
                let set = flat.objects.sets[object] as usize;
                let view = PriceView {
                    tails: &self.tail_prices,
                    trunks: &self.trunk_prices,
                    feeds: self.duals.of_set(flat, set),
                    tail_rooms: &flat.tails.rooms,
                    trunk_rooms: &flat.trunks.rooms,
                };
                respond(object, &view, paths);
                self.use_tree(object, paths);
            }
            self.move_prices(step, share);
            if (batch + 1) % TAIL_BATCHES == 0 || batch + 1 == batches {
                self.move_tails(step, tail_share);
            }
        }
    }

    fn use_tree(&mut self, object: usize, paths: &Paths) {
        let flat = self.flat;
        let (rate, set) = (flat.objects.rates[object], flat.objects.sets[object] as usize);
        self.marks.begin();
        for pair in flat.objects.pairs(object) {
            let tail = paths.tails[pair] as usize;
            if paths.tails[pair] == super::flat_program::NONE {
                continue;
            }
            self.used.tails[tail] += rate;
            if self.marks.is_new_edge(flat.tails.parents[tail] as usize) {
                let trunk = paths.trunks[pair] as usize;
                self.used.trunks[trunk] += rate;
                let reflector = flat.trunks.parents[trunk] as usize;
                if self.marks.is_new_reflector(reflector) {
                    self.used.feeds[set * flat.reflectors + reflector] += rate;
                }
            }
        }
    }

    fn move_prices(&mut self, step: f64, share: f64) {
        let flat = self.flat;
        for reflector in 0..flat.reflectors {
            for set in 0..flat.feed_sets.len() {
                let at = set * flat.reflectors + reflector;
                if self.cheapest[at] >= FAR {
                    self.sums.feeds[at] += FAR;
                    continue;
                }
                let (mut supply, mut all) = (0.0, 0.0);
                for feed in flat.feeds.leading_to(reflector).filter(|&feed| flat.has_feed(set, feed)) {
                    all += flat.feeds.capacities[feed];
                    if flat.feeds.costs[feed] <= self.duals.feeds[at] {
                        supply += flat.feeds.capacities[feed];
                    }
                }
                let used = self.used_by_overlapping(set, reflector);
                let move_by = (step * (used - share * supply) / f64::max(all, 1e-9)).clamp(-1.0, 1.0);
                let above = (self.duals.feeds[at] - self.cheapest[at]).max(self.floor);
                self.duals.feeds[at] = self.cheapest[at] + (above * factor(move_by)).max(self.floor);
                self.sums.feeds[at] += self.duals.feeds[at];
            }
        }
        for &trunk in &self.busy_trunks {
            let trunk = trunk as usize;
            let capacity = flat.trunks.capacities[trunk].max(1e-9);
            let move_by = (step * (self.used.trunks[trunk] / capacity - share)).clamp(-1.0, 1.0);
            let price = &mut self.duals.trunks[trunk];
            *price = (*price * factor(move_by)).max(self.floor);
            self.sums.trunks[trunk] += *price;
        }
        self.batches += 1.0;
    }

    /// Load on a reflector's inflow by objects of `set`, plus a share of the load by each other
    /// set. The share is the part of the other set's sources that are also in `set`.
    fn used_by_overlapping(&self, set: usize, reflector: usize) -> f64 {
        let flat = self.flat;
        let mask = flat.feed_sets[set].sources;
        let sets = flat.feed_sets.iter().map(|other| other.sources).enumerate();
        let shared = sets.filter(|&(_, other)| other & mask != 0).map(|(other, other_mask)| {
            let share = f64::from((other_mask & mask).count_ones()) / f64::from(other_mask.count_ones());
            share * self.used.feeds[other * flat.reflectors + reflector]
        });
        shared.sum()
    }

    fn move_tails(&mut self, step: f64, share: f64) {
        for &tail in &self.busy_tails {
            let tail = tail as usize;
            let capacity = self.flat.tails.capacities[tail].max(1e-9);
            let move_by = (step * (self.used.tails[tail] / capacity - share)).clamp(-1.0, 1.0);
            let price = &mut self.duals.tails[tail];
            *price = (*price * factor(move_by)).max(self.floor);
            self.sums.tails[tail] += *price;
        }
        self.tail_batches += 1.0;
    }
}

/// The exponential function to second order: fast, positive, and identical on all platforms.
fn factor(move_by: f64) -> f64 {
    1.0 + move_by * (1.0 + 0.5 * move_by)
}

/// Raises each reflector's price for a set to the lowest cost plus price of the set's feeds.
fn settle(flat: &FlatProgram, duals: &mut Duals) {
    let mut feed_prices = vec![0.0; flat.feeds.len()];
    for reflector in 0..flat.reflectors {
        for feed in flat.feeds.leading_to(reflector) {
            feed_prices[feed] = flat.feeds.costs[feed] + duals.of_feed(flat, reflector, feed);
        }
        for set in 0..flat.feed_sets.len() {
            let held = flat.feeds.leading_to(reflector).filter(|&feed| flat.has_feed(set, feed));
            duals.feeds[set * flat.reflectors + reflector] =
                held.map(|feed| feed_prices[feed]).fold(FAR, f64::min);
        }
    }
}

/// Value of all capacities at these prices: the part of the bound beside the objects' profits.
pub(super) fn capacity_value(flat: &FlatProgram, duals: &Duals) -> f64 {
    let mut sum = 0.0;
    for reflector in 0..flat.reflectors {
        for feed in flat.feeds.leading_to(reflector) {
            sum += duals.of_feed(flat, reflector, feed) * flat.feeds.capacities[feed];
        }
    }
    for (links, prices) in [(&flat.trunks, &duals.trunks), (&flat.tails, &duals.tails)] {
        sum += links.capacities.iter().zip(prices).map(|(capacity, price)| capacity * price).sum::<f64>();
    }
    sum
}
