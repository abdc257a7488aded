//! `anabranch replicate send`: submits a transfer to the controller and watches it to its end.

use super::ends::{Ends, follow, site_name};
use super::errors::ErrorsFile;
use super::watch::{Output, watch_view};
use crate::exit::OrUsage as _;
use crate::publication::PublishArgs;
use anabranch_graph::Topology;
use anabranch_pieces::name::directory;
use anabranch_replicate::wire::{HopOverrideRequest, HopRequest, LinkName, SubmitRequest};
use anabranch_replicate_proto::control::{DirectoryRules, Priority};
use anabranch_replicate_proto::coordinator::{CorruptPolicy, SchemeChoice, SubmitResult};
use anabranch_replicate_proto::plan::FileToSend;
use anabranch_units::text::printable;
use anabranch_units::{BitRate, ByteCount};
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The transfer, and settings of its hops.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    ends: Ends,
    /// Scheme of the plan. `auto` picks the best plan; the other schemes are for comparisons:
    /// coded, packed, steiner, steiner_store_and_forward, steiner_one_tree, multi_path, single_path
    /// (docs/replicate.md describes each).
    #[arg(long, default_value = "auto", value_parser = scheme)]
    scheme: SchemeChoice,
    /// Sites that the transfer must avoid.
    #[arg(long, value_name = "SITE,SITE", value_delimiter = ',')]
    avoid_sites: Vec<String>,
    /// Links that the transfer must avoid, each as FROM-TO: `paris-tokyo`.
    #[arg(long, value_name = "LINK,LINK", value_delimiter = ',')]
    avoid_links: Vec<String>,
    /// Maximum rate of the source over all copies, in bits per second (`10 Mbit/s`) or bytes per
    /// second (`10 MB/s`).
    #[arg(long, value_name = "RATE", value_parser = bandwidth)]
    bwlimit: Option<BitRate>,
    /// Number of TCP connections of each flow over each hop, 1 to 64. Several fill a long or lossy
    /// link better than one.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    stripes: u16,
    /// TCP congestion control on every hop, by the kernel's name (cubic, bbr, reno). Without: each
    /// machine's default.
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// Settings of one hop that differ: `"FROM-TO stripes=4 congestion-control=bbr"`, either or
    /// both. Repeatable.
    #[arg(long, value_name = "HOP SETTINGS")]
    hop: Vec<String>,
    /// `bulk`: shares links with other transfers. `fill`: takes only capacity that bulk transfers
    /// leave.
    #[arg(long, default_value = "bulk", value_parser = priority)]
    priority: Priority,
    /// Size of a packet between sites, such as `16 KiB`. Without: as many bytes as the slowest link
    /// sends in 10 ms, between 4 KiB and 64 KiB.
    #[arg(long, value_name = "SIZE")]
    symbol: Option<ByteCount>,
    /// Capacity of each buffer of a relay, in packets.
    #[arg(long, value_name = "COUNT")]
    buffer_packets: Option<u16>,
    /// Reaction to corrupt data. `repair`: send it again around the site that corrupted it.
    /// `refuse`: give the destination up.
    #[arg(long, default_value = "repair", value_parser = policy)]
    on_corrupt: CorruptPolicy,
    /// Send uncoded data of the lowest priority in the capacity that the plan's flows leave, also
    /// while other transfers delay these flows. Needs routers that keep DSCP LE behind AF11.
    #[arg(long, conflicts_with = "bwlimit")]
    fill: bool,
    /// Replace existing files of this name at the destinations, whatever their content. Without it,
    /// a destination with a different file of that name is left as it is; an identical file always
    /// counts as done. In a directory, files and links that other programs changed are overwritten,
    /// those in the way of a directory of the source are deleted, and `sync --delete` deletes such
    /// entries, too.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    publish: PublishArgs,
    #[command(flatten)]
    ending: Ending,
}

/// How far the command goes, and its report.
#[derive(clap::Args)]
struct Ending {
    /// Show the plan, its rate, the duration and the bytes on each link, and of a directory what
    /// would change at each destination. Change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Return as soon as the transfer is accepted, with its number; `wait` waits for its end.
    #[arg(long, conflicts_with = "dry_run")]
    detach: bool,
    /// Write the entries that were left to this file, and the destinations without the data: a line
    /// for each, with site, cause and path or reason, separated by tabs. An existing file is
    /// replaced.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "detach"])]
    errors: Option<PathBuf>,
}

impl Args {
    /// The file or the directory, as the user named it.
    pub(super) fn file(&self) -> &str {
        self.ends.file()
    }
}

/// Parses a word of the API's vocabulary.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|e| e.to_string())
}
/// Parses a rate in bits or bytes per second. Other tools disagree by a factor of eight about
/// `10M`, so it is refused.
fn bandwidth(text: &str) -> Result<BitRate, String> {
    let text = text.trim();
    if let Some(bytes) = text.strip_suffix("/s").filter(|bytes| bytes.ends_with('B')) {
        let bytes: ByteCount = bytes.parse().map_err(|_| format!("`{text}`: write it as in `10 MB/s`"))?;
        let bps = bytes.as_u64().checked_mul(8).ok_or_else(|| format!("`{text}`: too large"))?;
        return Ok(BitRate::bps(bps));
    }
    text.parse().map_err(|error: anabranch_units::ParseQuantityError| {
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
        match (number.parse::<f64>(), text[number.len()..].trim().to_uppercase().as_str()) {
            (Ok(_), prefix @ ("" | "K" | "M" | "G" | "T")) => {
                let prefix = if prefix == "K" { "k" } else { prefix };
                format!("bits or bytes a second? write `{number} {prefix}bit/s` or `{number} {prefix}B/s`")
            }
            _ => error.to_string(),
        }
    })
}
fn scheme(text: &str) -> Result<SchemeChoice, String> {
    word(text)
}
fn priority(text: &str) -> Result<Priority, String> {
    word(text)
}
fn policy(text: &str) -> Result<CorruptPolicy, String> {
    word(text)
}

/// Runs the command.
///
/// Errors: one line for the user. The exit code tells the transfer's outcome.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    run_with(args, DirectoryRules::default(), quiet)
}

/// Runs the command with these rules and the filter of its options.
///
/// Errors: see [`run`].
pub(super) fn run_with(args: &Args, rules: DirectoryRules, quiet: bool) -> anyhow::Result<ExitCode> {
    let publish = args.publish.publication()?;
    ensure_usage!(
        publish.is_each() || directory(args.file()).is_some(),
        "`{}`: --publish snapshot is for a directory, whose name ends with a slash",
        printable(args.file())
    );
    let (filter, metadata) = (args.ends.filter_rules()?, args.ends.metadata_rules()?);
    let rules = DirectoryRules { filter, publish, metadata, ..rules };
    let client = args.ends.client()?;
    let output = Output { json: args.ends.json, quiet };
    crate::process::runtime()?.block_on(async {
        let mut asked_to_end = std::pin::pin!(crate::process::asked_to_end());
        let nothing_sent = || {
            errln!("nothing was sent");
            Ok(ExitCode::from(crate::exit::INTERRUPTED))
        };
        let view = tokio::select! {
            view = client.topology() => view?,
            () = &mut asked_to_end => return nothing_sent(),
        };
        let topology = view.topology()?;
        let request = request(args, rules, &topology).or_usage()?;
        if args.ending.dry_run && directory(args.file()).is_some() {
            return super::check::dry_run(&client, &request, output, |size| {
                show_plan(args, &topology, &request, size)
            })
            .await;
        }
        if args.ending.dry_run {
            let length = tokio::select! {
                length = client.ask_source(&request) => length?,
                () = &mut asked_to_end => return nothing_sent(),
            };
            return show_plan(args, &topology, &request, ByteCount::new(length));
        }
        // The file is created now, so that a mistake in its name shows before anything is sent.
        let errors = args.ending.errors.as_deref().map(ErrorsFile::create).transpose().or_usage()?;
        // Not interrupted half way: a transfer with an unknown number could not be stopped.
        let submitted = client.submit_or_attach(&request).await?;
        let (SubmitResult::New(id) | SubmitResult::Attached(id)) = submitted;
        if args.ending.detach {
            let is_attached = submitted == SubmitResult::Attached(id);
            match output.json {
                true => outln!("{}", serde_json::json!({ "transfer": id, "attached": is_attached })),
                false => outln!("{id}"),
            }
            return Ok(ExitCode::SUCCESS);
        }
        let ended = follow(&client, submitted, output, watch_view(&client, id, output)).await?;
        let Some((view, outcome)) = ended else { return Ok(ExitCode::from(crate::exit::INTERRUPTED)) };
        errors.map_or(Ok(()), |errors| errors.write(&view))?;
        Ok(ExitCode::from(outcome.exit_code()))
    })
}

fn request(args: &Args, rules: DirectoryRules, topology: &Topology) -> anyhow::Result<SubmitRequest> {
    let mut request = args.ends.request(rules, topology)?;
    request.avoid_sites =
        args.avoid_sites.iter().map(|s| site_name(topology, s)).collect::<Result<_, _>>()?;
    for text in &args.avoid_links {
        let link = topology.link(topology.find_link(text)?);
        let name = |s| topology.site(s).name.clone();
        request.avoid_links.push(LinkName { from: name(link.from), to: name(link.to) });
    }
    request.scheme = args.scheme;
    request.bandwidth_limit = args.bwlimit;
    request.hop = HopRequest {
        stripes: args.stripes,
        congestion_control: args.congestion_control.clone(),
        priority: args.priority,
    };
    for text in &args.hop {
        request.hop_overrides.push(hop(text, &request.hop, topology)?);
    }
    if let Some(symbol) = args.symbol {
        request.symbol_bytes = u32::try_from(symbol.as_u64()).context("--symbol: at most 1 MiB")?;
    }
    if let Some(packets) = args.buffer_packets {
        request.buffer_packets = packets;
    }
    request.on_corrupt = args.on_corrupt;
    request.fill = args.fill;
    request.replace = args.replace;
    Ok(request)
}

/// Parses a `--hop` option; settings that it does not name are `usual`.
///
/// Errors: no such link, a setting that is unknown or has no value.
pub(crate) fn hop(text: &str, usual: &HopRequest, topology: &Topology) -> anyhow::Result<HopOverrideRequest> {
    let mut words = text.split_whitespace();
    let link = topology.link(topology.find_link(words.next().unwrap_or_default())?);
    let name = |s| topology.site(s).name.clone();
    let mut hop = usual.clone();
    let mut settings = words.peekable();
    ensure_usage!(
        settings.peek().is_some(),
        "--hop {text}: add stripes=COUNT, congestion-control=NAME or both"
    );
    for setting in settings {
        match setting.split_once('=') {
            Some(("stripes", count)) => {
                hop.stripes =
                    count.parse().with_context(|| format!("--hop {text}: stripes `{count}`: 1 to 64"))?;
            }
            Some(("congestion-control", name)) if !name.is_empty() => {
                hop.congestion_control = Some(name.to_owned());
            }
            _ => bail_usage!("--hop {text}: `{setting}`: must be stripes=COUNT or congestion-control=NAME"),
        }
    }
    Ok(HopOverrideRequest { link: LinkName { from: name(link.from), to: name(link.to) }, hop })
}

/// Shows the plan for `size` bytes.
fn show_plan(
    args: &Args,
    topology: &Topology,
    request: &SubmitRequest,
    size: ByteCount,
) -> anyhow::Result<ExitCode> {
    let scheme = serde_json::to_value(args.scheme)?;
    if !args.ends.json {
        outln!(
            "{} at {}: {}\n",
            printable(&request.source_path),
            printable(&request.source),
            crate::formats::size(size)
        );
    }
    super::plan::show(
        topology,
        &args.ends.from,
        &args.ends.to,
        (&args.avoid_sites, &args.avoid_links),
        (scheme.as_str().unwrap_or("auto"), args.fill),
        FileToSend { size, limit: args.bwlimit },
        args.ends.json,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_runs_as_usual_except_for_named_settings() {
        let topology = anabranch_graph::builtin::builtin("butterfly", BitRate::mbps(10)).expect("built in");
        let usual = HopRequest { stripes: 2, ..HopRequest::default() };
        let site = |i: u16| topology.site(anabranch_units::SiteId(i)).name.clone();
        let name = format!("{}-{}", site(0), site(1));
        let given = hop(&format!("{name} congestion-control=bbr"), &usual, &topology).expect("good");
        assert_eq!(given.link, LinkName { from: site(0), to: site(1) });
        assert_eq!((given.hop.stripes, given.hop.congestion_control.as_deref()), (2, Some("bbr")));
        assert_eq!(hop(&format!("{name} stripes=8"), &usual, &topology).expect("good").hop.stripes, 8);
        for bad in
            ["", &name, "nowhere-else stripes=1", &format!("{name} stripes=x"), &format!("{name} mtu=1")]
        {
            assert!(hop(bad, &usual, &topology).is_err(), "{bad}");
        }
    }

    /// #17: `100 MB/s` was refused without a hint about bytes, and so was `10M`, which means bytes
    /// in rclone and rsync.
    #[test]
    fn ambiguous_limit_is_refused_with_both_meanings() {
        for (text, mbps) in [("10 Mbit/s", 10), ("100 MB/s", 800), ("1MB/s", 8), (" 1 GB/s ", 8_000)] {
            assert_eq!(bandwidth(text), Ok(BitRate::mbps(mbps)), "{text}");
        }
        assert_eq!(bandwidth("1 MiB/s"), Ok(BitRate::bps(8 << 20)));
        for (text, both) in [
            ("10M", "write `10 Mbit/s` or `10 MB/s`"),
            ("10k", "write `10 kbit/s` or `10 kB/s`"),
            ("1.5 g", "write `1.5 Gbit/s` or `1.5 GB/s`"),
            ("10", "write `10 bit/s` or `10 B/s`"),
        ] {
            let said = bandwidth(text).expect_err(text);
            assert!(said.contains(both), "{said}");
        }
        for bad in ["", "fast", "x MB/s", "-1 MB/s", "10 Mfurlong/s", "99999999999 TB/s"] {
            let said = bandwidth(bad).expect_err(bad);
            assert!(!said.contains('\n'), "{said}");
        }
    }
}
