//! `anabranch replicate plan`: the plan of a transfer, as a table, JSON or a picture. Nothing is
//! sent.

use crate::exit::OrUsage as _;
use crate::formats::size;
use crate::network::{self, TopologyArgs};
use anabranch_graph::Topology;
use anabranch_replicate_proto::draw::{self, Theme};
use anabranch_replicate_proto::plan::survey::{Survey, survey_joint, survey_random, survey_triples};
use anabranch_replicate_proto::plan::{
    Choice, Comparison, FileToSend, Plan, PlanWithFigures, Planner, Request, Scheme,
};
use anabranch_units::{BitRate, ByteCount, Duration, LinkId, Seed, time_in_words};
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The transfer, the scheme and the form of the plan.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    network: TopologyArgs,
    /// The site that holds the file.
    #[arg(long, value_name = "SITE", required_unless_present_any = ["survey", "survey_random", "survey_joint"])]
    from: Option<String>,
    /// The destinations.
    #[arg(long, value_name = "SITE,SITE", value_delimiter = ',', required_unless_present_any = ["survey", "survey_random", "survey_joint"])]
    to: Vec<String>,
    /// Sites that the plan must avoid.
    #[arg(long, value_name = "SITE,SITE", value_delimiter = ',')]
    avoid_sites: Vec<String>,
    /// Links that the plan must avoid, such as paris-tokyo: the direction from paris to tokyo.
    #[arg(long, value_name = "LINK,LINK", value_delimiter = ',')]
    avoid_links: Vec<String>,
    /// Scheme of the plan that is drawn and listed: auto, coded, packed, steiner,
    /// steiner_store_and_forward, steiner_one_tree, multi_path or single_path. docs/replicate.md
    /// explains when each wins.
    #[arg(long, default_value = "auto")]
    scheme: String,
    /// Add flows of the lowest priority over capacity that the plan leaves. Predicted rates and
    /// bytes exclude them.
    #[arg(long)]
    fill: bool,
    /// Size of the file, such as 50GB: the table then has bytes and times.
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteCount>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Add the whole plan of the chosen scheme to the JSON object.
    #[arg(long, requires = "json")]
    full: bool,
    /// Draw the plan into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw on a dark background.
    #[arg(long, requires = "svg")]
    dark: bool,
    /// Plan every source and three destinations of the topology, and count where each scheme falls
    /// short of the min-cut.
    #[arg(long, conflicts_with_all = ["from", "to"])]
    survey: bool,
    /// As --survey, over this number of random networks of up to 12 sites.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["from", "to", "survey"])]
    survey_random: Option<u64>,
    /// Draw this number of concurrent transfers, and compare their rates when planned alone, in
    /// turn and jointly.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["from", "to", "survey", "survey_random"])]
    survey_joint: Option<usize>,
    /// With --survey-joint: number of draws.
    #[arg(long, value_name = "COUNT", default_value_t = 100, requires = "survey_joint")]
    draws: u64,
    /// With --survey-joint: number of destinations of each transfer.
    #[arg(long, value_name = "COUNT", default_value_t = 3, requires = "survey_joint")]
    destinations: usize,
    /// With --survey-random: seed of the random networks.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the command.
///
/// Errors: one line for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(count) = args.survey_joint {
        let topology = args.network.load()?;
        let sites = topology.sites().len();
        ensure_usage!(
            (1..=sites).contains(&count),
            "--survey-joint {count}: 1 to {sites}, one source a site"
        );
        ensure_usage!(
            (1..sites).contains(&args.destinations),
            "--destinations {}: 1 to {}",
            args.destinations,
            sites - 1
        );
        let survey = survey_joint(&topology, count, args.destinations, args.draws)?;
        outln!("{}", serde_json::to_string_pretty(&survey)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.survey || args.survey_random.is_some() {
        let survey = match args.survey_random {
            Some(count) => survey_random(Seed::new(args.seed), 0..count),
            None => survey_triples(&args.network.load()?),
        };
        if args.json {
            outln!("{}", serde_json::to_string(&survey)?);
        } else {
            outln!("{}", survey_text(&survey));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let topology = args.network.load()?;
    let from = args.from.as_deref().unwrap_or_default();
    let avoid = (&args.avoid_sites[..], &args.avoid_links[..]);
    let planner = Planner::new(ask(&topology, from, &args.to, avoid)?)?;
    let comparison = planner.compare()?;
    let choice = planner.auto()?;
    let shown = chosen(&planner, &choice, (&args.scheme, args.fill))?;
    let sending = args.size.map(|size| FileToSend { size, limit: None });
    if let Some(path) = &args.svg {
        let theme = if args.dark { Theme::Dark } else { Theme::Light };
        let picture = draw::svg(&topology, Some(&shown.plan), theme);
        std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        outln!("{}", serde_json::to_string(&json(&topology, &comparison, &shown, sending, args.full)?)?);
    } else {
        out!("{}", table(&topology, &comparison, &choice, &shown, sending));
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the counts of a survey.
fn survey_text(survey: &Survey) -> String {
    let planned = survey.instances - survey.unreachable;
    let mut schemes = comfy_table::Table::new();
    schemes.load_preset(comfy_table::presets::NOTHING);
    schemes.set_header([
        "scheme",
        "below the min-cut",
        "share",
        "worst: min-cut / rate",
        "only by equal flows",
        "lost to equal flows, at most",
        "auto takes it",
    ]);
    for (scheme, short) in &survey.schemes {
        schemes.add_row([
            scheme.to_string(),
            short.short.to_string(),
            format!("{:.1} %", 100.0 * short.short_share),
            format!("{:.2}", short.factor_max),
            short.quantised_short.to_string(),
            format!("{:.2} %", 100.0 * short.loss_share_max),
            survey.auto.get(scheme).copied().unwrap_or(0).to_string(),
        ]);
    }
    let mut codes = comfy_table::Table::new();
    codes.load_preset(comfy_table::presets::NOTHING);
    codes.set_header([
        "codes, with paths laid",
        "at the min-cut",
        "decoded",
        "code somewhere",
        "sites that code, at most",
        "with delays",
        "looks ahead, at most",
        "keeps, at most",
    ]);
    for (laid, code) in [
        ("for all destinations together", &survey.coded),
        ("for each destination alone", &survey.independent),
        ("at random", &survey.scattered),
    ] {
        codes.add_row([
            laid.to_owned(),
            code.equals_bound.to_string(),
            code.decoded.to_string(),
            code.coding.to_string(),
            code.coding_sites_max.to_string(),
            code.delayed.to_string(),
            code.lookaheads.keys().last().copied().unwrap_or(0).to_string(),
            code.state_max.to_string(),
        ]);
    }
    let errors: String = survey.errors.iter().map(|error| format!("\n{error}")).collect();
    format!(
        "{planned} instances planned, {} more have a destination that cannot be reached.\n\
         In {} of them random data came through the plan of every scheme, at every destination.\n\
         A code beats every plan without one in {} instances, by a factor of at most {:.2}.\n\n{schemes}\n\n{codes}\n\n\
         equal flows: a plan's rate is cut into flows of one size; a rest that does not fill one is lost.\n\
         with delays: some flows go round in a cycle, so that sites combine packets of different generations (pieces of the file).\n\
         looks ahead: generations after the one that it decodes which a destination needs. keeps: symbols of earlier ones.{errors}",
        survey.unreachable, survey.decoded, survey.coding_gains, survey.coding_gain_max
    )
}

/// Names of the sites and links that a plan must avoid.
pub type AvoidedNames<'a> = (&'a [String], &'a [String]);

fn ask<'a>(
    topology: &'a Topology,
    from: &str,
    to: &[String],
    avoid: AvoidedNames<'_>,
) -> anyhow::Result<Request<'a>> {
    let from = network::site(topology, from)?;
    let mut request = Request::new(topology, from, network::sites(topology, to)?);
    request.avoid_sites = network::sites(topology, avoid.0)?;
    request.avoid_links = avoid.1.iter().map(|l| topology.find_link(l)).collect::<Result<_, _>>()?;
    Ok(request)
}

/// Shows the plan of `send` under a scheme, filled or not.
///
/// Errors: one line for the user.
pub(super) fn show(
    topology: &Topology,
    from: &str,
    to: &[String],
    avoid: AvoidedNames<'_>,
    scheme: (&str, bool),
    sending: FileToSend,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let planner = Planner::new(ask(topology, from, to, avoid)?)?;
    let (comparison, choice) = (planner.compare()?, planner.auto()?);
    let chosen = chosen(&planner, &choice, scheme)?;
    if as_json {
        outln!("{}", serde_json::to_string(&json(topology, &comparison, &chosen, Some(sending), false)?)?);
    } else {
        out!("{}", table(topology, &comparison, &choice, &chosen, Some(sending)));
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(
    planner: &Planner<'_>,
    choice: &Choice,
    (scheme, fill): (&str, bool),
) -> anyhow::Result<PlanWithFigures> {
    let mut shown = if scheme == "auto" {
        choice.chosen.clone()
    } else {
        let scheme: Scheme = scheme.parse().map_err(|e| anyhow::anyhow!("{e}, or auto")).or_usage()?;
        match choice.offers.iter().find(|o| o.scheme == scheme) {
            Some(offer) => offer.planned.clone(),
            None => planner.plan(scheme)?,
        }
    };
    if fill {
        shown.plan = planner.fill(&shown.plan);
    }
    Ok(shown)
}

/// Formats a link by the names of its ends.
fn hop(topology: &Topology, link: LinkId) -> String {
    let link = topology.link(link);
    format!("{}-{}", topology.site(link.from).name, topology.site(link.to).name)
}

fn json(
    topology: &Topology,
    comparison: &Comparison,
    shown: &PlanWithFigures,
    sending: Option<FileToSend>,
    full: bool,
) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(comparison)?;
    let object = value.as_object_mut().context("a comparison is an object")?;
    object.insert("shown".into(), serde_json::to_value(shown.plan.scheme)?);
    object.insert("rate_bps".into(), shown.plan.rate.as_bps().into());
    object.insert("bound_bps".into(), shown.plan.bound.as_bps().into());
    object.insert("figures".into(), serde_json::to_value(&shown.figures)?);
    let fill = shown.plan.fill_trees().into_iter().map(|(to, trees)| {
        let to: Vec<_> = to.iter().map(|s| &topology.site(*s).name).collect();
        let hops = |tree: Vec<_>| tree.into_iter().map(|l| hop(topology, l)).collect::<Vec<_>>();
        serde_json::json!({ "to": to, "trees": trees.into_iter().map(hops).collect::<Vec<_>>() })
    });
    object.insert("fill".into(), fill.collect());
    if let Some(sending) = sending {
        let effort = sending.by(&shown.plan, topology);
        let links: Vec<_> = effort
            .links
            .into_iter()
            .map(|(id, bytes)| {
                let link = topology.link(id);
                serde_json::json!({
                    "from": topology.site(link.from).name, "to": topology.site(link.to).name,
                    "traffic_bytes": bytes.as_u64(),
                })
            })
            .collect();
        object.insert("length_bytes".into(), sending.size.as_u64().into());
        object.insert("links".into(), links.into());
        object.insert("traffic_bytes".into(), effort.traffic.as_u64().into());
        object.insert("limited_bps".into(), effort.limited.map(BitRate::as_bps).into());
        object.insert("time_s".into(), effort.time.as_secs_f64().into());
    }
    if full {
        object.insert("plan".into(), serde_json::to_value(&shown.plan)?);
    }
    Ok(value)
}

fn table(
    topology: &Topology,
    c: &Comparison,
    choice: &Choice,
    shown_plan: &PlanWithFigures,
    sending: Option<FileToSend>,
) -> String {
    use std::fmt::Write as _;
    let name = |s| topology.site(s).name.as_str();
    let plan = &shown_plan.plan;
    let to: Vec<_> = plan.destinations.iter().map(|d| name(*d)).collect();
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: {} to {}; no scheme can be faster than {}\n",
        topology.name(),
        name(plan.source),
        to.join(", "),
        plan.bound
    );
    let mut rows = comfy_table::Table::new();
    rows.load_preset(comfy_table::presets::NOTHING);
    rows.set_header(["scheme", "rate", "of bound", "sent per byte", "flows", "coding at"]);
    let coding = |plan: &Plan| {
        let sites: Vec<_> = plan.coding_sites(topology).iter().map(|w| name(w.site).to_owned()).collect();
        if sites.is_empty() { "-".to_owned() } else { sites.join(", ") }
    };
    for offer in &choice.offers {
        let p = &offer.planned.plan;
        let mark = if p.scheme == c.auto { " (auto)" } else { "" };
        rows.add_row([
            format!("{}{mark}", p.scheme),
            p.rate.to_string(),
            format!("{:.0} %", 100.0 * p.rate.as_bps() as f64 / p.bound.as_bps() as f64),
            format!("{:.2}", p.copies_per_byte()),
            p.flows.len().to_string(),
            coding(p),
        ]);
    }
    let _ = writeln!(out, "{}\n", rows.trim_fmt());
    let _ = writeln!(out, "auto: {}\n{}", c.reason, c.coding_gain);
    if !c.decodes {
        let _ = writeln!(out, "WARNING: random symbols pushed through the plans did not arrive as sent");
    }
    for (to, trees) in plan.fill_trees() {
        let to: Vec<_> = to.into_iter().map(name).collect();
        let _ = writeln!(out, "\n{} filled, at the lowest priority, over:", to.join(", "));
        for tree in trees {
            let hops: Vec<_> = tree.into_iter().map(|l| hop(topology, l)).collect();
            let _ = writeln!(out, "  {}", hops.join(", "));
        }
    }
    if let Some(sending) = sending {
        let effort = sending.by(plan, topology);
        let held = effort.limited.map(|rate| format!(", held to {rate} by --bwlimit")).unwrap_or_default();
        let time = if effort.time.as_secs() < 60 {
            Duration::from_std(effort.time).to_string()
        } else {
            time_in_words(effort.time)
        };
        let traffic = size(effort.traffic);
        let _ = writeln!(
            out,
            "\n{} at {}{held}: {time}; {traffic} over all links, which are:",
            plan.scheme, plan.rate
        );
        for (id, bytes) in effort.links {
            let link = topology.link(id);
            let _ = writeln!(out, "  {} - {}: {}", name(link.from), name(link.to), size(bytes));
        }
    }
    out
}
