//! `anabranch replicate status`: how transfers stand, as a table, JSON or a page; and stopping one.

mod page;

use super::send::ControllerArgs;
use super::watch::{Output, watch};
use anabranch_api::wire::SiteView;
use anabranch_replicate::control::TransferId;
use anabranch_units::ByteCount;
use anabranch_units::text::printable;
use std::process::ExitCode;

/// Which.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// One transfer; all of them otherwise.
    transfer: Option<u64>,
    /// Stop it. What has arrived is kept.
    #[arg(long, requires = "transfer")]
    cancel: bool,
    /// Follow it to its end, as `send` does. Ctrl-C ends following, not the transfer.
    #[arg(long, requires = "transfer", conflicts_with_all = ["cancel", "web"])]
    follow: bool,
    /// The sites instead: which are up.
    #[arg(long, conflicts_with_all = ["transfer", "web"])]
    sites: bool,
    /// JSON, as the API has it.
    #[arg(long)]
    json: bool,
    /// Show all of them, as they happen, on a page for a browser on this machine.
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:7170",
        conflicts_with_all = ["transfer", "json"]
    )]
    web: Option<std::net::SocketAddr>,
}

/// Which sites are up.
fn sites(sites: &[SiteView], json: bool) -> anyhow::Result<ExitCode> {
    if json {
        println!("{}", serde_json::to_string(sites)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = comfy_table::Table::new();
    rows.load_preset(comfy_table::presets::NOTHING).set_header(["site", "state"]);
    for site in sites {
        rows.add_row([printable(&site.name).as_ref(), if site.up { "up" } else { "away" }]);
    }
    println!("{}", rows.trim_fmt());
    Ok(ExitCode::SUCCESS)
}

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let client = args.controller.client()?;
    crate::process::runtime()?.block_on(async {
        if let Some(listen) = args.web {
            return tokio::select! {
                served = page::serve(client, listen) => served.map(|()| ExitCode::SUCCESS),
                () = crate::process::asked_to_end() => Ok(ExitCode::SUCCESS),
            };
        }
        if let (Some(id), true) = (args.transfer, args.follow) {
            return tokio::select! {
                result = watch(&client, TransferId(id), Output { json: args.json, quiet }) => result,
                () = crate::process::asked_to_end() => {
                    eprintln!("\ntransfer {id} goes on");
                    Ok(ExitCode::from(crate::exit::INTERRUPTED))
                }
            };
        }
        if args.sites {
            return sites(&client.topology().await?.sites, args.json);
        }
        if let (Some(id), true) = (args.transfer, args.cancel) {
            client.cancel(TransferId(id)).await?;
        }
        let views = match args.transfer {
            Some(id) => vec![client.status(TransferId(id)).await?],
            None => client.statuses().await?,
        };
        if args.json {
            println!("{}", serde_json::to_string(&views)?);
            return Ok(ExitCode::SUCCESS);
        }
        let mut rows = comfy_table::Table::new();
        rows.load_preset(comfy_table::presets::NOTHING);
        rows.set_header(["transfer", "from", "file", "size", "scheme", "state", "destinations"]);
        for view in views {
            let word = |v: serde_json::Value| v.as_str().unwrap_or("-").to_owned();
            let state = match view.outcome {
                Some(outcome) => word(serde_json::to_value(outcome)?),
                None => word(serde_json::to_value(view.phase)?),
            };
            let share = |verified: u64| match view.length_bytes {
                Some(length) if length > 0 => format!("{:.0} %", 100.0 * verified as f64 / length as f64),
                _ => "-".to_owned(),
            };
            let to: Vec<_> =
                view.destinations.iter().map(|d| format!("{} {}", d.site, share(d.verified_bytes))).collect();
            let with: Vec<_> = view.planned_with.iter().map(u64::to_string).collect();
            let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(", ")) };
            rows.add_row([
                view.id.to_string(),
                view.source,
                printable(&view.source_path).into_owned(),
                view.length_bytes.map_or("-".into(), |n| ByteCount::new(n).to_string()),
                view.scheme.map_or("-".into(), |s| format!("{s}{with}")),
                state,
                to.join(", "),
            ]);
        }
        println!("{rows}");
        Ok(ExitCode::SUCCESS)
    })
}
