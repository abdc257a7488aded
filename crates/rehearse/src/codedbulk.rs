//! One cell of CodedBulk's Figures 8 to 10: concurrent transfers by one scheme, below interactive
//! traffic of higher priority (section 4.1).
//!
//! A cell's *draw* (sources, destinations) depends only on topology, counts and seed, so every
//! scheme gets the same draw. Draws of one seed are nested: a draw of fewer transfers is a prefix
//! of a draw of more. Throughput is each destination's verified bytes, over a common window that
//! begins `warm_up` after the last transfer started. A transfer's rate is the rate of its slowest
//! destination, and the cell's rate is the sum of its transfers' rates.
//!
//! A cell has two predictions, both without protocol overhead. Whole plans share the capacity that
//! interactive traffic leaves ([`share_links`]), or single flows share this capacity
//! ([`share_flows`]), as TCP does.
//!
//! With `--fill`, uncoded traffic of the lowest priority fills the capacity that coded flows leave
//! (Figure 6). Read [`Cell`] and [`Row`] first.

pub mod interactive;

use crate::fleet::{Fleet, make_keys};
use crate::replicate::stage::{DaemonSettings, RunningSends, TransferEvents, keys_of, make_file};
use anabranch_emu::{Emulation, EmulationOptions, LinkCounters, Report};
use anabranch_graph::Topology;
use anabranch_replicate_proto::plan::schemes::{DrawnTransfer, JOINT, ceilings, plans};
use anabranch_replicate_proto::plan::survey::concurrent;
use anabranch_replicate_proto::plan::{Scheme, share_flows, share_flows_under, share_links};
use anabranch_units::{BitRate, ByteCount, Seed, SiteId};
use anyhow::{Context as _, ensure};
use interactive::{InteractiveTraffic, Totals};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The cell, as options of a command.
#[derive(Clone, Debug, clap::Args)]
pub struct Cell {
    /// Rate of every link for which the topology states no rate.
    #[arg(long, value_name = "RATE", default_value = "5 Mbit/s")]
    pub rate: BitRate,
    /// Schemes, each run in its own emulation: auto, coded, packed, steiner, steiner_one_tree,
    /// multi_path, single_path, or joint. With joint, all transfers are planned together by auto;
    /// otherwise each transfer is planned as if it were alone.
    #[arg(
        long,
        value_name = "SCHEME,SCHEME",
        value_delimiter = ',',
        default_value = "coded,steiner,multi_path,single_path"
    )]
    pub schemes: Vec<String>,
    /// Number of concurrent transfers. Each site is the source of at most one transfer.
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    pub concurrent: usize,
    /// Number of destinations of each transfer.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub destinations: usize,
    /// Mean load of interactive traffic over all links, as a share of their rate.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub load: f64,
    /// Seed of the draw and of the interactive traffic.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seconds between the starts of two transfers.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub stagger: u64,
    /// Seconds between the start of the last transfer and the window.
    #[arg(long, value_name = "SECONDS", default_value_t = 6)]
    pub warm_up: u64,
    /// Seconds of the window in which throughput is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 12)]
    pub seconds: u64,
    /// Maximum size of an IP packet.
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u32,
    /// Maximum buffer of a TCP socket, in each direction.
    #[arg(long, value_name = "SIZE", default_value = "128 KiB")]
    pub tcp_buffer: ByteCount,
    /// Bytes of a packet between sites.
    #[arg(long, value_name = "SIZE", default_value = "4 KiB")]
    pub symbol: ByteCount,
    /// Number of packets that each virtual buffer holds.
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub buffer_packets: u16,
    /// Congestion control on every hop, by the kernel's name.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    pub congestion_control: String,
    /// Maximum 99th percentile of the emulator's lateness at which a run is trusted, in
    /// microseconds.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 1000)]
    pub lateness: u64,
    /// Seconds for which a destination may delay its transfer before the controller gives it up.
    /// With the default, no destination is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub patience: u64,
    /// Folder for the run's files, which are removed unless the run fails.
    #[arg(long, value_name = "DIR", default_value = "runs/experiment")]
    pub out: PathBuf,
    /// Send uncoded data of the lowest priority in the capacity that coded flows leave (Figure 6).
    /// Predictions do not count this data.
    #[arg(long)]
    pub fill: bool,
}

/// The result of one scheme in the cell.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// Name of the topology.
    pub topology: String,
    /// The scheme, or `joint`.
    pub scheme: String,
    /// Number of concurrent transfers.
    pub concurrent: usize,
    /// Number of destinations of each transfer.
    pub destinations: usize,
    /// Mean share of the links' rate that interactive traffic takes.
    pub load: f64,
    /// Seed of the draw and of the interactive traffic.
    pub seed: u64,
    /// Rate of every link for which the topology states no rate.
    pub rate_mbps: f64,
    /// Sum of the transfers' rates; `None` for a prediction without measurement.
    pub aggregate_mbps: Option<f64>,
    /// Predicted sum of the rates if whole plans share the capacity that interactive traffic
    /// leaves.
    pub planned_mbps: f64,
    /// Predicted sum of the rates if single flows share that capacity.
    pub planned_flows_mbps: f64,
    /// Rate of the slowest transfer; `None` for a prediction without measurement.
    pub slowest_mbps: Option<f64>,
    /// Predicted rate of the slowest transfer if single flows share the links.
    pub planned_slowest_mbps: f64,
    /// Designed interactive rate of each link, by id.
    pub interactive_link_mbps: Vec<f64>,
    /// The transfers, in the order of the draw.
    pub transfers: Vec<TransferRow>,
    /// The measurement; `None` for a prediction.
    pub measured: Option<MeasurementConditions>,
}

/// One transfer of a cell.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TransferRow {
    /// Site of the file.
    pub source: u16,
    /// Sites that get a copy.
    pub destinations: Vec<u16>,
    /// Scheme that `auto` chose; otherwise the requested scheme.
    pub ran: String,
    /// Min-cut between source and destinations, without other traffic.
    pub bound_mbps: f64,
    /// Predicted rate without other traffic.
    pub alone_mbps: f64,
    /// Predicted rate if whole plans share the capacity that interactive traffic leaves.
    pub planned_mbps: f64,
    /// Predicted rate if single flows share the links.
    pub planned_flows_mbps: f64,
    /// Number of flows that are coded sums.
    pub coding_flows: usize,
    /// Measured rate of each destination over the measurement window.
    pub rates_mbps: Vec<f64>,
    /// Reasons for stopped or postponed attempts before the measurement window's end.
    pub stops: Vec<String>,
}

/// The conditions and the quality of a measurement.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MeasurementConditions {
    /// Time between the last transfer's start and the measurement window, in seconds.
    pub warm_up_s: u64,
    /// Length of the measurement window in seconds.
    pub window_s: f64,
    /// Congestion control on every hop, by the kernel's name.
    pub congestion_control: String,
    /// Largest IP packet.
    pub mtu_bytes: u32,
    /// Largest buffer of a TCP socket in each direction.
    pub tcp_buffer_bytes: u64,
    /// Bytes of a packet between sites.
    pub symbol_bytes: u64,
    /// Packets that each virtual buffer holds.
    pub buffer_packets: u16,
    /// Whether uncoded traffic of the lowest priority fills the links.
    pub fill: bool,
    /// True if the run can be trusted, so that `why` is empty.
    pub trusted: bool,
    /// Reasons not to trust the run.
    pub why: Vec<String>,
    /// Median lateness of the emulator's packets.
    pub lateness_us_p50: f64,
    /// 99th percentile of the lateness of the emulator's packets.
    pub lateness_us_p99: f64,
    /// Busiest forwarding thread, as a share of a processor.
    pub forwarder_cpu_share_max: f64,
    /// Packets that the emulator forwarded.
    pub packets: u64,
    /// Interactive rate from each site to each other site.
    pub interactive_pair_bps: u64,
    /// Interactive bytes sent over interactive bytes due, over the whole run.
    pub interactive_sent_share: f64,
    /// Interactive bytes received over interactive bytes sent.
    pub interactive_received_share: f64,
    /// 99th percentile of the generators' lateness, at the worst site: a measure of missing
    /// processor time.
    pub programs_late_us_p99: u64,
    /// Bytes on each link in the measurement window, by link id.
    pub link_bytes: Vec<u64>,
    /// Mean share of the links' capacity that was used in the measurement window.
    pub link_share_mean: f64,
    /// Packets dropped by full queues until the end of the measurement window.
    pub queue_drops: u64,
}

/// Draws the cell's transfers.
///
/// Errors: counts and loads that are impossible in the topology, each in one line.
pub fn draw(topology: &Topology, cell: &Cell) -> anyhow::Result<Vec<DrawnTransfer>> {
    let (count, most) = (topology.sites().len(), topology.sites().len() - 1);
    ensure!(
        (1..=count).contains(&cell.concurrent),
        "--concurrent {}: 1 to {count}, as each site of {} is the source of at most one transfer",
        cell.concurrent,
        topology.name()
    );
    ensure!((1..=most).contains(&cell.destinations), "--destinations {}: 1 to {most}", cell.destinations);
    ensure!(
        cell.schemes.iter().all(|s| *s != Scheme::SteinerStoreAndForward.to_string()),
        "--schemes {}: no site has the file whole within the window: time it with `anabranch demo`",
        Scheme::SteinerStoreAndForward
    );
    ensure!((0.0..0.9).contains(&cell.load), "--load {}: 0 to 0.9", cell.load);
    let drawn = concurrent(topology, Seed::new(cell.seed), cell.concurrent, cell.destinations);
    Ok(drawn.into_iter().map(|(source, destinations)| DrawnTransfer { source, destinations }).collect())
}

/// Plans the cell's transfers by a scheme, and predicts their rates.
///
/// Errors: an error of the planner.
pub fn predict(
    topology: &Topology,
    drawn: &[DrawnTransfer],
    traffic: &InteractiveTraffic,
    scheme: &str,
    cell: &Cell,
) -> anyhow::Result<Row> {
    let full: Vec<u64> = topology.links().iter().map(|l| l.properties.capacity.as_bps()).collect();
    let left: Vec<u64> = topology
        .links()
        .iter()
        .zip(&traffic.on_link)
        .map(|(l, busy)| l.properties.capacity.as_bps().saturating_sub(busy.as_bps()))
        .collect();
    let (plans, coding) = plans(topology, drawn, scheme)?;
    let flows = share_flows_under(&left, &plans, &ceilings(&plans, scheme));
    let whole = share_links(&left, &plans);
    let transfers: Vec<TransferRow> = (0..drawn.len())
        .map(|i| TransferRow {
            source: drawn[i].source.0,
            destinations: drawn[i].destinations.iter().map(|d| d.0).collect(),
            ran: plans[i].scheme.to_string(),
            bound_mbps: plans[i].bound.as_mbps_f64(),
            alone_mbps: share_flows(&full, &plans[i..=i])[0].as_mbps_f64(),
            planned_mbps: whole[i].as_mbps_f64(),
            planned_flows_mbps: flows[i].as_mbps_f64(),
            coding_flows: coding[i],
            rates_mbps: Vec::new(),
            stops: Vec::new(),
        })
        .collect();
    Ok(Row {
        topology: topology.name().to_owned(),
        scheme: scheme.to_owned(),
        concurrent: cell.concurrent,
        destinations: cell.destinations,
        load: cell.load,
        seed: cell.seed,
        rate_mbps: cell.rate.as_mbps_f64(),
        aggregate_mbps: None,
        planned_mbps: whole.iter().map(|r| r.as_mbps_f64()).sum(),
        planned_flows_mbps: flows.iter().map(|r| r.as_mbps_f64()).sum(),
        slowest_mbps: None,
        planned_slowest_mbps: flows.iter().map(|r| r.as_mbps_f64()).fold(f64::INFINITY, f64::min),
        interactive_link_mbps: traffic.on_link.iter().map(|r| r.as_mbps_f64()).collect(),
        transfers,
        measured: None,
    })
}

/// Minimum share of the interactive packets that the sites' programs must receive. These packets
/// have priority, so a lower share means that the programs lacked processor time.
const RECEIVED_SHARE_MIN: f64 = 0.97;
/// Maximum lateness of the sites' programs: the length in time of a link's full queue (100 ms).
/// Above it, the programs shape the traffic more than the queues do.
const PROGRAMS_LATE_US_MAX: u64 = 100_000;

/// Maximum time until all transfers have started.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two checks of the transfers' events.
const LOOK: Duration = Duration::from_millis(20);
/// Time after the window in which events of its last moment may still arrive.
const LINGER: Duration = Duration::from_millis(1_500);

/// Runs the cell by the row's scheme on an emulated network, and stores the measurements in `row`.
///
/// Errors: an error of the operating system; a transfer that did not start, or ended within the
/// window.
pub fn measure(
    topology: &Topology,
    drawn: &[DrawnTransfer],
    traffic: &InteractiveTraffic,
    row: &mut Row,
    cell: &Cell,
) -> anyhow::Result<Report> {
    std::fs::create_dir_all(&cell.out).with_context(|| format!("--out {}", cell.out.display()))?;
    let out = cell.out.canonicalize()?;
    let keys = out.join(format!("keys-{}", topology.name()));
    if !keys.join("ca.pem").exists() {
        make_keys(&keys, &keys_of(topology))?;
    }
    let stage = DaemonSettings {
        topology: topology.clone(),
        folder: out.join(format!("{}-{}", topology.name(), row.scheme)),
        keys,
        controller: SiteId(0),
        fill: cell.fill,
        patience: Some(Duration::from_secs(cell.patience)),
        joint: Some(row.scheme == JOINT),
    };
    stage.make_folders()?;
    // Large enough that no transfer ends within the window: twice the bytes of the fastest plan.
    let fastest = row.transfers.iter().map(|t| t.bound_mbps).fold(0.0, f64::max);
    let staggered = cell.stagger * drawn.len() as u64;
    let seconds = (staggered + cell.warm_up + cell.seconds) as f64 + LINGER.as_secs_f64() + 5.0;
    let size = ByteCount::new((fastest * 1e6 / 8.0 * seconds * 2.0) as u64);
    make_file(&stage.folder.join("file.bin"), size)?;
    for d in drawn {
        std::fs::hard_link(stage.folder.join("file.bin"), stage.site_folder(d.source).join("file.bin"))?;
    }
    let options = EmulationOptions {
        mtu: cell.mtu,
        tcp_buffer_bytes_max: Some(cell.tcp_buffer),
        seed: Seed::new(cell.seed),
        lateness_p99_max: anabranch_units::Duration::from_us(cell.lateness),
        ..EmulationOptions::default()
    };
    let emulation = Emulation::start(topology, options)?;
    let mut fleet = Fleet::in_folder(&stage.folder);
    stage.start_daemons(&emulation, &mut fleet)?;
    let generators = start_interactive(&stage, &emulation, traffic, cell)?;
    let sends = send_all(&stage, &emulation, drawn, &row.scheme, cell)?;
    let window = watch(&emulation, &sends, cell);
    let heard = sends.end();
    let window = window.with_context(|| format!("{} (logs in {})", row.scheme, stage.folder.display()))?;
    let totals = end_interactive(generators)?;
    let report = emulation.report()?;
    drop(fleet);
    drop(emulation);
    let lost = heard.iter().position(|heard| heard.has_lost_a_site);
    for ((transfer, heard), d) in row.transfers.iter_mut().zip(heard).zip(drawn) {
        let rate = |d: &SiteId| window.rate_mbps(&heard, &topology.site(*d).name);
        transfer.rates_mbps = d.destinations.iter().map(rate).collect();
        transfer.stops = heard.stops;
    }
    let slowest = |t: &TransferRow| t.rates_mbps.iter().copied().fold(f64::INFINITY, f64::min);
    row.aggregate_mbps = Some(row.transfers.iter().map(slowest).sum());
    row.slowest_mbps = row.transfers.iter().map(slowest).reduce(f64::min);
    let link_bytes: Vec<u64> =
        window.after.iter().zip(&window.before).map(|(a, b)| a.sent_bytes - b.sent_bytes).collect();
    let capacity: u64 = topology.links().iter().map(|l| l.properties.capacity.as_bps()).sum();
    let window_s = (window.end - window.begin).as_secs_f64();
    let pairs = topology.sites().len() as f64 * (topology.sites().len() - 1) as f64;
    let offered = pairs * traffic.pair.as_bps() as f64 / 8.0 * totals.took_s;
    let received =
        if offered > 0.0 { totals.received_bytes as f64 / totals.sent_bytes.max(1) as f64 } else { 1.0 };
    let why = distrust(&report, received, &totals, lost.map(|index| &row.transfers[index]));
    row.measured = Some(MeasurementConditions {
        warm_up_s: cell.warm_up,
        window_s,
        congestion_control: cell.congestion_control.clone(),
        mtu_bytes: cell.mtu,
        tcp_buffer_bytes: cell.tcp_buffer.as_u64(),
        symbol_bytes: cell.symbol.as_u64(),
        buffer_packets: cell.buffer_packets,
        fill: cell.fill,
        trusted: why.is_empty(),
        why,
        lateness_us_p50: report.lateness_us_p50,
        lateness_us_p99: report.lateness_us_p99,
        forwarder_cpu_share_max: report.forwarder.cpu_share_max,
        packets: report.packets,
        interactive_pair_bps: traffic.pair.as_bps(),
        interactive_sent_share: if offered > 0.0 { totals.sent_bytes as f64 / offered } else { 1.0 },
        interactive_received_share: received,
        programs_late_us_p99: totals.late_us_p99,
        link_share_mean: link_bytes.iter().sum::<u64>() as f64 * 8.0 / (capacity as f64 * window_s),
        queue_drops: window.after.iter().map(|c| c.dropped_queue_full).sum(),
        link_bytes,
    });
    let _ = std::fs::remove_dir_all(&stage.folder);
    Ok(report)
}

/// Starts the transfers one after another, `stagger` apart.
fn send_all(
    stage: &DaemonSettings,
    emulation: &Emulation,
    drawn: &[DrawnTransfer],
    scheme: &str,
    cell: &Cell,
) -> anyhow::Result<RunningSends> {
    let mut sends = RunningSends::default();
    for (index, d) in drawn.iter().enumerate() {
        if index > 0 {
            std::thread::sleep(Duration::from_secs(cell.stagger));
        }
        let (copy, log) = (format!("copy-{index}.bin"), format!("send-{index}.log"));
        let names = ("file.bin", &copy[..], &log[..]);
        let scheme = if scheme == JOINT { "auto" } else { scheme };
        let mut command = stage.send(emulation, d.source, &d.destinations, scheme, names)?;
        command.args(["--congestion-control", &cell.congestion_control]);
        command.args(["--symbol", &format!("{} B", cell.symbol.as_u64())]);
        command.args(["--buffer-packets", &cell.buffer_packets.to_string()]);
        sends.begin(emulation, d.source, command)?;
    }
    Ok(sends)
}

/// Returns the reasons not to trust a run. `lost` is a transfer with a site that the controller
/// lost.
fn distrust(report: &Report, received: f64, totals: &Totals, lost: Option<&TransferRow>) -> Vec<String> {
    // The emulator measures its own lateness, not the lateness of the programs in its sites.
    let mut why = report.why.clone();
    if received < RECEIVED_SHARE_MIN {
        why.push(format!(
            "only {:.1} % of the interactive packets were taken in: free a processor or lower the load",
            100.0 * received
        ));
    }
    if totals.late_us_p99 > PROGRAMS_LATE_US_MAX {
        why.push(format!(
            "a site's program ran more than {} us late 1 % of the time (bound {PROGRAMS_LATE_US_MAX} us): free a processor",
            totals.late_us_p99
        ));
    }
    if let Some(transfer) = lost {
        why.push(format!(
            "the controller lost sight of a site ({}): free a processor",
            transfer.stops.join("; ")
        ));
    }
    why
}

/// The common window, and the links' counters at its start and end.
struct Window {
    begin: Instant,
    end: Instant,
    before: Vec<LinkCounters>,
    after: Vec<LinkCounters>,
}

impl Window {
    /// Rate of a destination, from the first growth reported in the window to the last, so that the
    /// interval of reports does not matter. Without a report the rate is 0.
    fn rate_mbps(&self, heard: &TransferEvents, site: &str) -> f64 {
        let empty = Vec::new();
        let grown = heard.grown.get(site).unwrap_or(&empty);
        let seen: Vec<_> = grown.iter().filter(|(at, _)| (self.begin..=self.end).contains(at)).collect();
        match (seen.first(), seen.last()) {
            // If the time between these reports is less than half of the measurement window, the
            // transfer has stalled, so the rate is taken over the whole window.
            (Some((from, had)), Some((to, has))) => {
                let span = *to - *from;
                let window = self.end - self.begin;
                let span = if span < window / 2 { window } else { span };
                has.saturating_sub(*had) as f64 * 8.0 / 1e6 / span.as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

/// Waits until all transfers have started, and then for the window.
fn watch(emulation: &Emulation, sends: &RunningSends, cell: &Cell) -> anyhow::Result<Window> {
    let has_ended = || sends.heard().any(|heard| heard.has_ended);
    let began = Instant::now();
    let started = loop {
        let all: Vec<Option<Instant>> = sends.heard().map(|heard| heard.started).collect();
        let waiting = all.iter().filter(|started| started.is_none()).count();
        if waiting == 0 {
            break all.into_iter().flatten().max().context("a cell has transfers")?;
        }
        ensure!(!has_ended(), "a transfer ended before all had started: see its send log");
        ensure!(
            began.elapsed() < START_TIMEOUT,
            "{waiting} of {} transfers have not started after {} s",
            all.len(),
            START_TIMEOUT.as_secs()
        );
        std::thread::sleep(LOOK);
    };
    let begin = started + Duration::from_secs(cell.warm_up);
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    let before = emulation.counters()?;
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(cell.seconds));
    let after = emulation.counters()?;
    let end = Instant::now();
    std::thread::sleep(LINGER);
    ensure!(!has_ended(), "a transfer ended within the window: see its send log");
    Ok(Window { begin, end, before, after })
}

fn start_interactive(
    stage: &DaemonSettings,
    emulation: &Emulation,
    traffic: &InteractiveTraffic,
    cell: &Cell,
) -> anyhow::Result<Vec<Child>> {
    if traffic.pair.as_bps() == 0 {
        return Ok(Vec::new());
    }
    let all: Vec<SiteId> = stage.topology.site_ids().collect();
    let start = |site: &SiteId| -> anyhow::Result<Child> {
        let others = all.iter().filter(|s| *s != site);
        let to: Vec<String> = others.map(|s| emulation.site_address(*s).to_string()).collect();
        let mut command = stage.command(*site, "interactive.log")?;
        command.args(["experiment", "interactive", "--to", &to.join(",")]);
        command.args(["--rate", &format!("{} bit/s", traffic.pair.as_bps())]);
        command.args(["--seed", &cell.seed.to_string(), "--site", &site.0.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(emulation.spawn(*site, command)?)
    };
    all.iter().map(start).collect()
}

/// Ends the generators, and sums their totals.
fn end_interactive(generators: Vec<Child>) -> anyhow::Result<Totals> {
    let mut sum = Totals::default();
    let mut generators = generators;
    // All generators are told to end at the same time; then their outputs are read one by one.
    generators.iter_mut().for_each(|g| drop(g.stdin.take()));
    let count = generators.len().max(1) as f64;
    for generator in generators {
        let said = generator.wait_with_output()?;
        let totals: Totals = serde_json::from_slice(&said.stdout).context("a traffic generator failed")?;
        sum.sent_bytes += totals.sent_bytes;
        sum.received_bytes += totals.received_bytes;
        sum.took_s += totals.took_s / count;
        sum.late_us_p99 = sum.late_us_p99.max(totals.late_us_p99);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_graph::file::{Defaults, load};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        cell: Cell,
    }

    fn drawn(words: &[&str]) -> anyhow::Result<Vec<(u16, Vec<u16>)>> {
        let cell = Line::parse_from([&["experiment"], words].concat()).cell;
        let defaults = Defaults::new(cell.rate);
        let topology = load("internet2", &defaults, |_| Err(std::io::ErrorKind::NotFound.into()))?;
        let ids = |d: DrawnTransfer| (d.source.0, d.destinations.iter().map(|d| d.0).collect());
        Ok(draw(&topology, &cell)?.into_iter().map(ids).collect())
    }

    #[test]
    fn draws_of_one_seed_are_nested_and_sources_differ() {
        let all = drawn(&["--concurrent", "9", "--seed", "3"]).expect("internet2 has nine sites");
        let some = drawn(&["--concurrent", "4", "--seed", "3"]).expect("four of them");
        assert_eq!(some, all[..4]);
        let mut sources: Vec<u16> = all.iter().map(|(source, _)| *source).collect();
        sources.sort_unstable();
        assert_eq!(sources, (0..9).collect::<Vec<u16>>());
        let wider =
            drawn(&["--concurrent", "9", "--seed", "3", "--destinations", "5"]).expect("five of eight");
        for ((source, few), (same, many)) in all.iter().zip(&wider) {
            assert_eq!(source, same);
            assert!(few.iter().all(|d| many.contains(d) && d != source), "{few:?} {many:?}");
        }
    }

    #[test]
    fn more_transfers_than_sites_are_refused() {
        let error = drawn(&["--concurrent", "10"]).expect_err("nine sites");
        assert!(error.to_string().contains("--concurrent 10: 1 to 9"), "{error}");
    }
}
