//! HyStart++ (RFC 9406): ends slow start when round trips grow longer, before a queue overflows.
//!
//! Minimum round-trip times are compared between rounds; a round is the time in which a window is
//! acknowledged. If a round's minimum is longer, the window grows a quarter as fast for up to five
//! rounds (*conservative slow start*), and then slow start ends. If round trips shorten again, they
//! had grown for another reason, and slow start continues.
//!
//! Differs: L is 1 segment, with or without pacing (section 4.3 allows 8 with pacing).

use super::{Ack, Window};
use anabranch_units::Duration;

/// Constants of section 4.3, with the names used there.
const MIN_RTT_THRESH: Duration = Duration::from_ms(4);
const MAX_RTT_THRESH: Duration = Duration::from_ms(16);
const MIN_RTT_DIVISOR: u64 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u32 = 5;

/// The first slow start of a connection.
#[derive(Clone, Debug, Default)]
pub struct HyStart {
    /// Position whose acknowledgement ends the round.
    round_end: u64,
    last_round_min: Option<Duration>,
    round_min: Option<Duration>,
    samples: u32,
    conservative: Option<Conservative>,
}

/// Conservative slow start.
#[derive(Clone, Debug)]
struct Conservative {
    /// Minimum round-trip time at the beginning of conservative slow start.
    baseline: Duration,
    /// Number of completed rounds.
    rounds: u32,
    /// Pending growth of the congestion window in bytes, multiplied by the divisor.
    credit: u64,
}

impl HyStart {
    /// Growth of the congestion window for an acknowledgement for which slow start would add
    /// `bytes` bytes. Sets `ssthresh` at the end of slow start.
    ///
    /// Source: section 4.2.
    pub(super) fn growth(&mut self, w: &mut Window, ack: &Ack, bytes: u64) -> u64 {
        if ack.una >= self.round_end {
            self.end_round(w, ack);
        }
        if let Some(rtt) = ack.rtt {
            self.round_min = Some(self.round_min.map_or(rtt, |min| min.min(rtt)));
            self.samples += 1;
        }
        if let (true, Some(now), Some(last)) =
            (self.samples >= N_RTT_SAMPLE, self.round_min, self.last_round_min)
        {
            match &self.conservative {
                None => {
                    let eighth = Duration::from_ps(last.as_ps() / MIN_RTT_DIVISOR);
                    let thresh = eighth.clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                    if now >= last + thresh {
                        self.conservative = Some(Conservative { baseline: now, rounds: 0, credit: 0 });
                    }
                }
                Some(css) if now < css.baseline => self.conservative = None,
                Some(_) => {}
            }
        }
        let Some(css) = &mut self.conservative else { return bytes };
        css.credit += bytes;
        let grown = css.credit / CSS_GROWTH_DIVISOR;
        css.credit %= CSS_GROWTH_DIVISOR;
        grown
    }

    fn end_round(&mut self, w: &mut Window, ack: &Ack) {
        self.round_end = ack.sent;
        (self.last_round_min, self.round_min, self.samples) = (self.round_min, None, 0);
        if let Some(css) = &mut self.conservative {
            css.rounds += 1;
            if css.rounds >= CSS_ROUNDS {
                w.ssthresh = w.cwnd;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Congestion;
    use super::*;
    use crate::config::Config;
    use crate::controls::Control;
    use anabranch_units::Instant;

    const MSS: u64 = 1_000;

    /// Runs rounds of slow start with these minimum round trips in milliseconds. Returns the window
    /// in segments after each round, and the final window.
    fn run(rounds_ms: &[u64]) -> (Vec<u64>, Window) {
        let config = Config { control: Control::Cubic, ..Config::default() };
        let mut control = Congestion::new(&config);
        let mut w =
            Window { cwnd: 10 * MSS, ssthresh: u64::MAX >> 1, mss: MSS, cwnd_max: 1 << 40, abc_limit: MSS };
        let (mut una, mut after) = (0, Vec::new());
        for rtt in rounds_ms {
            for _ in 0..w.cwnd / MSS {
                una += MSS;
                let rtt = Some(Duration::from_ms(*rtt));
                let sent = una + w.cwnd;
                let ack = Ack { bytes: MSS, marked: false, una, sent, srtt: rtt, rtt, limited: true };
                control.handle_ack(Instant::ZERO, &mut w, &ack);
            }
            after.push(w.cwnd / MSS);
        }
        (after, w)
    }

    #[test]
    fn window_doubles_while_round_trips_stay_constant() {
        let (after, w) = run(&[40, 40, 44, 44]);
        assert_eq!(after, [20, 40, 80, 160], "44 ms are not an eighth more than 40");
        assert!(w.is_slow_start());
    }

    #[test]
    fn longer_round_trips_end_slow_start_five_rounds_later() {
        let (after, w) = run(&[40, 40, 46, 47, 48, 49, 50, 51, 52]);
        // From the eighth sample of the third round on, the window grows a quarter as fast.
        assert_eq!(after[2], 55);
        assert!(
            after.windows(2).skip(2).take(4).all(|w| (1.2..1.3).contains(&(w[1] as f64 / w[0] as f64))),
            "{after:?}"
        );
        assert!(!w.is_slow_start());
        assert!(after[8] <= after[7] + 2, "congestion avoidance: {after:?}");
    }

    #[test]
    fn shorter_round_trips_resume_slow_start() {
        let (after, w) = run(&[40, 40, 46, 41, 41, 41]);
        assert!(w.is_slow_start());
        assert!(after[5] as f64 > 1.8 * after[4] as f64, "{after:?}");
    }

    #[test]
    fn rtt_threshold_is_four_to_sixteen_milliseconds() {
        let (after, _) = run(&[8, 8, 11, 11]);
        assert_eq!(after[3], 160);
        let (after, _) = run(&[8, 8, 12]);
        assert!(after[2] < 80);
        let (after, _) = run(&[400, 400, 416]);
        assert!(after[2] < 80);
    }
}
