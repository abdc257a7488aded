//! Days by common thresholds, then lengths and circuits refitted to each other.

use super::Scheduler;
use crate::matching::Bipartite;
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::Duration;

/// Chooses days one after another as [`Eclipse`](super::Eclipse) does, but with matchings by thresholds, and then refits
/// the lengths of all days to their circuits and the circuits of each day to the lengths.
#[derive(Clone, Copy, Debug)]
pub struct Refit;

/// Lengths tried for each day.
const LENGTHS: usize = 8;

/// Thresholds of one matching, each half of the one before it.
const LEVELS: u32 = 4;

/// Rounds in which lengths and circuits are refitted to each other.
const ROUNDS: usize = 2;

impl Scheduler for Refit {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        let mut week = Week::new(demand, timing);
        week.fill();
        for _ in 0..ROUNDS {
            week.fit_lengths();
            week.fit_circuits();
        }
        week.fit_lengths();
        week.schedule()
    }
}

struct Week {
    racks: usize,
    night: u64,
    day_min: u64,
    left: u64,
    /// Time that each pair needs beyond its days; negative where its days are longer.
    open: Vec<i64>,
    days: Vec<(Vec<usize>, u64)>,
}

impl Week {
    fn new(demand: &Demand, timing: &Timing) -> Self {
        Self {
            racks: demand.racks(),
            night: timing.night.as_ps(),
            day_min: timing.day_min.as_ps(),
            left: timing.week.as_ps(),
            open: demand.circuit_ps(timing).into_iter().map(|time| time as i64).collect(),
            days: Vec::new(),
        }
    }

    fn fill(&mut self) {
        while self.left >= self.night + self.day_min {
            let most = self.left - self.night;
            let mut lengths: Vec<u64> =
                self.open.iter().filter(|time| **time > 0).map(|time| (*time as u64).clamp(self.day_min, most)).collect();
            if lengths.is_empty() {
                return;
            }
            lengths.sort_unstable();
            lengths.dedup();
            let mut best: Option<(Vec<usize>, u64, u64)> = None;
            let count = lengths.len().min(LENGTHS);
            for at in 0..count {
                let length = lengths[(lengths.len() - 1) * (at + 1) / count];
                let destinations = self.matching(length);
                let served = self.served(&destinations, length);
                let beats = |(_, other, less): &(Vec<usize>, u64, u64)| {
                    u128::from(served) * u128::from(other + self.night)
                        > u128::from(*less) * u128::from(length + self.night)
                };
                if best.as_ref().is_none_or(beats) {
                    best = Some((destinations, length, served));
                }
            }
            let Some((destinations, length, served)) = best else { return };
            if served == 0 {
                return;
            }
            self.left -= self.night + length;
            self.take(&destinations, length as i64);
            self.days.push((destinations, length));
        }
    }

    fn take(&mut self, destinations: &[usize], length: i64) {
        for (source, destination) in destinations.iter().enumerate() {
            self.open[source * self.racks + destination] -= length;
        }
    }

    fn weight(&self, source: usize, destination: usize, length: u64) -> u64 {
        (self.open[source * self.racks + destination].max(0) as u64).min(length)
    }

    fn served(&self, destinations: &[usize], length: u64) -> u64 {
        destinations.iter().enumerate().map(|(from, to)| self.weight(from, *to, length)).sum()
    }

    /// A heavy assignment by levels of weight, improved by exchanges of two circuits.
    fn matching(&self, length: u64) -> Vec<usize> {
        let racks = self.racks;
        let mut graph = Bipartite::new(racks);
        let mut before = u64::MAX;
        for level in 0..=LEVELS {
            let from = if level == LEVELS { 1 } else { (length >> level).max(1) };
            for (pair, time) in self.open.iter().enumerate() {
                let time = (*time).max(0) as u64;
                if time >= from && time < before {
                    graph.insert(pair / racks, pair % racks);
                }
            }
            before = from;
            graph.grow_all();
        }
        let mut to = graph.completed();
        self.exchange(&mut to, length);
        to
    }

    fn exchange(&self, to: &mut [usize], length: u64) {
        let mut better = true;
        while better {
            better = false;
            for a in 0..self.racks {
                for b in a + 1..self.racks {
                    let now = self.weight(a, to[a], length) + self.weight(b, to[b], length);
                    let then = self.weight(a, to[b], length) + self.weight(b, to[a], length);
                    if then > now {
                        to.swap(a, b);
                        better = true;
                    }
                }
            }
        }
    }

    /// Moves time between days while a day gains more than another one loses.
    fn fit_lengths(&mut self) {
        let racks = self.racks;
        // All days give up their time beyond the shortest, and get it back where most pairs use it.
        for at in 0..self.days.len() {
            let (to, length) = std::mem::take(&mut self.days[at]);
            let more = length - self.day_min;
            self.take(&to, -(more as i64));
            self.left += more;
            self.days[at] = (to, self.day_min);
        }
        while self.left > 0 {
            let mut best = (0u64, 0u64, usize::MAX);
            for (at, (to, _)) in self.days.iter().enumerate() {
                let waits: Vec<i64> = to
                    .iter()
                    .enumerate()
                    .map(|(from, to)| self.open[from * racks + to])
                    .filter(|open| *open > 0)
                    .collect();
                let Some(step) = waits.iter().min() else { continue };
                let key = (waits.len() as u64, *step as u64, at);
                if key.0 > best.0 {
                    best = key;
                }
            }
            if best.2 == usize::MAX {
                return;
            }
            let step = best.1.min(self.left);
            let (to, length) = std::mem::take(&mut self.days[best.2]);
            self.take(&to, step as i64);
            self.left -= step;
            self.days[best.2] = (to, length + step);
        }
    }

    fn fit_circuits(&mut self) {
        for at in 0..self.days.len() {
            let (to, length) = std::mem::take(&mut self.days[at]);
            self.take(&to, -(length as i64));
            let mut new = self.matching(length);
            let mut old = to;
            self.exchange(&mut old, length);
            if self.served(&new, length) < self.served(&old, length) {
                new = old;
            }
            self.take(&new, length as i64);
            self.days[at] = (new, length);
        }
    }

    fn schedule(self) -> Schedule {
        let day = |(to, length): (Vec<usize>, u64)| Day {
            matching: Matching::without_loops(to.into_iter()),
            length: Duration::from_ps(length),
        };
        Schedule { days: self.days.into_iter().map(day).collect() }
    }
}
