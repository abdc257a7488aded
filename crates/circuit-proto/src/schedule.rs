//! Schedules: the days and nights of a week.

use crate::{Demand, Matching, MatchingError, Timing};
use anabranch_units::{ByteCount, Duration};
use std::fmt;

/// One matching, and the time for which it is in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Day {
    /// Circuits of the day.
    pub matching: Matching,
    /// Time for which the circuits carry bytes, without the night before.
    pub length: Duration,
}

/// The days of one week, in order. A night precedes each day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Days in order.
    pub days: Vec<Day>,
}

/// Reason why a switch cannot run a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A day whose circuits are not a matching.
    Matching {
        /// Number of the day, from 0.
        day: usize,
        /// Mistake in the matching.
        error: MatchingError,
    },
    /// A day shorter than the shortest permitted day.
    ShortDay {
        /// Number of the day, from 0.
        day: usize,
        /// Length of the day.
        length: Duration,
        /// Shortest permitted day.
        day_min: Duration,
    },
    /// Days and nights longer than the week.
    Long {
        /// Sum of days and nights.
        length: Duration,
        /// Length of the week.
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

    /// Lengthens all days by equal times, so that days and nights fill the week. The last day gets
    /// the remainder of the division; a schedule without days is unchanged.
    ///
    /// Panics: if days and nights are longer than the week.
    pub(crate) fn stretch(&mut self, timing: &Timing) {
        let rest = timing.week.as_ps() - self.length(timing.night).as_ps();
        let days = self.days.len() as u64;
        for day in &mut self.days {
            day.length += Duration::from_ps(rest / days);
        }
        if let Some(last) = self.days.last_mut() {
            last.length += Duration::from_ps(rest % days);
        }
    }

    /// Refuses a schedule that the switch of `racks` racks cannot run.
    ///
    /// Errors: a day that is not a matching or is too short; days and nights longer than the week.
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

    /// Bytes of `demand` that the circuits carry: for each pair the capacity of its days, at most
    /// its demand.
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
    fn invalid_schedules_are_refused() {
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
    fn pair_is_served_at_most_its_demand() {
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
