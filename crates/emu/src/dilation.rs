//! Time dilation: a clock that runs slower than the machine's by a whole factor.
//!
//! Under a dilation of F every rate of the emulated network is F times lower in real time, and
//! every delay, day and night F times longer. The fabric, the hosts' programs and all reports count
//! *emulated* time, so settings and figures have the undilated network's values. Only [`Clock`]
//! converts the machine's clock. The kernel's TCP counts real time: [`settings`] stretches the
//! timers that a site can set.
//!
//! Source: Gupta et al., *To Infinity and Beyond: Time-Warped Network Emulation* (NSDI 2006);
//! Mukerjee, *Eliminating Adverse Control Plane Interactions* (CMU-CS-18-106, 2018), §2.3.3.
//! Leaves out: the clocks of unmodified programs; delayed ACK, the initial and the maximum RTO, and
//! CUBIC's epoch ([`unstretched`]). Read [`settings`] first.

use anabranch_units::{Dilation, Duration, Instant};
use std::time::Instant as WallInstant;

/// Timers of the kernel's TCP that a site can set: their paths below `/proc/sys/net`, and their
/// values without dilation.
///
/// Source: Documentation/networking/ip-sysctl.rst of Linux 6.18.
const STRETCHED: [(&str, u64); 2] =
    [("ipv4/tcp_comp_sack_delay_ns", 1_000_000), ("ipv4/tcp_comp_sack_slack_ns", 100_000)];
/// Path of the setting for the window of the minimum RTT, and its default and maximum in seconds.
/// The kernel's maximum, a day, is longer than any run.
const MIN_RTT_WINDOW: (&str, u64, u64) = ("ipv4/tcp_min_rtt_wlen", 300, 86_400);
/// Path of the minimum retransmission timeout, in microseconds of real time.
const RTO_MIN: &str = "ipv4/tcp_rto_min_us";
/// The kernel's default minimum retransmission timeout.
pub(crate) const RTO_MIN_DEFAULT: Duration = Duration::from_ms(200);
/// Largest value of [`RTO_MIN`], a C `int`.
const RTO_MIN_US_MAX: u64 = i32::MAX as u64;
/// The kernel's default of `tcp_tso_rtt_log`: bursts grow when the RTT is below 2^9 us.
const TSO_RTT_LOG: u32 = 9;
/// The kernel's minimum delay of a delayed ACK.
const DELAYED_ACK: Duration = Duration::from_ms(40);
/// The kernel's initial retransmission timeout.
const RTO_INITIAL: Duration = Duration::from_secs(1);

/// Paths below `/proc/sys/net` and values that stretch the timers of a site's TCP. Empty
/// without dilation.
pub(crate) fn settings(dilation: Dilation) -> Vec<(String, String)> {
    if dilation == Dilation::NONE {
        return Vec::new();
    }
    let factor = u64::from(dilation.factor());
    // The logarithm of the factor, rounded to the nearest integer.
    let tso_rtt_log = TSO_RTT_LOG + f64::from(dilation.factor()).log2().round() as u32;
    let stretched = STRETCHED.map(|(path, value)| (path.to_owned(), (value * factor).to_string()));
    let rto_min = rto_min(dilation, RTO_MIN_DEFAULT).expect("200 ms times the largest dilation is 205 s");
    let (window, window_s, window_s_max) = MIN_RTT_WINDOW;
    let window = (window.to_owned(), (window_s * factor).min(window_s_max).to_string());
    let tso_rtt_log = ("ipv4/tcp_tso_rtt_log".to_owned(), tso_rtt_log.to_string());
    [rto_min, tso_rtt_log, window].into_iter().chain(stretched).collect()
}

/// The setting for a minimum retransmission timeout of `least` in emulated time. The kernel rounds
/// the value up to its ticks.
///
/// Errors: `least` is too long; the error is the maximum, in emulated time.
pub(crate) fn rto_min(dilation: Dilation, least: Duration) -> Result<(String, String), Duration> {
    let us = dilation.real(least).as_micros();
    let most = Duration::from_us(RTO_MIN_US_MAX / u64::from(dilation.factor()));
    if us <= u128::from(RTO_MIN_US_MAX) { Ok((RTO_MIN.to_owned(), us.to_string())) } else { Err(most) }
}

/// Kernel timers that count real time in runs with this congestion control, each with its duration
/// in emulated time. Empty without dilation.
pub fn unstretched(dilation: Dilation, congestion_control: &str, quick_ack: bool) -> Vec<String> {
    if dilation == Dilation::NONE {
        return Vec::new();
    }
    let seen = |real: Duration| dilation.emulated(real.to_std());
    let delayed = format!("delayed ACK {}", seen(DELAYED_ACK));
    let own = match congestion_control {
        "cubic" => Some("clock of cubic"),
        "bbr" => Some("clock of bbr"),
        _ => None,
    };
    let first = format!("first RTO {}", seen(RTO_INITIAL));
    own.map(str::to_owned).into_iter().chain((!quick_ack).then_some(delayed)).chain([first]).collect()
}

/// The clock of an emulation.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Clock {
    /// Real time at which emulated time starts.
    pub started: WallInstant,
    pub dilation: Dilation,
}

impl Clock {
    pub(crate) fn new(dilation: Dilation) -> Self {
        Self { started: WallInstant::now(), dilation }
    }

    /// Emulated time since the start.
    pub(crate) fn now(&self) -> Instant {
        Instant::ZERO + self.dilation.emulated(self.started.elapsed())
    }

    /// Real time until the emulated time `at`; zero if `at` has passed.
    pub(crate) fn until(&self, at: Instant) -> std::time::Duration {
        let real = self.dilation.real(at.saturating_since(Instant::ZERO));
        real.saturating_sub(self.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twenty() -> Dilation {
        Dilation::try_from(20).expect("in range")
    }

    #[test]
    fn kernel_clocks_stretch_by_the_factor() {
        assert!(settings(Dilation::NONE).is_empty());
        let settings = settings(twenty());
        let of = |path: &str| {
            let found = settings.iter().find(|(known, _)| known == path);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(of("ipv4/tcp_rto_min_us"), Some("4000000"));
        assert_eq!(of("ipv4/tcp_tso_rtt_log"), Some("13"));
        assert_eq!(of("ipv4/tcp_comp_sack_delay_ns"), Some("20000000"));
        assert_eq!(of("ipv4/tcp_min_rtt_wlen"), Some("6000"));
        // The kernel refuses a window longer than a day.
        let window = super::settings(Dilation::MAX).into_iter().find(|(path, _)| path.ends_with("wlen"));
        assert!(window.is_some_and(|(_, value)| value.parse::<u64>().is_ok_and(|s| s <= 86_400)));
    }

    #[test]
    fn rto_minimum_is_refused_past_the_kernels_limit() {
        let most = rto_min(twenty(), Duration::from_secs(200)).expect_err("4,000 s");
        assert!(rto_min(twenty(), most).is_ok() && most < Duration::from_secs(108), "{most}");
    }

    #[test]
    fn unstretched_clocks_are_named_with_their_emulated_lengths() {
        let dilation = twenty();
        assert_eq!(unstretched(dilation, "reno", false), ["delayed ACK 2 ms", "first RTO 50 ms"]);
        assert_eq!(unstretched(dilation, "cubic", true), ["clock of cubic", "first RTO 50 ms"]);
        assert!(unstretched(Dilation::NONE, "bbr", false).is_empty());
    }
}
