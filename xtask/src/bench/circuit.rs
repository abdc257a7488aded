//! `bench circuit`: schedulers of circuits on drawn demand: time of a decision, demand served, and
//! the bound of the served demand.
//!
//! CPU time of this thread. All schedulers of one demand take turns. `parallel` plans all demand
//! over several switches. Of its plan, only the bytes that circuits carry within the week count.
//! Read [`Row`] first.

use anabranch_circuit_proto::parallel::{Switches, plan};
use anabranch_circuit_proto::schedulers::ROTORS;
use anabranch_circuit_proto::{Demand, Kind, Timing, bound, generate};
use anabranch_units::{BitRate, ByteCount, Seed};
use anyhow::ensure;

/// Arguments of `bench circuit`.
#[derive(clap::Args)]
pub struct Args {
    /// Racks of the networks, which double from 8 up to this number.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=256))]
    racks: u32,
    /// Draws of demand on which `refit` is compared with Eclipse.
    #[arg(long, default_value_t = 400)]
    draws: u64,
    /// Fail if Solstice is slower than its authors' C on skewed demand, or `refit` serves less than
    /// Eclipse in the mean.
    #[arg(long)]
    check: bool,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// Bytes that each rack has to send.
const RACK_BYTES: ByteCount = ByteCount::new(16_000_000);

/// Best times of the reference implementation in C on skewed demand, with a week of 2 ms (2.96
/// GHz), in microseconds.
const SOLSTICE_C_US: [(usize, f64); 2] = [(64, 180.0), (128, 458.0)];

/// Numbers of switches for `parallel`.
const SWITCHES: [usize; 2] = [2, 4];

/// CPU seconds that each scheduler gets on one demand.
const SECONDS: f64 = 0.02;

/// Result of one scheduler on one demand.
#[derive(serde::Serialize)]
struct Row {
    scheduler: &'static str,
    demand: &'static str,
    racks: usize,
    /// Number of circuit switches with a port of each rack. `opera`'s rotors share the rate of one
    /// switch.
    switches: usize,
    /// Number of days in the week. `None` for `parallel`, whose ports turn independently.
    days: Option<usize>,
    decision_us: f64,
    /// Best time of the reference implementation, on another machine. `None` without one.
    peer_us: Option<f64>,
    demand_bytes: u64,
    served_bytes: u64,
    bound_bytes: u64,
    /// True if the plan consists of one switch's days in one week, for which the bound is valid.
    is_one_week: bool,
}

/// Comparison of `refit` with Eclipse on drawn demand: bytes served by `refit` per byte served by
/// Eclipse.
#[derive(serde::Serialize)]
struct Comparison {
    draws: u64,
    ratio_mean: f64,
    ratio_min: f64,
    /// Number of draws on which `refit` serves at least a ten-thousandth less.
    below: usize,
}

/// Runs the benchmark.
///
/// Errors: with `--check`, a bound that does not hold.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut racks = 8;
    while racks <= args.racks as usize {
        for (name, demand) in demands(racks)? {
            rows.extend(measure(name, &demand));
            for count in SWITCHES {
                rows.push(measure_parallel(name, &demand, count)?);
            }
        }
        racks *= 2;
    }
    let comparison = compare(args.draws)?;
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
        println!("{}", serde_json::to_string(&comparison)?);
    } else {
        print(&rows, &comparison);
    }
    if args.check {
        check(&rows, &comparison)?;
    }
    Ok(())
}

fn demands(racks: usize) -> anyhow::Result<[(&'static str, Demand); 5]> {
    let seed = Seed::new(1);
    Ok([
        ("ring", generate::ring(racks, RACK_BYTES)?),
        ("all-to-all", generate::all_to_all(racks, RACK_BYTES)?),
        ("skewed", generate::skewed(racks, RACK_BYTES, 4, 12, seed)?),
        ("random 30 %", generate::random(racks, RACK_BYTES, 300_000, seed)?),
        ("random 100 %", generate::random(racks, RACK_BYTES, 1_000_000, seed)?),
    ])
}

fn measure(name: &'static str, demand: &Demand) -> Vec<Row> {
    let timing = Timing::ETALON;
    let (week, ports) = (bound::served_max(demand, &timing), bound::ports_max(demand, &timing));
    let call = |kind: &Kind| -> Box<dyn FnMut() + '_> {
        let kind = *kind;
        // Each call makes a new scheduler, because some schedulers keep knowledge of the last
        // demand.
        Box::new(move || {
            std::hint::black_box(kind.scheduler().schedule(demand, &timing));
        })
    };
    let mut contenders: Vec<_> = Kind::ALL.iter().map(call).collect();
    let seconds = super::best_seconds(&mut contenders, SECONDS);
    let row = |(kind, seconds): (&Kind, f64)| {
        let plan = kind.scheduler().plan(demand, &timing);
        Row {
            scheduler: kind.name(),
            demand: name,
            racks: demand.racks(),
            switches: if *kind == Kind::Opera { ROTORS } else { 1 },
            days: Some(plan.schedule.days.len()),
            decision_us: seconds * 1e6,
            peer_us: peer_us(kind.name(), name, demand.racks()),
            demand_bytes: demand.total().as_u64(),
            served_bytes: plan.served.as_u64(),
            bound_bytes: if kind.is_one_week() { week } else { ports }.as_u64(),
            is_one_week: kind.is_one_week(),
        }
    };
    Kind::ALL.iter().zip(seconds).map(row).collect()
}

/// Best time of the reference implementation on a demand. `None` without one.
fn peer_us(scheduler: &str, demand: &str, racks: usize) -> Option<f64> {
    let found = SOLSTICE_C_US.iter().find(|(of, _)| *of == racks);
    found.filter(|_| scheduler == "solstice" && demand == "skewed").map(|(_, us)| *us)
}

/// Measures a plan of all demand over `count` switches, each with a circuit's rate.
fn measure_parallel(name: &'static str, demand: &Demand, count: usize) -> anyhow::Result<Row> {
    let timing = Timing::ETALON;
    let switches = Switches { count, rate: timing.circuit_rate, night: timing.night };
    let planned = plan(demand, &switches)?;
    let call = || {
        std::hint::black_box(plan(demand, &switches).is_ok());
    };
    let seconds = super::best_seconds(&mut [Box::new(call)], SECONDS);
    let all = Timing { circuit_rate: BitRate::bps(timing.circuit_rate.as_bps() * count as u64), ..timing };
    Ok(Row {
        scheduler: "parallel",
        demand: name,
        racks: demand.racks(),
        switches: count,
        days: None,
        decision_us: seconds[0] * 1e6,
        peer_us: None,
        demand_bytes: demand.total().as_u64(),
        served_bytes: planned.served(demand, timing.circuit_rate, timing.week).as_u64(),
        bound_bytes: bound::ports_max(demand, &all).as_u64(),
        is_one_week: false,
    })
}

/// Compares `refit` with Eclipse. Half of the draws are random, half skewed, with 2 to 60 MB for
/// each of 8 to 32 racks.
fn compare(draws: u64) -> anyhow::Result<Comparison> {
    let timing = Timing::ETALON;
    let mut random = Seed::new(9).stream("draws", 0);
    let mut ratios = Vec::new();
    for draw in 0..draws {
        let racks = 8 + 8 * random.below(4) as usize;
        let bytes = [2_000_000, 8_000_000, 16_000_000, 20_000_000, 60_000_000][random.below(5) as usize];
        let (bytes, seed) = (ByteCount::new(bytes), Seed::new(draw));
        let (big, small) = (1 + random.below(5) as usize, 1 + random.below(14) as usize);
        let demand = if draw % 2 == 0 {
            generate::random(racks, bytes, 100_000 + random.below(900_000) as u32, seed)?
        } else {
            generate::skewed(racks, bytes, big, small, seed)?
        };
        let served = |kind: Kind| kind.scheduler().schedule(&demand, &timing).served(&demand, &timing);
        ratios.push(served(Kind::Refit).as_u64() as f64 / served(Kind::Eclipse).as_u64().max(1) as f64);
    }
    Ok(Comparison {
        draws,
        ratio_mean: ratios.iter().sum::<f64>() / ratios.len().max(1) as f64,
        ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        below: ratios.iter().filter(|ratio| **ratio < 0.9999).count(),
    })
}

fn print(rows: &[Row], comparison: &Comparison) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let heads =
        ["racks", "demand", "scheduler", "switches", "days", "decision us", "of demand", "of the bound"];
    table.set_header(heads);
    for row in rows {
        let share = |of: u64| format!("{:.1} %", row.served_bytes as f64 / of as f64 * 100.0);
        table.add_row([
            row.racks.to_string(),
            row.demand.to_owned(),
            row.scheduler.to_owned(),
            row.switches.to_string(),
            row.days.map_or_else(String::new, |days| days.to_string()),
            format!("{:.1}", row.decision_us),
            share(row.demand_bytes),
            share(row.bound_bytes),
        ]);
    }
    println!("{table}");
    let Comparison { draws, ratio_mean, ratio_min, below } = comparison;
    println!(
        "refit serves {ratio_mean:.4} of Eclipse in the mean of {draws} draws, {ratio_min:.4} at least; less on {below}"
    );
}

fn check(rows: &[Row], comparison: &Comparison) -> anyhow::Result<()> {
    for row in rows {
        let (scheduler, racks, us) = (row.scheduler, row.racks, row.decision_us);
        let limit_us = row.peer_us.unwrap_or(f64::INFINITY);
        ensure!(
            us <= limit_us,
            "{scheduler} takes {us:.0} us at {racks} racks: must be at most {limit_us} us"
        );
    }
    let mean = comparison.ratio_mean;
    ensure!(mean >= 1.0, "refit serves {mean:.4} of Eclipse in the mean: must be at least 1");
    Ok(())
}
