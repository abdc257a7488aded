//! A scheduler in which racks negotiate matchings among themselves.

use super::Scheduler;
use crate::{Day, Demand, Matching, Schedule, Timing};

/// Days from a request to its circuit: one for the grant, one for the acceptance.
const DELAY_DAYS: usize = 2;

/// Racks request circuits, destinations grant one request each, and sources accept one grant each,
/// day after day.
///
/// A request states only that there is demand. Grants and acceptances are chosen round robin, in a
/// single round, so some ports stay dark. A negotiated matching is in place two days later.
/// `served` counts this week's demand, so the first two days carry no bytes.
/// Needs: slots so short that all racks exchange messages in each. Here the messages use the packet
/// network: with nights of 20 us, an exchange among 100 or more racks over circuits would take a
/// week.
/// Source: Liang et al., *NegotiaToR: towards a simple yet effective on-demand reconfigurable
/// datacenter network*, SIGCOMM 2024. Differs: each rack has one port; no data is sent with the
/// messages; the delay of two days is our interpretation of the paper.
#[derive(Clone, Debug, Default)]
pub struct Negotiator {
    /// Source with which each destination's round robin starts.
    grants: Vec<usize>,
    /// Destination with which each source's round robin starts.
    accepts: Vec<usize>,
}

impl Scheduler for Negotiator {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        let racks = demand.racks();
        if self.grants.len() != racks {
            // The round robins start at different racks, so that destinations do not grant the same
            // source.
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
    /// Runs one round of requests, grants and acceptances for pairs with remaining demand.
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
    fn negotiated_circuits_join_only_pairs_with_demand() {
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
