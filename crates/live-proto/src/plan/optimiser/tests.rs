//! Compares plans of the optimiser with brute force, their own bound and the plain check.

use super::*;
use crate::network::{ChannelId, NodeId};
use crate::plan::check::{SUM_TOLERANCE, check, evaluate};
use crate::plan::generator::{TopologyShape, Workload, WorkloadKind, demand};
use crate::plan::samples::{self, InputParts, group_link, link, network, offer, request};
use crate::plan::{Group, Priority, Settings};
use anabranch_units::Duration;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn plan(program: &Program) -> Plan {
    let optimiser = Optimiser { passes: 16, batches: 16, ..Optimiser::default() };
    optimiser.optimise(program, None).expect("no former prices").0
}

/// The best objective, found by trying every subset of links for each object.
fn oracle_best(program: &Program) -> f64 {
    let trees: Vec<Vec<(f64, Tree)>> =
        (0..program.offers().len()).map(|object| oracle_trees(program, ObjectId(object as u32))).collect();
    let mut best = 0.0;
    oracle_combine(program, &trees, &mut Vec::new(), 0.0, &mut best);
    best
}

/// All trees of one object that are feasible without other objects, with their objectives, in
/// decreasing order.
fn oracle_trees(program: &Program, object: ObjectId) -> Vec<(f64, Tree)> {
    let links = program.network().links().len() as u32;
    let mut tails = Vec::new();
    for request in program.requests_for(object) {
        tails.push(program.links_to_group(request.group).to_vec());
    }
    let mut trees = vec![(0.0, Tree { object, links: vec![], group_links: vec![] })];
    for mask in 1u32..1 << links {
        let used: Vec<LinkId> = (0..links).filter(|link| mask >> link & 1 == 1).map(LinkId).collect();
        let inner = Tree { object, links: used.clone(), group_links: vec![] };
        if evaluate(program, &[inner]).is_err() {
            continue;
        }
        let choices: u32 = tails.iter().map(|tails| tails.len() as u32 + 1).product();
        for choice in 0..choices {
            let mut rest = choice;
            let mut group_links = Vec::new();
            for tails in &tails {
                let at = rest % (tails.len() as u32 + 1);
                rest /= tails.len() as u32 + 1;
                group_links.extend(tails.get(at as usize).copied());
            }
            group_links.sort_unstable();
            let tree = Tree { object, links: used.clone(), group_links };
            if let Ok(sums) = evaluate(program, std::slice::from_ref(&tree)) {
                let objective = sums.service - sums.cost;
                if objective > 0.0 {
                    trees.push((objective, tree));
                }
            }
        }
    }
    trees.sort_by(|a, b| b.0.total_cmp(&a.0));
    trees
}

fn oracle_combine(
    program: &Program,
    trees: &[Vec<(f64, Tree)>],
    chosen: &mut Vec<Tree>,
    sum: f64,
    best: &mut f64,
) {
    let at = chosen.len();
    if at == trees.len() {
        *best = best.max(sum);
        return;
    }
    let rest: f64 = trees[at + 1..].iter().map(|trees| trees[0].0).sum();
    for (objective, tree) in &trees[at] {
        if sum + objective + rest <= *best {
            break;
        }
        chosen.push(tree.clone());
        if evaluate(program, chosen).is_ok() {
            oracle_combine(program, trees, chosen, sum + objective, best);
        }
        chosen.pop();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn plan_and_bound_enclose_the_optimum_of_small_programs(seed in 0u64..1_000_000) {
        let program = samples::random(seed, [2, 2, 2], 3, 3, 6).program().expect("a good program");
        let (plan, best) = (plan(&program), oracle_best(&program));
        let size = SUM_TOLERANCE * (1.0 + best);
        prop_assert!(check(&program, &plan).is_ok());
        prop_assert!(plan.objective() <= best + size, "{} above the best {best}", plan.objective());
        prop_assert!(plan.bound >= best - size, "bound {} below the best {best}", plan.bound);
    }

    #[test]
    fn plans_of_random_programs_pass_the_check(
        seed in any::<u64>(),
        tiers in (1u32..4, 1u32..6, 1u32..12).prop_map(|(a, b, c)| [a, b, c]),
        groups in 1u32..30,
        objects in 1u32..40,
        requests in 0u32..200,
        slack_ppm in 0u32..500_000,
        counts_viewers: bool,
    ) {
        let mut parts = samples::random(seed, tiers, groups, objects, requests);
        parts.settings.slack_ppm = slack_ppm;
        parts.settings.counts_viewers = counts_viewers;
        let program = parts.program().expect("a good program");
        let optimiser = Optimiser { passes: 8, ..Optimiser::default() };
        let (plan, prices) = optimiser.optimise(&program, None).expect("no former prices");
        let checked = check(&program, &plan);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
        let (warm, _) = optimiser.optimise(&program, Some(&prices)).expect("prices of this network");
        prop_assert!(check(&program, &warm).is_ok());
        prop_assert!(warm.bound >= plan.objective() * (1.0 - SUM_TOLERANCE));
        prop_assert!(plan.bound >= warm.objective() * (1.0 - SUM_TOLERANCE));
    }
}

#[test]
fn brute_force_agrees_on_small_programs() {
    for seed in 0..120 {
        let program = samples::random(seed, [2, 2, 2], 3, 3, 6).program().expect("a good program");
        let (found, best) = (plan(&program).objective(), oracle_best(&program));
        assert!(found >= best * (1.0 - SUM_TOLERANCE), "seed {seed}: {found} of {best}");
    }
}

fn window(kind: WorkloadKind, channels: u32, priority: Priority, seed: u64) -> Program {
    let drawn = TopologyShape::default().draw(Seed::new(7)).expect("the published shape");
    let trace =
        Workload::window(kind, channels, Duration::from_secs(60)).draw(&drawn.shares, Seed::new(seed));
    let (offers, requests) = demand(&trace.arrivals);
    let settings = Settings { priority, ..Settings::default() }.normalised(&offers, &requests, 0.1);
    drawn.program((offers, requests), settings).expect("a good program")
}

#[test]
fn published_windows_are_solved_within_the_promised_gaps() {
    for (kind, channels, priority, gap) in [
        (WorkloadKind::AverageDay, 10_000, Priority::Balanced, 0.004),
        (WorkloadKind::HeavyTail, 1_000, Priority::Balanced, 0.004),
        (WorkloadKind::HeavyTail, 4_000, Priority::Balanced, 0.004),
        (WorkloadKind::HeavyTail, 10_000, Priority::Balanced, 0.004),
        (WorkloadKind::HeavyTail, 10_000, Priority::Quality, 0.012),
        (WorkloadKind::HeavyTail, 10_000, Priority::Quantity, 0.004),
    ] {
        let program = window(kind, channels, priority, 11);
        let (plan, _) = Optimiser::default().optimise(&program, None).expect("no former prices");
        check(&program, &plan).expect("a plan within the program");
        assert!(plan.gap() < gap, "{kind:?} {channels} {priority:?}: gap {}", plan.gap());
    }
}

#[test]
fn equal_inputs_yield_equal_plans() {
    let program = window(WorkloadKind::HeavyTail, 1_000, Priority::Balanced, 3);
    let optimiser = Optimiser { passes: 8, ..Optimiser::default() };
    assert_eq!(optimiser.optimise(&program, None), optimiser.optimise(&program, None));
    let other = Optimiser { seed: Seed::new(2), ..optimiser };
    assert_ne!(optimiser.optimise(&program, None), other.optimise(&program, None));
}

/// The bound of 0.35 % holds for this instance. `docs/live.md` lists instances that miss it: 2,000
/// videos, and priority by bitrate.
#[test]
fn former_prices_narrow_the_gap_of_the_next_round() {
    let (first, next) = (
        window(WorkloadKind::HeavyTail, 10_000, Priority::Balanced, 1),
        window(WorkloadKind::HeavyTail, 10_000, Priority::Balanced, 2),
    );
    let (_, prices) = Optimiser::default().optimise(&first, None).expect("no former prices");
    let two = Optimiser { passes: 2, ..Optimiser::default() };
    let warm = two.optimise(&next, Some(&prices)).expect("prices of this network").0;
    let cold = two.optimise(&next, None).expect("no former prices").0;
    assert!(warm.gap() < 0.0035, "{}", warm.gap());
    assert!(cold.gap() > 2.0 * warm.gap(), "{}", cold.gap());
}

#[test]
fn search_without_passes_or_batches_is_refused() {
    let program = samples::square().program().expect("a good program");
    for (passes, batches) in [(0, 64), (20, 0)] {
        let optimiser = Optimiser { passes, batches, ..Optimiser::default() };
        let error = optimiser.optimise(&program, None).expect_err("no effort");
        assert_eq!(error, OptimiseError::NoEffort { passes, batches });
    }
    let least = Optimiser { passes: 1, batches: 1, ..Optimiser::default() };
    assert!(least.optimise(&program, None).expect("one pass").0.objective() > 0.0);
}

#[test]
fn prices_of_another_network_are_refused() {
    let program = samples::square().program().expect("a good program");
    let prices = Prices { links: vec![0.0; 3], group_links: vec![0.0; 4] };
    let error = Optimiser::default().optimise(&program, Some(&prices)).expect_err("three links");
    assert!(error.to_string().contains("3 links"), "{error}");
}

#[test]
fn a_round_without_requests_has_an_empty_plan() {
    let mut parts = samples::square();
    parts.demand.1.clear();
    let program = parts.program().expect("a good program");
    let plan = plan(&program);
    assert_eq!((plan.trees.len(), plan.gap_of_cost()), (0, None));
    assert!(plan.gap() == 0.0 && plan.bound.abs() < 1e-9);
}

/// One source, reflectors R1 and R2, edges Y and X. Group A is linked to Y and X, group B only to
/// Y. The link from R1 to Y carries one stream.
fn figure_4_4() -> Program {
    let links = vec![
        link(0, 1, 1_000, 10.0),
        link(0, 2, 1_000, 10.0),
        link(1, 3, 1_000, 10.0),
        link(2, 4, 1_000, 20.0),
    ];
    let group_links =
        vec![group_link(3, 0, 1_000, 0.0), group_link(4, 0, 1_000, 0.0), group_link(3, 1, 1_000, 0.0)];
    InputParts {
        network: network([1, 2, 2], links),
        groups: ((0..2).map(|city| Group { city, asn: 0 }).collect(), group_links),
        demand: (vec![offer(1, 1_000), offer(2, 1_000)], vec![request(0, 0, 1), request(1, 1, 1)]),
        holders: BTreeMap::new(),
        settings: Settings::default(),
    }
    .program()
    .expect("a good program")
}

/// Figure 4.4: the cheaper tree for group A would fill the only link to group B.
#[test]
fn plan_reserves_a_link_for_the_group_without_alternative() {
    let program = figure_4_4();
    let plan = plan(&program);
    let edges = |tree: &Tree| -> Vec<NodeId> {
        tree.group_links.iter().map(|link| program.group_links()[link.index()].edge).collect()
    };
    let edges: Vec<_> = plan.trees.iter().map(|tree| (tree.object, edges(tree))).collect();
    assert_eq!(edges, [(ObjectId(0), vec![NodeId(4)]), (ObjectId(1), vec![NodeId(3)])]);
}

/// Figure 4.6: two channels at 400 or 1,500 kbit/s over one link of 1,900 kbit/s, with one group
/// per channel.
#[test]
fn narrow_link_carries_one_high_and_one_low_bitrate() {
    let links = vec![link(0, 1, 3_000, 1.0), link(1, 2, 1_900, 1.0)];
    let group_links = vec![group_link(2, 0, 3_000, 0.0), group_link(2, 1, 3_000, 0.0)];
    let offers = vec![offer(1, 400), offer(1, 1_500), offer(2, 400), offer(2, 1_500)];
    let requests = (0..4).map(|object| request(object, object / 2, 1)).collect();
    let parts = InputParts {
        network: network([1, 1, 1], links),
        groups: ((0..2).map(|city| Group { city, asn: 0 }).collect(), group_links),
        demand: (offers, requests),
        holders: BTreeMap::new(),
        settings: Settings { priority: Priority::Quality, ..Settings::default() },
    };
    let program = parts.program().expect("a good program");
    let served: u64 = plan(&program)
        .trees
        .iter()
        .map(|tree| program.offers()[tree.object.index()].object.bitrate.as_bps())
        .sum();
    assert_eq!(served, 1_900_000, "one high and one low bitrate");
}

/// Figure 4.9: edge A is linked to reflector X at cost 1 and to reflector Y at cost 10. A stream of
/// importance 100 justifies the link from Y.
fn figure_4_9(has_third_request: bool) -> Program {
    let links =
        vec![link(0, 1, 2_000, 1.0), link(0, 2, 2_000, 1.0), link(1, 3, 1_000, 1.0), link(2, 3, 1_000, 10.0)];
    let group_links = vec![group_link(3, 0, 2_000, 0.0), group_link(3, 1, 2_000, 0.0)];
    let mut offers = vec![offer(1, 200), offer(1, 800), offer(2, 300), offer(2, 900)];
    offers[3].importance = 100.0;
    let mut requests = vec![request(0, 0, 1), request(1, 1, 1)];
    requests.extend(has_third_request.then(|| request(3, 0, 1)));
    let parts = InputParts {
        network: network([1, 2, 1], links),
        groups: ((0..2).map(|city| Group { city, asn: 0 }).collect(), group_links),
        demand: (offers, requests),
        holders: BTreeMap::new(),
        settings: Settings { cost_weight: 0.05, ..Settings::default() },
    };
    parts.program().expect("a good program")
}

#[test]
fn costly_link_carries_only_the_important_stream() {
    let links = |has_third_request| -> Vec<LinkId> {
        plan(&figure_4_9(has_third_request)).trees.into_iter().flat_map(|tree| tree.links).collect()
    };
    assert!(!links(false).contains(&LinkId(3)));
    assert!(links(true).contains(&LinkId(3)));
    assert_eq!(plan(&figure_4_9(true)).trees.len(), 3);
}

#[test]
fn channels_are_fed_by_sources_that_hold_them() {
    let mut parts = samples::square();
    parts.holders.insert(ChannelId(0), vec![NodeId(1)]);
    let program = parts.program().expect("a good program");
    let plan = plan(&program);
    check(&program, &plan).expect("a plan within the program");
    let sources = plan.trees[0].links.iter().map(|&id| program.network().link(id).from);
    assert!(sources.clone().any(|node| node == NodeId(1)));
    assert!(sources.clone().all(|node| node != NodeId(0)));
}

#[test]
fn partly_held_channels_leave_a_small_gap() {
    let drawn = TopologyShape::default().draw(Seed::new(7)).expect("the published shape");
    let trace = Workload::window(WorkloadKind::HeavyTail, 4_000, Duration::from_secs(60))
        .draw(&drawn.shares, Seed::new(1));
    let (offers, requests) = demand(&trace.arrivals);
    let settings = Settings::default().normalised(&offers, &requests, 0.1);
    for sources_of in [|n: u32| vec![n % 4], |n: u32| vec![n % 4, (n + 1) % 4]] {
        let holders = (0..4_000).map(|n| (ChannelId(n), sources_of(n).into_iter().map(NodeId).collect()));
        let groups = (drawn.groups.clone(), drawn.group_links.clone());
        let demand = (offers.clone(), requests.clone());
        let program = Program::new(drawn.network.clone(), groups, demand, holders.collect(), settings)
            .expect("a good program");
        let (plan, _) = Optimiser::default().optimise(&program, None).expect("no former prices");
        check(&program, &plan).expect("a plan within the program");
        assert!(plan.gap() < 0.006, "{}", plan.gap());
    }
}

/// The aim is 1 %. On other networks `docs/live.md` lists 1.2 to 1.4 %.
#[test]
fn large_event_gap_is_below_1_5_percent() {
    for seed in 1..=3 {
        let program = window(WorkloadKind::LargeEvent, 4_144, Priority::Balanced, seed);
        let optimiser = Optimiser { passes: 6, ..Optimiser::default() };
        let (plan, _) = optimiser.optimise(&program, None).expect("no former prices");
        check(&program, &plan).expect("a plan within the program");
        let gap = plan.gap_of_cost().expect("a plan with a cost");
        assert!(gap < 0.015, "seed {seed}: {gap}");
    }
}
