//! Points in time and durations in integer picoseconds.
//!
//! A run's clock starts at [`Instant::ZERO`] and counts 2^128 ps, longer than any daemon runs. A
//! [`Duration`] counts 2^64 ps, 213 days, longer than any timeout. Wall-clock dates are not
//! represented, because only drivers use them.

use std::ops::{Add, AddAssign, Sub};

/// A point in a run's time.
///
/// Units: picoseconds since the run began.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
// An alignment of eight bytes avoids padding in structures of instants and words.
#[repr(Rust, packed(8))]
pub struct Instant(u128);

/// A duration.
///
/// Units: picoseconds, at most 2^64 - 1 (213 days). In text: `5ms`, `1.5 s`; serialised as such
/// text.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Instant {
    /// The beginning of the run.
    pub const ZERO: Self = Self(0);
    /// The latest instant that can be represented; used for `advance(until)` without an end.
    pub const MAX: Self = Self(u128::MAX);

    /// Returns the earliest of the instants that are set; `None` if none is set.
    ///
    /// Simulated hosts call it for each packet, so the array is read in place instead of moved into
    /// an iterator.
    #[inline]
    pub fn earliest<const N: usize>(instants: [Option<Self>; N]) -> Option<Self> {
        let mut earliest = None;
        for &instant in &instants {
            earliest = match (earliest, instant) {
                (Some(before), Some(instant)) => Some(Self::min(before, instant)),
                (before, instant) => before.or(instant),
            };
        }
        earliest
    }
    /// The instant `ps` picoseconds into the run.
    pub const fn from_ps(ps: u128) -> Self {
        Self(ps)
    }
    /// The instant `ns` nanoseconds into the run.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns as u128 * 1_000)
    }
    /// The instant `us` microseconds into the run.
    pub const fn from_us(us: u64) -> Self {
        Self(us as u128 * 1_000_000)
    }
    /// Picoseconds since the run began.
    pub const fn as_ps(self) -> u128 {
        self.0
    }
    /// Whole nanoseconds since the run began, rounded down, at most `u64::MAX` (584 years).
    pub const fn as_ns(self) -> u64 {
        let ns = self.0 / 1_000;
        if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 }
    }
    /// The instant `since_start` after the clock's start.
    pub const fn from_std(since_start: std::time::Duration) -> Self {
        Self(since_start.as_nanos() * 1_000)
    }
    /// The reading of the operating system's clock at this instant of a run that began at `epoch`,
    /// rounded down to a nanosecond. At most 584 years after `epoch`.
    pub fn to_std(self, epoch: std::time::Instant) -> std::time::Instant {
        epoch + std::time::Duration::from_nanos(self.as_ns())
    }
    /// Seconds since the run began, for reports.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }
    /// The time from `earlier` to `self`; zero if `earlier` is later, and at most
    /// [`Duration::MAX`], 213 days.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::saturating_from_ps(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// The zero duration.
    pub const ZERO: Self = Self(0);

    /// The longest duration, 213 days.
    pub const MAX: Self = Self(u64::MAX);

    /// A duration of `ps` picoseconds, at most [`Duration::MAX`].
    const fn saturating_from_ps(ps: u128) -> Self {
        if ps > u64::MAX as u128 { Self::MAX } else { Self(ps as u64) }
    }
    /// A duration of `ps` picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }
    /// A duration of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns * 1_000)
    }
    /// A duration of `us` microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1_000_000)
    }
    /// A duration of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000_000)
    }
    /// A duration of `s` seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000_000_000)
    }
    /// Picoseconds.
    pub const fn as_ps(self) -> u64 {
        self.0
    }
    /// Whole nanoseconds, rounded down.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1_000
    }
    /// Whole microseconds, rounded down.
    pub const fn as_us(self) -> u64 {
        self.0 / 1_000_000
    }
    /// Seconds, for reports.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }
    /// Converts to the standard library's duration, rounded down to a nanosecond.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.as_ns())
    }
    /// Converts a duration of the standard library, at most [`Duration::MAX`].
    pub const fn from_std(d: std::time::Duration) -> Self {
        Self::saturating_from_ps(d.as_nanos() * 1_000)
    }
}

/// The sum is at most [`Instant::MAX`], so a deadline beyond the end of the clock is at the end,
/// and not in the past.
impl Add<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u128::from(d.0)))
    }
}
impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}
impl Sub for Instant {
    type Output = Duration;
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        Duration::saturating_from_ps(self.0 - earlier.0)
    }
}
impl Sub<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn sub(self, d: Duration) -> Self {
        Self(self.0 - u128::from(d.0))
    }
}
impl Add for Duration {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}
impl AddAssign for Duration {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}
impl Sub for Duration {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}
impl std::ops::Mul<u64> for Duration {
    type Output = Self;
    #[inline]
    fn mul(self, n: u64) -> Self {
        Self(self.0 * n)
    }
}

const UNITS: &[(&str, f64)] = &[
    ("ps", 1.0),
    ("ns", 1e3),
    ("us", 1e6),
    ("µs", 1e6),
    ("ms", 1e9),
    ("s", 1e12),
    ("min", 6e13),
    ("h", 3.6e15),
];

impl std::str::FromStr for Duration {
    type Err = crate::ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::parse_scaled(text, UNITS, Self::USUAL_UNIT, "ps, ns, us, ms, s, min, h").map(Self)
    }
}

impl Duration {
    /// The duration in words: whole seconds, minutes, hours or days. Below a second, the text is
    /// as in [`std::fmt::Display`].
    ///
    /// ```
    /// use anabranch_units::Duration;
    /// assert_eq!(Duration::from_secs(600).in_words(), "10 min");
    /// assert_eq!(Duration::from_ms(90_400).in_words(), "1 min 30 s");
    /// assert_eq!(Duration::from_secs(7_320).in_words(), "2 h 2 min");
    /// ```
    pub fn in_words(self) -> String {
        if self < Self::from_secs(1) { self.to_string() } else { time_in_words(self.to_std()) }
    }
}

/// The text of [`Duration::in_words`] for durations that may exceed 213 days, to whole seconds.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(anabranch_units::time_in_words(Duration::from_secs(40_000_000)), "462 d 23 h");
/// assert_eq!(anabranch_units::time_in_words(Duration::MAX), "213503982334601 d 7 h");
/// ```
pub fn time_in_words(length: std::time::Duration) -> String {
    let seconds = length.as_secs().saturating_add(u64::from(length.subsec_millis() >= 500));
    let two = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big} {unit}"),
        _ => format!("{big} {unit} {small} {small_unit}"),
    };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..172_800 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

impl std::fmt::Display for Duration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ps = self.0 as f64;
        match self.0 {
            0 => write!(f, "0 s"),
            1..1_000 => write!(f, "{} ps", self.0),
            1_000..1_000_000 => crate::write_trimmed(f, ps / 1e3, "ns"),
            1_000_000..1_000_000_000 => crate::write_trimmed(f, ps / 1e6, "us"),
            1_000_000_000..1_000_000_000_000 => crate::write_trimmed(f, ps / 1e9, "ms"),
            _ => crate::write_trimmed(f, ps / 1e12, "s"),
        }
    }
}

crate::text_form::serde_as_text!(Duration);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_ignores_absent_instants() {
        let at = |ps| Some(Instant::from_ps(ps));
        assert_eq!(Instant::earliest([None, at(3), None, at(2), at(5)]), at(2));
        assert_eq!(Instant::earliest([None, None]), None);
    }

    /// #48: the sum wrapped around, so that a deadline near the end of the clock was in the past.
    #[test]
    fn clock_saturates_and_does_not_wrap() {
        let second = Duration::from_secs(1);
        let last = Instant::from_ps(u128::MAX - 1);
        assert_eq!([last + second, Instant::MAX + second], [Instant::MAX; 2]);
        let mut now = last;
        now += second;
        assert_eq!(now, Instant::MAX);
        assert_eq!(last + Duration::from_ps(1), Instant::MAX);
    }

    #[test]
    fn durations_saturate_and_instants_continue() {
        let years = std::time::Duration::from_secs(40 * 366 * 86_400);
        let late = Instant::from_std(years);
        assert_eq!(late.saturating_since(Instant::ZERO), Duration::MAX);
        assert_eq!((late + Duration::from_secs(3)) - late, Duration::from_secs(3));
        assert_eq!(Duration::from_std(years), Duration::MAX);
        assert_eq!(crate::RunInstant::from(late), crate::RunInstant::MAX);
    }

    #[test]
    fn duration_text_reads_back_equal() {
        for ps in [0, 7, 1_500, 2_000_000, 12_500_000_000, 90_000_000_000_000] {
            let d = Duration::from_ps(ps);
            assert_eq!(d.to_string().parse::<Duration>(), Ok(d), "{d}");
        }
    }

    #[test]
    fn duration_without_unit_is_refused() {
        let error = "5".parse::<Duration>().expect_err("no unit");
        assert!(error.to_string().contains("ms"), "{error}");
    }

    #[test]
    fn negative_duration_is_refused() {
        assert!("-5ms".parse::<Duration>().is_err());
    }
}
