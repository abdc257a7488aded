//! A greedy scheduler: the day with the most bytes per second, repeatedly.

use super::Scheduler;
use crate::matching::heaviest;
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::Duration;

/// Repeatedly adds the day that serves the most demand per second of day and night, until the week
/// is full.
///
/// For a given length, the best day is a heaviest matching. The weight of a pair is the time that
/// it can use. The length is found by bisection over the pairs' remaining times.
/// Cost: O(days log(racks) racks^3).
/// Source: Bojja Venkatakrishnan et al., *Costly circuits, submodular schedules and approximate
/// Carathéodory theorems* (Eclipse), SIGMETRICS 2016. Differs: no day is shorter than the shortest
/// of the switch.
#[derive(Clone, Copy, Debug)]
pub struct Eclipse;

impl Scheduler for Eclipse {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        let racks = demand.racks();
        let mut open = demand.circuit_ps(timing);
        let (night, day_min) = (timing.night.as_ps(), timing.day_min.as_ps());
        let mut left = timing.week.as_ps();
        let mut schedule = Schedule::default();
        while left >= night + day_min {
            let day = best_day(racks, &open, night, day_min, left - night);
            if day.served == 0 {
                break;
            }
            for (source, destination) in day.destinations.iter().enumerate() {
                let pair = &mut open[source * racks + destination];
                *pair = pair.saturating_sub(day.length);
            }
            left -= night + day.length;
            let matching = Matching::without_loops(day.destinations.into_iter());
            schedule.days.push(Day { matching, length: Duration::from_ps(day.length) });
        }
        schedule
    }
}

struct Candidate {
    destinations: Vec<usize>,
    length: u64,
    served: u64,
}

impl Candidate {
    fn new(racks: usize, open: &[u64], length: u64) -> Self {
        let weights: Vec<u64> = open.iter().map(|time| (*time).min(length)).collect();
        let destinations = heaviest(racks, &weights);
        let served = destinations.iter().enumerate().map(|(from, to)| weights[from * racks + to]).sum();
        Self { destinations, length, served }
    }

    /// True if this day serves more per second of day and night than `other`.
    fn beats(&self, other: &Self, night: u64) -> bool {
        u128::from(self.served) * u128::from(other.length + night)
            > u128::from(other.served) * u128::from(self.length + night)
    }
}

/// The best day with a length of `day_min` to `most` picoseconds that the bisection finds.
fn best_day(racks: usize, open: &[u64], night: u64, day_min: u64, most: u64) -> Candidate {
    let mut lengths: Vec<u64> =
        open.iter().filter(|time| **time > 0).map(|time| (*time).clamp(day_min, most)).collect();
    lengths.push(day_min);
    lengths.sort_unstable();
    lengths.dedup();
    let (mut low, mut high) = (0, lengths.len() - 1);
    let mut best = Candidate::new(racks, open, lengths[high]);
    // The served share of day and night rises with the length up to one maximum and then falls,
    // except for small fluctuations.
    while low < high {
        let middle = usize::midpoint(low, high);
        let (left, right) =
            (Candidate::new(racks, open, lengths[middle]), Candidate::new(racks, open, lengths[middle + 1]));
        if right.beats(&left, night) {
            low = middle + 1;
        } else {
            high = middle;
        }
        for candidate in [left, right] {
            if candidate.beats(&best, night) {
                best = candidate;
            }
        }
    }
    best
}
