//! `anabranch emulate SCENARIO`: runs a scenario of `simulate` on real kernels; results as a table,
//! JSON lines, or a run directory.
//!
//! Leaves out: how a scenario is emulated (`anabranch_emu::scenario`). Read [`run`] first.

use super::announcements::Announcements;
use super::outcome::host_processors;
use super::{Args, preload, stretches_time};
use crate::exit::{self, OrUsage as _};
use crate::family;
use crate::run_dir::RunDir;
use crate::simulate::{keyed, keyed_rows, plan, table};
use anabranch_emu::scenario::{
    Options, check, congestion_control, emulation_options, measured_dilation, packets_late_max,
    stated_dilation,
};
use anabranch_emu::{Dilation, EmulationHandle, EmulationOptions, give_preload};
use anabranch_graph::Topology;
use anabranch_sim::Plan;
use anabranch_sim::scenario::{self, SweepPoint};
use anabranch_units::Seed;
use anyhow::Context as _;
use std::any::Any;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns true if `name` is a scenario file.
pub(super) fn is_scenario(name: &str) -> bool {
    let text = Path::new(name).extension().is_some_and(|e| e == "toml").then(|| crate::text::read(name));
    text.and_then(Result::ok)
        .and_then(|text| text.parse::<toml::Table>().ok())
        .is_some_and(|table| table.contains_key("network") || table.contains_key("workload"))
}

/// Runs the scenario.
///
/// Errors: a one-line message for the user.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let points = load(args).and_then(|points| without_command(args).map(|()| points)).or_usage()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone())?;
    let mut record = args.record.as_deref().map(RunDir::claim).transpose()?;
    let mut done: Vec<table::TrialLine> = Vec::new();
    let (mut trusted, mut coflows) = (true, Vec::new());
    let libraries = preload(args)?;
    let follows_demand = |point: &SweepPoint| {
        point.scenario.circuit.as_ref().is_some_and(|circuit| circuit.schedule.is_some())
    };
    let announcements = points.iter().any(follows_demand).then(Announcements::new).transpose()?;
    let with_libraries = || {
        let mut command = host()?;
        give_preload(&mut command, &libraries);
        command.envs(announcements.iter().flat_map(Announcements::variables));
        Ok(command)
    };
    let serve = announcements.as_ref().map(|place| |emulation| place.serve(emulation));
    let started =
        serve.as_ref().map(|serve| serve as &dyn Fn(EmulationHandle) -> std::io::Result<Box<dyn Any>>);
    let stage = HostSetup { host: &with_libraries, started, interrupted: &interrupted };
    let measured = measured(args, &points, quiet, stage);
    if interrupted.load(Ordering::Relaxed) {
        errln!("anabranch: interrupted");
        return Ok(ExitCode::from(exit::INTERRUPTED));
    }
    let measured = measured?;
    for (index, point) in points.iter().enumerate() {
        for trial in 0..args.trials {
            if !quiet {
                let swept: String =
                    point.swept.iter().map(|(key, value)| format!(" {key} = {value}")).collect();
                errln!("emulating{swept}, trial {} of {}", trial + 1, args.trials);
            }
            let plan = plan(Path::new(&args.topology), point)?;
            let dilation = stated(args, &plan)?.unwrap_or(measured);
            let systems = family::emulated();
            let options = Options { dilation: Some(dilation), ..options(args, &systems, stage) };
            let run = anabranch_emu::scenario::run(&plan, trial, &options)?;
            if interrupted.load(Ordering::Relaxed) {
                errln!("anabranch: interrupted");
                return Ok(ExitCode::from(exit::INTERRUPTED));
            }
            let emulated = run.emulated;
            trusted &= emulated.trusted;
            if !quiet && (dilation != Dilation::NONE || emulated.dilated.circuits.is_some()) {
                errln!("{}", said(&emulated));
            }
            if !quiet {
                errln!("{}", verdict(&emulated, trial));
            }
            for row in keyed_rows(point, trial, plan.seed(trial), &run.workloads, &emulated) {
                if args.json {
                    outln!("{}", serde_json::Value::Object(row.clone()));
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
            done.push(table::TrialLine {
                point: index,
                rows: run.workloads,
                coflows: run.coflows,
                drops,
                trusted: Some(emulated.trusted),
            });
            if crate::output::is_closed() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    if !args.json {
        outln!("{}", table::of(&points, &done));
    }
    if let Some(record) = record {
        if !coflows.is_empty() {
            record.table("coflows", &coflows)?;
        }
        let (command, config) = crate::arguments();
        record.finish(&command, config, points.first().map(|p| Seed::new(p.scenario.seed)))?;
    }
    Ok(if args.strict && !trusted { ExitCode::from(exit::UNTRUSTED) } else { ExitCode::SUCCESS })
}

/// Verdict on one trial, for a person.
fn verdict(emulated: &anabranch_emu::scenario::EmulationFigures, trial: u64) -> String {
    let trial = trial + 1;
    if emulated.trusted {
        format!("trial {trial}: trusted: lateness p99 {:.0} us", emulated.lateness_us_p99)
    } else {
        format!("anabranch: trial {trial}: not to be trusted: {}", emulated.why.join("; "))
    }
}

/// Summary of a run: dilation, lateness as a share of a day, and kernel.
fn said(emulated: &anabranch_emu::scenario::EmulationFigures) -> String {
    let dilated = &emulated.dilated;
    let day =
        dilated.lateness_day_share.map(|share| format!("; lateness p99 {:.2} % of a day", share * 100.0));
    let own = match &dilated.unstretched[..] {
        [] => String::new(),
        own => format!("; clocks not stretched: {}", own.join(", ")),
    };
    let cpus = dilated.host_time.map(|time| format!("; {}", host_processors(time)));
    format!(
        "dilation {}{}; congestion control {}{own}{}",
        dilated.dilation,
        day.unwrap_or_default(),
        emulated.congestion_control,
        cpus.unwrap_or_default(),
    )
}

/// Settings of a run's hosts: their programs, the service that they use, and the flag that ends the
/// run early.
#[derive(Copy, Clone)]
struct HostSetup<'a> {
    host: &'a dyn Fn() -> std::io::Result<Command>,
    started: Option<&'a dyn Fn(EmulationHandle) -> std::io::Result<Box<dyn Any>>>,
    interrupted: &'a AtomicBool,
}

fn options<'a>(
    args: &'a Args,
    systems: &'a [&'a dyn anabranch_emu::scenario::System],
    HostSetup { host, started, interrupted }: HostSetup<'a>,
) -> Options<'a> {
    Options {
        systems,
        host,
        started,
        lateness_p99_max: args.lateness_bound,
        dilation: args.kernel.dilation,
        host_cpus: args.kernel.host_cpus,
        congestion_control: args.kernel.congestion_control.as_deref(),
        interrupted,
    }
}

/// Dilation that the user states, or else the scenario.
fn stated(args: &Args, plan: &Plan) -> anyhow::Result<Option<Dilation>> {
    Ok(args.kernel.dilation.map_or_else(|| stated_dilation(plan), |known| Ok(Some(known)))?)
}

/// Measures one dilation for all points that state none: the smallest at which this machine carries
/// their circuits on time. [`Dilation::NONE`] without circuits.
fn measured(
    args: &Args,
    points: &[SweepPoint],
    quiet: bool,
    stage: HostSetup<'_>,
) -> anyhow::Result<Dilation> {
    let systems = family::emulated();
    let mut least = Dilation::NONE;
    for point in points {
        let plan = plan(Path::new(&args.topology), point)?;
        let has_systems = point.scenario.workload.iter().any(|w| matches!(w, scenario::Workload::System(_)));
        if stated(args, &plan)?.is_none() && plan.network().circuit().is_some() && !has_systems {
            least = measured_dilation(&plan, least, &options(args, &systems, stage))?;
            if !quiet {
                let what = if least == Dilation::MAX {
                    "the largest, and this machine may be late even so"
                } else {
                    "the smallest so far at which this machine is on time"
                };
                errln!("measured dilation: {least} is {what}");
            }
        }
    }
    Ok(least)
}

/// Returns the network of a scenario for the traffic of a command, and the options of its
/// emulation.
///
/// Errors: one line: an error in the scenario, several points, options that apply to topologies
/// only.
pub(super) fn network(args: &Args, quiet: bool) -> anyhow::Result<(Topology, EmulationOptions)> {
    let points = load(args)?;
    let [point] = &points[..] else {
        bail_usage!(
            "{}: {} combinations of settings: --set one value of each for a command",
            args.topology,
            points.len()
        );
    };
    ensure_usage!(args.trials == 1, "--trials {}: a command runs once", args.trials);
    ensure_usage!(point.scenario.change.is_empty(), "[[change]]: not beside a command: use --at");
    let plan = plan(Path::new(&args.topology), point)?;
    let (interrupted, systems) = (AtomicBool::new(false), family::emulated());
    let stage = HostSetup { host: &host, started: None, interrupted: &interrupted };
    let dilation = match stated(args, &plan)? {
        Some(dilation) => dilation,
        None => measured(args, &points, quiet, stage)?,
    };
    let control = args.kernel.congestion_control.clone();
    let control = control.map_or_else(|| congestion_control(&plan).map(str::to_owned), Ok)?;
    let options = emulation_options(&plan, 0, dilation)?;
    let options = EmulationOptions {
        congestion_control: Some(control),
        host_cpus: args.kernel.host_cpus,
        tcp_buffer_bytes_max: args.kernel.tcp_buffer.or(options.tcp_buffer_bytes_max),
        lateness_p99_max: packets_late_max(&plan, &self::options(args, &systems, stage)),
        ..options
    };
    Ok((plan.network().topology().clone(), options))
}

/// Refuses options that only take effect with a command.
fn without_command(args: &Args) -> anyhow::Result<()> {
    let given = [
        ("--tcp-buffer", args.kernel.tcp_buffer.is_some()),
        ("--site", args.site.is_some()),
        ("--at", !args.changes.is_empty()),
        ("--duration", args.duration.is_some()),
        ("--hosts", args.hosts.is_some()),
        ("--report", args.report.is_some()),
    ];
    let given = given.into_iter().find(|(_, is_given)| *is_given);
    if let Some((option, _)) = given {
        bail_usage!("{option}: only for a command in the scenario's hosts: add it after `--`");
    }
    if let Some(library) = args.kernel.preload.iter().find(|library| stretches_time(library)) {
        bail_usage!(
            "--preload {}: a scenario's hosts count the network's time by themselves",
            library.display()
        );
    }
    Ok(())
}

fn load(args: &Args) -> anyhow::Result<Vec<SweepPoint>> {
    ensure_usage!(
        args.loss.is_none() && args.queue.is_none(),
        "--loss and --queue are for topologies: --set network.loss_ppm and network.queue"
    );
    ensure_usage!(args.rate.is_none(), "--rate is for topologies: --set network.rate");
    ensure_usage!(args.seed.is_none(), "--seed is for topologies: --set seed");
    ensure_usage!(
        args.kernel.mtu.is_none(),
        "--mtu is for topologies: --set transport.mss and transport.header_bytes, whose sum is the largest packet"
    );
    let text = crate::text::read(&args.topology).with_context(|| args.topology.clone())?;
    let points = scenario::read(&args.topology, &text, &args.sets)?;
    let mut warned = BTreeSet::new();
    for point in &points {
        let plan = plan(Path::new(&args.topology), point).map_err(|error| {
            let place = scenario::place(&args.topology, &text, &args.sets, &error.field);
            anyhow::anyhow!("{place}: {error}")
        })?;
        warned.extend(plan.warnings());
        check(&plan, args.trials, args.kernel.dilation, &family::emulated())
            .with_context(|| args.topology.clone())?;
    }
    warned.iter().for_each(|warning: &String| tracing::warn!("{warning}"));
    Ok(points)
}

/// Builds the command of this program as one of a scenario's hosts.
pub(crate) fn host() -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("emulate-agent");
    Ok(command)
}
