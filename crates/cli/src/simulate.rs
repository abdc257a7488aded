//! `anabranch simulate`: a scenario file, run in the packet simulator; a table, JSON lines, or a
//! run directory.
//!
//! Every combination of swept settings runs `--trials` times, on as many threads as the machine has
//! processors. The table shows means with 95 % confidence intervals; JSON lines and run directories
//! contain every trial. Ctrl-C ends the run; finished trials are kept.

mod capture;
pub(crate) mod table;
mod trials;

use crate::exit::{self, OrUsage as _};
use crate::family;
use crate::output;
use crate::run_dir::RunDir;
use anabranch_sim::scenario::{self, SweepPoint};
use anabranch_sim::{Outcome, Plan, PlanError, Simulation, WorkloadRow};
use anabranch_units::Seed;
use capture::Capture;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trials::parallel;

/// The scenario, its settings and the form of the results.
#[derive(clap::Args)]
pub struct Args {
    /// The scenario, a TOML file.
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// A setting that replaces the file's, such as network.rate="10 Gbit/s" or
    /// workload[0].servers=8. Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Runs of each combination of swept settings, with seeds that count up from the scenario's.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    trials: u64,
    /// Number of threads. Without: one for each processor.
    #[arg(long, value_name = "COUNT")]
    jobs: Option<usize>,
    /// Create a run directory with every flow, link and sample, as Parquet. The folder must not
    /// exist.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the packets that this link delivers to packets.pcapng of the run directory (--out),
    /// for Wireshark: headers only, one interface for each link. Repeatable. For a single run: no
    /// sweep, one trial.
    #[arg(long = "pcap", value_name = "FROM-TO", requires = "out")]
    captured: Vec<String>,
    /// Print one JSON object for each trial and workload.
    #[arg(long)]
    json: bool,
}

/// Results of one trial, with its point, number and seed.
struct Trial {
    point: usize,
    trial: u64,
    seed: u64,
    outcome: Outcome,
}

/// Error of a trial that cannot run.
type Failure = anyhow::Error;

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let points = load(args).or_usage()?;
    let run_dir = args.out.as_deref().map(RunDir::claim).transpose()?;
    let trials: Vec<(usize, u64)> =
        (0..points.len()).flat_map(|point| (0..args.trials).map(move |trial| (point, trial))).collect();
    let threads =
        args.jobs.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    ensure_usage!(threads > 0, "--jobs 0: must be at least 1");
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone())?;

    let bar = progress(trials.len() as u64, quiet);
    let shares: Vec<AtomicU64> = trials.iter().map(|_| AtomicU64::new(0)).collect();
    let folder = run_dir.as_ref().map(|dir| dir.path().to_owned());
    let work = |index: usize, &(point, trial): &(usize, u64)| -> Option<Result<Trial, Failure>> {
        let plan = match plan(&args.scenario, &points[point]) {
            Ok(plan) => plan,
            Err(error) => return Some(Err(exit::usage(error))),
        };
        let mut simulation: Simulation<'_> = match Simulation::new(&plan, trial) {
            Ok(simulation) => simulation,
            Err(error) => return Some(Err(exit::usage(error))),
        };
        let capture = folder.as_deref().filter(|_| !args.captured.is_empty());
        let mut capture = match capture.map(|dir| Capture::new(dir, &args.captured, &plan, &mut simulation)) {
            Some(Err(error)) => return Some(Err(error)),
            capture => capture.and_then(Result::ok),
        };
        let mut steps = 0u32;
        loop {
            let more = simulation.step();
            if let Some(Err(error)) = capture.as_mut().map(|capture| capture.take(&mut simulation)) {
                return Some(Err(error));
            }
            if !more {
                break;
            }
            steps += 1;
            if steps.is_multiple_of(16) {
                if interrupted.load(Ordering::Relaxed) {
                    return None;
                }
                shares[index].store((simulation.progress() * SCALE as f64) as u64, Ordering::Relaxed);
                bar.set_position(shares.iter().map(|s| s.load(Ordering::Relaxed)).sum());
                bar.set_message(format!("at {:.3} s", simulation.now().as_secs_f64()));
            }
        }
        if let Some(Err(error)) = capture.map(Capture::finish) {
            return Some(Err(error));
        }
        shares[index].store(SCALE, Ordering::Relaxed);
        let seed = simulation.seed();
        Some(Ok(Trial { point, trial, seed, outcome: simulation.finish() }))
    };
    let mut done: Vec<Option<Trial>> = trials.iter().map(|_| None).collect();
    let (mut failure, mut printed) = (None, 0);
    parallel(&trials, threads, work, |index, result| {
        match result {
            Some(Ok(trial)) => done[index] = Some(trial),
            Some(Err(error)) => failure = Some(error),
            None => {}
        }
        // Trials are printed in their order, so that equal runs print equal lines.
        while let Some(Some(trial)) = done.get(printed).filter(|_| args.json) {
            bar.suspend(|| rows(&points, trial).for_each(|row| outln!("{}", Value::Object(row))));
            printed += 1;
        }
        bar.set_position(shares.iter().map(|s| s.load(Ordering::Relaxed)).sum());
        failure.is_none() && !output::is_closed() && !interrupted.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    if let Some(failure) = failure {
        return Err(failure);
    }
    let done: Vec<Trial> = done.into_iter().flatten().collect();
    if !args.json {
        let lines = done.iter().map(|trial| table::TrialLine {
            point: trial.point,
            rows: trial.outcome.workloads.clone(),
            coflows: trial.outcome.coflows.clone(),
            drops: trial.outcome.network.dropped_queue_full + trial.outcome.network.dropped_otherwise,
            trusted: None,
        });
        outln!("{}", table::of(&points, &lines.collect::<Vec<_>>()));
    }
    if !quiet && args.trials > 1 && are_all_the_same(&done) {
        errln!(
            "anabranch: all trials are the same run: nothing that the scenario draws at random changed it"
        );
    }
    let is_interrupted = interrupted.load(Ordering::Relaxed);
    if let Some(run_dir) = run_dir.filter(|_| !is_interrupted || !done.is_empty()) {
        write(run_dir, args, &points, &done, is_interrupted)?;
    }
    if is_interrupted {
        errln!("anabranch: interrupted: {} of {} trials were whole", done.len(), trials.len());
    }
    Ok(if is_interrupted { ExitCode::from(exit::INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Returns true if each point has several trials with the same events.
fn are_all_the_same(done: &[Trial]) -> bool {
    let is_same = |trials: &[Trial]| {
        let hash = &trials[0].outcome.network.event_hash;
        trials.len() > 1 && trials.iter().all(|trial| trial.outcome.network.event_hash == *hash)
    };
    !done.is_empty() && done.chunk_by(|a, b| a.point == b.point).all(is_same)
}

/// Steps of the progress bar for one trial.
const SCALE: u64 = 1_000;

fn progress(trials: u64, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let template = "{bar:30} {percent}% of the work, {elapsed} so far, {eta} left, {msg}";
    let style = ProgressStyle::with_template(template).expect("a good template");
    ProgressBar::new(trials * SCALE).with_style(style)
}

fn load(args: &Args) -> anyhow::Result<Vec<SweepPoint>> {
    let shown = args.scenario.display().to_string();
    let text = crate::text::read(&args.scenario)
        .map_err(|error| anyhow::anyhow!("{shown}: {error}: name a scenario file that can be read"))?;
    let points = scenario::read(&shown, &text, &args.sets).map_err(|error| {
        let hint =
            if is_topology(&text) { "; this looks like a topology, which `emulate` takes" } else { "" };
        anyhow::anyhow!("{error}{hint}")
    })?;
    let mut warned = BTreeSet::new();
    // All points are checked before the first point runs.
    for point in &points {
        let plan = plan(&args.scenario, point).map_err(|error| {
            let swept: String =
                point.swept.iter().map(|(key, value)| format!(" (at {key} = {value})")).collect();
            anyhow::anyhow!("{}: {error}{swept}", scenario::place(&shown, &text, &args.sets, &error.field))
        })?;
        warned.extend(plan.warnings());
        for link in &args.captured {
            plan.network().find_link(link).map_err(|error| anyhow::anyhow!("--pcap: {error}"))?;
        }
    }
    warned.iter().for_each(|warning| tracing::warn!("{warning}"));
    let runs = points.len() as u64 * args.trials;
    ensure_usage!(
        args.captured.is_empty() || runs == 1,
        "--pcap: {runs} runs: only one is captured; leave out --trials, and --set each swept setting"
    );
    Ok(points)
}

/// Returns true if a file's text has tables of a topology and none of a scenario.
fn is_topology(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| {
        let has = |names: &[&str]| names.iter().any(|name| table.contains_key(*name));
        has(&["site", "cable", "link", "defaults"]) && !has(&["network", "workload"])
    })
}

/// Plans a scenario, and reads the files that the scenario names from the scenario's folder.
pub(crate) fn plan(scenario: &Path, point: &SweepPoint) -> Result<Plan, PlanError> {
    let folder = scenario.parent().map(PathBuf::from).unwrap_or_default();
    let read = |name: &str| crate::text::read(folder.join(name));
    Plan::with_systems(point.scenario.clone(), &read, &family::simulated())
}

/// Puts the trial's settings, number and seed before the fields of `row`.
pub(crate) fn keyed(point: &SweepPoint, trial: u64, seed: u64, row: &impl Serialize) -> Map<String, Value> {
    let json = |value: &toml::Value| serde_json::to_value(value).unwrap_or(Value::Null);
    let mut all: Map<String, Value> =
        point.swept.iter().map(|(key, value)| (key.clone(), json(value))).collect();
    all.insert("trial".into(), trial.into());
    all.insert("seed".into(), seed.into());
    if let Ok(Value::Object(row)) = serde_json::to_value(row) {
        all.extend(row);
    }
    all
}

/// Returns one row for each workload of a trial, with the network's counters.
pub(crate) fn keyed_rows(
    point: &SweepPoint,
    trial: u64,
    seed: u64,
    workloads: &[WorkloadRow],
    network: &impl Serialize,
) -> impl Iterator<Item = Map<String, Value>> {
    workloads.iter().enumerate().map(move |(index, workload)| {
        let mut row = keyed(point, trial, seed, workload);
        if workloads.len() > 1 {
            row.insert("workload_index".into(), index.into());
        }
        if let Ok(Value::Object(network)) = serde_json::to_value(network) {
            row.extend(network);
        }
        row
    })
}

fn rows(points: &[SweepPoint], trial: &Trial) -> impl Iterator<Item = Map<String, Value>> {
    let outcome = &trial.outcome;
    keyed_rows(&points[trial.point], trial.trial, trial.seed, &outcome.workloads, &outcome.network)
}

fn write(
    mut run_dir: RunDir,
    args: &Args,
    points: &[SweepPoint],
    done: &[Trial],
    is_interrupted: bool,
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for row in done.iter().flat_map(|trial| rows(points, trial)) {
        run_dir.row(&row)?;
        all.push(row);
    }
    run_dir.table("rows", &all)?;
    let each = |of: fn(&Outcome) -> Vec<Value>| {
        let keyed = |trial: &Trial| -> Vec<_> {
            of(&trial.outcome)
                .iter()
                .map(|row| keyed(&points[trial.point], trial.trial, trial.seed, row))
                .collect()
        };
        done.iter().flat_map(keyed).collect::<Vec<_>>()
    };
    run_dir.table("flows", &each(|outcome| values(&outcome.flows)))?;
    if done.iter().any(|trial| !trial.outcome.coflows.is_empty()) {
        run_dir.table("coflows", &each(|outcome| values(&outcome.coflows)))?;
    }
    run_dir.table("links", &each(|outcome| values(&outcome.links)))?;
    if points.iter().any(|point| point.scenario.probe.is_some()) {
        run_dir.table("series", &each(|outcome| values(&outcome.series)))?;
    }
    if done.iter().any(|trial| !trial.outcome.weeks.is_empty()) {
        run_dir.table("weeks", &each(|outcome| values(&outcome.weeks)))?;
    }
    let scenarios: Vec<Value> =
        points.iter().map(|point| serde_json::to_value(&point.scenario)).collect::<Result<_, _>>()?;
    let mut config = serde_json::json!({
        "scenario": args.scenario.display().to_string(),
        "set": args.sets,
        "trials": args.trials,
        "points": scenarios,
    });
    if is_interrupted {
        config["interrupted_after_runs"] = done.len().into();
    }
    let seed = points.first().map(|point| Seed::new(point.scenario.seed));
    run_dir.finish("simulate", config, seed)
}

fn values<T: Serialize>(rows: &[T]) -> Vec<Value> {
    rows.iter().map(|row| serde_json::to_value(row).expect("rows are plain data")).collect()
}
