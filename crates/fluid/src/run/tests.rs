//! Tests of runs: the example of a paper, limits, and invariants on random networks.

use super::*;
use crate::allocator::Event;
use crate::testing::{keeps_the_laws, networks, on_one_link};
use crate::{Aalo, MaxMin, Varys};
use anabranch_units::BitRate;
use proptest::prelude::*;

/// Returns the network and the flows of Flow Chasing's Figure 5: coflows `a` and `b` with two flows
/// each, 30 Mbit per flow. `links` are the rates of (s1, d1), (s2, d2) and (s3, d3); a2 and b2
/// share the last link.
fn figure_5(links: [u64; 3], b_arrives_s: u64) -> (Network, Vec<Flow>) {
    let network = Network::new(links.map(BitRate::mbps).to_vec()).expect("all links have a rate");
    let flow = |coflow, link, arrives_s| Flow {
        coflow: CoflowId(coflow),
        route: Box::new([LinkId(link)]),
        volume: ByteCount::new(30_000_000 / 8),
        arrives: Instant::ZERO + Duration::from_secs(arrives_s),
        grows: Box::default(),
    };
    let flows = vec![flow(0, 0, 0), flow(0, 2, 0), flow(1, 1, b_arrives_s), flow(1, 2, b_arrives_s)];
    (network, flows)
}

#[test]
fn fair_sharing_matches_figure_5() {
    let (network, flows) = figure_5([5, 10, 15], 0);
    let outcome = run(&network, &flows, &mut MaxMin::default()).expect("it ends");
    let times: Vec<Duration> = outcome.coflows.values().map(Completion::time).collect();
    assert_eq!(times, [Duration::from_secs(6), Duration::from_secs(4)]);
    let at = |flow: usize| outcome.flows[flow].completed;
    assert_eq!([at(0), at(1), at(2), at(3)], [6, 4, 3, 4].map(|s| Instant::ZERO + Duration::from_secs(s)));
}

#[test]
fn bottleneck_chasing_leaves_3_seconds_in_figure_5() {
    let (network, flows) = figure_5([5, 10, 15], 0);
    let outcome = run(&network, &flows, &mut Varys::default()).expect("it ends");
    let times: Vec<Duration> = outcome.coflows.values().map(Completion::time).collect();
    assert_eq!(times, [Duration::from_secs(6), Duration::from_secs(3)]);
}

#[test]
fn rates_change_only_at_epoch_boundaries() {
    let (network, flows) = on_one_link(&[(12_500, 0), (12_500, 3)]);
    let outcome =
        run_in_epochs(&network, &flows, Duration::from_ms(7), &mut MaxMin::default()).expect("it ends");
    // At 1 Mb/s, the first flow is alone for 7 ms, and then has half of the rate until 193 ms. The
    // second flow has the other half until 196 ms, and then the whole rate.
    let done: Vec<u64> = outcome.flows.iter().map(|flow| flow.completed.as_ns() / 1000).collect();
    assert_eq!(done, [193_000, 201_500]);
    assert_eq!(outcome.decisions, 4);
    let error = run_in_epochs(&network, &flows, Duration::ZERO, &mut MaxMin::default());
    assert_eq!(error, Err(RunError::NoEpoch));
}

/// Sets all flows to the same rate.
struct EqualRates(f64);
impl Allocator for EqualRates {
    fn allocate(&mut self, _: &Event, active: &mut ActiveFlows) {
        for id in active.ids().to_vec() {
            active.set_bps(id, self.0);
        }
    }
}

#[test]
fn invalid_decisions_are_refused() {
    let (network, flows) = figure_5([5, 10, 15], 0);
    let error = |bps: f64| run(&network, &flows, &mut EqualRates(bps)).expect_err("no decision");
    assert!(run(&network, &flows, &mut EqualRates(5e6)).is_ok());
    assert_eq!(error(5.1e6), RunError::Overload { link: LinkId(0), bps: 5.1e6 });
    assert_eq!(error(0.0), RunError::Stalled { at: Instant::ZERO, flows: 4 });
    assert_eq!(error(-1.0), RunError::Rate { flow: FlowId(0), bps: -1.0 });
    assert!(matches!(error(f64::NAN), RunError::Rate { flow: FlowId(0), .. }));
    assert_eq!(error(1e-3).to_string(), "flow 0: takes longer than 213 days");
}

#[test]
fn invalid_routes_are_refused() {
    let (network, mut flows) = figure_5([5, 10, 15], 0);
    for (route, error) in [
        (vec![], RunError::Route(FlowId(1))),
        (vec![LinkId(2), LinkId(2)], RunError::Route(FlowId(1))),
        (vec![LinkId(3)], RunError::NoSuchLink(FlowId(1), LinkId(3))),
    ] {
        flows[1].route = route.into();
        assert_eq!(run(&network, &flows, &mut MaxMin::default()), Err(error));
    }
}

#[test]
fn empty_volumes_take_no_time() {
    let (network, mut flows) = figure_5([5, 10, 15], 2);
    flows.iter_mut().for_each(|flow| flow.volume = ByteCount::ZERO);
    let outcome = run(&network, &flows, &mut MaxMin::default()).expect("it ends");
    assert!(outcome.flows.iter().all(|flow| flow.time() == Duration::ZERO));
    assert!(run(&network, &[], &mut MaxMin::default()).expect("it ends").flows.is_empty());
}

proptest! {
    #[test]
    fn max_min_is_fair_and_flows_move_their_volume((network, flows) in networks()) {
        keeps_the_laws(&network, &flows, MaxMin::default(), true);
    }

    #[test]
    fn epochs_of_a_picosecond_equal_exact_runs((network, flows) in networks()) {
        let epoch = Duration::from_ps(1);
        for mut allocator in [Box::<Varys>::default() as Box<dyn Allocator>, Box::<Aalo>::default()] {
            let exact = run(&network, &flows, &mut allocator);
            prop_assert_eq!(run_in_epochs(&network, &flows, epoch, &mut allocator), exact);
        }
    }

    #[test]
    fn varys_is_work_conserving((network, flows) in networks()) {
        keeps_the_laws(&network, &flows, Varys::default(), false);
    }
}
