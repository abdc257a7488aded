//! `anabranch broker world`: a generated world as the files of a deployment: contracts, each
//! network's clusters and scores, and clients.
//!
//! Leaves out: the generation (`broker_proto::generate`). Read [`Args`] first.

use super::evaluate::{above_0, count, drawn};
use anabranch_broker::wire::{ClientsRequest, PlaceClients};
use anabranch_broker::world_files;
use anabranch_broker_proto::{Estimates as _, Parties, WorldShape};
use anyhow::Context as _;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The world, and the folder to write.
#[derive(clap::Args)]
pub struct Args {
    /// Folder to create, with contracts.toml, clients.json (a request of `POST /v1/clients`), and
    /// NETWORK.toml and NETWORK.csv for each network; and the same world as tables for `broker
    /// evaluate --world`.
    #[arg(long, value_name = "DIR", default_value = "world")]
    out: PathBuf,
    /// Seed of the world.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
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

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    ensure_usage!(!args.out.exists(), "--out {}: is there already: name another folder", args.out.display());
    let default = WorldShape::default();
    let networks = if args.networks.is_empty() { default.networks.clone() } else { args.networks.clone() };
    let shape = WorldShape { networks, sessions: args.sessions, capacity: args.capacity, ..default };
    let world = drawn(&shape, args.seed)?;
    let parties = Parties::new(&world);
    let gathered = parties.gathered();
    std::fs::create_dir_all(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    let write = |name: &str, text: &str| {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    let mut contracts = String::new();
    for (number, network) in (0..).zip(world.networks()) {
        let name = format!("network-{number}");
        writeln!(contracts, "[[network]]\nname = \"{name}\"\nprice = {:?}", network.price_per_mbps)?;
        writeln!(contracts, "capacity = \"{} bit/s\"", network.capacity_median.as_bps())?;
        let mut clusters = String::new();
        for cluster in network.clusters.clone() {
            let site = world.sites()[cluster as usize];
            writeln!(clusters, "[[cluster]]\nnumber = {cluster}\ncost = {:?}", site.cost_per_mbps)?;
            writeln!(clusters, "capacity = \"{} bit/s\"", site.capacity.as_bps())?;
            writeln!(clusters, "background = \"{} bit/s\"", site.background.as_bps())?;
        }
        write(&format!("{name}.toml"), &clusters)?;
        let own = parties.own(number);
        let mut scores = "location,isp,cluster,score\n".to_owned();
        for of in &gathered {
            for offer in own.considered(&of.location, &of.isp) {
                writeln!(scores, "{},{},{},{:?}", of.location, of.isp, offer.cluster, offer.score)?;
            }
        }
        write(&format!("{name}.csv"), &scores)?;
    }
    world_files::write(&world, &args.out)?;
    write("contracts.toml", &contracts)?;
    let places = gathered.into_iter().map(|of| PlaceClients {
        location: of.location,
        isp: of.isp,
        clients: of.clients,
    });
    let clients = ClientsRequest { places: places.collect() };
    write("clients.json", &serde_json::to_string(&clients)?)?;
    if !quiet {
        let networks = world.networks().len();
        errln!(
            "{}: {networks} networks with {} clusters, {} places, seed {}",
            args.out.display(),
            world.sites().len(),
            clients.places.len(),
            args.seed
        );
    }
    Ok(ExitCode::SUCCESS)
}
