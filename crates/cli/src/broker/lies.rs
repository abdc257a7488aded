//! `anabranch broker lies`: gain of a network that overstates its costs or its capacities.

use super::evaluate::{above_0, count, drawn, known};
use super::rows::{Row, ShownRows};
use anabranch_broker_proto::study::false_statements::{FalseStatements, payoff, without};
use anabranch_broker_proto::{WorldShape, designs};
use anyhow::Context as _;
use serde_json::Value;
use std::process::ExitCode;

/// The worlds, the designs, and the lies.
#[derive(clap::Args)]
pub struct Args {
    /// Seeds; one world is drawn from each.
    #[arg(long, value_name = "SEED", num_args = 1.., default_values_t = [1])]
    seed: Vec<u64>,
    /// Design, as in `broker evaluate`.
    #[arg(long, value_name = "NAME", num_args = 1.., default_values_t = ["marketplace".to_owned()], value_parser = known)]
    design: Vec<String>,
    /// Asked price as a multiple of the costs. All other networks ask 1.2 times their costs.
    #[arg(long, value_name = "FACTOR", num_args = 1.., default_values_t = [1.0, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0])]
    price: Vec<f64>,
    /// Factor on the announced capacities; 1 is honest.
    #[arg(long, value_name = "FACTOR", num_args = 1.., default_values_t = [1.0])]
    claim: Vec<f64>,
    /// Number of clients that the broker places.
    #[arg(long, value_name = "COUNT", default_value_t = 3_000, value_parser = count)]
    sessions: usize,
    /// Factor on all clusters' capacities.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = above_0)]
    capacity: f64,
    /// Print one JSON object for each row: a network and a lie.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    for (name, factors) in [("--price", &args.price), ("--claim", &args.claim)] {
        for factor in factors {
            ensure_usage!((1e-3..=1e3).contains(factor), "{name} {factor}: must be 0.001 to 1000");
        }
    }
    let mut shown = ShownRows::new(args.json);
    for seed in &args.seed {
        let shape = WorldShape { sessions: args.sessions, capacity: args.capacity, ..WorldShape::default() };
        let world = drawn(&shape, *seed)?;
        for name in &args.design {
            let design = designs::by_name(name).context("the name was looked at")?;
            for network in 0..world.networks().len() as u32 {
                if !quiet {
                    errln!("seed {seed}: {name}, network {network}");
                }
                let without = without(&world, &design, 1.0, network);
                for &price in &args.price {
                    for &capacity in &args.claim {
                        let found = payoff(
                            &world,
                            &design,
                            1.0,
                            FalseStatements { network, price, capacity },
                            without,
                        );
                        shown.add(Row(vec![
                            ("seed", Value::from(*seed)),
                            ("design", Value::from(name.as_str())),
                            ("network", Value::from(network)),
                            ("price", Value::from(price)),
                            ("claim", Value::from(capacity)),
                            ("traffic_mbps", Value::from(found.traffic_mbps)),
                            ("as_bid", Value::from(found.as_bid)),
                            ("clarke", Value::from(found.clarke)),
                            ("overloaded_share", Value::from(found.overloaded_share)),
                        ]))?;
                    }
                }
            }
        }
    }
    shown.end();
    Ok(ExitCode::SUCCESS)
}
