//! What a run gave: a row for each workload, and rows for links, flows and samples for who wants more.
//!
//! Columns carry their units; what does not apply is left out. Read [`Outcome`] first.

use crate::end::{End, UdpSink};
use crate::network::Network;
use crate::run::{Sample, Simulation};
use crate::stats::{fairness, percentile};
use crate::traffic::{Flow, Job};
use anabranch_fabric::{Drop, EventQueue};
use anabranch_transport::Counters;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One for each workload, in the scenario's order.
    pub workloads: Vec<WorkloadRow>,
    /// What the network did.
    pub network: NetworkRow,
    /// One for each link.
    pub links: Vec<LinkRow>,
    /// One for each flow.
    pub flows: Vec<FlowRow>,
    /// One for each group of flows of which the last one counts, of workloads that have such.
    pub transfers: Vec<TransferRow>,
    /// What was probed, by time.
    pub series: Vec<Sample>,
}

/// What a workload got.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkloadRow {
    /// Which kind of workload.
    pub workload: String,
    /// Bytes that arrived in order, after the warm-up, over the time from there to the end of all work or of the run (incast:
    /// in all rounds, over the time of the rounds).
    pub goodput_mbps: Option<f64>,
    /// Flows that began.
    pub flows: u64,
    /// Of those with a size, how many were whole in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<u64>,
    /// Of the slowest flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_mbps_min: Option<f64>,
    /// Of the fastest flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_mbps_max: Option<f64>,
    /// Jain's index over the flows' goodput.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fairness_share: Option<f64>,
    /// Flow completion times: from the opening to the last byte's arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_mean: Option<f64>,
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_p50: Option<f64>,
    /// The 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_p99: Option<f64>,
    /// Of flows up to 100 kB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small_fct_us_mean: Option<f64>,
    /// Of flows up to 100 kB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small_fct_us_p99: Option<f64>,
    /// Of flows of 10 MB and more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub large_fct_us_mean: Option<f64>,
    /// Rounds of an incast that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u64>,
    /// How long they took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_us_p50: Option<f64>,
    /// How long the longest took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_us_max: Option<f64>,
    /// Datagrams sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_packets: Option<u64>,
    /// Datagrams received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_packets: Option<u64>,
    /// Of them, how many came after a later one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overtaken_packets: Option<u64>,
    /// Time from a datagram's leaving to its arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us_mean: Option<f64>,
    /// The longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us_max: Option<f64>,
    /// Segments that were sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmitted_segments: Option<u64>,
    /// Retransmission timeouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
    /// The congestion window of a flow when its first timeout went off, in the mean over flows that had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_timeout_cwnd_bytes_mean: Option<f64>,
    /// Losses found without a timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_recoveries: Option<u64>,
    /// Segments that arrived beyond a gap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order_segments: Option<u64>,
    /// The least that a probed flow got in an interval of the probe, as a share of the mean of all probed flows, after the
    /// warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed_share_min: Option<f64>,
    /// The most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed_share_max: Option<f64>,
    /// The longest time in which a probed flow got nothing after it had begun, in whole intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed_idle_us_max: Option<f64>,
    /// The least share of its rate that a probed link carried in an interval, by all workloads together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed_link_use_share_min: Option<f64>,
    /// What a system has to say besides, by column, with its unit in the name.
    #[serde(flatten)]
    pub more: BTreeMap<&'static str, f64>,
}

/// Flows that were whole: size in bytes, completion time in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times(pub Vec<(u64, f64)>);

impl WorkloadRow {
    /// Fills in what endless flows got: one goodput each, in Mbit/s.
    pub fn share(&mut self, mut rates_mbps: Vec<f64>) {
        self.fairness_share = fairness(&rates_mbps);
        rates_mbps.sort_by(f64::total_cmp);
        (self.flow_mbps_min, self.flow_mbps_max) = (rates_mbps.first().copied(), rates_mbps.last().copied());
    }

    /// Fills in how long flows took.
    pub fn complete(&mut self, whole: &Times) {
        let times = |least: u64, most: u64| {
            let sized = whole.0.iter().filter(|(size, _)| (least..=most).contains(size));
            let mut times: Vec<f64> = sized.map(|(_, us)| *us).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let mean = |times: &[f64]| crate::stats::mean(times).map(|mean| mean.mean);
        let all = times(0, u64::MAX);
        self.finished = Some(all.len() as u64);
        self.fct_us_mean = mean(&all);
        (self.fct_us_p50, self.fct_us_p99) = (percentile(&all, 0.5), percentile(&all, 0.99));
        let (small, large) = (times(0, 100_000), times(10_000_000, u64::MAX));
        (self.small_fct_us_mean, self.small_fct_us_p99) = (mean(&small), percentile(&small, 0.99));
        self.large_fct_us_mean = mean(&large);
    }

    /// Fills in what became of datagrams: how many were sent, and what their receivers counted.
    pub fn datagrams<'a>(&mut self, sent: u64, sinks: impl Iterator<Item = &'a UdpSink>) {
        let (mut received, mut overtaken, mut delay, mut delay_max) = (0, 0, 0, 0);
        for sink in sinks {
            received += sink.received;
            overtaken += sink.overtaken;
            delay += sink.delay_sum_ps;
            delay_max = delay_max.max(sink.delay_max_ps);
        }
        (self.sent_packets, self.received_packets) = (Some(sent), Some(received));
        self.overtaken_packets = Some(overtaken);
        self.delay_us_mean = (received > 0).then(|| delay as f64 / received as f64 / 1e6);
        self.delay_us_max = (received > 0).then_some(delay_max as f64 / 1e6);
    }

    /// Fills in how long the rounds of an incast took, each of `round_bytes`.
    pub fn rounds(&mut self, mut times_us: Vec<f64>, round_bytes: u64) {
        let total_us: f64 = times_us.iter().sum();
        let bits = (round_bytes * times_us.len() as u64) as f64 * 8.0;
        // Bits in a microsecond are megabits in a second.
        self.goodput_mbps = (total_us > 0.0).then(|| bits / total_us);
        self.rounds = Some(times_us.len() as u64);
        times_us.sort_by(f64::total_cmp);
        (self.round_us_p50, self.round_us_max) = (percentile(&times_us, 0.5), times_us.last().copied());
    }
}

/// What the network did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworkRow {
    /// The run's own time.
    pub simulated_s: f64,
    /// Packets that hosts sent.
    pub injected_packets: u64,
    /// Packets that reached their host.
    pub delivered_packets: u64,
    /// Packets that were on their way in the end.
    pub in_flight_packets: u64,
    /// Packets that found their queue full.
    pub dropped_queue_full: u64,
    /// Packets lost otherwise: by chance, by bit errors, with a link that went down, without a route.
    pub dropped_otherwise: u64,
    /// Packets that queues marked.
    pub marked_packets: u64,
    /// Links that packets have passed, all together.
    pub packet_hops: u64,
    /// Events of the simulator.
    pub events: u64,
    /// Equal runs have equal hashes; in hexadecimal.
    pub event_hash: String,
}

/// What a link carried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkRow {
    /// Where it begins.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Of what it could have sent in the whole run.
    pub use_share: f64,
    /// Packets that found its queue full.
    pub dropped_queue_full: u64,
    /// Packets lost here otherwise.
    pub dropped_otherwise: u64,
    /// Packets marked here.
    pub marked_packets: u64,
    /// Time that a packet waited here.
    pub wait_us_mean: f64,
    /// The longest.
    pub wait_us_max: f64,
}

/// What became of a flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowRow {
    /// Which workload, from 0.
    pub workload_index: u16,
    /// The host that sends.
    pub from: String,
    /// The host that receives.
    pub to: String,
    /// Its size; none if it is endless.
    pub size_bytes: Option<u64>,
    /// When it was opened.
    pub started_s: f64,
    /// How long it took, if it was whole.
    pub fct_us: Option<f64>,
    /// Bytes that arrived in order.
    pub delivered_bytes: u64,
    /// Segments that were sent again.
    pub retransmitted_segments: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
}

/// What became of a group of flows of which the last one counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferRow {
    /// Which workload, from 0.
    pub workload_index: u16,
    /// What it is called.
    pub transfer: String,
    /// How many flows it has.
    pub flows: u64,
    /// What they move, all together.
    pub size_bytes: u64,
    /// When the first of them was to begin.
    pub started_s: f64,
    /// How long it took until the last was whole, if it was.
    pub tct_us: Option<f64>,
}

fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn mbps(bytes: u64, time: Duration) -> Option<f64> {
    BitRate::average(ByteCount::new(bytes), time).map(BitRate::as_mbps_f64)
}

impl Outcome {
    pub(crate) fn of<Q: EventQueue>(mut simulation: Simulation<'_, Q>) -> Self {
        let series = simulation.take_series();
        let s = &simulation;
        let all = s.traffic().flows();
        let counted: Vec<(Counters, u64)> = all.iter().map(|flow| counters(s, flow)).collect();
        let mut workloads = Vec::new();
        for (number, job) in s.traffic().jobs().iter().enumerate() {
            let of_job = all.iter().zip(&counted).filter(|(flow, _)| usize::from(flow.job) == number);
            let mut row = row(s, job, &of_job.collect::<Vec<_>>());
            seen(s, number as u16, &mut row);
            row.workload = s.plan().scenario.workload[number].kind().to_owned();
            workloads.push(row);
        }
        let name = |host: u16| {
            let network = s.plan().network();
            network.topology().site(network.hosts()[usize::from(host)]).name.clone()
        };
        let flows = all.iter().zip(&counted).map(|(flow, (sent, _))| FlowRow {
            workload_index: flow.job,
            from: name(flow.src),
            to: name(flow.dst),
            size_bytes: flow.size.map(ByteCount::as_u64),
            started_s: flow.started_at.as_secs_f64(),
            fct_us: flow.finished_at.map(|at| us(at - flow.started_at)),
            delivered_bytes: flow.delivered_bytes,
            retransmitted_segments: sent.retransmitted_segments,
            timeouts: sent.timeouts,
        });
        let flows = flows.collect();
        let mut transfers = Vec::new();
        for (number, job) in s.traffic().jobs().iter().enumerate() {
            let Job::App(app) = job else { continue };
            transfers.extend(app.transfers().into_iter().map(|transfer| TransferRow {
                workload_index: number as u16,
                transfer: transfer.name,
                flows: transfer.flows,
                size_bytes: transfer.size.as_u64(),
                started_s: transfer.started_at.as_secs_f64(),
                tct_us: transfer.finished_at.map(|at| us(at - transfer.started_at)),
            }));
        }
        Self { workloads, network: network(s), links: links(s), flows, transfers, series }
    }
}

/// What a flow's sender has done, and the segments that reached its receiver out of order.
fn counters<Q: EventQueue>(s: &Simulation<'_, Q>, flow: &Flow) -> (Counters, u64) {
    let of = |id| match s.hosts().end(id) {
        Some(End::Tcp(connection)) => connection.counters(),
        _ => Counters::default(),
    };
    match flow.sent {
        Some(sent) => (sent, flow.out_of_order_segments),
        None => (of(flow.sender), of(flow.receiver).out_of_order_segments),
    }
}

/// Fills in what a probe saw of a workload's flows.
fn seen<Q: EventQueue>(s: &Simulation<'_, Q>, number: u16, row: &mut WorkloadRow) {
    let (flows, link_use) = s.seen(number);
    row.probed_link_use_share_min = link_use;
    for flow in flows {
        row.probed_idle_us_max = Some(row.probed_idle_us_max.unwrap_or(0.0).max(us(flow.idle_max)));
        let Some((least, most)) = flow.shares else { continue };
        row.probed_share_min = Some(row.probed_share_min.map_or(least, |before| before.min(least)));
        row.probed_share_max = Some(row.probed_share_max.map_or(most, |before| before.max(most)));
    }
}

fn row<Q: EventQueue>(s: &Simulation<'_, Q>, job: &Job, flows: &[(&Flow, &(Counters, u64))]) -> WorkloadRow {
    let from = Instant::ZERO + s.plan().scenario.warmup;
    // A run goes on for some events after its work is done.
    let measured = s.traffic().ended_at().unwrap_or(s.now()).saturating_since(from);
    let bytes = |flow: &Flow| if flow.is_control { 0 } else { flow.delivered_bytes - flow.warmup_bytes };
    let sum = |of: fn(&Counters) -> u64| Some(flows.iter().map(|(_, (sent, _))| of(sent)).sum());
    let mut row = WorkloadRow {
        flows: flows.len() as u64,
        goodput_mbps: mbps(flows.iter().map(|(flow, _)| bytes(flow)).sum(), measured),
        ..WorkloadRow::default()
    };
    if !matches!(job, Job::Udp(_)) {
        row.retransmitted_segments = sum(|sent| sent.retransmitted_segments);
        row.timeouts = sum(|sent| sent.timeouts);
        let cwnds: Vec<f64> =
            flows.iter().filter_map(|(_, (sent, _))| Some(sent.first_timeout_cwnd_bytes? as f64)).collect();
        row.first_timeout_cwnd_bytes_mean = crate::stats::mean(&cwnds).map(|mean| mean.mean);
        row.fast_recoveries = sum(|sent| sent.fast_recoveries);
        row.out_of_order_segments = Some(flows.iter().map(|(_, (_, beyond))| *beyond).sum());
    }
    match job {
        Job::Transfers(_) => {
            let is_endless = flows.iter().all(|(flow, _)| flow.size.is_none());
            if is_endless {
                row.share(flows.iter().filter_map(|(flow, _)| mbps(bytes(flow), measured)).collect());
                return row;
            }
            let whole = flows
                .iter()
                .filter_map(|(flow, _)| Some((flow.size?.as_u64(), us(flow.finished_at? - flow.started_at))));
            row.complete(&Times(whole.collect()));
        }
        Job::Incast(incast) => {
            let times = incast.rounds().iter().map(|round| us(round.ended_at - round.began_at)).collect();
            row.rounds(times, incast.round_bytes());
        }
        Job::Udp(_) => {
            let sent = flows.iter().map(|(flow, _)| match s.hosts().end(flow.sender) {
                Some(End::UdpSource(source)) => source.sent(),
                _ => 0,
            });
            let sinks = flows.iter().filter_map(|(flow, _)| match s.hosts().end(flow.receiver) {
                Some(End::UdpSink(sink)) => Some(sink),
                _ => None,
            });
            row.datagrams(sent.sum(), sinks);
        }
        Job::App(app) => app.report(measured, &mut row),
    }
    row
}

fn network<Q: EventQueue>(s: &Simulation<'_, Q>) -> NetworkRow {
    let totals = s.totals();
    let full = totals.drops.of(Drop::QueueFull);
    let counters = s.links().filter_map(|link| s.fabric().port_counters(Network::port(link)));
    NetworkRow {
        simulated_s: s.now().as_secs_f64(),
        injected_packets: totals.injected,
        delivered_packets: totals.delivered,
        in_flight_packets: s.in_flight(),
        dropped_queue_full: full,
        dropped_otherwise: totals.drops.total() - full,
        marked_packets: counters.map(|c| c.marked_packets).sum(),
        packet_hops: s.packet_hops(),
        events: totals.events,
        event_hash: format!("{:016x}", s.event_hash()),
    }
}

fn links<Q: EventQueue>(s: &Simulation<'_, Q>) -> Vec<LinkRow> {
    let topology = s.plan().network().topology();
    let row = |link| {
        let c = s.fabric().port_counters(Network::port(link))?;
        let ends = topology.link(link);
        let full = c.drops.of(Drop::QueueFull);
        let could = ends.properties.capacity.as_bps() as f64 / 8.0 * s.now().as_secs_f64();
        Some(LinkRow {
            from: topology.site(ends.from).name.clone(),
            to: topology.site(ends.to).name.clone(),
            sent_packets: c.sent_packets,
            sent_bytes: c.sent_bytes,
            use_share: if could > 0.0 { c.sent_bytes as f64 / could } else { 0.0 },
            dropped_queue_full: full,
            dropped_otherwise: c.drops.total() - full,
            marked_packets: c.marked_packets,
            wait_us_mean: c.wait_sum.mean(c.sent_packets).map_or(0.0, us),
            wait_us_max: us(c.wait_max),
        })
    };
    s.links().filter_map(row).collect()
}
