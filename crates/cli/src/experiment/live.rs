//! `anabranch experiment live`: one cell of VDN's testbed (section 4.7.2), emulated with real
//! programs.
//!
//! Leaves out: the cell itself ([`anabranch_rehearse::live`]). Read [`run`] first.

use crate::exit::{self, OrUsage as _};
use anabranch_rehearse::live::{Cell, Row, measure};
use std::process::ExitCode;

/// The cell, and the form of its result.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    cell: Cell,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the cell. The exit code of an untrusted result is [`exit::UNTRUSTED`].
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    args.cell.check().or_usage()?;
    let row = measure(&args.cell)?;
    if args.json {
        outln!("{}", serde_json::to_string(&row)?);
    } else {
        outln!("{}", line(&row));
    }
    if !row.conditions.trusted && !quiet {
        errln!("do not trust this result: {}", row.conditions.why.join("; "));
    }
    Ok(if row.conditions.trusted { ExitCode::SUCCESS } else { ExitCode::from(exit::UNTRUSTED) })
}

fn line(row: &Row) -> String {
    let ms = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.0} ms"));
    format!(
        "{:?}, seed {}: {} of {} joined (median {}, p99 {}), {:.0} of at most {:.0} kbit/s, {} stalls at {} viewers ({:.1} s), longest gap {:.2} s",
        row.fault,
        row.seed,
        row.joins.joined,
        row.channels,
        ms(row.joins.join_ms_p50),
        ms(row.joins.join_ms_p99),
        row.service.mean_kbps,
        row.service.optimal_kbps,
        row.service.stalls,
        row.service.stalled_viewers,
        row.service.stalled_s,
        row.service.gap_max_s
    )
}
