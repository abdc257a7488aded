//! `anabranch broker evaluate`: one round of the decision protocol for each seed, design and
//! weight, and a row for its outcome.

use super::rows::{Row, ShownRows};
use anabranch_broker::world_files;
use anabranch_broker_proto::designs::{self, Design};
use anabranch_broker_proto::limits::{check_capacity, check_weight};
use anabranch_broker_proto::{
    Account, Optimiser, Outcome, Site, World, WorldShape, alternatives, evaluate, generate,
};
use anabranch_units::Seed;
use anyhow::Context as _;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Subject of the rows.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Rows {
    /// A round: medians over its clients and clusters.
    Outcomes,
    /// A network in a round: its traffic, its revenue, its cost.
    Networks,
    /// A country in a round: its clusters' traffic, revenue and cost.
    Countries,
    /// A world: how often its largest network has clusters nearly as good as its best. Designs make
    /// no difference.
    Alternatives,
}

/// The worlds, the designs, and the form of the results.
#[derive(clap::Args)]
pub struct Args {
    /// Designs, all if none is given: brokered, multicluster-N, dynamic-pricing,
    /// dynamic-multicluster, best-lookup, marketplace, marketplace-N, omniscient, transactions; N
    /// is the most clusters that a network matches for a place.
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = known)]
    design: Vec<String>,
    /// Seeds; one world is drawn from each.
    #[arg(long, value_name = "SEED", num_args = 1.., default_values_t = [1])]
    seed: Vec<u64>,
    /// Weight of cost relative to score; 1 weighs both equally in the mean.
    #[arg(long, value_name = "WEIGHT", num_args = 1.., default_values_t = [1.0], value_parser = weight)]
    cost_weight: Vec<f64>,
    /// A world of your own instead of generated ones: a folder with cities.csv (city, country,
    /// x_km, y_km), networks.csv (network, price), clusters.csv (cluster, network, city, cost,
    /// capacity, background), clients.csv (city, isp, bitrate, sessions), and optionally scores.csv
    /// (city, isp, cluster, score). Without scores.csv, scores are drawn by distance, from each
    /// seed.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["sessions", "city_networks", "capacity"])]
    world: Option<PathBuf>,
    /// Number of clients that the broker places; background traffic has three times as many.
    #[arg(long, value_name = "COUNT", default_value_t = WorldShape::default().sessions, value_parser = count)]
    sessions: usize,
    /// Number of networks with one cluster each, besides the fourteen.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = count_or_none)]
    city_networks: usize,
    /// Factor on all clusters' capacities.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = above_0)]
    capacity: f64,
    /// Subject of the rows.
    #[arg(long, value_enum, default_value_t = Rows::Outcomes)]
    rows: Rows,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// Maximum number of clients, and of networks, of a world, so that the world fits into some
/// gigabytes.
const COUNT_MAX: usize = 2_000_000;

fn count_or_none(text: &str) -> Result<usize, String> {
    let count = text.parse().map_err(|_| "must be a whole number".to_owned())?;
    if count <= COUNT_MAX { Ok(count) } else { Err(format!("must be at most {COUNT_MAX}")) }
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    count_or_none(text)
        .and_then(|count| if count > 0 { Ok(count) } else { Err("must be above 0".to_owned()) })
}

/// Parses a factor of capacities, above 0.
pub(super) fn above_0(text: &str) -> Result<f64, String> {
    let value = weight(text)?;
    if value > 0.0 { Ok(value) } else { Err("must be above 0".to_owned()) }
}

/// Parses a weight of cost; 0 ignores cost.
pub(super) fn weight(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    check_weight(value).map(|()| value).map_err(|error| error.to_string())
}

/// Generates a world with `--capacity` applied.
///
/// Errors: a cluster above the maximum capacity.
pub(super) fn drawn(shape: &WorldShape, seed: u64) -> anyhow::Result<World> {
    let world = generate(shape, Seed::new(seed));
    for site in world.sites() {
        let what = || format!("--capacity {}: of a cluster of seed {seed}", shape.capacity);
        check_capacity("capacity", site.capacity).with_context(what)?;
    }
    Ok(world)
}

pub(super) fn known(name: &str) -> Result<String, String> {
    designs::by_name(name).map(|_| name.to_owned()).ok_or_else(|| {
        let names: Vec<String> = designs::all().iter().map(|design| design.name()).collect();
        format!("is no design: there are {}", names.join(", "))
    })
}

fn outcome_row(outcome: &Outcome) -> Vec<(&'static str, Value)> {
    vec![
        ("cost_p50", outcome.cost_p50.into()),
        ("score_p50", outcome.score_p50.into()),
        ("distance_km_p50", outcome.distance_km_p50.into()),
        ("load_p50", outcome.load_p50.into()),
        ("congested_share", outcome.congested_share.into()),
        ("unserved", outcome.unserved.into()),
        ("gap_share", outcome.gap_share.into()),
    ]
}

/// Row of a network's or country's account, with the costs of its clusters.
fn account_row(number: usize, account: &Account, costs: &[f64]) -> Vec<(&'static str, Value)> {
    vec![
        ("number", number.into()),
        ("clusters", costs.len().into()),
        ("cost_per_mbps", (costs.iter().sum::<f64>() / costs.len().max(1) as f64).into()),
        ("traffic_mbps", account.traffic_mbps.into()),
        ("paid", account.paid.into()),
        ("cost", account.cost.into()),
        ("profit", account.profit().into()),
    ]
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let capacity = args.capacity;
    let designs: Vec<Arc<dyn Design>> = if args.design.is_empty() {
        designs::all()
    } else {
        args.design.iter().filter_map(|name| designs::by_name(name)).collect()
    };
    let mut shown = ShownRows::new(args.json);
    for seed in &args.seed {
        let shape = WorldShape {
            sessions: args.sessions,
            city_networks: args.city_networks,
            capacity,
            ..WorldShape::default()
        };
        let world = match &args.world {
            Some(folder) => world_files::read(folder, Seed::new(*seed)).context("--world")?,
            None => drawn(&shape, *seed)?,
        };
        if args.rows == Rows::Alternatives {
            let shares: [f64; 4] = alternatives(&world, largest(&world));
            let columns = ["with_1", "with_2", "with_3", "with_4"].into_iter().zip(shares.map(Value::from));
            shown.add(Row([("seed", Value::from(*seed))].into_iter().chain(columns).collect()))?;
            continue;
        }
        for design in &designs {
            for weight in &args.cost_weight {
                if !quiet {
                    errln!("seed {seed}: {}, cost weight {weight}", design.name());
                }
                let outcome = evaluate(&world, design, *weight, &Optimiser::default());
                for columns in rows(args.rows, &world, &outcome) {
                    let keys = [
                        ("seed", Value::from(*seed)),
                        ("design", design.name().into()),
                        ("cost_weight", (*weight).into()),
                    ];
                    shown.add(Row(keys.into_iter().chain(columns).collect()))?;
                }
            }
        }
    }
    shown.end();
    Ok(ExitCode::SUCCESS)
}

/// Number of the network with the most clusters.
fn largest(world: &World) -> u32 {
    let networks = (0..).zip(world.networks());
    networks.max_by_key(|(_, network)| network.clusters.len()).map_or(0, |(number, _)| number)
}

/// Rows of this kind for a round.
fn rows(kind: Rows, world: &World, outcome: &Outcome) -> Vec<Vec<(&'static str, Value)>> {
    let of = |site: &Site| match kind {
        Rows::Countries => world.cities()[site.city as usize].country,
        _ => site.network,
    };
    let accounts = match kind {
        Rows::Networks => &outcome.networks,
        Rows::Countries => &outcome.countries,
        Rows::Outcomes | Rows::Alternatives => return vec![outcome_row(outcome)],
    };
    let row = |(number, account): (usize, &Account)| {
        let own = world.sites().iter().filter(|site| of(site) as usize == number);
        account_row(number, account, &own.map(|site| site.cost_per_mbps).collect::<Vec<_>>())
    };
    accounts.iter().enumerate().map(row).collect()
}
