//! `anabranch emulate SCENARIO`: the same file as `simulate`, under real kernels; a table, JSON lines, or a run directory.
//!
//! Leaves out: how a scenario is emulated (`anabranch_emu::scenario`). Read [`run`] first.

use super::Args;
use crate::family;
use crate::pipe::Pipe;
use crate::run_dir::RunDir;
use crate::simulate::{keyed, keyed_rows, table};
use anabranch_emu::scenario::{Options, check};
use anabranch_sim::scenario::{self, Point};
use anabranch_sim::{Plan, PlanError};
use anabranch_units::Seed;
use anyhow::{Context as _, ensure};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether `name` is a scenario file.
pub(super) fn is_scenario(name: &str) -> bool {
    let text =
        Path::new(name).extension().is_some_and(|e| e == "toml").then(|| std::fs::read_to_string(name));
    text.and_then(Result::ok)
        .and_then(|text| text.parse::<toml::Table>().ok())
        .is_some_and(|table| table.contains_key("network") || table.contains_key("workload"))
}

/// Runs it.
///
/// Errors: one line for the user.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let points = match load(args) {
        Ok(points) => points,
        Err(error) => {
            eprintln!("anabranch: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone())?;
    let mut record = args.record.as_deref().map(RunDir::claim).transpose()?;
    let (mut done, mut pipe): (Vec<table::Line>, _) = (Vec::new(), Pipe::default());
    let (mut trusted, mut coflows) = (true, Vec::new());
    for (index, point) in points.iter().enumerate() {
        for trial in 0..args.trials {
            if !quiet {
                let swept: String =
                    point.swept.iter().map(|(key, value)| format!(" {key} = {value}")).collect();
                eprintln!("emulating{swept}, trial {} of {}", trial + 1, args.trials);
            }
            let plan = plan(args, point)?;
            let options = Options {
                systems: &family::emulated(),
                host: &host,
                lateness_p99_max: args.lateness_bound,
                interrupted: &interrupted,
            };
            let run = anabranch_emu::scenario::run(&plan, trial, &options)?;
            if interrupted.load(Ordering::Relaxed) {
                eprintln!("anabranch: interrupted");
                return Ok(ExitCode::from(130));
            }
            let emulated = run.emulated;
            trusted &= emulated.trusted;
            if !emulated.trusted && !quiet {
                eprintln!("anabranch: not to be trusted: {}", emulated.why.join("; "));
            }
            for row in keyed_rows(point, trial, plan.seed(trial), &run.workloads, &emulated) {
                if args.json {
                    pipe.print(std::iter::once(serde_json::Value::Object(row.clone()).to_string()));
                }
                if let Some(record) = &mut record {
                    record.row(&row)?;
                }
            }
            let keyed = |row| keyed(point, trial, plan.seed(trial), row);
            coflows.extend(run.coflows.iter().map(keyed));
            if let Some(record) = &mut record {
                record.emulation(&format!("point {index}, trial {trial}"), &run.report)?;
            }
            let drops = emulated.dropped_queue_full + emulated.dropped_otherwise;
            done.push(table::Line { point: index, rows: run.workloads, coflows: run.coflows, drops });
            if pipe.is_closed {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    if !args.json {
        pipe.print(std::iter::once(table::of(&points, &done).to_string()));
    }
    if let Some(record) = record {
        if !coflows.is_empty() {
            record.table("coflows", &coflows)?;
        }
        let (command, config) = crate::arguments();
        record.finish(&command, config, points.first().map(|p| Seed::new(p.scenario.seed)))?;
    }
    Ok(if args.strict && !trusted { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn load(args: &Args) -> anyhow::Result<Vec<Point>> {
    ensure!(
        args.command.is_empty() && args.runs.is_empty(),
        "a scenario says itself what runs: leave out the command"
    );
    let text = std::fs::read_to_string(&args.topology).with_context(|| args.topology.clone())?;
    let points = scenario::read(&args.topology, &text, &args.sets)?;
    for point in &points {
        let plan = plan(args, point).map_err(|error| {
            let place = scenario::place(&args.topology, &text, &args.sets, &error.field);
            anyhow::anyhow!("{place}: {error}")
        })?;
        check(&plan, args.trials, &family::emulated()).with_context(|| args.topology.clone())?;
    }
    Ok(points)
}

/// Files that a scenario names lie beside it.
fn plan(args: &Args, point: &Point) -> Result<Plan, PlanError> {
    let folder = Path::new(&args.topology).parent().map(Path::to_path_buf).unwrap_or_default();
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    Plan::with_systems(point.scenario.clone(), &read, &family::simulated())
}

/// This program as one of a scenario's hosts.
fn host() -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("emulate-agent");
    Ok(command)
}
