//! Known answers of the schedulers, and comparisons with brute force and between schedulers.

use super::*;
use crate::{Matching, bound, generate};
use anabranch_units::{BitRate, ByteCount, Duration, Seed};
use proptest::prelude::*;

fn served(kind: Kind, demand: &Demand, timing: &Timing) -> u64 {
    let plan = kind.scheduler().plan(demand, timing);
    assert_eq!(plan.schedule.check(demand.racks(), timing), Ok(()), "{}", kind.name());
    plan.served.as_u64()
}

#[test]
fn ring_needs_one_day() {
    let demand = generate::ring(16, ByteCount::new(16_000_000)).unwrap();
    for kind in [Kind::Solstice, Kind::Eclipse, Kind::Refit] {
        let schedule = kind.scheduler().schedule(&demand, &Timing::ETALON);
        assert_eq!(schedule.days.len(), 1, "{}", kind.name());
        assert_eq!(schedule.served(&demand, &Timing::ETALON), demand.total(), "{}", kind.name());
    }
}

/// The known weakness of Solstice: no entry is as long as the shortest day, so one matching lasts
/// all week.
#[test]
fn solstice_serves_one_pair_per_rack_in_alltoall() {
    for racks in [16, 64] {
        let demand = generate::all_to_all(racks, ByteCount::new(16_000_000)).unwrap();
        let share = served(Kind::Solstice, &demand, &Timing::ETALON) as f64 / demand.total().as_u64() as f64;
        assert!((share - 1.0 / (racks as f64 - 1.0)).abs() < 1e-6, "{share} of {racks} racks");
        let refit = served(Kind::Refit, &demand, &Timing::ETALON) as f64;
        assert!(refit >= 0.99 * bound::served_max(&demand, &Timing::ETALON).as_u64() as f64, "{racks} racks");
    }
}

#[test]
fn strobe_joins_each_pair_for_equal_times() {
    let demand = Demand::new(8).unwrap();
    let schedule = Strobe.schedule(&demand, &Timing::ETALON);
    let steps: Vec<_> = schedule.days.iter().map(|day| day.matching.destination(0)).collect();
    assert_eq!(steps, (1..8).map(Some).collect::<Vec<_>>());
    let lengths: Vec<_> = schedule.days.iter().map(|day| day.length).collect();
    assert!(lengths.windows(2).all(|two| two[0] == two[1]));
}

#[test]
fn rotor_continues_where_the_previous_week_ended() {
    let demand = Demand::new(4).unwrap();
    let mut rotor = Rotor::default();
    let mut steps = Vec::new();
    for _ in 0..3 {
        let schedule = rotor.schedule(&demand, &Timing::ETALON);
        steps.extend(schedule.days.iter().filter_map(|day| day.matching.destination(0)));
    }
    let expected: Vec<usize> = (0..30).map(|day| day % 3 + 1).collect();
    assert_eq!(steps, expected);
}

#[test]
fn fixed_schedule_is_checked_at_construction() {
    let timing = Timing::ETALON;
    let day = crate::Day { matching: Matching::shift(4, 1), length: Duration::from_us(1_000) };
    let schedule = Schedule { days: vec![day.clone()] };
    let mut fixed = Fixed::new(schedule.clone(), 4, &timing).unwrap();
    assert_eq!(fixed.schedule(&Demand::new(4).unwrap(), &timing), schedule);
    assert!(Fixed::new(Schedule { days: vec![day; 2] }, 4, &timing).is_err());
}

/// Refit against Eclipse on drawn demand: Refit serves more on average, and never much less.
#[test]
fn refit_serves_more_than_eclipse_on_average() {
    let timing = Timing::ETALON;
    let mut random = Seed::new(9).stream("cases", 0);
    let mut ratios = Vec::new();
    for case in 0..100 {
        let racks = 8 + 8 * random.below(3) as usize;
        let bytes = ByteCount::new(2_000_000 << random.below(5));
        let seed = Seed::new(case);
        let demand = if case % 2 == 0 {
            generate::random(racks, bytes, 100_000 + random.below(900_000) as u32, seed)
        } else {
            generate::skewed(racks, bytes, 1 + random.below(5) as usize, 1 + random.below(14) as usize, seed)
        };
        let demand = demand.unwrap();
        let eclipse = served(Kind::Eclipse, &demand, &timing) as f64;
        ratios.push(served(Kind::Refit, &demand, &timing) as f64 / eclipse);
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(mean >= 1.005 && least >= 0.995, "mean {mean}, least {least}");
}

/// A switch whose times are small numbers, so that brute force can try every schedule of whole
/// units.
const SMALL: Timing = Timing {
    circuit_rate: BitRate::bps(8),
    night: Duration::from_secs(1),
    day_min: Duration::from_secs(2),
    week: Duration::from_secs(11),
};

/// Maximum bytes that days of whole seconds serve, over all matchings of three racks.
fn oracle_served(demand: &Demand) -> u64 {
    fn search(demand: &Demand, circuits: &[Vec<Option<u16>>], left: u64, schedule: &mut Schedule) -> u64 {
        let mut best = schedule.served(demand, &SMALL).as_u64();
        for length in 2..left {
            for matching in circuits {
                let matching = Matching::new(matching.clone()).expect("a matching");
                schedule.days.push(crate::Day { matching, length: Duration::from_secs(length) });
                best = best.max(search(demand, circuits, left - length - 1, schedule));
                schedule.days.pop();
            }
        }
        best
    }
    let circuits = [
        vec![Some(1), Some(2), Some(0)],
        vec![Some(2), Some(0), Some(1)],
        vec![Some(1), Some(0), None],
        vec![Some(2), None, Some(0)],
        vec![None, Some(2), Some(1)],
    ];
    search(demand, &circuits, 11, &mut Schedule::default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Eclipse's paper guarantees half of the optimum.
    #[test]
    fn eclipse_and_refit_serve_half_of_the_optimum(
        entries in prop::collection::vec(0u64..12, 6)
    ) {
        let mut demand = Demand::new(3).unwrap();
        let pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
        for ((from, to), bytes) in pairs.into_iter().zip(entries) {
            demand.add(from, to, ByteCount::new(bytes)).unwrap();
        }
        let best = oracle_served(&demand);
        prop_assert!(best <= bound::served_max(&demand, &SMALL).as_u64());
        for kind in [Kind::Eclipse, Kind::Refit] {
            let served = served(kind, &demand, &SMALL);
            prop_assert!(2 * served >= best, "{}: {served} of {best}", kind.name());
        }
    }
}
