//! UDP sources: datagrams at a constant rate, or in bursts with pauses.
//!
//! A source only sends; the receiver counts arrivals. Intervals do not drift: a late call sends all
//! due datagrams, each once.

use anabranch_endpoint::{Endpoint, Message, PeerId, Transmit};
use anabranch_units::{BitRate, Duration, Instant, RandomStream, Serialiser};

/// One datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Number of the datagram, from 0.
    pub number: u64,
    /// Bytes on the wire, headers included.
    pub size_bytes: u32,
    /// Time at which the datagram was due to leave.
    pub sent_at: Instant,
}

impl Message for Datagram {
    fn wire_len(&self) -> u32 {
        self.size_bytes
    }
}

/// Sending pattern of a source.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Datagrams leave at a constant rate without pauses.
    Constant,
    /// Batches of datagrams leave at random: intervals are exponentially distributed, and their
    /// mean gives the rate (a Poisson process).
    Poisson {
        /// Number of datagrams that leave together, at least 1.
        batch: u32,
        /// Random stream of the intervals.
        random: RandomStream,
    },
    /// Bursts and pauses alternate, a burst first. Both lengths are exponentially distributed with
    /// these means.
    OnOff {
        /// Mean length of a burst.
        on: Duration,
        /// Mean length of a pause.
        off: Duration,
        /// Random stream of the lengths.
        random: RandomStream,
    },
}

/// Sends datagrams of one size to one peer.
#[derive(Clone, Debug)]
pub struct UdpSource {
    peer: PeerId,
    size_bytes: u32,
    gap: Serialiser,
    pattern: Pattern,
    next_at: Instant,
    /// End of the current burst.
    burst_until: Option<Instant>,
    stop_at: Option<Instant>,
    number: u64,
}

impl UdpSource {
    /// Creates a source that sends at `rate` (during bursts) from `start` on, until `stop_at` if
    /// given. Returns `None` if the rate is too low or too high to be kept exactly
    /// ([`BitRate::serialiser`]), or if the size or batch is zero.
    pub fn new(
        peer: PeerId,
        rate: BitRate,
        size_bytes: u32,
        pattern: Pattern,
        start: Instant,
        stop_at: Option<Instant>,
    ) -> Option<Self> {
        let has_batch = !matches!(pattern, Pattern::Poisson { batch: 0, .. });
        let gap = rate.serialiser().filter(|_| size_bytes > 0 && has_batch)?;
        let mut new =
            Self { peer, size_bytes, gap, pattern, next_at: start, burst_until: None, stop_at, number: 0 };
        new.begin_burst(start);
        Some(new)
    }

    /// Number of datagrams sent.
    pub const fn sent(&self) -> u64 {
        self.number
    }

    fn begin_burst(&mut self, at: Instant) {
        if let Pattern::OnOff { on, random, .. } = &mut self.pattern {
            self.burst_until = Some(at + exponential(*on, random));
        }
    }

    fn is_over(&self, at: Instant) -> bool {
        self.stop_at.is_some_and(|stop| at >= stop)
    }
}

/// Mean above which random durations are rounded to whole nanoseconds.
const EXACT_MEAN_MAX: Duration = Duration::from_ms(1);

/// A draw from the exponential distribution with this mean, in whole picoseconds, or in whole
/// nanoseconds if the mean exceeds `EXACT_MEAN_MAX`.
pub fn exponential(mean: Duration, random: &mut RandomStream) -> Duration {
    // The argument 1 - u is above 0. The last digits of the logarithm may differ between machines;
    // for 1 ms they are far below a picosecond.
    let factor = -(1.0 - random.unit_f64()).ln();
    let ps = mean.as_ps() as f64 * factor;
    if mean > EXACT_MEAN_MAX {
        Duration::from_ns((ps / 1e3) as u64)
    } else {
        Duration::from_ps(ps.round() as u64)
    }
}

impl Endpoint for UdpSource {
    type Msg = Datagram;
    type Event = std::convert::Infallible;

    fn handle_message(&mut self, _: Instant, _: PeerId, _: Datagram) {}
    fn handle_timeout(&mut self, _: Instant) {}

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<Datagram>> {
        if self.next_at > now || self.is_over(self.next_at) {
            return None;
        }
        let msg = Datagram { number: self.number, size_bytes: self.size_bytes, sent_at: self.next_at };
        self.number += 1;
        let gap = self.gap.time(self.size_bytes);
        self.next_at += match &mut self.pattern {
            Pattern::Poisson { batch, .. } if !self.number.is_multiple_of((*batch).into()) => Duration::ZERO,
            Pattern::Poisson { batch, random } => exponential(gap * u64::from(*batch), random),
            Pattern::Constant | Pattern::OnOff { .. } => gap,
        };
        if let Some(until) = self.burst_until.filter(|until| self.next_at >= *until)
            && let Pattern::OnOff { off, random, .. } = &mut self.pattern
        {
            self.next_at = self.next_at.max(until + exponential(*off, random));
            self.begin_burst(self.next_at);
        }
        Some(Transmit { to: self.peer, not_before: None, msg })
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        None
    }
    fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_over(self.next_at)).then_some(self.next_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;

    fn sent(source: &mut UdpSource, until: Instant) -> Vec<Datagram> {
        let mut all = Vec::new();
        while let Some(now) = source.poll_timeout().filter(|t| *t <= until) {
            while let Some(transmit) = source.poll_transmit(now) {
                all.push(transmit.msg);
            }
        }
        all
    }

    #[test]
    fn constant_source_keeps_its_rate_exactly() {
        let stop = Some(Instant::ZERO + Duration::from_secs(1));
        let mut source =
            UdpSource::new(PeerId(1), BitRate::mbps(8), 1_000, Pattern::Constant, Instant::ZERO, stop)
                .expect("a good rate");
        let all = sent(&mut source, Instant::MAX);
        assert_eq!(all.len(), 1_000);
        assert_eq!(all[999].sent_at, Instant::ZERO + Duration::from_ms(999));
        assert_eq!(source.poll_timeout(), None);
    }

    #[test]
    fn bursts_and_pauses_have_their_means() {
        let pattern = Pattern::OnOff {
            on: Duration::from_ms(30),
            off: Duration::from_ms(60),
            random: Seed::new(1).stream("on off", 0),
        };
        let mut source = UdpSource::new(PeerId(1), BitRate::mbps(8), 1_000, pattern, Instant::ZERO, None)
            .expect("a good rate");
        let seconds = 300;
        let all = sent(&mut source, Instant::ZERO + Duration::from_secs(seconds));
        // The source sends for a third of the time, in some 3,300 bursts. Two percent is more than
        // three standard deviations.
        let share = all.len() as f64 / (1_000 * seconds) as f64;
        assert!((0.31..0.37).contains(&share), "{share}");
    }

    #[test]
    fn batches_leave_together_and_keep_the_rate() {
        let pattern = Pattern::Poisson { batch: 8, random: Seed::new(1).stream("poisson", 0) };
        let mut source = UdpSource::new(PeerId(1), BitRate::mbps(8), 1_000, pattern, Instant::ZERO, None)
            .expect("a good rate");
        let seconds = 100;
        let all = sent(&mut source, Instant::ZERO + Duration::from_secs(seconds));
        assert!(all.chunks_exact(8).all(|batch| batch[0].sent_at == batch[7].sent_at));
        assert!(all.windows(9).all(|w| w[0].sent_at < w[8].sent_at));
        // The source sends 12,500 batches. Three percent is more than three standard deviations.
        let share = all.len() as f64 / (1_000 * seconds) as f64;
        assert!((0.97..1.03).contains(&share), "{share}");
    }

    /// Issue #48: intervals were rounded down to whole nanoseconds, so that 200 Gbit/s became 245.
    #[test]
    fn random_gaps_keep_the_mean_of_fast_links() {
        for (gbps, size_bytes) in [(90, 64), (90, 1_500), (200, 64), (200, 1_500)] {
            let pattern = Pattern::Poisson { batch: 1, random: Seed::new(1).stream("poisson", 0) };
            let rate = BitRate::gbps(gbps);
            let mut source = UdpSource::new(PeerId(1), rate, size_bytes, pattern, Instant::ZERO, None)
                .expect("a good rate");
            let count = 1_000_000;
            let last = (0..count).fold(Instant::ZERO, |_, _| {
                let at = source.poll_timeout().expect("it goes on");
                source.poll_transmit(at).expect("it is due");
                at
            });
            let measured = f64::from(count) * f64::from(size_bytes) * 8.0 / last.as_ps() as f64 * 1e3;
            // The mean of a million intervals has a standard deviation of a thousandth.
            assert!(
                (measured / gbps as f64 - 1.0).abs() < 0.004,
                "{measured} Gbit/s of {gbps}, {size_bytes} B"
            );
        }
    }

    #[test]
    fn late_call_sends_all_due_datagrams() {
        let mut source =
            UdpSource::new(PeerId(1), BitRate::mbps(8), 1_000, Pattern::Constant, Instant::ZERO, None)
                .expect("a good rate");
        let now = Instant::ZERO + Duration::from_ms(5);
        let late: Vec<_> = std::iter::from_fn(|| source.poll_transmit(now)).map(|t| t.msg.sent_at).collect();
        assert_eq!(late.len(), 6);
        assert_eq!(late[0], Instant::ZERO);
    }
}
