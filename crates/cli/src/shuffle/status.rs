//! `anabranch shuffle status`: active coflows and their rates, as a table, JSON or a page; and
//! ended coflows.

mod page;

use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_shuffle::Client;
use anabranch_shuffle::wire::{CoflowsView, EndedCoflowView, HostView, Uplink};
use anabranch_units::{BitRate, ByteCount};
use comfy_table::{Table, presets::NOTHING};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The coordinator, and the form of the status.
#[derive(clap::Args)]
pub struct Args {
    /// Address of the coordinator, as HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", env = "ANABRANCH_COORDINATOR", default_value = "127.0.0.1:7190")]
    coordinator: String,
    /// The folder that `shuffle keys` made, or a copy with ca.pem, operators/NAME.pem and
    /// operators/NAME.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/shuffle")]
    keys: PathBuf,
    /// Name of the operator, as given to `shuffle keys --operators`.
    #[arg(long, value_name = "NAME", default_value = "operator")]
    operator: String,
    /// Also show this many ended coflows, newest first.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10_000))]
    history: u64,
    /// Print one JSON object with hosts, coflows and history, as in the API.
    #[arg(long)]
    json: bool,
    /// Show the status on a page, for a browser on this machine, until Ctrl-C. The page is served
    /// at IP:PORT (127.0.0.1:7191 by default) below a path that cannot be guessed: open the printed
    /// address.
    #[arg(
        long,
        value_name = "IP:PORT",
        num_args = 0..=1,
        value_parser = crate::network::listen_address,
        default_missing_value = "127.0.0.1:7191",
        conflicts_with_all = ["json", "history"]
    )]
    web: Option<std::net::SocketAddr>,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files =
        CredentialFiles::in_set(&args.keys, anabranch_shuffle::SYSTEM, Role::Operator, &args.operator);
    let client = Client::new(&args.coordinator, &Identity::load(&files)?, Duration::from_secs(10))?;
    crate::process::runtime()?.block_on(async {
        if let Some(listen) = args.web {
            return tokio::select! {
                served = page::serve(client, listen) => served.map(|()| ExitCode::SUCCESS),
                () = crate::process::asked_to_end() => Ok(ExitCode::SUCCESS),
            };
        }
        let (hosts, coflows) = (client.hosts().await?, client.coflows().await?);
        let history = if args.history > 0 { client.history(args.history).await? } else { Vec::new() };
        if args.json {
            let CoflowsView { coflows, flows_left_out, allocator } = coflows;
            let all = serde_json::json!({
                "hosts": hosts, "coflows": coflows, "flows_left_out": flows_left_out,
                "allocator": allocator, "history": history
            });
            outln!("{all}");
        } else {
            show(&hosts, &coflows, &history);
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    table
}

fn show(hosts: &[HostView], view: &CoflowsView, history: &[EndedCoflowView]) {
    let mut rows = table(&["host", "agent", "link", "behind"]);
    for host in hosts {
        let up = if host.up { "up" } else { "away" };
        let uplink = |uplink: &Uplink| format!("{} ({})", uplink.name, BitRate::bps(uplink.rate_bps));
        let behind: Vec<String> = host.uplinks.iter().map(uplink).collect();
        let link = BitRate::bps(host.link_rate_bps).to_string();
        rows.add_row([host.name.clone(), up.to_owned(), link, behind.join(", ")]);
    }
    outln!("{rows}\n");
    let mut rows = table(&["coflow", "host", "flow", "remaining", "rate"]);
    for coflow in &view.coflows {
        for flow in &coflow.flows {
            rows.add_row([
                coflow.name.clone(),
                flow.host.clone(),
                format!("{} -> {}", flow.local, flow.remote),
                ByteCount::new(flow.remaining_bytes).to_string(),
                flow.rate_bps.map_or_else(|| "idle".to_owned(), |bps| BitRate::bps(bps).to_string()),
            ]);
        }
    }
    outln!("{rows}");
    if view.flows_left_out > 0 {
        outln!("and {} flows more", view.flows_left_out);
    }
    if !history.is_empty() {
        let mut rows = table(&["ended", "flows", "moved", "took"]);
        for ended in history {
            let took = Duration::from_millis(ended.ended_unix_ms.saturating_sub(ended.began_unix_ms));
            rows.add_row([
                ended.name.clone(),
                ended.flows.to_string(),
                ByteCount::new(ended.moved_bytes).to_string(),
                format!("{:.1} s", took.as_secs_f64()),
            ]);
        }
        outln!("\n{rows}");
    }
}
