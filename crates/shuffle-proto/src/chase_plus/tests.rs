//! Tests of the order of coflows, of proportions within a coflow, and of starvation.

use super::*;
use anabranch_fluid::{Flow, Network, run};
use anabranch_units::{BitRate, ByteCount, Duration};
use proptest::prelude::*;

fn flow(coflow: u32, route: &[u32], megabits: u64, arrives_ms: u64) -> Flow {
    Flow {
        coflow: CoflowId(coflow),
        route: route.iter().copied().map(LinkId).collect(),
        volume: ByteCount::new(megabits * 125_000),
        arrives: Instant::ZERO + Duration::from_ms(arrives_ms),
        grows: Box::default(),
    }
}

fn times_s(links: usize, flows: &[Flow], allocator: &mut impl Allocator) -> Vec<f64> {
    let network = Network::new(vec![BitRate::mbps(100); links]).expect("all have a rate");
    let outcome = run(&network, flows, allocator).expect("it ends");
    outcome.coflows.values().map(|done| done.time().as_secs_f64()).collect()
}

#[test]
fn large_coflow_completes_although_small_coflows_keep_arriving() {
    // The first coflow needs 1 s alone. The other coflows need 0.1 s each, and keep the link full
    // for 50 s.
    let mut flows = vec![flow(0, &[0], 100, 0)];
    flows.extend((0..500).map(|n| flow(n + 1, &[0], 10, 100 * u64::from(n))));
    let starved = times_s(1, &flows, &mut ChasePlus::without([Ablation::Due]))[0];
    assert!((50.9..51.1).contains(&starved), "{starved} s");
    let first = times_s(1, &flows, &mut ChasePlus::default())[0];
    assert!((SLOWDOWN_DUE..SLOWDOWN_DUE + 1.01).contains(&first), "{first} s");
}

#[test]
fn growth_of_a_coflow_postpones_its_deadline() {
    let mut active = ActiveFlows::new(Network::new(vec![BitRate::mbps(100)]).expect("it has a rate"));
    let mut ours = ChasePlus::default();
    let id = active.insert(CoflowId(0), &[LinkId(0)], ByteCount::new(12_500_000));
    let due_s = |ours: &ChasePlus| ours.due[&CoflowId(0)].as_secs_f64();
    active.decide(&mut ours).expect("it fits");
    assert_eq!(due_s(&ours), SLOWDOWN_DUE);
    active.grow(id, ByteCount::new(25_000_000));
    active.decide(&mut ours).expect("it fits");
    assert_eq!(due_s(&ours), 3.0 * SLOWDOWN_DUE);
    active.advance(Instant::ZERO + Duration::from_secs(100));
    active.grow(id, ByteCount::new(12_500_000));
    active.decide(&mut ours).expect("it fits");
    assert_eq!(due_s(&ours), 100.0 + SLOWDOWN_DUE);
}

#[test]
fn coflow_order_follows_links_where_the_coflow_waits() {
    // Coflow b needs 3 s on link 1, which no other coflow uses. Coflow c needs 2 s on link 0,
    // behind 2 s of coflow a. SEBF orders c before b on link 2.
    let flows = [
        flow(0, &[0], 200, 0),
        flow(1, &[1], 250, 0),
        flow(1, &[2], 150, 0),
        flow(2, &[0], 210, 0),
        flow(2, &[2], 210, 0),
    ];
    let ours = times_s(3, &flows, &mut ChasePlus::default());
    let sebf = times_s(3, &flows, &mut ChasePlus::without([Ablation::Order]));
    assert!((ours[1] - 2.5).abs() < 1e-6 && sebf[1] > 3.0, "{ours:?} {sebf:?}");
    assert!(ours.iter().sum::<f64>() < sebf.iter().sum::<f64>());
}

proptest! {
    /// The order equals the result of an exhaustive search for the next coflow.
    #[test]
    fn order_equals_an_exhaustive_search(
        flows in proptest::collection::vec((0u32..6, 0u32..4, 1u64..1_000), 1..30),
    ) {
        let network = Network::new(vec![BitRate::mbps(100); 4]).expect("all have a rate");
        let mut active = ActiveFlows::new(network);
        for (coflow, link, bytes) in flows {
            active.insert(CoflowId(coflow), &[LinkId(link)], ByteCount::new(bytes));
        }
        let order = ChasePlus::default().order(&active);
        let bits = |coflow: CoflowId, link| {
            let on = active.flows_of(coflow).iter().filter(|id| active.route(**id).any(|at| at == link));
            on.map(|id| active.remaining_bits(*id)).sum::<f64>()
        };
        let mut behind = [0.0f64; 4];
        for at in 0..order.len() {
            let through = |coflow: &CoflowId| {
                let loads = (0..4).map(|l| (l, bits(*coflow, LinkId(l))));
                loads.filter(|(_, b)| *b > 0.0).map(|(l, b)| behind[l as usize] + b).fold(0.0, f64::max)
            };
            let best = order[at..].iter().map(through).fold(f64::INFINITY, f64::min);
            prop_assert!(through(&order[at]) <= best * (1.0 + 1e-9));
            (0..4).for_each(|l| behind[l as usize] += bits(order[at], LinkId(l)));
        }
    }
}
