//! `anabranch broker market`: prints one round's optimisation (the thesis's Figure 3.10) with its
//! answer, for comparison with other solvers.

use super::evaluate::{above_0, count, drawn, known, weight};
use anabranch_broker_proto::{Market, Optimiser, Program, WorldShape, designs, market};
use anyhow::Context as _;
use serde::Serialize;
use std::process::ExitCode;

/// World and design of the round.
#[derive(clap::Args)]
pub struct Args {
    /// Seed of the world.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Design, as in `broker evaluate`.
    #[arg(long, value_name = "NAME", default_value = "marketplace", value_parser = known)]
    design: String,
    /// Weight of cost relative to score; 1 weighs both equally in the mean.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0, value_parser = weight)]
    cost_weight: f64,
    /// Number of clients that the broker places.
    #[arg(long, value_name = "COUNT", default_value_t = WorldShape::default().sessions, value_parser = count)]
    sessions: usize,
    /// Numbers of clusters, one for each network. Without: the fourteen networks of `broker
    /// evaluate`.
    #[arg(long, value_name = "COUNT", num_args = 1.., value_parser = count)]
    networks: Vec<usize>,
    /// Factor on all clusters' capacities.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = above_0)]
    capacity: f64,
}

/// A program, and the optimiser's answer.
#[derive(Serialize)]
struct View {
    #[serde(flatten)]
    program: Program,
    /// Placements: group, index of the candidate or `None`, number of clients.
    placed: Vec<(u32, Option<u32>, u32)>,
    /// Cost of the answer.
    cost: f64,
    /// Lower bound on the cost of any placement.
    bound: f64,
}

fn view(market: &Market) -> View {
    let answer = Optimiser::default().optimise(market, None);
    View {
        program: Program::from(market),
        placed: answer.placements.iter().map(|p| (p.group, p.candidate, p.sessions)).collect(),
        cost: answer.cost,
        bound: answer.bound,
    }
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let default = WorldShape::default();
    let networks = if args.networks.is_empty() { default.networks.clone() } else { args.networks.clone() };
    let shape = WorldShape { networks, sessions: args.sessions, capacity: args.capacity, ..default };
    let design = designs::by_name(&args.design).context("the name was looked at")?;
    let world = drawn(&shape, args.seed)?;
    let view = view(&market(&world, &design, args.cost_weight));
    outln!("{}", serde_json::to_string(&view)?);
    Ok(ExitCode::SUCCESS)
}
