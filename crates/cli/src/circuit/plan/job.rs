//! `anabranch circuit plan --job`: the times at which the circuits of a training job change, also
//! after failures.
//!
//! Leaves out: the choice ([`anabranch_circuit_proto::job`]). Read [`run`] and [`Answer`] first.

use super::columns;
use crate::exit::OrUsage as _;
use anabranch_circuit_proto::job::{Failures, Job, JobPlan, Planner};
use anabranch_units::Duration;
use anyhow::Context as _;
use serde::Serialize;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

/// Maximum bytes read of a file: one more than a job may have, so that a longer file is noticed.
const READ_MAX: u64 = (16 << 20) + 1;
/// Maximum number of steps in a table.
const SHOWN_MAX: usize = 100;

/// Plans one job.
///
/// Errors: a one-line message for the user.
pub(super) fn run(file: &Path, failures: Option<&Failures>, json: bool) -> anyhow::Result<ExitCode> {
    let shown = || format!("job {}", file.display());
    let mut text = String::new();
    let open = std::fs::File::open(file).with_context(shown).or_usage()?;
    open.take(READ_MAX).read_to_string(&mut text).with_context(shown).or_usage()?;
    let job: Job = text.parse().with_context(shown).or_usage()?;
    if let Some(failures) = failures {
        failures.check(&job).or_usage()?;
    }
    let planner = Planner::new(&job).with_context(shown).or_usage()?;
    let whole = planner.plan();
    let plan = match failures {
        Some(failures) => planner.plan_after(failures).context("the job cannot go on")?,
        None => whole.clone(),
    };
    let answer = Answer::new(&job, &plan, failures.map(|_| whole.makespan));
    let shown = if json { serde_json::to_string(&answer)? } else { answer.text() };
    outln!("{shown}");
    Ok(ExitCode::SUCCESS)
}

/// One phase of one iteration.
#[derive(Debug, Serialize)]
struct StepView {
    /// Number of the iteration, from 1.
    iteration: usize,
    phase: String,
    circuits: &'static str,
    ready_s: f64,
    end_s: f64,
}

/// The plan of one job.
#[derive(Debug, Serialize)]
struct Answer {
    hosts: usize,
    switches: usize,
    night_s: f64,
    iterations: usize,
    makespan_s: f64,
    /// Lower bound on the makespan with any circuits and relays.
    bound_s: f64,
    /// Makespan with the best circuits that never change. `None` if no such circuits connect all
    /// pairs.
    staying_s: Option<f64>,
    /// Makespan with a packet switch that has the same working ports.
    packet_s: f64,
    /// Makespan without the failures. `None` if there are no failures.
    whole_s: Option<f64>,
    steps: Vec<StepView>,
}

impl Answer {
    fn new(job: &Job, plan: &JobPlan, whole: Option<Duration>) -> Self {
        let steps = plan.steps.iter().map(|step| StepView {
            iteration: step.iteration + 1,
            phase: job.phases[step.phase].name.clone(),
            circuits: step.choice.name(),
            ready_s: step.ready.as_secs_f64(),
            end_s: step.end.as_secs_f64(),
        });
        Self {
            hosts: job.hosts,
            switches: job.switches.count,
            night_s: job.switches.night.as_secs_f64(),
            iterations: job.iterations,
            makespan_s: plan.makespan.as_secs_f64(),
            bound_s: plan.bound.as_secs_f64(),
            staying_s: plan.staying.map(Duration::as_secs_f64),
            packet_s: plan.packet.as_secs_f64(),
            whole_s: whole.map(Duration::as_secs_f64),
            steps: steps.collect(),
        }
    }

    fn text(&self) -> String {
        let mut rows = columns(&["iteration", "phase", "circuits", "ready s", "end s"], &[0, 3, 4]);
        for step in self.steps.iter().take(SHOWN_MAX) {
            rows.add_row([
                step.iteration.to_string(),
                step.phase.clone(),
                step.circuits.to_owned(),
                format!("{:.4}", step.ready_s),
                format!("{:.4}", step.end_s),
            ]);
        }
        let mut text = rows.trim_fmt();
        if self.steps.len() > SHOWN_MAX {
            text +=
                &format!("\n ... and {} more steps, all of them with --json", self.steps.len() - SHOWN_MAX);
        }
        let above = |than: f64| (self.makespan_s / than - 1.0) * 100.0;
        text += &format!("\n\nmakespan {:.4} s", self.makespan_s);
        if self.bound_s > 0.0 {
            text += &format!(", {:.1} % above the bound of {:.4} s", above(self.bound_s), self.bound_s);
        }
        match self.staying_s {
            Some(staying) => text += &format!("\nstaying  {staying:.4} s, the best circuits that never turn"),
            None => text += "\nstaying  impossible: no standing circuits reach all pairs",
        }
        let ports = if self.whole_s.is_some() { "the ports that are left" } else { "the same ports" };
        text += &format!("\npacket   {:.4} s, a packet switch with {ports} and no nights", self.packet_s);
        if let Some(whole) = self.whole_s {
            let lost = self.makespan_s - whole;
            text += &format!("\nfailures cost {lost:.4} s: without them the job takes {whole:.4} s");
        }
        text
    }
}
