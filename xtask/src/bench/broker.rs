//! `bench broker`: how fast a broker finds where its viewers go, and how near to the best that is.
//!
//! CPU time of this thread, the best of turns; markets of `broker-proto`'s generator. Read [`Row`] first.

use super::thread_cpu_s;
use anabranch_broker_proto::designs::{Design, Marketplace};
use anabranch_broker_proto::{Candidate, Optimiser, Shape, generate, market};
use anabranch_units::Seed;
use std::sync::Arc;

/// Arguments of `bench broker`.
#[derive(clap::Args)]
pub struct Args {
    /// Viewers of each market.
    #[arg(long, num_args = 1.., default_values_t = [1_000, 33_400])]
    sessions: Vec<usize>,
    /// What capacities are multiplied by.
    #[arg(long, num_args = 1.., default_values_t = [1.0, 0.05])]
    capacity: Vec<f64>,
    /// How often prices are found over all groups.
    #[arg(long, default_value_t = Optimiser::default().passes)]
    passes: u32,
    /// Turns of each; the best counts.
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// One JSON object for each row.
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Row {
    /// What it is called: its sessions and what capacities are multiplied by.
    instance: String,
    sessions: usize,
    clusters: usize,
    /// How many candidates all groups have together.
    variables: usize,
    unserved: u64,
    gap: f64,
    cpu_s: f64,
    /// What the market needs; the search keeps some values for each group and cluster beside it.
    market_bytes: u64,
}

/// Runs it.
///
/// Errors: none of its own.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header([
        "instance",
        "sessions",
        "clusters",
        "variables",
        "unserved",
        "gap",
        "CPU s",
        "memory",
        "market",
    ]);
    for sessions in &args.sessions {
        for capacity in &args.capacity {
            let shape = Shape { sessions: *sessions, capacity: *capacity, ..Shape::default() };
            let design: Arc<dyn Design> = Arc::new(Marketplace::default());
            let market = market(&generate(&shape, Seed::new(1)), &design, 1.0);
            let mut best = f64::INFINITY;
            let mut answer = None;
            for _ in 0..args.turns.max(1) {
                let start = thread_cpu_s();
                answer =
                    Some(Optimiser { passes: args.passes, ..Optimiser::default() }.optimise(&market, None));
                best = best.min(thread_cpu_s() - start);
            }
            let Some(answer) = answer else { continue };
            let variables = market.groups().iter().map(|group| market.candidates_of(group.place).len()).sum();
            let places = market.groups().iter().map(|group| group.place as usize + 1).max().unwrap_or(0);
            let candidates: usize = (0..places as u32).map(|place| market.candidates_of(place).len()).sum();
            let market_bytes = size_of_val(market.clusters())
                + size_of_val(market.groups())
                + candidates * size_of::<Candidate>();
            let row = Row {
                instance: format!("{sessions} at {capacity}"),
                sessions: *sessions,
                clusters: market.clusters().len(),
                variables,
                unserved: answer.unserved(),
                gap: answer.gap_share(),
                cpu_s: best,
                market_bytes: market_bytes as u64,
            };
            if args.json {
                println!("{}", serde_json::to_string(&row)?);
            }
            let counts = [row.sessions, row.clusters, row.variables].map(|count| count.to_string());
            let [sessions, clusters, variables] = counts;
            let (gap, cpu) = (format!("{:.4} %", 100.0 * row.gap), format!("{:.3}", row.cpu_s));
            table.add_row([
                row.instance.clone(),
                sessions,
                clusters,
                variables,
                row.unserved.to_string(),
                gap,
                cpu,
                format!("{:.1} MB", row.market_bytes as f64 / 1e6),
            ]);
        }
    }
    if !args.json {
        println!("{table}");
    }
    Ok(())
}
