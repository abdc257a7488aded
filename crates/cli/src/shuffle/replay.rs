//! `anabranch shuffle replay`: recorded coflows on one switch, under one scheduler after another.

use super::allocator;
use crate::exit::OrUsage as _;
use crate::process::thread_cpu_s;
use crate::run_dir::RunDir;
use anabranch_fluid::bound::{self, Effort};
use anabranch_fluid::{CoflowId, Network, Outcome, benchmark, coflowsim, run as run_flows, run_in_epochs};
use anabranch_shuffle_proto::Scheduler;
use anabranch_units::stats::{mean, percentile};
use anabranch_units::{BitRate, Instant};
use anyhow::Context as _;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// The trace, the schedulers and the switch.
#[derive(clap::Args)]
pub struct Args {
    /// The recorded coflows, in the coflow benchmark's format (github.com/coflow/coflow-benchmark).
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// The schedulers to run, one after the other. Without: all but chase-without-conservation and
    /// the variants of chase+.
    #[arg(long = "allocator", value_name = "NAME", value_parser = allocator::parser())]
    allocators: Vec<Scheduler>,
    /// Use the rules of CoflowSim, the field's reference simulator: its epochs, ports and rounding.
    /// Only varys and fifo support these rules.
    #[arg(long, conflicts_with_all = ["port_rate", "faster"])]
    like_coflowsim: bool,
    /// Take only this many coflows, from the trace's beginning. Without: all.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    coflows: Option<u64>,
    /// The rate of each port, in and out. The benchmark's own simulator has 2^30 bit/s.
    #[arg(long, value_name = "RATE", default_value = "1073741824 bit/s")]
    port_rate: BitRate,
    /// Let coflows arrive this many times faster than recorded, for a busier network.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    faster: u64,
    /// Effort for a lower bound on the mean completion time of any scheduler.
    #[arg(long, value_enum, default_value_t = BoundEffort::Usual)]
    bound: BoundEffort,
    /// Create a run directory with every coflow's time. The folder must not exist.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object for each scheduler.
    #[arg(long)]
    json: bool,
}

/// Effort for a lower bound.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BoundEffort {
    /// No bound.
    None,
    /// Takes some seconds for the benchmark's trace.
    Quick,
    /// Takes half a minute for the benchmark's trace.
    Usual,
    /// Takes some minutes for the benchmark's trace.
    Long,
}

impl BoundEffort {
    fn effort(self) -> Option<Effort> {
        let usual = Effort::default();
        match self {
            Self::None => None,
            Self::Quick => Some(Effort { branches: 0, ..usual }),
            Self::Usual => Some(usual),
            Self::Long => Some(Effort { steps: 200, branches: 200, ..usual }),
        }
    }
}

/// Completion times of coflows under one scheduler.
#[derive(Clone, Debug, Serialize)]
struct Row {
    allocator: String,
    coflows: u64,
    flows: u64,
    mean_s: Option<f64>,
    p50_s: Option<f64>,
    p95_s: Option<f64>,
    p99_s: Option<f64>,
    max_s: Option<f64>,
    /// Lower bound on the mean under any scheduler, even with knowledge of all future coflows.
    bound_mean_s: Option<f64>,
    /// Excess of this scheduler's mean over the bound, as a share of the bound.
    above_bound_share: Option<f64>,
    /// Mean ratio of a coflow's completion time to its isolated completion time.
    slowdown_mean_share: Option<f64>,
    slowdown_p99_share: Option<f64>,
    slowdown_max_share: Option<f64>,
    decisions: u64,
    cpu_s: f64,
}

/// One coflow under one scheduler.
#[derive(Clone, Debug, Serialize)]
struct CoflowRow<'a> {
    allocator: &'a str,
    coflow: u64,
    arrived_s: f64,
    time_s: f64,
    alone_s: f64,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let shown = args.trace.display();
    let text = crate::text::read(&args.trace)
        .with_context(|| format!("{shown}: cannot be read: name a trace of the coflow benchmark"))
        .or_usage()?;
    let coflows = args.coflows.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let mut trace = benchmark::parse(&text, coflows).with_context(|| shown.to_string()).or_usage()?;
    if args.like_coflowsim {
        trace = trace.as_coflowsim();
    }
    for flow in &mut trace.flows {
        flow.arrives = Instant::from_ps(flow.arrives.as_ps() / u128::from(args.faster));
    }
    let port_rate = if args.like_coflowsim { coflowsim::PORT } else { args.port_rate };
    let network = Network::big_switch(trace.ports, port_rate).context("--port-rate").or_usage()?;
    let alone_s = bound::alone_s(&network, &trace.flows)?;
    let run_dir = args.out.as_deref().map(RunDir::claim).transpose()?;
    let say = |what: &str, began_s: f64| {
        if !args.json && !quiet {
            errln!("{what}: {:.1} s of one processor", thread_cpu_s() - began_s);
        }
    };
    let began_s = thread_cpu_s();
    let effort = args.bound.effort();
    let bound = effort.map(|effort| bound::total(&network, &trace.flows, effort)).transpose()?;
    bound.iter().for_each(|_| say("lower bound", began_s));
    let bound_mean_s = bound.map(|bound| bound.mean_s());
    let mut rows = Vec::new();
    let mut times: Vec<Map<String, Value>> = Vec::new();
    for scheduler in chosen(args) {
        let text = scheduler.name();
        let began_s = thread_cpu_s();
        let outcome = if args.like_coflowsim {
            let allocator = scheduler.make_like_coflowsim().with_context(|| {
                format!("{text}: its rules in CoflowSim are not known here: leave out --like-coflowsim")
            });
            let mut allocator = allocator.or_usage()?;
            run_in_epochs(&network, &trace.flows, coflowsim::STEP, &mut allocator)
        } else {
            run_flows(&network, &trace.flows, &mut scheduler.make())
        };
        let outcome = outcome.context(text)?;
        say(text, began_s);
        let mut row = summary(text.to_owned(), &outcome, &alone_s, thread_cpu_s() - began_s);
        row.bound_mean_s = bound_mean_s;
        row.above_bound_share = row.mean_s.zip(bound_mean_s).map(|(mean_s, bound_s)| mean_s / bound_s - 1.0);
        if args.json {
            outln!("{}", serde_json::to_string(&row)?);
        }
        times.extend(outcome.coflows.iter().filter_map(|(id, done)| {
            let row = CoflowRow {
                allocator: &row.allocator,
                coflow: id.0.into(),
                arrived_s: done.arrived.as_secs_f64(),
                time_s: done.time().as_secs_f64(),
                alone_s: alone_s[id],
            };
            serde_json::to_value(row).ok()?.as_object().cloned()
        }));
        rows.push(row);
    }
    if !args.json {
        outln!("{}", table(&rows));
        if let Some(bound_s) = bound_mean_s {
            outln!("no scheduler's mean is below {bound_s:.3} s, though it knew all coflows beforehand");
        }
    }
    if let Some(mut run_dir) = run_dir {
        rows.iter().try_for_each(|row| run_dir.row(row))?;
        run_dir.table("coflows", &times)?;
        let (command, config) = crate::arguments();
        run_dir.finish(&command, config, None)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The named schedulers. Without names: all schedulers except variants, or all whose rules in
/// CoflowSim are known.
fn chosen(args: &Args) -> Vec<Scheduler> {
    if !args.allocators.is_empty() {
        return args.allocators.clone();
    }
    if args.like_coflowsim {
        return ["varys", "fifo"].map(|name| name.parse().expect("it is among all")).to_vec();
    }
    Scheduler::ALL.into_iter().filter(|scheduler| scheduler.is_whole()).collect()
}

fn summary(allocator: String, outcome: &Outcome, alone_s: &BTreeMap<CoflowId, f64>, cpu_s: f64) -> Row {
    let done = || outcome.coflows.iter().map(|(id, done)| (done.time().as_secs_f64(), alone_s[id]));
    let mut times: Vec<f64> = done().map(|(time_s, _)| time_s).collect();
    times.sort_by(f64::total_cmp);
    // A coflow without data takes no time, so its slowdown is undefined.
    let mut slowdowns: Vec<f64> =
        done().filter(|(_, alone_s)| *alone_s > 0.0).map(|(time_s, alone_s)| time_s / alone_s).collect();
    slowdowns.sort_by(f64::total_cmp);
    Row {
        allocator,
        coflows: times.len() as u64,
        flows: outcome.flows.len() as u64,
        mean_s: mean(&times).map(|mean| mean.mean),
        p50_s: percentile(&times, 0.5),
        p95_s: percentile(&times, 0.95),
        p99_s: percentile(&times, 0.99),
        max_s: times.last().copied(),
        bound_mean_s: None,
        above_bound_share: None,
        slowdown_mean_share: mean(&slowdowns).map(|mean| mean.mean),
        slowdown_p99_share: percentile(&slowdowns, 0.99),
        slowdown_max_share: slowdowns.last().copied(),
        decisions: outcome.decisions,
        cpu_s,
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header([
        "allocator",
        "mean s",
        "above bound",
        "median s",
        "p95 s",
        "p99 s",
        "max s",
        "slowdown",
        "p99",
        "max",
        "decisions",
        "CPU s",
    ]);
    let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"));
    for row in rows {
        let times = [row.p50_s, row.p95_s, row.p99_s, row.max_s];
        let above = row.above_bound_share.map(|share| format!("{:.1} %", 100.0 * share));
        let slowdowns = [row.slowdown_mean_share, row.slowdown_p99_share, row.slowdown_max_share];
        let mut line = vec![row.allocator.clone(), cell(row.mean_s), above.unwrap_or_else(|| "–".to_owned())];
        line.extend(times.into_iter().chain(slowdowns).map(cell));
        line.extend([row.decisions.to_string(), format!("{:.1}", row.cpu_s)]);
        table.add_row(line);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
