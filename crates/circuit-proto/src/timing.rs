//! The times and the rate of a circuit switch.

use anabranch_units::{BitRate, ByteCount, Duration};
use std::fmt;

/// The times and the rate of a circuit switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Rate of one circuit.
    pub circuit_rate: BitRate,
    /// Reconfiguration time before each day, in which circuits carry no bytes.
    pub night: Duration,
    /// Minimum length of a day that a demand-aware scheduler may choose.
    pub day_min: Duration,
    /// Maximum sum of days and nights of one schedule.
    pub week: Duration,
}

impl Timing {
    /// The switch of the thesis: 80 Gbit/s, nights of 20 µs, days of at least 180 µs, weeks of 2
    /// ms.
    ///
    /// Source: §2.3.4 and §2.2.2.
    pub const ETALON: Self = Self {
        circuit_rate: BitRate::gbps(80),
        night: Duration::from_us(20),
        day_min: Duration::from_us(180),
        week: Duration::from_ms(2),
    };

    /// Refuses times and rates that a switch cannot have.
    ///
    /// Errors: a rate of zero; a shortest day of zero or shorter than the night; a week without
    /// room for one day, or longer than an hour.
    pub fn check(&self) -> Result<(), TimingError> {
        if self.circuit_rate.as_bps() == 0 {
            return Err(TimingError::Rate);
        }
        if self.day_min < self.night || self.day_min == Duration::ZERO {
            return Err(TimingError::Day { day_min: self.day_min, night: self.night });
        }
        if self.week < self.night + self.day_min {
            return Err(TimingError::Week { week: self.week, need: self.night + self.day_min });
        }
        if self.week > WEEK_MAX {
            return Err(TimingError::LongWeek(self.week));
        }
        Ok(())
    }

    /// Bytes that one circuit carries in `day`, rounded down.
    pub fn carried(&self, day: Duration) -> ByteCount {
        carried(self.circuit_rate, day)
    }
}

/// Time that `bytes` take at `rate`, in picoseconds, rounded up.
///
/// Panics: if `rate` is zero.
pub(crate) fn sending_ps(rate: BitRate, bytes: u64) -> u128 {
    (u128::from(bytes) * 8_000_000_000_000).div_ceil(u128::from(rate.as_bps()))
}

/// Bytes sent at `rate` in `time`, rounded down.
pub(crate) fn carried(rate: BitRate, time: Duration) -> ByteCount {
    let bits = u128::from(rate.as_bps()) * u128::from(time.as_ps()) / 1_000_000_000_000;
    ByteCount::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
}

/// Maximum length of a week: the sums of 1,024 racks' times still fit 63 bits of picoseconds.
pub(crate) const WEEK_MAX: Duration = Duration::from_secs(3600);

/// Reason why a [`Timing`] is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimingError {
    /// A circuit rate of zero.
    Rate,
    /// A shortest day of zero, or shorter than the night.
    Day {
        /// Requested shortest day.
        day_min: Duration,
        /// Requested night.
        night: Duration,
    },
    /// A week without room for one night and one day.
    Week {
        /// Requested week.
        week: Duration,
        /// Shortest week with these days and nights.
        need: Duration,
    },
    /// A week longer than an hour.
    LongWeek(Duration),
}

impl fmt::Display for TimingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate => write!(f, "circuit rate 0 bit/s: must be at least 1 bit/s"),
            Self::Day { day_min, night } => {
                write!(f, "shortest day {day_min}: must be above zero and no shorter than the night, {night}")
            }
            Self::Week { week, need } => {
                write!(f, "week {week}: must hold a night and the shortest day, {need}")
            }
            Self::LongWeek(week) => write!(f, "week {week}: must be {WEEK_MAX} or shorter"),
        }
    }
}

impl std::error::Error for TimingError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_timings_are_refused() {
        let good = Timing::ETALON;
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Timing { circuit_rate: BitRate::bps(0), ..good }.check(), Err(TimingError::Rate));
        let day_min = Duration::from_us(19);
        let night = Duration::from_us(20);
        assert_eq!(Timing { day_min, ..good }.check(), Err(TimingError::Day { day_min, night }));
        assert_eq!(Timing { day_min: night, ..good }.check(), Ok(()));
        let week = Duration::from_us(199);
        let need = Duration::from_us(200);
        assert_eq!(Timing { week, ..good }.check(), Err(TimingError::Week { week, need }));
        assert_eq!(Timing { week: need, ..good }.check(), Ok(()));
    }
}
