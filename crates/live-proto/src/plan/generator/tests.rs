//! Compares drawn topologies and workloads with the published statistics.

use super::*;
use crate::network::Tier;
use crate::plan::recorded::{RecordFormat, RecordedWindow, Records};
use anabranch_units::{BitRate, Duration, Seed};
use std::collections::BTreeMap;

const MINUTE: Duration = Duration::from_secs(60);

fn topology(seed: u64) -> Topology {
    TopologyShape::default().draw(Seed::new(seed)).expect("the published shape")
}

#[test]
fn nodes_and_links_have_the_published_degrees() {
    let drawn = topology(1);
    let counts = [Tier::Source, Tier::Reflector, Tier::Edge].map(|tier| drawn.network.tier(tier).count());
    assert_eq!(counts, [4, 10, 100]);
    for source in drawn.network.tier(Tier::Source) {
        assert_eq!(drawn.network.links_out(source).len(), 10);
    }
    for reflector in drawn.network.tier(Tier::Reflector) {
        assert_eq!(drawn.network.links_in(reflector).len(), 4);
        assert_eq!(drawn.network.links_out(reflector).len(), 30);
    }
    for edge in drawn.network.tier(Tier::Edge) {
        assert_eq!(drawn.network.links_in(edge).len(), 3);
    }
    assert_eq!(drawn.group_links.len(), 9_000);
    assert_eq!(drawn.groups.iter().map(|group| group.city).max(), Some(2_586));
}

#[test]
fn costs_have_the_published_ranges() {
    let drawn = topology(2);
    let costs: Vec<f64> = drawn.network.links().iter().map(|link| link.cost).collect();
    assert!(costs.iter().all(|cost| (10.0..=50.0).contains(cost)));
    let mean = costs.iter().sum::<f64>() / costs.len() as f64;
    assert!((mean - 30.0).abs() < 2.0, "{mean}");
    let free = drawn.group_links.iter().filter(|link| link.cost == 0.0).count();
    assert!((4_300..4_700).contains(&free), "{free} of 9000 are free");
    let dear = drawn.group_links.iter().filter(|link| link.cost > 0.0);
    assert!(dear.clone().all(|link| (1.0..=5.0).contains(&link.cost)));
}

#[test]
fn topology_draws_two_thousand_edges_and_refuses_more() {
    let shape = TopologyShape { edges: 2_000, ..TopologyShape::default() };
    let drawn = shape.draw(Seed::new(1)).expect("2,000 edges");
    assert_eq!(drawn.network.links().len(), 6_040);
    assert!(TopologyShape { edges: 4_000, ..TopologyShape::default() }.draw(Seed::new(1)).is_err());
    assert!(TopologyShape { parents: [5, 3, 3], ..TopologyShape::default() }.draw(Seed::new(1)).is_err());
    assert!(TopologyShape { cities: 0, ..TopologyShape::default() }.draw(Seed::new(1)).is_err());
}

/// Share of the viewers that watch the `top` most popular channels, and the mean requested bitrate
/// in kbit/s.
fn statistics(trace: &Trace, top: usize) -> (f64, f64) {
    let mut by_channel: BTreeMap<_, u64> = BTreeMap::new();
    let (mut rate, mut viewers) = (0.0, 0);
    for arrival in &trace.arrivals {
        *by_channel.entry(arrival.object.channel).or_default() += arrival.viewers;
        rate += 1_000.0 * arrival.object.bitrate.as_mbps_f64() * arrival.viewers as f64;
        viewers += arrival.viewers;
    }
    let mut counts: Vec<u64> = by_channel.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let share = counts.iter().take(top).sum::<u64>() as f64 / viewers as f64;
    (share, rate / viewers as f64)
}

#[test]
fn average_day_has_the_published_statistics() {
    let shares = topology(3).shares;
    for seed in 0..3 {
        let trace = Workload::hour(WorkloadKind::AverageDay, 4_144).draw(&shares, Seed::new(seed));
        assert_eq!(trace.arrivals.len(), 55_000);
        let (share, mean_kbps) = statistics(&trace, 290);
        assert!((share - 0.5).abs() < 0.02, "7 % of the videos have {share} of the requests");
        assert!((mean_kbps / 2_725.0 - 1.0).abs() < 0.03, "{mean_kbps}");
    }
}

#[test]
fn heavy_tail_has_the_published_statistics() {
    let shares = topology(3).shares;
    for seed in 0..3 {
        let trace = Workload::hour(WorkloadKind::HeavyTail, 10_000).draw(&shares, Seed::new(seed));
        assert_eq!(trace.arrivals.len(), 240_000);
        let (share, mean_kbps) = statistics(&trace, 100);
        assert!((1.0 - share - 0.6).abs() < 0.02, "the lowest 99 % have {} of the requests", 1.0 - share);
        assert!((mean_kbps / 6_850.0 - 1.0).abs() < 0.03, "{mean_kbps}");
    }
}

#[test]
fn four_games_receive_nearly_all_requests() {
    let shares = topology(3).shares;
    let trace = Workload::hour(WorkloadKind::LargeEvent, 4_144).draw(&shares, Seed::new(1));
    let viewers: u64 = trace.arrivals.iter().map(|arrival| arrival.viewers).sum();
    assert_eq!(viewers, 4_055_000);
    let window = Workload::window(WorkloadKind::LargeEvent, 4_144, MINUTE).draw(&shares, Seed::new(1));
    let (share, mean_kbps) = statistics(&window, 4);
    assert!(share > 0.9989, "{share}");
    assert!((mean_kbps / 2_725.0 - 1.0).abs() < 0.03, "{mean_kbps}");
}

#[test]
fn window_rounds_requests_down_to_at_least_one() {
    let requests = |channels, seconds| {
        let length = Duration::from_secs(seconds);
        Workload::window(WorkloadKind::AverageDay, channels, length).requests
    };
    assert_eq!(requests(4_144, 3_600), 55_000);
    assert_eq!(requests(4_144, 60), 916, "55,000 / 60 is 916.7");
    assert_eq!(requests(1, 1), 1);
}

#[test]
fn equal_seeds_draw_equal_topologies_and_traces() {
    assert_eq!(topology(5), topology(5));
    assert_ne!(topology(5), topology(6));
    let (shares, workload) = (topology(5).shares, Workload::window(WorkloadKind::HeavyTail, 1_000, MINUTE));
    assert_eq!(workload.draw(&shares, Seed::new(5)), workload.draw(&shares, Seed::new(5)));
    assert_eq!(workload.requests, 400);
}

fn recorded(text: &str) -> RecordedWindow {
    let records = Records::new(text.as_bytes(), RecordFormat::Requests);
    RecordedWindow::read(records, None, MINUTE, |address| address.to_string()).expect("a log")
}

#[test]
fn recorded_locations_and_bitrates_are_kept() {
    let log = recorded("time,video,place,bitrate_kbps\n1,b,x,400\n2,a,y,900\n3,a,y,400\n");
    let trace = Workload::complete(&log, WorkloadKind::HeavyTail, &[0.5, 0.5], Seed::new(1)).expect("few");
    let asked = |at: usize| {
        let Arrival { object, group, viewers } = trace.arrivals[at];
        (object.channel.0, object.bitrate.as_bps() / 1_000, group.0, viewers)
    };
    // Video `a` and location `y` have the most viewers, so they have number 0.
    assert_eq!([asked(0), asked(1), asked(2)], [(1, 400, 1, 1), (0, 900, 0, 1), (0, 400, 0, 1)]);
    assert_eq!(trace.ladders[0], [400, 900].map(|kbps| BitRate::bps(1_000 * kbps)));
}

#[test]
fn missing_bitrates_get_the_published_mean() {
    let lines: String = (0..20_000).map(|line| format!("0,v{},{}\n", line % 500, 1 + line % 3)).collect();
    let log = recorded(&format!("time,video,viewers\n{lines}"));
    let shares = topology(3).shares;
    let kind = WorkloadKind::HeavyTail;
    let trace = Workload::complete(&log, kind, &shares, Seed::new(1)).expect("few");
    let (_, mean_kbps) = statistics(&trace, 1);
    assert!((mean_kbps / 6_850.0 - 1.0).abs() < 0.05, "{mean_kbps}");
    let viewers: u64 = trace.arrivals.iter().map(|arrival| arrival.viewers).sum();
    assert_eq!(viewers, (0..20_000u64).map(|line| 1 + line % 3).sum::<u64>());
    let is_first = |arrival: &&Arrival| arrival.group.0 < 100;
    let first: u64 = trace.arrivals.iter().filter(is_first).map(|arrival| arrival.viewers).sum();
    let share = first as f64 / viewers as f64;
    let expected: f64 = shares[..100].iter().sum();
    // Three standard deviations of a binomial share are 4 % of the share.
    assert!((share / expected - 1.0).abs() < 0.05, "100 groups have {share}, not {expected}");
    assert_eq!(Workload::complete(&log, kind, &shares, Seed::new(1)), Ok(trace));
}

#[test]
fn more_arrivals_than_one_window_allows_are_refused() {
    let lines = "0,v,1000000000\n".repeat(100);
    let log = recorded(&format!("time,video,viewers\n{lines}"));
    let shares = vec![1.0; 65_536];
    let refused = Workload::complete(&log, WorkloadKind::HeavyTail, &shares, Seed::new(1));
    assert_eq!(refused, Err(TooManyArrivals));
}
