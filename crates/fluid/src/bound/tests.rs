//! Tests of bounds: no allocator and no order of coflows has a sum below a bound, the bound is
//! reached on a single link, and fast algorithms give the same results as simple algorithms.

use super::*;
use crate::testing::networks;
use crate::{ActiveFlows, Allocator, CoflowOrder, Completion, Event, MaxMin, Outcome, Plan, Varys, run};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use links::{assign, shortest_first_s};
use prices::{Pattern, PriceEvaluation, Prices, Scratch};
use proptest::prelude::*;
use work::{CoflowWork, Load};

/// Relative error of a run: completions are rounded to picoseconds, and a link may carry a
/// billionth more than its rate.
const RUN_ROUNDING: f64 = 1e-7;
/// Small effort that still detects a wrong bound; a few hundred cases take seconds.
const LITTLE: Effort = Effort { splits: 1, steps: 20, branches: 2 };

fn sum_s(outcome: &Outcome) -> f64 {
    outcome.coflows.values().map(Completion::time).map(|time| time.as_secs_f64()).sum()
}

/// Serves coflows in a fixed order. If `is_even`, each coflow first gets the rates at which its
/// flows end together as early as possible. Then each flow in turn gets the remaining rate of its
/// links.
struct InOrder {
    order: Vec<CoflowId>,
    is_even: bool,
    plan: Plan,
    ranks: CoflowOrder,
}

impl Allocator for InOrder {
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        let Self { order, is_even, plan, ranks } = self;
        if !ranks.is_new_order(event, active) {
            return ranks.fill_changed(active);
        }
        plan.begin(active);
        for coflow in order.iter().filter(|_| *is_even) {
            let flows = active.flows_of(*coflow);
            let time_s = plan.left_s(active, flows);
            if time_s.is_finite() && time_s > 0.0 {
                flows.iter().for_each(|id| plan.give(active, *id, active.remaining_bits(*id) / time_s));
            }
        }
        order.iter().for_each(|coflow| plan.fill(active, active.flows_of(*coflow)));
        plan.set(active);
        ranks.set(order.to_vec());
    }
}

/// Returns all permutations.
fn orders(of: &[CoflowId]) -> Vec<Vec<CoflowId>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let begin = |first: &CoflowId| {
        let rest: Vec<CoflowId> = of.iter().copied().filter(|other| other != first).collect();
        orders(&rest).into_iter().map(move |rest| [vec![*first], rest].concat()).collect::<Vec<_>>()
    };
    of.iter().flat_map(begin).collect()
}

/// Returns the lowest sum reached by fair sharing, by Varys, and by any order of coflows.
fn best_s(network: &Network, flows: &[Flow]) -> f64 {
    let fair = run(network, flows, &mut MaxMin::default()).expect("it ends");
    let mut best_s = sum_s(&fair).min(sum_s(&run(network, flows, &mut Varys::default()).expect("it ends")));
    let names: Vec<CoflowId> = fair.coflows.keys().copied().collect();
    for order in orders(&names) {
        for is_even in [true, false] {
            let (plan, ranks) = Default::default();
            let mut allocator = InOrder { order: order.clone(), is_even, plan, ranks };
            best_s = best_s.min(sum_s(&run(network, flows, &mut allocator).expect("it ends")));
        }
    }
    best_s
}

fn flow(coflow: u32, links: &[u32], kbit: u64, arrives_s: u64) -> Flow {
    Flow {
        coflow: CoflowId(coflow),
        route: links.iter().copied().map(LinkId).collect(),
        volume: ByteCount::new(kbit * 1_000 / 8),
        arrives: Instant::ZERO + Duration::from_secs(arrives_s),
        grows: Box::default(),
    }
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-6 * left.abs().max(1.0)
}

#[test]
fn empty_work_takes_no_time_and_errors_are_reported() {
    let network = Network::new(vec![BitRate::bps(1_000)]).expect("it has a rate");
    let bound = total(&network, &[], Effort::default()).expect("no flows");
    assert_eq!((bound.total_s(), bound.mean_s()), ((0.0, Relaxation::Alone), 0.0));
    let bound = total(&network, &[flow(0, &[0], 0, 3)], Effort::default()).expect("nothing to move");
    assert_eq!((bound.total_s().0, &bound.assignment[&CoflowId(0)]), (0.0, &None));
    let wrong = total(&network, &[flow(0, &[1], 1, 0)], Effort::default());
    assert_eq!(wrong, Err(RunError::NoSuchLink(crate::FlowId(0), LinkId(1))));
}

#[test]
fn isolated_time_is_the_slowest_links_time() {
    let network = Network::new(vec![BitRate::bps(1_000), BitRate::bps(2_000)]).expect("they have rates");
    // Link 0: 1 s of work at 0 s, 2 s of work at 5 s. Link 1: 3 s of work at 0 s, half a second at
    // 1 s, 1 s at 5 s.
    let mut flows = vec![flow(0, &[0], 1, 0), flow(0, &[1], 6, 0), flow(0, &[0, 1], 2, 5)];
    flows[1].grows = Box::new([(Instant::ZERO + Duration::from_secs(1), ByteCount::new(125))]);
    let alone_s = |flows: &[Flow]| {
        total(&network, flows, Effort { splits: 0, steps: 0, branches: 0 }).expect("it fits").alone_s
    };
    assert!(near(alone_s(&flows), 7.0));
    // 6 s of further work on link 1 at 2 s: 3 s, 6 s and 1 s in sequence.
    flows[1].grows = Box::new([(Instant::ZERO + Duration::from_secs(2), ByteCount::new(1_500))]);
    assert!(near(alone_s(&flows), 10.0));
    flows[1].grows = Box::default();
    // An arrival at 9 s without volume.
    flows.push(flow(0, &[0], 0, 9));
    assert!(near(alone_s(&flows), 9.0));
}

#[test]
fn prices_bound_exceeds_the_bound_of_single_links() {
    // Three coflows, each with 1 s of work on two of three links. One coflow after another is
    // optimal: 1 + 2 + 3 = 6 s. If each coflow is assigned to a link, the best assignment has two
    // coflows on the same link: 1 + 2 + 1 s.
    let network = Network::new(vec![BitRate::bps(1_000); 3]).expect("they have rates");
    let flows = [flow(0, &[0, 1], 1, 0), flow(1, &[1, 2], 1, 0), flow(2, &[2, 0], 1, 0)];
    assert!(near(best_s(&network, &flows), 6.0));
    let bound = total(&network, &flows, Effort::default()).expect("it fits");
    assert!(near(bound.alone_s, 3.0) && near(bound.links_s, 4.0), "{bound:?}");
    // On each link two coflows complete after 1 s and 2 s, and each coflow is on two links: 3 * (1
    // + 2) / 2 = 9/2 s. Prices ignore that only a coflow that is first on both of its links
    // completes after 1 s.
    assert!((4.49..=4.5).contains(&bound.prices_s), "{bound:?}");
    // Cases recover part of the difference.
    assert!((4.98..=6.0).contains(&bound.cases_s), "{bound:?}");
    assert_eq!(bound.total_s(), (bound.cases_s, Relaxation::Cases));
}

#[test]
fn order_bound_exceeds_the_bound_of_single_links() {
    // Each of two coflows has 3 s of work on its own link and 1 s on the other coflow's link. The
    // coflow that waits completes after 4 s, the other coflow after 3 s.
    let network = Network::new(vec![BitRate::bps(1_000); 2]).expect("they have rates");
    let flows = [flow(0, &[0], 3, 0), flow(0, &[1], 1, 0), flow(1, &[1], 3, 0), flow(1, &[0], 1, 0)];
    assert!(near(best_s(&network, &flows), 7.0));
    let bound = total(&network, &flows, Effort::default()).expect("it fits");
    let orders_s = bound.orders_s.expect("there are few");
    assert!((orders_s - 7.0).abs() < 1e-4, "{bound:?}");
    assert!(bound.links_s < 6.99, "{bound:?}");
}

#[test]
fn order_bound_is_limited_to_ten_coflows() {
    let network = Network::new(vec![BitRate::bps(1_000)]).expect("it has a rate");
    let flows: Vec<Flow> = (0..11).map(|id| flow(id, &[0], 1, 0)).collect();
    let of = |count| total(&network, &flows[..count], LITTLE).expect("it fits").orders_s;
    assert!(of(10).is_some_and(|total_s| (total_s - 55.0).abs() < 1e-3) && of(11).is_none());
}

/// Simulates whole seconds. In each second the waiting job with the shortest remaining time is
/// served.
fn shortest_first_by_seconds(jobs: &[(u32, u32)]) -> u32 {
    let mut left: Vec<(u32, u32)> = jobs.to_vec();
    let (mut total_s, mut now_s) = (0, 0);
    while !left.is_empty() {
        left.retain(|(arrived, busy)| {
            let is_done = *busy == 0 && *arrived <= now_s;
            total_s += if is_done { now_s - arrived } else { 0 };
            !is_done
        });
        let there = left.iter_mut().filter(|(arrived, _)| *arrived <= now_s);
        there.min_by_key(|(_, busy)| *busy).into_iter().for_each(|(_, busy)| *busy -= 1);
        now_s += 1;
    }
    total_s
}

/// Returns a strategy for the load of a link: whole seconds of work that arrive at whole seconds,
/// the latest part first.
fn loads() -> impl Strategy<Value = Load> {
    proptest::collection::btree_map(0u32..5, 1u32..4, 1..3).prop_map(|parts| Load {
        link: LinkId(0),
        busy_s: parts.values().copied().map(f64::from).sum(),
        parts: parts.iter().rev().map(|(at, busy)| (f64::from(*at), f64::from(*busy))).collect(),
    })
}

/// Returns a strategy for prices of `links` links in each of the first twelve seconds.
fn prices(links: usize) -> impl Strategy<Value = Prices> {
    let link = proptest::collection::vec(0u32..6, 12);
    proptest::collection::vec(link, links).prop_map(move |all| {
        let mut prices = Prices::zero(links, 12, 12.0);
        for (at, link) in all.iter().enumerate() {
            let set = prices.of_link_mut(at).iter_mut().zip(link);
            set.for_each(|(price, of)| *price = f64::from(*of) / 4.0);
        }
        prices
    })
}

/// Returns the price of the cheapest set of seconds into which a load fits, found by exhaustive
/// search.
fn cheapest_of_all(prices: &mut Prices, load: &Load, to_s: u32) -> f64 {
    let mut prices: Vec<f64> = prices.of_link_mut(0).to_vec();
    prices.resize(to_s as usize, 0.0);
    let fits = |set: &u32| {
        let mut needs = 0.0;
        let part_fits = |(since_s, busy_s): &(f64, f64)| {
            needs += busy_s;
            f64::from((set >> *since_s as u32).count_ones()) >= needs
        };
        f64::from(set.count_ones()) == load.busy_s && load.parts.iter().all(part_fits)
    };
    let cost =
        |set: u32| (0..to_s).filter(|at| set >> at & 1 == 1).map(|at| prices[at as usize]).sum::<f64>();
    (0..1u32 << to_s).filter(fits).map(cost).fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn no_schedule_is_below_a_bound((network, flows) in networks()) {
        let bound = total(&network, &flows, LITTLE).expect("it fits");
        let least_s = best_s(&network, &flows) * (1.0 + RUN_ROUNDING);
        prop_assert!(bound.alone_s <= least_s && bound.links_s <= least_s && bound.cases_s <= least_s, "{bound:?}, {least_s} s");
        let orders_s = bound.orders_s.expect("there are few");
        prop_assert!(bound.alone_s * (1.0 - 1e-5) <= orders_s && orders_s <= least_s, "{bound:?}, {least_s} s");
        prop_assert!(bound.alone_s <= bound.links_s * (1.0 + RUN_ROUNDING), "{bound:?}");
        prop_assert!(bound.prices_s <= bound.cases_s, "{bound:?}");
        prop_assert!(bound.alone_s <= bound.prices_s * (1.0 + RUN_ROUNDING) + RUN_ROUNDING, "{bound:?}");
    }

    #[test]
    fn shortest_remaining_first_reaches_the_bound_on_one_link(
        coflows in proptest::collection::vec((1u64..200, 0u64..60), 1..8),
    ) {
        let network = Network::new(vec![BitRate::bps(10_000)]).expect("it has a rate");
        let flows: Vec<Flow> = (0..).zip(&coflows).map(|(id, (kbit, at))| flow(id, &[0], *kbit, *at)).collect();
        let bound = total(&network, &flows, LITTLE).expect("it fits");
        // With a single link and a single flow per coflow, Varys's shortest bottleneck is the
        // shortest remaining time.
        let reached_s = sum_s(&run(&network, &flows, &mut Varys::default()).expect("it ends"));
        prop_assert!(near(bound.links_s, reached_s), "{bound:?}, {reached_s} s");
        // Without later arrivals, a schedule is an order of coflows.
        if coflows.iter().all(|(_, at)| *at == coflows[0].1) {
            let orders_s = bound.orders_s.expect("there are few");
            prop_assert!((orders_s / reached_s - 1.0).abs() < 1e-5, "{bound:?}, {reached_s} s");
        }
        prop_assert!(bound.cases_s <= reached_s * (1.0 + RUN_ROUNDING));
    }

    #[test]
    fn shortest_first_equals_simulation_by_seconds(jobs in proptest::collection::vec((0u32..12, 1u32..8), 0..8)) {
        let exact = jobs.iter().map(|(arrived, busy)| (f64::from(*arrived), f64::from(*busy))).collect();
        prop_assert_eq!(shortest_first_s(exact), f64::from(shortest_first_by_seconds(&jobs)));
    }

    #[test]
    fn more_capacity_is_never_slower_in_isolation(
        (network, flows) in networks(), faster in 0u32..8, times in 2u64..5,
    ) {
        let of = |link: u32| network.rate(LinkId(link)).as_bps() * if link == faster { times } else { 1 };
        let rates = (0..network.links() as u32).map(|link| BitRate::bps(of(link))).collect();
        let more = Network::new(rates).expect("all have a rate");
        let (before, after) = (total(&network, &flows, LITTLE).expect("it fits"), total(&more, &flows, LITTLE).expect("it fits"));
        prop_assert!(after.alone_s <= before.alone_s * (1.0 + RUN_ROUNDING));
        let fair = run(&network, &flows, &mut MaxMin::default()).expect("it ends");
        prop_assert!(after.total_s().0 <= sum_s(&fair) * (1.0 + RUN_ROUNDING));
    }

    #[test]
    fn cheapest_pattern_equals_exhaustive_search((mut prices, load) in (prices(1), loads()), later in 0u32..5) {
        let to_s = load.end_s() as u32 + later;
        let cost_s = Pattern::default().cheapest(&prices, &load, f64::from(to_s));
        prop_assert!(near(cost_s, cheapest_of_all(&mut prices, &load, to_s)));
    }

    #[test]
    fn minimum_payment_equals_search_over_completions(
        prices in prices(3), mut loads in proptest::collection::vec(loads(), 1..4),
    ) {
        (0..).map(LinkId).zip(&mut loads).for_each(|(link, load)| load.link = link);
        let alone_s = loads.iter().map(Load::end_s).fold(0.0, f64::max);
        let work = CoflowWork { arrived_s: 0.0, alone_s, loads };
        let (least_s, completes_s) = prices.least(&work, (alone_s, f64::INFINITY), &mut Scratch::default());
        let mut pattern = Pattern::default();
        let mut pays_s = |at_s: f64| at_s + work.loads.iter().map(|load| pattern.cheapest(&prices, load, at_s)).sum::<f64>();
        let plain_s = (0..400).map(|at| pays_s(alone_s + f64::from(at) / 20.0)).fold(f64::INFINITY, f64::min);
        prop_assert!(least_s <= plain_s + 1e-9, "{least_s} s at {completes_s} s, {plain_s} s");
        // In short intervals the bound by tangents is close to the minimum.
        let finer = prices.split((0..400).map(|at| f64::from(at) / 20.0));
        let (least_s, _) = finer.least(&work, (alone_s, f64::INFINITY), &mut Scratch::default());
        prop_assert!(least_s >= plain_s - 0.25, "{least_s} s, {plain_s} s");
    }
}

#[test]
fn coflow_is_assigned_to_one_of_its_links() {
    let network = Network::new(vec![BitRate::bps(1_000); 3]).expect("they have rates");
    let flows = [flow(0, &[0, 1], 3, 0), flow(1, &[1], 2, 0), flow(2, &[0], 2, 1)];
    let works: Vec<CoflowWork> =
        work::of_coflows(&network, &flows).into_iter().map(|(_, work)| work).collect();
    let assignment = assign(&works, 3);
    assert_eq!(assignment.links[1..], [Some(LinkId(1)), Some(LinkId(0))]);
    // On link 1, the coflow waits for the second coflow: 2 + 5 s. The third coflow takes 2 s on
    // link 0.
    assert!(near(assignment.total_s, 9.0), "{assignment:?}");
    assert_eq!(assignment.links[0], Some(LinkId(1)));
}

#[test]
fn splitting_intervals_never_lowers_the_bound() {
    let network = Network::new(vec![BitRate::bps(1_000); 2]).expect("they have rates");
    let flows = [flow(0, &[0, 1], 3, 0), flow(1, &[1], 2, 1), flow(2, &[0], 2, 1)];
    let works: Vec<CoflowWork> =
        work::of_coflows(&network, &flows).into_iter().map(|(_, work)| work).collect();
    let proof = search::prove(&works, 2, LITTLE);
    let windows = search::windows(&works);
    let mut value = PriceEvaluation::default();
    let finer = proof.prices.split([0.1, 0.7, 2.0, 2.5, 100.0]);
    finer.evaluate(&works, &windows, &mut Scratch::default(), &mut value);
    assert!(value.total_s >= proof.total_s - 1e-9, "{} s, {} s", value.total_s, proof.total_s);
}
