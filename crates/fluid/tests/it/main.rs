//! The Facebook trace of the coflow benchmark, where it lies beside the checkout.

use anabranch_fluid::{
    Allocator, Completion, Flow, LinkId, MaxMin, Network, Outcome, TransferId, Varys, benchmark, bound, run,
};
use anabranch_units::BitRate;
use std::collections::BTreeMap;

/// As the benchmark's simulator has it: 2^30 bits a second.
const PORT: BitRate = BitRate::bps(1 << 30);

fn trace(transfers: usize) -> Option<(Network, Vec<Flow>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/FB2010-1Hr-150-0.txt");
    #[expect(clippy::disallowed_methods, reason = "a trace that is not part of the project")]
    let Ok(text) = std::fs::read_to_string(path) else {
        eprintln!("skipped (1 so far): no trace at {path}");
        return None;
    };
    let trace = benchmark::parse(&text, transfers).expect("it is as published");
    Some((Network::big_switch(trace.ports, PORT).expect("ports have a rate"), trace.flows))
}

/// The time that each transfer takes with all links to itself, in seconds: nobody can be faster.
fn alone_s(network: &Network, flows: &[Flow]) -> BTreeMap<TransferId, f64> {
    let mut bits: BTreeMap<(TransferId, LinkId), f64> = BTreeMap::new();
    for flow in flows {
        for link in &flow.route {
            *bits.entry((flow.transfer, *link)).or_default() += 8.0 * flow.volume.as_u64() as f64;
        }
    }
    let mut longest = BTreeMap::new();
    for ((transfer, link), bits) in bits {
        let time: &mut f64 = longest.entry(transfer).or_default();
        *time = time.max(bits / network.rate(link).as_bps() as f64);
    }
    longest
}

fn replay(network: &Network, flows: &[Flow], mut allocator: impl Allocator) -> Outcome {
    let outcome = run(network, flows, &mut allocator).expect("it ends");
    for (transfer, alone_s) in alone_s(network, flows) {
        let time_s = outcome.transfers[&transfer].time().as_secs_f64();
        assert!(time_s >= alone_s * (1.0 - 1e-9), "transfer {}: {time_s} s, {alone_s} s alone", transfer.0);
    }
    outcome
}

/// The mean of completion times is nowhere below the bound's.
fn is_above(outcome: &Outcome, bound: &bound::Bound) -> bool {
    mean_s(outcome) >= bound.mean_s() * (1.0 - 1e-7)
}

fn mean_s(outcome: &Outcome) -> f64 {
    let times = outcome.transfers.values().map(Completion::time);
    times.map(|time| time.as_secs_f64()).sum::<f64>() / outcome.transfers.len() as f64
}

#[test]
fn no_transfer_is_faster_than_alone_and_varys_is_faster_than_fair() {
    let Some((network, flows)) = trace(170) else { return };
    let fair = mean_s(&replay(&network, &flows, MaxMin::default()));
    assert!((8.6..8.7).contains(&fair), "{fair} s");
    let varys = mean_s(&replay(&network, &flows, Varys::default()));
    assert!((7.5..7.6).contains(&varys), "{varys} s");
}

#[test]
fn varys_is_within_a_thousandth_of_what_no_schedule_beats() {
    let Some((network, flows)) = trace(170) else { return };
    let effort = bound::Effort { splits: 6, steps: 40, branches: 0 };
    let bound = bound::total(&network, &flows, effort).expect("routes are on the switch");
    let means_s = [bound.alone_s, bound.links_s, bound.prices_s].map(|total_s| total_s / 170.0);
    assert!((7.49..7.491).contains(&means_s[0]) && (7.497..7.5).contains(&means_s[1]), "{means_s:?} s");
    assert!((7.517..7.522).contains(&means_s[2]) && bound.cases_s == bound.prices_s, "{means_s:?} s");
    let varys = replay(&network, &flows, Varys::default());
    assert!(is_above(&varys, &bound) && mean_s(&varys) < bound.mean_s() * 1.001, "{} s", mean_s(&varys));
    assert!(is_above(&replay(&network, &flows, MaxMin::default()), &bound));
}
