//! Properties of shaped demand, and of weeks that days fill.

use super::*;
use crate::{Kind, generate};
use anabranch_units::Duration;
use proptest::prelude::*;

const SHAPING: Shaping = Shaping { threshold: Shaping::THRESHOLD, always_drops_small: false };
const ANNOUNCED: Shaping = Shaping { always_drops_small: true, ..SHAPING };
/// Bytes of a week of 2 ms at 80 Gbit/s.
const WEEK_BYTES: u64 = 20_000_000;

fn demands() -> impl Strategy<Value = Demand> {
    let entry = prop_oneof![2 => Just(0u64), 2 => 0u64..200_000, 2 => 0u64..40_000_000, 1 => 0u64..1 << 50];
    (2usize..=9).prop_flat_map(move |racks| {
        prop::collection::vec(entry.clone(), racks * racks).prop_map(move |mut entries| {
            (0..racks).for_each(|rack| entries[rack * racks + rack] = 0);
            Demand::from_entries(racks, entries).unwrap()
        })
    })
}

fn shapings() -> impl Strategy<Value = Shaping> {
    (any::<bool>(), 0u64..3_000_000).prop_map(|(always_drops_small, threshold)| Shaping {
        threshold: ByteCount::new(threshold),
        always_drops_small,
    })
}

/// Row sums, then column sums.
fn sums(demand: &Demand) -> Vec<u64> {
    let Sums { rows, columns } = Sums::of(demand.racks(), demand.entries().iter().copied());
    rows.into_iter().chain(columns).collect()
}

/// Demand after the first two steps, in floating point: the plain twin.
fn before_filling(demand: &Demand, shaping: &Shaping) -> Vec<f64> {
    let threshold = shaping.threshold.as_u64();
    let is_dropping = shaping.always_drops_small || demand.entries().iter().any(|bytes| *bytes >= threshold);
    let kept = |bytes: &u64| if is_dropping && *bytes < threshold { 0 } else { *bytes };
    let kept: Vec<u64> = demand.entries().iter().map(kept).collect();
    let kept = Demand::from_entries(demand.racks(), kept).unwrap();
    let largest = sums(&kept).into_iter().max().unwrap() as f64;
    let factor = if largest > 0.0 { (WEEK_BYTES as f64 / 2.0 / largest).max(1.0) } else { 1.0 };
    kept.entries().iter().map(|bytes| *bytes as f64 * factor).collect()
}

proptest! {
    #[test]
    fn shaped_rows_and_columns_fit_the_week(demand in demands(), shaping in shapings()) {
        let shaped = shape(&demand, &Timing::ETALON, &shaping);
        for sum in sums(&shaped) {
            prop_assert!(sum <= WEEK_BYTES, "{sum}");
        }
        // After scaling, no entry exceeds its demand, and an entry without demand stays zero.
        for (shaped, before) in shaped.entries().iter().zip(before_filling(&demand, &shaping)) {
            prop_assert!(*shaped as f64 <= before * (1.0 + 1e-12), "{shaped} of {before}");
        }
    }

    /// An entry below its demand is the largest entry of a full row or of a full column.
    #[test]
    fn shaped_shares_are_max_min_fair(demand in demands(), shaping in shapings()) {
        let racks = demand.racks();
        let shaped = shape(&demand, &Timing::ETALON, &shaping);
        let before = before_filling(&demand, &shaping);
        let (entries, sums) = (shaped.entries(), sums(&shaped));
        // Rounding to whole bytes leaves less than one byte unused per entry of a row, so sums and
        // shares may be off by this slack.
        let slack = 2 * racks as u64;
        for pair in (0..racks * racks).filter(|pair| (entries[*pair] as f64) < before[*pair] * (1.0 - 1e-12) - 1.0) {
            let (row, column) = (pair / racks, pair % racks);
            let is_largest_of = |mut others: Box<dyn Iterator<Item = u64> + '_>| others.all(|other| other <= entries[pair] + slack);
            let in_row = Box::new((0..racks).map(|to| entries[row * racks + to]));
            let in_column = Box::new((0..racks).map(|from| entries[from * racks + column]));
            let by_row = sums[row] + slack >= WEEK_BYTES && is_largest_of(in_row);
            let by_column = sums[racks + column] + slack >= WEEK_BYTES && is_largest_of(in_column);
            prop_assert!(by_row || by_column, "{pair}: {} of {}", entries[pair], before[pair]);
        }
    }

    #[test]
    fn days_and_nights_fill_the_week(demand in demands(), shaping in shapings()) {
        let timing = Timing::ETALON;
        for kind in [Kind::Solstice, Kind::Eclipse, Kind::Refit] {
            let schedule = schedule(&mut *kind.scheduler(), &demand, &timing, &shaping);
            prop_assert_eq!(schedule.check(demand.racks(), &timing), Ok(()));
            prop_assert_eq!(schedule.length(timing.night), timing.week, "{}", kind.name());
        }
    }
}

#[test]
fn empty_demand_gives_one_dark_day() {
    let demand = Demand::new(8).unwrap();
    for kind in Kind::ALL {
        let schedule = schedule(&mut *kind.scheduler(), &demand, &Timing::ETALON, &SHAPING);
        let [day] = &schedule.days[..] else { panic!("{}: {} days", kind.name(), schedule.days.len()) };
        assert_eq!(day.matching.circuits().count(), 0, "{}", kind.name());
        assert_eq!(day.length, Duration::from_us(1980), "{}", kind.name());
    }
}

#[test]
fn small_entries_are_dropped_beside_large_ones() {
    let mut demand = Demand::new(4).unwrap();
    demand.add(0, 1, ByteCount::new(999_999)).unwrap();
    let shaped = |demand: &Demand, shaping| shape(demand, &Timing::ETALON, &shaping).between(0, 1);
    // The bytes of half a week of circuit.
    assert_eq!(shaped(&demand, SHAPING), ByteCount::new(10_000_000));
    assert_eq!(shaped(&demand, ANNOUNCED), ByteCount::ZERO);
    demand.add(2, 3, ByteCount::new(1_000_000)).unwrap();
    assert_eq!(shaped(&demand, SHAPING), ByteCount::ZERO);
    demand.add(0, 1, ByteCount::new(1)).unwrap();
    assert_eq!(shaped(&demand, ANNOUNCED), ByteCount::new(10_000_000));
}

#[test]
fn large_sums_are_not_scaled_up() {
    for bytes in [10_000_000, 12_345_678] {
        let demand = generate::ring(4, ByteCount::new(bytes)).unwrap();
        assert_eq!(shape(&demand, &Timing::ETALON, &ANNOUNCED), demand);
    }
    let demand = generate::ring(4, ByteCount::new(9_999_999)).unwrap();
    let scaled = generate::ring(4, ByteCount::new(10_000_000)).unwrap();
    assert_eq!(shape(&demand, &Timing::ETALON, &ANNOUNCED), scaled);
}

/// Announced demand of two rings, as in the thesis (§2.5.4), becomes two days of equal length,
/// except for a night.
#[test]
fn two_rings_become_two_days() {
    let mut demand = Demand::new(8).unwrap();
    for source in 0..8 {
        demand.add(source, (source + 1) % 8, ByteCount::new(60_000_000)).unwrap();
        demand.add(source, (source + 3) % 8, ByteCount::new(40_000_000)).unwrap();
        demand.add(source, (source + 2) % 8, ByteCount::new(400_000)).unwrap();
    }
    for kind in [Kind::Solstice, Kind::Refit] {
        let schedule = schedule(&mut *kind.scheduler(), &demand, &Timing::ETALON, &ANNOUNCED);
        let [first, second] = &schedule.days[..] else { panic!("{}: {schedule:?}", kind.name()) };
        assert!(first.length.as_us().abs_diff(second.length.as_us()) <= 40, "{}: {schedule:?}", kind.name());
        let shifts = [&first.matching, &second.matching].map(|matching| matching.destination(0));
        assert!(shifts.contains(&Some(1)) && shifts.contains(&Some(3)), "{}: {schedule:?}", kind.name());
    }
}
