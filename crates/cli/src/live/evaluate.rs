//! `anabranch live evaluate`: the designs of §4.7.1 and a greedy baseline on drawn networks and
//! workloads, a row for each seed and design.
//!
//! Leaves out: the designs (`live_proto::plan::rivals`). Read [`Args`] and [`DesignResult`] first.

use super::worlds::{WorldArgs, ppm, share, weight};
use crate::exit::OrUsage as _;
use crate::process::thread_cpu_s;
use anabranch_live_proto::plan::generator::{Topology, Trace, demand};
use anabranch_live_proto::plan::optimiser::Optimiser;
use anabranch_live_proto::plan::rivals::{
    Metrics, Window, cdn, everything_everywhere, greedy, naive_bounds, overlay_multicast, planned_by,
};
use anabranch_live_proto::plan::{Priority, Settings};
use anabranch_units::{Duration, stats};
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// A design that serves the requests of a window.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum Design {
    /// The plan; all streams have equal weights.
    Balanced,
    /// The plan; a stream's weight is its bitrate.
    Quality,
    /// The plan; a stream's weight is the inverse of its bitrate.
    Quantity,
    /// A CDN whose DNS answers are valid for 30 s.
    Cdn,
    /// A CDN whose DNS answers are valid for 1 s.
    #[value(name = "cdn-1")]
    Cdn1,
    /// Overlay Multicast: each object takes its best tree in order of arrival.
    Om,
    /// Everything Everywhere: each object is sent to every edge.
    Ee,
    /// Greedy: each request takes its cheapest path with room when it arrives, and keeps it.
    Greedy,
    /// Upper bound on all designs: the demand of each tier against its whole capacity.
    Bound,
}

impl Design {
    const ALL: [Self; 9] = [
        Self::Balanced,
        Self::Quality,
        Self::Quantity,
        Self::Cdn,
        Self::Cdn1,
        Self::Om,
        Self::Ee,
        Self::Greedy,
        Self::Bound,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Quality => "quality",
            Self::Quantity => "quantity",
            Self::Cdn => "cdn",
            Self::Cdn1 => "cdn-1",
            Self::Om => "om",
            Self::Ee => "ee",
            Self::Greedy => "greedy",
            Self::Bound => "bound",
        }
    }

    const fn priority(self) -> Priority {
        match self {
            Self::Quality => Priority::Quality,
            Self::Quantity => Priority::Quantity,
            _ => Priority::Balanced,
        }
    }
}

/// The worlds, the designs, and how results are shown.
#[derive(clap::Args)]
pub struct Args {
    /// Designs, all if none is given.
    #[arg(long, value_enum, num_args = 1..)]
    design: Vec<Design>,
    /// Seeds; each draws a network and a window of arrivals.
    #[arg(long, value_name = "SEED", num_args = 1.., default_values_t = [1])]
    seed: Vec<u64>,
    #[command(flatten)]
    world: WorldArgs,
    /// Weight of cost: the share of a mean viewer's value that a path of cost 60 costs at the mean
    /// bitrate.
    #[arg(long, value_name = "SHARE", num_args = 1.., default_values_t = [0.1], value_parser = weight)]
    cost_share: Vec<f64>,
    /// Share of each link that plans leave free.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    slack: f64,
    /// Count a group's request once, whatever its number of viewers (Figure 4.8 as printed).
    #[arg(long)]
    count_groups: bool,
    /// Passes of the optimiser over all objects.
    #[arg(long, value_name = "COUNT", num_args = 1.., default_values_t = [Optimiser::default().passes], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    passes: Vec<u32>,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// Row of one design on one seed.
#[derive(Serialize)]
struct Row {
    seed: u64,
    workload: &'static str,
    videos: u32,
    window_s: u32,
    edges: u32,
    connectivity: String,
    bottleneck: &'static str,
    cost_share: f64,
    slack_share: f64,
    counts_viewers: bool,
    passes: u32,
    design: &'static str,
    #[serde(flatten)]
    measured: DesignResult,
}

/// Results of one design on one seed. A value is `None` if the design does not have it.
#[derive(Clone, Default, Serialize)]
struct DesignResult {
    /// Mean bitrate delivered to a viewer; unserved viewers count as 0.
    mean_kbps: f64, // tidy-allow: quantity (a row for figures, as the thesis's axes)
    /// Cost of all links, divided by the number of viewers served at the requested bitrate.
    cost_per_satisfied: Option<f64>,
    /// Share of viewers served at the requested bitrate.
    satisfied_share: f64,
    /// Share of viewers served at any bitrate.
    served_share: Option<f64>,
    /// Certified gap of the first plan, as a share of its bound.
    gap: Option<f64>,
    /// Certified gap of the first plan, as a share of its cost.
    gap_of_cost: Option<f64>,
    /// CPU time of the first plan.
    plan_cpu_s: Option<f64>,
    /// CPU time of all plans of the design, because refused viewers request a lower bitrate in a
    /// further plan.
    cpu_s: f64,
    /// Share of viewers served at the requested bitrate, by this bitrate in kbit/s.
    satisfied_share_by_kbps: BTreeMap<u64, f64>, // tidy-allow: quantity (a row for figures)
}

/// Settings with which one design is measured.
#[derive(Copy, Clone)]
struct DesignPoint {
    design: Design,
    cost_share: f64,
    passes: u32,
}

fn measure(point: DesignPoint, args: &Args, (topology, trace): &(Topology, Trace)) -> DesignResult {
    let (offers, requests) = demand(&trace.arrivals);
    let settings = Settings {
        priority: point.design.priority(),
        counts_viewers: !args.count_groups,
        slack_ppm: ppm(args.slack),
        ..Settings::default()
    };
    let settings = settings.normalised(&offers, &requests, point.cost_share);
    let length = Duration::from_secs(u64::from(args.world.window));
    let window = Window { topology, trace, length, settings };
    let start = thread_cpu_s();
    let mut measured = match point.design {
        Design::Balanced | Design::Quality | Design::Quantity => planned(&window, point.passes),
        Design::Cdn => of_metrics(cdn(&window, Duration::from_secs(30))),
        Design::Cdn1 => of_metrics(cdn(&window, Duration::from_secs(1))),
        Design::Om => of_metrics(overlay_multicast(&window)),
        Design::Ee => of_metrics(everything_everywhere(&window)),
        Design::Greedy => of_metrics(greedy(&window)),
        Design::Bound => {
            let bounds = naive_bounds(&window);
            let (mean_kbps, satisfied_share) = (bounds.mean_kbps, bounds.satisfied_share);
            DesignResult { mean_kbps, satisfied_share, ..DesignResult::default() }
        }
    };
    measured.cpu_s = thread_cpu_s() - start;
    measured
}

fn of_metrics(metrics: Metrics) -> DesignResult {
    let by_bitrate = metrics.satisfied_share_by_bitrate.into_iter();
    DesignResult {
        mean_kbps: metrics.mean_kbps,
        cost_per_satisfied: metrics.cost_per_satisfied,
        satisfied_share: metrics.satisfied_share,
        served_share: Some(metrics.served_share),
        satisfied_share_by_kbps: by_bitrate
            .map(|(bitrate, share)| (bitrate.as_bps() / 1_000, share))
            .collect(),
        ..DesignResult::default()
    }
}

fn planned(window: &Window<'_>, passes: u32) -> DesignResult {
    let optimiser = Optimiser { passes, ..Optimiser::default() };
    let mut first = None;
    let metrics = planned_by(window, |program, former| {
        let start = thread_cpu_s();
        let found = optimiser.optimise(program, former).expect("the prices are of this network");
        let plan = &found.0;
        first.get_or_insert_with(|| (plan.gap(), plan.gap_of_cost(), thread_cpu_s() - start));
        found
    });
    let (gap, gap_of_cost, plan_cpu_s) = first.expect("a window is planned at least once");
    let (gap, plan_cpu_s) = (Some(gap), Some(plan_cpu_s));
    DesignResult { gap, gap_of_cost, plan_cpu_s, ..of_metrics(metrics) }
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let designs = if args.design.is_empty() { Design::ALL.to_vec() } else { args.design.clone() };
    for (at, seed) in args.seed.iter().enumerate() {
        ensure_usage!(!args.seed[..at].contains(seed), "--seed {seed} is given twice: give each seed once");
    }
    let recorded = args.world.recorded().or_usage()?;
    if let Some(recorded) = recorded.as_ref().filter(|_| !quiet) {
        let (places, videos) = (recorded.places().len(), recorded.videos().len());
        let drawn = match (places, recorded.has_bitrates()) {
            (0, false) => "; places and bitrates are drawn",
            (0, true) => "; places are drawn",
            (_, false) => "; bitrates are drawn",
            (_, true) => "",
        };
        let (requests, from) = (recorded.requests(), recorded.from().as_secs_f64());
        errln!("{requests} requests from {from} s on, {videos} videos, {places} places{drawn}");
    }
    let (workload, videos) = args.world.described(recorded.as_ref());
    let mut rows = Vec::new();
    for &seed in &args.seed {
        let drawn = args.world.draw(seed, recorded.as_ref())?;
        for point in points(&designs, args) {
            if !quiet {
                errln!("seed {seed}: {}", point.design.name());
            }
            let row = Row {
                seed,
                workload,
                videos,
                window_s: args.world.window,
                edges: args.world.edges,
                connectivity: args.world.connectivity.to_string(),
                bottleneck: args.world.bottleneck.name(),
                cost_share: point.cost_share,
                slack_share: args.slack,
                counts_viewers: !args.count_groups,
                passes: point.passes,
                design: point.design.name(),
                measured: measure(point, args, &drawn),
            };
            if args.json {
                outln!("{}", serde_json::to_string(&row)?);
            } else {
                rows.push(row);
            }
        }
    }
    if !args.json {
        outln!("{}", table(&rows, args.seed.len()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Designs, each with all weights and numbers of passes that affect it.
fn points(designs: &[Design], args: &Args) -> Vec<DesignPoint> {
    let mut points = Vec::new();
    for &design in designs {
        let is_planned = matches!(design, Design::Balanced | Design::Quality | Design::Quantity);
        let weights = if is_planned || design == Design::Om { args.cost_share.len() } else { 1 };
        let passes = if is_planned { args.passes.len() } else { 1 };
        for &cost_share in &args.cost_share[..weights] {
            points.extend(args.passes[..passes].iter().map(|&passes| DesignPoint {
                design,
                cost_share,
                passes,
            }));
        }
    }
    points
}

/// A table of means over the seeds, with one line for each point in the order of the rows.
fn table(rows: &[Row], seeds: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header([
        "design",
        "cost share",
        "passes",
        "mean kbit/s",
        "cost per satisfied",
        "satisfied",
        "served",
        "gap",
        "CPU s",
    ]);
    let points = rows.len() / seeds.max(1);
    for at in 0..points {
        let of_point: Vec<&Row> = rows.iter().skip(at).step_by(points).collect();
        let mean = |value: &dyn Fn(&DesignResult) -> Option<f64>| -> Option<f64> {
            let values: Vec<f64> = of_point.iter().map(|row| value(&row.measured)).collect::<Option<_>>()?;
            stats::mean(&values).map(|mean| mean.mean)
        };
        let shown = |value: Option<f64>, show: &dyn Fn(f64) -> String| value.map_or("-".to_owned(), show);
        let percent = |value: f64| format!("{:.2} %", 100.0 * value);
        table.add_row([
            of_point[0].design.to_owned(),
            of_point[0].cost_share.to_string(),
            of_point[0].passes.to_string(),
            shown(mean(&|m| Some(m.mean_kbps)), &|v| format!("{v:.0}")),
            shown(mean(&|m| m.cost_per_satisfied), &|v| format!("{v:.4}")),
            shown(mean(&|m| Some(m.satisfied_share)), &percent),
            shown(mean(&|m| m.served_share), &percent),
            shown(mean(&|m| m.gap), &percent),
            shown(mean(&|m| Some(m.cpu_s)), &|v| format!("{v:.3}")),
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
