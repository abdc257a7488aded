//! A run's results as rows of tables.
//!
//! Leaves out: how results are counted (`report.rs`). Read [`Outcome`] first.

use crate::end::UdpSink;
use anabranch_fabric::CircuitLatency;
use anabranch_units::Histogram;
use anabranch_units::stats::{fairness, percentile};
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
    /// One for each coflow, of workloads that have coflows.
    pub coflows: Vec<CoflowRow>,
    /// What was probed, by time.
    pub series: Vec<Sample>,
    /// One for each week of circuits that follow demand.
    pub weeks: Vec<WeekRow>,
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
    /// Of the flow that took the least time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_min: Option<f64>,
    /// Of the flow that took the longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_max: Option<f64>,
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
    /// Goodput of flows above 100 kB that were whole, each over its own time, in the mean over them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_flow_mbps_mean: Option<f64>,
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
    /// The median, to within 1/32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us_p50: Option<f64>,
    /// The 99th percentile, to within 1/32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us_p99: Option<f64>,
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
        let mean = |times: &[f64]| anabranch_units::stats::mean(times).map(|mean| mean.mean);
        let all = times(0, u64::MAX);
        self.finished = Some(all.len() as u64);
        self.fct_us_mean = mean(&all);
        (self.fct_us_min, self.fct_us_max) = (all.first().copied(), all.last().copied());
        (self.fct_us_p50, self.fct_us_p99) = (percentile(&all, 0.5), percentile(&all, 0.99));
        let (small, large) = (times(0, 100_000), times(10_000_000, u64::MAX));
        (self.small_fct_us_mean, self.small_fct_us_p99) = (mean(&small), percentile(&small, 0.99));
        self.large_fct_us_mean = mean(&large);
        let long = whole.0.iter().filter(|(size, _)| *size > 100_000);
        // Bits in a microsecond are megabits in a second.
        let rates: Vec<f64> = long.map(|(size, us)| *size as f64 * 8.0 / us).collect();
        self.long_flow_mbps_mean = mean(&rates);
    }

    /// Fills in what became of datagrams: how many were sent, and what their receivers counted.
    pub fn datagrams<'a>(&mut self, sent: u64, sinks: impl Iterator<Item = &'a UdpSink>) {
        let (mut received, mut overtaken, mut delay, mut delay_max) = (0, 0, 0, 0);
        let mut delays = Histogram::new();
        for sink in sinks {
            received += sink.received;
            overtaken += sink.overtaken;
            delay += sink.delay_sum_ps;
            delay_max = delay_max.max(sink.delay_max_ps);
            delays.merge(&sink.delays);
        }
        (self.sent_packets, self.received_packets) = (Some(sent), Some(received));
        self.overtaken_packets = Some(overtaken);
        self.delay_us_mean = (received > 0).then(|| delay as f64 / received as f64 / 1e6);
        let quantile = |share| (received > 0).then(|| delays.quantile_us(share));
        (self.delay_us_p50, self.delay_us_p99) = (quantile(0.5), quantile(0.99));
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
///
/// Packets are conserved: those that hosts sent are those that were delivered, that were dropped, and that are on their way.
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
    /// With `spread = "caps"`: the ways that no short flow took, among all, in the mean of a switch's samples in which some were there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused_ways_share_mean: Option<f64>,
    /// Bytes that a hybrid switch has sent by circuits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_bytes: Option<u64>,
    /// Bytes that a hybrid switch has sent by its packet network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_network_bytes: Option<u64>,
    /// Weeks of circuits that follow demand, the last one whole or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weeks: Option<u64>,
    /// Days of these weeks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days: Option<u64>,
    /// Latency of packets through a hybrid switch.
    #[serde(flatten)]
    pub latency: LatencyRow,
    /// Links that packets have passed, all together.
    pub packet_hops: u64,
    /// Events of the simulator.
    pub events: u64,
    /// Equal runs have equal hashes; in hexadecimal.
    pub event_hash: String,
}

/// Latency of data packets from entering a hybrid switch to leaving it, to within 1/32. `None` if no packet did.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize)]
pub struct LatencyRow {
    /// Median over all data packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us_p50: Option<f64>,
    /// 99th percentile over all data packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us_p99: Option<f64>,
    /// Median over packets that took a circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_latency_us_p50: Option<f64>,
    /// 99th percentile over packets that took a circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_latency_us_p99: Option<f64>,
    /// Median over packets that took the packet network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_network_latency_us_p50: Option<f64>,
    /// 99th percentile over packets that took the packet network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_network_latency_us_p99: Option<f64>,
}

impl LatencyRow {
    /// The row of a switch's measurements.
    pub(crate) fn of(latency: &CircuitLatency) -> Self {
        let quantile = |of: &Histogram, share| (of.total() > 0).then(|| of.quantile_us(share));
        let mut all = latency.circuit.clone();
        all.merge(&latency.packet);
        Self {
            latency_us_p50: quantile(&all, 0.5),
            latency_us_p99: quantile(&all, 0.99),
            circuit_latency_us_p50: quantile(&latency.circuit, 0.5),
            circuit_latency_us_p99: quantile(&latency.circuit, 0.99),
            packet_network_latency_us_p50: quantile(&latency.packet, 0.5),
            packet_network_latency_us_p99: quantile(&latency.packet, 0.99),
        }
    }
}

impl NetworkRow {
    pub(crate) const fn is_conserved(&self) -> bool {
        let dropped = self.dropped_queue_full + self.dropped_otherwise;
        self.injected_packets == self.delivered_packets + dropped + self.in_flight_packets
    }
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

/// What became of a coflow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoflowRow {
    /// Which workload, from 0.
    pub workload_index: u16,
    /// What it is called.
    pub coflow: String,
    /// How many flows it has.
    pub flows: u64,
    /// What they move, all together.
    pub size_bytes: u64,
    /// When the first of them was to begin.
    pub started_s: f64,
    /// How long it took until the last was whole, if it was.
    pub cct_us: Option<f64>,
}

/// One week of a hybrid switch whose circuits follow demand.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeekRow {
    /// Beginning of the week.
    pub begins_s: f64,
    /// Its length; shorter for a week in which the run ended.
    pub length_s: f64,
    /// Days of the week.
    pub days: u64,
    /// Demand that was seen when the week was decided.
    pub demand_bytes: u64,
    /// Reports of flows so far that were beyond a limit, so that the demand can be wrong.
    pub unknown_reports: u64,
    /// Bytes that entered circuits.
    pub circuit_bytes: u64,
    /// Bytes that left by the packet network.
    pub packet_network_bytes: u64,
    /// Share of the bytes that the week's circuits could have carried. `None` without circuits, or if the week was not whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_use_share: Option<f64>,
}

/// What was seen of a link or flow at a time; what does not apply is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// When.
    pub time_s: f64,
    /// Which link, as the scenario names it, or which flow.
    pub what: String,
    /// Bytes that waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<u64>,
    /// Packets that waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<u32>,
    /// What the link sent since the sample before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_mbps: Option<f64>,
    /// What arrived of the flow in order since the sample before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_mbps: Option<f64>,
    /// What the sender's rate control allows, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_mbps: Option<f64>,
    /// The sender's congestion window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwnd_bytes: Option<u64>,
    /// The sender's smoothed round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srtt_us: Option<f64>,
}
