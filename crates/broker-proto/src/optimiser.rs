//! Assignment of viewers to clusters with a bound on the distance from the optimum: Lagrangian
//! relaxation of the thesis's Figure 3.10.
//!
//! Every cluster has a price per Mbit/s on top of its cost. At given prices each group picks its
//! cheapest cluster. The total cost of these picks, less the value of all capacities at these
//! prices, is a lower *bound* on the cost of any placement within capacities. The bound holds at
//! any prices.
//!
//! Prices move by mirror descent over batches of groups: the price of an overloaded cluster rises
//! by a factor. If the gap stays wide, for instance because capacity is scarce for few groups,
//! prices are raised to the maximum of the bound, cluster by cluster (`dual`).
//!
//! Then groups are placed within capacities, in order of *regret*: the loss per Mbit/s if a group's
//! best cluster is full. Groups are moved while a move saves cost, at prices that fade to zero.
//! Finally viewers are exchanged: one viewer enters a full cluster, and viewers that lose less
//! leave that cluster.
//!
//! Invariants: no cluster gets more than its capacity; the bound is at most the cost. Cost: each
//! pass is linear in the candidates of all groups. Read [`Optimiser`] first.

use crate::branch::{self, GroupPlacement};
use crate::dual;
use crate::market::{Cluster, Group, Market, mbps};
use anabranch_units::Seed;

/// Settings of the search.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Optimiser {
    /// Number of passes over all groups that adjust prices.
    pub passes: u32,
    /// Number of batches in a pass.
    pub batches: u32,
    /// Seed of the order of groups.
    pub seed: Seed,
}

impl Default for Optimiser {
    fn default() -> Self {
        Self { passes: 20, batches: 64, seed: Seed::new(1) }
    }
}

/// Viewers of one group with the same candidate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Number of the group.
    pub group: u32,
    /// Index among the place's candidates; `None` if the viewers are unserved.
    pub candidate: Option<u32>,
    /// Number of viewers.
    pub sessions: u32,
}

/// Result of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// All viewers, group by group.
    pub placements: Vec<Placement>,
    /// Cost of the placements.
    pub cost: f64,
    /// Lower bound on the cost of any placement.
    pub bound: f64,
    /// Price of each cluster per Mbit/s on top of its cost; the next round starts from these
    /// prices.
    pub prices: Vec<f64>,
}

impl Answer {
    /// Upper bound on the saving of the best answer, as a share of the cost.
    pub fn gap_share(&self) -> f64 {
        if self.cost > 0.0 { ((self.cost - self.bound) / self.cost).max(0.0) } else { 0.0 }
    }
    /// Number of unserved viewers.
    pub fn unserved(&self) -> u64 {
        let those = self.placements.iter().filter(|placement| placement.candidate.is_none());
        those.map(|placement| u64::from(placement.sessions)).sum()
    }
}

/// Relative step of a price in the first pass, if its cluster gets twice its share.
const STEP: f64 = 1.0;
/// Decay of the step from pass to pass.
const STEP_DECAY: f64 = 0.3;
/// Maximum relative step of a price.
const STEP_MAX: f64 = 0.5;
/// Initial price, relative to the mean cost per Mbit/s.
const PRICE_FIRST: f64 = 0.02;
/// Minimum price, relative to the mean cost per Mbit/s. A price below twice the minimum counts as
/// 0.
const PRICE_LEAST: f64 = 1e-5;
/// Price of a cluster without capacity, relative to the mean cost per Mbit/s.
const PRICE_SHUT: f64 = 1e3;
/// Load below which a cluster counts as having room.
const HAS_ROOM: f64 = 0.5;
/// Gap above which the dual ascent (`dual`) adjusts prices. Mirror descent alone leaves a gap well
/// below this value in generated worlds of thousands of viewers.
const GAP_POLISHED: f64 = 0.01;
/// Maximum number of further price searches while the gap is wide.
const FURTHER_SEARCHES: u32 = 4;
/// Minimum starting price of further searches, relative to the mean cost per Mbit/s. If capacity is
/// scarce, prices must rise a hundredfold, which the first search may not reach.
const PRICE_SCARCE: f64 = 1.0;
/// Shares of the prices in successive passes that move viewers.
const FADING: [f64; 3] = [0.5, 0.1, 0.0];

/// Maximum number of exchange passes.
const EXCHANGES: u32 = 3;
/// Maximum number of viewers of a full cluster that are considered for leaving.
const GIVE_WAY_LOOKED_AT: usize = 64;
/// Maximum number of viewers that leave for one newcomer.
const GIVE_WAY_MAX: usize = 8;

impl Optimiser {
    /// Places all viewers. `prices` are the previous round's prices, if there was one.
    ///
    /// Panics: if the number of prices differs from the number of clusters.
    pub fn optimise(&self, market: &Market, prices: Option<&[f64]>) -> Answer {
        let mean = mean_cost(market);
        let search = Search { market, least: mean * PRICE_LEAST, mean };
        let first = prices.map_or_else(|| vec![mean * PRICE_FIRST; market.clusters().len()], <[f64]>::to_vec);
        assert_eq!(first.len(), market.clusters().len(), "each cluster has a price");
        let prices = search.prices(self, first);
        let trimmed = search.trimmed(&prices);
        let mut bound = search.bound(&prices).max(search.bound(&trimmed));
        let mut placing = PlacementState::new(market, &prices);
        placing.place_all();
        let is_wide = |cost: f64, bound: f64| cost - bound > GAP_POLISHED * cost;
        let polished = is_wide(placing.total(), bound).then(|| {
            let (further, raised) = search.raised(self, &prices, |bound| is_wide(placing.total(), bound));
            let (polished, highest) = dual::polish(market, &search.trimmed(&further));
            (polished, highest.max(raised))
        });
        if let Some((polished, raised)) = &polished {
            bound = bound.max(*raised);
            if is_wide(placing.total(), bound) {
                let mut again = PlacementState::new(market, polished);
                again.place_all();
                if again.total() < placing.total() {
                    placing = again;
                }
            }
        }
        let sessions: u64 = market.groups().iter().map(|group| u64::from(group.sessions)).sum();
        if sessions <= branch::SESSIONS_MAX {
            let best = polished.as_ref().map_or(&trimmed, |(polished, _)| polished);
            let found = branch::through(market, best, &placing.order, placing.total());
            if let Some(placed) = found.placed {
                placing.set(placed);
                placing.serve_rest();
            }
            if found.is_least {
                bound = found.cost;
            }
        }
        let cost = placing.total();
        Answer { placements: placing.placements(), cost, bound: bound.min(cost), prices }
    }
}

/// Mean cost per Mbit/s if each viewer gets its best cluster.
fn mean_cost(market: &Market) -> f64 {
    let (mut cost, mut demand) = (0.0, 0.0);
    for group in market.groups() {
        let costs = market.candidates_of(group.place).iter().map(|one| market.cost(group, one));
        let sessions = f64::from(group.sessions);
        cost += sessions * costs.fold(market.unserved_cost(), f64::min);
        demand += sessions * mbps(group.bitrate);
    }
    if cost > 0.0 && demand > 0.0 { cost / demand } else { 1.0 }
}

/// Search for prices.
struct Search<'a> {
    market: &'a Market,
    mean: f64,
    least: f64,
}

impl Search<'_> {
    /// Cheapest candidate of a viewer of a group when a Mbit/s of each cluster costs `weights`, and
    /// its cost. `None` if going unserved is cheapest.
    fn cheapest(&self, group: &Group, weights: &[f64]) -> (Option<usize>, f64) {
        let bitrate = mbps(group.bitrate);
        let (mut best, mut least) = (None, self.market.unserved_cost());
        for (number, one) in self.market.candidates_of(group.place).iter().enumerate() {
            let cost = one.score + weights[one.cluster as usize] * bitrate;
            if cost < least {
                (best, least) = (Some(number), cost);
            }
        }
        (best, least)
    }

    /// Computes the total cost per Mbit/s of each cluster at these prices.
    fn weigh(&self, prices: &[f64], weights: &mut Vec<f64>) {
        weights.clear();
        weights.extend(
            self.market.clusters().iter().zip(prices).map(|(cluster, price)| cluster.cost_per_mbps + price),
        );
    }

    /// Computes the demand for each cluster in Mbit/s if these groups all pick their cheapest
    /// cluster.
    fn demand<'g>(&self, groups: impl Iterator<Item = &'g Group>, weights: &[f64], demand: &mut [f64]) {
        demand.fill(0.0);
        for group in groups {
            if let (Some(best), _) = self.cheapest(group, weights) {
                let cluster = self.market.candidates_of(group.place)[best].cluster;
                demand[cluster as usize] += mbps(group.bitrate) * f64::from(group.sessions);
            }
        }
    }

    /// Searches for prices. Returns the means over the second half of the passes.
    fn prices(&self, optimiser: &Optimiser, mut prices: Vec<f64>) -> Vec<f64> {
        let (market, groups) = (self.market, self.market.groups());
        let mut order: Vec<u32> = (0..groups.len() as u32).collect();
        let mut random = optimiser.seed.stream("prices", 0);
        let (mut sums, mut count) = (vec![0.0; prices.len()], 0.0);
        let mut weights = Vec::with_capacity(prices.len());
        let mut used = vec![0.0; prices.len()];
        let batches = (optimiser.batches as usize).clamp(1, groups.len().max(1));
        for pass in 0..optimiser.passes {
            let step = STEP / STEP_DECAY.mul_add(f64::from(pass), 1.0);
            random.shuffle(&mut order);
            if pass * 2 <= optimiser.passes {
                sums.fill(0.0);
                count = 0.0;
            }
            for batch in 0..batches {
                let part = &order[batch * groups.len() / batches..(batch + 1) * groups.len() / batches];
                let share = part.len() as f64 / groups.len().max(1) as f64;
                self.weigh(&prices, &mut weights);
                self.demand(part.iter().map(|number| &groups[*number as usize]), &weights, &mut used);
                for (number, cluster) in market.clusters().iter().enumerate() {
                    let capacity = mbps(cluster.capacity);
                    prices[number] = if capacity > 0.0 {
                        let over =
                            (step * (used[number] - share * capacity) / capacity).clamp(-STEP_MAX, STEP_MAX);
                        // Second-order expansion of the exponential.
                        (prices[number] * over.mul_add(over.mul_add(0.5, 1.0), 1.0)).max(self.least)
                    } else {
                        PRICE_SHUT * self.mean
                    };
                    sums[number] += prices[number];
                }
                count += 1.0;
            }
        }
        if count == 0.0 {
            return prices;
        }
        let least = 2.0 * self.least;
        sums.iter().map(|sum| sum / count).map(|price| if price < least { 0.0 } else { price }).collect()
    }

    /// Repeats the search from higher prices while the gap is wide. Returns the last prices, and
    /// the highest bound.
    fn raised(
        &self,
        optimiser: &Optimiser,
        prices: &[f64],
        is_wide: impl Fn(f64) -> bool,
    ) -> (Vec<f64>, f64) {
        let mut prices: Vec<f64> = prices.iter().map(|price| price.max(PRICE_SCARCE * self.mean)).collect();
        let mut highest = f64::NEG_INFINITY;
        for _ in 0..FURTHER_SEARCHES {
            prices = self.prices(optimiser, prices);
            highest = highest.max(self.bound(&prices)).max(self.bound(&self.trimmed(&prices)));
            if !is_wide(highest) {
                break;
            }
        }
        (prices, highest)
    }

    /// Sets the prices of clusters with room to 0, which often raises the bound.
    fn trimmed(&self, prices: &[f64]) -> Vec<f64> {
        let clusters = self.market.clusters();
        let (mut weights, mut used) = (Vec::new(), vec![0.0; clusters.len()]);
        self.weigh(prices, &mut weights);
        self.demand(self.market.groups().iter(), &weights, &mut used);
        let price = |((used, cluster), price): ((&f64, &Cluster), &f64)| {
            if *used < HAS_ROOM * mbps(cluster.capacity) { 0.0 } else { *price }
        };
        used.iter().zip(clusters).zip(prices).map(price).collect()
    }

    /// Lower bound on the cost of any placement: the relaxation at these prices.
    fn bound(&self, prices: &[f64]) -> f64 {
        let clusters = self.market.clusters();
        let mut weights = Vec::new();
        self.weigh(prices, &mut weights);
        let served = self.market.groups().iter().map(|group| {
            let (_, cost) = self.cheapest(group, &weights);
            cost * f64::from(group.sessions)
        });
        let worth = clusters.iter().zip(prices).map(|(cluster, price)| price * mbps(cluster.capacity));
        served.sum::<f64>() - worth.sum::<f64>()
    }
}

/// A viewer that may leave a cluster.
#[derive(Copy, Clone)]
struct MoveCandidate {
    /// Added cost if the viewer leaves, divided by the viewer's bitrate in bit/s.
    loss: f64,
    group: u32,
    candidate: u32,
}

/// A placement of viewers within capacities.
struct PlacementState<'a> {
    market: &'a Market,
    prices: &'a [f64],
    /// Remaining capacity of each cluster, in bits per second.
    room: Vec<u64>,
    /// Groups, in the order of placement.
    order: Vec<u32>,
    placed: GroupPlacement,
}

impl<'a> PlacementState<'a> {
    fn new(market: &'a Market, prices: &'a [f64]) -> Self {
        let room = market.clusters().iter().map(|cluster| cluster.capacity.as_bps()).collect();
        let placed = vec![Vec::new(); market.groups().len()];
        let mut new = Self { market, prices, room, order: Vec::new(), placed };
        let mut regrets: Vec<(f64, u32)> =
            (0..).zip(market.groups()).map(|(number, group)| (new.regret(group), number)).collect();
        regrets.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        new.order = regrets.into_iter().map(|(_, number)| number).collect();
        new
    }

    /// Cost of a viewer with the given share of the prices.
    fn cost(&self, group: &Group, candidate: Option<u32>, share: f64) -> f64 {
        candidate.map_or(self.market.unserved_cost(), |number| {
            let one = &self.market.candidates_of(group.place)[number as usize];
            self.market.cost(group, one) + share * self.prices[one.cluster as usize] * mbps(group.bitrate)
        })
    }

    /// Loss of a viewer per Mbit/s if its best cluster is full.
    fn regret(&self, group: &Group) -> f64 {
        let (mut best, mut second) = (self.market.unserved_cost(), f64::INFINITY);
        for number in 0..self.market.candidates_of(group.place).len() as u32 {
            let cost = self.cost(group, Some(number), 1.0);
            if cost < best {
                (best, second) = (cost, best);
            } else {
                second = second.min(cost);
            }
        }
        if second.is_finite() { (second - best) / mbps(group.bitrate) } else { 0.0 }
    }

    /// Cheapest candidate with room for at least one more viewer and a cost below `limit`, and the
    /// number of viewers that fit.
    fn cheapest(&self, group: &Group, share: f64, limit: f64) -> Option<(u32, u32)> {
        let (mut best, mut least) = (None, limit);
        for (number, one) in (0..).zip(self.market.candidates_of(group.place)) {
            let room = self.room[one.cluster as usize] / group.bitrate.as_bps();
            if room > 0 {
                let cost = self.cost(group, Some(number), share);
                if cost < least {
                    (best, least) = (Some((number, room.min(u64::from(u32::MAX)) as u32)), cost);
                }
            }
        }
        best
    }

    fn room_of(&mut self, group: &Group, candidate: u32) -> &mut u64 {
        let cluster = self.market.candidates_of(group.place)[candidate as usize].cluster;
        &mut self.room[cluster as usize]
    }

    /// Places all groups, moves them at fading prices, and exchanges viewers.
    fn place_all(&mut self) {
        self.place();
        FADING.iter().for_each(|share| self.move_all(*share));
        for _ in 0..EXCHANGES {
            if !self.exchange_all() {
                break;
            }
        }
        self.serve_rest();
    }

    /// Adopts a placement found by another method.
    fn set(&mut self, placed: GroupPlacement) {
        self.room = self.market.clusters().iter().map(|cluster| cluster.capacity.as_bps()).collect();
        for (group, placed) in self.market.groups().iter().zip(&placed) {
            for &(candidate, sessions) in placed {
                if let Some(candidate) = candidate {
                    *self.room_of(group, candidate) -= u64::from(sessions) * group.bitrate.as_bps();
                }
            }
        }
        self.placed = placed;
    }

    /// Places unserved viewers in the capacity that exchanges have freed. Placing viewers frees no
    /// capacity, so one pass is enough.
    fn serve_rest(&mut self) {
        for number in self.order.clone() {
            let group = self.market.groups()[number as usize];
            let unserved = self.placed[number as usize].iter().find(|(to, _)| to.is_none());
            let mut left = unserved.map_or(0, |(_, sessions)| *sessions);
            while left > 0
                && let Some((to, room)) = self.cheapest(&group, 0.0, self.market.unserved_cost())
            {
                let some = left.min(room);
                *self.room_of(&group, to) -= u64::from(some) * group.bitrate.as_bps();
                (0..some).for_each(|_| self.take(number, None));
                self.put(number, Some(to), some);
                left -= some;
            }
        }
    }

    /// Places all groups in order; viewers without room stay unserved.
    fn place(&mut self) {
        for number in self.order.clone() {
            let group = self.market.groups()[number as usize];
            let mut left = group.sessions;
            while left > 0
                && let Some((candidate, room)) = self.cheapest(&group, 1.0, self.market.unserved_cost())
            {
                let some = left.min(room);
                *self.room_of(&group, candidate) -= u64::from(some) * group.bitrate.as_bps();
                self.placed[number as usize].push((Some(candidate), some));
                left -= some;
            }
            if left > 0 {
                self.placed[number as usize].push((None, left));
            }
        }
    }

    /// Moves viewers to cheaper candidates, at the given share of the prices.
    fn move_all(&mut self, share: f64) {
        for number in self.order.clone() {
            let group = self.market.groups()[number as usize];
            for (from, sessions) in std::mem::take(&mut self.placed[number as usize]) {
                let mut left = sessions;
                let now = self.cost(&group, from, share);
                // Gains within rounding error do not count.
                while left > 0
                    && let Some((to, room)) = self.cheapest(&group, share, now - 1e-12 * now)
                {
                    let some = left.min(room);
                    let bits = u64::from(some) * group.bitrate.as_bps();
                    *self.room_of(&group, to) -= bits;
                    if let Some(from) = from {
                        *self.room_of(&group, from) += bits;
                    }
                    self.put(number, Some(to), some);
                    left -= some;
                }
                self.put(number, from, left);
            }
        }
    }

    /// Moves viewers into full clusters where they are cheaper. To make room, viewers that lose
    /// less leave these clusters. Returns true if any viewer moved.
    fn exchange_all(&mut self) -> bool {
        let leaving = self.leaving();
        let mut is_changed = false;
        for number in self.order.clone() {
            let group = self.market.groups()[number as usize];
            for (from, sessions) in self.placed[number as usize].clone() {
                for _ in 0..sessions {
                    if !self.exchange(number, &group, from, &leaving) {
                        break;
                    }
                    is_changed = true;
                }
            }
        }
        is_changed
    }

    /// For each cluster: its viewers' groups and candidates, by rising loss per bit of leaving.
    fn leaving(&self) -> Vec<Vec<MoveCandidate>> {
        let mut leaving: Vec<Vec<MoveCandidate>> = vec![Vec::new(); self.room.len()];
        for (number, placed) in (0u32..).zip(&self.placed) {
            let group = &self.market.groups()[number as usize];
            for &(candidate, _) in placed {
                let Some(candidate) = candidate else { continue };
                let cluster = self.market.candidates_of(group.place)[candidate as usize].cluster;
                let loss = self.loss(group, candidate) / group.bitrate.as_bps() as f64;
                leaving[cluster as usize].push(MoveCandidate { loss, group: number, candidate });
            }
        }
        leaving.iter_mut().for_each(|of| of.sort_by(|a, b| a.loss.total_cmp(&b.loss)));
        leaving
    }

    /// Loss of a viewer that leaves a candidate for the cheapest other one with room.
    fn loss(&self, group: &Group, candidate: u32) -> f64 {
        self.elsewhere(group, candidate).1 - self.cost(group, Some(candidate), 0.0)
    }

    /// Cheapest candidate with room in another cluster, and its cost; `None` for going unserved.
    fn elsewhere(&self, group: &Group, but: u32) -> (Option<u32>, f64) {
        let (mut best, mut least) = (None, self.market.unserved_cost());
        let all = self.market.candidates_of(group.place);
        for (number, one) in (0..).zip(all) {
            let is_other = one.cluster != all[but as usize].cluster;
            if is_other && self.room[one.cluster as usize] >= group.bitrate.as_bps() {
                let cost = self.cost(group, Some(number), 0.0);
                if cost < least {
                    (best, least) = (Some(number), cost);
                }
            }
        }
        (best, least)
    }

    /// Moves one viewer of a group to a full cluster if the saving exceeds the loss of the viewers
    /// that leave it. Returns true on success.
    fn exchange(
        &mut self,
        number: u32,
        group: &Group,
        from: Option<u32>,
        leaving: &[Vec<MoveCandidate>],
    ) -> bool {
        let (now, bits) = (self.cost(group, from, 0.0), group.bitrate.as_bps());
        for (to, one) in (0..).zip(self.market.candidates_of(group.place)) {
            let gain = now - self.cost(group, Some(to), 0.0);
            let room = self.room[one.cluster as usize];
            // Gains within rounding error do not count.
            if gain <= 1e-9 * now || room >= bits {
                continue;
            }
            let Some(those) = self.give_way(bits - room, gain, &leaving[one.cluster as usize], number) else {
                continue;
            };
            for (group, candidate) in those {
                self.send_elsewhere(group, candidate);
            }
            *self.room_of(group, to) -= bits;
            if let Some(from) = from {
                *self.room_of(group, from) += bits;
            }
            self.take(number, from);
            self.put(number, Some(to), 1);
            return true;
        }
        false
    }

    /// Selects viewers of a cluster, outside group `but`, that free `need` bits per second at a
    /// total loss below `gain`. Returns group and candidate of each viewer.
    fn give_way(&self, need: u64, gain: f64, leaving: &[MoveCandidate], but: u32) -> Option<Vec<(u32, u32)>> {
        let (mut those, mut freed, mut lost) = (Vec::new(), 0, 0.0);
        for one in leaving.iter().take(GIVE_WAY_LOOKED_AT) {
            let group = &self.market.groups()[one.group as usize];
            let there =
                self.placed[one.group as usize].iter().find(|(there, _)| *there == Some(one.candidate));
            let Some((_, sessions)) = there.filter(|_| one.group != but) else { continue };
            // Recomputed, because other viewers have moved meanwhile.
            let loss = self.loss(group, one.candidate);
            for _ in 0..*sessions {
                if lost + loss >= gain || those.len() >= GIVE_WAY_MAX {
                    break;
                }
                (freed, lost) = (freed + group.bitrate.as_bps(), lost + loss);
                those.push((one.group, one.candidate));
                if freed >= need {
                    return self.fits(&those, gain).then_some(those);
                }
            }
        }
        None
    }

    /// Returns true if all these viewers, moved one after the other, lose less than `gain` in
    /// total.
    fn fits(&self, those: &[(u32, u32)], gain: f64) -> bool {
        if those.len() == 1 {
            return true;
        }
        let mut after = Self {
            market: self.market,
            prices: self.prices,
            room: self.room.clone(),
            order: Vec::new(),
            placed: Vec::new(),
        };
        let mut lost = 0.0;
        for &(number, candidate) in those {
            let group = after.market.groups()[number as usize];
            let (to, cost) = after.elsewhere(&group, candidate);
            lost += cost - after.cost(&group, Some(candidate), 0.0);
            if let Some(to) = to {
                *after.room_of(&group, to) -= group.bitrate.as_bps();
            }
        }
        lost < gain
    }

    /// Moves one viewer to its cheapest candidate with room in another cluster.
    fn send_elsewhere(&mut self, number: u32, candidate: u32) {
        let group = self.market.groups()[number as usize];
        let (to, _) = self.elsewhere(&group, candidate);
        let bits = group.bitrate.as_bps();
        *self.room_of(&group, candidate) += bits;
        if let Some(to) = to {
            *self.room_of(&group, to) -= bits;
        }
        self.take(number, Some(candidate));
        self.put(number, to, 1);
    }

    /// Removes one viewer from its candidate.
    fn take(&mut self, group: u32, from: Option<u32>) {
        let placed = &mut self.placed[group as usize];
        let at = placed.iter().position(|(there, _)| *there == from).expect("a viewer is there");
        placed[at].1 -= 1;
        if placed[at].1 == 0 {
            placed.swap_remove(at);
        }
    }

    fn put(&mut self, group: u32, candidate: Option<u32>, sessions: u32) {
        let placed = &mut self.placed[group as usize];
        match placed.iter_mut().find(|(there, _)| *there == candidate) {
            _ if sessions == 0 => {}
            Some((_, count)) => *count += sessions,
            None => placed.push((candidate, sessions)),
        }
    }

    /// Total cost of all viewers.
    fn total(&self) -> f64 {
        let of = |(group, placed): (&Group, &Vec<(Option<u32>, u32)>)| {
            let costs = placed
                .iter()
                .map(|(candidate, sessions)| f64::from(*sessions) * self.cost(group, *candidate, 0.0));
            costs.sum::<f64>()
        };
        self.market.groups().iter().zip(&self.placed).map(of).sum()
    }

    fn placements(self) -> Vec<Placement> {
        let of = |(group, placed): (u32, Vec<(Option<u32>, u32)>)| {
            placed.into_iter().map(move |(candidate, sessions)| Placement { group, candidate, sessions })
        };
        (0..).zip(self.placed).flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests;
