//! `anabranch replicate status`: status of transfers, sites and links, as a table, JSON or a page;
//! and stopping a transfer.

mod page;

use super::ends::ControllerArgs;
use super::watch::{Output, watch};
use crate::formats::{fitted, size};
use anabranch_replicate::wire::{LinkView, SiteView, TransferView};
use anabranch_replicate_proto::control::TransferId;
use anabranch_replicate_proto::coordinator::Verdict;
use anabranch_units::text::printable;
use anabranch_units::{BitRate, ByteCount, time_in_words};
use std::process::ExitCode;

/// The transfers, and the form of the status.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// Number of a transfer. Without: the newest 20.
    transfer: Option<u64>,
    /// Stop the transfer. Received data is kept.
    #[arg(long, requires = "transfer")]
    cancel: bool,
    /// List all transfers instead of the newest 20.
    #[arg(long, conflicts_with_all = ["transfer", "web", "sites", "links"])]
    all: bool,
    /// Follow the transfer to its end, as `send` does. Ctrl-C ends following, not the transfer.
    #[arg(long, requires = "transfer", conflicts_with_all = ["cancel", "web"])]
    follow: bool,
    /// List the sites and their state instead.
    #[arg(long, conflicts_with_all = ["transfer", "web"])]
    sites: bool,
    /// List the links instead: the capacity in the topology, the rate that transfers of the last
    /// hour measured, and the capacity that plans use.
    #[arg(long, conflicts_with_all = ["transfer", "web", "sites"])]
    links: bool,
    /// Print JSON, as in the API: all transfers, oldest first.
    #[arg(long)]
    json: bool,
    /// Show all transfers live on a page, for a browser on this machine.
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:7170",
        conflicts_with_all = ["transfer", "json"]
    )]
    web: Option<std::net::SocketAddr>,
}

/// Prints the sites and their state.
fn sites(sites: &[SiteView], json: bool) -> anyhow::Result<ExitCode> {
    if json {
        outln!("{}", serde_json::to_string(sites)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = comfy_table::Table::new();
    rows.load_preset(comfy_table::presets::NOTHING).set_header(["site", "state"]);
    for site in sites {
        rows.add_row([printable(&site.name).as_ref(), if site.up { "up" } else { "away" }]);
    }
    outln!("{}", rows.trim_fmt());
    Ok(ExitCode::SUCCESS)
}

/// Prints the links and their capacities.
fn links(links: &[LinkView], json: bool) -> anyhow::Result<ExitCode> {
    if json {
        outln!("{}", serde_json::to_string(links)?);
    } else {
        out!("{}", links_table(links));
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the links, those with a wrong capacity first.
fn links_table(links: &[LinkView]) -> String {
    let is_wrong = |link: &&LinkView| link.in_plans_bps() != link.capacity_bps;
    let (wrong, right): (Vec<_>, Vec<_>) = links.iter().partition(is_wrong);
    let mut rows = comfy_table::Table::new();
    rows.load_preset(comfy_table::presets::NOTHING);
    rows.set_header(["from", "to", "declared", "carried", "in plans", ""]);
    for link in wrong.iter().chain(&right) {
        let least = if link.is_limit { "" } else { "at least " };
        let carried = link.carried_bps.map(|bps| format!("{least}{}", BitRate::bps(bps)));
        rows.add_row([
            printable(&link.from).into_owned(),
            printable(&link.to).into_owned(),
            BitRate::bps(link.capacity_bps).to_string(),
            carried.unwrap_or_else(|| "-".to_owned()),
            BitRate::bps(link.in_plans_bps()).to_string(),
            if is_wrong(link) { "correct the topology" } else { "" }.to_owned(),
        ]);
    }
    format!("{}\n", rows.trim_fmt())
}

/// Runs the command.
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
                    errln!("\ntransfer {id} goes on");
                    Ok(ExitCode::from(crate::exit::INTERRUPTED))
                }
            };
        }
        if args.sites {
            return sites(&client.topology().await?.sites, args.json);
        }
        if args.links {
            return links(&client.topology().await?.links, args.json);
        }
        if let (Some(id), true) = (args.transfer, args.cancel) {
            client.cancel(TransferId(id)).await?;
        }
        let views = match args.transfer {
            Some(id) => vec![client.status(TransferId(id)).await?],
            None => client.statuses().await?,
        };
        if args.json {
            outln!("{}", serde_json::to_string(&views)?);
            return Ok(ExitCode::SUCCESS);
        }
        out!("{}", table(views, args.all || args.transfer.is_some(), now_unix_ms()));
        Ok(ExitCode::SUCCESS)
    })
}

/// Number of transfers listed without `--all`.
const LISTED: usize = 20;
/// Maximum characters of a file's name in a row.
const NAME_CHARS: usize = 40;
/// Maximum number of destinations named in a row.
const TO_NAMED: usize = 4;

fn now_unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// Formats the transfers, newest first, with the number left out and, for a single one, its last
/// trouble below.
fn table(mut views: Vec<TransferView>, all: bool, now_ms: u64) -> String {
    let found = views.len();
    views.reverse();
    if !all {
        views.truncate(LISTED);
    }
    let mut rows = comfy_table::Table::new();
    rows.load_preset(comfy_table::presets::NOTHING);
    rows.set_header([
        "transfer",
        "from",
        "file",
        "size",
        "scheme",
        "state",
        "began (UTC)",
        "took",
        "destinations",
    ]);
    rows.add_rows(views.iter().map(|view| row(view, now_ms)));
    let mut out = format!("{}\n", rows.trim_fmt());
    if views.len() < found {
        out.push_str(&format!("the newest {} of {found}: --all lists the others, too\n", views.len()));
    }
    if let [view] = &views[..] {
        for d in &view.destinations {
            let ended = d.verdict.as_ref().filter(|v| **v != Verdict::Done).map(Verdict::in_words);
            if let Some(why) = ended.or(d.away.clone()) {
                out.push_str(&format!("{}: {}\n", printable(&d.site), printable(&why)));
            }
        }
    }
    out
}

fn row(view: &TransferView, now_ms: u64) -> [String; 9] {
    // One-word names of the API, as text.
    let word = |v: Result<serde_json::Value, _>| match v {
        Ok(serde_json::Value::String(word)) => word.replace('_', " "),
        _ => "-".to_owned(),
    };
    let state = view
        .outcome
        .map_or_else(|| word(serde_json::to_value(view.phase)), |o| word(serde_json::to_value(o)));
    let share = |verified: u64| match view.length_bytes {
        Some(length) if length > 0 => format!(" {} %", u128::from(verified) * 100 / u128::from(length)),
        _ => String::new(),
    };
    let to = view.destinations.iter().take(TO_NAMED);
    let to: Vec<_> = to.map(|d| format!("{}{}", printable(&d.site), share(d.verified_bytes))).collect();
    let more = match view.destinations.len().saturating_sub(TO_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let with: Vec<_> = view.planned_with.iter().map(u64::to_string).collect();
    let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(", ")) };
    let took = view.began_unix_ms.map_or("-".to_owned(), |began| {
        let took = |end: u64| time_in_words(std::time::Duration::from_millis(end.saturating_sub(began)));
        view.ended_unix_ms.map_or_else(|| format!("{} so far", took(now_ms)), took)
    });
    [
        view.id.to_string(),
        printable(&view.source).into_owned(),
        fitted(&printable(&view.source_path), NAME_CHARS),
        view.length_bytes.map_or("-".into(), |n| size(ByteCount::new(n)).to_string()),
        view.scheme.map_or("-".into(), |s| format!("{s}{with}")),
        state,
        view.began_unix_ms.and_then(utc).unwrap_or_else(|| "-".to_owned()),
        took,
        format!("{}{more}", to.join(", ")),
    ]
}

/// Formats a date and time of day.
fn utc(unix_ms: u64) -> Option<String> {
    let at = time::OffsetDateTime::from_unix_timestamp(i64::try_from(unix_ms / 1_000).ok()?).ok()?;
    let (date, month) = (at.date(), u8::from(at.month()));
    let day = format!("{:04}-{month:02}-{:02}", date.year(), date.day());
    Some(format!("{day} {:02}:{:02}:{:02}", at.hour(), at.minute(), at.second()))
}

#[cfg(test)]
pub(super) mod tests;
