//! Time dilation: a clock that runs slower than the machine's by a whole factor.
//!
//! Under a dilation of F every rate of the emulated network is F times lower in real time, and
//! every delay, day and night F times longer. The fabric, the hosts' programs and all reports count
//! *emulated* time, so settings and figures are the undilated network's. [`Clock`] is the one place
//! where the machine's clock is converted. The kernel's TCP counts real time:
//! [`Dilation::settings`] stretches the clocks that a site can set by itself.
//!
//! Source: Gupta et al., *To Infinity and Beyond: Time-Warped Network Emulation* (NSDI 2006);
//! Mukerjee, *Eliminating Adverse Control Plane Interactions* (CMU-CS-18-106, 2018), §2.3.3.
//! Leaves out: the clocks of unmodified programs, delayed ACK, the first and the longest RTO,
//! CUBIC's epoch ([`Dilation::unstretched`]). Read [`Dilation`] first.

use anabranch_sim::scenario::DILATION_MAX;
use anabranch_units::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::time::Instant as WallInstant;

/// Real time that passes in each second of emulated time, as a whole number from 1 to
/// [`DILATION_MAX`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Dilation(u32);

/// A dilation that no emulation can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DilationError {
    value: String,
}

impl std::fmt::Display for DilationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "dilation {}: must be a whole number from 1 to {DILATION_MAX}", self.value)
    }
}
impl std::error::Error for DilationError {}

impl TryFrom<u32> for Dilation {
    type Error = DilationError;
    fn try_from(value: u32) -> Result<Self, DilationError> {
        let is_possible = (1..=DILATION_MAX).contains(&value);
        is_possible.then_some(Self(value)).ok_or_else(|| DilationError { value: value.to_string() })
    }
}

impl std::str::FromStr for Dilation {
    type Err = DilationError;
    fn from_str(text: &str) -> Result<Self, DilationError> {
        let wrong = || DilationError { value: text.to_owned() };
        text.trim().parse::<u32>().map_err(|_| wrong())?.try_into().map_err(|_| wrong())
    }
}

impl From<Dilation> for u32 {
    fn from(dilation: Dilation) -> Self {
        dilation.0
    }
}

impl std::fmt::Display for Dilation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Default for Dilation {
    fn default() -> Self {
        Self::NONE
    }
}

/// Clocks of the kernel's TCP that a site can set, by their paths below `/proc/sys/net`, and their
/// values without dilation.
///
/// Source: Documentation/networking/ip-sysctl.rst of Linux 6.18.
const STRETCHED: [(&str, u64); 2] =
    [("ipv4/tcp_comp_sack_delay_ns", 1_000_000), ("ipv4/tcp_comp_sack_slack_ns", 100_000)];
/// Window of the least round trip in seconds, and the longest that the kernel takes: a day, longer
/// than any run.
const MIN_RTT_WINDOW: (&str, u64, u64) = ("ipv4/tcp_min_rtt_wlen", 300, 86_400);
/// Least retransmission timeout, in microseconds of real time.
const RTO_MIN: &str = "ipv4/tcp_rto_min_us";
/// The kernel's least retransmission timeout.
pub(crate) const RTO_MIN_DEFAULT: Duration = Duration::from_ms(200);
/// Largest value of [`RTO_MIN`], a C `int`.
const RTO_MIN_US_MAX: u64 = i32::MAX as u64;
/// The kernel's `tcp_tso_rtt_log`: bursts grow as the round trip falls below 2^9 us.
const TSO_RTT_LOG: u32 = 9;
/// The kernel's delayed ACK.
const DELAYED_ACK: Duration = Duration::from_ms(40);
/// The kernel's first retransmission timeout.
const RTO_INITIAL: Duration = Duration::from_secs(1);

impl Dilation {
    /// No dilation: emulated time is real time.
    pub const NONE: Self = Self(1);
    /// The largest.
    pub const MAX: Self = Self(DILATION_MAX);

    /// The factor.
    pub const fn factor(self) -> u32 {
        self.0
    }

    /// Emulated time in `real` time, rounded down.
    pub fn emulated(self, real: std::time::Duration) -> Duration {
        let ps = real.as_nanos() * 1_000 / u128::from(self.0);
        Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }

    /// Real time that `emulated` time takes, rounded up.
    pub fn real(self, emulated: Duration) -> std::time::Duration {
        let ns = (u128::from(emulated.as_ps()) * u128::from(self.0)).div_ceil(1_000);
        std::time::Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Emulated nanoseconds in `real_ns` of real time, rounded down.
    pub(crate) const fn emulated_ns(self, real_ns: u64) -> u64 {
        real_ns / self.0 as u64
    }

    /// Real nanoseconds that `emulated_ns` take.
    pub(crate) const fn real_ns(self, emulated_ns: u64) -> u64 {
        emulated_ns.saturating_mul(self.0 as u64)
    }

    /// Paths below `/proc/sys/net` and values that stretch the clocks of a site's TCP. Empty
    /// without dilation.
    pub(crate) fn settings(self) -> Vec<(String, String)> {
        if self == Self::NONE {
            return Vec::new();
        }
        let factor = u64::from(self.0);
        // The nearest power of two.
        let tso_rtt_log = TSO_RTT_LOG + f64::from(self.0).log2().round() as u32;
        let stretched = STRETCHED.map(|(path, value)| (path.to_owned(), (value * factor).to_string()));
        let rto_min = self.rto_min(RTO_MIN_DEFAULT).expect("200 ms times the largest dilation is 205 s");
        let (window, window_s, window_s_max) = MIN_RTT_WINDOW;
        let window = (window.to_owned(), (window_s * factor).min(window_s_max).to_string());
        let tso_rtt_log = ("ipv4/tcp_tso_rtt_log".to_owned(), tso_rtt_log.to_string());
        [rto_min, tso_rtt_log, window].into_iter().chain(stretched).collect()
    }

    /// The setting for a least retransmission timeout of `rto_min` in emulated time. The kernel
    /// rounds up to its ticks.
    ///
    /// Errors: the longest that it can be.
    pub(crate) fn rto_min(self, rto_min: Duration) -> Result<(String, String), Duration> {
        let us = self.real(rto_min).as_micros();
        let most = Duration::from_us(RTO_MIN_US_MAX / u64::from(self.0));
        if us <= u128::from(RTO_MIN_US_MAX) { Ok((RTO_MIN.to_owned(), us.to_string())) } else { Err(most) }
    }

    /// Kernel clocks that count real time in runs with this congestion control, each with its
    /// length in emulated time. Empty without dilation.
    pub fn unstretched(self, congestion_control: &str, quick_ack: bool) -> Vec<String> {
        if self == Self::NONE {
            return Vec::new();
        }
        let seen = |real: Duration| self.emulated(real.to_std());
        let delayed = format!("delayed ACK {}", seen(DELAYED_ACK));
        let own = match congestion_control {
            "cubic" => Some("clock of cubic"),
            "bbr" => Some("clock of bbr"),
            _ => None,
        };
        let first = format!("first RTO {}", seen(RTO_INITIAL));
        own.map(str::to_owned).into_iter().chain((!quick_ack).then_some(delayed)).chain([first]).collect()
    }
}

/// The clock of an emulation.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Clock {
    /// The beginning of emulated time.
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

    /// Real time until `at`, zero if it has passed.
    pub(crate) fn until(&self, at: Instant) -> std::time::Duration {
        let real = self.dilation.real(at.saturating_since(Instant::ZERO));
        real.saturating_sub(self.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn factors_below_one_and_past_the_limit_are_refused() {
        for wrong in ["0", "0.5", "-1", "1025", "", "two"] {
            let error = wrong.parse::<Dilation>().expect_err(wrong).to_string();
            assert_eq!(error, format!("dilation {wrong}: must be a whole number from 1 to 1024"));
        }
        assert_eq!("1".parse(), Ok(Dilation::NONE));
        assert_eq!("1024".parse(), Ok(Dilation::MAX));
        assert!(serde_json::from_str::<Dilation>("0").is_err());
    }

    #[test]
    fn kernel_clocks_stretch_by_the_factor() {
        assert!(Dilation::NONE.settings().is_empty());
        let settings = Dilation(20).settings();
        let of = |path: &str| {
            let found = settings.iter().find(|(known, _)| known == path);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(of("ipv4/tcp_rto_min_us"), Some("4000000"));
        assert_eq!(of("ipv4/tcp_tso_rtt_log"), Some("13"));
        assert_eq!(of("ipv4/tcp_comp_sack_delay_ns"), Some("20000000"));
        assert_eq!(of("ipv4/tcp_min_rtt_wlen"), Some("6000"));
        // The kernel refuses a window of more than a day.
        let window = Dilation::MAX.settings().into_iter().find(|(path, _)| path.ends_with("wlen"));
        assert!(window.is_some_and(|(_, value)| value.parse::<u64>().is_ok_and(|s| s <= 86_400)));
    }

    #[test]
    fn rto_minimum_is_refused_past_the_kernels_limit() {
        let most = Dilation(20).rto_min(Duration::from_secs(200)).expect_err("4,000 s");
        assert!(Dilation(20).rto_min(most).is_ok() && most < Duration::from_secs(108), "{most}");
    }

    #[test]
    fn unstretched_clocks_are_named_with_their_emulated_lengths() {
        let dilation = Dilation(20);
        assert_eq!(dilation.unstretched("reno", false), ["delayed ACK 2 ms", "first RTO 50 ms"]);
        assert_eq!(dilation.unstretched("cubic", true), ["clock of cubic", "first RTO 50 ms"]);
        assert!(Dilation::NONE.unstretched("bbr", false).is_empty());
    }

    proptest! {
        #[test]
        fn emulated_time_comes_back_from_real_time(factor in 1u32..=1_024, ps in 0u64..1 << 50) {
            let dilation = Dilation(factor);
            let emulated = Duration::from_ps(ps);
            let back = dilation.emulated(dilation.real(emulated));
            // Real time is counted in nanoseconds.
            prop_assert!(back >= emulated && back.as_ps() - ps <= 1_000);
        }
    }
}
