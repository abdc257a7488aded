//! Tests on the paper's examples, against a plain version of Algorithm 1, and of properties on
//! random networks.

use super::*;
use crate::ChasePlus;
use anabranch_fluid::{Completion, Flow, Invariant, InvariantCheck, Network, run};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use proptest::prelude::*;

/// Figure 5: coflows `a` and `b` of two flows each, 30 Mbit a flow. `links` are the rates of (s1,
/// d1), (s2, d2) and (s3, d3); a2 and b2 share the last link.
fn figure_5(links: [u64; 3], b_arrives_s: u64, allocator: &mut impl Allocator) -> Vec<f64> {
    let network = Network::new(links.map(BitRate::mbps).to_vec()).expect("all links have a rate");
    let flow = |coflow, link, arrives_s| Flow {
        coflow: CoflowId(coflow),
        route: Box::new([LinkId(link)]),
        volume: ByteCount::new(30_000_000 / 8),
        arrives: Instant::ZERO + Duration::from_secs(arrives_s),
        grows: Box::default(),
    };
    let flows = [flow(0, 0, 0), flow(0, 2, 0), flow(1, 1, b_arrives_s), flow(1, 2, b_arrives_s)];
    let outcome = run(&network, &flows, allocator).expect("it ends");
    outcome.coflows.values().map(Completion::time).map(Duration::as_secs_f64).collect()
}

#[test]
fn figure_5_coflows_take_6_and_3_seconds() {
    for priority in [Priority::Total, Priority::Remaining] {
        for is_work_conserving in [true, false] {
            let mut chase = Chase::new(priority, is_work_conserving);
            assert_eq!(figure_5([5, 10, 15], 0, &mut chase), [6.0, 3.0]);
        }
    }
    assert_eq!(figure_5([5, 10, 15], 0, &mut ChasePlus::default()), [6.0, 3.0]);
}

#[test]
fn late_flow_takes_2_seconds_with_work_conservation() {
    assert_eq!(figure_5([5, 15, 15], 2, &mut Chase::new(Priority::Total, true)), [6.0, 2.0]);
    assert_eq!(figure_5([5, 15, 15], 2, &mut Chase::new(Priority::Total, false)), [6.0, 3.0]);
    assert_eq!(figure_5([5, 15, 15], 2, &mut ChasePlus::default()), [6.0, 2.0]);
}

/// Plain version of Algorithm 1 and equations 7 to 10, flow by flow. The order of coflows is its
/// only state between decisions.
struct PlainChase {
    priority: Priority,
    order: Vec<CoflowId>,
}

impl PlainChase {
    fn left(active: &ActiveFlows, rates: &BTreeMap<FlowId, f64>, link: LinkId) -> f64 {
        let used: f64 = active.flows_on(link).iter().map(|id| rates[id]).sum();
        let left = active.rate_bps(link) - used;
        if left > active.rate_bps(link) * 1e-9 { left } else { 0.0 }
    }
    fn most(active: &ActiveFlows, rates: &BTreeMap<FlowId, f64>, id: FlowId) -> f64 {
        active.route(id).map(|link| Self::left(active, rates, link)).fold(f64::INFINITY, f64::min)
    }
    /// Applies lines 1 to 6 to one coflow, without the flow that arrives.
    fn shrink(active: &ActiveFlows, rates: &mut BTreeMap<FlowId, f64>, placed: &[FlowId]) -> f64 {
        let time = placed.iter().map(|id| active.remaining_bits(*id) / rates[id]).fold(0.0, f64::max);
        placed
            .iter()
            .for_each(|id| *rates.get_mut(id).expect("it is there") = active.remaining_bits(*id) / time);
        time
    }
    fn key(&self, active: &ActiveFlows, coflow: CoflowId) -> f64 {
        match self.priority {
            Priority::Total => active.coflow_so_far(coflow).expect("it is there").1,
            Priority::Remaining => active.flows_of(coflow).iter().map(|id| active.remaining_bits(*id)).sum(),
        }
    }
}

impl Allocator for PlainChase {
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        let mut rates: BTreeMap<FlowId, f64> = active.ids().iter().map(|id| (*id, active.bps(*id))).collect();
        let mut coming: Vec<(CoflowId, FlowId)> =
            came(event).filter(|id| rates.contains_key(id)).map(|id| (active.coflow(id), id)).collect();
        coming.sort_unstable();
        coming.dedup();
        coming.iter().for_each(|(_, id)| *rates.get_mut(id).expect("it is there") = 0.0);
        let mut placed: BTreeMap<CoflowId, Vec<FlowId>> = BTreeMap::new();
        for id in active.ids().iter().filter(|id| !coming.iter().any(|(_, new)| new == *id)) {
            placed.entry(active.coflow(*id)).or_default().push(*id);
        }
        for (coflow, id) in &coming {
            for (_, flows) in placed.iter().filter(|(other, _)| *other != coflow) {
                Self::shrink(active, &mut rates, flows);
            }
            let flows = placed.entry(*coflow).or_default();
            let time = Self::shrink(active, &mut rates, flows);
            let (most, volume) = (Self::most(active, &rates, *id), active.remaining_bits(*id));
            if time < volume / most {
                rates.insert(*id, most);
                flows.iter().for_each(|other| {
                    rates.insert(*other, active.remaining_bits(*other) * most / volume);
                });
            } else {
                rates.insert(*id, volume / time);
            }
            flows.push(*id);
        }
        let has_gone = |id: &FlowId| active.flows_of(active.coflow(*id)).is_empty();
        if !coming.is_empty() || !event.grown.is_empty() || event.completed.iter().any(has_gone) {
            let mut order: Vec<CoflowId> = active.coflows().collect();
            order.sort_by(|a, b| self.key(active, *a).total_cmp(&self.key(active, *b)).then(a.cmp(b)));
            self.order = order;
        }
        let freed: BTreeSet<LinkId> = event.completed.iter().flat_map(|id| active.route(*id)).collect();
        let is_there = |id: &FlowId| active.route(*id).any(|link| freed.contains(&link));
        for coflow in &self.order {
            let flows = active.flows_of(*coflow);
            if coming.is_empty() && !flows.iter().any(is_there) {
                continue;
            }
            let through = flows.iter().map(|id| active.remaining_bits(*id) / rates[id]).fold(0.0, f64::max);
            let mut time = 0.0f64;
            for link in flows.iter().flat_map(|id| active.route(*id)) {
                let mine: Vec<&FlowId> =
                    flows.iter().filter(|id| active.route(**id).any(|other| other == link)).collect();
                let bits: f64 = mine.iter().map(|id| active.remaining_bits(**id)).sum();
                let given: f64 = mine.iter().map(|id| rates[*id]).sum();
                time = time.max(bits / (Self::left(active, &rates, link) + given));
            }
            if time < through * (1.0 - SPEED_UP_MIN) {
                flows.iter().for_each(|id| {
                    rates.insert(*id, active.remaining_bits(*id) / time);
                });
            }
        }
        for coflow in &self.order {
            let mut flows = active.flows_of(*coflow).to_vec();
            flows.sort_by(|a, b| {
                active.remaining_bits(*a).total_cmp(&active.remaining_bits(*b)).then(a.cmp(b))
            });
            for id in flows {
                *rates.get_mut(&id).expect("it is there") += Self::most(active, &rates, id);
            }
        }
        rates.iter().for_each(|(id, bps)| active.set_bps(*id, *bps));
    }
}

/// Compares two allocators during a run that follows the first one.
struct ChaseComparison {
    ours: Chase,
    plain: PlainChase,
}

impl Allocator for ChaseComparison {
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        let mut copy = active.clone();
        self.plain.allocate(event, &mut copy);
        self.ours.allocate(event, active);
        for id in active.ids() {
            let (ours, plain) = (active.bps(*id), copy.bps(*id));
            assert!((ours - plain).abs() <= 1e-6 * ours.max(1.0), "flow {}: {ours} and {plain} b/s", id.0);
        }
    }
}

/// A flow: coflow, route, bytes, arrival, and later growth as pairs of bytes and delay.
type Row = (u32, BTreeSet<u32>, u64, u64, Vec<(u64, u64)>);

/// Generates random links, and flows on these links.
fn networks() -> impl Strategy<Value = (Network, Vec<Flow>)> {
    let links = proptest::collection::vec(1u64..1_000, 1..8);
    let route = proptest::collection::btree_set(0u32..8, 1..4);
    let grows = proptest::collection::vec((0u64..2_000, 1u64..50_000), 0..3);
    let flows = proptest::collection::vec((0u32..4, route, 0u64..100_000, 0u64..2_000, grows), 0..24);
    (links, flows).prop_map(|(links, flows)| {
        let count = links.len() as u32;
        let at = |ms: u64| Instant::ZERO + Duration::from_ms(ms);
        let flow = |(coflow, route, bytes, arrives_ms, grows): Row| {
            let route: BTreeSet<LinkId> = route.into_iter().map(|link| LinkId(link % count)).collect();
            Flow {
                coflow: CoflowId(coflow),
                route: route.into_iter().collect(),
                volume: ByteCount::new(bytes),
                arrives: at(arrives_ms),
                grows: grows
                    .iter()
                    .map(|(ms, bytes)| (at(arrives_ms + ms), ByteCount::new(*bytes)))
                    .collect(),
            }
        };
        let rates = links.iter().map(|rate| BitRate::bps(rate * 1_000)).collect();
        (Network::new(rates).expect("all have a rate"), flows.into_iter().map(flow).collect())
    })
}

proptest! {
    #[test]
    fn chase_equals_algorithm_1_line_by_line((network, flows) in networks(), is_total in any::<bool>()) {
        let priority = if is_total { Priority::Total } else { Priority::Remaining };
        let plain = PlainChase { priority, order: Vec::new() };
        let mut beside = ChaseComparison { ours: Chase::new(priority, true), plain };
        run(&network, &flows, &mut beside).expect("it ends");
    }

    #[test]
    fn chase_and_chase_plus_are_work_conserving((network, flows) in networks()) {
        run(&network, &flows, &mut InvariantCheck::new(Chase::default(), Invariant::WorkConserving)).expect("it ends");
        run(&network, &flows, &mut InvariantCheck::new(ChasePlus::default(), Invariant::WorkConserving)).expect("it ends");
    }
}
