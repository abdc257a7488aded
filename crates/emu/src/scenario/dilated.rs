//! Circuits and time dilation of emulated scenarios: start of a run, its maximum lateness, and the
//! smallest dilation at which its results are trusted.
//!
//! A run over circuits is trusted if 99 % of its packets are late by at most 1 % of the shortest
//! day. The lateness in emulated time falls as the dilation grows, so there is a smallest dilation
//! at which this machine's results are trusted. [`measured_dilation`] finds that dilation by short
//! runs of the scenario. Read [`measured_dilation`] first.

use super::host::monotonic_ns;
use super::{Options, ScenarioError, run_at};
use crate::{Dilation, Emulation};
use anabranch_sim::{Plan, scenario};
use anabranch_units::{Duration, Instant};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum trusted lateness of flows and datagrams if the user states none.
pub(super) const LATENESS_MAX: Duration = Duration::from_ms(1);
/// Packets may be late by the shortest day divided by this number.
const DAY_PART: u64 = 100;
/// Real time between the start signal and the first flow.
const LEAD: std::time::Duration = std::time::Duration::from_millis(100);
/// Real durations of the runs that try a dilation. The short run rejects most dilations. The long
/// run includes the growth of TCP's windows and the forwarder's processor share, which is measured
/// once a second.
const TRIALS: [std::time::Duration; 2] =
    [std::time::Duration::from_millis(500), std::time::Duration::from_secs(4)];
/// The search ends when the dilation is known to within its value divided by this number.
const PRECISION: u32 = 8;

/// Length of the shortest day of circuits. `None` without circuits.
pub(super) fn shortest_day_of(plan: &Plan) -> Option<Duration> {
    if let Some(schedule) = plan.circuit_schedule() {
        return Some(schedule.day_min);
    }
    let (_, settings) = plan.network().circuit()?;
    let days = settings.timetable.slots().filter(|(_, matching)| matching.iter().any(Option::is_some));
    days.map(|(length, _)| length).min()
}

/// Maximum trusted 99th percentile of packets' lateness in a run of `plan`, in emulated time.
pub fn packets_late_max(plan: &Plan, options: &Options<'_>) -> Duration {
    let of_day = shortest_day_of(plan).map(|day| Duration::from_ps(day.as_ps() / DAY_PART));
    options.lateness_p99_max.or(of_day).unwrap_or(LATENESS_MAX)
}

/// Start time of a run by the machine's clock: after [`LEAD`], and at the next start of a week if
/// there are circuits.
pub(super) fn begin_ns(plan: &Plan, emulation: &Emulation, dilation: Dilation) -> u64 {
    let now = emulation.now();
    let soon_ps = (now + dilation.emulated(LEAD)).saturating_since(Instant::ZERO).as_ps();
    let week_ps = plan.network().circuit().map_or(1, |(_, settings)| settings.timetable.period().as_ps());
    let begin = Instant::ZERO + Duration::from_ps(soon_ps.next_multiple_of(week_ps));
    monotonic_ns() + dilation.real(begin.saturating_since(now)).as_nanos() as u64
}

/// Finds the smallest dilation from `least` on at which a run of `plan` is trusted on this machine,
/// to one part in eight. Returns the largest dilation if none is trusted. Each trial has two runs,
/// of half a second and of four seconds of real time; a run covers at least one week of circuits.
///
/// Errors: a run in which no packet is sent; see [`ScenarioError`].
pub fn measured_dilation(
    plan: &Plan,
    least: Dilation,
    options: &Options<'_>,
) -> Result<Dilation, ScenarioError> {
    let is_honest = |factor: u32| -> Result<bool, ScenarioError> {
        let dilation = Dilation::try_from(factor).map_err(|error| ScenarioError::new(error.to_string()))?;
        let week =
            plan.network().circuit().map_or(Duration::ZERO, |(_, settings)| settings.timetable.period());
        for real in TRIALS {
            if options.interrupted.load(Ordering::Relaxed) {
                return Ok(true);
            }
            let limit = dilation.emulated(real).max(week);
            let run = run_at(plan, 0, options, dilation, Some(limit))?;
            let is_interrupted = options.interrupted.load(Ordering::Relaxed);
            if run.report.packets == 0 && !is_interrupted {
                let why = format!("dilation: not measured, as no packet is sent within {limit}: state one");
                return Err(ScenarioError::new(why));
            }
            if !run.emulated.trusted && !is_interrupted {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let honest = least_honest(least.factor(), Dilation::MAX.factor(), is_honest)?;
    let honest = honest.map_or(Ok(Dilation::MAX), Dilation::try_from);
    honest.map_err(|error| ScenarioError::new(error.to_string()))
}

/// Finds the smallest factor from `least` to `most` for which `is_honest` is true, to one part in
/// eight. Returns `None` if `most` was tried and is not honest.
///
/// Errors: the errors of `is_honest`.
fn least_honest<E>(
    least: u32,
    most: u32,
    mut is_honest: impl FnMut(u32) -> Result<bool, E>,
) -> Result<Option<u32>, E> {
    let (mut late, mut honest) = (least - 1, least);
    while !is_honest(honest)? {
        if honest == most {
            return Ok(None);
        }
        (late, honest) = (honest, (2 * honest).min(most));
    }
    while honest - late > 1.max(honest / PRECISION) {
        let between = late + (honest - late) / 2;
        if is_honest(between)? {
            honest = between;
        } else {
            late = between;
        }
    }
    Ok(Some(honest))
}

/// Scenario of two racks with one host each, a flow between them, and days long enough for any
/// machine.
const TWO_RACKS: &str = r#"
    duration = "500 ms"
    [network]
    topology = "star"
    hosts = 2
    rate = "1 Gbit/s"
    delay = "10 us"
    [circuit]
    switch = "hub"
    day = "9 ms"
    night = "1 ms"
    rate = "200 Mbit/s"
    packet_rate = "50 Mbit/s"
    [workload]
    kind = "long"
    pairs = 1
"#;

/// The shortest day of circuits that this machine emulates without dilation: a hundred times the
/// lateness that 99 % of the packets between two racks at 200 Mbit/s do not exceed. `host` is
/// [`Options::host`].
///
/// Errors: see [`ScenarioError`].
pub fn shortest_day(host: &dyn Fn() -> std::io::Result<Command>) -> Result<Duration, ScenarioError> {
    let points =
        scenario::read("two racks", TWO_RACKS, &[]).map_err(|error| ScenarioError::new(error.to_string()))?;
    let point = points.first().ok_or_else(|| ScenarioError::new("two racks: no scenario"))?;
    let no_files = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let plan = Plan::new(point.scenario.clone(), &no_files)
        .map_err(|error| ScenarioError::new(error.to_string()))?;
    let interrupted = AtomicBool::new(false);
    let options = Options {
        systems: &[],
        host,
        lateness_p99_max: None,
        dilation: None,
        host_cpus: None,
        congestion_control: None,
        started: None,
        interrupted: &interrupted,
    };
    let run = run_at(&plan, 0, &options, Dilation::NONE, None)?;
    Ok(Duration::from_ns((run.report.lateness_us_p99 * 1e3) as u64 * DAY_PART))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn search_finds_the_least_honest_factor_within_an_eighth(
            least in 1u32..=1_024, honest in 1u32..=1_100
        ) {
            let mut tried = Vec::new();
            let found = least_honest(least, 1_024, |factor| {
                tried.push(factor);
                Ok::<_, ()>(factor >= honest)
            });
            let expected = honest.max(least);
            match found.expect("no error") {
                Some(found) => {
                    prop_assert!(found >= expected && found <= expected + 1.max(found / PRECISION), "{found}");
                    prop_assert!(tried.contains(&found), "{found} of {tried:?}");
                }
                None => prop_assert!(honest > 1_024 && tried.last() == Some(&1_024), "{tried:?}"),
            }
        }
    }
}
