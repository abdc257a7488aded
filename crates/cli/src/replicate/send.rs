//! `anabranch replicate send`: asks the controller for a transfer and watches it to its end.

use crate::network;
use anabranch_api::wire::{
    DestinationRequest, HopOverrideRequest, HopRequest, LinkName, SubmitRequest, TopologyView, TransferView,
};
use anabranch_api::{Client, WatchItem};
use anabranch_graph::{DELAY_MAX, LinkProperties, Place, Topology};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::control::{Priority, TransferId};
use anabranch_replicate::coordinator::{CorruptPolicy, EventKind, Outcome, SchemeChoice, Verdict};
use anabranch_replicate::name::normal;
use anabranch_units::text::printable;
use anabranch_units::{BitRate, ByteCount, Duration as Span};
use anyhow::Context as _;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Whom to ask.
#[derive(clap::Args)]
pub struct ControllerArgs {
    /// The controller.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7171")]
    pub controller: String,
    /// The folder with the operator's keys (and ca.pem), as `keys init` made it.
    #[arg(long, value_name = "DIR", default_value = "keys/replicate")]
    pub keys: PathBuf,
    /// Which operator.
    #[arg(long, value_name = "NAME", default_value = "operator")]
    pub operator: String,
}

impl ControllerArgs {
    /// A client with the operator's keys.
    ///
    /// Errors: keys that cannot be used, an address without port.
    pub fn client(&self) -> anyhow::Result<Client> {
        let files = CredentialFiles::in_set(&self.keys, System::Replicate, Role::Operator, &self.operator);
        Ok(Client::new(&self.controller, &Identity::load(&files)?, Duration::from_secs(10))?)
    }
}

/// What to send.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// The file, as the source's site daemon finds it below its --dir.
    #[arg(value_parser = FileName)]
    file: String,
    /// The site that holds it.
    #[arg(long, value_name = "SITE")]
    from: String,
    /// The sites that want it.
    #[arg(long, value_name = "SITE,SITE", value_delimiter = ',', required = true)]
    to: Vec<String>,
    /// Its name at the destinations, if not the same.
    #[arg(long = "as", value_name = "NAME", value_parser = FileName)]
    name: Option<String>,
    /// auto, coded, packed, steiner, steiner_store_and_forward, steiner_one_tree, multi_path or
    /// single_path.
    #[arg(long, default_value = "auto", value_parser = scheme)]
    scheme: SchemeChoice,
    /// Sites that must not be passed.
    #[arg(long, value_name = "SITE,SITE", value_delimiter = ',')]
    avoid_sites: Vec<String>,
    /// Links that must not be used, as FROM-TO.
    #[arg(long, value_name = "LINK,LINK", value_delimiter = ',')]
    avoid_links: Vec<String>,
    /// The most that the source sends, all copies together.
    #[arg(long, value_name = "RATE")]
    bwlimit: Option<BitRate>,
    /// TCP connections for each flow and hop: several fill a long or lossy one.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    stripes: u16,
    /// Congestion control on every hop, by the kernel's name (cubic, bbr, reno); the machines' default otherwise.
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// One hop run differently: `FROM-TO stripes=4 congestion-control=bbr`, either or both. Repeatable.
    #[arg(long, value_name = "HOP SETTINGS")]
    hop: Vec<String>,
    /// bulk, or fill: only what bulk transfers leave.
    #[arg(long, default_value = "bulk", value_parser = priority)]
    priority: Priority,
    /// Bytes of a packet between sites; what the slowest link sends in 10 ms otherwise, 4 to 64 KiB.
    #[arg(long, value_name = "SIZE")]
    symbol: Option<ByteCount>,
    /// Packets that each buffer holds.
    #[arg(long, value_name = "COUNT")]
    buffer_packets: Option<u16>,
    /// repair, or refuse: what to do if data arrives wrong.
    #[arg(long, default_value = "repair", value_parser = policy)]
    on_corrupt: CorruptPolicy,
    /// Fill what the plan's flows leave of the links with uncoded data of the lowest priority, here and where other
    /// transfers hold these up. Needs routers that keep DSCP LE behind AF11.
    #[arg(long, conflicts_with = "bwlimit")]
    fill: bool,
    /// Replace files that have its name at the destinations, whatever is in them. Else a destination with another file of that
    /// name is left as it is; one that has the very same file counts as done in any case.
    #[arg(long)]
    replace: bool,
    /// Show the plan and its predicted rate; send nothing.
    #[arg(long)]
    dry_run: bool,
    /// Return as soon as the transfer is accepted.
    #[arg(long, conflicts_with = "dry_run")]
    detach: bool,
    /// JSON: a line for each event, and one object at the end.
    #[arg(long)]
    json: bool,
}

/// A file's name, which has to be text to travel.
#[derive(Clone)]
struct FileName;

impl clap::builder::TypedValueParser for FileName {
    type Value = String;
    fn parse_ref(
        &self,
        _: &clap::Command,
        _: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        value.to_str().map(str::to_owned).ok_or_else(|| {
            let shown = value.to_string_lossy();
            let reason =
                format!("`{}`: this name is not UTF-8: rename the file to send it\n", printable(&shown));
            clap::Error::raw(clap::error::ErrorKind::InvalidUtf8, reason)
        })
    }
}

/// A word of the API's own vocabulary.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|e| e.to_string())
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

/// Runs it.
///
/// Errors: one line for the user. What became of the transfer is the exit code.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let client = args.controller.client()?;
    crate::process::runtime()?.block_on(async {
        let mut asked_to_end = std::pin::pin!(crate::process::asked_to_end());
        let view = tokio::select! {
            view = client.topology() => view?,
            () = &mut asked_to_end => {
                eprintln!("nothing was sent");
                return Ok(ExitCode::from(crate::exit::INTERRUPTED));
            }
        };
        let topology = topology_of(&view)?;
        let request = request(args, &topology)?;
        if args.dry_run {
            return dry_run(args, &topology);
        }
        // Not given up half way: a transfer whose number nobody knows could not be stopped.
        let id = client.submit(&request).await?;
        if args.detach {
            println!("{}", if args.json { format!("{{\"transfer\":{id}}}") } else { id.to_string() });
            return Ok(ExitCode::SUCCESS);
        }
        let watching = watch(&client, id, args.json, quiet);
        tokio::select! {
            result = watching => result,
            () = asked_to_end => {
                // Asked once, the sites stop; what they have stays and counts when it is sent again.
                client.cancel(id).await?;
                eprintln!("\ntransfer {id} stopped; run the same command again and it goes on from there");
                Ok(ExitCode::from(crate::exit::INTERRUPTED))
            }
        }
    })
}

fn request(args: &Args, topology: &Topology) -> anyhow::Result<SubmitRequest> {
    let name = |text: &str| anyhow::Ok(topology.site(network::site(topology, text)?).name.clone());
    normal(&args.file)?;
    let path = args.name.clone().unwrap_or_else(|| args.file.clone());
    normal(&path).context("--as")?;
    let to = args.to.iter().map(|s| anyhow::Ok(DestinationRequest { site: name(s)?, path: path.clone() }));
    let mut request = SubmitRequest::new(name(&args.from)?, &args.file, to.collect::<Result<Vec<_>, _>>()?);
    request.avoid_sites = args.avoid_sites.iter().map(|s| name(s)).collect::<Result<_, _>>()?;
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
    request.symbol_bytes = match args.symbol {
        Some(symbol) => u32::try_from(symbol.as_u64()).context("--symbol: at most 1 MiB")?,
        None => symbol_bytes(topology),
    };
    if let Some(packets) = args.buffer_packets {
        request.buffer_packets = packets;
    }
    request.on_corrupt = args.on_corrupt;
    request.fill = args.fill;
    request.replace = args.replace;
    Ok(request)
}

/// What `--hop` says: `usual`, but for what it names.
///
/// Errors: no such link, a setting that is unknown or has no value.
pub(crate) fn hop(text: &str, usual: &HopRequest, topology: &Topology) -> anyhow::Result<HopOverrideRequest> {
    let mut words = text.split_whitespace();
    let link = topology.link(topology.find_link(words.next().unwrap_or_default())?);
    let name = |s| topology.site(s).name.clone();
    let mut hop = usual.clone();
    let mut settings = words.peekable();
    anyhow::ensure!(
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
            _ => anyhow::bail!("--hop {text}: `{setting}`: must be stripes=COUNT or congestion-control=NAME"),
        }
    }
    Ok(HopOverrideRequest { link: LinkName { from: name(link.from), to: name(link.to) }, hop })
}

/// A packet's size where the user names none: every relay waits for whole packets, so large ones make a slow network's
/// pipeline long, and small ones cost headers and calls on a fast one.
fn symbol_bytes(topology: &Topology) -> u32 {
    let slowest = topology.links().iter().map(|l| l.properties.capacity.as_bps()).min().unwrap_or(0);
    let ten_ms = slowest / 8 / 100;
    (ten_ms / 4096 * 4096).clamp(4 << 10, 64 << 10) as u32
}

/// The controller's network as the planner wants it.
///
/// Errors: a network that contradicts itself.
pub(crate) fn topology_of(view: &TopologyView) -> anyhow::Result<Topology> {
    let mut topology = Topology::new(&view.name);
    for site in &view.sites {
        let place = site
            .latitude_deg
            .zip(site.longitude_deg)
            .map(|(latitude_deg, longitude_deg)| Place { latitude_deg, longitude_deg });
        topology.add_site(&site.name, place)?;
    }
    for link in &view.links {
        let (from, to) = (topology.find_site(&link.from)?, topology.find_site(&link.to)?);
        anyhow::ensure!(
            link.delay_us <= DELAY_MAX.as_us(),
            "link {} to {}: delay {} us: must be at most {DELAY_MAX}",
            link.from,
            link.to,
            link.delay_us
        );
        let mut properties =
            LinkProperties::new(BitRate::bps(link.capacity_bps), Span::from_us(link.delay_us));
        properties.cost = link.cost;
        topology.add_link(from, to, properties)?;
    }
    Ok(topology)
}

fn dry_run(args: &Args, topology: &Topology) -> anyhow::Result<ExitCode> {
    let scheme = serde_json::to_value(args.scheme)?;
    super::plan::show(
        topology,
        &args.from,
        &args.to,
        (&args.avoid_sites, &args.avoid_links),
        (scheme.as_str().unwrap_or("auto"), args.fill),
        args.json,
    )
}

/// What a watched transfer looks like at its end, for programs.
#[derive(serde::Serialize)]
struct Summary<'a> {
    event: &'static str,
    transfer: u64,
    outcome: Option<Outcome>,
    scheme: Option<String>,
    attempts: u32,
    length_bytes: Option<u64>,
    hash: Option<String>,
    /// From the first plan, which the sites are told at once, to the last destination's verdict.
    seconds: f64,
    /// Rate at which the slowest destination that has the file got it.
    rate_mbps: Option<f64>,
    planned_mbps: Option<f64>,
    bound_mbps: Option<f64>,
    verified: bool,
    corrupt: u64,
    suspects: &'a [String],
    congestion_controls: &'a [String],
    destinations: Vec<DestinationSummary<'a>>,
}

#[derive(serde::Serialize)]
struct DestinationSummary<'a> {
    site: &'a str,
    path: &'a str,
    verdict: Option<&'a Verdict>,
    seconds: Option<f64>,
    rate_mbps: Option<f64>,
}

async fn watch(client: &Client, id: TransferId, json: bool, quiet: bool) -> anyhow::Result<ExitCode> {
    let submitted = Instant::now();
    let mut told = None;
    let mut shown = Shown::new(json || quiet || !std::io::stderr().is_terminal(), quiet || json);
    let mut ended: BTreeMap<u16, f64> = BTreeMap::new();
    let mut last: Option<TransferView> = None;
    let sites = client.topology().await?.sites;
    let name =
        |site: u16| sites.iter().find(|s| s.id == site).map_or_else(|| site.to_string(), |s| s.name.clone());
    let mut watch = client.watch(id);
    while let Some(item) = watch.next().await? {
        match item {
            WatchItem::Status(view) => {
                shown.status(&view);
                last = Some(*view);
            }
            WatchItem::Event(event) => {
                if json {
                    println!("{}", serde_json::to_string(&event)?);
                }
                match &event.kind {
                    EventKind::Planned { .. } => {
                        told.get_or_insert_with(Instant::now);
                    }
                    EventKind::Verdict { site, .. } => {
                        let from = told.unwrap_or(submitted);
                        ended.entry(site.0).or_insert_with(|| from.elapsed().as_secs_f64());
                    }
                    EventKind::Progress { length_bytes, destinations } => {
                        for d in destinations {
                            shown.progress(&name(d.site.0), *length_bytes, d.verified_bytes, d.rate_bps);
                        }
                    }
                    _ => {}
                }
                shown.event(&event.kind, &name);
            }
        }
    }
    shown.end();
    let view = match last {
        Some(view) if view.outcome.is_some() => view,
        _ => client.status(id).await?,
    };
    let seconds_of = |site: &str| {
        let id = sites.iter().find(|s| s.name == site)?.id;
        ended.get(&id).copied()
    };
    let rate = |seconds: f64| view.length_bytes.map(|n| n as f64 * 8.0 / 1e6 / seconds.max(1e-9));
    let destinations: Vec<_> = view
        .destinations
        .iter()
        .map(|d| {
            let done = matches!(d.verdict, Some(Verdict::Done));
            let seconds = seconds_of(&d.site).filter(|_| done);
            DestinationSummary {
                site: &d.site,
                path: &d.path,
                verdict: d.verdict.as_ref(),
                seconds,
                rate_mbps: seconds.and_then(rate),
            }
        })
        .collect();
    let slowest = destinations
        .iter()
        .filter_map(|d| d.seconds)
        .fold(None, |m: Option<f64>, s| Some(m.map_or(s, |m| m.max(s))));
    let mbps = |bps: Option<u64>| bps.map(|b| b as f64 / 1e6);
    let summary = Summary {
        event: "summary",
        transfer: id.0,
        outcome: view.outcome,
        scheme: view.scheme.map(|s| s.to_string()),
        attempts: view.attempts,
        length_bytes: view.length_bytes,
        hash: view.hash.map(|h| h.to_string()),
        seconds: ended.values().copied().fold(0.0, f64::max),
        rate_mbps: slowest.and_then(rate),
        planned_mbps: mbps(view.planned_bps),
        bound_mbps: mbps(view.bound_bps),
        verified: view.outcome == Some(Outcome::Done),
        corrupt: view.corrupt,
        suspects: &view.suspects,
        congestion_controls: &view.congestion_controls,
        destinations,
    };
    if json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        print!("{}", table(&summary, &view));
    }
    if let Some(line) = trouble(&summary) {
        eprintln!("anabranch: {}", printable(&line));
    }
    Ok(ExitCode::from(view.exit_code.unwrap_or(1)))
}

/// What went wrong, in one line, where the transfer is not done.
fn trouble(summary: &Summary<'_>) -> Option<String> {
    let without: Vec<_> = summary
        .destinations
        .iter()
        .filter_map(|d| match d.verdict {
            None | Some(Verdict::Done) => None,
            Some(
                Verdict::Failed { reason } | Verdict::Unreachable { reason } | Verdict::Integrity { reason },
            ) => Some((d.site, reason)),
        })
        .collect();
    let (_, reason) = without.first()?;
    let names: Vec<_> = without.iter().map(|(site, _)| *site).collect();
    let more = if without.iter().any(|(_, r)| r != reason) { " (and others: see the table)" } else { "" };
    Some(format!(
        "transfer {}: {} of {} destinations without the file ({}): {reason}{more}",
        summary.transfer,
        without.len(),
        summary.destinations.len(),
        names.join(", ")
    ))
}

fn table(summary: &Summary<'_>, view: &TransferView) -> String {
    use std::fmt::Write as _;
    let mut rows = comfy_table::Table::new();
    rows.load_preset(comfy_table::presets::NOTHING);
    rows.set_header(["destination", "result", "time", "rate"]);
    for d in &summary.destinations {
        let result = match d.verdict {
            Some(Verdict::Done) => "verified".to_owned(),
            Some(Verdict::Failed { reason }) => format!("failed: {reason}"),
            Some(Verdict::Unreachable { reason }) => format!("unreachable: {reason}"),
            Some(Verdict::Integrity { reason }) => format!("refused: {reason}"),
            None => "-".to_owned(),
        };
        let time = d.seconds.map_or("-".into(), |s| format!("{s:.1} s"));
        let rate = d.rate_mbps.map_or("-".into(), |r| format!("{r:.1} Mbit/s"));
        rows.add_row([d.site.to_owned(), printable(&result).into_owned(), time, rate]);
    }
    let mut out = format!("{rows}\n");
    let length = view.length_bytes.map_or("-".into(), |n| ByteCount::new(n).to_string());
    let planned = |v: Option<f64>| v.map_or("-".into(), |r| format!("{r:.1} Mbit/s"));
    let _ = writeln!(
        out,
        "{length} by {}: planned {}, bound {}; {} attempt{}; congestion control {}, {} stripe{} a hop; BLAKE3 {}",
        summary.scheme.as_deref().unwrap_or("-"),
        planned(summary.planned_mbps),
        planned(summary.bound_mbps),
        summary.attempts,
        if summary.attempts == 1 { "" } else { "s" },
        summary.congestion_controls.join(" and "),
        view.hop.stripes,
        if view.hop.stripes == 1 { "" } else { "s" },
        summary.hash.as_deref().unwrap_or("-"),
    );
    if !summary.suspects.is_empty() {
        let _ = writeln!(out, "data was changed on its way by {}", summary.suspects.join(", "));
    }
    out
}

/// Progress on stderr: bars on a terminal, a line every few seconds elsewhere.
struct Shown {
    bars: MultiProgress,
    bar_of: BTreeMap<String, ProgressBar>,
    plain: bool,
    silent: bool,
    line_at: Instant,
}

/// How often a line is printed where bars cannot be.
const LINE_EVERY: Duration = Duration::from_secs(5);

impl Shown {
    fn new(plain: bool, silent: bool) -> Self {
        let (bars, bar_of) = (MultiProgress::new(), BTreeMap::new());
        Self { bars, bar_of, plain, silent, line_at: Instant::now() }
    }

    fn say(&self, line: &str) {
        if self.silent {
            return;
        }
        let line = printable(line);
        if self.plain {
            eprintln!("{line}");
        } else {
            let _ = self.bars.println(&*line);
        }
    }

    fn status(&mut self, view: &TransferView) {
        for d in &view.destinations {
            self.progress(&d.site, view.length_bytes.unwrap_or(0), d.verified_bytes, d.rate_bps);
        }
    }

    fn progress(&mut self, site: &str, length: u64, verified: u64, rate_bps: u64) {
        if self.silent || length == 0 {
            return;
        }
        if self.plain {
            if self.line_at.elapsed() >= LINE_EVERY || verified == length && !self.bar_of.contains_key(site) {
                let share = 100.0 * verified as f64 / length as f64;
                let size = ByteCount::new(verified);
                eprintln!("{site}: {share:.0} % ({size}), {}", BitRate::bps(rate_bps));
                self.line_at = Instant::now();
                if verified == length {
                    self.bar_of.insert(site.to_owned(), ProgressBar::hidden());
                }
            }
            return;
        }
        let bars = &self.bars;
        let bar = self.bar_of.entry(site.to_owned()).or_insert_with(|| {
            let style =
                ProgressStyle::with_template("{prefix:>16} [{bar:40}] {percent:>3} % {bytes:>11} {msg}")
                    .expect("the template is constant and right")
                    .progress_chars("=> ");
            bars.add(ProgressBar::new(length).with_style(style).with_prefix(site.to_owned()))
        });
        bar.set_length(length);
        bar.set_position(verified);
        let left = (rate_bps > 0).then(|| (length - verified.min(length)) * 8 / rate_bps);
        let left = left.map_or(String::new(), |s| format!(", {s} s left"));
        bar.set_message(format!("{}{left}", BitRate::bps(rate_bps)));
    }

    fn event(&self, kind: &EventKind, name: &dyn Fn(u16) -> String) {
        match kind {
            EventKind::Planned { scheme, rate, bound, with, .. } => {
                let with: Vec<_> = with.iter().map(|t| t.0.to_string()).collect();
                let with = match &with[..] {
                    [] => String::new(),
                    ids => format!(", together with transfer {}", ids.join(", ")),
                };
                self.say(&format!("planned: {scheme} at {rate} (bound {bound}){with}"));
            }
            EventKind::Stopped { reason } => self.say(&format!("stopped: {reason}")),
            EventKind::Suspected { site } => {
                self.say(&format!("{} changed data on its way and is avoided", name(site.0)));
            }
            EventKind::Postponed { site, reason } => {
                self.say(&format!("{} is left for later: {reason}", name(site.0)))
            }
            EventKind::Waiting { reason } => self.say(reason),
            EventKind::Verdict { site, verdict: Verdict::Done } => {
                self.say(&format!("{}: verified", name(site.0)))
            }
            _ => {}
        }
    }

    fn end(&self) {
        let _ = self.bars.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_is_run_as_usual_but_for_what_is_named() {
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

    /// #17: a delay of more than 213 days overflowed.
    #[test]
    fn a_controllers_link_may_take_an_hour_and_no_longer() {
        let site = |id, name: &str| anabranch_api::wire::SiteView {
            id,
            name: name.to_owned(),
            up: true,
            latitude_deg: None,
            longitude_deg: None,
        };
        let link = |delay_us| anabranch_api::wire::LinkView {
            id: 0,
            from: "a".to_owned(),
            to: "b".to_owned(),
            capacity_bps: 1_000_000,
            delay_us,
            cost: 1.0,
        };
        let read = |delay_us| {
            let sites = vec![site(0, "a"), site(1, "b")];
            topology_of(&TopologyView { name: "two".to_owned(), sites, links: vec![link(delay_us)] })
        };
        assert!(read(3_600_000_000).is_ok());
        for delay_us in [3_600_000_001, u64::MAX] {
            let said = read(delay_us).expect_err("too long").to_string();
            assert!(said.contains("link a to b: delay") && said.contains("must be at most 3600 s"), "{said}");
        }
    }
}
