//! Cubic (RFC 9438): the window follows a cubic function of the time since the last loss.
//!
//! All values are integers: bytes, and milliseconds since the epoch began. One division per
//! acknowledgement rounds down. Differs: there is no reaction to spurious losses (section 4.9).

use super::{Ack, Algorithm, Properties, Window};
use crate::config::Config;
use anabranch_units::{Duration, Instant};

/// Beta, the share of the congestion window that remains after a loss (section 4.6): 0.7.
const BETA: (u64, u64) = (7, 10);

/// The state of congestion avoidance.
#[derive(Clone, Debug, Default)]
pub struct Cubic {
    /// Window just before the last loss, reduced if the window had not grown back to its previous
    /// maximum (section 4.7).
    w_max: u64,
    epoch: Option<Epoch>,
    /// Window at the last loss, for the Reno-friendly region (section 4.3: cwnd_prior).
    cwnd_prior: u64,
    /// Pending growth of the congestion window in bytes, multiplied by `cwnd`.
    credit: u128,
}

/// One period of congestion avoidance.
#[derive(Clone, Debug)]
struct Epoch {
    began: Instant,
    /// Time in milliseconds at which the curve reaches `w_max` again (K of equation 2).
    k_ms: u64,
    /// Window at the curve's inflection point: `w_max`, or the window at the beginning of the epoch
    /// if that is larger.
    origin: u64,
    /// Reno's window (section 4.3: W_est).
    w_est: u64,
    /// Pending growth of Reno's window in bytes, multiplied by `cwnd`.
    est_credit: u128,
}

impl Algorithm for Cubic {
    const PROPERTIES: Properties =
        Properties { linux_name: Some("cubic"), has_hystart: true, ..Properties::DEFAULT };

    fn new(_config: &Config) -> Self {
        Self::default()
    }

    /// Source: sections 4.2 to 4.5.
    fn avoid(&mut self, now: Instant, w: &mut Window, ack: &Ack) {
        let (w_max, cwnd) = (self.w_max, w.cwnd);
        let epoch = self.epoch.get_or_insert_with(|| {
            self.credit = 0;
            Epoch {
                began: now,
                // K = cbrt((W_max - cwnd_epoch) / C) with C = 0.4, for windows in segments and time
                // in seconds.
                k_ms: cube_root(u128::from(w_max.saturating_sub(cwnd)) * 2_500_000_000 / u128::from(w.mss)),
                origin: w_max.max(cwnd),
                w_est: cwnd,
                est_credit: 0,
            }
        });
        let ahead = ack.srtt.unwrap_or(Duration::ZERO);
        let t_ms = (now.saturating_since(epoch.began) + ahead).as_us() / 1_000;
        let target = curve(epoch, t_ms, w.mss).clamp(cwnd, cwnd + cwnd / 2);

        // In the Reno-friendly region, alpha is 3 (1 - beta) / (1 + beta) = 9/17 until W_est
        // reaches the window at the last loss, and then 1.
        let (alpha, parts) = if epoch.w_est < self.cwnd_prior { (9, 17) } else { (1, 1) };
        epoch.est_credit += u128::from(ack.bytes) * u128::from(w.mss) * alpha / parts;
        let grown = (epoch.est_credit / u128::from(cwnd)) as u64;
        epoch.est_credit -= u128::from(grown) * u128::from(cwnd);
        epoch.w_est += grown;

        let now_ms = now.saturating_since(epoch.began).as_us() / 1_000;
        if curve(epoch, now_ms, w.mss) < epoch.w_est {
            return w.grow(epoch.w_est.saturating_sub(cwnd));
        }
        // The window grows by (target - cwnd) / cwnd segments per acknowledged segment.
        self.credit += u128::from(target - cwnd) * u128::from(ack.bytes);
        let grown = (self.credit / u128::from(cwnd)) as u64;
        self.credit -= u128::from(grown) * u128::from(cwnd);
        w.grow(grown);
    }

    /// Source: sections 4.6 and 4.7.
    fn back_off(&mut self, w: &mut Window, flight: u64) {
        self.cwnd_prior = w.cwnd;
        // Fast convergence: a flow whose window had not grown back leaves room for competing flows.
        self.w_max = if w.cwnd < self.w_max { w.cwnd * (BETA.0 + BETA.1) / (2 * BETA.1) } else { w.cwnd };
        w.ssthresh = (flight * BETA.0 / BETA.1).max(w.least());
        self.epoch = None;
    }

    fn forget_epoch(&mut self) {
        self.epoch = None;
    }
}

/// Window by equation 1 in bytes, `origin + C (t - K)^3`, but at least a segment.
fn curve(epoch: &Epoch, t_ms: u64, mss: u64) -> u64 {
    // More than an hour from its inflection point, the curve exceeds any window.
    let d = (i128::from(t_ms) - i128::from(epoch.k_ms)).clamp(-3_600_000, 3_600_000);
    // C = 0.4 segments per cubic second, which is 4 mss / 10^10 for milliseconds.
    let bytes = i128::from(epoch.origin) + 4 * i128::from(mss) * d * d * d / 10_000_000_000;
    bytes.clamp(i128::from(mss), 1 << 60) as u64
}

/// The largest integer whose cube does not exceed `n`.
fn cube_root(n: u128) -> u64 {
    let mut root = 0u128;
    for bit in (0..=42).rev() {
        let next = root | 1 << bit;
        if next * next * next <= n {
            root = next;
        }
    }
    root as u64
}

#[cfg(test)]
mod tests {
    use super::super::Congestion;
    use super::*;
    use crate::controls::Control;

    const MSS: u64 = 1_000;

    fn window(segments: u64) -> Window {
        Window { cwnd: segments * MSS, ssthresh: 0, mss: MSS, cwnd_max: 1 << 40, abc_limit: MSS }
    }

    /// Acknowledges a whole window in each of `rounds` round trips of `rtt`. Returns the window in
    /// segments after each round trip.
    fn run(control: &mut Cubic, w: &mut Window, from: Instant, rtt: Duration, rounds: u64) -> Vec<u64> {
        let mut now = from;
        let round = |_| {
            let segments = w.cwnd / MSS;
            for i in 0..segments {
                let at = now + Duration::from_ps(rtt.as_ps() / segments * i);
                let ack = Ack {
                    bytes: MSS,
                    marked: false,
                    una: 0,
                    sent: 0,
                    srtt: Some(rtt),
                    rtt: Some(rtt),
                    limited: true,
                };
                control.avoid(at, w, &ack);
            }
            now += rtt;
            w.cwnd / MSS
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn cube_roots_are_rounded_down() {
        for n in [0u128, 1, 7, 8, 26, 27, 999_999, 1_000_000, u128::from(u64::MAX)] {
            let root = u128::from(cube_root(n));
            assert!(root.pow(3) <= n && (root + 1).pow(3) > n, "{n}");
        }
    }

    #[test]
    fn loss_leaves_seven_tenths_regained_after_k() {
        let mut control = Cubic::default();
        let mut w = window(1_000);
        control.back_off(&mut w, 1_000 * MSS);
        assert_eq!(w.ssthresh, 700 * MSS);
        w.cwnd = w.ssthresh;
        // K = cbrt(300 / 0.4) = 9.086 s, that is 91 round trips of 100 ms. The window is W = 1000 +
        // 0.4 (t - K)^3.
        let grown = run(&mut control, &mut w, Instant::ZERO, Duration::from_ms(100), 120);
        for round in [20, 50, 80, 90, 119] {
            let t = (round + 1) as f64 / 10.0;
            let expected = 1_000.0 + 0.4 * (t - 9.086f64).powi(3);
            let error = grown[round] as f64 / expected - 1.0;
            assert!(error.abs() < 0.01, "round {round}: {} for {expected}", grown[round]);
        }
    }

    #[test]
    fn cubic_grows_at_least_like_reno_on_short_rtts() {
        let mut control = Cubic::default();
        let mut w = window(20);
        control.back_off(&mut w, 20 * MSS);
        w.cwnd = w.ssthresh;
        // W_est grows by 9/17 of a segment per round trip: to 14 + 53 after 100 round trips, in
        // which the curve hardly grows.
        let grown = run(&mut control, &mut w, Instant::ZERO, Duration::from_ms(1), 100);
        assert!((60..=110).contains(&grown[99]), "{}", grown[99]);
    }

    #[test]
    fn flow_that_had_not_grown_back_leaves_room() {
        let mut control = Cubic::default();
        let mut w = window(1_000);
        control.back_off(&mut w, 1_000 * MSS);
        w.cwnd = 800 * MSS;
        control.back_off(&mut w, 800 * MSS);
        assert_eq!(control.w_max, 680 * MSS);
    }

    #[test]
    fn timeout_begins_a_new_curve() {
        let mut control = Congestion::new(&Config { control: Control::Cubic, ..Config::default() });
        let mut w = window(100);
        control.handle_timeout(&mut w, 100 * MSS, true);
        assert_eq!((w.cwnd, w.ssthresh), (MSS, 70 * MSS));
    }
}
