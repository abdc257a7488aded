//! `anabranch broker status`: networks, the broker's trust in them, and their clients in the last
//! decision; as a table, JSON or a page.

mod page;

use anabranch_broker::Client;
use anabranch_broker::wire::{DecisionView, LeadView, NetworkView};
use anabranch_http::ClientError;
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
    /// Brokers that share a store, as HOST:PORT or https://HOST:PORT, or the only broker. The leader
    /// among them is shown.
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        env = "ANABRANCH_BROKER",
        value_delimiter = ',',
        default_value = "127.0.0.1:7195"
    )]
    broker: Vec<String>,
    /// The folder that `broker keys` made, or a copy with ca.pem, operators/NAME.pem and
    /// operators/NAME.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/broker")]
    keys: PathBuf,
    /// Name of the operator, as given to `broker keys --operators`.
    #[arg(long, value_name = "NAME", default_value = "operator")]
    operator: String,
    /// Print one JSON object with the brokers, the networks, the last decision and the most recent rounds, as in
    /// the API.
    #[arg(long)]
    json: bool,
    /// Show the status with the most recent rounds on a page, for a browser on this machine, until
    /// Ctrl-C. The page is served at IP:PORT (127.0.0.1:7197 by default) below a path that cannot
    /// be guessed: open the printed address. It stays with the broker that leads at its start.
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
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files = CredentialFiles::in_set(&args.keys, anabranch_broker::SYSTEM, Role::Operator, &args.operator);
    let identity = Identity::load(&files)?;
    let clients = args.broker.iter().map(|broker| Client::new(broker, &identity, PATIENCE));
    let clients = clients.collect::<Result<Vec<_>, _>>()?;
    crate::process::runtime()?.block_on(async {
        let brokers = ask_all(clients).await;
        if let Some(listen) = args.web {
            // The page keeps polling a broker that is unreachable.
            let client = chosen(&brokers).unwrap_or(&brokers[0]).client.clone();
            return tokio::select! {
                served = page::serve(client, listen) => served.map(|()| ExitCode::SUCCESS),
                () = crate::process::asked_to_end() => Ok(ExitCode::SUCCESS),
            };
        }
        let client = chosen(&brokers)?.client.clone();
        let (networks, decision) = (client.networks().await?, client.decision().await?);
        if args.json {
            let rounds = client.rounds().await?;
            let brokers: Vec<_> = brokers.iter().map(Broker::json).collect();
            let all = serde_json::json!({
                "brokers": brokers, "networks": networks, "decision": decision, "rounds": rounds
            });
            outln!("{all}");
        } else {
            show_brokers(&brokers);
            show(&networks, &decision, brokers.iter().any(Broker::leads));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Time during which a request is retried.
const PATIENCE: Duration = Duration::from_secs(10);

/// A broker, and its answer to the request for the lead.
struct Broker {
    client: Client,
    lead: Result<LeadView, ClientError>,
}

impl Broker {
    fn leads(&self) -> bool {
        self.lead.as_ref().is_ok_and(|lead| lead.leads)
    }

    /// Role of the broker, in one or a few words.
    fn role(&self) -> String {
        match &self.lead {
            Err(_) => "no answer".to_owned(),
            Ok(LeadView { leads: true, .. }) => "leads".to_owned(),
            Ok(LeadView { leader: Some(leader), .. }) => format!("follows {leader}"),
            Ok(_) => "knows no leader".to_owned(),
        }
    }

    fn json(&self) -> serde_json::Value {
        let error = self.lead.as_ref().err().map(ToString::to_string);
        let lead = self.lead.as_ref().ok();
        serde_json::json!({ "broker": self.client.address(), "lead": lead, "error": error })
    }
}

/// Requests the lead of all brokers concurrently.
async fn ask_all(clients: Vec<Client>) -> Vec<Broker> {
    let asked = clients.into_iter().map(|client| {
        tokio::spawn(async move {
            let lead = client.lead().await;
            Broker { client, lead }
        })
    });
    let mut brokers = Vec::new();
    for broker in asked.collect::<Vec<_>>() {
        brokers.push(broker.await.expect("asking does not panic"));
    }
    brokers
}

/// The leader, or else the first broker that answers.
///
/// Errors: no broker answers.
fn chosen(brokers: &[Broker]) -> anyhow::Result<&Broker> {
    let leader = brokers.iter().find(|broker| broker.leads());
    let Some(found) = leader.or_else(|| brokers.iter().find(|broker| broker.lead.is_ok())) else {
        let errors = brokers.iter().filter_map(|broker| broker.lead.as_ref().err().map(ToString::to_string));
        anyhow::bail!("{}", errors.collect::<Vec<_>>().join("; "));
    };
    Ok(found)
}

/// Shows brokers that share a store; a broker with a file always leads.
fn show_brokers(brokers: &[Broker]) {
    let is_sole = |lead: &LeadView| lead.leads && !lead.store.starts_with("etcd");
    if let [Broker { lead: Ok(lead), .. }] = brokers
        && is_sole(lead)
    {
        if let Some(trouble) = &lead.trouble {
            outln!("trouble: {trouble}");
        }
        return;
    }
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["broker", "lead", "store", "trouble"]);
    for broker in brokers {
        let (store, trouble) = match &broker.lead {
            Ok(lead) => (lead.store.clone(), lead.trouble.clone().unwrap_or_default()),
            Err(error) => (String::new(), error.to_string()),
        };
        table.add_row([broker.client.address().to_owned(), broker.role(), store, trouble]);
    }
    outln!("{table}");
    if !brokers.iter().any(Broker::leads) {
        outln!(
            "none of these brokers leads: players are answered by the last decision, and no round is called"
        );
    }
    outln!("");
}

/// Name of an accepted round. Brokers of earlier versions stored no number with their decisions.
fn round_name(number: u64) -> String {
    match number {
        0 => "last round".to_owned(),
        number => format!("round #{number}"),
    }
}

/// Shows the networks and the decision. Without a leader (`is_led` is false), no broker knows which
/// agents are connected.
fn show(networks: &[NetworkView], decision: &DecisionView, is_led: bool) {
    let agent = |network: &NetworkView| match (is_led, network.up) {
        (false, _) => "unknown",
        (true, true) => "up",
        (true, false) => "away",
    };
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_header(["network", "agent", "clients", "rate", "sense", "trust", "bias", "missed", "playing"]);
    for network in networks {
        table.add_row([
            network.name.clone(),
            agent(network).to_owned(),
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
    outln!("{table}");
    if decision.round == 0 {
        outln!("no round was accepted yet");
        return;
    }
    let sessions = |is_placed: bool| -> u64 {
        let those = decision.placed.iter().filter(|placed| placed.to.is_some() == is_placed);
        those.map(|placed| u64::from(placed.sessions)).sum()
    };
    let (placed, unplaced) = (sessions(true), sessions(false));
    outln!(
        "{}: {placed} clients placed, {unplaced} for whom there is no room; at most {:.3} % from the best",
        round_name(decision.number),
        100.0 * decision.gap_share
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #52: decisions in stores of earlier versions were shown as round #0.
    #[test]
    fn decision_without_a_number_is_shown_as_last_round() {
        assert_eq!((round_name(0), round_name(7)), ("last round".to_owned(), "round #7".to_owned()));
    }
}
