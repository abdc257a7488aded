//! Tests with plans that each violate one constraint.

use super::*;
use crate::network::ChannelId;
use crate::plan::samples::{self, InputParts};

fn tree(object: u32, links: &[u32], group_links: &[u32]) -> Tree {
    Tree {
        object: ObjectId(object),
        links: links.iter().map(|&link| LinkId(link)).collect(),
        group_links: group_links.iter().map(|&link| GroupLinkId(link)).collect(),
    }
}

/// Object 0 for both groups through source 0, reflector 2 and edge 4. Object 1 for group 1 through
/// source 1 and edge 5.
fn good() -> Vec<Tree> {
    vec![tree(0, &[0, 4], &[0, 2]), tree(1, &[3, 7], &[3])]
}

#[test]
fn sums_of_a_good_plan_are_recomputed() {
    let program = samples::square().program().expect("a good program");
    let sums = evaluate(&program, &good()).expect("a good plan");
    assert_eq!((sums.requests, sums.viewers), (3, 6));
    assert!((sums.service - 6.0).abs() < 1e-12);
    assert!((sums.cost - 0.001 * (0.8 * 21.0 + 0.4 * 20.0)).abs() < 1e-12);
}

#[test]
fn each_broken_constraint_is_found() {
    let program = samples::square().program().expect("a good program");
    let cases = [
        (vec![tree(1, &[], &[]), tree(0, &[], &[])], "listed once"),
        (vec![tree(7, &[], &[])], "object 7"),
        (vec![tree(0, &[70], &[])], "link 70"),
        (vec![tree(0, &[0, 4], &[70])], "group link 70"),
        (vec![tree(0, &[0, 0], &[])], "link 0 is listed twice"),
        (vec![tree(0, &[4], &[0])], "node 2 sends it without"),
        (vec![tree(0, &[0], &[0])], "node 4 sends it without"),
        (vec![tree(0, &[0, 2, 4], &[0])], "node 2 receives it twice"),
        (vec![tree(0, &[0, 1, 4, 6], &[0])], "node 4 receives it twice"),
        (vec![tree(0, &[0, 4, 5], &[0, 1])], "group 0 receives it twice"),
        (vec![tree(1, &[0, 4], &[0])], "group 0 receives it without a request"),
        (vec![tree(0, &[0, 4], &[0]), tree(1, &[0, 5], &[3])], "link 0: 1200000 b/s planned"),
    ];
    for (trees, words) in cases {
        let violation = evaluate(&program, &trees).expect_err(words).to_string();
        assert!(violation.contains(words), "{violation}");
    }
}

#[test]
fn full_group_link_passes_and_overloaded_link_fails() {
    let at = |kbps: u64| {
        let mut parts = samples::square();
        parts.groups.1[3].capacity = BitRate::bps(1_000 * kbps);
        let program = parts.program().expect("a good program");
        evaluate(&program, &[tree(0, &[0, 5], &[3]), tree(1, &[3, 7], &[])])
    };
    assert!(at(800).is_ok());
    assert!(matches!(at(799), Err(Violation::OverGroupCapacity(..))));
}

#[test]
fn sources_send_only_channels_that_they_hold() {
    let mut parts = samples::square();
    parts.holders.insert(ChannelId(0), vec![NodeId(1)]);
    let program = parts.program().expect("a good program");
    assert_eq!(evaluate(&program, &good()), Err(Violation::NotHeld(ObjectId(0), NodeId(0))));
}

#[test]
fn wrong_sums_and_low_bounds_are_found() {
    let program = samples::square().program().expect("a good program");
    let sums = evaluate(&program, &good()).expect("a good plan");
    let plan = Plan { trees: good(), service: sums.service, cost: sums.cost, bound: 6.0 };
    assert_eq!(check(&program, &plan), Ok(sums));
    let dear = Plan { cost: sums.cost + 0.1, ..plan.clone() };
    assert!(matches!(check(&program, &dear), Err(Violation::WrongSum("cost", ..))));
    let low = Plan { bound: 5.0, ..plan };
    assert!(matches!(check(&program, &low), Err(Violation::AboveBound(..))));
}

#[test]
fn slack_counts_against_capacity() {
    let settings = crate::plan::Settings { slack_ppm: 300_000, ..Default::default() };
    let program = InputParts { settings, ..samples::square() }.program().expect("a good program");
    assert!(matches!(evaluate(&program, &good()), Err(Violation::OverCapacity(..))));
}
