//! NewReno's window: additive increase, multiplicative decrease (RFC 5681).

use super::{Ack, Algorithm, Properties, Window};
use crate::config::Config;
use anabranch_units::Instant;

/// The state of congestion avoidance.
#[derive(Clone, Debug, Default)]
pub struct NewReno {
    /// Number of bytes acknowledged since the window last grew.
    acked: u64,
}

impl Algorithm for NewReno {
    const PROPERTIES: Properties = Properties { linux_name: Some("reno"), ..Properties::DEFAULT };

    fn new(_config: &Config) -> Self {
        Self::default()
    }

    /// Source: RFC 5681 section 3.1, in the recommended way: acknowledged bytes are counted, and
    /// the window grows by SMSS when their number reaches cwnd.
    fn avoid(&mut self, _now: Instant, w: &mut Window, ack: &Ack) {
        self.acked += ack.bytes;
        if self.acked >= w.cwnd {
            self.acked -= w.cwnd;
            w.grow(w.mss);
        }
    }

    /// Source: RFC 5681 equation 4.
    fn back_off(&mut self, w: &mut Window, flight: u64) {
        w.ssthresh = (flight / 2).max(w.least());
        self.acked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Congestion;
    use super::*;
    use crate::controls::Control;

    fn ack(bytes: u64) -> Ack {
        Ack { bytes, marked: false, una: 0, sent: 0, srtt: None, rtt: None, limited: true }
    }
    fn window(cwnd: u64, ssthresh: u64) -> Window {
        Window { cwnd, ssthresh, mss: 1_000, cwnd_max: 1 << 30, abc_limit: 1_000 }
    }

    #[test]
    fn slow_start_grows_by_a_segment_per_ack() {
        let mut control = Congestion::new(&Config { control: Control::NewReno, ..Config::default() });
        let mut w = window(2_000, 10_000);
        control.handle_ack(Instant::ZERO, &mut w, &ack(1_000));
        assert_eq!(w.cwnd, 3_000);
        control.handle_ack(Instant::ZERO, &mut w, &ack(2_000));
        assert_eq!(w.cwnd, 4_000, "an acknowledgement of two segments counts as one");
        control.handle_ack(Instant::ZERO, &mut w, &ack(300));
        assert_eq!(w.cwnd, 4_300);
        w.abc_limit = 8_000;
        control.handle_ack(Instant::ZERO, &mut w, &ack(2_000));
        assert_eq!(w.cwnd, 6_300, "unless bytes are counted");
    }

    #[test]
    fn congestion_avoidance_grows_by_a_segment_for_each_window() {
        let mut control = Congestion::new(&Config { control: Control::NewReno, ..Config::default() });
        let mut w = window(4_000, 4_000);
        for expected in [4_000, 4_000, 4_000, 5_000, 5_000] {
            control.handle_ack(Instant::ZERO, &mut w, &ack(1_000));
            assert_eq!(w.cwnd, expected);
        }
    }

    #[test]
    fn unused_window_does_not_grow() {
        let mut control = Congestion::new(&Config { control: Control::NewReno, ..Config::default() });
        let mut w = window(2_000, 10_000);
        control.handle_ack(Instant::ZERO, &mut w, &Ack { limited: false, ..ack(1_000) });
        assert_eq!(w.cwnd, 2_000);
    }

    #[test]
    fn loss_halves_the_flight_down_to_two_segments() {
        let mut control = Congestion::new(&Config { control: Control::NewReno, ..Config::default() });
        let mut w = window(20_000, 1 << 30);
        control.handle_loss(&mut w, 16_000);
        assert_eq!(w.ssthresh, 8_000);
        control.handle_loss(&mut w, 3_000);
        assert_eq!(w.ssthresh, 2_000);
    }

    #[test]
    fn repeated_timeouts_keep_one_segment_and_the_threshold() {
        let mut control = Congestion::new(&Config { control: Control::NewReno, ..Config::default() });
        let mut w = window(20_000, 1 << 30);
        control.handle_timeout(&mut w, 16_000, true);
        assert_eq!((w.cwnd, w.ssthresh), (1_000, 8_000));
        control.handle_timeout(&mut w, 1_000, false);
        assert_eq!((w.cwnd, w.ssthresh), (1_000, 8_000));
    }
}
