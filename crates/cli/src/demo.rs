//! `anabranch demo`: one file from one site to several over an emulated network, by each scheme in
//! turn.
//!
//! Only the wires are emulated: a controller and a daemon at each site run as processes in network
//! namespaces and move a file over TLS and the kernel's TCP. Each scheme has a new network, so that
//! lateness is counted per scheme. In addition to the sites' own checks, the copies are compared
//! with the source's file here.

use crate::network::{self, TopologyArgs};
use crate::run_dir::RunDir;
use anabranch_emu::{EmulationOptions, Report};
use anabranch_rehearse::demo::{DemoSettings, RatePoints, Row, SchemeEvent};
use anabranch_rehearse::make_keys;
use anabranch_rehearse::replicate::stage::{keys_of, make_file};
use anabranch_replicate_proto::draw::{self, Theme, ThroughputSeries};
use anabranch_replicate_proto::plan::{Planner, Request};
use anabranch_units::{BitRate, ByteCount, Duration as Span, SiteId};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The network, the transfer and the schemes.
#[derive(clap::Args)]
pub struct Args {
    /// The network: a built-in one (`anabranch topologies` lists them), or a .toml, .graphml, .gml
    /// or .xml file.
    #[arg(long, short, value_name = "NAME|FILE", default_value = "internet2")]
    topology: String,
    /// Rate of links without one in the topology.
    #[arg(long, value_name = "RATE", default_value = "10 Mbit/s")]
    rate: BitRate,
    /// Site that holds the file. Without: the first site, or in a built-in network one where the
    /// schemes differ.
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
    /// TCP congestion control on every hop, by the kernel's name, such as bbr. Without: the
    /// machine's default.
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// TCP connections for each flow and hop.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    stripes: u16,
    /// Bytes of a packet between sites. Without: as many as a link sends in 10 ms.
    #[arg(long, value_name = "SIZE")]
    symbol: Option<ByteCount>,
    /// Folder to create for the pictures and figures. Without: the first of runs/demo-1,
    /// runs/demo-2 and so on that does not exist.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object for each scheme.
    #[arg(long)]
    json: bool,
}

/// Source and destinations for which the schemes differ, by topology.
fn instance(topology: &str) -> (&'static str, &'static [&'static str]) {
    match topology {
        // The cheapest tree blocks every second tree, so no greedy packing reaches the min-cut (2),
        // however ties are broken.
        "internet2" => ("4", &["2", "3", "8"]),
        "b4" => ("0", &["3", "6", "12"]),
        // Packing reaches 1.5, coding reaches 2.
        "butterfly" => ("0", &["5", "6"]),
        _ => ("0", &[]),
    }
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let topology = TopologyArgs { topology: args.topology.clone(), rate: args.rate }.load()?;
    let (from, to) = instance(&args.topology);
    let source = topology.find_site(args.from.as_deref().unwrap_or(from))?;
    let to: Vec<String> = match &args.to[..] {
        [] => to.iter().map(|s| (*s).to_owned()).collect(),
        given => given.to_vec(),
    };
    ensure_usage!(!to.is_empty(), "--to: name the sites that want the file, as in --to 2,3,5");
    let destinations = network::sites(&topology, &to)?;
    let planner = Planner::new(Request::new(&topology, source, destinations.clone()))?;
    let comparison = planner.compare()?;
    let name = |s: SiteId| topology.site(s).name.as_str();
    let mut run = match &args.out {
        Some(out) => RunDir::claim(out)?,
        None => RunDir::claim_next(Path::new("runs/demo"))?,
    };
    let out = run.path().to_owned();
    // Files and logs of all sites, kept only after a failure.
    let work = out.join("work");
    std::fs::create_dir(&work)?;
    let keys = work.join("keys");
    make_keys(&keys, &keys_of(&topology))?;
    let file = work.join("file.bin");
    let hash = make_file(&file, args.size)?;

    if !quiet {
        let to: Vec<_> = destinations.iter().map(|d| name(*d)).collect();
        errln!(
            "{}: {} from {} to {}, links of {}; no scheme can be faster than {}",
            topology.name(),
            args.size,
            name(source),
            to.join(", "),
            planner.link_unit(),
            planner.bound(),
        );
        errln!("{}; {}", comparison.reason, comparison.coding_gain);
    }
    let auto = planner.auto()?.chosen.plan;
    run.write("topology.toml", anabranch_graph::file::toml::write(&topology))?;
    const THEMES: [(&str, Theme); 2] = [("", Theme::Light), ("-dark", Theme::Dark)];
    for (end, theme) in THEMES {
        run.write(&format!("plan{end}.svg"), draw::svg(&topology, Some(&auto), theme))?;
    }
    let show = DemoSettings {
        topology: &topology,
        source,
        destinations: &destinations,
        work: &work,
        keys: &keys,
        file: &file,
        hash,
        stripes: args.stripes,
        congestion_control: args.congestion_control.as_deref(),
        symbol: args.symbol,
    };
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for scheme in &args.schemes {
        let (row, report, points) = play(&show, scheme, args.size, quiet)?;
        run.row(&row)?;
        run.emulation(scheme, &report)?;
        if args.json {
            outln!("{}", serde_json::to_string(&row)?);
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
    // The seed is the emulator's; the file's bytes are the same in every run.
    run.finish(&command, config, Some(EmulationOptions::default().seed))?;
    if !args.json {
        out!("{}", table(&rows));
    }
    if !quiet {
        errln!("pictures (plan.svg, throughput.svg) and figures: {}", out.display());
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one scheme with a progress bar.
fn play(
    show: &DemoSettings<'_>,
    scheme: &str,
    size: ByteCount,
    quiet: bool,
) -> anyhow::Result<(Row, Report, RatePoints)> {
    let bar = ProgressBar::new(size.as_u64());
    if quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{prefix:>12} [{bar:40}] {percent:>3} % {msg}");
    bar.set_style(style.expect("the template is constant and right").progress_chars("=> "));
    bar.set_prefix(scheme.to_owned());
    let played = show.play(scheme, &mut |news| match news {
        SchemeEvent::Verified(bytes) => bar.set_position(bytes),
        SchemeEvent::Held(reason) => bar.println(format!("{scheme}: {reason}")),
    });
    bar.finish_and_clear();
    let (row, report, points) = played?;
    if !quiet {
        errln!(
            "{scheme:>12}: {:.2} Mbit/s, {:.0} % of the bound, {:.1} s",
            row.rate_mbps,
            100.0 * row.share_of_bound,
            row.took_s
        );
    }
    Ok((row, report, points))
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
