//! `anabranch live plan`: one plan of a described network for a described demand, without a
//! controller.
//!
//! Leaves out: the optimiser ([`anabranch_live_proto::round`]). Read [`run`] and [`Answer`] first.

mod demand;

use super::worlds::{PriorityName, ppm, share, weight};
use crate::exit::OrUsage as _;
use anabranch_live::description::{DESCRIPTION_BYTES_MAX, Description, Layout};
use anabranch_live_proto::control::controller::{Plan, PlanJob};
use anabranch_live_proto::control::messages::GroupId;
use anabranch_live_proto::plan::plannable;
use anabranch_live_proto::plan::recorded::{RecordFormat, Records};
use anabranch_live_proto::round::{Round, RoundReport, RoundSettings};
use anabranch_live_proto::{NodeId, Object, Tier};
use anabranch_units::BitRate;
use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

/// The network, its demand, and the operator's choices.
#[derive(clap::Args)]
pub struct Args {
    /// The network's description, as `live controller --network` takes it. All its sources have all
    /// channels.
    #[arg(value_name = "FILE")]
    network: PathBuf,
    /// TOML file with a [[demand]] table of group, channel, rendition and viewers for each group
    /// that watches a rendition.
    #[arg(long, value_name = "FILE", required_unless_present = "requests", conflicts_with = "requests")]
    demand: Option<PathBuf>,
    /// CSV of requests in place of --demand: time, video (a channel), place (a group) or address,
    /// bitrate or bitrate_kbps (of a rendition), viewers.
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Preference among bitrates: a viewer counts by its bitrate, alike, or by one over its
    /// bitrate.
    #[arg(long, value_enum, default_value = "balanced")]
    priority: PriorityName,
    /// Weight of cost: the share of a mean viewer's value that a path of cost 60 costs at the mean
    /// bitrate.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = weight)]
    cost_share: f64,
    /// Share of each link that the plan leaves free for local decisions.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    slack: f64,
    /// Count a group once, whatever the number of its viewers.
    #[arg(long)]
    groups_count_once: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Plans. Requests that cannot be served are part of the answer, and are no failure.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = || format!("network {}", args.network.display());
    let text = super::read_text(&args.network, DESCRIPTION_BYTES_MAX).with_context(shown).or_usage()?;
    let layout = Description::from_toml(&text).and_then(Layout::new).with_context(shown).or_usage()?;
    let demand = demand(args, &layout).or_usage()?;
    let job = job(&layout, demand, ppm(args.slack));
    let settings = RoundSettings {
        priority: args.priority.into(),
        cost_share: args.cost_share,
        counts_viewers: !args.groups_count_once,
        ..RoundSettings::default()
    };
    let solved = Round::new(settings).solve(layout.network(), layout.groups(), &job);
    let (plan, report) = solved.with_context(|| format!("network {}", args.network.display())).or_usage()?;
    let answer = Answer::of(&layout, &job, &plan, &report);
    let shown = if args.json { serde_json::to_string(&answer)? } else { answer.text() };
    outln!("{shown}");
    Ok(ExitCode::SUCCESS)
}

/// Number of viewers by group and object, from the user's file.
fn demand(args: &Args, layout: &Layout) -> anyhow::Result<BTreeMap<(GroupId, Object), u64>> {
    if let Some(path) = &args.requests {
        let shown = || format!("--requests {}", path.display());
        let records = Records::new(File::open(path).with_context(shown)?, RecordFormat::Requests);
        return demand::of_requests(records, layout).with_context(shown);
    }
    let path = args.demand.as_ref().expect("one of both is required");
    let shown = || format!("--demand {}", path.display());
    let text = super::read_text(path, DESCRIPTION_BYTES_MAX).with_context(shown)?;
    demand::read(&text, layout).with_context(shown)
}

/// Builds the planning job of a network whose links all work and whose nodes carry no streams.
fn job(layout: &Layout, demand: BTreeMap<(GroupId, Object), u64>, slack_ppm: u32) -> PlanJob {
    let network = layout.network();
    let sources: BTreeSet<NodeId> = network.tier(Tier::Source).collect();
    PlanJob {
        number: 1,
        capacities: network.links().iter().map(|link| plannable(link.capacity, slack_ppm)).collect(),
        imports: demand.keys().map(|(_, object)| (*object, sources.clone())).collect(),
        demand,
        excluded: BTreeSet::new(),
        running: Plan::default(),
    }
}

/// A link of a tree.
#[derive(Debug, Serialize)]
struct Hop {
    from: String,
    to: String,
}

/// A group that watches a rendition.
#[derive(Debug, Serialize)]
struct WatchingGroup {
    group: String,
    /// Edge that serves the group. `None` for a request that the plan does not serve.
    edge: Option<String>,
    viewers: u64,
}

/// The tree of one rendition.
#[derive(Debug, Serialize)]
struct Tree {
    channel: String,
    rendition: String,
    bitrate_bps: u64,
    links: Vec<Hop>,
    groups: Vec<WatchingGroup>,
}

/// A link, and the streams that the plan puts on it.
#[derive(Debug, Serialize)]
struct LinkUse {
    from: String,
    to: String,
    streams: usize,
    used_bps: u64,
    /// Capacity minus the slack.
    plannable_bps: u64,
    capacity_bps: u64,
    /// Cost of a Mbit/s.
    cost: f64,
}

/// A plan with the names of its parts.
#[derive(Debug, Serialize)]
struct Answer {
    trees: Vec<Tree>,
    links: Vec<LinkUse>,
    requests: u64,
    requests_served: u64,
    viewers: u64,
    viewers_served: u64,
    /// Cost of all streams on links and to groups, in the unit of a link's cost times Mbit/s.
    cost: f64,
    /// Certified gap, as a share of the bound.
    gap_share: f64,
    /// Certified gap, as a share of the cost.
    gap_of_cost_share: Option<f64>,
}

impl Answer {
    fn of(layout: &Layout, job: &PlanJob, plan: &Plan, report: &RoundReport) -> Self {
        let network = layout.network();
        let name = |node: NodeId| network.node(node).name.clone();
        let group_name = |group: GroupId| layout.description().groups[group.0 as usize].name.clone();
        let tree = |object: &Object| {
            let (channel, rendition) = layout.names(*object).expect("demand is for listed renditions");
            let hops = plan.parents.iter().filter(|((_, of), _)| of == object);
            let hops = hops.map(|((to, _), from)| Hop { from: name(*from), to: name(*to) });
            let asked = job.demand.iter().filter(|((_, of), _)| of == object);
            let watched = asked.map(|(key, viewers)| WatchingGroup {
                group: group_name(key.0),
                edge: plan.edges.get(key).map(|edge| name(*edge)),
                viewers: *viewers,
            });
            Tree {
                channel: channel.to_owned(),
                rendition: rendition.to_owned(),
                bitrate_bps: object.bitrate.as_bps(),
                links: hops.collect(),
                groups: watched.collect(),
            }
        };
        let mut cost = 0.0;
        let links = network.links().iter().zip(&job.capacities).map(|(link, plannable)| {
            let carried = plan.parents.iter().filter(|((to, _), from)| (**from, *to) == (link.from, link.to));
            let rates: Vec<_> = carried.map(|((_, object), _)| object.bitrate).collect();
            cost += rates.iter().map(|rate| rate.as_mbps_f64()).sum::<f64>() * link.cost;
            LinkUse {
                from: name(link.from),
                to: name(link.to),
                streams: rates.len(),
                used_bps: rates.iter().map(|rate| rate.as_bps()).sum(),
                plannable_bps: plannable.as_bps(),
                capacity_bps: link.capacity.as_bps(),
                cost: link.cost,
            }
        });
        let links = links.collect();
        for ((group, object), edge) in &plan.edges {
            let edges = &layout.groups()[group.0 as usize];
            let price = edges.iter().find(|(of, _)| of == edge).map_or(0.0, |(_, price)| *price);
            cost += price * object.bitrate.as_mbps_f64();
        }
        let viewers_served = job.demand.iter().filter(|(key, _)| plan.edges.contains_key(key));
        Self {
            trees: job.imports.keys().map(tree).collect(),
            links,
            requests: report.requests.0 as u64,
            requests_served: report.requests.1 as u64,
            viewers: job.demand.values().sum(),
            viewers_served: viewers_served.map(|(_, viewers)| viewers).sum(),
            cost,
            gap_share: report.gap,
            gap_of_cost_share: report.gap_of_cost,
        }
    }

    fn text(&self) -> String {
        let mut rows = table(&["stream", "bitrate", "from", "to", "viewers"], &[1, 4]);
        for tree in &self.trees {
            let stream = format!("{}/{}", tree.channel, tree.rendition);
            let bitrate = BitRate::bps(tree.bitrate_bps).to_string();
            for hop in &tree.links {
                rows.add_row([&stream, &bitrate, &hop.from, &hop.to, ""]);
            }
            for watched in &tree.groups {
                let edge = watched.edge.as_deref().unwrap_or("not served");
                let group = format!("group {}", watched.group);
                rows.add_row([&stream, &bitrate, edge, &group, &watched.viewers.to_string()]);
            }
        }
        let trees = rows.trim_fmt();
        let mut rows = table(&["link", "streams", "used", "plannable", "capacity", "cost"], &[1, 2, 3, 4, 5]);
        for link in &self.links {
            rows.add_row([
                format!("{} -> {}", link.from, link.to),
                link.streams.to_string(),
                BitRate::bps(link.used_bps).to_string(),
                BitRate::bps(link.plannable_bps).to_string(),
                BitRate::bps(link.capacity_bps).to_string(),
                link.cost.to_string(),
            ]);
        }
        let links = rows.trim_fmt();
        let (asked, served) = (self.requests, self.requests_served);
        let viewers = format!("{} of {} viewers", self.viewers_served, self.viewers);
        let of_cost =
            self.gap_of_cost_share.map_or_else(String::new, |gap| format!(", {} of the cost", percent(gap)));
        format!(
            "{trees}\n\n{links}\n\n{served} of {asked} requests served, {viewers}\n\
             cost {:.2}; gap at most {} of the bound{of_cost}",
            self.cost,
            percent(self.gap_share)
        )
    }
}

/// Formats a share in percent, rounded up to hundredths, so that a gap is never shown too small.
fn percent(share: f64) -> String {
    /// Rounding of the optimiser's sums, in hundredths of a percent.
    const NOISE: f64 = 1e-6;
    // Adding zero makes a negative zero positive, because `max` may keep the negative one.
    format!("{:.2} %", ((share * 1e4 - NOISE).ceil().max(0.0) + 0.0) / 1e2)
}

fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    for column in right {
        let column = table.column_mut(*column).expect("a column of the header");
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests;
