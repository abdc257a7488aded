//! Instants in eight bytes, for the events and packets of a simulated run.

use crate::{Duration, Instant};
use std::ops::{Add, Sub};

/// An instant of a run of at most 213 days (2^64 ps).
///
/// Units: picoseconds since the run began. An [`Instant`] beyond the range becomes
/// [`RunInstant::MAX`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunInstant(u64);

impl RunInstant {
    /// The beginning of the run.
    pub const ZERO: Self = Self(0);
    /// The latest instant that can be represented.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `ps` picoseconds into the run.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }
    /// The instant `us` microseconds into the run.
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1_000_000)
    }
    /// Picoseconds since the run began.
    #[inline]
    pub const fn as_ps(self) -> u64 {
        self.0
    }
    /// The time from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_ps(self.0.saturating_sub(earlier.0))
    }
}

impl From<Instant> for RunInstant {
    #[inline]
    fn from(at: Instant) -> Self {
        Self(u64::try_from(at.as_ps()).unwrap_or(u64::MAX))
    }
}

impl From<RunInstant> for Instant {
    #[inline]
    fn from(at: RunInstant) -> Self {
        Self::from_ps(at.0.into())
    }
}

/// The sum is at most [`RunInstant::MAX`].
impl Add<Duration> for RunInstant {
    type Output = Self;
    #[inline]
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d.as_ps()))
    }
}
impl Sub for RunInstant {
    type Output = Duration;
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_ps(self.0 - earlier.0)
    }
}
impl Sub<Duration> for RunInstant {
    type Output = Self;
    #[inline]
    fn sub(self, d: Duration) -> Self {
        Self(self.0 - d.as_ps())
    }
}
