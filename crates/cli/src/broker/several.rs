//! `anabranch broker several`: several brokers whose clients share clusters, over rounds of
//! changing demand.

use super::evaluate::{above_0, count, drawn, known};
use super::rows::{Row, ShownRows};
use anabranch_broker_proto::study::several::{BrokersStudy, RoundOutcome, run as run_all};
use anabranch_broker_proto::{Reserve, WorldShape, designs};
use anabranch_units::Seed;
use anyhow::Context as _;
use serde_json::Value;
use std::process::ExitCode;

/// The worlds, the brokers, and the networks' reserves for other brokers.
#[derive(clap::Args)]
pub struct Args {
    /// Seeds; one world and one course of demand is drawn from each.
    #[arg(long, value_name = "SEED", num_args = 1.., default_values_t = [1])]
    seed: Vec<u64>,
    /// Design, as in `broker evaluate`.
    #[arg(long, value_name = "NAME", num_args = 1.., default_values_t = ["marketplace".to_owned(), "transactions".to_owned()], value_parser = known)]
    design: Vec<String>,
    /// Number of brokers, each with an equal part of the clients.
    #[arg(long, value_name = "COUNT", num_args = 1.., default_values_t = [3], value_parser = clap::value_parser!(u32).range(1..=16))]
    brokers: Vec<u32>,
    /// Share of a cluster that a network reserves for the other brokers when it bids to one of
    /// them: nothing (a capacity is a hint), parts (equal parts: a capacity is a guarantee), or
    /// learnt-N (their recent mean use plus N standard deviations).
    #[arg(long, value_name = "RULE", num_args = 1.., default_values_t = ["nothing".to_owned(), "parts".to_owned(), "learnt-0".to_owned(), "learnt-2".to_owned()], value_parser = rule)]
    reserve: Vec<String>,
    /// Rounds of each broker; the first tenth does not count.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    rounds: u32,
    /// Variation of a place's demand: the standard deviation of its logarithm.
    #[arg(long, value_name = "DEVIATION", default_value_t = 0.3)]
    swing: f64,
    /// Clients of all brokers together.
    #[arg(long, value_name = "COUNT", default_value_t = 3_000, value_parser = count)]
    sessions: usize,
    /// Factor on all clusters' capacities.
    #[arg(long, value_name = "FACTOR", default_value_t = 0.1, value_parser = above_0)]
    capacity: f64,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

fn rule(text: &str) -> Result<String, String> {
    reserve(text, 1).map(|_| text.to_owned()).ok_or_else(|| "must be nothing, parts, or learnt-N".to_owned())
}

fn reserve(text: &str, brokers: u32) -> Option<Reserve> {
    match text {
        "nothing" => Some(Reserve::Nothing),
        "parts" => Some(Reserve::Parts(brokers)),
        _ => {
            let deviations: f64 = text.strip_prefix("learnt-")?.parse().ok()?;
            (0.0..=100.0).contains(&deviations).then_some(Reserve::Learnt { deviations })
        }
    }
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    ensure_usage!((0.0..=2.0).contains(&args.swing), "--swing {}: must be 0 to 2", args.swing);
    let mut shown = ShownRows::new(args.json);
    for seed in &args.seed {
        let shape = WorldShape { sessions: args.sessions, capacity: args.capacity, ..WorldShape::default() };
        let world = drawn(&shape, *seed)?;
        for name in &args.design {
            let design = designs::by_name(name).context("the name was looked at")?;
            for brokers in &args.brokers {
                for rule in &args.reserve {
                    if !quiet {
                        errln!("seed {seed}: {name}, {brokers} brokers, {rule}");
                    }
                    let several = BrokersStudy {
                        brokers: *brokers,
                        rounds: args.rounds,
                        reserve: reserve(rule, *brokers).context("the rule was looked at")?,
                        swing: args.swing,
                        cost_weight: 1.0,
                        seed: Seed::new(*seed),
                    };
                    let outcomes = run_all(&world, &design, &several);
                    let keys = [
                        ("seed", Value::from(*seed)),
                        ("design", Value::from(name.as_str())),
                        ("brokers", Value::from(*brokers)),
                        ("reserve", Value::from(rule.as_str())),
                    ];
                    let row = keys.into_iter().chain(means(&outcomes[args.rounds as usize / 10..]));
                    shown.add(Row(row.collect()))?;
                }
            }
        }
    }
    shown.end();
    Ok(ExitCode::SUCCESS)
}

/// Means of the figures over the rounds.
fn means(outcomes: &[RoundOutcome]) -> [(&'static str, Value); 6] {
    let mean = |of: fn(&RoundOutcome) -> f64| {
        Value::from(outcomes.iter().map(of).sum::<f64>() / outcomes.len().max(1) as f64)
    };
    [
        ("overloaded_share", mean(|outcome| outcome.overloaded_share)),
        ("unserved_share", mean(|outcome| outcome.unserved_share)),
        ("cost_mean", mean(|outcome| outcome.cost_mean)),
        ("score_mean", mean(|outcome| outcome.score_mean)),
        ("surprise_share", mean(|outcome| outcome.surprise_share)),
        ("void_share", mean(|outcome| outcome.void_share)),
    ]
}
