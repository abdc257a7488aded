//! Histogram of durations in buckets whose width grows with the duration: quantiles of any number
//! of durations in little memory.
//!
//! Leaves out: the meaning of the durations. Read [`Histogram`] first.

/// Binary logarithm of the number of sub-buckets of a power of two: values are kept to within 1/32,
/// 3.1 %.
const SUB_BITS: u32 = 5;
const BUCKETS: usize = (40 - SUB_BITS as usize + 1) << SUB_BITS;

/// Counts of durations, in buckets whose width grows with the value.
///
/// Units: nanoseconds; values above 2^40 ns (18 minutes) share the last bucket.
/// Cost: memory for the buckets up to the longest value, 9 KiB at most.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max_ns: u64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub const fn new() -> Self {
        Self { counts: Vec::new(), total: 0, max_ns: 0 }
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

    /// Counts one duration.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        let bucket = Self::bucket(ns);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        // A deserialised histogram may have too many counts, so these are cut.
        let buckets = self.counts.len().max(other.counts.len()).min(BUCKETS);
        self.counts.resize(buckets, 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of durations counted.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The duration that a `share` of all durations do not exceed, in microseconds, rounded up to
    /// the end of its bucket; zero without durations.
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

    /// The longest duration, in microseconds; zero without durations.
    pub const fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bucket_end_is_within_a_thirty_second_above_values(ns in 0u64..1 << 40) {
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
    fn empty_histogram_is_zero_and_overlong_durations_count() {
        let mut h = Histogram::new();
        assert_eq!(h.quantile_us(0.99), 0.0);
        h.record(u64::MAX);
        assert_eq!((h.total(), h.counts.len()), (1, BUCKETS));
    }
}
