//! `anabranch demo`: one file from one site to several over an emulated network, by one scheme after the other.
//!
//! Everything is real but the wires: a controller and a daemon at each site, as processes of their own in network
//! namespaces, moving a file over TLS and the kernel's TCP. Each scheme gets a fresh network, so that its lateness is its
//! own. Copies are compared with the source's file here, besides the sites' own checks.

use crate::network::{self, TopologyArgs};
use crate::run_dir::RunDir;
use crate::stage::{Stage, events, make_file, make_keys};
use anabranch_emu::{Emulation, EmulationOptions, Report};
use anabranch_graph::Topology;
use anabranch_pieces::FileHash;
use anabranch_replicate_proto::draw::{self, Theme, ThroughputSeries};
use anabranch_replicate_proto::plan::{Planner, Request};
use anabranch_units::{BitRate, ByteCount, Duration as Span, SiteId};
use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What to show.
#[derive(clap::Args)]
pub struct Args {
    /// The network: a built-in one (`anabranch topologies` lists them), or a .toml or .graphml file.
    #[arg(long, short, value_name = "NAME|FILE", default_value = "internet2")]
    topology: String,
    /// Rate of links for which the topology says none.
    #[arg(long, value_name = "RATE", default_value = "10 Mbit/s")]
    rate: BitRate,
    /// The site that holds the file. Without: the first, or in a built-in network one from which the schemes differ.
    #[arg(long, value_name = "SITE")]
    from: Option<String>,
    /// The destinations. Without: as for --from.
    #[arg(long, value_name = "SITE,SITE", value_delimiter = ',')]
    to: Vec<String>,
    /// Size of the file.
    #[arg(long, value_name = "SIZE", default_value = "32 MiB")]
    size: ByteCount,
    /// The schemes to run, in this order.
    #[arg(
        long,
        value_name = "SCHEME,SCHEME",
        value_delimiter = ',',
        default_value = "auto,coded,packed,steiner,multi_path,single_path",
        value_parser = ["auto", "coded", "packed", "steiner", "steiner_store_and_forward", "steiner_one_tree", "multi_path", "single_path"]
    )]
    schemes: Vec<String>,
    /// TCP congestion control on every hop, by the kernel's name, as bbr. Without: the machine's default.
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// TCP connections for each flow and hop.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    stripes: u16,
    /// Bytes of a packet between sites. Without: those that a link sends in 10 ms.
    #[arg(long, value_name = "SIZE")]
    symbol: Option<ByteCount>,
    /// The folder to make for the pictures and figures. Without: the first of runs/demo-1, runs/demo-2 and so on that is not
    /// there yet.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object for each scheme.
    #[arg(long)]
    json: bool,
}

/// What one scheme did, in the order of the table's columns.
#[derive(Clone, Debug, serde::Serialize)]
struct Row {
    scheme: String,
    /// What `auto` took; else the scheme itself.
    ran: String,
    /// Of the slowest destination, from start to verified.
    rate_mbps: f64,
    bound_mbps: f64,
    planned_mbps: f64,
    share_of_bound: f64,
    verified: bool,
    took_s: f64,
    congestion_control: String,
    source_sent_bytes: u64,
    links_sent_bytes: u64,
    lateness_us_p99: f64,
    trusted: bool,
    why: Vec<String>,
}

/// Rate at the slowest destination over time.
type Points = Vec<(Span, BitRate)>;

/// Instances that show something, where the user names none.
fn instance(topology: &str) -> (&'static str, &'static [&'static str]) {
    match topology {
        // The cheapest tree blocks every second one: no greedy packing reaches the min-cut (2), whatever its ties.
        "internet2" => ("4", &["2", "3", "8"]),
        "b4" => ("0", &["3", "6", "12"]),
        // Packing reaches 1.5, coding 2.
        "butterfly" => ("0", &["5", "6"]),
        _ => ("0", &[]),
    }
}

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let topology = TopologyArgs { topology: args.topology.clone(), rate: args.rate }.load()?;
    let (from, to) = instance(&args.topology);
    let source = topology.find_site(args.from.as_deref().unwrap_or(from))?;
    let to: Vec<String> = match &args.to[..] {
        [] => to.iter().map(|s| (*s).to_owned()).collect(),
        given => given.to_vec(),
    };
    ensure!(!to.is_empty(), "--to: name the sites that want the file, as in --to 2,3,5");
    let destinations = network::sites(&topology, &to)?;
    let planner = Planner::new(Request::new(&topology, source, destinations.clone()))?;
    let comparison = planner.compare()?;
    let name = |s: SiteId| topology.site(s).name.as_str();
    let mut run = match &args.out {
        Some(out) => RunDir::claim(out)?,
        None => RunDir::claim_next(Path::new("runs/demo"))?,
    };
    let out = run.path().to_owned();
    // Files and logs of all sites; kept only where something went wrong.
    let work = out.join("work");
    std::fs::create_dir(&work)?;
    let keys = work.join("keys");
    make_keys(&topology, &keys)?;
    let file = work.join("file.bin");
    let hash = make_file(&file, args.size)?;

    if !quiet {
        let to: Vec<_> = destinations.iter().map(|d| name(*d)).collect();
        eprintln!(
            "{}: {} from {} to {}, links of {}; no scheme can be faster than {}",
            topology.name(),
            args.size,
            name(source),
            to.join(", "),
            planner.link_unit(),
            planner.bound(),
        );
        eprintln!("{}; {}", comparison.reason, comparison.coding_gain);
    }
    let auto = planner.auto()?.chosen.plan;
    run.write("topology.toml", anabranch_graph::file::toml::write(&topology))?;
    const THEMES: [(&str, Theme); 2] = [("", Theme::Light), ("-dark", Theme::Dark)];
    for (end, theme) in THEMES {
        run.write(&format!("plan{end}.svg"), draw::svg(&topology, Some(&auto), theme))?;
    }
    let show = Show {
        topology: &topology,
        source,
        destinations: &destinations,
        work: &work,
        keys: &keys,
        file: &file,
        hash,
        args,
    };
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for scheme in &args.schemes {
        let (row, report, points) = show.play(scheme, quiet)?;
        run.row(&row)?;
        run.emulation(scheme, &report)?;
        if args.json {
            println!("{}", serde_json::to_string(&row)?);
        }
        let whole = row.verified.then(|| {
            let rate = BitRate::bps((row.rate_mbps * 1e6) as u64);
            (rate, Span::from_std(Duration::from_secs_f64(row.took_s)))
        });
        series.push(ThroughputSeries { name: scheme.clone(), points, whole });
        rows.push(row);
    }
    let title = format!("{}: rate at the slowest destination", topology.name());
    for (end, theme) in THEMES {
        let chart = draw::throughput_svg(&title, &series, Some(planner.bound()), theme);
        run.write(&format!("throughput{end}.svg"), &chart)?;
    }
    let fine = rows.iter().all(|r| r.verified);
    if fine {
        std::fs::remove_dir_all(&work)?;
    }
    let (command, mut config) = crate::arguments();
    config["from"] = name(source).into();
    config["to"] = destinations.iter().map(|d| name(*d)).collect();
    // Of the emulator; the file's bytes are the same in every run.
    run.finish(&command, config, Some(EmulationOptions::default().seed))?;
    if !args.json {
        print!("{}", table(&rows));
    }
    if !quiet {
        eprintln!("pictures (plan.svg, throughput.svg) and figures: {}", out.display());
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(rows: &[Row]) -> String {
    let coded = rows.iter().find(|r| r.scheme == "coded").map(|r| r.rate_mbps);
    let mut out = comfy_table::Table::new();
    out.load_preset(comfy_table::presets::NOTHING);
    out.set_header([
        "scheme",
        "rate",
        "of bound",
        "to coded",
        "time",
        "copies",
        "sent",
        "congestion control",
        "lateness p99",
    ]);
    for r in rows {
        let scheme = if r.scheme == r.ran { r.scheme.clone() } else { format!("{} ({})", r.scheme, r.ran) };
        out.add_row([
            scheme,
            format!("{:.2} Mbit/s", r.rate_mbps),
            format!("{:.0} %", 100.0 * r.share_of_bound),
            coded.map_or("-".into(), |c| format!("{:.2}", r.rate_mbps / c)),
            format!("{:.1} s", r.took_s),
            if r.verified { "verified".into() } else { "NOT VERIFIED".to_owned() },
            ByteCount::new(r.source_sent_bytes).to_string(),
            r.congestion_control.clone(),
            format!("{:.0} us{}", r.lateness_us_p99, if r.trusted { "" } else { " (not to be trusted)" }),
        ]);
    }
    let mut text = format!("{out}\n");
    for r in rows.iter().filter(|r| !r.trusted) {
        text.push_str(&format!("{}: do not trust these figures: {}\n", r.scheme, r.why.join("; ")));
    }
    text
}

/// What all schemes have in common.
struct Show<'a> {
    topology: &'a Topology,
    source: SiteId,
    destinations: &'a [SiteId],
    work: &'a Path,
    keys: &'a Path,
    file: &'a Path,
    hash: FileHash,
    args: &'a Args,
}

/// Over how long the rates of the picture are taken.
const WINDOW: Duration = Duration::from_millis(1_900);

impl Show<'_> {
    /// Runs one scheme on a network of its own.
    fn play(&self, scheme: &str, quiet: bool) -> anyhow::Result<(Row, Report, Points)> {
        let stage = Stage {
            topology: self.topology.clone(),
            folder: self.work.join(scheme),
            keys: self.keys.to_owned(),
            controller: self.source,
            fill: false,
            patience: None,
            joint: None,
        };
        stage.make_folders()?;
        std::fs::hard_link(self.file, stage.site_folder(self.source).join("file.bin"))?;
        let options = EmulationOptions::default();
        let emulation = Emulation::start(&self.topology.with_ways_back()?, options)?;
        let daemons = stage.start_daemons(&emulation)?;
        let bar = ProgressBar::new(self.args.size.as_u64());
        if quiet {
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{prefix:>12} [{bar:40}] {percent:>3} % {msg}");
        bar.set_style(style.expect("the template is constant and right").progress_chars("=> "));
        bar.set_prefix(scheme.to_owned());
        let sent = self.send(&stage, &emulation, scheme, &bar);
        let counters = emulation.counters()?;
        let report = emulation.report()?;
        drop(daemons);
        drop(emulation);
        bar.finish_and_clear();
        let (summary, points) =
            sent.with_context(|| format!("{scheme} (logs in {})", stage.folder.display()))?;
        let same = |d: &SiteId| {
            let path = stage.site_folder(*d).join("copy.bin");
            anabranch_disk::partial::hash_file(&path).is_ok_and(|(_, hash)| hash == self.hash)
        };
        let verified = summary["verified"] == true && self.destinations.iter().all(same);
        let number = |field: &str| summary[field].as_f64().unwrap_or(0.0);
        let planned = self.topology.links().len();
        let counters: Vec<_> = counters.iter().filter(|c| c.link.index() < planned).collect();
        let from_source = |c: &&&anabranch_emu::LinkCounters| self.topology.link(c.link).from == self.source;
        let row = Row {
            scheme: scheme.to_owned(),
            ran: summary["scheme"].as_str().unwrap_or("-").to_owned(),
            rate_mbps: number("rate_bps") / 1e6,
            bound_mbps: number("bound_bps") / 1e6,
            planned_mbps: number("planned_bps") / 1e6,
            share_of_bound: number("rate_bps") / number("bound_bps"),
            verified,
            took_s: number("took_s"),
            congestion_control: {
                let names = summary["congestion_controls"].as_array().into_iter().flatten();
                names.filter_map(|n| n.as_str()).collect::<Vec<_>>().join(" and ")
            },
            source_sent_bytes: counters.iter().filter(from_source).map(|c| c.sent_bytes).sum(),
            links_sent_bytes: counters.iter().map(|c| c.sent_bytes).sum(),
            lateness_us_p99: report.lateness_us_p99,
            trusted: report.trusted,
            why: report.why.clone(),
        };
        if !quiet {
            eprintln!(
                "{scheme:>12}: {:.2} Mbit/s, {:.0} % of the bound, {:.1} s",
                row.rate_mbps,
                100.0 * row.share_of_bound,
                row.took_s
            );
        }
        // The copies were compared and are as large as the file: one scheme's are not kept for the next.
        for d in self.destinations {
            let _ = std::fs::remove_file(stage.site_folder(*d).join("copy.bin"));
        }
        Ok((row, report, points))
    }

    /// Runs `replicate send` at the source and follows its events.
    fn send(
        &self,
        stage: &Stage,
        emulation: &Emulation,
        scheme: &str,
        bar: &ProgressBar,
    ) -> anyhow::Result<(serde_json::Value, Points)> {
        let names = ("file.bin", "copy.bin", "send.log");
        let mut command = stage.send(emulation, self.source, self.destinations, scheme, names)?;
        command.args(["--stripes", &self.args.stripes.to_string()]);
        if let Some(name) = &self.args.congestion_control {
            command.args(["--congestion-control", name]);
        }
        if let Some(symbol) = self.args.symbol {
            command.args(["--symbol", &format!("{} B", symbol.as_u64())]);
        }
        let mut sender = emulation.spawn(self.source, command)?;
        let stdout = sender.stdout.take().context("its output is piped")?;
        let mut points = Vec::new();
        // Data moves from the moment at which the sites are told what to do.
        let mut told = None;
        // What the slowest destination had, and when: rates are taken over `WINDOW`, as reports come in bursts.
        let mut had = std::collections::VecDeque::from([(Duration::ZERO, 0)]);
        let summary = events(BufReader::new(stdout), |event| match event["event"].as_str() {
            Some("planned") => {
                told.get_or_insert_with(Instant::now);
            }
            Some("progress") => {
                let verified = event["destinations"].as_array().into_iter().flatten();
                let least = verified.filter_map(|d| d["verified_bytes"].as_u64()).min().unwrap_or(0);
                let now = told.map_or(Duration::ZERO, |s: Instant| s.elapsed());
                bar.set_position(least);
                while had.len() > 1 && now.saturating_sub(had[0].0) > WINDOW {
                    had.pop_front();
                }
                let (then, bytes) = had[0];
                if now > then {
                    let more = ByteCount::new(least.saturating_sub(bytes));
                    let rate = BitRate::average(more, Span::from_std(now - then));
                    points.extend(rate.map(|r| (Span::from_std(now), r)));
                }
                had.push_back((now, least));
            }
            Some("waiting" | "stopped") => bar.println(format!("{scheme}: {}", event["reason"])),
            _ => {}
        });
        let status = sender.wait()?;
        match summary {
            Some(summary) => Ok((summary, points)),
            None => bail!("send ended with {status}: {}", stage.last_words(self.source, "send.log")),
        }
    }
}
