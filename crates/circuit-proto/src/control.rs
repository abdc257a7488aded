//! The scheduling loop: computes the schedule of the next week from an estimate of demand.
//!
//! Source: the thesis, §2.2.2: demand for the next week is estimated, an algorithm computes the
//! schedule, and the circuit switch receives it. These three steps take the *decision time*. A
//! schedule takes effect only at the beginning of a week, and applies to every week until the next
//! schedule takes effect. Differs: Etalon computes without pause and uses the result that is ready
//! at the end of a week; here an estimate is made as late as the decision time permits.
//!
//! Leaves out: the estimate itself (queues of the switch, [`Ledger`](crate::Ledger)). Read
//! [`Controller`] first.

use crate::{Demand, Schedule, ScheduleError, Scheduler, Shaping, Timing, TimingError, shaping};
use anabranch_units::{ByteCount, Duration, Instant};
use std::fmt;

/// Settings of a scheduling loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlSettings {
    /// Number of racks of the network.
    pub racks: usize,
    /// Times and rate of the switch. Each week lasts [`Timing::week`].
    pub timing: Timing,
    /// Time from an estimate until the schedule is at the switch.
    pub decision: Duration,
    /// Shaping of demand before the scheduler. `None` for schedulers that ignore demand; no week is
    /// then stretched.
    pub shaping: Option<Shaping>,
}

/// Reason why a scheduling loop refuses settings or inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// Times that a switch cannot have.
    Timing(TimingError),
    /// A decision time of zero, or above [`DECISION_MAX`].
    Decision(Duration),
    /// Demand between a wrong number of racks.
    Racks {
        /// Number of racks of the demand.
        has: usize,
        /// Number of racks of the network.
        need: usize,
    },
    /// An estimate for a week that already has a schedule.
    Early {
        /// Time of the estimate.
        at: Instant,
        /// Earliest time of an estimate for a later week.
        due: Instant,
    },
    /// A schedule that the switch cannot run.
    Schedule(ScheduleError),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timing(error) => error.fmt(f),
            Self::Decision(time) => {
                write!(f, "decision {time}: must be above zero and at most {DECISION_MAX}")
            }
            Self::Racks { has, need } => write!(f, "demand of {has} racks: the network has {need}"),
            Self::Early { at, due } => {
                let (at, due) = (at.as_secs_f64(), due.as_secs_f64());
                write!(f, "estimate at {at} s: the next one is due at {due} s")
            }
            Self::Schedule(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ControlError {}

/// Maximum decision time.
pub const DECISION_MAX: Duration = Duration::from_secs(3_600);

/// The schedule of a week, and of the following weeks until the next schedule takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Week {
    /// Number of the week, from 0.
    pub number: u64,
    /// Beginning of the week. Week 0 begins at [`Instant::ZERO`].
    pub begins_at: Instant,
    /// Total of the estimated demand, before shaping.
    pub demand: ByteCount,
    /// Days, each after its night.
    pub schedule: Schedule,
}

/// The scheduling loop, with any scheduler.
///
/// A machine without I/O: call [`Self::handle_demand`] at the time of [`Self::poll_timeout`], then
/// [`Self::poll_week`] until `None`. The schedule of the first week, planned for no demand, is
/// available from the start.
///
/// ```
/// use anabranch_circuit_proto::{ControlSettings, Controller, Kind, Shaping, Timing, generate};
/// use anabranch_units::{ByteCount, Duration, Instant};
///
/// let shaping = Shaping { threshold: Shaping::THRESHOLD, always_drops_small: true };
/// let settings = ControlSettings {
///     racks: 8,
///     timing: Timing::ETALON,
///     decision: Duration::from_us(100),
///     shaping: Some(shaping),
/// };
/// let mut controller = Controller::new(settings, Kind::Solstice.scheduler()).expect("possible times");
/// assert_eq!(controller.poll_week().expect("the first week").schedule.days.len(), 1);
/// // The first week ends at 2 ms.
/// let due = controller.poll_timeout();
/// assert_eq!(due, Instant::from_us(1_900));
/// let demand = generate::ring(8, ByteCount::new(50_000_000)).expect("8 racks");
/// controller.handle_demand(due, &demand).expect("an estimate is due");
/// let week = controller.poll_week().expect("the second week");
/// assert_eq!((week.number, week.begins_at), (1, Instant::from_us(2_000)));
/// assert_eq!(week.schedule.days[0].matching.destination(7), Some(0));
/// ```
pub struct Controller {
    settings: ControlSettings,
    scheduler: Box<dyn Scheduler>,
    /// Number of the last week with a schedule.
    planned: u64,
    /// Schedule that was not polled yet.
    next: Option<Week>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, planned, next, .. } = self;
        f.debug_struct("Controller")
            .field("settings", settings)
            .field("planned", planned)
            .field("next", next)
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Creates a loop, and plans the first week for no demand.
    ///
    /// Errors: times that a switch cannot have; a decision time of zero or above [`DECISION_MAX`];
    /// an invalid schedule from the scheduler.
    pub fn new(settings: ControlSettings, scheduler: Box<dyn Scheduler>) -> Result<Self, ControlError> {
        settings.timing.check().map_err(ControlError::Timing)?;
        if settings.decision == Duration::ZERO || settings.decision > DECISION_MAX {
            return Err(ControlError::Decision(settings.decision));
        }
        let none = Demand::new(settings.racks);
        let none = none.map_err(|_| ControlError::Racks { has: settings.racks, need: 2 })?;
        let mut controller = Self { settings, scheduler, planned: 0, next: None };
        controller.plan(0, &none)?;
        Ok(controller)
    }

    /// Time at which to estimate demand and call [`Self::handle_demand`]: the decision time before
    /// a week begins.
    ///
    /// If the decision time exceeds a week, each schedule applies to several weeks.
    pub fn poll_timeout(&self) -> Instant {
        let weeks = self.settings.decision.as_ps().div_ceil(self.settings.timing.week.as_ps());
        self.begin(self.planned + weeks) - self.settings.decision
    }

    /// Plans the first week that begins no earlier than `now` plus the decision time, for the
    /// demand estimated at `now`.
    ///
    /// Errors: demand of a wrong number of racks; a week that already has a schedule; an invalid
    /// schedule from the scheduler. The loop is then unchanged.
    pub fn handle_demand(&mut self, now: Instant, demand: &Demand) -> Result<(), ControlError> {
        if demand.racks() != self.settings.racks {
            return Err(ControlError::Racks { has: demand.racks(), need: self.settings.racks });
        }
        let ready_ps = (now + self.settings.decision).as_ps();
        let number = ready_ps.div_ceil(u128::from(self.settings.timing.week.as_ps()));
        let number = u64::try_from(number).unwrap_or(u64::MAX);
        if number <= self.planned {
            return Err(ControlError::Early { at: now, due: self.poll_timeout() });
        }
        self.plan(number, demand)
    }

    /// The next schedule for the switch; call until `None`.
    pub fn poll_week(&mut self) -> Option<Week> {
        self.next.take()
    }

    fn begin(&self, number: u64) -> Instant {
        let ps = u128::from(number) * u128::from(self.settings.timing.week.as_ps());
        Instant::ZERO + Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }

    fn plan(&mut self, number: u64, demand: &Demand) -> Result<(), ControlError> {
        let timing = &self.settings.timing;
        let schedule = match &self.settings.shaping {
            Some(shaping) => shaping::schedule(&mut *self.scheduler, demand, timing, shaping),
            None => self.scheduler.schedule(demand, timing),
        };
        schedule.check(self.settings.racks, timing).map_err(ControlError::Schedule)?;
        let (begins_at, demand) = (self.begin(number), demand.total());
        self.planned = number;
        self.next = Some(Week { number, begins_at, demand, schedule });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedulers::{Rotor, Strobe};
    use crate::{Kind, generate};
    use proptest::prelude::*;

    const SHAPING: Shaping = Shaping { threshold: Shaping::THRESHOLD, always_drops_small: false };

    fn settings(decision: Duration) -> ControlSettings {
        ControlSettings { racks: 8, timing: Timing::ETALON, decision, shaping: Some(SHAPING) }
    }

    fn ring() -> Demand {
        generate::ring(8, ByteCount::new(9_000_000)).unwrap()
    }

    proptest! {
        /// At whatever time an estimate is made, its week begins after the decision and at most a
        /// week later. Each week is planned once.
        #[test]
        fn weeks_begin_after_decisions(
            decision in 1u64..9_000_000_000,
            late in prop::collection::vec(0u64..7_000_000_000, 1..20),
        ) {
            let decision = Duration::from_ps(decision);
            let mut controller = Controller::new(settings(decision), Kind::Refit.scheduler()).unwrap();
            let first = controller.poll_week().unwrap();
            prop_assert_eq!((first.number, first.begins_at), (0, Instant::ZERO));
            let mut before = first;
            for late in late {
                let now = controller.poll_timeout() + Duration::from_ps(late);
                controller.handle_demand(now, &ring()).unwrap();
                let week = controller.poll_week().unwrap();
                prop_assert_eq!(controller.poll_week(), None);
                prop_assert!(week.begins_at >= now + decision);
                prop_assert!(week.begins_at < now + decision + Timing::ETALON.week);
                prop_assert!(week.number > before.number);
                // Decisions do not overlap: the estimate is made after the previous decision.
                prop_assert!(now >= before.begins_at);
                before = week;
            }
        }
    }

    #[test]
    fn estimates_are_due_the_decision_time_before_a_week() {
        for (decision_us, due_us) in [(1, 1_999), (2_000, 0), (2_001, 1_999), (5_000, 1_000)] {
            let settings = settings(Duration::from_us(decision_us));
            let controller = Controller::new(settings, Kind::Solstice.scheduler()).unwrap();
            assert_eq!(controller.poll_timeout(), Instant::from_us(due_us), "{decision_us} us");
        }
    }

    #[test]
    fn early_estimates_are_refused() {
        let mut controller =
            Controller::new(settings(Duration::from_us(100)), Kind::Solstice.scheduler()).unwrap();
        controller.handle_demand(Instant::from_us(1_900), &ring()).unwrap();
        let early = controller.handle_demand(Instant::from_us(1_900), &ring());
        let due = Instant::from_us(3_900);
        assert_eq!(early, Err(ControlError::Early { at: Instant::from_us(1_900), due }));
        // An estimate before `due`, but after the previous decision, is for the same week as one
        // at `due`.
        assert_eq!(controller.handle_demand(Instant::from_us(2_500), &ring()), Ok(()));
        assert_eq!(controller.poll_week().unwrap().number, 2);
    }

    #[test]
    fn demand_oblivious_schedulers_start_in_the_first_week() {
        let settings = ControlSettings { shaping: None, ..settings(Duration::from_us(100)) };
        let mut strobe = Controller::new(settings, Box::new(Strobe)).unwrap();
        assert_eq!(strobe.poll_week().unwrap().schedule.days.len(), 7);
        let mut rotor = Controller::new(settings, Box::new(Rotor::default())).unwrap();
        assert_eq!(rotor.poll_week().unwrap().schedule.days.len(), 10);
        rotor.handle_demand(rotor.poll_timeout(), &ring()).unwrap();
        let second = rotor.poll_week().unwrap();
        // Ten days of seven shifts: the second week begins with shift 4.
        assert_eq!(second.schedule.days[0].matching.destination(0), Some(4));
    }

    #[test]
    fn loop_settings_out_of_range_are_refused() {
        let refused = |settings| Controller::new(settings, Kind::Solstice.scheduler()).map(drop).unwrap_err();
        let good = settings(Duration::from_us(100));
        let zero = ControlSettings { decision: Duration::ZERO, ..good };
        assert_eq!(refused(zero), ControlError::Decision(Duration::ZERO));
        let long = DECISION_MAX + Duration::from_ps(1);
        assert_eq!(refused(ControlSettings { decision: long, ..good }), ControlError::Decision(long));
        assert!(Controller::new(settings(DECISION_MAX), Kind::Solstice.scheduler()).is_ok());
        assert_eq!(refused(ControlSettings { racks: 1, ..good }), ControlError::Racks { has: 1, need: 2 });
        let mut controller = Controller::new(good, Kind::Solstice.scheduler()).unwrap();
        let other = controller.handle_demand(Instant::from_us(1_900), &Demand::new(4).unwrap());
        assert_eq!(other, Err(ControlError::Racks { has: 4, need: 8 }));
    }
}
