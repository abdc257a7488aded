//! A scheduler that chooses days by auction, and then refits their lengths and circuits to each
//! other.

use super::Scheduler;
use crate::matching::{Bipartite, port};
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::Duration;

/// Repeatedly adds the day that serves the most demand per second of day and night, as
/// [`Eclipse`](super::Eclipse) does. Then fits the lengths of all days to their circuits, and the
/// circuits of each day to its length.
///
/// The length of a day comes from largest matchings of the pairs that need more than a time, for
/// times that are halved step by step. Its circuits come from an auction: sources bid for
/// destinations until each source has a destination that is best for it at the prices, within a
/// small part of the length. In small networks the days are also chosen by bisection over lengths,
/// and the better week is used. Eclipse's guaranteed share is not guaranteed here, because that
/// would also take Eclipse's time.
/// Source of the auction: Bertsekas, *The auction algorithm: a distributed relaxation method for
/// the assignment problem*, Annals of Operations Research 14, 1988.
#[derive(Clone, Copy, Debug)]
pub struct Refit;

/// Number of classes below the shortest day: pairs that need half of it, a quarter, or any less.
const SHORT_CLASSES: usize = 3;

/// A bid exceeds the bidder's indifference price by a day's length divided by this number. Smaller
/// increments find better circuits and take longer.
const BID_SHARE: i64 = 1024;

/// [`BID_SHARE`] in networks above [`RACKS_SMALL_BIDS`], where small increments take twice the
/// time.
const BID_SHARE_WIDE: i64 = 64;

/// Maximum number of racks of a network with small bid increments.
const RACKS_SMALL_BIDS: usize = 64;

/// Maximum number of racks of a network whose days are chosen in both ways. The bisection takes
/// twice the time of the classes.
const RACKS_TWO_STARTS: usize = 32;

impl Scheduler for Refit {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        let by_classes = Week::new(demand, timing).refit(Start::Classes);
        if demand.racks() > RACKS_TWO_STARTS || by_classes.unserved() == 0 {
            return by_classes.schedule();
        }
        let by_bisection = Week::new(demand, timing).refit(Start::Bisection);
        if by_bisection.unserved() < by_classes.unserved() {
            by_bisection.schedule()
        } else {
            by_classes.schedule()
        }
    }
}

/// How the initial days are chosen, before they are fitted to each other.
#[derive(Clone, Copy)]
enum Start {
    /// Lengths by largest matchings of classes of pairs, circuits by auction.
    Classes,
    /// Lengths by bisection over the pairs' times, with an auction for each.
    Bisection,
}

/// A pair with demand.
#[derive(Clone, Copy)]
struct Pair {
    source: u16,
    destination: u16,
    /// Time that the pair needs beyond its days; negative if its days are longer than needed.
    open: i64,
}

/// A day that could be added, with the time that it serves.
struct Candidate {
    circuits: Circuits,
    length: i64,
    served: i64,
}

/// The pair to which each source sends, as an index into the pairs. `None` if its port is dark.
type Circuits = Vec<Option<u32>>;

struct Week {
    racks: usize,
    words: usize,
    night: i64,
    day_min: i64,
    week: i64,
    /// Time of the week that is not given to a day or night.
    left: i64,
    /// Pairs with demand, ordered by source.
    pairs: Vec<Pair>,
    /// Index of each source's first pair, then the number of pairs.
    first: Vec<u32>,
    /// Index of each pair, by source and destination.
    index: Vec<u32>,
    /// Minimum open time of each class, in decreasing order.
    classes: Vec<i64>,
    /// Members of each class as bits: by class, then by source.
    members: Vec<u64>,
    days: Vec<(Circuits, i64)>,
    graph: Bipartite,
    auction: Auction,
}

impl Week {
    fn new(demand: &Demand, timing: &Timing) -> Self {
        let racks = demand.racks();
        let ps = |time: Duration| i64::try_from(time.as_ps()).expect("a week is an hour at most");
        let (night, day_min, left) = (ps(timing.night), ps(timing.day_min), ps(timing.week));
        let mut classes = vec![day_min];
        while classes[classes.len() - 1] <= left / 2 {
            classes.push(classes[classes.len() - 1] * 2);
        }
        classes.reverse();
        classes.extend((1..SHORT_CLASSES).map(|halvings| (day_min >> halvings).max(1)));
        classes.push(1);
        let words = racks.div_ceil(64);
        let mut made = Self {
            racks,
            words,
            night,
            day_min,
            week: left,
            left,
            pairs: Vec::new(),
            first: Vec::with_capacity(racks + 1),
            index: vec![0; racks * racks],
            members: vec![0; classes.len() * racks * words],
            classes,
            days: Vec::new(),
            graph: Bipartite::new(racks),
            auction: Auction::new(racks),
        };
        made.read(demand, timing);
        made
    }

    fn read(&mut self, demand: &Demand, timing: &Timing) {
        let times = demand.circuit_ps(timing);
        for (source, row) in times.chunks_exact(self.racks).enumerate() {
            self.first.push(self.pairs.len() as u32);
            for (destination, time) in row.iter().enumerate().filter(|(_, time)| **time > 0) {
                self.index[source * self.racks + destination] = self.pairs.len() as u32;
                let open = i64::try_from(*time).expect("a week is an hour at most");
                self.pairs.push(Pair { source: port(source), destination: port(destination), open });
                self.flip(self.pairs.len() - 1);
            }
        }
        self.first.push(self.pairs.len() as u32);
    }

    /// Toggles the pair's bit in the class of its open time: adds the pair, or removes it.
    fn flip(&mut self, pair: usize) {
        let Pair { source, destination, open } = self.pairs[pair];
        if open > 0 {
            let class =
                self.classes.iter().position(|least| open >= *least).expect("the last class begins at 1");
            let word =
                (class * self.racks + usize::from(source)) * self.words + usize::from(destination) / 64;
            self.members[word] ^= 1 << (destination % 64);
        }
    }

    /// Subtracts `length` from the open time of a day's pairs, without a change of their classes.
    fn take(&mut self, circuits: &[Option<u32>], length: i64) {
        for pair in circuits.iter().flatten() {
            self.pairs[*pair as usize].open -= length;
        }
    }

    /// Chooses days, and fits their lengths and circuits to each other.
    fn refit(mut self, start: Start) -> Self {
        match start {
            Start::Classes => self.fill(),
            Start::Bisection => self.fill_by_bisection(),
        }
        self.fit_lengths();
        self.fit_circuits();
        self.fit_lengths();
        self.fit_count();
        self
    }

    fn served(&self, circuits: &[Option<u32>], length: i64) -> i64 {
        circuits.iter().flatten().map(|pair| self.pairs[*pair as usize].open.clamp(0, length)).sum()
    }

    fn fill(&mut self) {
        while self.left >= self.night + self.day_min {
            let Some(length) = self.best_length(self.left - self.night) else { return };
            let circuits = self.auction.circuits(&self.pairs, &self.first, length);
            for pair in circuits.iter().flatten() {
                self.flip(*pair as usize);
                self.pairs[*pair as usize].open -= length;
                self.flip(*pair as usize);
            }
            self.left -= self.night + length;
            self.days.push((circuits, length));
        }
    }

    /// Adds days as [`Eclipse`](super::Eclipse) does, by auctions in place of heaviest matchings.
    fn fill_by_bisection(&mut self) {
        while self.left >= self.night + self.day_min {
            let most = self.left - self.night;
            let is_open = |pair: &&Pair| pair.open > 0;
            let open = self.pairs.iter().filter(is_open).map(|pair| pair.open.clamp(self.day_min, most));
            let mut lengths: Vec<i64> = open.collect();
            lengths.sort_unstable();
            lengths.dedup();
            let Some(mut high) = lengths.len().checked_sub(1) else { return };
            let night = self.night;
            let beats = |one: &Candidate, other: &Candidate| {
                one.served as f64 * (other.length + night) as f64
                    > other.served as f64 * (one.length + night) as f64
            };
            let mut best = self.candidate(lengths[high]);
            let mut low = 0;
            while low < high {
                let middle = usize::midpoint(low, high);
                let (shorter, longer) =
                    (self.candidate(lengths[middle]), self.candidate(lengths[middle + 1]));
                if beats(&longer, &shorter) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
                for candidate in [shorter, longer] {
                    if beats(&candidate, &best) {
                        best = candidate;
                    }
                }
            }
            self.take(&best.circuits, best.length);
            self.left -= self.night + best.length;
            self.days.push((best.circuits, best.length));
        }
    }

    fn candidate(&mut self, length: i64) -> Candidate {
        let circuits = self.auction.circuits(&self.pairs, &self.first, length);
        Candidate { served: self.served(&circuits, length), length, circuits }
    }

    /// The day length that maximises served time divided by the time of day and night. For each
    /// class, considers the largest matching of its pairs and the pairs of all classes above it.
    /// `None` if no pair has open time.
    fn best_length(&mut self, most: i64) -> Option<i64> {
        let mut best: Option<(i64, i64)> = None;
        let night = self.night;
        let mut times = Vec::with_capacity(self.racks);
        self.graph.clear();
        for members in self.members.chunks_exact(self.racks * self.words) {
            self.graph.insert_all(members);
            if !self.graph.grow_all() {
                continue;
            }
            times.clear();
            let open =
                |(from, to): (usize, usize)| self.pairs[self.index[from * self.racks + to] as usize].open;
            times.extend(self.graph.pairs().map(|pair| open(pair).min(most)));
            times.sort_unstable();
            let (mut shorter, mut longer) = (0, times.len() as i64);
            for time in &times {
                let length = (*time).max(self.day_min);
                let served = shorter + longer * *time;
                let beats = |(other, its): (i64, i64)| {
                    served as f64 * (its + night) as f64 > other as f64 * (length + night) as f64
                };
                if best.is_none_or(beats) {
                    best = Some((served, length));
                }
                shorter += *time;
                longer -= 1;
            }
        }
        best.map(|(_, length)| length)
    }

    /// Distributes the time of the week over the days, first to the day whose length most pairs can
    /// use.
    fn fit_lengths(&mut self) {
        for at in 0..self.days.len() {
            self.set_length(at, self.day_min);
        }
        while self.left > 0 {
            let gain = |(at, (circuits, _)): (usize, &(Circuits, i64))| {
                let times = circuits.iter().flatten().map(|pair| self.pairs[*pair as usize].open);
                let (pairs, step) = times
                    .filter(|time| *time > 0)
                    .fold((0, i64::MAX), |(pairs, step), time| (pairs + 1, step.min(time)));
                (pairs, step, at)
            };
            let Some((pairs, step, at)) = self.days.iter().enumerate().map(gain).max() else { return };
            if pairs == 0 {
                return;
            }
            let step = step.min(self.left);
            self.set_length(at, self.days[at].1 + step);
        }
    }

    /// Chooses each day's circuits again, for the demand that the other days leave open.
    fn fit_circuits(&mut self) {
        for at in 0..self.days.len() {
            let (old, length) = std::mem::take(&mut self.days[at]);
            self.take(&old, -length);
            let new = self.auction.circuits(&self.pairs, &self.first, length);
            let circuits = if self.served(&new, length) > self.served(&old, length) { new } else { old };
            self.take(&circuits, length);
            self.days[at] = (circuits, length);
        }
    }

    /// Adds a day, or removes one, if more demand is served after the lengths are fitted again.
    fn fit_count(&mut self) {
        let before = self.unserved();
        let days = self.days.clone();
        let slots = self.week / (self.night + self.day_min);
        if (self.days.len() as i64) < slots {
            for at in 0..self.days.len() {
                self.set_length(at, self.day_min);
            }
            let circuits = self.auction.circuits(&self.pairs, &self.first, self.day_min);
            self.take(&circuits, self.day_min);
            self.left -= self.night + self.day_min;
            self.days.push((circuits, self.day_min));
            self.fit_lengths();
            if self.unserved() < before {
                return;
            }
            self.restore(&days);
        }
        if self.days.len() < 2 {
            return;
        }
        let served = |(_, (circuits, length)): &(usize, &(Circuits, i64))| self.lost(circuits, *length);
        let Some((least, _)) = self.days.iter().enumerate().min_by_key(served) else { return };
        self.set_length(least, 0);
        self.left += self.night;
        self.days.remove(least);
        self.fit_lengths();
        self.fit_circuits();
        self.fit_lengths();
        if self.unserved() >= before {
            self.restore(&days);
        }
    }

    /// Total open time of all pairs.
    fn unserved(&self) -> i64 {
        self.pairs.iter().map(|pair| pair.open.max(0)).sum()
    }

    /// Additional open time of the pairs if the day were removed.
    fn lost(&self, circuits: &[Option<u32>], length: i64) -> i64 {
        let open = |pair: &u32| self.pairs[*pair as usize].open;
        circuits.iter().flatten().map(|pair| (open(pair) + length).max(0) - open(pair).max(0)).sum()
    }

    fn set_length(&mut self, day: usize, length: i64) {
        let (circuits, before) = std::mem::take(&mut self.days[day]);
        self.take(&circuits, length - before);
        self.left -= length - before;
        self.days[day] = (circuits, length);
    }

    fn restore(&mut self, days: &[(Circuits, i64)]) {
        for at in 0..self.days.len() {
            self.set_length(at, 0);
        }
        self.left += self.night * (self.days.len() as i64 - days.len() as i64);
        self.days = days.iter().map(|(circuits, _)| (circuits.clone(), 0)).collect();
        for (at, (_, length)) in days.iter().enumerate() {
            self.set_length(at, *length);
        }
    }

    fn schedule(self) -> Schedule {
        let day = |(circuits, length): &(Circuits, i64)| Day {
            matching: Matching::of_ports(
                circuits.iter().map(|pair| pair.map(|pair| self.pairs[pair as usize].destination)).collect(),
            ),
            length: Duration::from_ps(*length as u64),
        };
        Schedule { days: self.days.iter().map(day).collect() }
    }
}

/// An auction in which sources bid for destinations.
struct Auction {
    /// Divisor of a day's length that gives the bid increment.
    share: i64,
    prices: Vec<i64>,
    owners: Vec<Option<u16>>,
    bidders: Vec<u16>,
}

impl Auction {
    fn new(racks: usize) -> Self {
        let share = if racks > RACKS_SMALL_BIDS { BID_SHARE_WIDE } else { BID_SHARE };
        Self { share, prices: Vec::new(), owners: Vec::new(), bidders: Vec::new() }
    }

    /// Circuits of a day of `length`. The sum of their times is within `racks * length / share` of
    /// the maximum.
    fn circuits(&mut self, pairs: &[Pair], first: &[u32], length: i64) -> Circuits {
        let racks = first.len() - 1;
        let least = (length / self.share).max(1);
        self.prices.clear();
        self.prices.resize(racks, 0);
        self.owners.clear();
        self.owners.resize(racks, None);
        self.bidders.clear();
        self.bidders.extend((0..racks).rev().map(port));
        let mut circuits = vec![None; racks];
        while let Some(bidder) = self.bidders.pop() {
            let at = usize::from(bidder);
            let (from, to) = (first[at] as usize, first[at + 1] as usize);
            // The alternative is no circuit, with a profit of zero.
            let (mut best, mut second, mut choice) = (0, 0, None);
            for (pair, it) in pairs[from..to].iter().enumerate() {
                let profit = it.open.min(length) - self.prices[usize::from(it.destination)];
                if profit > best {
                    (second, best, choice) = (best, profit, Some(from + pair));
                } else if profit > second {
                    second = profit;
                }
            }
            let Some(choice) = choice else { continue };
            let destination = usize::from(pairs[choice].destination);
            self.prices[destination] += best - second + least;
            if let Some(loser) = self.owners[destination].replace(bidder) {
                circuits[usize::from(loser)] = None;
                self.bidders.push(loser);
            }
            circuits[at] = Some(choice as u32);
        }
        circuits
    }
}
