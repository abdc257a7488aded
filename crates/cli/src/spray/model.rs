//! `anabranch spray model`: the equations of CAPS for one network, a row for each probability and
//! unit.

use anabranch_spray_proto::model::{BLOCKED_MAX, PathModel, decoding_probability, overhead, parities};
use anabranch_units::{BitRate, ByteCount, Duration};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;
use std::process::ExitCode;

/// Maximum number of packets in a window.
const WINDOW_MAX: u32 = 1_024;

/// The network, and the unit.
#[derive(clap::Args)]
pub struct Args {
    /// Probability that a packet is blocked, which means that it waits behind a long flow. Several
    /// values may follow.
    #[arg(long, value_name = "SHARE", num_args = 1.., default_values_t = [0.05, 0.1, 0.2, 0.3])]
    blocked: Vec<f64>,
    /// Number of packets coded together. Several values may follow. Without: the optimum.
    #[arg(long, value_name = "PACKETS", num_args = 1.., value_parser = clap::value_parser!(u32).range(1..=i64::from(WINDOW_MAX)))]
    unit: Vec<u32>,
    /// Number of parities of a unit. Without: the mean number of blocked packets.
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(0..=i64::from(WINDOW_MAX)))]
    parities: Option<u32>,
    /// Number of packets in a window.
    #[arg(long, value_name = "PACKETS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(WINDOW_MAX)))]
    window: u32,
    /// Rate of the narrowest link.
    #[arg(long, value_name = "RATE", default_value = "1 Gbit/s")]
    rate: BitRate,
    /// Packet length on that link.
    #[arg(long, value_name = "SIZE", default_value = "1500 B")]
    packet: ByteCount,
    /// Longest round trip of paths without long flows.
    #[arg(long, value_name = "TIME", default_value = "100 us")]
    rtt_free: Duration,
    /// Longest round trip of paths with long flows.
    #[arg(long, value_name = "TIME", default_value = "3 ms")]
    rtt_blocked: Duration,
    /// Packets of long flows for each packet of a short flow.
    #[arg(long, value_name = "PACKETS", default_value_t = 9.0)]
    long: f64,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// Results of one unit at one probability.
#[derive(Clone, Debug, Serialize)]
struct Row {
    blocked_share: f64,
    unit_packets: u32,
    parities: u32,
    decoding_share: f64,
    window_s: f64,
    uncoded_window_s: f64,
    overhead_share: f64,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for blocked in &args.blocked {
        ensure_usage!(
            (0.0..=BLOCKED_MAX).contains(blocked),
            "--blocked {blocked}: must be 0 to {BLOCKED_MAX}: with more of its packets blocked no unit is worth its parities"
        );
    }
    ensure_usage!(args.rate.as_bps() > 0, "--rate {}: must be above 0", args.rate);
    ensure_usage!(args.long >= 0.0 && args.long.is_finite(), "--long {}: must be 0 or more", args.long);
    ensure_usage!(
        args.rtt_free <= args.rtt_blocked,
        "--rtt-free {}: must be at most --rtt-blocked, {}",
        args.rtt_free,
        args.rtt_blocked
    );
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["blocked", "packets", "parities", "decodes", "window", "uncoded", "overhead"]);
    for row in rows(args) {
        if args.json {
            outln!("{}", serde_json::to_string(&row)?);
            continue;
        }
        let us = |s: f64| format!("{:.0} us", s * 1e6);
        table.add_row([
            format!("{}", row.blocked_share),
            row.unit_packets.to_string(),
            row.parities.to_string(),
            format!("{:.4}", row.decoding_share),
            us(row.window_s),
            us(row.uncoded_window_s),
            format!("{:.2} %", row.overhead_share * 100.0),
        ]);
    }
    if !args.json {
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        outln!("{table}");
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(args: &Args) -> Vec<Row> {
    let ways = PathModel {
        rate: args.rate,
        packet: args.packet,
        rtt_free: args.rtt_free,
        rtt_blocked: args.rtt_blocked,
    };
    let mut rows = Vec::new();
    for &blocked in &args.blocked {
        let best = || vec![ways.best_unit(args.window, blocked).0];
        for unit in if args.unit.is_empty() { best() } else { args.unit.clone() } {
            let parities = args.parities.unwrap_or(parities(unit, blocked));
            rows.push(Row {
                blocked_share: blocked,
                unit_packets: unit,
                parities,
                decoding_share: decoding_probability(unit, parities, blocked),
                window_s: ways.window_delay_s(args.window, unit, parities, blocked),
                uncoded_window_s: ways.uncoded_window_delay_s(args.window, blocked),
                overhead_share: overhead(args.long, blocked),
            });
        }
    }
    rows
}
