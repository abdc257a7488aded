//! Best tree of one object at given prices: a two-level facility location of edges and reflectors.
//!
//! Profits are per Mbit/s of the object: the worth of the served groups, minus the prices of the
//! links. [`ObjectWorkspace::fill`] copies the object's part of the network.
//! [`ObjectWorkspace::respond`] builds a tree. [`ObjectWorkspace::improve`] adds, drops and moves
//! edges and reflectors.

use super::flat_program::{FAR, FlatProgram, NONE, Paths, PriceView};

/// Rounds of slope scaling in a quick tree.
pub(super) const QUICK_ROUNDS: u32 = 2;
/// Smallest gain of a move, per Mbit/s, as a share of the largest worth.
const GAIN_MIN: f64 = 1e-13;
/// Maximum number of moves in one search that open a reflector. The bound is needed, because the
/// next move may close the reflector again.
const REFLECTORS_OPENED_MAX: u32 = 3;
/// Share of a closed edge's gain that is counted towards opening a reflector. It is below 1,
/// because the edges of one reflector compete for the same groups.
const JOINT_GAIN_SHARE: f64 = 0.6;

/// Part of the network that one object can use. A *slot* is a tail that leads to one of its groups;
/// a *way* is a trunk that leads to one of its edges.
#[derive(Default)]
pub(super) struct ObjectNetwork {
    pub(super) worths: Vec<f64>,
    pub(super) slot_starts: Vec<u32>,
    pub(super) slot_edges: Vec<u32>,
    pub(super) slot_prices: Vec<f64>,
    pub(super) slot_tails: Vec<u32>,
    pub(super) way_starts: Vec<u32>,
    pub(super) way_reflectors: Vec<u8>,
    pub(super) way_prices: Vec<f64>,
    pub(super) way_trunks: Vec<u32>,
    /// Slots by edge: the start of each edge's run, and (group, slot) pairs in the order of edges.
    pub(super) user_starts: Vec<u32>,
    pub(super) users: Vec<u32>,
    /// Price of the feed into each reflector.
    pub(super) feeds: Vec<f64>,
}

impl ObjectNetwork {
    pub(super) fn groups(&self) -> usize {
        self.worths.len()
    }
    pub(super) fn edges(&self) -> usize {
        self.way_starts.len() - 1
    }
    #[inline]
    pub(super) fn slots(&self, group: usize) -> std::ops::Range<usize> {
        self.slot_starts[group] as usize..self.slot_starts[group + 1] as usize
    }
    #[inline]
    pub(super) fn ways(&self, edge: usize) -> std::ops::Range<usize> {
        self.way_starts[edge] as usize..self.way_starts[edge + 1] as usize
    }
}

/// Open edges with their ways, the use of reflectors, and the slot of each group.
#[derive(Clone, Default)]
pub(super) struct OpenEdges {
    /// Way of each edge, or [`NONE`] if the edge is closed.
    pub(super) ways: Vec<u32>,
    /// Number of open edges at each reflector.
    pub(super) uses: Vec<u32>,
    /// Slot of each group, or [`NONE`] if the group is not served.
    pub(super) slots: Vec<u32>,
}

/// Savings of possible moves, updated after each move.
#[derive(Default)]
struct MoveSavings {
    /// Loss of the groups of an open edge if the edge closes.
    losses: Vec<f64>,
    /// Gain of the groups of a closed edge if the edge opens.
    gains: Vec<f64>,
    /// Price of each group's slot, or the group's worth if it is not served.
    firsts: Vec<f64>,
    /// Price of each group's second cheapest slot at an open edge, or the group's worth.
    seconds: Vec<f64>,
}

/// Buffers for the search of one object at a time, reused for the next object.
#[derive(Default)]
pub(super) struct ObjectWorkspace {
    pub(super) part: ObjectNetwork,
    pub(super) open: OpenEdges,
    /// Best tree of the current search.
    pub(super) best: OpenEdges,
    savings: MoveSavings,
    edge_marks: Vec<u32>,
    edge_ids: Vec<u32>,
    mark: u32,
    counts: Vec<f64>,
    reflector_counts: Vec<f64>,
    edge_prices: Vec<f64>,
}

/// The most profitable path of a single pair: profit, tail and trunk. `None` if no path is
/// profitable.
pub(super) fn single(
    flat: &FlatProgram,
    object: usize,
    pair: usize,
    view: &PriceView<'_>,
) -> Option<(f64, u32, u32)> {
    let (bps, worth) = (flat.objects.bps[object], flat.objects.worths[pair]);
    let mut best = None;
    let mut least = worth;
    for tail in flat.tails.leading_to(flat.objects.groups[pair] as usize) {
        let price = view.tails[tail];
        if price >= least || view.tail_rooms[tail] < bps {
            continue;
        }
        for trunk in flat.trunks.leading_to(flat.tails.parents[tail] as usize) {
            let sum = price + view.trunks[trunk] + view.feeds[flat.trunks.parents[trunk] as usize];
            if sum < least && view.trunk_rooms[trunk] >= bps {
                least = sum;
                best = Some((tail as u32, trunk as u32));
            }
        }
    }
    best.map(|(tail, trunk)| (worth - least, tail, trunk))
}

impl ObjectWorkspace {
    pub(super) fn new(flat: &FlatProgram) -> Self {
        Self { edge_marks: vec![0; flat.edges], edge_ids: vec![0; flat.edges], ..Self::default() }
    }

    /// Copies the links that `object` may use in `view`, without slots dearer than their group's
    /// worth.
    pub(super) fn fill(&mut self, flat: &FlatProgram, object: usize, view: &PriceView<'_>) {
        self.mark += 1;
        let bps = flat.objects.bps[object];
        let part = &mut self.part;
        part.worths.clear();
        part.slot_starts.clear();
        part.slot_starts.push(0);
        part.slot_edges.clear();
        part.slot_prices.clear();
        part.slot_tails.clear();
        part.way_starts.clear();
        part.way_starts.push(0);
        part.way_reflectors.clear();
        part.way_prices.clear();
        part.way_trunks.clear();
        part.feeds.clear();
        part.feeds.extend_from_slice(view.feeds);
        for pair in flat.objects.pairs(object) {
            let worth = flat.objects.worths[pair];
            for tail in flat.tails.leading_to(flat.objects.groups[pair] as usize) {
                let price = view.tails[tail];
                if price >= worth || view.tail_rooms[tail] < bps {
                    continue;
                }
                let edge = flat.tails.parents[tail] as usize;
                if self.edge_marks[edge] != self.mark {
                    self.edge_marks[edge] = self.mark;
                    let first = part.way_trunks.len();
                    for trunk in flat.trunks.leading_to(edge) {
                        let reflector = flat.trunks.parents[trunk] as usize;
                        if view.trunk_rooms[trunk] >= bps && view.feeds[reflector] < FAR {
                            part.way_reflectors.push(reflector as u8);
                            part.way_prices.push(view.trunks[trunk]);
                            part.way_trunks.push(trunk as u32);
                        }
                    }
                    self.edge_ids[edge] = NONE;
                    if part.way_trunks.len() > first {
                        self.edge_ids[edge] = part.way_starts.len() as u32 - 1;
                        part.way_starts.push(part.way_trunks.len() as u32);
                    }
                }
                if self.edge_ids[edge] != NONE {
                    part.slot_edges.push(self.edge_ids[edge]);
                    part.slot_prices.push(price);
                    part.slot_tails.push(tail as u32);
                }
            }
            part.worths.push(worth);
            part.slot_starts.push(part.slot_edges.len() as u32);
        }
        self.list_users();
        self.close_all();
    }

    /// Lists the groups of each edge.
    fn list_users(&mut self) {
        let part = &mut self.part;
        let edges = part.way_starts.len() - 1;
        part.user_starts.clear();
        part.user_starts.resize(edges + 2, 0);
        for &edge in &part.slot_edges {
            part.user_starts[edge as usize + 2] += 1;
        }
        for edge in 2..edges + 2 {
            part.user_starts[edge] += part.user_starts[edge - 1];
        }
        part.users.clear();
        part.users.resize(part.slot_edges.len(), 0);
        for group in 0..part.worths.len() {
            for slot in part.slots(group) {
                let at = &mut part.user_starts[part.slot_edges[slot] as usize + 1];
                part.users[*at as usize] = group as u32;
                *at += 1;
            }
        }
        part.user_starts.pop();
    }

    /// Closes all edges.
    pub(super) fn close_all(&mut self) {
        let OpenEdges { ways, uses, slots } = &mut self.open;
        ways.clear();
        ways.resize(self.part.edges(), NONE);
        uses.clear();
        uses.resize(self.part.feeds.len(), 0);
        slots.clear();
        slots.resize(self.part.groups(), NONE);
    }

    /// Opens a closed edge by `way`.
    pub(super) fn open_edge(&mut self, edge: usize, way: usize) {
        self.open.ways[edge] = way as u32;
        self.open.uses[self.part.way_reflectors[way] as usize] += 1;
    }

    /// Loads an object and finds its tree: the former tree improved, or a quick tree if none was
    /// open. Returns the profit. `former` has the object's tails and trunks.
    pub(super) fn solve(
        &mut self,
        flat: &FlatProgram,
        object: usize,
        view: &PriceView<'_>,
        former: (&[u32], &[u32]),
    ) -> f64 {
        self.fill(flat, object, view);
        if self.open_former(former.0, former.1) { self.improve() } else { self.respond(QUICK_ROUNDS) }
    }

    /// Opens the edges of a former tree. Returns whether any edge was opened.
    fn open_former(&mut self, tails: &[u32], trunks: &[u32]) -> bool {
        let mut is_any = false;
        for group in 0..self.part.groups() {
            if tails[group] == NONE {
                continue;
            }
            let slot = self.part.slots(group).find(|&slot| self.part.slot_tails[slot] == tails[group]);
            let Some(slot) = slot else { continue };
            let edge = self.part.slot_edges[slot] as usize;
            if self.open.ways[edge] != NONE {
                continue;
            }
            if let Some(way) = self.part.ways(edge).find(|&way| self.part.way_trunks[way] == trunks[group]) {
                self.open_edge(edge, way);
                is_any = true;
            }
        }
        is_any
    }

    /// Builds a tree by slope scaling: in each round the groups served in the previous round share
    /// the prices of edges and reflectors.
    pub(super) fn respond(&mut self, rounds: u32) -> f64 {
        let part = &self.part;
        let edges = part.edges();
        self.counts.clear();
        self.counts
            .extend((0..edges).map(|edge| f64::from(part.user_starts[edge + 1] - part.user_starts[edge])));
        self.reflector_counts.clear();
        self.reflector_counts.resize(part.feeds.len(), 0.0);
        for edge in 0..edges {
            for way in part.ways(edge) {
                self.reflector_counts[part.way_reflectors[way] as usize] += self.counts[edge];
            }
        }
        self.edge_prices.clear();
        self.edge_prices.resize(edges, 0.0);
        let ways = &mut self.open.ways;
        for _ in 0..rounds {
            for (edge, chosen) in ways.iter_mut().enumerate() {
                let count = self.counts[edge].max(1.0);
                let mut least = f64::INFINITY;
                for way in part.ways(edge) {
                    let reflector = part.way_reflectors[way] as usize;
                    let price = part.way_prices[way] / count
                        + part.feeds[reflector] / self.reflector_counts[reflector].max(1.0);
                    if price < least {
                        least = price;
                        *chosen = way as u32;
                    }
                }
                self.edge_prices[edge] = least;
            }
            self.counts.fill(0.0);
            self.reflector_counts.fill(0.0);
            for group in 0..part.groups() {
                let mut least = part.worths[group];
                let mut chosen = NONE;
                for slot in part.slots(group) {
                    let price = part.slot_prices[slot] + self.edge_prices[part.slot_edges[slot] as usize];
                    if price < least {
                        least = price;
                        chosen = part.slot_edges[slot];
                    }
                }
                if chosen != NONE {
                    self.counts[chosen as usize] += 1.0;
                    let way = ways[chosen as usize] as usize;
                    self.reflector_counts[part.way_reflectors[way] as usize] += 1.0;
                }
            }
        }
        self.open.uses.fill(0);
        for (way, &count) in ways.iter_mut().zip(&self.counts) {
            if count > 0.0 {
                self.open.uses[part.way_reflectors[*way as usize] as usize] += 1;
            } else {
                *way = NONE;
            }
        }
        self.improve()
    }

    /// Adds (`sign` 1) or subtracts (-1) a group's contribution to the savings. Before adding, the
    /// group is assigned its cheapest open slot.
    #[inline]
    fn account(&mut self, group: usize, sign: f64) {
        let (part, open, savings) = (&self.part, &mut self.open, &mut self.savings);
        let slots = part.slots(group);
        if sign > 0.0 {
            let (mut first, mut second) = (part.worths[group], part.worths[group]);
            let mut chosen = NONE;
            for slot in slots.clone() {
                let price = part.slot_prices[slot];
                if open.ways[part.slot_edges[slot] as usize] == NONE {
                    continue;
                }
                if price < first {
                    second = first;
                    first = price;
                    chosen = slot as u32;
                } else if price < second {
                    second = price;
                }
            }
            open.slots[group] = chosen;
            savings.firsts[group] = first;
            savings.seconds[group] = second;
        }
        let first = savings.firsts[group];
        let chosen = open.slots[group];
        if chosen != NONE {
            savings.losses[part.slot_edges[chosen as usize] as usize] +=
                sign * (savings.seconds[group] - first);
        }
        for slot in slots {
            let edge = part.slot_edges[slot] as usize;
            if open.ways[edge] == NONE && part.slot_prices[slot] < first {
                savings.gains[edge] += sign * (first - part.slot_prices[slot]);
            }
        }
    }

    /// Opens `edge` by `way`, or closes it if `way` is [`NONE`], and updates the savings.
    fn flip(&mut self, edge: usize, way: u32) {
        let users = self.part.user_starts[edge] as usize..self.part.user_starts[edge + 1] as usize;
        for at in users.clone() {
            self.account(self.part.users[at] as usize, -1.0);
        }
        let former = self.open.ways[edge];
        if former != NONE {
            self.open.uses[self.part.way_reflectors[former as usize] as usize] -= 1;
        }
        if way != NONE {
            self.open.uses[self.part.way_reflectors[way as usize] as usize] += 1;
        }
        self.open.ways[edge] = way;
        self.savings.losses[edge] = 0.0;
        self.savings.gains[edge] = 0.0;
        for at in users {
            self.account(self.part.users[at] as usize, 1.0);
        }
    }

    /// Moves an open edge to another way.
    fn rehome(&mut self, edge: usize, way: usize) {
        let former = self.open.ways[edge] as usize;
        self.open.uses[self.part.way_reflectors[former] as usize] -= 1;
        self.open.uses[self.part.way_reflectors[way] as usize] += 1;
        self.open.ways[edge] = way as u32;
    }

    /// Price of `way`, plus the feed of its reflector if at most `own` open edges use the
    /// reflector.
    #[inline]
    fn way_price(&self, way: usize, own: u32) -> f64 {
        let reflector = self.part.way_reflectors[way] as usize;
        let feed = if self.open.uses[reflector] <= own { self.part.feeds[reflector] } else { 0.0 };
        self.part.way_prices[way] + feed
    }

    /// Improves the open edges by local search. Assigns each group to its cheapest open edge and
    /// returns the profit.
    pub(super) fn improve(&mut self) -> f64 {
        let (edges, groups) = (self.part.edges(), self.part.groups());
        let least = GAIN_MIN * self.part.worths.iter().fold(1e-9, |most: f64, &worth| most.max(worth));
        for (list, len) in [
            (&mut self.savings.losses, edges),
            (&mut self.savings.gains, edges),
            (&mut self.savings.firsts, groups),
            (&mut self.savings.seconds, groups),
        ] {
            list.clear();
            list.resize(len, 0.0);
        }
        for group in 0..groups {
            self.account(group, 1.0);
        }
        let mut opened = 0;
        for _ in 0..8 + 4 * edges {
            let is_moved = self.rehome_edges(least);
            let (drop, drop_gain) = self.best_drop(least);
            let (add, add_gain) = self.best_add(least);
            if drop != NONE && drop_gain >= add_gain {
                self.flip(drop as usize, NONE);
            } else if add != NONE {
                let edge = self.edge_of(add as usize);
                self.flip(edge, add);
            } else if !self.drop_reflector(least) {
                if opened < REFLECTORS_OPENED_MAX && self.add_reflector(least) {
                    opened += 1;
                } else if !is_moved {
                    break;
                }
            }
        }
        self.settle()
    }

    fn edge_of(&self, way: usize) -> usize {
        self.part.way_starts.partition_point(|&start| start as usize <= way) - 1
    }

    fn rehome_edges(&mut self, least: f64) -> bool {
        let mut is_moved = false;
        for edge in 0..self.part.edges() {
            let current = self.open.ways[edge];
            if current == NONE {
                continue;
            }
            let reflector = self.part.way_reflectors[current as usize];
            let mut price = self.way_price(current as usize, 1) - least;
            let mut chosen = current as usize;
            for way in self.part.ways(edge) {
                if self.part.way_reflectors[way] != reflector && self.way_price(way, 0) < price {
                    price = self.way_price(way, 0);
                    chosen = way;
                }
            }
            if chosen != current as usize {
                self.rehome(edge, chosen);
                is_moved = true;
            }
        }
        is_moved
    }

    /// The open edge whose closing saves the most.
    fn best_drop(&self, least: f64) -> (u32, f64) {
        let (mut best, mut most) = (NONE, least);
        for (edge, &way) in self.open.ways.iter().enumerate() {
            if way != NONE {
                let gain = self.way_price(way as usize, 1) - self.savings.losses[edge];
                if gain > most {
                    (best, most) = (edge as u32, gain);
                }
            }
        }
        (best, most)
    }

    /// Returns the way by which opening a closed edge saves the most, and the saving.
    fn best_add(&self, least: f64) -> (u32, f64) {
        let (mut best, mut most) = (NONE, least);
        for edge in 0..self.part.edges() {
            let gain = self.savings.gains[edge];
            if self.open.ways[edge] != NONE || gain <= most {
                continue;
            }
            for way in self.part.ways(edge) {
                let gain = gain - self.way_price(way, 0);
                if gain > most {
                    (best, most) = (way as u32, gain);
                }
            }
        }
        (best, most)
    }

    /// Extra cost if `edge` leaves its reflector, and its new way; [`NONE`] if the edge closes.
    fn way_out(&self, edge: usize) -> (f64, u32) {
        let current = self.open.ways[edge] as usize;
        let reflector = self.part.way_reflectors[current];
        let (mut least, mut other) = (self.savings.losses[edge], NONE);
        for way in self.part.ways(edge) {
            let to = self.part.way_reflectors[way];
            if to != reflector && self.open.uses[to as usize] > 0 && self.part.way_prices[way] < least {
                (least, other) = (self.part.way_prices[way], way as u32);
            }
        }
        (least - self.part.way_prices[current], other)
    }

    fn is_at(&self, edge: usize, reflector: usize) -> bool {
        let way = self.open.ways[edge];
        way != NONE && self.part.way_reflectors[way as usize] as usize == reflector
    }

    /// Closes the reflector whose closing saves the most. Returns whether one was closed.
    fn drop_reflector(&mut self, least: f64) -> bool {
        let (mut best, mut most) = (usize::MAX, least);
        for reflector in 0..self.part.feeds.len() {
            if self.open.uses[reflector] <= 1 {
                continue;
            }
            let mut gain = self.part.feeds[reflector];
            for edge in 0..self.part.edges() {
                if self.is_at(edge, reflector) {
                    gain -= self.way_out(edge).0;
                    if gain <= most {
                        break;
                    }
                }
            }
            if gain > most {
                (best, most) = (reflector, gain);
            }
        }
        if best == usize::MAX {
            return false;
        }
        for edge in 0..self.part.edges() {
            if self.is_at(edge, best) {
                match self.way_out(edge).1 {
                    NONE => self.flip(edge, NONE),
                    way => self.rehome(edge, way as usize),
                }
            }
        }
        true
    }

    /// Opens the reflector that saves the most, with the edges that move to it or open at it.
    /// Returns whether one was opened.
    fn add_reflector(&mut self, least: f64) -> bool {
        let feeds = self.part.feeds.len();
        self.reflector_counts.clear();
        self.reflector_counts.resize(feeds, 0.0);
        for edge in 0..self.part.edges() {
            let current = self.open.ways[edge];
            for way in self.part.ways(edge) {
                let price = self.part.way_prices[way];
                let gain = match current {
                    NONE => JOINT_GAIN_SHARE * (self.savings.gains[edge] - price),
                    current => self.part.way_prices[current as usize] - price,
                };
                if gain > 0.0 {
                    self.reflector_counts[self.part.way_reflectors[way] as usize] += gain;
                }
            }
        }
        let (mut best, mut most) = (usize::MAX, least);
        for reflector in 0..feeds {
            let gain = self.reflector_counts[reflector] - self.part.feeds[reflector];
            if self.open.uses[reflector] == 0 && gain > most {
                (best, most) = (reflector, gain);
            }
        }
        if best == usize::MAX {
            return false;
        }
        for edge in 0..self.part.edges() {
            let way = self.part.ways(edge).find(|&way| self.part.way_reflectors[way] as usize == best);
            let Some(way) = way else { continue };
            match self.open.ways[edge] {
                NONE if self.savings.gains[edge] > self.part.way_prices[way] => self.flip(edge, way as u32),
                NONE => {}
                current if self.part.way_prices[current as usize] > self.part.way_prices[way] => {
                    self.rehome(edge, way);
                }
                _ => {}
            }
        }
        true
    }

    /// Closes edges without groups and returns the profit. If the profit is not positive, all edges
    /// are closed.
    fn settle(&mut self) -> f64 {
        let edges = self.part.edges();
        self.counts.clear();
        self.counts.resize(edges, 0.0);
        let mut profit = 0.0;
        for (group, &slot) in self.open.slots.iter().enumerate() {
            if slot != NONE {
                profit += self.part.worths[group] - self.savings.firsts[group];
                self.counts[self.part.slot_edges[slot as usize] as usize] += 1.0;
            }
        }
        self.open.uses.fill(0);
        for edge in 0..edges {
            let way = self.open.ways[edge];
            if way == NONE {
                continue;
            }
            if self.counts[edge] == 0.0 {
                self.open.ways[edge] = NONE;
                continue;
            }
            profit -= self.way_price(way as usize, 0);
            self.open.uses[self.part.way_reflectors[way as usize] as usize] += 1;
        }
        if profit <= 0.0 {
            self.close_all();
            return 0.0;
        }
        profit
    }

    /// Saves the current tree as the best one.
    pub(super) fn keep(&mut self) {
        self.best.ways.clone_from(&self.open.ways);
        self.best.uses.clone_from(&self.open.uses);
        self.best.slots.clone_from(&self.open.slots);
    }

    /// Makes the best tree the current tree again.
    pub(super) fn restore(&mut self) {
        std::mem::swap(&mut self.open, &mut self.best);
    }

    /// Writes the current tree to the object's pairs. The first pair has the index `first`.
    pub(super) fn write(&self, paths: &mut Paths, first: usize) {
        for (group, &slot) in self.open.slots.iter().enumerate() {
            let (mut tail, mut trunk) = (NONE, NONE);
            if slot != NONE {
                tail = self.part.slot_tails[slot as usize];
                let way = self.open.ways[self.part.slot_edges[slot as usize] as usize];
                trunk = self.part.way_trunks[way as usize];
            }
            paths.tails[first + group] = tail;
            paths.trunks[first + group] = trunk;
        }
    }
}
