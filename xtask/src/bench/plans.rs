//! `bench plans`: rates of plans compared with the min-cut on random networks of unequal
//! capacities, and the cost of planning.
//!
//! The instances come from `replicate-proto`'s generator ([`unlike_network`]). Every plan is
//! checked: no link is above its capacity, and every destination decodes. CPU time of this thread.
//! Read [`Row`] first.

use super::thread_cpu_s;
use anabranch_replicate_proto::plan::survey::unlike_network;
use anabranch_replicate_proto::plan::{PlanWithFigures, Planner, Request, Scheme};
use anabranch_units::Seed;
use anyhow::{Context as _, ensure};
use serde::Serialize;

/// Arguments of `bench plans`.
#[derive(clap::Args)]
pub struct Args {
    /// Networks.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    instances: u64,
    /// Number of the first network.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The seed of all draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Fail where `auto` is more than 1 % below the min-cut and no cause is known, or a plan takes
    /// longer than `CPU_S_MAX`.
    #[arg(long)]
    check: bool,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// Least share of the min-cut that `auto` must reach, unless the row names a cause.
const SHARE_MIN: f64 = 0.99;
/// Maximum CPU time of one choice by `auto`, in seconds: people wait for it.
const CPU_S_MAX: f64 = 1.0;

/// Plan of one scheme for one network.
#[derive(Serialize)]
struct Row {
    instance: u64,
    sites: usize,
    links: usize,
    destinations: usize,
    min_cut_bps: u64,
    /// `auto`, or a scheme's name.
    scheme: String,
    /// The scheme that `auto` chose.
    took: Scheme,
    rate_bps: u64,
    /// Rate over min-cut.
    share: f64,
    /// Largest number of streams of a group, and number of flows of the plan.
    streams: u16,
    flows: usize,
    /// Cause of a share of `auto` below [`SHARE_MIN`]; `None` if the share is large enough or no
    /// cause is known.
    cause: Option<&'static str>,
    cpu_s: f64,
}

/// Runs the benchmark.
///
/// Errors: a plan that breaks an invariant; with `--check`, a rate below the share without a known
/// cause, or a plan that took too long.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for instance in args.first..args.first + args.instances {
        let both = plan(Seed::new(args.seed), instance).with_context(|| format!("instance {instance}"))?;
        for row in both {
            if args.json {
                println!("{}", serde_json::to_string(&row)?);
            }
            rows.push(row);
        }
    }
    if !args.json {
        summarise(&rows);
    }
    if args.check {
        for row in rows.iter().filter(|row| row.scheme == "auto") {
            let Row { instance, share, cause, cpu_s, .. } = row;
            ensure!(
                *share >= SHARE_MIN || cause.is_some(),
                "instance {instance}: {share:.4} of the min-cut: must be at least {SHARE_MIN}"
            );
            ensure!(*cpu_s <= CPU_S_MAX, "instance {instance}: {cpu_s:.2} s: must be at most {CPU_S_MAX} s");
        }
    }
    Ok(())
}

/// The rows of `auto` and of `coded` on one network.
fn plan(seed: Seed, instance: u64) -> anyhow::Result<[Row; 2]> {
    let (topology, source, destinations) = unlike_network(seed, instance);
    let planner = Planner::new(Request::new(&topology, source, destinations))?;
    let row = |scheme: &str, planned: &PlanWithFigures, cause, cpu_s| -> anyhow::Result<Row> {
        planned.plan.check(&topology).with_context(|| scheme.to_owned())?;
        let (rate, bound) = (planned.plan.rate.as_bps(), planner.bound().as_bps());
        Ok(Row {
            instance,
            sites: topology.sites().len(),
            links: topology.links().len(),
            destinations: planned.plan.destinations.len(),
            min_cut_bps: bound,
            scheme: scheme.to_owned(),
            took: planned.plan.scheme,
            rate_bps: rate,
            share: rate as f64 / bound as f64,
            streams: planned.plan.groups.iter().map(|g| g.streams).max().unwrap_or(0),
            flows: planned.plan.flows.len(),
            cause,
            cpu_s,
        })
    };
    let began_s = thread_cpu_s();
    let choice = planner.auto()?;
    let auto_s = thread_cpu_s() - began_s;
    let packed = choice.offers.iter().find(|o| o.scheme == Scheme::Packed).map(|o| &o.planned);
    let least = SHARE_MIN * planner.bound().as_bps() as f64;
    let below = (choice.chosen.plan.rate.as_bps() as f64) < least;
    let cause = packed.filter(|_| below).and_then(|packed| {
        if (packed.figures.ceiling.as_bps() as f64) < least {
            Some("no packing reaches it, and a code of so few streams falls short")
        } else if (packed.figures.ideal.as_bps() as f64) < least {
            Some("many destinations: trees are priced by a heuristic")
        } else {
            None
        }
    });
    let auto = row("auto", &choice.chosen, cause, auto_s)?;
    let began_s = thread_cpu_s();
    let coded = planner.plan(Scheme::Coded)?;
    let coded = row("coded", &coded, None, thread_cpu_s() - began_s)?;
    Ok([auto, coded])
}

/// Prints a summary of each scheme over all rows.
fn summarise(rows: &[Row]) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header([
        "scheme",
        "plans",
        "below 99 %",
        "with a cause",
        "worst",
        "at instance",
        "mean",
        "streams",
        "flows",
        "CPU s mean",
        "CPU s max",
    ]);
    for scheme in ["auto", "coded"] {
        let of: Vec<&Row> = rows.iter().filter(|row| row.scheme == scheme).collect();
        let mean =
            |figure: &dyn Fn(&Row) -> f64| of.iter().map(|row| figure(row)).sum::<f64>() / of.len() as f64;
        let below = || of.iter().filter(|row| row.share < SHARE_MIN);
        let Some(worst) = of.iter().min_by(|a, b| a.share.total_cmp(&b.share)) else { continue };
        table.add_row([
            scheme.to_owned(),
            of.len().to_string(),
            below().count().to_string(),
            below().filter(|row| row.cause.is_some()).count().to_string(),
            format!("{:.4}", worst.share),
            worst.instance.to_string(),
            format!("{:.4}", mean(&|row| row.share)),
            of.iter().map(|row| row.streams).max().unwrap_or(0).to_string(),
            of.iter().map(|row| row.flows).max().unwrap_or(0).to_string(),
            format!("{:.4}", mean(&|row| row.cpu_s)),
            format!("{:.3}", of.iter().map(|row| row.cpu_s).fold(0.0, f64::max)),
        ]);
    }
    println!("{table}");
}
