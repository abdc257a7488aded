//! Each pair of racks once a week.

use super::Scheduler;
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::Duration;

/// All shifts in turn, in days of equal length that fill the week.
///
/// With more racks than days fit, the week ends with the last shift that fits in a shortest day.
/// Source: the thesis, §2.3.5 and Figure 2.5. Differs: the days fill the week; the thesis's week is as long as its days.
#[derive(Clone, Copy, Debug)]
pub struct Strobe;

impl Scheduler for Strobe {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        let racks = demand.racks();
        let fit = timing.week.as_ps() / (timing.day_min + timing.night).as_ps();
        let days = (racks as u64 - 1).min(fit);
        let length = Duration::from_ps(timing.week.as_ps() / days) - timing.night;
        let day = |step| Day { matching: Matching::shift(racks, step), length };
        Schedule { days: (1..=days as usize).map(day).collect() }
    }
}
