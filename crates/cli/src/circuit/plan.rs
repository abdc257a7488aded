//! `anabranch circuit plan`: circuits of one week for a table of demand, or of a training job
//! (`job`).
//!
//! Leaves out: the schedulers ([`anabranch_circuit_proto::schedulers`]). Read [`run`] and
//! [`Answer`] first.

mod job;
mod picture;

use crate::exit::OrUsage as _;
use crate::formats::size;
use anabranch_circuit_proto::job::Failures;
use anabranch_circuit_proto::table::{self, Table};
use anabranch_circuit_proto::{Kind, Plan, Timing, bound};
use anabranch_graph::picture::Theme;
use anabranch_units::{BitRate, ByteCount, Duration};
use anyhow::Context as _;
use comfy_table::{CellAlignment, presets::NOTHING};
use picture::Week;
use serde::Serialize;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

/// Demand, switch and scheduler.
#[derive(clap::Args)]
pub struct Args {
    /// CSV file with the columns source, destination and bytes: the demand between racks.
    #[arg(value_name = "FILE", required_unless_present = "job")]
    demand: Option<PathBuf>,
    /// TOML file with the phases of a training job, whose circuits are planned instead, and the
    /// switches that it runs on.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["demand", "scheduler", "rate", "night", "day_min", "week", "compare"])]
    job: Option<PathBuf>,
    /// Dead parts of the job's network, such as host=3, switch=0, or port=0:3 for switch 0 at host
    /// 3; several with commas.
    #[arg(long, value_name = "PARTS", requires = "job")]
    fail: Option<Failures>,
    /// Scheduler whose days are shown.
    #[arg(long, value_name = "NAME", default_value = "refit", value_parser = scheduler)]
    scheduler: Kind,
    /// Rate of one circuit.
    #[arg(long, value_name = "RATE", default_value_t = Timing::ETALON.circuit_rate)]
    rate: BitRate,
    /// Reconfiguration before each day, in which no circuit carries anything.
    #[arg(long, value_name = "TIME", default_value_t = Timing::ETALON.night)]
    night: Duration,
    /// Shortest day; nine nights keep a port busy for 90 % of the time.
    #[arg(long, value_name = "TIME", default_value_t = Timing::ETALON.day_min)]
    day_min: Duration,
    /// Time of the week, which holds all days and nights of the plan.
    #[arg(long, value_name = "TIME", default_value_t = Timing::ETALON.week)]
    week: Duration,
    /// Show one line for each scheduler, and no days.
    #[arg(long)]
    compare: bool,
    /// Draw the days by rack into this file, as SVG.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["compare", "job"])]
    svg: Option<PathBuf>,
    /// Draw on a dark background.
    #[arg(long, requires = "svg")]
    dark: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn scheduler(name: &str) -> Result<Kind, String> {
    let known = || Kind::ALL.iter().map(|kind| kind.name());
    let found = Kind::ALL.iter().find(|kind| kind.name() == name);
    found
        .copied()
        .ok_or_else(|| format!("unknown scheduler, {}", anabranch_units::text::known(name, known())))
}

/// Plans one week.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.job {
        return job::run(file, args.fail.as_ref(), args.json);
    }
    let demand = args.demand.as_ref().expect("clap asks for a table where no job is given");
    let timing =
        Timing { circuit_rate: args.rate, night: args.night, day_min: args.day_min, week: args.week };
    timing.check().or_usage()?;
    let shown = || format!("demand {}", demand.display());
    let file = File::open(demand).with_context(shown).or_usage()?;
    let table = table::read(file).with_context(shown).or_usage()?;
    let kinds = if args.compare { Kind::ALL } else { std::slice::from_ref(&args.scheduler) };
    let answer = Answer::new(&table, &timing, kinds);
    if let Some(path) = &args.svg {
        let theme = if args.dark { Theme::Dark } else { Theme::Light };
        let picture = picture::svg(&answer.week(&table.racks, timing.night), theme);
        std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let shown = if args.json { serde_json::to_string(&answer)? } else { answer.text(args.compare) };
    outln!("{shown}");
    Ok(ExitCode::SUCCESS)
}

/// One day of a plan.
#[derive(Debug, Serialize)]
struct DayView {
    length_ns: u64,
    /// Names of source and destination of each circuit.
    circuits: Vec<(String, String)>,
}

/// The plan of one scheduler.
#[derive(Debug, Serialize)]
struct PlanView {
    scheduler: &'static str,
    about: &'static str,
    days: Vec<DayView>,
    /// Total duration of days and nights.
    length_ns: u64,
    served_bytes: u64,
    /// Upper bound on the bytes of any plan of this kind.
    bound_bytes: u64,
}

/// Plans for one table of demand.
#[derive(Debug, Serialize)]
struct Answer {
    racks: usize,
    demand_bytes: u64,
    /// Upper bound on the bytes that days of one switch serve in one week.
    bound_bytes: u64,
    night_ns: u64,
    plans: Vec<PlanView>,
}

impl Answer {
    fn new(table: &Table, timing: &Timing, kinds: &[Kind]) -> Self {
        let week = bound::served_max(&table.demand, timing);
        let ports = bound::ports_max(&table.demand, timing);
        let plan = |kind: &Kind| {
            let plan = kind.scheduler().plan(&table.demand, timing);
            PlanView::new(*kind, &plan, if kind.is_one_week() { week } else { ports }, table, timing)
        };
        Self {
            racks: table.racks.len(),
            demand_bytes: table.demand.total().as_u64(),
            bound_bytes: week.as_u64(),
            night_ns: timing.night.as_ns(),
            plans: kinds.iter().map(plan).collect(),
        }
    }

    fn text(&self, compares: bool) -> String {
        let shown = if compares { self.comparison() } else { self.days() };
        format!(
            "{shown}\n\ndemand {} between {} racks; no days of one switch serve more than {} in a week",
            size(ByteCount::new(self.demand_bytes)),
            self.racks,
            size(ByteCount::new(self.bound_bytes))
        )
    }

    /// The days of the first plan, for the picture.
    fn week<'a>(&'a self, racks: &'a [String], night: Duration) -> Week<'a> {
        let plan = &self.plans[0];
        let served = share(plan.served_bytes, plan.bound_bytes);
        let title = format!("{}: {} days serve {served} of the bound", plan.scheduler, plan.days.len());
        let days = plan.days.iter().map(|day| (Duration::from_ns(day.length_ns), &day.circuits[..]));
        Week { title, racks, night, days: days.collect() }
    }

    fn comparison(&self) -> String {
        let mut rows =
            columns(&["scheduler", "days", "served", "of demand", "of the bound", ""], &[1, 2, 3, 4]);
        for plan in &self.plans {
            rows.add_row([
                plan.scheduler.to_owned(),
                plan.days.len().to_string(),
                size(ByteCount::new(plan.served_bytes)).to_string(),
                share(plan.served_bytes, self.demand_bytes),
                share(plan.served_bytes, plan.bound_bytes),
                plan.about.to_owned(),
            ]);
        }
        rows.trim_fmt()
    }

    fn days(&self) -> String {
        let plan = &self.plans[0];
        let mut rows = columns(&["day", "length", "circuits"], &[0, 1]);
        for (number, day) in plan.days.iter().enumerate() {
            let circuits = day.circuits.iter().map(|(from, to)| format!("{from} -> {to}"));
            rows.add_row([
                (number + 1).to_string(),
                Duration::from_ns(day.length_ns).to_string(),
                circuits.collect::<Vec<_>>().join(", "),
            ]);
        }
        format!(
            "{}\n\n{}: {} of days and nights serve {}, {} of demand and {} of the bound",
            rows.trim_fmt(),
            plan.scheduler,
            Duration::from_ns(plan.length_ns),
            size(ByteCount::new(plan.served_bytes)),
            share(plan.served_bytes, self.demand_bytes),
            share(plan.served_bytes, plan.bound_bytes),
        )
    }
}

impl PlanView {
    fn new(kind: Kind, plan: &Plan, bound: ByteCount, table: &Table, timing: &Timing) -> Self {
        let name = |rack: usize| table.racks[rack].clone();
        let schedule = &plan.schedule;
        let days = schedule.days.iter().map(|day| DayView {
            length_ns: day.length.as_ns(),
            circuits: day.matching.circuits().map(|(from, to)| (name(from), name(to))).collect(),
        });
        Self {
            scheduler: kind.name(),
            about: kind.about(),
            days: days.collect(),
            length_ns: schedule.length(timing.night).as_ns(),
            served_bytes: plan.served.as_u64(),
            bound_bytes: bound.as_u64(),
        }
    }
}

/// Formats a share in percent. If `whole` is 0, the share is 100 %.
fn share(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
    format!("{:.1} %", share * 100.0)
}

fn columns(header: &[&str], right: &[usize]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(NOTHING).set_header(header);
    for column in right {
        let column = table.column_mut(*column).expect("a column of the header");
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
