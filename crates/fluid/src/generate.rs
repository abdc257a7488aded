//! Generator of synthetic coflows with the statistics of a recorded hour, in the coflow benchmark's
//! format, for use without the recorded trace.
//!
//! Source: measured from `FB2010-1Hr-150-0` of github.com/coflow/coflow-benchmark (526 coflows on
//! 150 ports, a coflow every 6.9 s). As in Varys (Chowdhury, Zhong and Stoica, SIGCOMM 2014, table
//! 3), there are four kinds of coflows: without or with flows of at least 5 MB, and with at most or
//! more than 50 flows. The numbers of mappers and reducers, and the megabytes from a mapper to a
//! reducer, are drawn from the quantiles of each kind. Differs: the three values are independent
//! within a kind, arrivals are a Poisson process, and mappers and reducers are on ports with equal
//! probability, whereas some ports of the recorded hour are busier.

use anabranch_units::{RandomStream, Seed};
use std::fmt::Write as _;

/// Mean interval between arrivals in the recorded hour, in milliseconds.
pub const INTERARRIVAL_MS: f64 = 6_913.0;

/// A kind of coflows: its frequency, and its quantiles at the probabilities in `AT`.
struct Kind {
    per_mille: u64,
    mappers: [f64; 7],
    reducers: [f64; 7],
    /// Megabytes from a mapper to a reducer, averaged over reducers.
    megabytes: [f64; 7],
}

const AT: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0];
const KINDS: [Kind; 4] = [
    // Small flows, narrow coflows.
    Kind {
        per_mille: 588,
        mappers: [1.0, 1.0, 1.0, 3.0, 7.0, 25.0, 30.0],
        reducers: [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 48.0],
        megabytes: [1.0, 1.0, 1.0, 1.0, 1.0, 1.229, 3.0],
    },
    // Large flows, narrow coflows.
    Kind {
        per_mille: 171,
        mappers: [1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 16.0],
        reducers: [1.0, 1.0, 1.0, 1.0, 7.0, 36.0, 50.0],
        megabytes: [1.3, 4.889, 7.737, 24.0, 58.0, 123.0, 638.0],
    },
    // Large flows, wide coflows.
    Kind {
        per_mille: 129,
        mappers: [1.0, 4.0, 13.0, 31.0, 142.0, 147.0, 147.0],
        reducers: [4.0, 9.0, 16.0, 114.0, 122.0, 141.0, 145.0],
        megabytes: [1.411, 3.778, 11.889, 23.672, 50.153, 75.141, 501.103],
    },
    // Small flows, wide coflows.
    Kind {
        per_mille: 112,
        mappers: [1.0, 1.0, 23.0, 63.0, 122.0, 146.0, 147.0],
        reducers: [1.0, 5.0, 19.0, 55.0, 70.0, 93.0, 136.0],
        megabytes: [1.0, 1.0, 1.0, 1.016, 1.255, 2.053, 4.0],
    },
];

/// Returns a trace of `coflows` coflows on `ports` ports in the format of
/// [`crate::benchmark::parse`]. Equal seeds give equal traces.
pub fn text(coflows: u32, ports: u32, seed: Seed) -> String {
    let mut text = format!("{ports} {coflows}\n");
    let mut arrives_ms = 0.0;
    for number in 1..=coflows {
        // The trace of a seed depends on this stream name, so the name must not change.
        let mut random = seed.stream("transfer", number.into());
        arrives_ms -= INTERARRIVAL_MS * (1.0 - random.unit_f64()).ln();
        let mut at = random.below(KINDS.iter().map(|kind| kind.per_mille).sum());
        let kind = KINDS.iter().find(|kind| {
            let is_it = at < kind.per_mille;
            at = at.wrapping_sub(kind.per_mille);
            is_it
        });
        let kind = kind.expect("a number below the sum is within one of its parts");
        let count = |random: &mut RandomStream, of: &[f64; 7]| {
            (quantile(of, random.unit_f64()).round() as u32).clamp(1, ports)
        };
        let (mappers, reducers) = (count(&mut random, &kind.mappers), count(&mut random, &kind.reducers));
        let megabytes = quantile(&kind.megabytes, random.unit_f64()) * f64::from(mappers);
        write!(text, "{number} {} {mappers}", arrives_ms as u64).expect("text takes all");
        for port in some_ports(&mut random, ports, mappers) {
            write!(text, " {port}").expect("text takes all");
        }
        write!(text, " {reducers}").expect("text takes all");
        for port in some_ports(&mut random, ports, reducers) {
            // Half of the recorded coflows have reducers of equal size. In the other half, the
            // largest reducer has twice the mean size.
            let skew = if reducers == 1 { 1.0 } else { 0.5 - 0.5 * (1.0 - random.unit_f64()).ln() };
            write!(text, " {port}:{:.1}", (megabytes * skew).max(1.0)).expect("text takes all");
        }
        text.push('\n');
    }
    text
}

/// Returns the value at a quantile, interpolated between known quantiles on a logarithmic scale.
fn quantile(of: &[f64; 7], q: f64) -> f64 {
    let above = AT.iter().position(|at| q <= *at).unwrap_or(AT.len() - 1).max(1);
    let part = (q - AT[above - 1]) / (AT[above] - AT[above - 1]);
    (of[above - 1].ln() * (1.0 - part) + of[above].ln() * part).exp()
}

/// Returns `count` distinct random ports.
fn some_ports(random: &mut RandomStream, ports: u32, count: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (0..ports).collect();
    random.shuffle(&mut all);
    all.truncate(count as usize);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::parse;
    use std::collections::BTreeMap;

    #[test]
    fn generated_coflows_match_the_recorded_statistics() {
        let trace = parse(&text(2_000, 150, Seed::new(1)), usize::MAX).expect("as the format has it");
        let mut coflows: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for flow in &trace.flows {
            let sums = coflows.entry(flow.coflow).or_default();
            *sums = (sums.0 + 1, sums.1 + flow.volume.as_u64());
        }
        assert_eq!(coflows.len(), 2_000);
        let last_s = trace.flows.iter().map(|flow| flow.arrives.as_secs_f64()).fold(0.0, f64::max);
        assert!((last_s / 2_000.0 / 6.913 - 1.0).abs() < 0.1, "one every {} s", last_s / 2_000.0);
        let share = |is: &dyn Fn(&(u64, u64)) -> bool| {
            coflows.values().filter(|sums| is(sums)).count() as f64 / 2_000.0
        };
        // In the recorded hour, 0.76 of the coflows have at most 50 flows, half have at most 25 MB
        // and a tenth have more than 11 GB; the mean is 1,343 flows.
        let narrow = share(&|(flows, _)| *flows <= 50);
        assert!((0.70..0.82).contains(&narrow), "{narrow} are narrow");
        let small = share(&|(_, bytes)| *bytes <= 25 << 20);
        assert!((0.42..0.58).contains(&small), "{small} have at most 25 MB");
        let large = share(&|(_, bytes)| *bytes > 11 << 30);
        assert!((0.05..0.15).contains(&large), "{large} have more than 11 GB");
        let flows = trace.flows.len() as f64 / 2_000.0;
        assert!((900.0..1_800.0).contains(&flows), "{flows} flows in the mean");
    }

    #[test]
    fn equal_seeds_give_equal_traces() {
        assert_eq!(text(20, 10, Seed::new(1)), text(20, 10, Seed::new(1)));
        assert_ne!(text(20, 10, Seed::new(1)), text(20, 10, Seed::new(2)));
        let trace = parse(&text(20, 1, Seed::new(1)), usize::MAX).expect("as the format has it");
        assert_eq!(trace.flows.len(), 20);
    }
}
