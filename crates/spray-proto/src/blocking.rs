//! Estimates of a sender from echoes: the probability that a packet is blocked, and round trips
//! with and without blocking.
//!
//! Source: CAPS, sections VI-A, VI-B and IX-C. A round trip of more than twice the smoothed one
//! belongs to a blocked packet. The smoothed round trip averages the means of periods of 200 us.
//! Differs: the paper measures the probability in one flow's last period. A short flow ends before
//! the measurement is meaningful. So all flows to the same host count together, for some tens of
//! milliseconds, and flows to other hosts supplement a small sample.
//!
//! Read [`BlockingEstimator`] and [`Share`] first.

use crate::model::BLOCKED_MAX;
use anabranch_units::{Duration, Instant};

/// Period over which round trips are averaged before smoothing.
const PERIOD: Duration = Duration::from_us(200);
/// Time constant of the exponential decay of a packet's weight. Long flows last for tens of
/// milliseconds, and a host begins a short flow about once in this time.
const MEMORY: Duration = Duration::from_ms(50);
/// Maximum weight of the sample from other hosts, in packets.
const OTHERS: f64 = 8.0;
/// Minimum number of packets from which a share is estimated.
const PACKETS_MIN: f64 = 4.0;

/// Exponentially decaying share of blocked packets.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Share {
    blocked: f64,
    all: f64,
    at: Instant,
}

impl Share {
    fn weight(&self, now: Instant) -> f64 {
        (-now.saturating_since(self.at).as_secs_f64() / MEMORY.as_secs_f64()).exp()
    }
    /// Counts a packet.
    pub(crate) fn count(&mut self, now: Instant, is_blocked: bool) {
        let weight = self.weight(now);
        self.blocked = self.blocked * weight + f64::from(u8::from(is_blocked));
        self.all = self.all * weight + 1.0;
        self.at = now;
    }
    /// Probability of being blocked. `others` supplements a small sample.
    pub(crate) fn probability(&self, now: Instant, others: &Self) -> f64 {
        let weight = self.weight(now);
        let (blocked, all) = (self.blocked * weight, self.all * weight);
        let theirs = others.all * others.weight(now);
        let borrowed = if theirs >= PACKETS_MIN { theirs.min(OTHERS) } else { 0.0 };
        if all + borrowed < PACKETS_MIN {
            return 0.0;
        }
        let of_others = if borrowed > 0.0 { others.blocked / others.all } else { 0.0 };
        ((blocked + borrowed * of_others) / (all + borrowed)).min(BLOCKED_MAX)
    }
}

/// Round-trip statistics of one host.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockingEstimator {
    smoothed: Option<Duration>,
    period_at: Instant,
    /// Sum of the current period's round trips in seconds, and their number.
    period: (f64, u32),
    /// Statistics of the last ended period until they are read: mean in seconds, and relative
    /// difference between the mean and the smoothed round trip.
    ended: Option<(f64, f64)>,
    free_max: Option<Duration>,
    blocked_max: Option<Duration>,
    share: Share,
}

impl BlockingEstimator {
    /// Records a packet's round trip. Returns whether the packet was blocked, once that is known.
    /// An excess below `jitter` does not count as blocking.
    pub(crate) fn sample(&mut self, now: Instant, rtt: Duration, jitter: Duration) -> Option<bool> {
        if now.saturating_since(self.period_at) >= PERIOD && self.period.1 > 0 {
            let mean = self.period.0 / f64::from(self.period.1);
            let smoothed = self.smoothed.map_or(mean, |before| before.as_secs_f64() * 0.875 + mean * 0.125);
            self.smoothed = Some(Duration::from_ps((smoothed * 1e12) as u64));
            self.ended = Some((mean, (smoothed - mean).abs() / mean.max(f64::MIN_POSITIVE)));
            (self.period, self.period_at) = ((0.0, 0), now);
        }
        self.period.0 += rtt.as_secs_f64();
        self.period.1 += 1;
        let smoothed = self.smoothed?;
        let is_blocked = rtt > (smoothed + smoothed).max(smoothed + jitter);
        self.share.count(now, is_blocked);
        let longest = if is_blocked { &mut self.blocked_max } else { &mut self.free_max };
        // The longest round trip decays slowly.
        let faded = longest.map_or(0, |longest| longest.as_ps() - longest.as_ps() / 64);
        *longest = Some(Duration::from_ps(faded.max(rtt.as_ps())));
        Some(is_blocked)
    }
    /// Returns the statistics of the last ended period (see the paper's Figure 19), once.
    pub(crate) const fn take_period(&mut self) -> Option<(f64, f64)> {
        self.ended.take()
    }
    /// The smoothed round trip, once known.
    pub(crate) const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }
    /// Longest round trips of unblocked and of blocked packets.
    pub(crate) const fn longest(&self) -> (Option<Duration>, Option<Duration>) {
        (self.free_max, self.blocked_max)
    }
    /// Probability of being blocked. `others` has the statistics of all hosts.
    pub(crate) fn probability(&self, now: Instant, others: &Share) -> f64 {
        self.share.probability(now, others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_us(us)
    }

    #[test]
    fn period_mean_differs_from_the_smoothed_round_trip() {
        let mut blocking = BlockingEstimator::default();
        for (us, rtt) in [(0, 100), (100, 300), (300, 400), (600, 400)] {
            blocking.sample(at(us), Duration::from_us(rtt), Duration::ZERO);
        }
        // The second period's mean is 400 us; the smoothed round trip moves from 200 us an eighth
        // of the way to 400 us.
        let (mean, apart) = blocking.take_period().expect("two have ended");
        assert!((mean - 400e-6).abs() < 1e-12 && (apart - 175.0 / 400.0).abs() < 1e-6, "{mean} {apart}");
        assert_eq!(blocking.take_period(), None);
    }

    #[test]
    fn blocking_probability_equals_share_of_long_round_trips() {
        let (mut blocking, mut pooled) = (BlockingEstimator::default(), Share::default());
        for n in 0..2_000 {
            let rtt = if n % 10 == 0 { 1_000 } else { 100 };
            if let Some(is_blocked) = blocking.sample(at(n * 20), Duration::from_us(rtt), Duration::ZERO) {
                pooled.count(at(n * 20), is_blocked);
            }
        }
        let now = at(40_000);
        let p = blocking.probability(now, &Share::default());
        assert!((p - 0.1).abs() < 0.01, "{p}");
        assert_eq!(blocking.smoothed().expect("known").as_us() / 10, 19);
        let (free, blocked) = blocking.longest();
        assert_eq!(free, Some(Duration::from_us(100)));
        assert_eq!(blocked, Some(Duration::from_us(1_000)));
        // A host without samples is assumed to be like the other hosts.
        assert!((BlockingEstimator::default().probability(now, &pooled) - 0.1).abs() < 0.01);
        // Old observations do not count.
        assert!(blocking.probability(at(1_040_000), &pooled) == 0.0);
    }

    #[test]
    fn delay_within_the_jitter_does_not_count_as_blocking() {
        let mut blocking = BlockingEstimator::default();
        let mut counts = [0, 0];
        for n in 0..1_000 {
            let rtt = Duration::from_us([100, 500, 700][usize::from(n % 20 == 0) + usize::from(n % 40 == 0)]);
            if blocking.sample(at(n * 50), rtt, Duration::from_us(500)) == Some(true) {
                counts[usize::from(n % 40 == 0)] += 1;
            }
        }
        assert_eq!(counts, [0, 24], "only those of 700 us are, the first of which begins the count");
    }

    #[test]
    fn blocking_probability_needs_packets_and_has_a_maximum() {
        let mut share = Share::default();
        for n in 0..3 {
            share.count(at(n), true);
        }
        assert!(share.probability(at(3), &Share::default()) == 0.0);
        for n in 3..100 {
            share.count(at(n), true);
        }
        assert!(share.probability(at(100), &Share::default()) == BLOCKED_MAX);
    }
}
