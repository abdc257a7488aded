//! Prices for time on links, and the choices of coflows under these prices.

use super::ROUNDING;
use super::work::{CoflowWork, Load};

/// Prices by link and interval of time. A price is the number of seconds of delay that a second on
/// the link is worth.
#[derive(Clone, Debug)]
pub struct Prices {
    /// Starts of the intervals, beginning at 0. The last interval is unbounded, and its price is 0.
    pub starts_s: Vec<f64>,
    links: Vec<Vec<f64>>,
}

/// Earliest and latest completion of a coflow.
pub type Window = (f64, f64);

/// Result of an evaluation of prices.
#[derive(Clone, Debug, Default)]
pub struct PriceEvaluation {
    /// Lower bound of the sum of completion times under any schedule.
    pub total_s: f64,
    /// Preferred completion of each coflow.
    pub completes_s: Vec<f64>,
    /// Demanded time by link and interval.
    pub busy_s: Vec<Vec<f64>>,
}

/// Intervals in which a link is busy with a coflow, from cheap to expensive: price, seconds, index
/// of the interval.
#[derive(Debug, Default)]
pub struct Pattern {
    chosen: Vec<(f64, f64, usize)>,
    free: Vec<(f64, f64, usize)>,
}

/// Change of a coflow's cost while its completion moves through an interval.
#[derive(Copy, Clone, Debug, Default)]
struct Change {
    /// Slope at the beginning and at the end of the interval. The cost is convex between them.
    slopes: [f64; 2],
    total_s: f64,
}

/// Buffers of an evaluation, reused by later evaluations.
#[derive(Debug, Default)]
pub struct Scratch {
    pattern: Pattern,
    /// Patterns of a coflow for its earliest completion, link by link.
    soonest: Vec<(f64, f64, usize)>,
    /// Index in `soonest` after the last entry of each pattern.
    ends: Vec<usize>,
    changes: Vec<Change>,
}

impl Prices {
    /// Creates prices of 0 for all links, with `intervals` intervals up to `end_s` and an unbounded
    /// interval after it.
    pub fn zero(links: usize, intervals: u32, end_s: f64) -> Self {
        let starts_s: Vec<f64> =
            (0..=intervals).map(|at| end_s * f64::from(at) / f64::from(intervals)).collect();
        Self { links: vec![vec![0.0; starts_s.len()]; links], starts_s }
    }
    /// Returns the number of links.
    pub fn links(&self) -> usize {
        self.links.len()
    }
    /// Returns the number of intervals with a price.
    pub fn intervals(&self) -> usize {
        self.starts_s.len() - 1
    }
    /// Returns the length of an interval with a price.
    pub fn length_s(&self, interval: usize) -> f64 {
        self.starts_s[interval + 1] - self.starts_s[interval]
    }
    /// Returns the prices of a link, by interval. The last interval is not included, so its price
    /// stays 0.
    pub fn of_link_mut(&mut self, link: usize) -> &mut [f64] {
        let intervals = self.intervals();
        &mut self.links[link][..intervals]
    }

    /// Returns a measure of the benefit of a split, by interval: the variation of prices within the
    /// interval and to its neighbours, over all links.
    pub fn variations(&self) -> Vec<f64> {
        let mut all = vec![0.0; self.intervals()];
        for link in &self.links {
            for at in 0..all.len() {
                let before = if at > 0 { link[at - 1] } else { 0.0 };
                all[at] += (link[at] - before).abs() + (link[at + 1] - link[at]).abs();
            }
        }
        all
    }
    /// Returns the same prices with additional starts of intervals.
    pub fn split(&self, more_s: impl IntoIterator<Item = f64>) -> Self {
        let mut starts_s = self.starts_s.clone();
        starts_s.extend(more_s);
        starts_s.sort_by(f64::total_cmp);
        starts_s.dedup();
        let links = self.links.iter();
        let links = links.map(|old| starts_s.iter().map(|at| old[self.interval(*at)]).collect()).collect();
        Self { starts_s, links }
    }
    /// Returns the index of the interval that contains an instant. At a boundary, the later
    /// interval is returned.
    pub fn interval(&self, at_s: f64) -> usize {
        self.starts_s.partition_point(|start| *start <= at_s).saturating_sub(1)
    }
    fn end_s(&self, interval: usize) -> f64 {
        self.starts_s.get(interval + 1).copied().unwrap_or(f64::INFINITY)
    }

    /// Sets `value` to a lower bound of the sum of completion times, where each coflow completes in
    /// its window.
    ///
    /// In any schedule, let coflow k keep link l busy for the part x[k,l](t) of its rate at time t.
    /// The sum of x over k is at most 1, and prices p are not negative, so the sum of completion
    /// times is at least sum of (C[k] - r[k] + integral of p x) - integral of p. The term of k is
    /// its cost for a pattern of work on its links that ends by C[k], never exceeds a link's rate
    /// and contains no work before its arrival. This cost is at least the price of the cheapest
    /// such pattern, minimised over C[k]. The sum of these minima, minus the integral of p, is
    /// therefore a bound for any prices. Source: Lagrangian relaxation (Fisher, *Management
    /// Science* 27, 1981, section 2) of a time-indexed program (Dyer and Wolsey, *Discrete Applied
    /// Mathematics* 26, 1990).
    pub fn evaluate(
        &self,
        works: &[CoflowWork],
        windows: &[Window],
        scratch: &mut Scratch,
        value: &mut PriceEvaluation,
    ) {
        value.completes_s.clear();
        value.busy_s.resize_with(self.links.len(), Vec::new);
        for busy in &mut value.busy_s {
            busy.clear();
            busy.resize(self.starts_s.len(), 0.0);
        }
        let mut paid_s = 0.0;
        for (work, window) in works.iter().zip(windows) {
            let (least_s, completes_s) = self.least(work, *window, scratch);
            paid_s += least_s;
            value.completes_s.push(completes_s);
            let is_soonest = completes_s == window.0;
            let mut begin = 0;
            for (load, end) in work.loads.iter().zip(&scratch.ends) {
                let busy = &mut value.busy_s[load.link.0 as usize];
                let soonest = &scratch.soonest[std::mem::replace(&mut begin, *end)..*end];
                if !is_soonest {
                    scratch.pattern.cheapest(self, load, completes_s);
                }
                let chosen = if is_soonest { soonest } else { &scratch.pattern.chosen };
                chosen.iter().for_each(|(_, length_s, at)| busy[*at] += length_s);
            }
        }
        let worth =
            |link: &Vec<f64>| (0..self.intervals()).map(|at| link[at] * self.length_s(at)).sum::<f64>();
        let worth_s: f64 = self.links.iter().map(worth).sum();
        value.total_s = paid_s - worth_s - (paid_s + worth_s) * ROUNDING;
    }

    /// Returns the minimum of a coflow's time plus payment, and the completion at which it is
    /// reached.
    pub fn least(&self, work: &CoflowWork, (from_s, to_s): Window, scratch: &mut Scratch) -> (f64, f64) {
        let Scratch { pattern, soonest, ends, changes } = scratch;
        let at_first_s = from_s - work.arrived_s;
        let mut pays_s = 0.0;
        soonest.clear();
        ends.clear();
        // Waiting saves at most the payment, so a completion later than `from_s` plus the payment
        // is not cheaper.
        for load in &work.loads {
            pays_s += pattern.cheapest(self, load, from_s);
            soonest.extend_from_slice(&pattern.chosen);
            ends.push(soonest.len());
        }
        let mut best = (at_first_s + pays_s, from_s);
        let to_s = to_s.min(from_s + pays_s);
        if to_s <= from_s {
            return best;
        }
        let first = self.interval(from_s);
        let intervals = first..self.starts_s.partition_point(|start| *start < to_s);
        changes.clear();
        changes.resize(intervals.len(), Change::default());
        let mut begin = 0;
        for (load, end) in work.loads.iter().zip(&*ends) {
            pattern.chosen.clear();
            pattern.chosen.extend_from_slice(&soonest[std::mem::replace(&mut begin, *end)..*end]);
            for (at, change) in intervals.clone().zip(changes.iter_mut()) {
                if !pattern.is_dear() {
                    break;
                }
                let length_s = self.end_s(at).min(to_s) - self.starts_s[at].max(from_s);
                pattern.lengthen(self.links[load.link.0 as usize][at], length_s, at, change);
            }
        }
        let mut at_s = best.0;
        for (at, change) in intervals.zip(changes.iter()) {
            let begins_s = self.starts_s[at].max(from_s);
            let length_s = self.end_s(at).min(to_s) - begins_s;
            let [begin, end] = change.slopes.map(|slope| 1.0 + slope);
            let ends_at_s = at_s + length_s + change.total_s;
            // A convex function lies above its tangents, so its minimum is at least the value at
            // the point where the tangents at both ends meet.
            let (least_s, into_s) = if begin < 0.0 && end > 0.0 {
                let into_s = ((ends_at_s - at_s - end * length_s) / (begin - end)).clamp(0.0, length_s);
                ((at_s + begin * into_s).min(ends_at_s - end * (length_s - into_s)), into_s)
            } else if begin < 0.0 {
                (ends_at_s, length_s)
            } else {
                (at_s, 0.0)
            };
            if least_s < best.0 {
                best = (least_s, begins_s + into_s);
            }
            at_s = ends_at_s;
        }
        best
    }
}

impl Pattern {
    /// Chooses the cheapest time on a link in which a coflow's load fits until `to_s`. Returns the
    /// price of the chosen time.
    ///
    /// The latest part is placed first; each part gets the cheapest time that is free. Load that
    /// arrives at an instant needs time after this instant. These needs are nested, so the greedy
    /// choice is optimal.
    pub fn cheapest(&mut self, prices: &Prices, load: &Load, to_s: f64) -> f64 {
        let Self { chosen, free } = self;
        let of_link = &prices.links[load.link.0 as usize];
        chosen.clear();
        if let [(since_s, busy_s)] = load.parts[..] {
            let at = prices.interval(since_s);
            // Most parts have only one possible interval.
            if to_s <= prices.end_s(at) {
                chosen.push((of_link[at], busy_s, at));
                return of_link[at] * busy_s;
            }
        }
        free.clear();
        let (mut until_s, mut cost_s) = (to_s, 0.0);
        for (since_s, busy_s) in &load.parts {
            let mut at = prices.interval(*since_s);
            let mut from_s = *since_s;
            while from_s < until_s {
                let end_s = prices.end_s(at).min(until_s);
                free.push((of_link[at], end_s - from_s, at));
                (at, from_s) = (at + 1, end_s);
            }
            until_s = since_s.min(until_s);
            // Sorted from expensive to cheap. At equal prices, the latest time is used first.
            free.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut left_s = *busy_s;
            while left_s > 0.0 {
                let Some((price, length_s, at)) = free.last_mut() else { break };
                let used_s = length_s.min(left_s);
                chosen.push((*price, used_s, *at));
                (cost_s, left_s, *length_s) = (cost_s + *price * used_s, left_s - used_s, *length_s - used_s);
                if *length_s <= 0.0 {
                    free.pop();
                }
            }
        }
        if load.parts.len() > 1 {
            chosen.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        cost_s
    }

    /// Extends the pattern's end by `length_s` in interval `at` with price `price`. The most
    /// expensive time of the pattern moves into the extension. Adds the change of cost to `change`.
    fn lengthen(&mut self, price: f64, length_s: f64, at: usize, change: &mut Change) {
        let (mut left_s, mut is_first, mut last) = (length_s, true, 0.0);
        while left_s > 0.0 {
            let Some((dear, dear_s, _)) = self.chosen.last_mut().filter(|(dear, ..)| *dear > price) else {
                break;
            };
            last = price - *dear;
            if std::mem::take(&mut is_first) {
                change.slopes[0] += last;
            }
            let moved_s = dear_s.min(left_s);
            change.total_s += last * moved_s;
            (left_s, *dear_s) = (left_s - moved_s, *dear_s - moved_s);
            if *dear_s <= 0.0 {
                self.chosen.pop();
            }
        }
        // If time of the extension is unused, no more expensive time remains to be moved.
        change.slopes[1] += if left_s > 0.0 { 0.0 } else { last };
        if left_s < length_s {
            let place = self.chosen.partition_point(|(other, ..)| *other <= price);
            self.chosen.insert(place, (price, length_s - left_s, at));
        }
    }
    /// Returns true if the pattern has a cost, so that a later completion could be cheaper.
    fn is_dear(&self) -> bool {
        self.chosen.last().is_some_and(|(dear, ..)| *dear > 0.0)
    }
}
