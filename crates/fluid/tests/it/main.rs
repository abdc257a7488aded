//! Tests with the Facebook trace of the coflow benchmark. They do nothing if the trace is not
//! present next to the checkout.

use anabranch_fluid::benchmark::Trace;
use anabranch_fluid::{
    Aalo, Allocator, CoflowId, Completion, Fifo, Flow, LinkId, MaxMin, Network, Outcome, Sincronia, Srf,
    Varys, Wss, benchmark, bound, coflowsim, run, run_in_epochs,
};
use anabranch_testing::skip::skip;
use anabranch_units::BitRate;
use std::collections::BTreeMap;

/// Rate of a port in the benchmark's simulator: 2^30 bits per second.
const PORT: BitRate = BitRate::bps(1 << 30);

fn recorded(coflows: usize) -> Option<Trace> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/FB2010-1Hr-150-0.txt");
    #[expect(clippy::disallowed_methods, reason = "a trace that is not part of the project")]
    let Ok(text) = std::fs::read_to_string(path) else {
        skip(&format!("no trace at {path}"));
        return None;
    };
    Some(benchmark::parse(&text, coflows).expect("it is as published"))
}

fn trace(coflows: usize) -> Option<(Network, Vec<Flow>)> {
    let trace = recorded(coflows)?;
    Some((Network::big_switch(trace.ports, PORT).expect("ports have a rate"), trace.flows))
}

/// Returns the time of each coflow with all links to itself, in seconds: a lower bound.
fn alone_s(network: &Network, flows: &[Flow]) -> BTreeMap<CoflowId, f64> {
    let mut bits: BTreeMap<(CoflowId, LinkId), f64> = BTreeMap::new();
    for flow in flows {
        for link in &flow.route {
            *bits.entry((flow.coflow, *link)).or_default() += 8.0 * flow.volume.as_u64() as f64;
        }
    }
    let mut longest = BTreeMap::new();
    for ((coflow, link), bits) in bits {
        let time: &mut f64 = longest.entry(coflow).or_default();
        *time = time.max(bits / network.rate(link).as_bps() as f64);
    }
    longest
}

fn replay(network: &Network, flows: &[Flow], mut allocator: impl Allocator) -> Outcome {
    let outcome = run(network, flows, &mut allocator).expect("it ends");
    for (coflow, alone_s) in alone_s(network, flows) {
        let time_s = outcome.coflows[&coflow].time().as_secs_f64();
        assert!(time_s >= alone_s * (1.0 - 1e-9), "coflow {}: {time_s} s, {alone_s} s alone", coflow.0);
    }
    outcome
}

/// Returns true if the mean completion time is at least the bound of the mean.
fn is_above(outcome: &Outcome, bound: &bound::Bound) -> bool {
    mean_s(outcome) >= bound.mean_s() * (1.0 - 1e-7)
}

fn mean_s(outcome: &Outcome) -> f64 {
    let times = outcome.coflows.values().map(Completion::time);
    times.map(|time| time.as_secs_f64()).sum::<f64>() / outcome.coflows.len() as f64
}

#[test]
fn no_coflow_beats_isolation_and_varys_beats_fair() {
    let Some((network, flows)) = trace(170) else { return };
    let fair = mean_s(&replay(&network, &flows, MaxMin::default()));
    assert!((8.6..8.7).contains(&fair), "{fair} s");
    let varys = mean_s(&replay(&network, &flows, Varys::default()));
    assert!((7.5..7.6).contains(&varys), "{varys} s");
}

#[test]
fn varys_is_within_a_thousandth_of_the_bound() {
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

#[test]
fn no_coflow_beats_isolation_and_means_are_unchanged() {
    let Some((network, flows)) = trace(170) else { return };
    let mean_s = |allocator: Box<dyn Allocator>| mean_s(&replay(&network, &flows, allocator));
    // Regression values: unpublished results of the first version.
    for (name, allocator, earlier_s) in [
        ("FIFO", Box::<Fifo>::default() as Box<dyn Allocator>, 10.584),
        ("shortest remaining first", Box::<Srf>::default(), 7.757),
        ("weighted shuffle scheduling", Box::<Wss>::default(), 7.603),
        ("Aalo", Box::<Aalo>::default(), 7.708),
        ("Sincronia", Box::<Sincronia>::default(), 7.530),
    ] {
        let mean_s = mean_s(allocator);
        assert!((mean_s - earlier_s).abs() < 1e-3, "{name}: {mean_s} s, earlier {earlier_s} s");
    }
}

/// Returns the sum of all coflows' times, and the median and the 95th and 99th percentiles, in
/// milliseconds. As in CoflowSim, a completion within a step counts at the step's end.
fn in_steps(network: &Network, flows: &[Flow], mut allocator: impl Allocator) -> (u64, [u64; 3]) {
    let outcome = run_in_epochs(network, flows, coflowsim::STEP, &mut allocator).expect("it ends");
    // A completion within the rounding error after a step's end belongs to this step.
    let in_steps = |all: &Completion| (all.time().as_ps() - 10).div_ceil(coflowsim::STEP.as_ps());
    let mut times_ms: Vec<u64> =
        outcome.coflows.values().map(|all| in_steps(all) * coflowsim::STEP.as_us() / 1000).collect();
    times_ms.sort_unstable();
    let at = |percent: usize| times_ms[(times_ms.len() * percent).div_ceil(100) - 1];
    (times_ms.iter().sum(), [at(50), at(95), at(99)])
}

/// Compares with CoflowSim's results for the first 170 coflows, from a run with its defaults (SEBF
/// and FIFO): means of 7.793 s and 10.916 s.
#[test]
fn varys_and_fifo_match_coflowsim_to_the_millisecond() {
    let Some(trace) = recorded(170) else { return };
    let trace = trace.as_coflowsim();
    let network = Network::big_switch(trace.ports, coflowsim::PORT).expect("ports have a rate");
    let varys = in_steps(&network, &trace.flows, Varys::like_coflowsim());
    assert_eq!(varys, (1_324_776, [112, 6144, 165_928]));
    let fifo = in_steps(&network, &trace.flows, Fifo::like_coflowsim());
    assert_eq!(fifo, (1_855_744, [112, 22_472, 164_640]));
}
