//! Which reports of a hop are evidence of its link's capacity.

use super::*;
use crate::control::{Attempt, TransferId};
use anabranch_graph::LinkProperties;
use anabranch_units::SiteId;
use proptest::prelude::*;

const LINK: LinkId = LinkId(0);
const DECLARED: u64 = 100_000_000;

fn run(transfer: u64) -> Run {
    Run { transfer: TransferId(transfer), attempt: Attempt(1) }
}

/// One link between two sites.
fn links() -> Links {
    let mut topology = Topology::new("two");
    for name in ["a", "b"] {
        topology.add_site(name, None).expect("names differ");
    }
    let properties = LinkProperties::new(BitRate::bps(DECLARED), Duration::ZERO);
    topology.add_link(SiteId(0), SiteId(1), properties).expect("a good link");
    Links::new(&topology)
}

/// State of one flow during half a second.
#[derive(Copy, Clone, Debug)]
struct HalfSecond {
    /// Rate in bits of packets per second.
    bps: f64,
    blocked: f64,
    /// Part of the time in which the receiver has no room.
    waited: f64,
}

/// A link whose flows one test controls, and a clock.
struct ObservedLink {
    links: Links,
    now: Instant,
    /// Counters of each flow's receiver.
    flows: BTreeMap<u64, FlowArrival>,
}

impl ObservedLink {
    fn new() -> Self {
        Self { links: links(), now: Instant::ZERO, flows: BTreeMap::new() }
    }

    /// All flows report half a second.
    fn report(&mut self, halves: &[HalfSecond]) {
        self.now += Duration::from_ms(500);
        for (flow, half) in (0..).zip(halves) {
            let first = FlowArrival { flow: FlowId(7), received_bytes: 0, elapsed_s: 0.0, waited_s: 0.0 };
            let arrival = self.flows.entry(flow).or_insert(first);
            arrival.received_bytes += (half.bps / OVERHEAD / 8.0 / 2.0) as u64;
            arrival.elapsed_s += 0.5;
            arrival.waited_s += half.waited / 2.0;
            self.links.handle_sent(LINK, (run(flow), FlowId(7)), self.now, half.blocked);
            self.links.handle_arrived(LINK, run(flow), self.now, arrival);
        }
        self.links.poll_corrections(self.now);
    }

    fn planned_bps(&self) -> u64 {
        self.links.status(LINK).planned.as_bps()
    }

    fn carried(&self) -> Option<MeasuredRate> {
        self.links.status(LINK).carried
    }
}

/// A flow with a backlog and room at its receiver.
fn backlogged(bps: f64) -> HalfSecond {
    HalfSecond { bps, blocked: 0.95, waited: 0.01 }
}

fn halves(
    blocked: std::ops::Range<f64>,
    waited: std::ops::Range<f64>,
) -> impl Strategy<Value = Vec<HalfSecond>> {
    let half = (0.0..4.0 * DECLARED as f64, blocked, waited);
    let half = half.prop_map(|(bps, blocked, waited)| HalfSecond { bps, blocked, waited });
    proptest::collection::vec(half, 1..40)
}

proptest! {
    #[test]
    fn hop_without_backlog_never_lowers_a_capacity(halves in halves(0.0..BACKLOG_MIN, 0.0..1.0)) {
        let mut seen = ObservedLink::new();
        for half in halves {
            seen.report(&[half]);
            prop_assert!(seen.planned_bps() >= DECLARED, "{:?}", seen.carried());
        }
    }

    #[test]
    fn receiver_limited_intervals_show_no_link_capacity(halves in halves(0.0..1.0, 0.11..1.0)) {
        let mut seen = ObservedLink::new();
        for half in halves {
            seen.report(&[half]);
            prop_assert_eq!(seen.carried(), None);
        }
    }

    #[test]
    fn plans_use_a_limit_that_differs_twofold(mbps in 1.0..1_000.0_f64, flows in 1..4_usize) {
        let bps = mbps * 1e6;
        let mut seen = ObservedLink::new();
        for _ in 0..6 {
            seen.report(&vec![backlogged(bps / flows as f64); flows]);
        }
        let carried = seen.carried().expect("three seconds are enough");
        prop_assert!(carried.is_limit);
        prop_assert!((carried.rate.as_bps() as f64 / bps - 1.0).abs() < 0.01, "{carried:?}");
        let ratio = bps / DECLARED as f64;
        // Near the threshold, either capacity is correct.
        if !(0.49..0.51).contains(&ratio) && !(1.98..2.02).contains(&ratio) {
            let is_wrong = !(0.5..2.0).contains(&ratio);
            let planned = if is_wrong { carried.rate.as_bps() } else { DECLARED };
            prop_assert_eq!(seen.planned_bps(), planned);
        }
    }

    #[test]
    fn any_report_leaves_a_valid_capacity(
        reports in proptest::collection::vec((
            prop_oneof![9 => 0..1_u64 << 26, 1 => any::<u64>()],
            prop_oneof![9 => Just(0.0), 1 => any::<f64>()],
            prop_oneof![9 => Just(0.0), 1 => any::<f64>()],
            prop_oneof![9 => Just(1.0), 1 => any::<f64>()],
        ), 0..60)
    ) {
        let mut links = links();
        let mut now = Instant::ZERO;
        let (mut received_bytes, mut clock_s) = (0_u64, 0.0);
        for (bytes, error_s, waited_s, blocked) in reports {
            now += Duration::from_ms(500);
            clock_s += 0.5;
            received_bytes = received_bytes.wrapping_add(bytes);
            let elapsed_s = clock_s + error_s;
            let arrival = FlowArrival { flow: FlowId(0), received_bytes, elapsed_s, waited_s };
            links.handle_sent(LINK, (run(1), FlowId(0)), now, blocked);
            links.handle_arrived(LINK, run(1), now, &arrival);
            for (link, capacity) in links.poll_corrections(now) {
                prop_assert_eq!(links.status(link).planned, capacity);
                prop_assert!((1..=RATE_MAX as u64).contains(&capacity.as_bps()));
            }
        }
    }
}

#[test]
fn rate_that_still_grows_is_no_limit() {
    let mut seen = ObservedLink::new();
    for doubling in 0..5 {
        seen.report(&[backlogged(1e6 * f64::from(1 << doubling))]);
        assert_eq!(seen.carried(), None, "after {doubling} doublings");
    }
    for _ in 0..4 {
        seen.report(&[backlogged(32e6)]);
    }
    let carried = seen.carried().expect("it is steady");
    assert!(carried.is_limit && carried.rate.as_mbps_f64() > 31.0, "{carried:?}");
}

/// Three flows that shared one queue in bursts hid the limit of their link.
#[test]
fn flows_may_share_a_full_link_unevenly() {
    let mut seen = ObservedLink::new();
    for half in 0..8 {
        let (more, less) = if half / 2 % 2 == 0 { (15e6, 5e6) } else { (5e6, 15e6) };
        seen.report(&[backlogged(more), backlogged(less)]);
    }
    let carried = seen.carried().expect("together they are steady");
    assert!(carried.is_limit && (19.9..20.1).contains(&carried.rate.as_mbps_f64()), "{carried:?}");
}

#[test]
fn stalled_hop_keeps_its_capacity() {
    let mut seen = ObservedLink::new();
    for _ in 0..10 {
        seen.report(&[backlogged(0.0)]);
    }
    assert_eq!((seen.carried(), seen.planned_bps()), (None, DECLARED));
}

/// A flow that another link limits uses part of this link, so the remaining rate is not this link's
/// limit.
#[test]
fn flow_limited_by_another_link_hides_the_limit() {
    let mut seen = ObservedLink::new();
    for _ in 0..6 {
        seen.report(&[backlogged(20e6), HalfSecond { bps: 20e6, blocked: 0.9, waited: 0.6 }]);
    }
    assert_eq!(seen.carried(), None);
    for _ in 0..6 {
        seen.report(&[backlogged(20e6), HalfSecond { bps: 1e6, blocked: 0.9, waited: 0.6 }]);
    }
    assert_eq!(seen.carried().map(|c| c.is_limit), Some(true), "one in twenty is no traffic");
}

#[test]
fn unsaturated_rate_above_declared_raises_the_capacity() {
    let mut seen = ObservedLink::new();
    for _ in 0..6 {
        seen.report(&[HalfSecond { bps: 300e6, blocked: 0.2, waited: 0.0 }]);
    }
    assert!(seen.carried().is_some_and(|c| !c.is_limit && !seen.links.is_measured(LINK)));
    assert!((299_000_000..301_000_000).contains(&seen.planned_bps()), "{}", seen.planned_bps());
}

#[test]
fn limit_ends_at_a_higher_rate_or_expiry() {
    let mut seen = ObservedLink::new();
    for _ in 0..6 {
        seen.report(&[backlogged(10e6)]);
    }
    assert!((9_900_000..10_100_000).contains(&seen.planned_bps()));
    for _ in 0..6 {
        seen.report(&[HalfSecond { bps: 80e6, blocked: 0.0, waited: 0.0 }]);
    }
    assert_eq!(seen.planned_bps(), DECLARED, "the limit was another's traffic");
    for _ in 0..6 {
        seen.report(&[backlogged(10e6)]);
    }
    let last = seen.now;
    assert_eq!(seen.links.poll_corrections(last + RECORD_TIME - Duration::from_ms(1)), []);
    let news = seen.links.poll_corrections(last + RECORD_TIME);
    assert_eq!(news, [(LINK, BitRate::bps(DECLARED))]);
    assert_eq!(seen.carried(), None);
}

#[test]
fn flows_of_ended_attempts_are_forgotten() {
    let mut seen = ObservedLink::new();
    for _ in 0..6 {
        seen.report(&[backlogged(10e6), backlogged(30e6)]);
    }
    seen.links.handle_ended(run(0));
    seen.links.handle_ended(run(1));
    assert!(seen.links.meters.is_empty());
}
