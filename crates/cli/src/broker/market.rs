//! `anabranch broker market`: one round's program (the thesis's Figure 3.10) with its answer, so that any solver can be set beside.

use super::evaluate::{above_0, count, drawn, known, weight};
use anabranch_broker_proto::{Market, Optimiser, Program, Shape, designs, market};
use anyhow::Context as _;
use serde::Serialize;
use std::process::ExitCode;

/// Of which world, and by which design.
#[derive(clap::Args)]
pub struct Args {
    /// What the world is drawn from.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The design, as `broker evaluate` has it.
    #[arg(long, value_name = "NAME", default_value = "marketplace", value_parser = known)]
    design: String,
    /// How much cost weighs beside score, where 1 is as much in the mean.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0, value_parser = weight)]
    cost_weight: f64,
    /// Clients whom the broker places.
    #[arg(long, value_name = "COUNT", default_value_t = Shape::default().sessions, value_parser = count)]
    sessions: usize,
    /// Clusters of each network: as many numbers as networks. Without: the fourteen of `broker evaluate`.
    #[arg(long, value_name = "COUNT", num_args = 1.., value_parser = count)]
    networks: Vec<usize>,
    /// What clusters' capacities are multiplied by.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = above_0)]
    capacity: f64,
}

/// A program and its answer.
#[derive(Serialize)]
struct View {
    #[serde(flatten)]
    program: Program,
    /// Group, the candidate's number in its place or none, clients.
    placed: Vec<(u32, Option<u32>, u32)>,
    /// What the answer costs, and what any costs at least.
    cost: f64,
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

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let default = Shape::default();
    let networks = if args.networks.is_empty() { default.networks.clone() } else { args.networks.clone() };
    let shape = Shape { networks, sessions: args.sessions, capacity: args.capacity, ..default };
    let design = designs::by_name(&args.design).context("the name was looked at")?;
    let world = drawn(&shape, args.seed)?;
    let view = view(&market(&world, &design, args.cost_weight));
    outln!("{}", serde_json::to_string(&view)?);
    Ok(ExitCode::SUCCESS)
}
