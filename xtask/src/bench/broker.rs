//! `bench broker`: time and memory that a broker needs to assign its viewers, and the distance of
//! its answer to the optimum; compared with HiGHS.
//!
//! The markets come from `broker-proto`'s generator. Every market is searched in a separate
//! process, which only reads the market from its standard input. Neither the generated world nor
//! the round that led to the market is therefore measured. With `--peer`, HiGHS solves exactly the
//! same program in another process (`python/tests/oracle_highs.py`), in one thread. Read [`Row`]
//! first.

use super::{output_of, peak_bytes, thread_cpu_s};
use anabranch_broker_proto::designs::{Design, Marketplace};
use anabranch_broker_proto::{Market, Optimiser, Program, WorldShape, generate, market};
use anabranch_units::Seed;
use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Arguments of `bench broker`.
#[derive(clap::Args)]
pub struct Args {
    /// Viewers of each market.
    #[arg(long, num_args = 1.., default_values_t = [1_000, 33_400, 500_000])]
    sessions: Vec<usize>,
    /// Factors by which the capacities are multiplied.
    #[arg(long, num_args = 1.., default_values_t = [1.0, 0.05])]
    capacity: Vec<f64>,
    /// Number of times that prices are computed over all groups.
    #[arg(long, default_value_t = Optimiser::default().passes)]
    passes: u32,
    /// Turns of each; the best counts.
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// A Python that has `highspy`: HiGHS solves each program, too.
    #[arg(long, value_name = "PYTHON")]
    peer: Option<PathBuf>,
    /// Seconds after which HiGHS stops, with its best answer so far.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    peer_seconds: f64,
    /// Fail if a market that has a bound misses it.
    #[arg(long)]
    check: bool,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
    /// Search the market on standard input, and print the result.
    #[arg(long, hide = true)]
    search: bool,
}

#[derive(Serialize)]
struct Row {
    /// Name of the instance: the sessions, and the factor of the capacities.
    instance: String,
    sessions: usize,
    capacity: f64,
    clusters: usize,
    /// Number of candidates of all groups together.
    variables: usize,
    #[serde(flatten)]
    found: SearchResult,
    /// Result of the peer; `None` without `--peer`.
    peer: Option<Peer>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SearchResult {
    cost: f64,
    /// Largest possible saving of a better answer, as a share of this answer's cost.
    gap: f64,
    unserved: u64,
    /// CPU time of the search alone, of the best turn.
    cpu_s: f64,
    /// Peak memory of the process (`VmHWM`): the program's code, the market as it was read and as
    /// it is stored, and all turns.
    rss_bytes: u64,
}

/// Result of another solver.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Peer {
    name: String,
    version: String,
    /// Cost of the peer's best answer; `None` if it found no answer.
    cost: Option<f64>,
    /// Gap by the peer's own bound; `None` if it has no answer or no bound.
    gap: Option<f64>,
    /// CPU time to build the peer's model and to solve it.
    cpu_s: f64,
    /// Peak memory of the peer's process, with Python and the program as it was read.
    rss_bytes: u64,
    /// The peer's reason to stop, in its own words.
    ended: String,
}

/// Limits that the result of a market must keep.
struct Bound {
    sessions: usize,
    capacity: f64,
    gap_max: f64,
    cpu_s_max: f64,
    rss_bytes_max: Option<u64>,
}

const fn bound(
    sessions: usize,
    capacity: f64,
    gap_max: f64,
    cpu_s_max: f64,
    rss_bytes_max: Option<u64>,
) -> Bound {
    Bound { sessions, capacity, gap_max, cpu_s_max, rss_bytes_max }
}

/// Bounds for the thesis's number of viewers, with its capacities and with a twentieth of them, and
/// for fifteen times as many viewers.
const BOUNDS: [Bound; 4] = [
    bound(33_400, 1.0, 1e-4, 0.2, Some(30_000_000)),
    bound(33_400, 0.05, 3e-3, 0.3, Some(30_000_000)),
    bound(500_000, 1.0, 3e-3, 2.5, None),
    bound(500_000, 0.05, 3e-3, 2.5, None),
];

/// Missed bounds of a row, one line each.
fn missed(row: &Row) -> Vec<String> {
    let is_its =
        |bound: &&Bound| bound.sessions == row.sessions && (bound.capacity - row.capacity).abs() < 1e-9;
    let Some(bound) = BOUNDS.iter().find(is_its) else { return Vec::new() };
    let mut missed = Vec::new();
    let mut expect = |is_met: bool, what: String| {
        if !is_met {
            missed.push(format!("{}: {what}", row.instance));
        }
    };
    let SearchResult { gap, cpu_s, rss_bytes, .. } = row.found;
    let percent = |share: f64| 100.0 * share;
    expect(
        gap < bound.gap_max,
        format!("{:.4} % from the best: less than {} %", percent(gap), percent(bound.gap_max)),
    );
    expect(cpu_s < bound.cpu_s_max, format!("{cpu_s:.3} CPU s: less than {}", bound.cpu_s_max));
    if let Some(most) = bound.rss_bytes_max {
        expect(rss_bytes < most, format!("{rss_bytes} bytes of memory: less than {most}"));
    }
    missed
}

/// Runs the benchmark.
///
/// Errors: a process that fails, or a missed bound with `--check`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.search {
        let found = search(std::io::stdin().lock(), args.passes, args.turns)?;
        println!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let mut head =
        vec!["instance", "sessions", "clusters", "variables", "unserved", "gap", "CPU s", "memory"];
    if args.peer.is_some() {
        head.extend(["peer", "cost to ours", "gap", "CPU s", "memory", "ended"]);
    }
    table.set_header(head);
    let mut all_missed = Vec::new();
    for sessions in &args.sessions {
        for capacity in &args.capacity {
            let row = measure(args, *sessions, *capacity)?;
            all_missed.extend(missed(&row));
            if args.json {
                println!("{}", serde_json::to_string(&row)?);
            }
            table.add_row(cells(&row));
        }
    }
    if !args.json {
        println!("{table}");
    }
    all_missed.iter().for_each(|miss| eprintln!("{miss}"));
    ensure!(!args.check || all_missed.is_empty(), "{} bounds missed", all_missed.len());
    Ok(())
}

/// A row of the table.
fn cells(row: &Row) -> Vec<String> {
    let percent = |share: f64| format!("{:.4} %", 100.0 * share);
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let mut cells = vec![row.instance.clone()];
    cells.extend([row.sessions, row.clusters, row.variables].map(|count| count.to_string()));
    let SearchResult { gap, unserved, cpu_s, rss_bytes, .. } = row.found;
    cells.extend([unserved.to_string(), percent(gap), format!("{cpu_s:.3}"), megabytes(rss_bytes)]);
    if let Some(peer) = &row.peer {
        let none = || "none".to_owned();
        cells.extend([
            format!("{} {}", peer.name, peer.version),
            peer.cost.map_or_else(none, |cost| format!("{:.6}", cost / row.found.cost)),
            peer.gap.map_or_else(none, percent),
            format!("{:.3}", peer.cpu_s),
            megabytes(peer.rss_bytes),
            peer.ended.clone(),
        ]);
    }
    cells
}

/// Draws a market and starts a process that searches it.
fn measure(args: &Args, sessions: usize, capacity: f64) -> anyhow::Result<Row> {
    let shape = WorldShape { sessions, capacity, ..WorldShape::default() };
    let design: Arc<dyn Design> = Arc::new(Marketplace::default());
    let market = market(&generate(&shape, Seed::new(1)), &design, 1.0);
    let program = serde_json::to_vec(&Program::from(&*market))?;
    let mut ours = Command::new(std::env::current_exe()?);
    let (passes, turns) = (args.passes.to_string(), args.turns.to_string());
    ours.args(["bench", "broker", "--search", "--passes", &passes, "--turns", &turns]);
    let found = serde_json::from_slice(&output_of(&mut ours, &program)?)?;
    let solve = |python: &PathBuf| -> anyhow::Result<Peer> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
        let mut peer = Command::new(python);
        peer.arg(root.join("python/tests/oracle_highs.py"));
        peer.args(["--seconds", &args.peer_seconds.to_string()]);
        let said = String::from_utf8(output_of(&mut peer, &program)?)?;
        // HiGHS prints its name first, so the answer is in the last line.
        Ok(serde_json::from_str(said.lines().last().context("the peer says nothing")?)?)
    };
    Ok(Row {
        instance: format!("{sessions} at {capacity}"),
        sessions,
        capacity,
        clusters: market.clusters().len(),
        variables: market.groups().iter().map(|group| market.candidates_of(group.place).len()).sum(),
        found,
        peer: args.peer.as_ref().map(solve).transpose()?,
    })
}

/// Searches the market from `input`, in turns.
fn search(input: impl Read, passes: u32, turns: usize) -> anyhow::Result<SearchResult> {
    let program: Program = serde_json::from_reader(BufReader::new(input))?;
    let market = Market::try_from(program)?;
    let optimiser = Optimiser { passes, ..Optimiser::default() };
    let mut cpu_s = f64::INFINITY;
    let mut last = None;
    for _ in 0..turns.max(1) {
        // The last answer is dropped first: two answers at once would count as memory of the
        // search.
        drop(last.take());
        let start = thread_cpu_s();
        last = Some(optimiser.optimise(&market, None));
        cpu_s = cpu_s.min(thread_cpu_s() - start);
    }
    let answer = last.context("there is at least one turn")?;
    let (cost, gap, unserved) = (answer.cost, answer.gap_share(), answer.unserved());
    Ok(SearchResult { cost, gap, unserved, cpu_s, rss_bytes: peak_bytes()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(sessions: usize, capacity: f64, gap: f64, cpu_s: f64, rss_bytes: u64) -> Row {
        Row {
            instance: format!("{sessions} at {capacity}"),
            sessions,
            capacity,
            clusters: 1,
            variables: 1,
            found: SearchResult { cost: 1.0, gap, unserved: 0, cpu_s, rss_bytes },
            peer: None,
        }
    }

    #[test]
    fn missed_bounds_of_a_row_are_named() {
        assert!(missed(&row(33_400, 1.0, 0.9e-4, 0.19, 29_000_000)).is_empty());
        assert_eq!(
            missed(&row(33_400, 1.0, 1.1e-4, 0.21, 31_000_000)),
            [
                "33400 at 1: 0.0110 % from the best: less than 0.01 %",
                "33400 at 1: 0.210 CPU s: less than 0.2",
                "33400 at 1: 31000000 bytes of memory: less than 30000000",
            ]
        );
        assert!(missed(&row(33_400, 0.05, 2.9e-3, 0.29, 29_000_000)).is_empty());
        assert_eq!(
            missed(&row(500_000, 0.05, 2.9e-3, 2.6, 1)),
            ["500000 at 0.05: 2.600 CPU s: less than 2.5"]
        );
        assert!(missed(&row(1_000, 1.0, 1.0, 9.0, 1)).is_empty(), "it has no bound");
    }

    #[test]
    fn market_from_the_input_is_searched() {
        let program = r#"{"unserved_cost": 40.0, "clusters": [[2000000, 1.0]], "places": [[[0, 0.5]]], "groups": [[0, 1000000, 3]]}"#;
        let found = search(program.as_bytes(), 20, 2).expect("it is a market");
        assert_eq!((found.cost, found.gap, found.unserved), (43.0, 0.0, 1));
        assert!(found.rss_bytes > 0 && found.cpu_s.is_finite());
        assert!(search(&b"{}"[..], 20, 1).is_err());
    }
}
