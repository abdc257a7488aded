//! A scheduler that joins each pair of racks once a week.

use super::Scheduler;
use crate::{Day, Demand, Matching, Schedule, Timing};
use anabranch_units::Duration;

/// All shifts in turn, in days of equal length that fill the week.
///
/// If the week has no room for all shifts, it ends with the last shift that fits in a shortest day.
/// Source: the thesis, §2.3.5 and Figure 2.5. Differs: the days are stretched to fill the week; in
/// the thesis, the week is as long as its days.
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
