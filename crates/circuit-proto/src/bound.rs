//! An upper bound of the demand that any schedule of one week can serve.
//!
//! A pair that is served at all takes at least a night and a shortest day of both its ports. The
//! cost of a pair is the time that it takes of its ports, night included, divided by the bytes that
//! it can send in one week. These costs are taken as constants. Demand against the week of each
//! port is then a transportation problem, whose optimum is the bound. The bound ignores that all
//! ports reconfigure together, so it can exceed the best schedule.

use crate::{Demand, Timing};
use anabranch_units::{ByteCount, Duration};

/// Resolution of a gain: gains are rounded up to 1/16,384, so the bound is loose by at most that
/// part of the ports' time.
const STEPS: u64 = 1 << 14;

/// Upper bound of the bytes that a schedule of one week serves; at most the total of `demand`.
///
/// Cost: O(racks^2) for each of up to 16,384 prices of the ports that have time left.
/// Source: the primal-dual method for transportation problems (Ford and Fulkerson, *Flows in
/// Networks*, 1962).
pub fn served_max(demand: &Demand, timing: &Timing) -> ByteCount {
    let mut problem = Transport::new(demand, timing);
    problem.solve();
    let served = timing.carried(Duration::from_ps(problem.dual_ps())).as_u64();
    // One byte for each pair compensates for the rounding of times.
    ByteCount::new(served.saturating_add((problem.racks * problem.racks) as u64)).min(demand.total())
}

/// Upper bound of the bytes that ports of the circuits' rate carry in one week; at most the total
/// of `demand`.
///
/// Each byte takes its sending time at its first and at its last port, and there are no nights. So
/// the bound also holds for several hops, for several switches that share the rate, and for the
/// average week of a longer period.
/// Cost: as [`served_max`].
pub fn ports_max(demand: &Demand, timing: &Timing) -> ByteCount {
    served_max(demand, &Timing { night: Duration::ZERO, day_min: Duration::from_ps(1), ..*timing })
}

/// Transportation problem: time of source ports to time of destination ports, over pairs of limited
/// time.
struct Transport {
    racks: usize,
    /// Time of each port, in picoseconds.
    week: u64,
    /// Time in picoseconds for which a pair's demand occupies each of its two ports, by pair.
    capacity: Vec<u64>,
    /// Served time per time of the ports, in units of 1 / [`STEPS`], by pair.
    gain: Vec<u64>,
    /// Time of a pair's ports in use, in picoseconds, by pair.
    used: Vec<u64>,
    source_free: Vec<u64>,
    destination_free: Vec<u64>,
    /// Price of each source's time, in units of 1 / [`STEPS`].
    source_price: Vec<u64>,
    /// Price of each destination's time, in units of 1 / [`STEPS`].
    destination_price: Vec<u64>,
    source_reached: Vec<bool>,
    destination_reached: Vec<bool>,
}

impl Transport {
    fn new(demand: &Demand, timing: &Timing) -> Self {
        let racks = demand.racks();
        let (week, night, day_min) = (timing.week.as_ps(), timing.night.as_ps(), timing.day_min.as_ps());
        let useful: Vec<u64> =
            demand.circuit_ps(timing).iter().map(|time| (*time).min(week - night)).collect();
        let cost = |time: &u64| if *time == 0 { 0 } else { (*time).max(day_min) + night };
        let capacity: Vec<u64> = useful.iter().map(cost).collect();
        let gain = |(time, cost): (&u64, &u64)| {
            let steps = u128::from(*time) * u128::from(STEPS);
            u64::try_from(steps.div_ceil(u128::from((*cost).max(1)))).expect("a gain is one at most")
        };
        Self {
            racks,
            week,
            gain: useful.iter().zip(&capacity).map(gain).collect(),
            used: vec![0; capacity.len()],
            capacity,
            source_free: vec![week; racks],
            destination_free: vec![week; racks],
            source_price: vec![STEPS; racks],
            destination_price: vec![0; racks],
            source_reached: vec![false; racks],
            destination_reached: vec![false; racks],
        }
    }

    /// Lowers the price of the sources that have time left, from one to zero, and assigns their
    /// time at each price.
    ///
    /// A pair whose gain exceeds the sum of its ports' prices is used in full; a pair whose gain is
    /// lower is not used.
    fn solve(&mut self) {
        loop {
            while self.pass() {}
            let Some(price) = (0..self.racks)
                .filter(|source| self.source_free[*source] > 0)
                .map(|source| self.source_price[source])
                .max()
            else {
                return;
            };
            let step = self.slack().unwrap_or(price).min(price);
            if step == 0 {
                return;
            }
            for port in 0..self.racks {
                if self.source_reached[port] {
                    self.source_price[port] -= step;
                }
                if self.destination_reached[port] {
                    self.destination_price[port] += step;
                }
            }
        }
    }

    /// Assigns time along paths of pairs whose gain equals their ports' prices. Returns false if no
    /// path ends at a destination with time left; all ports that a source with time left can reach
    /// are then marked.
    fn pass(&mut self) -> bool {
        self.source_reached.fill(false);
        self.destination_reached.fill(false);
        let mut moved = false;
        for source in 0..self.racks {
            while self.source_free[source] > 0 && !self.source_reached[source] {
                let amount = self.push(source, self.source_free[source]);
                if amount > 0 {
                    self.source_free[source] -= amount;
                    moved = true;
                }
            }
        }
        moved
    }

    /// Assigns up to `most` of a source's time to a destination that has time left. Returns the
    /// assigned time.
    fn push(&mut self, source: usize, most: u64) -> u64 {
        self.source_reached[source] = true;
        for destination in 0..self.racks {
            let pair = source * self.racks + destination;
            let room = (self.capacity[pair] - self.used[pair]).min(most);
            let price = self.source_price[source] + self.destination_price[destination];
            if room == 0 || self.destination_reached[destination] || self.gain[pair] != price {
                continue;
            }
            let amount = self.pull(destination, room);
            if amount > 0 {
                self.used[pair] += amount;
                self.source_reached[source] = false;
                return amount;
            }
        }
        0
    }

    /// Takes up to `most` of a destination's time. If none is left, another source gives up
    /// time there and takes time of another destination instead.
    fn pull(&mut self, destination: usize, most: u64) -> u64 {
        if self.destination_free[destination] > 0 {
            let amount = most.min(self.destination_free[destination]);
            self.destination_free[destination] -= amount;
            return amount;
        }
        self.destination_reached[destination] = true;
        for source in 0..self.racks {
            let pair = source * self.racks + destination;
            let price = self.source_price[source] + self.destination_price[destination];
            if self.used[pair] == 0 || self.source_reached[source] || self.gain[pair] != price {
                continue;
            }
            let amount = self.push(source, most.min(self.used[pair]));
            if amount > 0 {
                self.used[pair] -= amount;
                self.destination_reached[destination] = false;
                return amount;
            }
        }
        0
    }

    /// The smallest change of prices with which a reached port reaches another port.
    fn slack(&self) -> Option<u64> {
        let reached = |source: usize, destination: usize| {
            (self.source_reached[source], self.destination_reached[destination])
        };
        let slack = |pair: usize| {
            let (source, destination) = (pair / self.racks, pair % self.racks);
            let price = self.source_price[source] + self.destination_price[destination];
            match reached(source, destination) {
                (true, false) if self.used[pair] < self.capacity[pair] => Some(price - self.gain[pair]),
                (false, true) if self.used[pair] > 0 => Some(self.gain[pair] - price),
                _ => None,
            }
        };
        (0..self.gain.len()).filter_map(slack).min()
    }

    /// Value of the dual problem at these prices, in picoseconds of circuits. It is an upper bound
    /// at any prices.
    fn dual_ps(&self) -> u64 {
        let ports = self.source_price.iter().chain(&self.destination_price);
        let ports: u128 = ports.map(|price| u128::from(*price) * u128::from(self.week)).sum();
        let pairs = self.gain.iter().zip(&self.capacity).enumerate().map(|(pair, (gain, capacity))| {
            let price = self.source_price[pair / self.racks] + self.destination_price[pair % self.racks];
            u128::from(*capacity) * u128::from(gain.saturating_sub(price))
        });
        let value = (ports + pairs.sum::<u128>()).div_ceil(u128::from(STEPS));
        u64::try_from(value).expect("1,024 weeks of an hour fit 63 bits of picoseconds")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, generate};
    use anabranch_units::Seed;
    use proptest::prelude::*;

    /// The optimum of the transportation problem, computed by a library.
    fn oracle_transport(problem: &Transport) -> f64 {
        use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem};
        let mut program = Problem::new(OptimizationDirection::Maximize);
        let variables: Vec<_> = problem
            .gain
            .iter()
            .zip(&problem.capacity)
            .map(|(gain, capacity)| {
                program.add_var(*gain as f64, (0.0, *capacity as f64 / problem.week as f64))
            })
            .collect();
        for port in 0..problem.racks {
            let (mut row, mut column) = (LinearExpr::empty(), LinearExpr::empty());
            for other in 0..problem.racks {
                row.add(variables[port * problem.racks + other], 1.0);
                column.add(variables[other * problem.racks + port], 1.0);
            }
            program.add_constraint(row, ComparisonOp::Le, 1.0);
            program.add_constraint(column, ComparisonOp::Le, 1.0);
        }
        let outcome = program.solve().expect("zero is feasible");
        outcome.into_solution().expect("no limit of time").objective() * problem.week as f64 / STEPS as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn schedulers_serve_no_more_than_served_max(
            racks in 2usize..12, load in 1u64..60_000_000, density in 50_000u32..1_000_000, seed in any::<u64>()
        ) {
            let timing = Timing::ETALON;
            let demand = generate::random(racks, ByteCount::new(load), density, Seed::new(seed)).unwrap();
            let (week, ports) = (served_max(&demand, &timing), ports_max(&demand, &timing));
            for kind in Kind::ALL {
                let plan = kind.scheduler().plan(&demand, &timing);
                prop_assert_eq!(plan.schedule.check(racks, &timing), Ok(()), "{}", kind.name());
                let bound = if kind.is_one_week() { week } else { ports };
                prop_assert!(plan.served <= bound, "{}", kind.name());
                prop_assert!(plan.schedule.served(&demand, &timing) <= week, "{}", kind.name());
            }
        }

        #[test]
        fn bound_is_the_linear_program_optimum(
            racks in 2usize..8, load in 1_000_000u64..60_000_000, density in 200_000u32..1_000_000, seed in any::<u64>()
        ) {
            let demand = generate::random(racks, ByteCount::new(load), density, Seed::new(seed)).unwrap();
            let mut problem = Transport::new(&demand, &Timing::ETALON);
            let optimum = oracle_transport(&problem);
            problem.solve();
            let bound = problem.dual_ps() as f64;
            prop_assert!((bound - optimum).abs() <= 1.0 + optimum * 1e-6, "{bound}, not {optimum}");
        }
    }

    #[test]
    fn ring_is_bounded_by_its_demand() {
        let demand = generate::ring(8, ByteCount::new(1_000_000)).unwrap();
        assert_eq!(served_max(&demand, &Timing::ETALON), demand.total());
    }

    #[test]
    fn full_ports_are_bounded_by_a_week_without_nights() {
        let demand = generate::ring(8, ByteCount::new(1_000_000_000)).unwrap();
        let bound = served_max(&demand, &Timing::ETALON).as_u64();
        let carried = 8 * 19_800_000;
        assert!((carried..carried + carried / STEPS).contains(&bound), "{bound}");
    }
}
