//! Tests of the rival designs and the planner on drawn networks.

use super::*;
use crate::plan::Settings;
use crate::plan::generator::{Topology, TopologyShape, Trace, Workload, WorkloadKind, demand};
use crate::plan::optimiser::Optimiser;
use anabranch_units::{Duration, Seed};

const MINUTE: Duration = Duration::from_secs(60);

fn drawn(kind: WorkloadKind, channels: u32, seed: u64) -> (Topology, Trace) {
    let topology = TopologyShape::default().draw(Seed::new(7)).expect("the published shape");
    let trace = Workload::window(kind, channels, MINUTE).draw(&topology.shares, Seed::new(seed));
    (topology, trace)
}

fn window<'a>(topology: &'a Topology, trace: &'a Trace) -> Window<'a> {
    let (offers, requests) = demand(&trace.arrivals);
    let settings = Settings::default().normalised(&offers, &requests, 0.1);
    Window { topology, trace, length: MINUTE, settings }
}

fn planned(window: &Window<'_>) -> Metrics {
    planned_by(window, |program, former| {
        Optimiser::default().optimise(program, former).expect("the prices are of this network")
    })
}

fn all(window: &Window<'_>) -> [Metrics; 6] {
    [
        planned(window),
        overlay_multicast(window),
        cdn(window, Duration::from_secs(30)),
        cdn(window, Duration::from_secs(1)),
        everything_everywhere(window),
        greedy(window),
    ]
}

#[test]
fn three_designs_serve_an_average_day() {
    let (topology, trace) = drawn(WorkloadKind::AverageDay, 4_144, 1);
    let [planned, overlay, cdn, ..] = all(&window(&topology, &trace));
    for metrics in [&planned, &overlay, &cdn] {
        assert!(metrics.satisfied_share > 0.98, "{metrics:?}");
    }
    let cost = |metrics: &Metrics| metrics.cost_per_satisfied.expect("served viewers");
    assert!(cost(&planned) <= 1.001 * cost(&overlay));
    assert!(cost(&cdn) > 1.15 * cost(&planned), "{cdn:?} {planned:?}");
}

#[test]
fn plan_satisfies_more_viewers_than_rivals_under_heavy_tail() {
    let (topology, trace) = drawn(WorkloadKind::HeavyTail, 10_000, 1);
    let window = window(&topology, &trace);
    let [planned, overlay, cdn, cdn_1, everything, greedy] = all(&window);
    for rival in [overlay, cdn, cdn_1, everything, greedy] {
        assert!(planned.satisfied_share > rival.satisfied_share, "{planned:?} {rival:?}");
    }
}

#[test]
fn no_design_exceeds_the_naive_bound() {
    for (kind, channels) in [(WorkloadKind::HeavyTail, 6_000), (WorkloadKind::AverageDay, 10_000)] {
        let (topology, trace) = drawn(kind, channels, 2);
        let window = window(&topology, &trace);
        let bounds = naive_bounds(&window);
        for metrics in all(&window) {
            assert!(metrics.satisfied_share <= bounds.satisfied_share + 1e-9, "{metrics:?} {bounds:?}");
            assert!(metrics.mean_kbps <= bounds.mean_kbps * (1.0 + 1e-9), "{metrics:?} {bounds:?}");
            assert!(metrics.served_share >= metrics.satisfied_share);
        }
    }
}

#[test]
fn shares_by_bitrate_sum_to_the_total_share() {
    let (topology, trace) = drawn(WorkloadKind::HeavyTail, 4_000, 3);
    let window = window(&topology, &trace);
    let asked = |bitrate| trace.arrivals.iter().filter(|ask| ask.object.bitrate == bitrate).count() as f64;
    for metrics in all(&window) {
        let by_bitrate = &metrics.satisfied_share_by_bitrate;
        let satisfied: f64 = by_bitrate.iter().map(|&(bitrate, share)| share * asked(bitrate)).sum();
        let sum = satisfied / trace.arrivals.len() as f64;
        assert!((sum - metrics.satisfied_share).abs() < 1e-9, "{metrics:?}");
        assert!(by_bitrate.iter().any(|&(_, share)| share < 1.0));
    }
}
