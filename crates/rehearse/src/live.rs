//! One cell of VDN's testbed (section 4.7.2): real sources, reflectors and edges in the emulator, with
//! measuring players, and one fault.
//!
//! There are two sources, two reflectors and six edges; the tiers are fully connected. Each channel
//! has one viewer at an edge drawn from the seed; one viewer begins each second. The controller is
//! 10 ms away. Differs: all rates are scaled down by one factor, so that two cores can forward the
//! packets. Read [`Cell`] and [`Row`] first.

mod audience;
mod machine;
mod members;
mod programs;
mod samples;
mod scenario;
mod testbed;

pub use machine::Processors;
pub use samples::Sample;
pub use scenario::EmulatedSystem;

use crate::fleet::Fleet;
use anabranch_emu::{Emulation, EmulationOptions, LinkState, RATE_MIN};
use anabranch_live::players::PlayerReport;
use anabranch_live_proto::play::{JoinTimes, PlayerKind};
use anabranch_units::stats::percentile;
use anabranch_units::{BitRate, Duration as Span, LinkId, Seed, SiteId};
use anyhow::{Context as _, ensure};
use audience::{Audience, OnInterrupt};
use machine::Ticks;
use members::Members;
use programs::{CONTROLLER_PORT, Daemons, Link, Node, Overlay};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use testbed::{
    CONTROLLER, EDGES, NODES, REFLECTORS, SOURCES, Testbed, edges_of, name, place, tier, tier_pairs,
};

/// Lease of a leading controller, in seconds: the minimum that the controller accepts.
const LEASE_S: &str = "2";
/// Duration of a segment.
const SEGMENT: Span = Span::from_secs(2);
/// Duration of a part of a segment.
const PART: Span = Span::from_secs(1);
/// Price of a Mbit/s on each link.
const LINK_COST: f64 = 10.0;
/// Time from the start of the first publisher to the start of the first viewer.
const LEAD: Duration = Duration::from_secs(6);
/// Time from the last single viewer to the late viewers, which begin together.
const LATE_PAUSE: Duration = Duration::from_secs(30);
/// Time from the fault to the late viewers.
const FAULT_LEAD: Duration = Duration::from_secs(2);
/// Time without a byte after which a viewer's first request counts as late. Nodes that follow only
/// the controller delay a first request by less.
const FIRST_PATIENCE: Span = Span::from_secs(20);
/// A fault in the middle of the run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
pub enum Fault {
    /// No fault.
    None,
    /// The link from the first reflector to the first edge is cut.
    LinkCut,
    /// The link from the first source to the first reflector falls to 30 % of its rate.
    LinkDegraded,
    /// The first reflector's program is killed.
    ReflectorKilled,
    /// The first reflector's program is stopped.
    ReflectorFrozen,
    /// The first edge's program is killed.
    EdgeKilled,
    /// The controller's program is stopped.
    ControllerFrozen,
    /// The leading one of two controllers is killed.
    ControllerKilled,
    /// The leading one of three members of etcd is killed; two controllers share the etcd.
    EtcdKilled,
    /// The controller loses half of the nodes.
    Split,
    /// An operator drains the first reflector.
    Drained,
    /// A quarter of the links between tiers, drawn from the seed, lose `share` of their rate (Figure
    /// 4.17a).
    LinksDegraded,
    /// The links from the controller lose `share` of their packets (Figure 4.17b).
    UpdatesDropped,
}

impl Fault {
    /// Returns true for a fault for which two controllers share an etcd.
    const fn has_etcd(self) -> bool {
        matches!(self, Self::ControllerKilled | Self::EtcdKilled)
    }
}

/// The decisions that nodes follow.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
pub enum Mode {
    /// Decisions of the controller and of the nodes.
    Hybrid,
    /// Decisions of the nodes only (Fully Distributed).
    Distributed,
    /// Decisions of the controller only (Fully Centralized).
    Centralized,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Hybrid => "hybrid",
            Self::Distributed => "distributed",
            Self::Centralized => "centralized",
        }
    }
}

impl From<anabranch_live_proto::simulated::Mode> for Mode {
    fn from(mode: anabranch_live_proto::simulated::Mode) -> Self {
        use anabranch_live_proto::simulated::Mode as Simulated;
        match mode {
            Simulated::Hybrid => Self::Hybrid,
            Simulated::Distributed => Self::Distributed,
            Simulated::Centralized => Self::Centralized,
        }
    }
}

/// The cell, as options of a command.
#[derive(Clone, Debug, clap::Args)]
pub struct Cell {
    /// Channels, each with one viewer.
    #[arg(long, value_name = "COUNT", default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=200))]
    pub channels: u64,
    /// Rate of each link between tiers. The thesis has 75 Mbit/s for 200 channels.
    #[arg(long, value_name = "RATE", default_value = "9.375 Mbit/s")]
    pub rate: BitRate,
    /// Bitrates of each channel.
    #[arg(
        long,
        value_name = "RATE,RATE",
        value_delimiter = ',',
        default_value = "200kbit/s,600kbit/s,1400kbit/s"
    )]
    pub bitrates: Vec<BitRate>,
    /// Behaviour of the viewers: the thesis's fixed requester, or a player with a buffer.
    #[arg(long, value_name = "KIND", default_value = "fixed")]
    pub kind: PlayerKind,
    /// Seconds between two viewers.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    pub apart: u64,
    /// Edges that a viewer may ask.
    #[arg(long, value_name = "COUNT", default_value_t = EDGES as u64, value_parser = clap::value_parser!(u64).range(1..=EDGES as u64))]
    pub edges: u64,
    /// Channels whose viewers begin together, 30 s after the others.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub late: u64,
    /// Paths of the viewers.
    #[command(flatten)]
    pub paths: Paths,
    /// Decisions that the nodes follow.
    #[arg(long, value_name = "MODE", default_value = "hybrid")]
    pub mode: Mode,
    /// Seconds between two samples of all viewers; 0 for none.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub sample: u64,
    /// Seconds after the last viewer's start.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(10..=600))]
    pub seconds: u64,
    /// Seconds between two plans of the controller.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub every: u64,
    /// The fault, a third of `seconds` after the last viewer's start, or 2 s before late viewers.
    #[arg(long, value_name = "FAULT", default_value = "none")]
    pub fault: Fault,
    /// Share of links' rates or packets that `links-degraded` or `updates-dropped` takes.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub share: f64,
    /// Seed of the viewers' edges.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// 99th percentile of the emulator's lateness above which a run is not to be trusted, in microseconds.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 2000)]
    pub lateness: u64,
}

/// Paths of the viewers.
#[derive(Clone, Debug, clap::Args)]
pub struct Paths {
    /// Delay of each link between tiers, and of each link to viewers. By default 5 ms and 2 ms.
    #[arg(long, value_name = "TIME")]
    pub link_delay: Option<Span>,
    /// Viewers ask a DNS server beside their edge for their edge.
    #[arg(long)]
    pub dns: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be from 0 to 1".to_owned())
}

impl Cell {
    /// Checks that every setting is in range.
    ///
    /// Errors: the first setting out of range, in one line.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.bitrates.is_empty(), "--bitrates: give at least one");
        ensure!(
            self.late < self.channels,
            "--late {}: must be below --channels {}",
            self.late,
            self.channels
        );
        Ok(())
    }

    /// Time from the start of the first publisher to the start of a channel's viewer.
    fn begin(&self, channel: u64) -> Duration {
        let early = self.channels - self.late;
        let pause = if channel < early { Duration::ZERO } else { LATE_PAUSE };
        LEAD + Duration::from_secs(self.apart * channel.min(early.saturating_sub(1))) + pause
    }

    /// Time from the start of the first publisher to the fault.
    fn fault_at(&self) -> Duration {
        let last = self.begin(self.channels - 1);
        if self.late > 0 { last - FAULT_LEAD } else { last + Duration::from_secs(self.seconds) / 3 }
    }
}

/// The result of a cell.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// The fault.
    pub fault: Fault,
    /// Seed of the viewers' edges.
    pub seed: u64,
    /// Kind of the viewers: `fixed` or `buffering`.
    pub kind: &'static str,
    /// Decisions that the nodes follow.
    pub mode: Mode,
    /// Share that the fault takes; `None` for a fault without a share.
    pub fault_share: Option<f64>,
    /// Channels, each with one viewer.
    pub channels: u64,
    /// Rate of a link between tiers.
    pub rate_mbps: f64, // tidy-allow: quantity (a row for figures)
    /// Join times of the viewers.
    #[serde(flatten)]
    pub joins: JoinFigures,
    /// Service of the viewers.
    #[serde(flatten)]
    pub service: ServiceRow,
    /// Requests of the viewers.
    #[serde(flatten)]
    pub requests: RequestCounts,
    /// Conditions of the run.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// Samples of all viewers during the run.
    pub samples: Vec<Sample>,
}

/// Join times of the viewers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct JoinFigures {
    /// Viewers that have received video.
    pub joined: usize,
    /// Median join time: from the first request to the first byte of video.
    pub join_ms_p50: Option<f64>, // tidy-allow: quantity (a row for figures)
    /// 99th percentile of the join time.
    pub join_ms_p99: Option<f64>, // tidy-allow: quantity (a row for figures)
    /// Median time from the request for the first segment or part to its first byte.
    pub get_ms_p50: Option<f64>, // tidy-allow: quantity (a row for figures)
    /// 99th percentile of this time.
    pub get_ms_p99: Option<f64>, // tidy-allow: quantity (a row for figures)
}

/// Service of the viewers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ServiceRow {
    /// Mean bitrate of the renditions that the viewers watch at the end.
    pub mean_kbps: f64, // tidy-allow: quantity (a row for figures)
    /// The highest mean bitrate that the links of the source tier allow.
    pub optimal_kbps: f64, // tidy-allow: quantity (a row for figures)
    /// Stalls of all viewers.
    pub stalls: u64,
    /// Viewers with a stall.
    pub stalled_viewers: usize,
    /// Total time of all stalls.
    pub stalled_s: f64,
    /// Longest time without video at one viewer.
    pub gap_max_s: f64,
    /// Longest time without video that contains a failed request.
    pub recovery_max_s: f64,
}

/// Requests of the viewers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RequestCounts {
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Changes to a lower bitrate.
    pub downgrades: u64,
    /// Changes of the edge.
    pub edge_changes: u64,
}

/// Conditions of the run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Conditions {
    /// 99th percentile of the emulator's lateness.
    pub lateness_us_p99: f64, // tidy-allow: quantity (a row for figures)
    /// Share of one processor that the emulator used in its busiest second.
    pub forwarder_cpu_share_max: f64,
    /// Use of the machine's processors.
    #[serde(flatten)]
    pub processors: Processors,
    /// Congestion control of all connections.
    pub congestion_control: String,
    /// True if the run can be trusted, so that `why` is empty.
    pub trusted: bool,
    /// Reasons not to trust the run.
    pub why: Vec<String>,
}

/// Runs a cell.
///
/// Errors: as [`Cell::check`]; an error of the operating system; programs that do not start.
pub fn measure(cell: &Cell) -> anyhow::Result<Row> {
    cell.check()?;
    let testbed = Testbed::new(cell.rate, cell.edges as usize, cell.paths.link_delay)?;
    let options = EmulationOptions {
        seed: Seed::new(cell.seed),
        lateness_p99_max: Span::from_us(cell.lateness),
        ..EmulationOptions::default()
    };
    let ticks = Ticks::now()?;
    let emulation = Emulation::start(&testbed.topology, options)?;
    let run = Run::start(cell, &testbed, &emulation)?;
    let whole = cell.begin(cell.channels - 1) + Duration::from_secs(cell.seconds);
    let began = Instant::now();
    let viewers = audience::of_cell(cell, &testbed, &emulation);
    let dns = audience::dns_servers(cell, &testbed, &emulation);
    let audience = Audience::start(&emulation, viewers, &dns, whole, OnInterrupt::EndProcess)?;
    let sampled = audience.sample((LEAD, whole), Duration::from_secs(cell.sample));
    std::thread::sleep(cell.fault_at().saturating_sub(began.elapsed()));
    run.fail(cell, &testbed, &emulation)?;
    let reports = audience.reports()?;
    let sums = sampled.join().map_err(|_| anyhow::anyhow!("the sampling thread has panicked"))?;
    let report = emulation.report()?;
    let control = emulation.congestion_control().to_owned();
    drop(run);
    // The programs have ended, so their processor time counts for this run.
    let processors = Ticks::now()?.since(ticks);
    let conditions = Conditions {
        lateness_us_p99: report.lateness_us_p99,
        forwarder_cpu_share_max: report.forwarder.cpu_share_max,
        processors,
        congestion_control: control,
        trusted: report.why.is_empty(),
        why: report.why,
    };
    Ok(row(cell, &reports, samples::samples(&sums, &reports), conditions))
}

/// Running programs.
struct Run {
    daemons: Daemons,
    /// Address of each controller, with the index of its program.
    controllers: Vec<(String, usize)>,
    etcd: Option<Members>,
}

impl Run {
    fn start(cell: &Cell, testbed: &Testbed, emulation: &Emulation) -> anyhow::Result<Self> {
        let mut fleet = Fleet::new("live")?;
        let overlay = overlay(cell, testbed);
        overlay.prepare(&fleet, emulation)?;
        let etcd =
            cell.fault.has_etcd().then(|| Members::start(&mut fleet, testbed, emulation)).transpose()?;
        let controllers = start_controllers(&mut fleet, &overlay, emulation, etcd.as_ref())?;
        let addresses: Vec<String> = controllers.iter().map(|(address, _)| address.clone()).collect();
        let mut daemons = Daemons::start(overlay, fleet, emulation, addresses, etcd.is_some())?;
        if cell.paths.dns {
            daemons.start_dns(emulation)?;
        }
        Ok(Self { daemons, controllers, etcd })
    }

    /// Index of the leading controller's program.
    fn leading(&self) -> anyhow::Result<usize> {
        let leads = self.controllers.iter().find(|(address, _)| address == self.daemons.operator.address());
        Ok(leads.context("no controller leads")?.1)
    }

    fn fail(&self, cell: &Cell, testbed: &Testbed, emulation: &Emulation) -> anyhow::Result<()> {
        let (reflector, edge) = (SOURCES, SOURCES + REFLECTORS);
        let Daemons { fleet, nodes, .. } = &self.daemons;
        let change = |link: LinkId, change: &dyn Fn(&mut LinkState)| -> anyhow::Result<()> {
            let mut state = emulation.link_state(link)?;
            change(&mut state);
            Ok(emulation.set_link(link, state)?)
        };
        let both = |link: LinkId| [Some(link), testbed.topology.opposites()[link.index()]];
        match cell.fault {
            Fault::None => {}
            Fault::LinkCut => {
                let links = both(testbed.link(reflector, edge)).into_iter().flatten();
                links.into_iter().try_for_each(|link| change(link, &|state| state.up = false))?;
            }
            Fault::LinkDegraded => {
                let rate = BitRate::bps(cell.rate.as_bps() * 3 / 10);
                change(testbed.link(0, reflector), &|state| state.rate = rate)?;
            }
            Fault::ReflectorKilled => fleet.signal(nodes[reflector], Signal::KILL),
            Fault::ReflectorFrozen => fleet.signal(nodes[reflector], Signal::STOP),
            Fault::EdgeKilled => fleet.signal(nodes[edge], Signal::KILL),
            Fault::ControllerFrozen => fleet.signal(self.leading()?, Signal::STOP),
            Fault::ControllerKilled => fleet.signal(self.leading()?, Signal::KILL),
            Fault::EtcdKilled => {
                let etcd = self.etcd.as_ref().context("etcd was not started")?;
                let leader = etcd.leader(testbed, emulation)?.context("no member of etcd leads")?;
                fleet.signal(leader, Signal::KILL);
            }
            Fault::Split => {
                let from = testbed.sites[CONTROLLER];
                let lost: Vec<SiteId> = (0..NODES).step_by(2).map(|node| testbed.sites[node]).collect();
                let cut = testbed.topology.links_out(from);
                let cut = cut.filter(|link| lost.contains(&testbed.topology.link(*link).to));
                for link in cut.flat_map(both).flatten() {
                    change(link, &|state| state.up = false)?;
                }
            }
            Fault::LinksDegraded => {
                let mut links: Vec<LinkId> = testbed.tier_links.iter().map(|(_, _, link)| *link).collect();
                Seed::new(cell.seed).stream("live.degraded", 0).shuffle(&mut links);
                let left =
                    // A link that would lose all of its rate keeps the minimum that the emulator
                    // accepts.
                    BitRate::bps(((1.0 - cell.share) * cell.rate.as_bps() as f64) as u64).max(RATE_MIN);
                let quarter = links.len() / 4;
                links[..quarter].iter().try_for_each(|link| change(*link, &|state| state.rate = left))?;
            }
            Fault::UpdatesDropped => {
                let loss_ppm = (cell.share * 1e6).round() as u32;
                for link in testbed.topology.links_out(testbed.sites[CONTROLLER]) {
                    change(link, &|state| state.loss_ppm = loss_ppm)?;
                }
            }
            Fault::Drained => self.daemons.drain(emulation, reflector, true)?,
        }
        Ok(())
    }
}

/// Starts one controller, or two that share `etcd`. Returns their addresses and programs.
fn start_controllers(
    fleet: &mut Fleet,
    overlay: &Overlay,
    emulation: &Emulation,
    etcd: Option<&Members>,
) -> anyhow::Result<Vec<(String, usize)>> {
    let at = emulation.site_address(overlay.controller);
    let count = if etcd.is_some() { 2 } else { 1 };
    let start = |number: u16| {
        let address = format!("{at}:{}", CONTROLLER_PORT + number);
        let mut command = overlay.controller(fleet, &address);
        match etcd {
            Some(etcd) => command.args(["--etcd", &etcd.urls(), "--advertise", &address, "--lease", LEASE_S]),
            None => command.arg("--store").arg(fleet.path("live.redb")),
        };
        Ok((address, fleet.start(emulation, overlay.controller, command)?))
    };
    (0..count).map(start).collect()
}

/// Builds the testbed's network. The viewers at one edge are one group.
fn overlay(cell: &Cell, testbed: &Testbed) -> Overlay {
    let node = |node: usize| Node { name: name(node), tier: tier(node), site: testbed.sites[node] };
    let link = |(from, to)| Link { from, to, capacity: cell.rate, cost: LINK_COST };
    let group = |number: usize| {
        let edges = edges_of(number, cell.edges as usize).map(|edge| (SOURCES + REFLECTORS + edge, 0.0));
        (testbed.sites[place(number)], edges.collect())
    };
    Overlay {
        controller: testbed.sites[CONTROLLER],
        nodes: (0..NODES).map(node).collect(),
        links: tier_pairs().map(link).collect(),
        groups: (0..EDGES).map(group).collect(),
        channels: cell.channels,
        bitrates: cell.bitrates.clone(),
        segment: SEGMENT,
        part: PART,
        mode: cell.mode,
        every: Span::from_secs(cell.every),
    }
}

/// The highest mean bitrate that the source tier and the demand allow, as if streams could be divided.
fn optimal_kbps(cell: &Cell) -> f64 {
    let room = cell.rate.as_bps() as f64 * (SOURCES * REFLECTORS) as f64;
    let viewers = cell.channels as f64;
    let most = cell.bitrates.iter().max().map_or(0.0, |rate| rate.as_bps() as f64);
    room.min(most * viewers) / viewers / 1_000.0
}

fn joins(reports: &[PlayerReport]) -> JoinFigures {
    let sorted = |of: &dyn Fn(&JoinTimes) -> Option<Span>| {
        let times = reports.iter().filter_map(|report| of(&report.measurements.join));
        let mut times: Vec<f64> = times.map(|time| time.as_secs_f64() * 1_000.0).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let joins = sorted(&|join| join.first_byte);
    let gets = sorted(&|join| Some(join.first_byte? - join.requested?));
    JoinFigures {
        joined: joins.len(),
        join_ms_p50: percentile(&joins, 0.5),
        join_ms_p99: percentile(&joins, 0.99),
        get_ms_p50: percentile(&gets, 0.5),
        get_ms_p99: percentile(&gets, 0.99),
    }
}

fn row(cell: &Cell, reports: &[PlayerReport], samples: Vec<Sample>, conditions: Conditions) -> Row {
    let measured = || reports.iter().map(|report| &report.measurements);
    let watched = measured().filter(|m| m.join.first_byte.is_some());
    let kbps: f64 = watched.filter_map(|m| m.bitrate).map(|rate| rate.as_bps() as f64 / 1_000.0).sum();
    let longest = |of: &dyn Fn(&anabranch_live_proto::play::Measurements) -> Span| {
        measured().map(|m| of(m).as_secs_f64()).fold(0.0, f64::max)
    };
    Row {
        fault: cell.fault,
        seed: cell.seed,
        kind: cell.kind.word(),
        mode: cell.mode,
        fault_share: matches!(cell.fault, Fault::LinksDegraded | Fault::UpdatesDropped).then_some(cell.share),
        channels: cell.channels,
        rate_mbps: cell.rate.as_mbps_f64(),
        joins: joins(reports),
        service: ServiceRow {
            mean_kbps: kbps / cell.channels as f64,
            optimal_kbps: optimal_kbps(cell),
            stalls: measured().map(|m| m.stalls).sum(),
            stalled_viewers: measured().filter(|m| m.stalls > 0).count(),
            stalled_s: measured().map(|m| m.stalled.as_secs_f64()).sum(),
            gap_max_s: longest(&|m| m.gap_max),
            recovery_max_s: longest(&|m| m.recovery_max),
        },
        requests: RequestCounts {
            refused: measured().map(|m| m.counts.refused).sum(),
            failed: measured().map(|m| m.counts.failed).sum(),
            downgrades: measured().map(|m| m.counts.downgrades).sum(),
            edge_changes: measured().map(|m| m.counts.edge_changes).sum(),
        },
        conditions,
        samples,
    }
}
