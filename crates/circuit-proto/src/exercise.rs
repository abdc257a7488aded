//! Exercises for fuzz targets: parsers of demand tables, of jobs and of lists of failures.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise_demand`] first.

use crate::job::{Failures, Job, Planner};
use crate::{Kind, Timing, bound, table};

/// Maximum number of racks of a table for which schedules are also planned.
const PLANNED_RACKS_MAX: usize = 12;

/// Parses `bytes` as a table of demand. Returns true if the table is accepted.
///
/// Panics: if a scheduler's plan for a small network cannot run on the switch, or exceeds the
/// bound.
pub fn exercise_demand(bytes: &[u8]) -> bool {
    let Ok(table) = table::read(bytes) else { return false };
    assert_eq!(table.racks.len(), table.demand.racks(), "each rack has a name");
    if table.racks.len() <= PLANNED_RACKS_MAX {
        let (demand, timing) = (&table.demand, Timing::ETALON);
        let (week, ports) = (bound::served_max(demand, &timing), bound::ports_max(demand, &timing));
        for kind in Kind::ALL {
            let plan = kind.scheduler().plan(demand, &timing);
            assert_eq!(plan.schedule.check(table.racks.len(), &timing), Ok(()), "{}", kind.name());
            let bound = if kind.is_one_week() { week } else { ports };
            assert!(plan.served <= bound, "{} serves {}, bound {bound}", kind.name(), plan.served);
        }
    }
    true
}

/// Maximum number of steps of a job that is also planned.
const PLANNED_STEPS_MAX: usize = 32;

/// Parses `bytes` as a job in TOML. Returns true if the job is accepted.
///
/// Panics: if the plan of a small job is below its bound, or worse than staying.
pub fn exercise_job(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(job) = text.parse::<Job>() else { return false };
    if job.hosts <= PLANNED_RACKS_MAX && job.iterations * job.phases.len() <= PLANNED_STEPS_MAX {
        let plan = Planner::new(&job).expect("a job that was checked").plan();
        assert!(plan.bound <= plan.makespan, "makespan {}, bound {}", plan.makespan, plan.bound);
        assert!(plan.staying.is_some_and(|staying| plan.makespan <= staying), "a ring reaches all hosts");
    }
    true
}

/// Job whose failures [`exercise_failures`] plans: four hosts, one spare, two switches.
const SMALL_JOB: &str = r#"
    hosts = 4
    spares = 1
    switches = 2
    rate = "400 Gbit/s"
    night = "10 ms"
    [[phase]]
    name = "gradients"
    pattern = "ring-all-reduce"
    bytes = "1 GB"
    [[phase]]
    name = "tokens"
    pattern = "all-to-all"
    bytes = "1 GB"
"#;

/// Parses `bytes` as a list of failures of a small job. Returns true if the list is accepted.
///
/// Panics: if the plan after these failures is below its bound.
pub fn exercise_failures(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(failures) = text.parse::<Failures>() else { return false };
    let job: Job = SMALL_JOB.parse().expect("a valid job");
    if failures.check(&job).is_err() {
        return false;
    }
    if let Ok(plan) = Planner::new(&job).expect("a valid job").plan_after(&failures) {
        assert!(plan.bound <= plan.makespan, "makespan {}, bound {}", plan.makespan, plan.bound);
    }
    true
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn corpus_inputs_are_accepted_or_refused_by_name() {
        assert!(replay("circuit_demand", super::exercise_demand) >= 10);
        assert!(replay("circuit_job", super::exercise_job) >= 8);
        assert!(replay("circuit_failures", super::exercise_failures) >= 14);
    }
}
