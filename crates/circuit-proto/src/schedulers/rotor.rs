//! A scheduler that uses all cyclic shifts in turn and continues over successive weeks.

use super::Scheduler;
use crate::{Day, Demand, Matching, Schedule, Timing};

/// All shifts in turn, each for a shortest day; a week continues where the previous week ended.
///
/// Source: Mellette et al., *RotorNet: a scalable, low-complexity, optical datacenter network*,
/// SIGCOMM 2017, §3. Leaves out: traffic in two hops, which is in [`RotorLb`](super::RotorLb).
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotor {
    /// Shift of the last day; 0 before the first day.
    step: usize,
}

impl Scheduler for Rotor {
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule {
        let racks = demand.racks();
        let days = timing.week.as_ps() / (timing.day_min + timing.night).as_ps();
        let mut next = || {
            self.step = self.step % (racks - 1) + 1;
            Day { matching: Matching::shift(racks, self.step), length: timing.day_min }
        };
        Schedule { days: (0..days).map(|_| next()).collect() }
    }
}
