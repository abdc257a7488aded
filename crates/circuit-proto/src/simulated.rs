//! `circuit` in the simulator: the scheduling loop decides the weeks of a scenario's hybrid switch.
//!
//! The loop is ideal compared with a real network. An announcement reaches the control when its
//! flow begins, and the close of a flow when its last byte has arrived. The switch gets its
//! schedule exactly after the decision time. Read [`SimulatedSystem`] first.

use crate::schedulers::Fixed;
use crate::{
    ControlError, ControlSettings, Controller, Day, Demand, Kind, Ledger, Matching, Schedule, Scheduler,
    Shaping, Timing,
};
use anabranch_sim::circuits::{CircuitControl, CircuitPlan, CircuitWeek};
use anabranch_sim::scenario::{CircuitSpec, DemandSource, ScheduleSpec, SystemWorkload, Turns};
use anabranch_sim::system::{System, SystemPlan};
use anabranch_sim::{Network, PlanError};
use anabranch_units::{ByteCount, Duration, Instant};

/// The system `circuit` in scenarios: it plans the schedules of `[circuit]`, and has no workload.
#[derive(Copy, Clone, Debug)]
pub struct SimulatedSystem;

/// The scheduler of a scenario.
#[derive(Clone, Debug)]
enum Choice {
    /// A scheduler that is built from its name.
    Kind(Kind),
    /// Days of equal length that fill the week, one for each shift that the scenario states.
    Fixed(Schedule),
    /// No circuit at all: only the packet network.
    Dark,
}

impl Choice {
    /// The scheduler that `schedule` names, for `racks` racks.
    ///
    /// Errors: the name of the setting, and a message of one line.
    fn new(
        spec: &CircuitSpec,
        schedule: &ScheduleSpec,
        racks: usize,
        timing: &Timing,
    ) -> Result<Self, PlanError> {
        let wrong = |field: &str, message: String| PlanError { field: format!("circuit.{field}"), message };
        let name = schedule.scheduler.as_str();
        let kinds = || Kind::ALL.iter().filter(|kind| kind.is_one_week());
        if let Some(kind) = kinds().find(|kind| kind.name() == name) {
            return Ok(Self::Kind(*kind));
        }
        match name {
            "none" => Ok(Self::Dark),
            "fixed" => {
                let Some(Turns::Shifts(shifts)) = spec.shifts.as_ref() else {
                    return Err(wrong("shifts", "missing: the scheduler `fixed` needs them".to_owned()));
                };
                let length = timing.week.as_ps() / shifts.len().max(1) as u64;
                if length < (timing.night + timing.day_min).as_ps() {
                    let (count, need) = (shifts.len(), timing.night + timing.day_min);
                    let message = format!("{count} days: each needs {need} of a week of {}", timing.week);
                    return Err(wrong("shifts", message));
                }
                let length = Duration::from_ps(length) - timing.night;
                let day = |shift: &u16| Day { matching: Matching::shift(racks, usize::from(*shift)), length };
                Ok(Self::Fixed(Schedule { days: shifts.iter().map(day).collect() }))
            }
            _ => {
                let names = kinds().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
                let message = format!("`{name}`: must be one of {names}, fixed, none");
                Err(wrong("schedule.scheduler", message))
            }
        }
    }

    /// Returns true if the schedule follows demand.
    const fn follows_demand(&self) -> bool {
        match self {
            Self::Kind(kind) => !matches!(kind, Kind::Strobe | Kind::Rotor),
            Self::Fixed(_) | Self::Dark => false,
        }
    }

    fn scheduler(&self, racks: usize, timing: &Timing) -> Box<dyn Scheduler> {
        match self {
            Self::Kind(kind) => kind.scheduler(),
            Self::Fixed(schedule) => Box::new(
                Fixed::new(schedule.clone(), racks, timing).expect("shifts of the racks fill the week"),
            ),
            Self::Dark => {
                let none = Fixed::new(Schedule::default(), racks, timing);
                Box::new(none.expect("a schedule without days fits each week"))
            }
        }
    }
}

impl System for SimulatedSystem {
    fn kind(&self) -> &'static str {
        "circuit"
    }

    fn plan(&self, _: &SystemWorkload, _: &Network, field: &str) -> Result<Box<dyn SystemPlan>, PlanError> {
        let message =
            "`circuit` has no traffic of its own: say `circuit.schedule`, and another workload".to_owned();
        Err(PlanError { field: format!("{field}.kind"), message })
    }

    fn circuits(&self, spec: &CircuitSpec, racks: u16) -> Option<Result<Box<dyn CircuitPlan>, PlanError>> {
        let schedule = spec.schedule.as_ref()?;
        Some(Loop::new(spec, schedule, racks.into()).map(|plan| Box::new(plan) as Box<dyn CircuitPlan>))
    }
}

/// The scheduling loop of a scenario, with checked settings.
#[derive(Clone, Debug)]
struct Loop {
    choice: Choice,
    source: DemandSource,
    settings: ControlSettings,
}

impl Loop {
    fn new(spec: &CircuitSpec, schedule: &ScheduleSpec, racks: usize) -> Result<Self, PlanError> {
        let timing = Timing {
            circuit_rate: spec.rate,
            night: spec.night.length(),
            day_min: spec.day,
            week: schedule.window,
        };
        let wrong = |error: ControlError| {
            let field = if matches!(error, ControlError::Decision(_)) { "decision" } else { "window" };
            PlanError { field: format!("circuit.schedule.{field}"), message: error.to_string() }
        };
        timing.check().map_err(|error| wrong(ControlError::Timing(error)))?;
        let choice = Choice::new(spec, schedule, racks, &timing)?;
        let shaping = Shaping {
            threshold: schedule.threshold,
            always_drops_small: schedule.demand == DemandSource::Announced,
        };
        let shaping = choice.follows_demand().then_some(shaping);
        let settings = ControlSettings { racks, timing, decision: schedule.decision, shaping };
        let plan = Self { choice, source: schedule.demand, settings };
        plan.controller().map_err(wrong)?;
        Ok(plan)
    }

    fn controller(&self) -> Result<Controller, ControlError> {
        let scheduler = self.choice.scheduler(self.settings.racks, &self.settings.timing);
        Controller::new(self.settings, scheduler)
    }
}

impl CircuitPlan for Loop {
    fn control(&self) -> Box<dyn CircuitControl> {
        Box::new(Control {
            racks: self.settings.racks,
            controller: self.controller().expect("the same settings were tried as the plan was made"),
            ledger: Ledger::new(self.settings.racks).expect("the same number of racks has a controller"),
            source: self.source,
        })
    }

    fn follows_flows(&self) -> bool {
        self.choice.follows_demand() && self.source == DemandSource::Announced
    }
}

/// The scheduling loop in one run.
#[derive(Debug)]
struct Control {
    racks: usize,
    controller: Controller,
    ledger: Ledger<u32>,
    source: DemandSource,
}

impl CircuitControl for Control {
    fn handle_announced(&mut self, flow: u32, [source, destination]: [u16; 2], bytes: ByteCount) {
        // The ledger counts refused announcements, and the week's row reports the count.
        let _ = self.ledger.handle_announced(flow, source.into(), destination.into(), bytes);
    }

    fn handle_forwarded(&mut self, flow: u32, position: u64, bytes: u32) {
        self.ledger.handle_forwarded(flow, position, bytes);
    }

    fn handle_closed(&mut self, flow: u32) {
        self.ledger.handle_closed(flow);
    }

    fn handle_queues(&mut self, now: Instant, bytes: Vec<u64>) {
        let demand = match self.source {
            DemandSource::Queues => {
                Demand::from_entries(self.racks, bytes).expect("a switch has a queue for each pair of racks")
            }
            DemandSource::Announced => self.ledger.demand(),
        };
        self.controller.handle_demand(now, &demand).expect("the run asks when an estimate is due");
    }

    fn poll_timeout(&self) -> Instant {
        self.controller.poll_timeout()
    }

    fn poll_week(&mut self) -> Option<CircuitWeek> {
        let week = self.controller.poll_week()?;
        let racks = self.racks;
        let matching = |day: &Day| {
            let to = |source| day.matching.destination(source).map(crate::matching::port);
            (day.length, (0..racks).map(to).collect::<Vec<_>>())
        };
        let days = week.schedule.days.iter().map(matching).collect();
        let unknown_reports = self.ledger.refused();
        Some(CircuitWeek { begins_at: week.begins_at, demand: week.demand, unknown_reports, days })
    }
}

#[cfg(test)]
mod tests;
