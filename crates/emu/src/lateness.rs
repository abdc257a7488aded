//! How late packets left against the time that the fabric meant, and whether a run's figures can be trusted.
//!
//! Read [`Report`] first.

use std::collections::BTreeMap;

use crate::Isolation;

/// Sub-buckets of a power of two: values are kept to within 1/32, 3.1 %.
const SUB_BITS: u32 = 5;
const BUCKETS: usize = 40 << SUB_BITS;

/// Counts of lengths of time in buckets that grow with the value.
///
/// Units: nanoseconds; above 2^40 ns (18 minutes) all count as that.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// One that has counted nothing.
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, max_ns: 0 }
    }

    fn bucket(ns: u64) -> usize {
        let ns = ns.min((1 << 40) - 1);
        let shift = (63 - (ns | 1).leading_zeros()).saturating_sub(SUB_BITS);
        ((shift as usize) << SUB_BITS) + (ns >> shift) as usize
    }

    /// The largest value in the bucket.
    fn bucket_end_ns(bucket: usize) -> u64 {
        let sub = 1 << SUB_BITS;
        if bucket < 2 * sub {
            return bucket as u64;
        }
        let shift = bucket / sub - 1;
        (((bucket - shift * sub + 1) as u64) << shift) - 1
    }

    /// Counts one.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts[Self::bucket(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Counts what `other` has counted as well.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many it has counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The value that `share` of all are at or below, in microseconds, rounded up to the end of its bucket; zero if
    /// there are none.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let rank = (self.total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Self::bucket_end_ns(bucket).min(self.max_ns) as f64 / 1e3;
            }
        }
        self.max_us()
    }

    /// The longest, in microseconds; zero if there are none.
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }
}

/// How the forwarder's thread is scheduled.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// Ahead of all ordinary threads (SCHED_RR).
    RealTime,
    /// With a larger share of the processor than ordinary threads (nice -20).
    Nice,
    /// As any other thread.
    Ordinary,
}

/// A run's lateness and losses, and whether its figures can be trusted.
///
/// Lateness is the time at which a packet was handed to its site less the time at which the fabric meant it to arrive.
/// The wait of a packet between its site and the emulator cannot be seen from here; the same scheduling causes both.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Report {
    /// Packets handed to sites.
    pub packets: u64,
    /// Median lateness.
    pub lateness_us_p50: f64,
    /// Lateness that 90 % of the packets do not exceed.
    pub lateness_us_p90: f64,
    /// Lateness that 99 % of the packets do not exceed.
    pub lateness_us_p99: f64,
    /// Lateness that 99.9 % of the packets do not exceed.
    pub lateness_us_p999: f64,
    /// The worst.
    pub lateness_us_max: f64,
    /// Packets that the emulated network dropped, by reason: these belong to the emulated network.
    pub drops: BTreeMap<&'static str, u64>,
    /// Packets that a site's kernel dropped since the emulator did not read them in time: these do not.
    pub device_drops: u64,
    /// Packets that a site's kernel did not take from the emulator.
    pub refused: u64,
    /// Time since the start.
    pub took_s: f64,
    /// Processor time that the forwarder used.
    pub forwarder_cpu_s: f64,
    /// Share of one processor that it used in its busiest second.
    pub forwarder_cpu_share_max: f64,
    /// Time that it was ready to run and did not, for want of a processor.
    pub forwarder_wait_s: f64,
    /// How its thread is scheduled.
    pub scheduling: Scheduling,
    /// How the namespaces were made.
    pub isolation: Isolation,
    /// The congestion control of TCP in the sites, unless a program asks for another.
    pub congestion_control: String,
    /// The bound on `lateness_us_p99` above which figures are not to be trusted.
    pub lateness_us_p99_bound: f64,
    /// Whether figures measured in this run can be trusted.
    pub trusted: bool,
    /// Why not; empty if they can be.
    pub why: Vec<String>,
}

/// Share of a processor above which the forwarder itself shapes the traffic.
const CPU_SHARE_BOUND: f64 = 0.9;

impl Report {
    /// Fills in `trusted` and `why` from the rest.
    pub(crate) fn judge(mut self) -> Self {
        let (p99, bound) = (self.lateness_us_p99, self.lateness_us_p99_bound);
        let share = self.forwarder_cpu_share_max * 100.0;
        let findings = [
            (
                p99 > bound,
                format!(
                    "1 % of the packets were more than {p99:.0} us late (bound {bound:.0} us): lower the link rates or free a processor"
                ),
            ),
            (
                self.device_drops > 0,
                format!(
                    "{} packets were lost before the emulator read them: lower the link rates",
                    self.device_drops
                ),
            ),
            (self.refused > 0, format!("{} packets were refused by a site's kernel", self.refused)),
            (
                share > CPU_SHARE_BOUND * 100.0,
                format!(
                    "the emulator used {share:.0} % of a processor in its busiest second: lower the link rates"
                ),
            ),
        ];
        self.why = findings.into_iter().filter_map(|(found, text)| found.then_some(text)).collect();
        self.trusted = self.why.is_empty();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_ends_at_or_just_above_its_values(ns in 0u64..1 << 40) {
            let end = Histogram::bucket_end_ns(Histogram::bucket(ns));
            prop_assert!(end >= ns && end - ns <= ns / 32, "{} {}", ns, end);
        }
    }

    #[test]
    fn quantiles_of_a_ramp_are_near_their_ranks() {
        let mut h = Histogram::new();
        (1..=100_000).for_each(|us| h.record(us * 1_000));
        for (share, expected) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.999, 99_900.0)] {
            let got = h.quantile_us(share);
            assert!(got >= expected && got <= expected * 1.04, "{share}: {got}");
        }
        assert_eq!((h.max_us(), h.quantile_us(1.0)), (100_000.0, 100_000.0));
    }

    #[test]
    fn merged_histograms_count_as_one() {
        let (mut odd, mut even, mut all) = (Histogram::new(), Histogram::new(), Histogram::new());
        (1..=10_000).for_each(|ns| [&mut even, &mut odd][ns as usize % 2].record(ns));
        (1..=10_000).for_each(|ns| all.record(ns));
        odd.merge(&even);
        assert_eq!((odd.total(), odd.quantile_us(0.9)), (all.total(), all.quantile_us(0.9)));
        assert_eq!(odd.max_us(), 10.0);
    }

    #[test]
    fn nothing_recorded_is_zero_and_beyond_the_range_counts() {
        let mut h = Histogram::new();
        assert_eq!(h.quantile_us(0.99), 0.0);
        h.record(u64::MAX);
        assert_eq!(h.total(), 1);
    }
}
