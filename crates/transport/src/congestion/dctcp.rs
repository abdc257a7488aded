//! DCTCP (RFC 8257): the window shrinks in proportion to the share of marked bytes.

use super::newreno::NewReno;
use super::properties::RequiredSetting;
use super::{Ack, Algorithm, Properties, Window};
use crate::config::Config;
use anabranch_units::Instant;

/// The value 1 in the fixed-point format of alpha.
const ONE: u64 = 1 << 20;
/// The value 1 in the settings' unit, millionths.
const PPM: u64 = 1_000_000;

/// The state of DCTCP. Its window grows like NewReno's.
#[derive(Clone, Debug)]
pub struct Dctcp {
    reno: NewReno,
    /// Smoothed share of marked bytes, in parts of [`ONE`].
    alpha: u64,
    /// g of section 3.3, in parts of [`PPM`].
    gain: u64,
    acked: u64,
    marked: u64,
    /// Position whose acknowledgement ends the observed window.
    window_end: u64,
}

impl Algorithm for Dctcp {
    const PROPERTIES: Properties = Properties {
        linux_name: Some("dctcp"),
        needs: &[(RequiredSetting::Ecn(true), "goes by ECN marks")],
        has_exact_echo: true,
        ..Properties::DEFAULT
    };

    fn new(config: &Config) -> Self {
        // Section 3.3, step 1: the initial value of alpha.
        let alpha = ONE * u64::from(config.dctcp_alpha_ppm) / PPM;
        Self {
            reno: NewReno::new(config),
            alpha,
            gain: config.dctcp_gain_ppm.into(),
            acked: 0,
            marked: 0,
            window_end: 0,
        }
    }

    /// Source: section 3.3, steps 1 to 8; DCTCP.Alpha = Alpha * (1 - g) + g * M.
    fn observe_marks(&mut self, ack: &Ack) {
        self.acked += ack.bytes;
        self.marked += if ack.marked { ack.bytes } else { 0 };
        if ack.una < self.window_end || self.acked == 0 {
            return;
        }
        let share = (u128::from(self.marked) * u128::from(ONE) / u128::from(self.acked)) as u64;
        let part = |value: u64| value * self.gain / PPM;
        self.alpha = self.alpha - part(self.alpha) + part(share);
        (self.acked, self.marked, self.window_end) = (0, 0, ack.sent);
    }

    fn avoid(&mut self, now: Instant, w: &mut Window, ack: &Ack) {
        self.reno.avoid(now, w, ack);
    }

    /// Source: section 3.5. A loss has the same effect as in a conventional TCP.
    fn back_off(&mut self, w: &mut Window, flight: u64) {
        self.reno.back_off(w, flight);
    }

    fn takes_marks_for_loss(&self) -> bool {
        false
    }

    /// Source: section 3.3, step 9: cwnd = cwnd * (1 - Alpha / 2).
    fn handle_marks(&mut self, w: &mut Window) {
        let cut = (u128::from(w.cwnd) * u128::from(self.alpha) / u128::from(2 * ONE)) as u64;
        w.cwnd = (w.cwnd - cut).max(w.least());
        w.ssthresh = w.cwnd;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(una: u64, marked: bool) -> Ack {
        Ack { bytes: 1_000, marked, una, sent: una + 10_000, srtt: None, rtt: None, limited: true }
    }
    fn window() -> Window {
        Window { cwnd: 100_000, ssthresh: 0, mss: 1_000, cwnd_max: 1 << 40, abc_limit: 1_000 }
    }

    #[test]
    fn without_marks_alpha_decays_by_a_sixteenth_each_window() {
        let mut control = Dctcp::new(&Config::default());
        let mut una = 0;
        for _ in 0..11 * 10 {
            una += 1_000;
            control.observe_marks(&ack(una, false));
        }
        // The first acknowledgement ends a window, and so does every tenth acknowledgement after
        // it.
        let expected = (15.0f64 / 16.0).powi(11) * ONE as f64;
        assert!((control.alpha as f64 / expected - 1.0).abs() < 1e-4, "{} {expected}", control.alpha);
    }

    #[test]
    fn alpha_moves_by_the_gain() {
        for gain_ppm in [1, 62_500, 150_000, 1_000_000] {
            let mut control = Dctcp::new(&Config { dctcp_gain_ppm: gain_ppm, ..Config::default() });
            control.observe_marks(&ack(1_000, false));
            let expected = (1.0 - f64::from(gain_ppm) / 1e6) * ONE as f64;
            assert!((control.alpha as f64 - expected).abs() <= 1.0, "{gain_ppm}: {}", control.alpha);
        }
        let mut control = Dctcp::new(&Config { dctcp_alpha_ppm: 0, ..Config::default() });
        control.observe_marks(&ack(1_000, true));
        assert_eq!(control.alpha, ONE / 16, "from 0 as from 1");
    }

    #[test]
    fn window_shrinks_by_half_of_alpha() {
        let mut control = Dctcp::new(&Config::default());
        let mut w = window();
        control.handle_marks(&mut w);
        assert_eq!((w.cwnd, w.ssthresh), (50_000, 50_000), "all marked: as for a loss");
        control.alpha = ONE / 8;
        control.handle_marks(&mut w);
        assert_eq!(w.cwnd, 50_000 - 3_125);
        control.alpha = 0;
        control.handle_marks(&mut w);
        assert_eq!(w.cwnd, 46_875);
    }

    #[test]
    fn alpha_converges_to_the_marked_share() {
        let mut control = Dctcp::new(&Config::default());
        let mut una = 0;
        for n in 0..10_000u64 {
            una += 1_000;
            control.observe_marks(&ack(una, n % 4 == 0));
        }
        let share = control.alpha as f64 / ONE as f64;
        assert!((share - 0.25).abs() < 0.05, "{share}");
    }
}
