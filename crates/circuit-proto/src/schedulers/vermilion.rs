//! Fixed slots by demand, in a period longer than a week.

use super::solstice::stuff;
use super::{Plan, Scheduler};
use crate::matching::Bipartite;
use crate::sums::Sums;
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::Duration;

/// `k` of the bound (k - 1) / k: of each `k` slots, all but one follow demand.
const SLOTS: u64 = 3;

/// Slots of equal length in a period that repeats: (k - 1) n of them by demand, and one for each
/// pair of racks.
///
/// Demand is scaled to (k - 1) n slots of the fullest port and rounded down; the slot that each
/// pair has without regard to demand makes good what the rounding took. So an average week carries
/// at least (k - 1) / k (1 - d) of any demand that ports could carry, in one hop, where d is the
/// part of a slot that is night.
/// A schedule has the next slots of the period, which goes on from week to week. `served` is an
/// average week of the period: a period takes some 3 n slots, more than a week of a few nights and
/// days holds.
/// Needs: demand that stays for a period, or slots that are short against a week.
/// Source: Addanki et al., *Vermilion: a traffic-aware reconfigurable optical interconnect with
/// formal throughput guarantees*, arXiv 2504.09892, 2025. Differs: pairs with the largest
/// remainders are rounded up while their ports have slots, where the paper rounds rows and columns
/// exactly.
#[derive(Clone, Debug, Default)]
pub struct Vermilion {
    /// Demand of the period.
    demand: Option<Demand>,
    /// Matching of each slot.
    period: Vec<Matching>,
    /// Next slot.
    slot: usize,
}

impl Vermilion {
    fn prepare(&mut self, demand: &Demand) {
        if self.demand.as_ref() != Some(demand) {
            *self = Self { period: period(demand), demand: Some(demand.clone()), slot: 0 };
        }
    }
}

impl Scheduler for Vermilion {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        self.prepare(demand);
        let slots = timing.week.as_ps() / (timing.day_min + timing.night).as_ps();
        let mut next = || {
            let matching = self.period[self.slot].clone();
            self.slot = (self.slot + 1) % self.period.len();
            Day { matching, length: timing.day_min }
        };
        Schedule { days: (0..slots).map(|_| next()).collect() }
    }

    fn plan(&mut self, demand: &Demand, timing: &Timing) -> Plan {
        let schedule = self.schedule(demand, timing);
        let racks = demand.racks();
        let mut slots = vec![0u128; racks * racks];
        for matching in &self.period {
            for (source, destination) in matching.circuits() {
                slots[source * racks + destination] += 1;
            }
        }
        let slot = u128::from((timing.day_min + timing.night).as_ps());
        let served = slots.iter().enumerate().map(|(pair, slots)| {
            let time = slots * u128::from(timing.day_min.as_ps()) * u128::from(timing.week.as_ps())
                / (slot * self.period.len() as u128);
            let time = u64::try_from(time).expect("a part of a week");
            timing.carried(Duration::from_ps(time)).min(demand.between(pair / racks, pair % racks))
        });
        Plan { served: served.sum(), schedule }
    }
}

/// Matching of each slot of a period.
fn period(demand: &Demand) -> Vec<Matching> {
    let racks = demand.racks();
    let bytes = demand.entries();
    let fullest = fullest_port(demand);
    let degree = (SLOTS - 1) * racks as u64;
    let scaled = |bytes: &u64| {
        let slots = u128::from(degree) * u128::from(*bytes) / u128::from(fullest.max(1));
        u64::try_from(slots).expect("a pair has no more bytes than its ports")
    };
    let mut slots: Vec<u64> = bytes.iter().map(scaled).collect();
    round_up(racks, bytes, fullest, degree, &mut slots);
    stuff(racks, &mut slots, degree);
    let mut period = Vec::new();
    let mut graph = Bipartite::new(racks);
    for (pair, _) in slots.iter().enumerate().filter(|(_, slots)| **slots > 0) {
        graph.insert(pair / racks, pair % racks);
    }
    while (period.len() as u64) < degree {
        assert!(graph.grow(), "all ports have the same number of slots, so a perfect matching exists");
        let destinations: Vec<usize> = graph.destinations().collect();
        for (source, destination) in destinations.iter().enumerate() {
            let left = &mut slots[source * racks + destination];
            *left -= 1;
            if *left == 0 {
                graph.remove(source, *destination);
            }
        }
        period.push(Matching::without_loops(destinations.into_iter()));
    }
    period.extend((1..racks).map(|step| Matching::shift(racks, step)));
    period
}

/// Adds a slot to the pairs that rounding down took most of, as far as their ports have less than
/// `degree`.
fn round_up(racks: usize, bytes: &[u64], fullest: u64, degree: u64, slots: &mut [u64]) {
    let remainder = |pair: &usize| u128::from(degree) * u128::from(bytes[*pair]) % u128::from(fullest.max(1));
    let mut pairs: Vec<usize> = (0..bytes.len()).filter(|pair| remainder(pair) > 0).collect();
    pairs.sort_by_key(|pair| std::cmp::Reverse(remainder(pair)));
    let mut sums = Sums::of(racks, slots.iter().copied());
    for pair in pairs {
        let (row, column) = (&mut sums.rows[pair / racks], &mut sums.columns[pair % racks]);
        if *row < degree && *column < degree {
            slots[pair] += 1;
            *row += 1;
            *column += 1;
        }
    }
}

/// Most bytes that a port sends or receives.
fn fullest_port(demand: &Demand) -> u64 {
    Sums::of(demand.racks(), demand.entries().iter().copied()).largest()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use anabranch_units::{ByteCount, Seed};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The theorem of the paper's abstract, for demand of any load: a port's load above its
        /// capacity scales it down.
        #[test]
        fn average_week_keeps_the_bound(
            racks in 2usize..24, load in 1_000u64..60_000_000, density in 50_000u32..1_000_000,
            night_us in 1u64..40, day_us in 40u64..400, seed in any::<u64>()
        ) {
            let demand = generate::random(racks, ByteCount::new(load), density, Seed::new(seed)).unwrap();
            let timing = Timing {
                night: Duration::from_us(night_us), day_min: Duration::from_us(day_us), ..Timing::ETALON
            };
            let served = Vermilion::default().plan(&demand, &timing).served.as_u64();
            let k = SLOTS as f64;
            let dark = night_us as f64 / (night_us + day_us) as f64;
            let capacity = timing.carried(timing.week).as_u64() as f64;
            let load = fullest_port(&demand) as f64 / capacity;
            let share = ((k - 1.0) / k * (1.0 - dark) / load).min(1.0);
            let total = demand.total().as_u64() as f64;
            // Each pair's bytes are rounded down.
            let least = share * total * (1.0 - 1e-12) - (racks * racks) as f64;
            prop_assert!(served as f64 >= least, "{served} of {total}, at least {least}");
        }
    }

    #[test]
    fn period_repeats_from_week_to_week() {
        let demand = generate::skewed(8, ByteCount::new(16_000_000), 2, 3, Seed::new(4)).unwrap();
        let mut vermilion = Vermilion::default();
        let slots = (SLOTS as usize) * 8 - 1;
        let mut days = Vec::new();
        while days.len() < 2 * slots {
            days.extend(vermilion.schedule(&demand, &Timing::ETALON).days);
        }
        assert_eq!(days[..slots], days[slots..2 * slots]);
        let first: Vec<_> = days[..slots].iter().map(|day| day.matching.clone()).collect();
        assert_eq!(first, period(&demand));
    }
}
