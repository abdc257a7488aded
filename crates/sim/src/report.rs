//! Computes a run's results: a row for each workload, and detailed rows for links, flows and
//! samples.
//!
//! Columns carry their units; inapplicable columns are left out. Read [`Outcome`] first.

use crate::end::End;
use crate::network::Network;
use crate::rows::{
    CoflowRow, CompletionTimes, FlowEnd, FlowRow, LatencyRow, LinkRow, NetworkRow, Outcome, WorkloadRow,
};
use crate::run::Simulation;
use crate::scenario::Workload;
use crate::traffic::{Flow, Job};
use anabranch_fabric::{Drop, EventQueue};
use anabranch_transport::Counters;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};

fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn mbps(bytes: u64, time: Duration) -> Option<f64> {
    BitRate::average(ByteCount::new(bytes), time).map(BitRate::as_mbps_f64)
}

impl<Q: EventQueue> Simulation<'_, Q> {
    /// Runs to the end.
    pub fn run(mut self) -> Outcome {
        while self.step() {}
        self.finish()
    }

    /// Returns the results so far, which are complete once [`Self::step`] has returned false.
    pub fn finish(self) -> Outcome {
        Outcome::of(self)
    }
}

impl Outcome {
    pub(crate) fn of<Q: EventQueue>(mut simulation: Simulation<'_, Q>) -> Self {
        let series = simulation.take_series();
        let weeks = simulation.take_weeks();
        let s = &simulation;
        let all = s.traffic().flows();
        let counted: Vec<(Counters, u64)> = all.iter().map(|flow| counters(s, flow)).collect();
        let mut workloads = Vec::new();
        for (number, job) in s.traffic().jobs().iter().enumerate() {
            let of_job = all.iter().zip(&counted).filter(|(flow, _)| usize::from(flow.job) == number);
            let mut row = row(s, job, &of_job.collect::<Vec<_>>());
            seen(s, number as u16, &mut row);
            if let Workload::Racks(_) = s.plan().scenario.workload[number] {
                let of_job = all.iter().filter(|flow| usize::from(flow.job) == number);
                row.all_flows(of_job.map(|flow| {
                    let lasted = flow.finished_at.unwrap_or(s.now()).saturating_since(flow.started_at);
                    FlowEnd {
                        lasted,
                        is_whole: flow.finished_at.is_some(),
                        delivered_bytes: flow.delivered_bytes,
                    }
                }));
            }
            row.workload = s.plan().scenario.workload[number].kind().to_owned();
            if s.plan().layer_workload() == Some(number) {
                row.more.extend(s.hosts().layer_figures());
            }
            workloads.push(row);
        }
        let name = |host: u16| {
            let network = s.plan().network();
            network.topology().site(network.hosts()[usize::from(host)]).name.clone()
        };
        let told = all.iter().zip(&counted).filter(|(flow, _)| !flow.is_copy);
        let flows = told.map(|(flow, (sent, _))| FlowRow {
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
        let mut coflows = Vec::new();
        for (number, job) in s.traffic().jobs().iter().enumerate() {
            let Job::App(app) = job else { continue };
            coflows.extend(app.coflows().into_iter().map(|coflow| CoflowRow {
                workload_index: number as u16,
                coflow: coflow.name,
                flows: coflow.flows,
                size_bytes: coflow.size.as_u64(),
                started_s: coflow.started_at.as_secs_f64(),
                cct_us: coflow.finished_at.map(|at| us(at - coflow.started_at)),
            }));
        }
        let mut network = network(s);
        debug_assert!(network.is_conserved(), "{network:?}");
        let (weeks, counts) = weeks.map(|(rows, weeks, days)| (rows, (weeks, days))).unzip();
        (network.weeks, network.days) = counts.unzip();
        Self { workloads, network, links: links(s), flows, coflows, series, weeks: weeks.unwrap_or_default() }
    }
}

/// Returns the counters of a flow's sender, and the number of segments received out of order.
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

/// Fills in the probe's figures for the flows of a workload.
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
    // A run continues for some events after its work is done, so the end of the work counts.
    let measured = s.traffic().ended_at().unwrap_or(s.now()).saturating_since(from);
    let counts = |flow: &Flow| !flow.is_control && !flow.is_copy;
    let bytes = |flow: &Flow| if !counts(flow) { 0 } else { flow.delivered_bytes - flow.warmup_bytes };
    let sum = |of: fn(&Counters) -> u64| Some(flows.iter().map(|(_, (sent, _))| of(sent)).sum());
    let mut row = WorkloadRow {
        flows: flows.iter().filter(|(flow, _)| !flow.is_copy).count() as u64,
        goodput_mbps: mbps(flows.iter().map(|(flow, _)| bytes(flow)).sum(), measured),
        ..WorkloadRow::default()
    };
    if !matches!(job, Job::Udp(_)) {
        row.retransmitted_segments = sum(|sent| sent.retransmitted_segments);
        row.timeouts = sum(|sent| sent.timeouts);
        let cwnds: Vec<f64> =
            flows.iter().filter_map(|(_, (sent, _))| Some(sent.first_timeout_cwnd_bytes? as f64)).collect();
        row.first_timeout_cwnd_bytes_mean = anabranch_units::stats::mean(&cwnds).map(|mean| mean.mean);
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
                .filter(|(flow, _)| !flow.is_copy)
                .filter_map(|(flow, _)| Some((flow.size?.as_u64(), us(flow.finished_at? - flow.started_at))));
            row.complete(&CompletionTimes(whole.collect()));
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
    let switch = s.plan().network().circuit_switch().and_then(|switch| s.fabric().circuit_switch(switch));
    NetworkRow {
        simulated_s: s.now().as_secs_f64(),
        injected_packets: totals.injected,
        delivered_packets: totals.delivered,
        in_flight_packets: s.in_flight(),
        dropped_queue_full: full,
        dropped_otherwise: totals.drops.total() - full,
        marked_packets: counters.map(|c| c.marked_packets).sum(),
        unused_ways_share_mean: s.fabric().unused_ways_share(),
        circuit_bytes: switch.map(|switch| switch.counters().circuit_bytes),
        packet_network_bytes: switch.map(|switch| switch.counters().packet_bytes),
        weeks: None,
        days: None,
        latency: switch.map(|switch| LatencyRow::of(switch.latency())).unwrap_or_default(),
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
