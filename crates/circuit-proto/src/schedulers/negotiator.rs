//! Matchings that racks negotiate among themselves.

use super::Scheduler;
use crate::{Day, Demand, Matching, Schedule, Timing};

/// Days between a request and the day that it leads to: grants take one, acceptance the next.
const DELAY_DAYS: usize = 2;

/// Racks request circuits, destinations grant one each, and sources accept one each, day after day.
///
/// A request says only that there is demand. Grants and acceptance go round by rings, without
/// repetition, so some ports stay dark. A negotiated matching stands two days later.
/// `served` counts this week's demand, so its first two days carry nothing.
/// Needs: slots so short that all racks can tell each other in each. Here the messages go over the
/// packet network: with nights of 20 us an exchange among all racks by circuits would take a week
/// from 100 racks on.
/// Source: Liang et al., *NegotiaToR: towards a simple yet effective on-demand reconfigurable
/// datacenter network*, SIGCOMM 2024. Differs: one port a rack; no data beside the messages; the
/// delay of two days is our reading.
#[derive(Clone, Debug, Default)]
pub struct Negotiator {
    /// Source that each destination looks at first.
    grants: Vec<usize>,
    /// Destination that each source looks at first.
    accepts: Vec<usize>,
}

impl Scheduler for Negotiator {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        let racks = demand.racks();
        if self.grants.len() != racks {
            // Rings that begin apart do not grant the same source.
            self.grants = (0..racks).map(|rack| (rack + 1) % racks).collect();
            self.accepts = self.grants.clone();
        }
        let mut open = demand.circuit_ps(timing);
        let count = (timing.week.as_ps() / (timing.day_min + timing.night).as_ps()) as usize;
        let mut matchings = vec![Matching::of_ports(vec![None; racks]); DELAY_DAYS];
        for day in 0..count.saturating_sub(DELAY_DAYS) {
            matchings.push(self.negotiate(racks, &open));
            for (source, destination) in matchings[day].circuits() {
                let pair = &mut open[source * racks + destination];
                *pair = pair.saturating_sub(timing.day_min.as_ps());
            }
        }
        matchings.truncate(count);
        let day = |matching| Day { matching, length: timing.day_min };
        Schedule { days: matchings.into_iter().map(day).collect() }
    }
}

impl Negotiator {
    /// One round of requests, grants and acceptance, for pairs with open demand.
    fn negotiate(&mut self, racks: usize, open: &[u64]) -> Matching {
        let first = |from: usize, holds: &dyn Fn(usize) -> bool| {
            (0..racks).map(|step| (from + step) % racks).find(|rack| holds(*rack))
        };
        let mut granted = vec![None; racks];
        for (destination, ring) in self.grants.iter_mut().enumerate() {
            granted[destination] = first(*ring, &|source| open[source * racks + destination] > 0);
            if let Some(source) = granted[destination] {
                *ring = (source + 1) % racks;
            }
        }
        let mut accepted = vec![None; racks];
        for (source, ring) in self.accepts.iter_mut().enumerate() {
            let destination = first(*ring, &|destination| granted[destination] == Some(source));
            if let Some(destination) = destination {
                *ring = (destination + 1) % racks;
                accepted[source] = Some(crate::matching::port(destination));
            }
        }
        Matching::of_ports(accepted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use anabranch_units::ByteCount;

    #[test]
    fn demand_waits_for_two_days() {
        let demand = generate::ring(8, ByteCount::new(100_000_000)).unwrap();
        let schedule = Negotiator::default().schedule(&demand, &Timing::ETALON);
        let circuits: Vec<usize> = schedule.days.iter().map(|day| day.matching.circuits().count()).collect();
        assert_eq!(circuits, [0, 0, 8, 8, 8, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn circuits_join_pairs_with_demand_only() {
        let demand =
            generate::random(16, ByteCount::new(4_000_000), 300_000, anabranch_units::Seed::new(3)).unwrap();
        let schedule = Negotiator::default().schedule(&demand, &Timing::ETALON);
        let circuits = schedule.days.iter().flat_map(|day| day.matching.circuits());
        let mut count = 0;
        for (source, destination) in circuits {
            assert!(demand.between(source, destination) > ByteCount::new(0));
            count += 1;
        }
        assert!(count > 16, "{count} circuits");
    }
}
