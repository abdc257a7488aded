//! Exact coordinate ascent on the dual of the relaxation, for tighter bounds in markets where
//! mirror descent leaves a wide gap.
//!
//! With all other prices fixed, the bound is concave in one cluster's price, with a kink where a
//! group changes its choice. The bound is highest at the price at which the groups that still
//! choose the cluster fill it. Each step sets one price to this maximum, so the bound never falls.
//! A capacity counts as far as it can be filled: in whole multiples of the bitrates' common
//! divisor, and up to the demand of the cluster's groups.
//!
//! Source: the same relaxation as [`crate::optimiser`]. Leaves out: placements. Read [`polish`]
//! first.

use crate::market::{Group, Market, mbps};

/// Maximum number of sweeps over all clusters.
const SWEEPS_MAX: u32 = 30;
/// Minimum relative rise of the bound in a sweep; below it the ascent ends.
const RISE_LEAST: f64 = 1e-4;

/// Cheapest choice of a group, and the cheapest of its remaining choices.
#[derive(Copy, Clone)]
struct Choice {
    /// Cluster; `None` for leaving the group unserved.
    cluster: Option<u32>,
    cost: f64,
    second: f64,
}

struct Dual<'a> {
    market: &'a Market,
    /// For each cluster: the places that may use it, with their scores.
    takers: Vec<Vec<(u32, f64)>>,
    /// For each place: the numbers of its groups.
    groups_of: Vec<Vec<u32>>,
    /// For each cluster: capacity that can be filled, in Mbit/s.
    usable_mbps: Vec<f64>,
    prices: Vec<f64>,
    /// Choice of each group.
    choices: Vec<Choice>,
}

/// Raises the bound, starting from these prices. Returns the prices, and the lower bound on the
/// cost of any placement.
///
/// Cost: each sweep is linear in the candidates of all groups, plus the groups whose choice a new
/// price may change.
pub(crate) fn polish(market: &Market, prices: &[f64]) -> (Vec<f64>, f64) {
    let mut dual = Dual::new(market, prices);
    let mut bound = dual.bound();
    for _ in 0..SWEEPS_MAX {
        for cluster in 0..market.clusters().len() as u32 {
            dual.raise(cluster);
        }
        let before = std::mem::replace(&mut bound, dual.bound());
        if bound - before <= RISE_LEAST * bound.abs() {
            break;
        }
    }
    (dual.prices, bound)
}

const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl<'a> Dual<'a> {
    fn new(market: &'a Market, prices: &[f64]) -> Self {
        let places = market.groups().iter().map(|group| group.place + 1).max().unwrap_or(0);
        let mut groups_of = vec![Vec::new(); places as usize];
        for (number, group) in (0..).zip(market.groups()) {
            groups_of[group.place as usize].push(number);
        }
        let mut takers: Vec<Vec<(u32, f64)>> = vec![Vec::new(); market.clusters().len()];
        for place in 0..places {
            for one in market.candidates_of(place) {
                match takers[one.cluster as usize].last_mut() {
                    Some((last, score)) if *last == place => *score = score.min(one.score),
                    _ => takers[one.cluster as usize].push((place, one.score)),
                }
            }
        }
        let (choices, usable_mbps) = (Vec::new(), Vec::new());
        let mut dual = Self { market, takers, groups_of, usable_mbps, prices: prices.to_vec(), choices };
        dual.usable_mbps = (0..market.clusters().len()).map(|cluster| dual.usable(cluster)).collect();
        dual.choices = market.groups().iter().map(|group| dual.choice(group)).collect();
        dual
    }

    /// Capacity of a cluster that its groups can fill, in Mbit/s.
    fn usable(&self, cluster: usize) -> f64 {
        let (mut divisor, mut want) = (0, 0.0);
        for number in self.takers[cluster].iter().flat_map(|(place, _)| &self.groups_of[*place as usize]) {
            let group = &self.market.groups()[*number as usize];
            divisor = common_divisor(divisor, group.bitrate.as_bps());
            want += mbps(group.bitrate) * f64::from(group.sessions);
        }
        let capacity = self.market.clusters()[cluster].capacity.as_bps();
        let multiple = capacity.checked_rem(divisor).map_or(0, |rest| capacity - rest);
        (multiple as f64 / 1e6).min(want)
    }

    fn weight(&self, cluster: u32) -> f64 {
        self.market.clusters()[cluster as usize].cost_per_mbps + self.prices[cluster as usize]
    }

    fn choice(&self, group: &Group) -> Choice {
        let bitrate = mbps(group.bitrate);
        let unserved = self.market.unserved_cost();
        let mut choice = Choice { cluster: None, cost: unserved, second: unserved };
        for one in self.market.candidates_of(group.place) {
            let cost = one.score + self.weight(one.cluster) * bitrate;
            if cost < choice.cost {
                let is_other = choice.cluster != Some(one.cluster);
                let second = if is_other { choice.cost } else { choice.second };
                choice = Choice { cluster: Some(one.cluster), cost, second };
            } else if choice.cluster != Some(one.cluster) {
                choice.second = choice.second.min(cost);
            }
        }
        choice
    }

    /// Sets a cluster's price to the maximum of the bound, with all other prices fixed.
    fn raise(&mut self, cluster: u32) {
        let at = cluster as usize;
        let cost_per_mbps = self.market.clusters()[at].cost_per_mbps;
        let takers = self.takers[at].iter().flat_map(|(place, score)| {
            self.groups_of[*place as usize].iter().map(move |number| (*number as usize, *score))
        });
        // For each group: the price below which it chooses the cluster, and its demand.
        let mut limits: Vec<(f64, f64)> = Vec::new();
        for (number, score) in takers {
            let (group, choice) = (&self.market.groups()[number], &self.choices[number]);
            let bitrate = mbps(group.bitrate);
            let other = if choice.cluster == Some(cluster) { choice.second } else { choice.cost };
            let limit = (other - score) / bitrate - cost_per_mbps;
            if limit > 0.0 {
                limits.push((limit, bitrate * f64::from(group.sessions)));
            }
        }
        limits.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut want = 0.0;
        let full = limits.iter().find(|(_, more)| {
            want += more;
            want > self.usable_mbps[at]
        });
        let price = full.map_or(0.0, |(limit, _)| *limit);
        let before = std::mem::replace(&mut self.prices[at], price);
        if price.total_cmp(&before).is_ne() {
            self.choose_again(cluster, before.min(price));
        }
    }

    /// Recomputes the choice of every group whose cheapest or second cheapest choice is, or may
    /// become, this cluster.
    fn choose_again(&mut self, cluster: u32, price_least: f64) {
        let least = self.market.clusters()[cluster as usize].cost_per_mbps + price_least;
        for (place, score) in &self.takers[cluster as usize] {
            for number in &self.groups_of[*place as usize] {
                let group = &self.market.groups()[*number as usize];
                if score + least * mbps(group.bitrate) <= self.choices[*number as usize].second {
                    self.choices[*number as usize] = self.choice(group);
                }
            }
        }
    }

    fn bound(&self) -> f64 {
        let served = self.market.groups().iter().zip(&self.choices);
        let served = served.map(|(group, choice)| choice.cost * f64::from(group.sessions));
        let worth = self.prices.iter().zip(&self.usable_mbps).map(|(price, usable)| price * usable);
        served.sum::<f64>() - worth.sum::<f64>()
    }
}
