//! A schedule that the operator states.

use super::Scheduler;
use crate::{Demand, Schedule, ScheduleError, Timing};

/// A scheduler that returns the same schedule every week.
///
/// Source: the thesis, §2.5.3: the schedule that a scheduler with perfect knowledge of the demand
/// would choose.
#[derive(Clone, Debug)]
pub struct Fixed(Schedule);

impl Fixed {
    /// Creates a scheduler that repeats `schedule`.
    ///
    /// Errors: a schedule that a switch of `racks` racks cannot run.
    pub fn new(schedule: Schedule, racks: usize, timing: &Timing) -> Result<Self, ScheduleError> {
        schedule.check(racks, timing)?;
        Ok(Self(schedule))
    }
}

impl Scheduler for Fixed {
    fn schedule(&mut self, _: &Demand, _: &Timing) -> Schedule {
        self.0.clone()
    }
}
