//! `anabranch broker cdn`: a content network's agent.

use crate::metrics::MetricsArgs;
use anabranch_broker::network::Files;
use anabranch_broker::{NetworkAgent, NetworkConfig};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// Address of the broker, as HOST:PORT or https://HOST:PORT. For brokers that share a store,
    /// give all addresses, separated by commas: the agent finds the leader.
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        env = "ANABRANCH_BROKER",
        default_value = "127.0.0.1:7195"
    )]
    broker: Vec<String>,
    /// The folder that `broker keys` made, or a copy with ca.pem, sites/NETWORK.pem and
    /// sites/NETWORK.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/broker")]
    keys: PathBuf,
    /// Name of the network, as given to `broker keys --networks`.
    #[arg(long, value_name = "NETWORK")]
    name: String,
    /// The network's clusters: a TOML file with [[cluster]] tables (`number`; `cost` per Mbit/s;
    /// `capacity`; `background`, the traffic to other clients). Read again for each round.
    #[arg(long, value_name = "FILE", default_value = "clusters.toml")]
    clusters: PathBuf,
    /// Scores of clusters for places: a CSV table with the columns location, isp (`*` for any),
    /// cluster and score; lower is better. Read again for each round.
    #[arg(long, value_name = "FILE", default_value = "scores.csv")]
    scores: PathBuf,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Runs until a signal ends the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let files = CredentialFiles::in_set(&args.keys, anabranch_broker::SYSTEM, Role::Site, &args.name);
    let identity = Identity::load(&files)?;
    let config = NetworkConfig {
        name: args.name.clone(),
        brokers: args.broker.clone(),
        files: Files { clusters: args.clusters.clone(), scores: args.scores.clone() },
    };
    crate::process::runtime()?.block_on(async {
        let listener = args.metrics.bind()?;
        let agent = NetworkAgent::new(config, &identity)?;
        if !quiet {
            errln!("agent of network {}; broker {}", args.name, agent.brokers().join(", "));
        }
        let metrics = agent.metrics();
        tokio::select! {
            ended = agent.run(crate::process::asked_to_end()) => ended?,
            never = crate::keys::follow(&identity) => match never {},
            never = listener.serve(quiet, metrics) => match never {},
        }
        if !quiet {
            errln!("agent of network {} ends", args.name);
        }
        Ok(ExitCode::SUCCESS)
    })
}
