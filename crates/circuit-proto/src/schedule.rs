//! Weeks of days and nights.

use crate::{Demand, Matching, MatchingError};
use anabranch_units::{BitRate, ByteCount, Duration};
use std::fmt;

/// The times and the rate of a circuit switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Rate of one circuit.
    pub circuit_rate: BitRate,
    /// Reconfiguration before each day. No circuit carries anything in it.
    pub night: Duration,
    /// Shortest day that a demand-aware scheduler may choose.
    pub day_min: Duration,
    /// Longest sum of days and nights of one schedule.
    pub week: Duration,
}

impl Timing {
    /// The thesis's switch: 80 Gbit/s, nights of 20 µs, days of at least 180 µs, weeks of 2 ms.
    ///
    /// Source: §2.3.4 and §2.2.2.
    pub const ETALON: Self = Self {
        circuit_rate: BitRate::gbps(80),
        night: Duration::from_us(20),
        day_min: Duration::from_us(180),
        week: Duration::from_ms(2),
    };

    /// Refuses times that no switch has.
    ///
    /// Errors: a rate of zero, a shortest day of zero or shorter than the night, or a week without room for one day.
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
        let bits = u128::from(self.circuit_rate.as_bps()) * u128::from(day.as_ps()) / 1_000_000_000_000;
        ByteCount::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }
}

/// Longest week: the sums of 1,024 racks' times still fit 63 bits of picoseconds.
pub(crate) const WEEK_MAX: Duration = Duration::from_secs(3600);

/// A mistake in a [`Timing`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimingError {
    /// A circuit rate of zero.
    Rate,
    /// A shortest day of zero, or shorter than the night.
    Day {
        /// Shortest day in the request.
        day_min: Duration,
        /// Night in the request.
        night: Duration,
    },
    /// A week without room for one night and one day.
    Week {
        /// Week in the request.
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

/// One matching and the time that it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Day {
    /// Circuits of the day.
    pub matching: Matching,
    /// Time for which the circuits carry, without the night before.
    pub length: Duration,
}

/// The days of one week, in order. A night precedes each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Days in order.
    pub days: Vec<Day>,
}

/// A schedule that the switch cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A day whose circuits are no matching.
    Matching {
        /// Number of the day, from 0.
        day: usize,
        /// Mistake in the matching.
        error: MatchingError,
    },
    /// A day shorter than the shortest.
    ShortDay {
        /// Number of the day, from 0.
        day: usize,
        /// Its length.
        length: Duration,
        /// Shortest length.
        day_min: Duration,
    },
    /// Days and nights longer than the week.
    Long {
        /// Their sum.
        length: Duration,
        /// Time of the week.
        week: Duration,
    },
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Matching { day, error } => write!(f, "day {day}: {error}"),
            Self::ShortDay { day, length, day_min } => {
                write!(f, "day {day}: {length} is shorter than the shortest day, {day_min}")
            }
            Self::Long { length, week } => {
                write!(f, "schedule: days and nights last {length}, the week {week}")
            }
        }
    }
}

impl std::error::Error for ScheduleError {}

impl Schedule {
    /// Sum of days and nights.
    pub fn length(&self, night: Duration) -> Duration {
        self.days.iter().fold(Duration::ZERO, |sum, day| sum + night + day.length)
    }

    /// Refuses a schedule that the switch of `racks` racks cannot run.
    ///
    /// Errors: a day that is no matching or too short, or days and nights longer than the week.
    pub fn check(&self, racks: usize, timing: &Timing) -> Result<(), ScheduleError> {
        for (day, at) in self.days.iter().enumerate() {
            at.matching.check(racks).map_err(|error| ScheduleError::Matching { day, error })?;
            if at.length < timing.day_min {
                let (length, day_min) = (at.length, timing.day_min);
                return Err(ScheduleError::ShortDay { day, length, day_min });
            }
        }
        let length = self.length(timing.night);
        if length > timing.week {
            return Err(ScheduleError::Long { length, week: timing.week });
        }
        Ok(())
    }

    /// Bytes of `demand` that the circuits carry: each pair's days, at most its demand.
    pub fn served(&self, demand: &Demand, timing: &Timing) -> ByteCount {
        let racks = demand.racks();
        let mut open = vec![Duration::ZERO; racks * racks];
        for day in &self.days {
            for (source, destination) in day.matching.circuits() {
                open[source * racks + destination] += day.length;
            }
        }
        let carried = |(pair, time): (usize, &Duration)| {
            timing.carried(*time).min(demand.between(pair / racks, pair % racks))
        };
        open.iter().enumerate().map(carried).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_times_are_refused() {
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

    #[test]
    fn schedules_that_no_switch_runs_are_refused() {
        let timing = Timing::ETALON;
        let day = |length| Day { matching: Matching::shift(4, 1), length };
        let full = Schedule { days: vec![day(Duration::from_us(980)); 2] };
        assert_eq!(full.check(4, &timing), Ok(()));
        let long = Schedule { days: vec![day(Duration::from_us(981)); 2] };
        assert!(matches!(long.check(4, &timing), Err(ScheduleError::Long { .. })));
        let short = Schedule { days: vec![day(Duration::from_us(179))] };
        assert!(matches!(short.check(4, &timing), Err(ScheduleError::ShortDay { day: 0, .. })));
        assert!(matches!(full.check(3, &timing), Err(ScheduleError::Matching { day: 0, .. })));
    }

    #[test]
    fn a_pair_is_served_its_demand_at_most() {
        let timing = Timing::ETALON;
        let mut demand = Demand::new(3).unwrap();
        demand.add(0, 1, ByteCount::new(1_000)).unwrap();
        demand.add(1, 2, ByteCount::new(10_000_000)).unwrap();
        let schedule =
            Schedule { days: vec![Day { matching: Matching::shift(3, 1), length: Duration::from_us(200) }] };
        // 80 Gbit/s for 200 us are 2,000,000 bytes.
        assert_eq!(schedule.served(&demand, &timing), ByteCount::new(2_001_000));
    }
}
