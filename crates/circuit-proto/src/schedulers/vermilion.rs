//! A scheduler of equal slots by demand, in a period longer than a week.

use super::solstice::stuff;
use super::{Plan, Scheduler};
use crate::matching::Bipartite;
use crate::sums::Sums;
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::Duration;

/// `k` in the bound (k - 1) / k: of every `k` slots, k - 1 follow demand.
const SLOTS: u64 = 3;

/// Slots of equal length in a repeating period: (k - 1) n slots follow demand, and each pair of
/// racks has one more slot.
///
/// Demand is scaled so that the fullest port has (k - 1) n slots, and is rounded down. The
/// additional slot of each pair compensates for the rounding. Let d be the share of a slot that is
/// night. Then an average week carries at least (k - 1) / k (1 - d) of any demand that the ports
/// could carry, in one hop.
/// A schedule has the next slots of the period, which continues from week to week. `served` counts
/// an average week of the period: a period takes some 3 n slots, more than a week can hold.
/// Needs: demand that stays the same for a period, or slots that are short relative to a week.
/// Source: Addanki et al., *Vermilion: a traffic-aware reconfigurable optical interconnect with
/// formal throughput guarantees*, arXiv 2504.09892, 2025. Differs: pairs with the largest
/// remainders are rounded up while their ports have slots; the paper rounds rows and columns
/// exactly.
#[derive(Clone, Debug, Default)]
pub struct Vermilion {
    /// Demand for which the period was computed.
    demand: Option<Demand>,
    /// Matching of each slot of the period.
    period: Vec<Matching>,
    /// Index of the next slot.
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

/// Computes the matching of each slot of a period.
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

/// Adds a slot to the pairs with the largest remainders, while their ports have fewer than `degree`
/// slots.
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

/// Maximum number of bytes that a port sends or receives.
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

        /// The theorem in the paper's abstract, for demand of any load. The guaranteed share is
        /// scaled down if a port's load exceeds its capacity.
        #[test]
        fn average_week_serves_the_guaranteed_share(
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
            // Each pair's bytes are rounded down, by less than one byte.
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
