//! The retransmission timeout, estimated from round-trip samples (RFC 6298).

use anabranch_units::Duration;

/// Estimates the round-trip time and the retransmission timeout.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    /// Smoothed round-trip time and its variation; `None` before the first sample.
    estimate: Option<(Duration, Duration)>,
    rto: Duration,
    /// Number of doublings since the last acknowledgement of new data.
    backoff: u32,
    rto_min: Duration,
    rto_max: Duration,
}

impl RttEstimator {
    /// An estimator without samples. `rto_initial` is the timeout until the first sample (section
    /// 2.1).
    pub fn new(rto_initial: Duration, rto_min: Duration, rto_max: Duration) -> Self {
        Self { estimate: None, rto: rto_initial, backoff: 0, rto_min, rto_max }
    }

    /// Adds a round-trip sample.
    ///
    /// Source: sections 2.2 and 2.3, alpha = 1/8, beta = 1/4. With timestamps every acknowledgement
    /// gives a sample. Both factors are therefore divided by half the number of samples expected in
    /// a window of `flight_segments` (RFC 7323, appendix G). Differs: the clock granularity G of
    /// section 2.2 is zero here, and the minimum timeout is a setting.
    pub fn sample(&mut self, rtt: Duration, flight_segments: u64) {
        let (ps, shift) = (rtt.as_ps(), (flight_segments / 2).max(1));
        let (srtt, var) = match self.estimate {
            None => (ps, ps / 2),
            Some((srtt, var)) => {
                let (srtt, var) = (srtt.as_ps(), var.as_ps());
                let toward = |old: u64, new: u64, parts: u64| {
                    if new >= old { old + (new - old) / parts } else { old - (old - new) / parts }
                };
                (toward(srtt, ps, 8 * shift), toward(var, srtt.abs_diff(ps), 4 * shift))
            }
        };
        self.estimate = Some((Duration::from_ps(srtt), Duration::from_ps(var)));
        let rto = Duration::from_ps(srtt.saturating_add(var.saturating_mul(4)));
        self.rto = rto.clamp(self.rto_min, self.rto_max);
    }

    /// Resets the back-off after an acknowledgement of new data.
    pub fn handle_progress(&mut self) {
        self.backoff = 0;
    }

    /// Doubles the timeout after an expiration of the timer (section 5.5).
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }

    /// Smoothed round-trip time; `None` before the first sample.
    pub fn srtt(&self) -> Option<Duration> {
        self.estimate.map(|(srtt, _)| srtt)
    }

    /// Current retransmission timeout.
    pub fn rto(&self) -> Duration {
        let factor = 1u64.checked_shl(self.backoff).unwrap_or(u64::MAX);
        Duration::from_ps(self.rto.as_ps().saturating_mul(factor)).min(self.rto_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimator() -> RttEstimator {
        RttEstimator::new(Duration::from_secs(1), Duration::from_us(1), Duration::from_secs(60))
    }

    #[test]
    fn first_sample_sets_the_timeout_to_three_rtts() {
        let mut e = estimator();
        assert_eq!(e.rto(), Duration::from_secs(1));
        e.sample(Duration::from_ms(100), 1);
        // The timeout is SRTT + 4 * SRTT / 2.
        assert_eq!(e.rto(), Duration::from_ms(300));
    }

    #[test]
    fn later_samples_count_an_eighth_and_a_quarter() {
        let mut e = estimator();
        e.sample(Duration::from_ms(100), 1);
        e.sample(Duration::from_ms(180), 1);
        // SRTT is 100 + 80/8 = 110 ms; its variation is 50 + (80 - 50)/4 = 57.5 ms.
        assert_eq!((e.srtt(), e.rto()), (Some(Duration::from_ms(110)), Duration::from_ms(340)));
    }

    #[test]
    fn timeout_stays_in_bounds_and_doubles_until_progress() {
        let mut e = RttEstimator::new(Duration::from_secs(1), Duration::from_ms(200), Duration::from_secs(1));
        e.sample(Duration::from_us(100), 1);
        assert_eq!(e.rto(), Duration::from_ms(200));
        for expected in [400, 800, 1000, 1000] {
            e.back_off();
            assert_eq!(e.rto(), Duration::from_ms(expected));
        }
        e.handle_progress();
        assert_eq!(e.rto(), Duration::from_ms(200));
    }
}
