//! `anabranch broker status`: networks, the broker's trust in them, and their clients in the last
//! decision; as a table, JSON or a page.

mod page;

use anabranch_broker::Client;
use anabranch_broker::wire::{DecisionView, NetworkView};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_units::BitRate;
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The broker, and the form of the status.
#[derive(clap::Args)]
pub struct Args {
    /// Address of the broker, as HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7195")]
    broker: String,
    /// The folder that `broker keys` made, or a copy with ca.pem, operators/NAME.pem and
    /// operators/NAME.key.
    #[arg(long, value_name = "DIR", default_value = "keys/broker")]
    keys: PathBuf,
    /// Name of the operator, as given to `broker keys --operators`.
    #[arg(long, value_name = "NAME", default_value = "operator")]
    operator: String,
    /// Print one JSON object with the networks, the last decision and the most recent rounds, as in
    /// the API.
    #[arg(long)]
    json: bool,
    /// Show the status with the most recent rounds on a page, for a browser on this machine, until
    /// Ctrl-C. The page is served at IP:PORT (127.0.0.1:7197 by default) below a path that cannot
    /// be guessed: open the printed address.
    #[arg(
        long,
        value_name = "IP:PORT",
        num_args = 0..=1,
        value_parser = crate::network::listen_address,
        default_missing_value = "127.0.0.1:7197",
        conflicts_with = "json"
    )]
    web: Option<std::net::SocketAddr>,
}

/// Runs the command.
///
/// Errors: one line for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files = CredentialFiles::in_set(&args.keys, anabranch_broker::SYSTEM, Role::Operator, &args.operator);
    let client = Client::new(&args.broker, &Identity::load(&files)?, Duration::from_secs(10))?;
    crate::process::runtime()?.block_on(async {
        if let Some(listen) = args.web {
            return tokio::select! {
                served = page::serve(client, listen) => served.map(|()| ExitCode::SUCCESS),
                () = crate::process::asked_to_end() => Ok(ExitCode::SUCCESS),
            };
        }
        let (networks, decision) = (client.networks().await?, client.decision().await?);
        if args.json {
            let rounds = client.rounds().await?;
            let all = serde_json::json!({ "networks": networks, "decision": decision, "rounds": rounds });
            println!("{all}");
        } else {
            show(&networks, &decision);
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn show(networks: &[NetworkView], decision: &DecisionView) {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_header(["network", "agent", "clients", "rate", "sense", "trust", "bias", "missed", "playing"]);
    for network in networks {
        table.add_row([
            network.name.clone(),
            if network.up { "up" } else { "away" }.to_owned(),
            network.sessions.to_string(),
            BitRate::bps(network.rate_bps).to_string(),
            format!("{:.0} %", 100.0 * network.reputation),
            format!("{:.0} %", 100.0 * network.capacity_trust),
            format!("{:.2}", network.score_bias),
            network.missed.to_string(),
            network.playing.to_string(),
        ]);
    }
    table.column_iter_mut().skip(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    println!("{table}");
    if decision.round == 0 {
        println!("no round was accepted yet");
        return;
    }
    let sessions = |is_placed: bool| -> u64 {
        let those = decision.placed.iter().filter(|placed| placed.to.is_some() == is_placed);
        those.map(|placed| u64::from(placed.sessions)).sum()
    };
    let (placed, unplaced) = (sessions(true), sessions(false));
    println!(
        "round {}: {placed} clients placed, {unplaced} for whom there is no room; at most {:.3} % from the best",
        decision.round,
        100.0 * decision.gap_share
    );
}
