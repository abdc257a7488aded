//! Tests with programs that each have one defect.

use super::*;
use crate::plan::samples::{self, InputParts};

#[test]
fn each_input_defect_has_its_message() {
    type Change = fn(&mut InputParts);
    let cases: [(Change, &str); 13] = [
        (|parts| parts.groups.1[0].edge = NodeId(2), "node 2 is not an edge"),
        (|parts| parts.groups.1[0].edge = NodeId(9), "node 9: no such node"),
        (|parts| parts.groups.1[0].group = GroupId(9), "group 9: no such group"),
        (|parts| parts.groups.1[1].edge = NodeId(4), "linked already"),
        (|parts| parts.groups.1[1].cost = f64::NAN, "from 0 to 1e12"),
        (|parts| parts.demand.1[1].group = GroupId(0), "listed twice"),
        (|parts| parts.demand.1[0].object = ObjectId(5), "object 5: no such object"),
        (|parts| parts.demand.1[0].viewers = 0, "viewers of a request 0"),
        (|parts| parts.demand.0[0].importance = 0.0, "importance 0"),
        (|parts| parts.demand.0[1] = parts.demand.0[0], "same channel and bitrate"),
        (|parts| parts.settings.slack_ppm = 1_000_000, "slack_ppm 1000000: must be below 1000000"),
        (|parts| parts.settings.cost_weight = -1.0, "cost weight -1"),
        (|parts| drop(parts.holders.insert(ChannelId(0), vec![NodeId(2)])), "one or more sources"),
    ];
    assert!(samples::square().program().is_ok());
    for (change, words) in cases {
        let mut parts = samples::square();
        change(&mut parts);
        let error = parts.program().expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn bitrates_beyond_the_limit_are_refused() {
    let mut parts = samples::square();
    parts.demand.0[0].object.bitrate = BITRATE_MAX;
    assert!(parts.clone().program().is_ok());
    parts.demand.0[0].object.bitrate = BitRate::bps(BITRATE_MAX.as_bps() + 1);
    assert!(parts.program().is_err());
}

#[test]
fn slack_is_taken_from_each_link() {
    let mut parts = samples::square();
    parts.settings.slack_ppm = 250_000;
    let program = parts.program().expect("a good program");
    assert_eq!(program.planned_link(LinkId(0)), BitRate::bps(750_000));
    assert_eq!(program.planned(BitRate::bps(3)), BitRate::bps(2), "rounded down");
}

#[test]
fn viewers_are_counted_only_if_the_settings_ask() {
    let mut parts = samples::square();
    let of_three = |parts: &InputParts| {
        let program = parts.clone().program().expect("a good program");
        program.value(&program.requests()[0])
    };
    assert!((of_three(&parts) - 3.0).abs() < 1e-12);
    parts.settings.counts_viewers = false;
    assert!((of_three(&parts) - 1.0).abs() < 1e-12);
    parts.settings.priority = Priority::Quality;
    assert!((of_three(&parts) - 0.8).abs() < 1e-12);
    parts.settings.priority = Priority::Quantity;
    assert!((of_three(&parts) - 1.25).abs() < 1e-12);
}

#[test]
fn normalised_weights_make_the_mean_viewer_worth_one() {
    let mut parts = samples::square();
    parts.settings.priority = Priority::Quality;
    let (offers, requests) = &parts.demand;
    let settings = parts.settings.normalised(offers, requests, 0.1);
    let program = InputParts { settings, ..parts }.program().expect("a good program");
    let value: f64 = program.requests().iter().map(|request| program.value(request)).sum();
    assert!((value - 6.0).abs() < 1e-9, "{value}");
    let mean_mbps = (4.0 * 0.8 + 2.0 * 0.4) / 6.0;
    assert!((settings.cost_weight * 60.0 * mean_mbps - 0.1).abs() < 1e-12);
}
