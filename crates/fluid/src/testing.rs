//! Random networks and flows for tests of invariants.

use crate::allocator::Allocator;
use crate::invariants::{Invariant, InvariantCheck};
use crate::network::{CoflowId, Flow, LinkId, Network};
use crate::run::run;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Coflow, route, bytes, arrival, and later growth as pairs of delay and bytes.
type Row = (u32, BTreeSet<u32>, u64, u64, Vec<(u64, u64)>);

/// Returns a strategy for random links with flows.
pub fn networks() -> impl Strategy<Value = (Network, Vec<Flow>)> {
    let links = proptest::collection::vec(1u64..1_000, 1..8);
    let route = proptest::collection::btree_set(0u32..8, 1..4);
    let grows = proptest::collection::vec((0u64..2_000, 0u64..50_000), 0..3);
    let flows = proptest::collection::vec((0u32..4, route, 0u64..100_000, 0u64..2_000, grows), 0..24);
    (links, flows).prop_map(|(links, flows)| {
        let rates = links.iter().map(|rate| BitRate::bps(rate * 1_000)).collect();
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
        (Network::new(rates).expect("all have a rate"), flows.into_iter().map(flow).collect())
    })
}

/// Creates a link of 1 Mbit/s with coflows of a single flow. `flows` contains bytes and arrivals in
/// milliseconds.
pub fn on_one_link(flows: &[(u64, u64)]) -> (Network, Vec<Flow>) {
    let flow = |(coflow, (bytes, arrives_ms)): (u32, &(u64, u64))| Flow {
        coflow: CoflowId(coflow),
        route: Box::new([LinkId(0)]),
        volume: ByteCount::new(*bytes),
        arrives: Instant::ZERO + Duration::from_ms(*arrives_ms),
        grows: Box::default(),
    };
    let network = Network::new(vec![BitRate::mbps(1)]).expect("it has a rate");
    (network, (0..).zip(flows).map(flow).collect())
}

/// Checks the invariants of an allocator. [`run`] itself checks that no link is overloaded.
pub fn keeps_the_laws(network: &Network, flows: &[Flow], inner: impl Allocator, is_fair: bool) {
    let mut watched =
        InvariantCheck::new(inner, if is_fair { Invariant::MaxMin } else { Invariant::WorkConserving });
    let outcome = run(network, flows, &mut watched).expect("it ends");
    for (flow, done) in flows.iter().zip(&outcome.flows) {
        assert!(flow.grows.iter().all(|(at, _)| done.completed >= *at) && done.completed >= flow.arrives);
        let all = outcome.coflows[&flow.coflow];
        assert!(all.arrived <= done.arrived && all.completed >= done.completed);
    }
}
