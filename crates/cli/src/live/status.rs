//! `anabranch live status`: nodes, links and trees as they run; as tables, JSON or a page.

mod page;

use super::controller::OperatorArgs;
use anabranch_live::controller::wire::{NodeView, TreesView};
use anabranch_units::BitRate;
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use std::process::ExitCode;

/// Form of the status.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: OperatorArgs,
    /// Print one JSON object with nodes, links, streams, rounds and events, as the API has them.
    #[arg(long)]
    json: bool,
    /// Draw the trees on a page, for a browser on this machine, until Ctrl-C. The page is served at
    /// IP:PORT (127.0.0.1:7209 if left out) and below a path that nobody can guess: open what the
    /// command prints.
    #[arg(
        long,
        value_name = "IP:PORT",
        num_args = 0..=1,
        value_parser = crate::network::listen_address,
        default_missing_value = "127.0.0.1:7209",
        conflicts_with = "json"
    )]
    web: Option<std::net::SocketAddr>,
}

/// Shows the status.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let client = args.operator.client()?;
    crate::process::runtime()?.block_on(async {
        if let Some(listen) = args.web {
            return tokio::select! {
                served = page::serve(client, listen) => served.map(|()| ExitCode::SUCCESS),
                () = crate::process::asked_to_end() => Ok(ExitCode::SUCCESS),
            };
        }
        if args.json {
            outln!("{}", page::all(&client).await?);
        } else {
            let (nodes, trees) = (client.nodes().await?, client.trees().await?);
            show(&nodes, &trees);
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn table(header: &[&str], texts: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    table.column_iter_mut().skip(texts).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn show(nodes: &[NodeView], trees: &TreesView) {
    let mut rows = table(&["node", "tier", "state", "tables", "streams", "viewers"], 3);
    for node in nodes {
        let state = match (node.is_up, node.is_draining) {
            (false, _) => "away",
            (true, true) => "draining",
            (true, false) => "up",
        };
        rows.add_row([
            node.name.clone(),
            format!("{:?}", node.tier).to_lowercase(),
            state.to_owned(),
            node.version.clone(),
            node.streams.to_string(),
            node.viewers.to_string(),
        ]);
    }
    outln!("{rows}\n");
    let mut rows = table(&["link", "used", "capacity", "cost"], 1);
    for link in &trees.links {
        rows.add_row([
            format!("{} -> {}", link.from, link.to),
            BitRate::bps(link.used_bps).to_string(),
            if link.believed_bps == 0 {
                "failed".to_owned()
            } else {
                BitRate::bps(link.believed_bps).to_string()
            },
            link.cost.to_string(),
        ]);
    }
    outln!("{rows}\n");
    let mut rows = table(&["stream", "bitrate", "from", "to"], 4);
    for stream in &trees.streams {
        rows.add_row([
            format!("{}/{}", stream.channel, stream.rendition),
            BitRate::bps(stream.bitrate_bps).to_string(),
            stream.parent.clone(),
            stream.node.clone(),
        ]);
    }
    outln!("{rows}");
}
