//! `anabranch experiment codedbulk`: one cell of CodedBulk's Figures 8 to 10, run or predicted.
//!
//! Leaves out: the cell itself ([`anabranch_rehearse::codedbulk`]). Read [`run`] first.

use crate::exit::{self, OrUsage as _};
use crate::network::TopologyArgs;
use crate::run_dir::RunDir;
use anabranch_rehearse::codedbulk::interactive::InteractiveTraffic;
use anabranch_rehearse::codedbulk::{Cell, Row, draw, measure, predict};
use anabranch_units::Seed;
use std::path::PathBuf;
use std::process::ExitCode;

/// The cell, and how its results are shown.
#[derive(clap::Args)]
pub struct Args {
    /// A built-in topology (internet2, b4), or a .toml, .graphml, .gml or .xml file.
    #[arg(long, short, value_name = "NAME|FILE", default_value = "internet2")]
    topology: String,
    #[command(flatten)]
    cell: Cell,
    /// Write a new run directory.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Plan and predict only; nothing is sent.
    #[arg(long)]
    predict: bool,
    /// One JSON object for each scheme on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let cell = &args.cell;
    let topology = TopologyArgs { topology: args.topology.clone(), rate: cell.rate }.load()?;
    let drawn = draw(&topology, cell).or_usage()?;
    let traffic = InteractiveTraffic::new(&topology, cell.load).or_usage()?;
    let mut record = args.record.as_deref().map(RunDir::claim).transpose()?;
    let mut trusted = true;
    for scheme in &cell.schemes {
        let mut row = predict(&topology, &drawn, &traffic, scheme, cell)?;
        if !args.predict {
            let report = measure(&topology, &drawn, &traffic, &mut row, cell)?;
            if let Some(record) = &mut record {
                record.emulation(scheme, &report)?;
            }
        }
        if let Some(record) = &mut record {
            record.row(&row)?;
        }
        if args.json {
            outln!("{}", serde_json::to_string(&row)?);
        } else {
            outln!("{}", line(&row));
        }
        if let Some(m) = row.measured.as_ref().filter(|m| !m.trusted) {
            trusted = false;
            if !quiet {
                errln!("{scheme}: do not trust this figure: {}", m.why.join("; "));
            }
        }
    }
    if let Some(record) = record {
        record.write("topology.toml", anabranch_graph::file::toml::write(&topology))?;
        let (command, config) = crate::arguments();
        record.finish(&command, config, Some(Seed::new(cell.seed)))?;
    }
    // An untrusted result is a failure.
    Ok(if trusted { ExitCode::SUCCESS } else { ExitCode::from(exit::UNTRUSTED) })
}

fn line(row: &Row) -> String {
    let slowest = row.slowest_mbps.unwrap_or(0.0);
    let measured = row
        .aggregate_mbps
        .map_or("not measured".into(), |a| format!("{a:.2} Mbit/s, the slowest {slowest:.2}"));
    let lateness = row.measured.as_ref().map_or(String::new(), |m| {
        format!(", lateness p99 {:.0} us, links {:.0} % full", m.lateness_us_p99, 100.0 * m.link_share_mean)
    });
    format!(
        "{} {}: {} transfers to {}, load {}: {measured} (planned {:.2}, flow by flow {:.2}, the slowest {:.2}){lateness}",
        row.topology,
        row.scheme,
        row.concurrent,
        row.destinations,
        row.load,
        row.planned_mbps,
        row.planned_flows_mbps,
        row.planned_slowest_mbps
    )
}
