//! The paper's example, limits, and laws on random networks.

use super::*;
use crate::active::ROUNDING;
use crate::allocator::Event;
use crate::{Aalo, MaxMin, Varys};
use anabranch_units::BitRate;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Flow Chasing's Figure 5: transfers `a` and `b` of two flows each, 30 Mbit a flow. `links` are the rates of (s1, d1),
/// (s2, d2) and (s3, d3), of which a2 and b2 share the last.
fn figure_5(links: [u64; 3], b_arrives_s: u64) -> (Network, Vec<Flow>) {
    let network = Network::new(links.map(BitRate::mbps).to_vec()).expect("all links have a rate");
    let flow = |transfer, link, arrives_s| Flow {
        transfer: TransferId(transfer),
        route: Box::new([LinkId(link)]),
        volume: ByteCount::new(30_000_000 / 8),
        arrives: Instant::ZERO + Duration::from_secs(arrives_s),
        grows: Box::default(),
    };
    let flows = vec![flow(0, 0, 0), flow(0, 2, 0), flow(1, 1, b_arrives_s), flow(1, 2, b_arrives_s)];
    (network, flows)
}

#[test]
fn fair_sharing_takes_6_and_4_seconds_in_figure_5() {
    let (network, flows) = figure_5([5, 10, 15], 0);
    let outcome = run(&network, &flows, &mut MaxMin::default()).expect("it ends");
    let times: Vec<Duration> = outcome.transfers.values().map(Completion::time).collect();
    assert_eq!(times, [Duration::from_secs(6), Duration::from_secs(4)]);
    let at = |flow: usize| outcome.flows[flow].completed;
    assert_eq!([at(0), at(1), at(2), at(3)], [6, 4, 3, 4].map(|s| Instant::ZERO + Duration::from_secs(s)));
}

#[test]
fn who_chases_its_bottleneck_leaves_the_other_transfer_3_seconds_in_figure_5() {
    let (network, flows) = figure_5([5, 10, 15], 0);
    let outcome = run(&network, &flows, &mut Varys::default()).expect("it ends");
    let times: Vec<Duration> = outcome.transfers.values().map(Completion::time).collect();
    assert_eq!(times, [Duration::from_secs(6), Duration::from_secs(3)]);
}

#[test]
fn in_epochs_rates_are_set_at_multiples_only() {
    let (network, flows) = on_one_link(&[(12_500, 0), (12_500, 3)]);
    let outcome =
        run_in_epochs(&network, &flows, Duration::from_ms(7), &mut MaxMin::default()).expect("it ends");
    // 1 Mb/s: 7 ms alone, then half of it until 193 ms; the second has the other half to 196 ms, and all to its end.
    let done: Vec<u64> = outcome.flows.iter().map(|flow| flow.completed.as_ns() / 1000).collect();
    assert_eq!(done, [193_000, 201_500]);
    assert_eq!(outcome.decisions, 4);
    let error = run_in_epochs(&network, &flows, Duration::ZERO, &mut MaxMin::default());
    assert_eq!(error, Err(RunError::NoEpoch));
}

/// Gives every flow the same rate, whatever there is.
struct Same(f64);
impl Allocator for Same {
    fn allocate(&mut self, _: &Event, active: &mut Active) {
        for id in active.ids().to_vec() {
            active.set_bps(id, self.0);
        }
    }
}

#[test]
fn what_an_allocator_may_not_decide_is_refused() {
    let (network, flows) = figure_5([5, 10, 15], 0);
    let error = |bps: f64| run(&network, &flows, &mut Same(bps)).expect_err("no decision");
    assert!(run(&network, &flows, &mut Same(5e6)).is_ok());
    assert_eq!(error(5.1e6), RunError::Overload { link: LinkId(0), bps: 5.1e6 });
    assert_eq!(error(0.0), RunError::Stalled { at: Instant::ZERO, flows: 4 });
    assert_eq!(error(-1.0), RunError::Rate { flow: FlowId(0), bps: -1.0 });
    assert!(matches!(error(f64::NAN), RunError::Rate { flow: FlowId(0), .. }));
    assert_eq!(error(1e-3).to_string(), "flow 0: takes longer than 213 days");
}

#[test]
fn a_route_crosses_links_that_are_there_once_each() {
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
fn nothing_takes_no_time() {
    let (network, mut flows) = figure_5([5, 10, 15], 2);
    flows.iter_mut().for_each(|flow| flow.volume = ByteCount::ZERO);
    let outcome = run(&network, &flows, &mut MaxMin::default()).expect("it ends");
    assert!(outcome.flows.iter().all(|flow| flow.time() == Duration::ZERO));
    assert!(run(&network, &[], &mut MaxMin::default()).expect("it ends").flows.is_empty());
}

/// Looks at each decision of another, and adds up what flows move: all that they had to when they complete.
struct Watched<A> {
    inner: A,
    is_fair: bool,
    /// By name.
    moved_bits: Vec<f64>,
    last: Option<(Instant, Vec<(FlowId, f64)>)>,
}

impl<A: Allocator> Allocator for Watched<A> {
    fn allocate(&mut self, event: &Event, active: &mut Active) {
        if let Some((since, rates)) = self.last.take() {
            let time_s = active.now().saturating_since(since).as_secs_f64();
            rates.iter().for_each(|(id, bps)| self.moved_bits[id.0 as usize] += bps * time_s);
        }
        for id in &event.completed {
            let (moved, volume) = (self.moved_bits[id.0 as usize], active.volume_bits(*id));
            assert!((moved - volume).abs() <= 1e-6 * volume.max(1.0), "{moved} of {volume} bits");
        }
        self.moved_bits.resize(active.ids_end(), 0.0);
        event.arrived.iter().for_each(|id| self.moved_bits[id.0 as usize] = 0.0);
        self.inner.allocate(event, active);
        let mut fastest = vec![0.0f64; active.network().links()];
        let mut load = vec![0.0; active.network().links()];
        for id in active.ids() {
            for link in active.route(*id) {
                load[link.0 as usize] += active.bps(*id);
                fastest[link.0 as usize] = fastest[link.0 as usize].max(active.bps(*id));
            }
        }
        // Work is conserved: each flow has a link that is full. Max-min is that no flow is faster there.
        for id in active.ids() {
            let is_bottleneck = |link: LinkId| {
                let (rate, at) = (active.rate_bps(link), link.0 as usize);
                let is_first = !self.is_fair || active.bps(*id) >= fastest[at] * (1.0 - ROUNDING);
                load[at] >= rate * (1.0 - 2.0 * ROUNDING) && is_first
            };
            assert!(active.route(*id).any(is_bottleneck), "flow {} has no bottleneck", id.0);
        }
        self.last = Some((active.now(), active.ids().iter().map(|id| (*id, active.bps(*id))).collect()));
    }
    fn next_decision(&self, active: &Active) -> Option<Instant> {
        self.inner.next_decision(active)
    }
}

/// Transfer, route, bytes, arrival, and what comes how much later.
type Row = (u32, BTreeSet<u32>, u64, u64, Vec<(u64, u64)>);

/// Random links, and flows on them.
pub(crate) fn networks() -> impl Strategy<Value = (Network, Vec<Flow>)> {
    let links = proptest::collection::vec(1u64..1_000, 1..8);
    let route = proptest::collection::btree_set(0u32..8, 1..4);
    let grows = proptest::collection::vec((0u64..2_000, 0u64..50_000), 0..3);
    let flows = proptest::collection::vec((0u32..4, route, 0u64..100_000, 0u64..2_000, grows), 0..24);
    (links, flows).prop_map(|(links, flows)| {
        let rates = links.iter().map(|rate| BitRate::bps(rate * 1_000)).collect();
        let count = links.len() as u32;
        let at = |ms: u64| Instant::ZERO + Duration::from_ms(ms);
        let flow = |(transfer, route, bytes, arrives_ms, grows): Row| {
            let route: BTreeSet<LinkId> = route.into_iter().map(|link| LinkId(link % count)).collect();
            Flow {
                transfer: TransferId(transfer),
                route: route.into_iter().collect(),
                volume: ByteCount::new(bytes),
                arrives: at(arrives_ms),
                grows: grows
                    .iter()
                    .map(|(ms, bytes)| (at(arrives_ms + ms), ByteCount::new(*bytes)))
                    .collect(),
            }
        };
        (Network::new(rates).expect("all have a rate"), flows.into_iter().map(flow).collect())
    })
}

/// One link of a megabit a second, and on it transfers of one flow each: bytes, and when they come in milliseconds.
pub(crate) fn on_one_link(flows: &[(u64, u64)]) -> (Network, Vec<Flow>) {
    let flow = |(transfer, (bytes, arrives_ms)): (u32, &(u64, u64))| Flow {
        transfer: TransferId(transfer),
        route: Box::new([LinkId(0)]),
        volume: ByteCount::new(*bytes),
        arrives: Instant::ZERO + Duration::from_ms(*arrives_ms),
        grows: Box::default(),
    };
    let network = Network::new(vec![BitRate::mbps(1)]).expect("it has a rate");
    (network, (0..).zip(flows).map(flow).collect())
}

/// What holds whoever allocates; that no link is above its rate, [`run`] sees to.
pub(crate) fn keeps_the_laws(network: &Network, flows: &[Flow], inner: impl Allocator, is_fair: bool) {
    let mut watched = Watched { inner, is_fair, moved_bits: Vec::new(), last: None };
    let outcome = run(network, flows, &mut watched).expect("it ends");
    for (flow, done) in flows.iter().zip(&outcome.flows) {
        assert!(flow.grows.iter().all(|(at, _)| done.completed >= *at) && done.completed >= flow.arrives);
        let all = outcome.transfers[&flow.transfer];
        assert!(all.arrived <= done.arrived && all.completed >= done.completed);
    }
}

proptest! {
    #[test]
    fn max_min_is_fair_and_what_flows_move_is_their_volume((network, flows) in networks()) {
        keeps_the_laws(&network, &flows, MaxMin::default(), true);
    }

    #[test]
    fn epochs_of_a_picosecond_are_none((network, flows) in networks()) {
        let epoch = Duration::from_ps(1);
        for mut allocator in [Box::<Varys>::default() as Box<dyn Allocator>, Box::<Aalo>::default()] {
            let exact = run(&network, &flows, &mut allocator);
            prop_assert_eq!(run_in_epochs(&network, &flows, epoch, &mut allocator), exact);
        }
    }

    #[test]
    fn varys_leaves_nothing_that_a_flow_could_use((network, flows) in networks()) {
        keeps_the_laws(&network, &flows, Varys::default(), false);
    }
}
