//! Exact search for small markets: branch and bound, with the relaxation at given prices as lower
//! bound of the remaining cost.
//!
//! Read [`through`] first.

use crate::market::{Group, Market, mbps};

/// Maximum number of viewers in a market for which the search is used.
pub(crate) const SESSIONS_MAX: u64 = 64;
/// Maximum number of branches. At this number the search ends without proof of the optimum.
const BRANCHES_MAX: u32 = 200_000;

/// For each group, by number: number of viewers on each candidate.
pub(crate) type GroupPlacement = Vec<Vec<(Option<u32>, u32)>>;

pub(crate) struct SearchResult {
    /// A placement cheaper than the previous best, if there is one.
    pub(crate) placed: Option<GroupPlacement>,
    /// True if the search was exhaustive, so the result is optimal.
    pub(crate) is_least: bool,
    /// Cost of the best placement.
    pub(crate) cost: f64,
}

/// Searches for the cheapest placement with a cost below `cost`. Groups are tried in the order of
/// `order`.
pub(crate) fn through(market: &Market, prices: &[f64], order: &[u32], cost: f64) -> SearchResult {
    let groups = market.groups();
    let viewers: Vec<u32> =
        order.iter().flat_map(|number| vec![*number; groups[*number as usize].sessions as usize]).collect();
    let relaxed = |group: &Group| {
        let one = market
            .candidates_of(group.place)
            .iter()
            .map(|one| market.cost(group, one) + prices[one.cluster as usize] * mbps(group.bitrate));
        one.fold(market.unserved_cost(), f64::min)
    };
    // Lower bound on the cost of the viewers from each index on, at these prices.
    let mut left = vec![0.0; viewers.len() + 1];
    for (at, number) in viewers.iter().enumerate().rev() {
        left[at] = left[at + 1] + relaxed(&groups[*number as usize]);
    }
    let room: Vec<u64> = market.clusters().iter().map(|cluster| cluster.capacity.as_bps()).collect();
    let worth = room.iter().zip(prices).map(|(room, price)| price * *room as f64 / 1e6).sum();
    let mut search = Search {
        market,
        prices,
        viewers,
        left,
        room,
        worth,
        chosen: Vec::new(),
        best: None,
        cost,
        branches: 0,
    };
    search.branch(0.0);
    let is_least = search.branches <= BRANCHES_MAX;
    let placed = search.best.map(|best| {
        let mut placed: GroupPlacement = vec![Vec::new(); groups.len()];
        for (number, candidate) in search.viewers.iter().zip(best) {
            let of = &mut placed[*number as usize];
            match of.iter_mut().find(|(there, _)| *there == candidate) {
                Some((_, count)) => *count += 1,
                None => of.push((candidate, 1)),
            }
        }
        placed
    });
    SearchResult { placed, is_least, cost: search.cost }
}

struct Search<'a> {
    market: &'a Market,
    prices: &'a [f64],
    /// Group of each viewer, in the order of placement.
    viewers: Vec<u32>,
    left: Vec<f64>,
    room: Vec<u64>,
    /// Remaining capacity of all clusters, valued at their prices.
    worth: f64,
    /// Candidates of the viewers placed so far.
    chosen: Vec<Option<u32>>,
    best: Option<Vec<Option<u32>>>,
    cost: f64,
    branches: u32,
}

impl Search<'_> {
    /// Places the next viewer on each candidate whose lower bound is below the best cost. `cost` is
    /// the cost of the viewers placed so far.
    fn branch(&mut self, cost: f64) {
        let at = self.chosen.len();
        // Gains within rounding error do not count.
        if cost + self.left[at] - self.worth >= self.cost * (1.0 - 1e-12) || self.branches > BRANCHES_MAX {
            return;
        }
        self.branches += 1;
        let Some(&number) = self.viewers.get(at) else {
            if cost < self.cost {
                (self.cost, self.best) = (cost, Some(self.chosen.clone()));
            }
            return;
        };
        let group = self.market.groups()[number as usize];
        let candidates = self.market.candidates_of(group.place);
        // Viewers of a group are interchangeable, so only one of their orders is tried.
        let first = match at.checked_sub(1).filter(|before| self.viewers[*before] == number) {
            Some(before) => self.chosen[before].map_or(candidates.len(), |candidate| candidate as usize),
            None => 0,
        };
        let bits = group.bitrate.as_bps();
        for (candidate, one) in (0u32..).zip(candidates).skip(first) {
            let cluster = one.cluster as usize;
            if self.room[cluster] < bits {
                continue;
            }
            let worth = self.worth;
            self.room[cluster] -= bits;
            self.worth -= self.prices[cluster] * mbps(group.bitrate);
            self.chosen.push(Some(candidate));
            self.branch(cost + self.market.cost(&group, one));
            self.chosen.pop();
            self.room[cluster] += bits;
            self.worth = worth;
        }
        self.chosen.push(None);
        self.branch(cost + self.market.unserved_cost());
        self.chosen.pop();
    }
}
