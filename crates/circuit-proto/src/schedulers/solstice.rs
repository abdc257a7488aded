//! A scheduler that plans the longest common days first.

use super::Scheduler;
use crate::matching::Bipartite;
use crate::sums::Sums;
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::Duration;

/// Stuffs demand until all racks send and receive equally much, then repeatedly takes the longest
/// day that all racks can use.
///
/// Source: Liu et al., *Scheduling techniques for hybrid circuit/packet networks* (Solstice),
/// CoNEXT 2015: QuickStuff and BigSlice.
/// Differs: slices end with the week (the thesis, §2.2.2), and the days are stretched to fill the
/// week; in the paper, slices end once the packet switch can carry the remaining demand. QuickStuff
/// visits the entries by rack; the paper draws an order.
/// Known weakness: if no rack has an entry as long as the shortest day, one matching lasts all
/// week.
#[derive(Clone, Copy, Debug)]
pub struct Solstice;

impl Scheduler for Solstice {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        let racks = demand.racks();
        let mut open = demand.circuit_ps(timing);
        let target = Sums::of(racks, open.iter().copied()).largest();
        stuff(racks, &mut open, target);
        let slices = slices(racks, open, timing);
        fit(slices, racks, timing)
    }
}

/// QuickStuff: adds to entries until every row and every column has the sum `target`; no sum may
/// exceed `target` before.
pub(super) fn stuff(racks: usize, open: &mut [u64], target: u64) {
    let mut sums = Sums::of(racks, open.iter().copied());
    for (pair, time) in open.iter_mut().enumerate().filter(|(_, time)| **time > 0) {
        *time += sums.stuff(pair / racks, pair % racks, target);
    }
    let emptiest = |sums: &[u64]| (0..racks).min_by_key(|port| sums[*port]).expect("a network has racks");
    loop {
        let (row, column) = (emptiest(&sums.rows), emptiest(&sums.columns));
        if sums.rows[row] == target {
            return;
        }
        open[row * racks + column] += sums.stuff(row, column, target);
    }
}

struct Slice {
    destinations: Vec<usize>,
    length: u64,
}

/// BigSlice: slices with falling thresholds, from the largest below the largest entry down to the
/// shortest day.
fn slices(racks: usize, mut open: Vec<u64>, timing: &Timing) -> Vec<Slice> {
    let (night, day_min) = (timing.night.as_ps(), timing.day_min.as_ps());
    let largest = open.iter().copied().max().unwrap_or(0);
    let mut threshold = day_min;
    while threshold <= largest / 2 {
        threshold *= 2;
    }
    let mut slices = Vec::new();
    let mut left = timing.week.as_ps();
    let mut graph = Bipartite::new(racks);
    let (mut from, mut to) = (threshold, u64::MAX);
    loop {
        for (pair, time) in open.iter().enumerate() {
            if *time >= from && *time < to {
                graph.insert(pair / racks, pair % racks);
            }
        }
        while left >= night + day_min && graph.grow() {
            let destinations: Vec<usize> = graph.destinations().collect();
            let times = destinations.iter().enumerate().map(|(row, column)| open[row * racks + column]);
            let length = times.min().expect("a network has racks").min(left - night);
            for (row, column) in destinations.iter().enumerate() {
                let time = &mut open[row * racks + column];
                *time -= length;
                if *time < from {
                    graph.remove(row, *column);
                }
            }
            left -= night + length;
            slices.push(Slice { destinations, length });
        }
        if from == day_min {
            return slices;
        }
        (from, to) = (from / 2, from);
    }
}

/// Converts the slices to days that fill the week. Without slices, one matching lasts all week.
fn fit(slices: Vec<Slice>, racks: usize, timing: &Timing) -> Schedule {
    if slices.is_empty() {
        let length = timing.week - timing.night;
        return Schedule { days: vec![Day { matching: Matching::shift(racks, 1), length }] };
    }
    let day = |slice: Slice| Day {
        matching: Matching::without_loops(slice.destinations.into_iter()),
        length: Duration::from_ps(slice.length),
    };
    let mut schedule = Schedule { days: slices.into_iter().map(day).collect() };
    schedule.stretch(timing);
    schedule
}
