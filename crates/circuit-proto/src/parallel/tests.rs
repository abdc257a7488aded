//! Properties of plans for parallel switches, brute force on three hosts, and makespans compared
//! with the bound.
//!
//! Leaves out: jobs. Read `plans_serve_all_demand_no_sooner_than_bound` first.

use super::*;
use crate::generate;
use anabranch_units::{ByteCount, Seed};
use proptest::prelude::*;

fn switches(count: usize, night: Duration) -> Switches {
    Switches { count, rate: BitRate::gbps(100), night }
}

fn demand(racks: usize, entries: &[u64]) -> Demand {
    let mut demand = Demand::new(racks).unwrap();
    for (pair, bytes) in entries.iter().enumerate().filter(|(pair, _)| pair / racks != pair % racks) {
        demand.add(pair / racks, pair % racks, ByteCount::new(*bytes)).unwrap();
    }
    demand
}

fn any_demand(racks: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Demand> {
    racks.prop_flat_map(|racks| {
        let entry = prop_oneof![2 => Just(0u64), 3 => 1u64..2_000_000, 1 => 2_000_000u64..200_000_000];
        prop::collection::vec(entry, racks * racks).prop_map(move |entries| demand(racks, &entries))
    })
}

/// Minimum makespan over all orders and assignments of undivided entries.
fn least_of_all(
    racks: usize,
    night: u64,
    pieces: &mut Vec<Piece>,
    orders: &mut PieceOrders,
    least: &mut u64,
) {
    if pieces.is_empty() {
        *least = (*least).min(makespan_ps(racks, night, orders));
        return;
    }
    for at in 0..pieces.len() {
        let piece = pieces.remove(at);
        for switch in 0..orders.len() {
            orders[switch].push(piece);
            least_of_all(racks, night, pieces, orders, least);
            orders[switch].pop();
        }
        pieces.insert(at, piece);
    }
}

proptest! {
    #[test]
    fn plans_serve_all_demand_no_sooner_than_bound(
        demand in any_demand(2..=9), count in 1usize..=5, night_us in 1u64..3_000
    ) {
        let switches = switches(count, Duration::from_us(night_us));
        let bound = makespan_min(&demand, &switches).unwrap();
        let ours = plan(&demand, &switches).unwrap();
        let peer = spectra_like(&demand, &switches).unwrap();
        for plan in [&ours, &peer] {
            prop_assert_eq!(plan.check(&demand, &switches), Ok(()));
            prop_assert!(plan.makespan() >= bound);
            let served = |until: Duration| plan.served(&demand, switches.rate, until);
            prop_assert_eq!(served(plan.makespan()), demand.total());
            prop_assert!(served(Duration::from_ps(plan.makespan().as_ps() / 2)) <= demand.total());
            prop_assert_eq!(served(Duration::ZERO), ByteCount::ZERO);
        }
    }

    #[test]
    fn bound_is_below_brute_force(
        demand in any_demand(2..=3), count in 1usize..=2, night_us in 1u64..3_000
    ) {
        let switches = switches(count, Duration::from_us(night_us));
        let racks = demand.racks();
        let times = switches.times(&demand).unwrap();
        let piece = |(pair, length): (usize, &u64)| Piece { source: pair / racks, destination: pair % racks, length: *length };
        let mut pieces: Vec<_> = times.iter().enumerate().filter(|(_, t)| **t > 0).map(piece).collect();
        pieces.truncate(5);
        let mut kept = vec![0; racks * racks];
        for piece in &pieces {
            kept[piece.source * racks + piece.destination] = piece.length;
        }
        let mut least = u64::MAX;
        least_of_all(racks, switches.night.as_ps(), &mut pieces, &mut vec![Vec::new(); count], &mut least);
        let ours = makespan_ps(racks, switches.night.as_ps(), &orders(racks, &kept, &switches));
        prop_assert!(makespan_min_ps(racks, &kept, &switches) <= least.min(ours));
        prop_assert!(ours <= least + least / 2, "ours {ours}, best order of whole entries {least}");
    }
}

#[test]
fn ring_meets_its_bound_exactly() {
    let demand = generate::ring(16, ByteCount::new(100_000_000)).unwrap();
    for count in 1..=8 {
        let switches = switches(count, Duration::from_ms(1));
        let least = makespan_min(&demand, &switches).unwrap();
        let most = least + Duration::from_ps(count as u64);
        assert!(plan(&demand, &switches).unwrap().makespan() <= most, "{count} switches");
    }
}

#[test]
fn single_switch_takes_the_time_of_its_busiest_port() {
    let demand = generate::all_to_all(5, ByteCount::new(40_000_000)).unwrap();
    let switches = switches(1, Duration::from_ms(1));
    // Four partners of 10 MB: 0.8 ms and a night for each.
    assert_eq!(makespan_min(&demand, &switches).unwrap(), Duration::from_us(7_200));
    assert_eq!(plan(&demand, &switches).unwrap().makespan(), Duration::from_us(7_200));
}

#[test]
fn switch_settings_out_of_range_are_refused() {
    let demand = generate::ring(4, ByteCount::new(1)).unwrap();
    let right = switches(1, Duration::from_ms(1));
    let error = |wrong: Switches| plan(&demand, &wrong).unwrap_err();
    assert_eq!(error(Switches { count: 0, ..right }), ParallelError::Count(0));
    assert_eq!(error(Switches { count: 65, ..right }), ParallelError::Count(65));
    assert_eq!(error(Switches { rate: BitRate::bps(0), ..right }), ParallelError::NoRate);
    let night = Duration::from_secs(3_601);
    assert_eq!(error(Switches { night, ..right }), ParallelError::Night(night));
    let slow = Switches { rate: BitRate::bps(1), ..right };
    let much = generate::ring(4, ByteCount::new(1 << 40)).unwrap();
    assert_eq!(plan(&much, &slow), Err(ParallelError::Long));
}

/// Prints makespans and the bound: `cargo test --release -- --nocapture makespans`.
#[test]
fn plan_makespans_are_near_the_bound() {
    for (name, demand) in [
        ("all-to-all", generate::all_to_all(32, ByteCount::new(1_000_000_000)).unwrap()),
        ("skewed", generate::skewed(32, ByteCount::new(1_000_000_000), 4, 12, Seed::new(1)).unwrap()),
        ("random", generate::random(32, ByteCount::new(1_000_000_000), 300_000, Seed::new(1)).unwrap()),
    ] {
        for count in [1, 2, 4, 8] {
            for night in [1, 100, 1_000, 10_000, 100_000].map(Duration::from_us) {
                let switches = switches(count, night);
                let bound = makespan_min(&demand, &switches).unwrap().as_secs_f64();
                let ours = plan(&demand, &switches).unwrap().makespan().as_secs_f64() / bound;
                let peer = spectra_like(&demand, &switches).unwrap().makespan().as_secs_f64() / bound;
                println!("{name} s {count} night {night}: {ours:.3} {peer:.3}");
                assert!(ours < 1.35, "{name}, {count} switches, night {night}: {ours:.3}");
            }
        }
    }
}
