//! A rotor whose racks relay traffic for each other.

use super::{Plan, Rotor, Scheduler};
use crate::{Demand, Schedule, Timing};
use anabranch_units::ByteCount;

/// The days of [`Rotor`], with traffic in one hop or two (RotorLB).
///
/// On each day a rack sends over its circuit, in this order: bytes that it stored for the other
/// rack, its own bytes for that rack, and bytes for third racks that the other rack accepts. The
/// sender offers all its bytes for third racks. The receiver accepts, in equal shares, as much as
/// its next circuit to each third rack has room for.
/// `served` counts bytes that are at their destinations by the end of the week. Stored bytes do not
/// count.
/// Needs: storage in each rack, and an exchange of offers at the beginning of each day.
/// Source: Mellette et al., *RotorNet: a scalable, low-complexity, optical datacenter network*,
/// SIGCOMM 2017, §4. Differs: the exchange takes no time.
#[derive(Clone, Copy, Debug, Default)]
pub struct RotorLb {
    rotor: Rotor,
}

impl Scheduler for RotorLb {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        self.rotor.schedule(demand, timing)
    }

    fn plan(&mut self, demand: &Demand, timing: &Timing) -> Plan {
        let schedule = self.schedule(demand, timing);
        let mut queues = Queues::new(demand);
        for day in &schedule.days {
            queues.run(day.matching.circuits().collect(), timing.carried(day.length).as_u64());
        }
        Plan { schedule, served: ByteCount::new(queues.delivered) }
    }
}

/// Bytes in the racks' queues.
struct Queues {
    racks: usize,
    /// A rack's own bytes, by rack and destination.
    local: Vec<u64>,
    /// Bytes of other racks, by storing rack and destination.
    stored: Vec<u64>,
    /// Bytes that have arrived at their destinations.
    delivered: u64,
}

impl Queues {
    fn new(demand: &Demand) -> Self {
        let racks = demand.racks();
        let pairs = (0..racks * racks).map(|pair| demand.between(pair / racks, pair % racks).as_u64());
        Self { racks, local: pairs.collect(), stored: vec![0; racks * racks], delivered: 0 }
    }

    /// Carries up to `capacity` bytes over each circuit of one day.
    fn run(&mut self, circuits: Vec<(usize, usize)>, capacity: u64) {
        let spare: Vec<u64> = circuits
            .iter()
            .map(|(from, to)| {
                let pair = from * self.racks + to;
                let second_hop = capacity.min(self.stored[pair]);
                self.stored[pair] -= second_hop;
                let direct = (capacity - second_hop).min(self.local[pair]);
                self.local[pair] -= direct;
                self.delivered += second_hop + direct;
                capacity - second_hop - direct
            })
            .collect();
        for ((from, to), spare) in circuits.into_iter().zip(spare) {
            self.relay(from, to, spare, capacity);
        }
    }

    /// Moves up to `spare` bytes for third racks from `from` to `to`, which later has a circuit of
    /// `capacity` to each third rack.
    fn relay(&mut self, from: usize, to: usize, spare: u64, capacity: u64) {
        let mut accepted: Vec<(u64, usize)> = (0..self.racks)
            .filter(|third| *third != from && *third != to)
            .map(|third| {
                let queued = self.local[to * self.racks + third] + self.stored[to * self.racks + third];
                (self.local[from * self.racks + third].min(capacity.saturating_sub(queued)), third)
            })
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        accepted.sort_unstable();
        let (mut left, mut receivers) = (spare, accepted.len() as u64);
        for (bytes, third) in accepted {
            let moved = bytes.min(left / receivers);
            self.local[from * self.racks + third] -= moved;
            self.stored[to * self.racks + third] += moved;
            left -= moved;
            receivers -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Matching, generate};
    use anabranch_units::Seed;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_queued_stored_or_delivered(
            racks in 3usize..10, load in 1u64..1_000, capacity in 1u64..500, seed in any::<u64>()
        ) {
            let demand = generate::random(racks, ByteCount::new(load), 600_000, Seed::new(seed)).unwrap();
            let mut queues = Queues::new(&demand);
            for step in (1..racks).cycle().take(3 * racks) {
                let before = queues.delivered;
                queues.run(Matching::shift(racks, step).circuits().collect(), capacity);
                prop_assert!(queues.delivered - before <= capacity * racks as u64);
                let queued: u64 = queues.local.iter().chain(&queues.stored).sum();
                prop_assert_eq!(queued + queues.delivered, demand.total().as_u64());
                // A rack stores at most the bytes that its next circuit carries.
                prop_assert!(queues.stored.iter().all(|bytes| *bytes <= capacity));
            }
        }
    }

    /// RotorNet's reason for two hops: all circuits carry demand that each rack has for only one
    /// destination.
    #[test]
    fn two_hops_use_circuits_of_idle_pairs() {
        let demand = generate::ring(8, ByteCount::new(16_000_000)).unwrap();
        let timing = Timing { week: anabranch_units::Duration::from_ms(28), ..Timing::ETALON };
        let direct = Rotor::default().plan(&demand, &timing).served.as_u64();
        assert_eq!(direct, 128_000_000);
        let short = Timing { week: anabranch_units::Duration::from_us(2_800), ..Timing::ETALON };
        let direct = Rotor::default().plan(&demand, &short).served.as_u64();
        let relayed = RotorLb::default().plan(&demand, &short).served.as_u64();
        assert_eq!(direct, 2 * 8 * 1_800_000);
        assert!(relayed >= 3 * direct, "{relayed} after {direct}");
    }
}
