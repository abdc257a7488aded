//! A run's results as rows of tables.
//!
//! Leaves out: how results are computed (`report.rs`). Read [`Outcome`] first.

use crate::end::UdpSink;
use anabranch_fabric::CircuitLatency;
use anabranch_units::stats::{fairness, percentile};
use anabranch_units::{BitRate, ByteCount, Duration, Histogram};
use serde::Serialize;
use std::collections::BTreeMap;

/// Results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Rows of the workloads, in the scenario's order.
    pub workloads: Vec<WorkloadRow>,
    /// Row of the network.
    pub network: NetworkRow,
    /// Rows of the links.
    pub links: Vec<LinkRow>,
    /// Rows of the flows.
    pub flows: Vec<FlowRow>,
    /// Rows of the coflows, for workloads that have coflows.
    pub coflows: Vec<CoflowRow>,
    /// Samples, in order of time.
    pub series: Vec<Sample>,
    /// Rows of the weeks of circuits that follow demand.
    pub weeks: Vec<WeekRow>,
}

/// Results of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkloadRow {
    /// Kind of the workload.
    pub workload: String,
    /// Goodput in Mbit/s: bytes received in order after the warm-up, over the time from then to the
    /// end of all work or of the run. For an incast: bytes of all rounds over the time of the
    /// rounds.
    pub goodput_mbps: Option<f64>,
    /// Number of flows started.
    pub flows: u64,
    /// Number of complete flows, among flows with a known size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<u64>,
    /// Goodput of the slowest flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_mbps_min: Option<f64>,
    /// Goodput of the fastest flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_mbps_max: Option<f64>,
    /// Jain's fairness index over the flows' goodput.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fairness_share: Option<f64>,
    /// Mean flow completion time, from the opening of the flow to the arrival of the last byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_mean: Option<f64>,
    /// Minimum completion time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_min: Option<f64>,
    /// Maximum completion time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_max: Option<f64>,
    /// Median completion time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_p50: Option<f64>,
    /// 99th percentile of completion times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us_p99: Option<f64>,
    /// Mean completion time of flows up to 100 kB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small_fct_us_mean: Option<f64>,
    /// 99th percentile of completion times of flows up to 100 kB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small_fct_us_p99: Option<f64>,
    /// Mean completion time of flows of 10 MB and more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub large_fct_us_mean: Option<f64>,
    /// Mean goodput of complete flows above 100 kB, each over the flow's duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_flow_mbps_mean: Option<f64>,
    /// Number of complete rounds of an incast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u64>,
    /// Median duration of a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_us_p50: Option<f64>,
    /// Maximum duration of a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_us_max: Option<f64>,
    /// Datagrams sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_packets: Option<u64>,
    /// Datagrams received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_packets: Option<u64>,
    /// Received datagrams that a later one had overtaken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overtaken_packets: Option<u64>,
    /// Mean delay of datagrams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us_mean: Option<f64>,
    /// Median delay of datagrams, to within 1/32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us_p50: Option<f64>,
    /// 99th percentile of delays, to within 1/32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us_p99: Option<f64>,
    /// Maximum delay of datagrams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us_max: Option<f64>,
    /// Segments retransmitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmitted_segments: Option<u64>,
    /// Retransmission timeouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
    /// Mean congestion window at a flow's first timeout, over flows that had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_timeout_cwnd_bytes_mean: Option<f64>,
    /// Number of losses detected without a timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_recoveries: Option<u64>,
    /// Number of segments that arrived beyond a gap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order_segments: Option<u64>,
    /// Minimum, over intervals after the warm-up, of a probed flow's goodput relative to the mean
    /// of all probed flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed_share_min: Option<f64>,
    /// Maximum, over intervals after the warm-up, of a probed flow's goodput relative to the mean
    /// of all probed flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed_share_max: Option<f64>,
    /// Longest time, in whole intervals, in which a probed flow received no data after its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed_idle_us_max: Option<f64>,
    /// Minimum use of a probed link in an interval by all workloads together, as a share of the
    /// link's rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed_link_use_share_min: Option<f64>,
    /// Further figures of a system by column, with the unit in the name.
    #[serde(flatten)]
    pub more: BTreeMap<&'static str, f64>,
}

/// Size in bytes and completion time in microseconds of each complete flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompletionTimes(pub Vec<(u64, f64)>);

/// State of one flow at the end of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FlowEnd {
    /// Time from the flow's start to its completion, or to the end of the run.
    pub lasted: Duration,
    /// True if the flow is complete.
    pub is_whole: bool,
    /// Number of bytes that arrived.
    pub delivered_bytes: u64,
}

/// Quantiles for which [`WorkloadRow::all_flows`] fills in completion times and rates.
const QUANTILES: [(f64, &str, &str); 7] = [
    (0.05, "all_fct_us_p5", "all_flow_mbps_p5"),
    (0.1, "all_fct_us_p10", "all_flow_mbps_p10"),
    (0.25, "all_fct_us_p25", "all_flow_mbps_p25"),
    (0.5, "all_fct_us_p50", "all_flow_mbps_p50"),
    (0.75, "all_fct_us_p75", "all_flow_mbps_p75"),
    (0.9, "all_fct_us_p90", "all_flow_mbps_p90"),
    (0.99, "all_fct_us_p99", "all_flow_mbps_p99"),
];

impl WorkloadRow {
    /// Fills in quantiles of completion times and rates over all flows, incomplete flows included.
    ///
    /// An incomplete flow counts as longer than every complete flow. A quantile of completion times
    /// that falls on an incomplete flow is left out. The rate of an incomplete flow is its received
    /// bytes over its time until the end of the run.
    pub fn all_flows(&mut self, flows: impl Iterator<Item = FlowEnd>) {
        let (mut times, mut rates) = (Vec::new(), Vec::new());
        for flow in flows {
            times.push(if flow.is_whole { flow.lasted.as_secs_f64() * 1e6 } else { f64::INFINITY });
            let rate = BitRate::average(ByteCount::new(flow.delivered_bytes), flow.lasted);
            rates.extend(rate.map(BitRate::as_mbps_f64));
        }
        times.sort_by(f64::total_cmp);
        rates.sort_by(f64::total_cmp);
        let of = |(share, time, rate): &(f64, &'static str, &'static str)| {
            let value = |name: &'static str, sorted: &[f64]| Some((name, percentile(sorted, *share)?));
            [value(time, &times), value(rate, &rates)]
        };
        self.more.extend(QUANTILES.iter().flat_map(of).flatten().filter(|(_, value)| value.is_finite()));
    }

    /// Fills in the goodput of endless flows, from rates in Mbit/s.
    pub fn share(&mut self, mut rates_mbps: Vec<f64>) {
        self.fairness_share = fairness(&rates_mbps);
        rates_mbps.sort_by(f64::total_cmp);
        (self.flow_mbps_min, self.flow_mbps_max) = (rates_mbps.first().copied(), rates_mbps.last().copied());
    }

    /// Fills in completion times.
    pub fn complete(&mut self, whole: &CompletionTimes) {
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
        // Bits per microsecond are megabits per second.
        let rates: Vec<f64> = long.map(|(size, us)| *size as f64 * 8.0 / us).collect();
        self.long_flow_mbps_mean = mean(&rates);
    }

    /// Fills in the counts of datagrams: the number sent, and the counts of the receivers.
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

    /// Fills in the durations of an incast's rounds, each with `round_bytes` bytes.
    pub fn rounds(&mut self, mut times_us: Vec<f64>, round_bytes: u64) {
        let total_us: f64 = times_us.iter().sum();
        let bits = (round_bytes * times_us.len() as u64) as f64 * 8.0;
        // Bits per microsecond are megabits per second.
        self.goodput_mbps = (total_us > 0.0).then(|| bits / total_us);
        self.rounds = Some(times_us.len() as u64);
        times_us.sort_by(f64::total_cmp);
        (self.round_us_p50, self.round_us_max) = (percentile(&times_us, 0.5), times_us.last().copied());
    }
}

/// Results of the network.
///
/// Packets are conserved: each packet that a host sent was delivered, was dropped, or is in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworkRow {
    /// Simulated time in seconds.
    pub simulated_s: f64,
    /// Packets that hosts sent.
    pub injected_packets: u64,
    /// Packets that reached their destination host.
    pub delivered_packets: u64,
    /// Packets in flight at the end.
    pub in_flight_packets: u64,
    /// Packets dropped at a full queue.
    pub dropped_queue_full: u64,
    /// Packets lost for other reasons: random losses, bit errors, links that went down, missing
    /// routes.
    pub dropped_otherwise: u64,
    /// Packets marked by queues.
    pub marked_packets: u64,
    /// With `spread = "caps"`: mean share of a switch's paths without short flows, over samples
    /// with short flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused_ways_share_mean: Option<f64>,
    /// Bytes that a hybrid switch sent over circuits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_bytes: Option<u64>,
    /// Bytes that a hybrid switch sent over its packet network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_network_bytes: Option<u64>,
    /// Number of weeks of circuits that follow demand, including an incomplete last week.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weeks: Option<u64>,
    /// Number of days of these weeks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days: Option<u64>,
    /// Latency of packets through a hybrid switch.
    #[serde(flatten)]
    pub latency: LatencyRow,
    /// Number of links that packets passed, summed over all packets.
    pub packet_hops: u64,
    /// Number of events of the simulator.
    pub events: u64,
    /// Event hash in hexadecimal; equal runs have equal hashes.
    pub event_hash: String,
}

/// Latency of data packets from entering a hybrid switch to leaving it, to within 1/32. `None`
/// without such packets.
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
    /// Returns the row of a switch's measurements.
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

/// Results of a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkRow {
    /// Site at which the link begins.
    pub from: String,
    /// Site at which the link ends.
    pub to: String,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Use of the link over the whole run, as a share of its rate.
    pub use_share: f64,
    /// Packets dropped at the full queue.
    pub dropped_queue_full: u64,
    /// Packets lost on this link for other reasons.
    pub dropped_otherwise: u64,
    /// Packets marked at this link.
    pub marked_packets: u64,
    /// Mean waiting time of packets at this link.
    pub wait_us_mean: f64,
    /// Maximum waiting time of a packet at this link.
    pub wait_us_max: f64,
}

/// Results of a flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowRow {
    /// Index of the workload, from 0.
    pub workload_index: u16,
    /// Sending host.
    pub from: String,
    /// Receiving host.
    pub to: String,
    /// Size of the flow in bytes; `None` if the flow is endless.
    pub size_bytes: Option<u64>,
    /// Start time of the flow in seconds.
    pub started_s: f64,
    /// Flow completion time; `None` if the flow is incomplete.
    pub fct_us: Option<f64>,
    /// Bytes received in order.
    pub delivered_bytes: u64,
    /// Segments retransmitted.
    pub retransmitted_segments: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
}

/// Results of a coflow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoflowRow {
    /// Index of the workload, from 0.
    pub workload_index: u16,
    /// Name of the coflow.
    pub coflow: String,
    /// Number of flows.
    pub flows: u64,
    /// Total size of the coflow's flows in bytes.
    pub size_bytes: u64,
    /// Scheduled start time of the coflow's first flow in seconds.
    pub started_s: f64,
    /// Coflow completion time; `None` if the coflow is incomplete.
    pub cct_us: Option<f64>,
}

/// One week of a hybrid switch whose circuits follow demand.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeekRow {
    /// Beginning of the week in seconds.
    pub begins_s: f64,
    /// Length of the week in seconds; shorter if the run ended during the week.
    pub length_s: f64,
    /// Number of days in the week.
    pub days: u64,
    /// Demand on which the week's decision was based.
    pub demand_bytes: u64,
    /// Number of reports of flows so far that exceeded a limit, so that the demand may be wrong.
    pub unknown_reports: u64,
    /// Bytes that entered circuits in the week.
    pub circuit_bytes: u64,
    /// Bytes that left through the packet network in the week.
    pub packet_network_bytes: u64,
    /// Bytes that entered circuits as a share of the week's circuit capacity. `None` without
    /// circuits, or for an incomplete week.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_use_share: Option<f64>,
}

/// State of a link or a flow at one time. Columns that do not apply are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Time of the sample.
    pub time_s: f64,
    /// Name of the link, as in the scenario, or of the flow.
    pub what: String,
    /// Bytes queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<u64>,
    /// Packets queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<u32>,
    /// Rate sent over the link since the last sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_mbps: Option<f64>,
    /// Rate that the flow received in order since the last sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_mbps: Option<f64>,
    /// Rate that the sender's rate control allows, if the sender has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_mbps: Option<f64>,
    /// The sender's congestion window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwnd_bytes: Option<u64>,
    /// The sender's smoothed round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srtt_us: Option<f64>,
}
