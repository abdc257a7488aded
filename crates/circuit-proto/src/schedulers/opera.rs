//! Rotors that reconfigure one after the other.

use super::{Plan, Scheduler};
use crate::matching::Bipartite;
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::{ByteCount, Seed};

/// Number of rotors that share the rate of the switch; at any time at most one of them
/// reconfigures.
pub const ROTORS: usize = 4;

/// Several rotors with random matchings. In each slot, one rotor reconfigures. So short flows
/// always have a path of a few hops, while bulk flows wait for a circuit to their destination.
///
/// A schedule has the matchings in the order in which the rotors change to them. A rotor keeps its
/// matching for four slots of a night and a day, at an equal share of the rate. It is dark in the
/// first of these nights.
/// `served` counts bulk bytes, which take one hop. Bytes of short flows over several hops are not
/// counted.
/// Needs: several switches, and a night that stops only one of them.
/// Source: Mellette et al., *Expanding across time to deliver bandwidth efficiency and low latency*
/// (Opera), NSDI 2020, §3.
/// Differs: the matchings are directed, because circuits here are directed.
#[derive(Clone, Debug, Default)]
pub struct Opera {
    /// Matchings that join each pair exactly once, in the order of their use.
    matchings: Vec<Matching>,
    /// Index of the next matching.
    turn: usize,
}

impl Opera {
    /// Draws matchings that join each pair of racks exactly once.
    fn factors(racks: usize) -> Vec<Matching> {
        let mut random = Seed::new(0).stream("opera matchings", racks as u64);
        let mut is_open = vec![true; racks * racks];
        let mut graph = Bipartite::new(racks);
        let (mut sources, mut destinations): (Vec<usize>, Vec<usize>) =
            ((0..racks).collect(), (0..racks).collect());
        let mut factor = || {
            random.shuffle(&mut sources);
            random.shuffle(&mut destinations);
            graph.clear();
            for (from, source) in sources.iter().enumerate() {
                for (to, destination) in destinations.iter().enumerate() {
                    if source != destination && is_open[source * racks + destination] {
                        graph.insert(from, to);
                    }
                }
            }
            assert!(
                graph.grow(),
                "each rack has the same number of open pairs, so a perfect matching exists"
            );
            let mut circuits = vec![0; racks];
            for (from, to) in graph.destinations().enumerate() {
                circuits[sources[from]] = destinations[to];
                is_open[sources[from] * racks + destinations[to]] = false;
            }
            Matching::without_loops(circuits.into_iter())
        };
        (1..racks).map(|_| factor()).collect()
    }

    fn prepare(&mut self, racks: usize) {
        if self.matchings.len() != racks - 1 {
            *self = Self { matchings: Self::factors(racks), turn: 0 };
        }
    }

    /// The matching that was set up `before` slots before the next one.
    fn earlier(&self, before: usize) -> &Matching {
        let count = self.matchings.len();
        &self.matchings[(self.turn + count * ROTORS - before) % count]
    }
}

impl Scheduler for Opera {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        self.prepare(demand.racks());
        let turns = timing.week.as_ps() / (timing.day_min + timing.night).as_ps();
        let mut next = || {
            let matching = self.matchings[self.turn % self.matchings.len()].clone();
            self.turn = (self.turn + 1) % self.matchings.len();
            Day { matching, length: timing.day_min }
        };
        Schedule { days: (0..turns).map(|_| next()).collect() }
    }

    fn plan(&mut self, demand: &Demand, timing: &Timing) -> Plan {
        let racks = demand.racks();
        self.prepare(racks);
        let rotors = ROTORS.min(racks - 1);
        let slot = (timing.day_min + timing.night).as_ps();
        let held: Vec<Matching> = (1..rotors).map(|before| self.earlier(before).clone()).collect();
        let schedule = self.schedule(demand, timing);
        let turns = schedule.days.len();
        let mut open_ps = vec![0u64; racks * racks];
        let mut carry = |matching: &Matching, time: u64| {
            for (source, destination) in matching.circuits() {
                open_ps[source * racks + destination] += time;
            }
        };
        for (at, matching) in held.iter().enumerate() {
            carry(matching, slot * (rotors - 1 - at).min(turns) as u64);
        }
        for (at, day) in schedule.days.iter().enumerate() {
            carry(&day.matching, slot * rotors.min(turns - at) as u64 - timing.night.as_ps());
        }
        let served = open_ps.iter().enumerate().map(|(pair, time)| {
            let carried = timing.carried(anabranch_units::Duration::from_ps(*time)).as_u64() / rotors as u64;
            ByteCount::new(carried).min(demand.between(pair / racks, pair % racks))
        });
        Plan { served: served.sum(), schedule }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// For each slot and each rack, the racks at the other ends of its live circuits, which are the
    /// circuits of all rotors except the one that reconfigures.
    fn unions(opera: &Opera, racks: usize) -> Vec<Vec<Vec<usize>>> {
        let count = opera.matchings.len();
        let union = |turn: usize| {
            let live = |rack: usize, before: usize| {
                opera.matchings[(turn + count - before) % count].destination(rack)
            };
            let next = |rack: usize| (1..ROTORS).filter_map(|before| live(rack, before)).collect();
            (0..racks).map(next).collect()
        };
        (0..count).map(union).collect()
    }

    #[test]
    fn each_pair_has_one_matching() {
        for racks in [2, 3, 8, 33] {
            let pairs: BTreeSet<(usize, usize)> = Opera::factors(racks)
                .iter()
                .flat_map(|matching| matching.circuits().collect::<Vec<_>>())
                .collect();
            assert_eq!(pairs.len(), racks * (racks - 1), "{racks} racks");
        }
    }

    /// In each slot, every set of at most half of the racks has circuits to at least three other
    /// racks. Tested by brute force over all sets.
    #[test]
    fn union_of_live_rotors_is_an_expander() {
        let racks = 16;
        let opera = Opera { matchings: Opera::factors(racks), turn: 0 };
        for next in unions(&opera, racks) {
            let masks: Vec<u32> =
                next.iter().map(|to| to.iter().fold(0, |mask, rack| mask | 1 << rack)).collect();
            for set in 1u32..1 << racks {
                if set.count_ones() > racks as u32 / 2 {
                    continue;
                }
                let reached =
                    (0..racks).filter(|rack| set >> rack & 1 == 1).fold(0, |to, rack| to | masks[rack]);
                let others = (reached & !set).count_ones();
                assert!(others >= 3, "{set:b} leads to {others} others");
            }
        }
    }

    #[test]
    fn few_hops_reach_every_rack_in_each_slot() {
        for (racks, hops) in [(16, 4), (64, 6), (128, 7)] {
            let opera = Opera { matchings: Opera::factors(racks), turn: 0 };
            for next in unions(&opera, racks) {
                for source in 0..racks {
                    let mut reached = BTreeSet::from([source]);
                    for _ in 0..hops {
                        let further: Vec<usize> =
                            reached.iter().flat_map(|rack| next[*rack].clone()).collect();
                        reached.extend(further);
                    }
                    assert_eq!(reached.len(), racks, "{racks} racks, from {source} in {hops} hops");
                }
            }
        }
    }

    #[test]
    fn night_stops_only_one_rotors_share_of_the_rate() {
        let demand = crate::generate::all_to_all(8, ByteCount::new(1_000_000_000)).unwrap();
        let served = Opera::default().plan(&demand, &Timing::ETALON).served.as_u64();
        // Ten nights of a quarter of the rate: 2 ms minus 10 * 20 us / 4, of eight racks at 80
        // Gbit/s.
        assert_eq!(served, 8 * 10_000 * 1_950);
    }
}
