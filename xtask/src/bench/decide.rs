//! `bench decide`: the time of one decision of Flow Chasing, for growing numbers of flows.
//!
//! Measures CPU time of this thread. Initially there are coflows of a hundred flows between random
//! ports of one switch. Then one more flow arrives, and all rates are computed again. Then one flow
//! completes. Read [`Row`] first.

use anabranch_fluid::{ActiveFlows, Allocator, CoflowId, FlowId, Network};
use anabranch_shuffle_proto::{Chase, ChasePlus};
use anabranch_units::{BitRate, ByteCount, Seed};
use anyhow::ensure;

/// Arguments of `bench decide`.
#[derive(clap::Args)]
pub struct Args {
    /// Largest number of coflows; the numbers are powers of ten.
    #[arg(long, default_value_t = 1_000)]
    coflows: u32,
    /// Decisions of each kind; the median counts.
    #[arg(long, default_value_t = 21)]
    turns: usize,
    /// Fail where a decision for the most coflows takes longer, in milliseconds.
    #[arg(long)]
    assert_ms: Option<f64>,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// Number of flows of a coflow, and number of ports.
const FLOWS: u32 = 100;
const PORTS: u32 = 150;

#[derive(serde::Serialize)]
struct Row {
    rule: &'static str,
    coflows: u32,
    flows: u32,
    arrival_ms: f64,
    completion_ms: f64,
}

/// Runs the benchmark.
///
/// Errors: a decision takes longer than `--assert-ms` allows.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut coflows = args.coflows;
    while coflows > 0 {
        rows.push(measure("chase", coflows, args.turns, Chase::default())?);
        rows.push(measure("chase+", coflows, args.turns, ChasePlus::default())?);
        coflows /= 10;
    }
    rows.reverse();
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
    } else {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_header(["rule", "coflows", "flows", "arrival ms", "completion ms"]);
        for row in &rows {
            let ms = |ms: f64| format!("{ms:.3}");
            let (coflows, flows) = (row.coflows.to_string(), row.flows.to_string());
            table.add_row([row.rule.to_owned(), coflows, flows, ms(row.arrival_ms), ms(row.completion_ms)]);
        }
        println!("{table}");
    }
    let longest_ms = rows.iter().map(|row| row.arrival_ms.max(row.completion_ms)).fold(0.0, f64::max);
    let limit_ms = args.assert_ms.unwrap_or(f64::INFINITY);
    ensure!(longest_ms <= limit_ms, "a decision takes {longest_ms:.1} ms: must be at most {limit_ms} ms");
    Ok(())
}

fn measure(rule: &'static str, coflows: u32, turns: usize, mut rules: impl Allocator) -> anyhow::Result<Row> {
    let mut random = Seed::new(1).stream("bench", 0);
    let mut active = ActiveFlows::new(Network::big_switch(PORTS, BitRate::gbps(1))?);
    let mut insert = |active: &mut ActiveFlows, coflow: u32| {
        let (from, to) = (random.below(PORTS.into()) as u32, random.below(PORTS.into()) as u32);
        let volume = ByteCount::new(1_000_000 + random.below(100_000_000));
        active.insert(CoflowId(coflow), &Network::through_switch(PORTS, from, to), volume)
    };
    for flow in 0..coflows * FLOWS {
        insert(&mut active, flow / FLOWS);
    }
    active.decide(&mut rules)?;
    let (mut arrivals_ms, mut completions_ms) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        let came: FlowId = insert(&mut active, turn as u32 % coflows);
        arrivals_ms.push(decide_ms(&mut active, &mut rules)?);
        active.remove(came);
        completions_ms.push(decide_ms(&mut active, &mut rules)?);
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let (arrival_ms, completion_ms) = (median(arrivals_ms), median(completions_ms));
    Ok(Row { rule, coflows, flows: coflows * FLOWS, arrival_ms, completion_ms })
}

fn decide_ms(active: &mut ActiveFlows, rules: &mut impl Allocator) -> anyhow::Result<f64> {
    let began_s = super::thread_cpu_s();
    active.decide(rules)?;
    Ok((super::thread_cpu_s() - began_s) * 1e3)
}
