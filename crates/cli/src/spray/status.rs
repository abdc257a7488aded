//! `anabranch spray status`: the status of a host's agent, as a table or as JSON.

use super::socket_of;
use anabranch_spray::status::{AvoidReason, PeerStatus, Status, ask};
use anabranch_units::text::{known, printable};
use comfy_table::{Table, presets::NOTHING};
use std::path::PathBuf;
use std::process::ExitCode;

/// The agent, and the form of the status.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the host, as given to the agent.
    #[arg(long, value_name = "HOST", required_unless_present = "socket")]
    name: Option<String>,
    /// The agent's socket. Without: /run/anabranch/spray-NAME.sock.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Show one line: how many peers are up.
    #[arg(long, conflicts_with_all = ["ways", "json", "up", "down", "peers"])]
    summary: bool,
    /// Show peers that are up only.
    #[arg(long, conflicts_with = "down")]
    up: bool,
    /// Show peers that are down only.
    #[arg(long)]
    down: bool,
    /// Show this peer only. Repeatable.
    #[arg(long = "peer", value_name = "NAME")]
    peers: Vec<String>,
    /// Also show each path.
    #[arg(long)]
    ways: bool,
    /// Print one JSON object, with each path.
    #[arg(long, conflicts_with = "ways")]
    json: bool,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = args.socket.clone().unwrap_or_else(|| socket_of(args.name.as_deref().unwrap_or_default()));
    let mut status = crate::process::runtime()?.block_on(ask(&socket))?;
    if let Some(unknown) = args.peers.iter().find(|name| !status.peers.iter().any(|peer| peer.name == **name))
    {
        let known = known(unknown, status.peers.iter().map(|peer| &peer.name));
        bail_usage!("no peer `{}`: {known}", printable(unknown));
    }
    let summary = format!("{} of {} peers up", status.up, status.peers.len());
    if args.summary {
        outln!("{summary}");
        return Ok(ExitCode::SUCCESS);
    }
    status.peers.retain(|peer| {
        let is_named = args.peers.is_empty() || args.peers.contains(&peer.name);
        is_named && !(args.up && !peer.is_up || args.down && peer.is_up)
    });
    if args.json {
        outln!("{}", serde_json::to_string(&status)?);
    } else {
        show(&status, &summary, args.ways);
    }
    Ok(ExitCode::SUCCESS)
}

fn ms(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{:.2} ms", seconds * 1e3))
}
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    table
}

fn show(status: &Status, summary: &str, has_ways: bool) {
    let Status { name, listen, ways, device, .. } = status;
    outln!("{name} on {listen}, {ways} ways, device {device}: {summary}\n");
    let mut rows = table(&[
        "peer",
        "address",
        "state",
        "for",
        "blocked",
        "packets + parities",
        "redundancy",
        "sprayed",
        "repeated",
        "recovered",
        "given up",
        "round trip",
        "fastest",
        "ways left",
    ]);
    for peer in &status.peers {
        let PeerStatus { figures, .. } = peer;
        let left = |why| figures.ways.iter().filter(|way| way.left == Some(why)).count();
        rows.add_row([
            peer.name.clone(),
            peer.address.clone().unwrap_or_else(|| "-".to_owned()),
            if peer.is_up { "up" } else { "down" }.to_owned(),
            format!("{:.0} s", peer.since_s),
            percent(figures.blocked_share),
            format!("{:.1} + {:.2}", figures.unit_packets_mean, figures.parities_mean),
            percent(figures.redundancy_share()),
            format!("{} of {}", figures.sprayed_packets, figures.sprayable_packets),
            figures.repeated_packets.to_string(),
            figures.recovered_packets.to_string(),
            figures.given_up_packets.to_string(),
            ms(figures.rtt_s),
            ms(figures.rtt_fastest_s),
            format!("{} late, {} crowded", left(AvoidReason::Late), left(AvoidReason::Crowded)),
        ]);
    }
    outln!("{rows}");
    for peer in &status.peers {
        if let Some(why) = &peer.why {
            outln!("{}: {why}; its traffic goes the ordinary way", peer.name);
        }
    }
    if !has_ways {
        return;
    }
    let mut rows = table(&["peer", "way", "came", "marked", "late", "round trip", "long flows", "left"]);
    for peer in &status.peers {
        for way in &peer.figures.ways {
            let left = way.left.map_or("", |why| match why {
                AvoidReason::Late => "packets did not come",
                AvoidReason::Crowded => "crowded",
            });
            rows.add_row([
                peer.name.clone(),
                way.number.to_string(),
                way.came_datagrams.to_string(),
                way.marked_datagrams.to_string(),
                way.late_datagrams.to_string(),
                ms(way.rtt_s),
                way.long_flows.to_string(),
                left.to_owned(),
            ]);
        }
    }
    outln!("\n{rows}");
}
