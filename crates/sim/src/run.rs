//! One run: a plan and a seed, advanced until its work is done or its duration is over.
//!
//! Read [`Simulation`] first.

use crate::circuits::Weeks;
use crate::end::{End, Msg};
use crate::error::PlanError;
use crate::network::{HOSTS, Network};
use crate::plan::Plan;
use crate::probe::{ProbeSummary, ProbedFlow};
use crate::rows::{Sample, WeekRow};
use crate::traffic::{Flow, Job, Traffic};
use anabranch_fabric::{Envelope, EventQueue, Fabric, Hosts, QuadHeap, TappedPacket, Totals};
use anabranch_units::{Duration, Instant, LinkId, Seed};

/// Number of events between two checks for the end of the work. Constant, so that equal runs end at
/// the same event.
const SLICE_EVENTS: u64 = 1 << 14;

/// A run in progress.
pub struct Simulation<'a, Q: EventQueue = QuadHeap> {
    plan: &'a Plan,
    seed: u64,
    fabric: Fabric<Hosts<Traffic>, Q>,
    /// Index of the next change of a link.
    next_change: usize,
    next_sample: Option<Instant>,
    series: Vec<Sample>,
    /// At the last sample: sent bytes of each probed link, and delivered bytes of each probed flow.
    before: Vec<u64>,
    seen: ProbeSummary,
    /// State of circuits that follow demand; `None` without such circuits.
    weeks: Option<Weeks>,
    /// Packets of taps that were not taken yet.
    tapped: Vec<TappedPacket<Envelope<Msg>>>,
}

impl<'a, Q: EventQueue> Simulation<'a, Q> {
    /// Creates trial `trial` of the plan, at its beginning.
    ///
    /// Errors: failures of a system's random draw.
    pub fn new(plan: &'a Plan, trial: u64) -> Result<Self, PlanError> {
        let seed = plan.seed(trial);
        Ok(Self::with_traffic(plan, seed, plan.traffic(Seed::new(seed))?))
    }

    /// Creates a run of the plan's network with other traffic than the plan's.
    pub fn with_traffic(plan: &'a Plan, seed: u64, traffic: Traffic) -> Self {
        let (elements, doors, buffers) = plan.network.build(Seed::new(seed), |link| plan.needs_plain(link));
        let first: Vec<_> = traffic.first_timers().collect();
        let jitter = plan.scenario.network.jitter;
        let hosts = Hosts::new(doors, traffic)
            .with_jitter(jitter, Seed::new(seed).stream("jitter", 0))
            .with_layer(plan.layer(Seed::new(seed)));
        let mut fabric = Fabric::new(elements, vec![hosts]).with_buffers(buffers);
        for (at, token) in first {
            fabric.arm(HOSTS, at, Hosts::<Traffic>::user_token(token));
        }
        if plan.scenario.warmup > Duration::ZERO {
            let token = Hosts::<Traffic>::user_token(Traffic::warmup_token());
            fabric.arm(HOSTS, Instant::ZERO + plan.scenario.warmup, token);
        }
        let weeks = plan.circuit_schedule().zip(plan.scenario.circuit.as_ref());
        let weeks = weeks.map(|(schedule, spec)| {
            let (racks, _) = plan.network.racks().expect("a plan with weeks has a hybrid switch");
            let switch = plan.network.circuit_switch().expect("a plan with weeks has a hybrid switch");
            Weeks::new(schedule, spec.rate, switch, racks, &mut fabric)
        });
        let probe = plan.scenario.probe.as_ref();
        Self {
            plan,
            seed,
            fabric,
            next_change: 0,
            next_sample: probe.map(|probe| Instant::ZERO + probe.interval),
            series: Vec::new(),
            before: Vec::new(),
            seen: ProbeSummary::default(),
            weeks,
            tapped: Vec::new(),
        }
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed
    }
    /// Current simulated time.
    pub fn now(&self) -> Instant {
        self.fabric.now()
    }
    /// Totals of the fabric so far.
    pub const fn totals(&self) -> &Totals {
        self.fabric.totals()
    }
    /// Number of packets in flight: neither delivered nor dropped.
    pub fn in_flight(&self) -> u64 {
        self.fabric.in_flight()
    }
    /// Event hash; equal runs have equal hashes.
    pub const fn event_hash(&self) -> u64 {
        self.fabric.event_hash()
    }
    /// Traffic of the hosts.
    pub fn traffic(&self) -> &Traffic {
        self.fabric.nodes()[0].user()
    }
    /// The plan of this run.
    pub const fn plan(&self) -> &'a Plan {
        self.plan
    }
    pub(crate) fn hosts(&self) -> &Hosts<Traffic> {
        &self.fabric.nodes()[0]
    }
    /// The fabric, for access to its ports.
    pub const fn fabric(&self) -> &Fabric<Hosts<Traffic>, Q> {
        &self.fabric
    }
    /// Starts to copy the packets that `link` delivers.
    pub fn tap(&mut self, link: LinkId) {
        self.fabric.tap(Network::port(link));
    }
    /// Returns the copied packets of tapped links since the last call, each with its link.
    pub fn take_tapped(&mut self) -> impl Iterator<Item = (LinkId, TappedPacket<Envelope<Msg>>)> {
        let links = |tapped: TappedPacket<Envelope<Msg>>| (LinkId(tapped.port.index() as u32), tapped);
        let mut tapped = std::mem::take(&mut self.tapped);
        tapped.append(&mut self.fabric.take_tapped());
        // Packets tapped at the hybrid switch are only used for the weeks.
        let switch = self.plan.network.circuit_switch();
        let (of_switch, of_links) = tapped.into_iter().partition(|packet| Some(packet.port) == switch);
        self.tapped = of_switch;
        of_links.into_iter().map(links)
    }
    /// Packet-hops: number of packets that links have delivered, summed over all links.
    pub fn packet_hops(&self) -> u64 {
        let links = self.plan.network.topology().link_ids();
        let hops = links.filter_map(|link| self.fabric.port_counters(Network::port(link)));
        hops.map(|counters| counters.arrived_packets).sum()
    }

    fn end(&self) -> Instant {
        self.plan.scenario.duration.map_or(Instant::MAX, |duration| Instant::ZERO + duration)
    }

    /// Share of the run that is done, by its duration or its work, whichever is larger.
    pub fn progress(&self) -> f64 {
        let by_time = self.plan.scenario.duration.map(|d| self.now().as_secs_f64() / d.as_secs_f64());
        by_time.unwrap_or(0.0).max(self.traffic().progress().unwrap_or(0.0)).min(1.0)
    }

    /// Processes some events. Returns false once the run is over.
    pub fn step(&mut self) -> bool {
        let end = self.end();
        let change = self.plan.changes.get(self.next_change).map(|(at, ..)| *at);
        let week = self.weeks.as_ref().map(Weeks::next_at);
        let until = change.into_iter().chain(self.next_sample).chain(week).fold(end, Instant::min);
        if !self.fabric.advance_some(until, SLICE_EVENTS) {
            return !self.traffic().is_done();
        }
        if let Some(&(at, link, settings)) =
            self.plan.changes.get(self.next_change).filter(|(at, ..)| *at <= until)
        {
            self.next_change += 1;
            self.fabric
                .handle_port_settings(at, Network::port(link), settings)
                .expect("a plan's changes are checked when it is made");
        }
        if self.next_sample.is_some_and(|at| at <= until) {
            self.sample();
        }
        if let Some(weeks) = self.weeks.as_mut().filter(|weeks| weeks.next_at() <= until) {
            self.tapped.append(&mut self.fabric.take_tapped());
            weeks.advance(until, &mut self.fabric, &mut self.tapped);
        }
        let is_idle = self.fabric.next_deadline().is_none() && self.next_change >= self.plan.changes.len();
        self.fabric.now() < end && !is_idle && !self.traffic().is_done()
    }

    fn sample(&mut self) {
        let Some(probe) = &self.plan.scenario.probe else { return };
        let now = self.fabric.now();
        self.next_sample = Some(now + probe.interval);
        let time_s = now.as_secs_f64();
        let counts = Instant::ZERO + self.plan.scenario.warmup + probe.interval <= now;
        let mut place = 0;
        let before = &mut self.before;
        let mut rate_mbps = |bytes: u64| {
            if place == before.len() {
                before.push(0);
            }
            let new = bytes - std::mem::replace(&mut before[place], bytes);
            place += 1;
            new as f64 * 8.0 / 1e6 / probe.interval.as_secs_f64()
        };
        for (name, link) in probe.links.iter().zip(&self.plan.probed_links) {
            let port = Network::port(*link);
            let (queue, counters) = (self.fabric.queue(port), self.fabric.port_counters(port));
            let ((packets, bytes), counters) = queue.zip(counters).expect("every link has a port");
            let rate = rate_mbps(counters.sent_bytes);
            if counts {
                self.seen.link(rate / self.plan.network.port_settings(*link).rate.as_mbps_f64());
            }
            self.series.push(Sample {
                time_s,
                what: name.clone(),
                queue_bytes: Some(bytes.as_u64()),
                queue_packets: Some(packets),
                rate_mbps: Some(rate),
                ..Sample::default()
            });
        }
        let hosts = &self.fabric.nodes()[0];
        let traffic = hosts.user();
        let mut got = Vec::new();
        for (number, (index, flow)) in probed(traffic, probe.flows).enumerate() {
            let sender = match hosts.end(flow.sender) {
                Some(End::Tcp(sender)) => Some(sender),
                _ => None,
            };
            let allowed_mbps = match &traffic.jobs()[usize::from(flow.job)] {
                Job::App(app) => app.allowed_bps(index).map(|bps| bps / 1e6),
                _ => None,
            };
            let goodput = rate_mbps(flow.delivered_bytes);
            got.push(flow.finished_at.is_none().then_some((goodput, flow.delivered_bytes > 0)));
            self.series.push(Sample {
                time_s,
                what: format!("flow {number}"),
                goodput_mbps: Some(goodput),
                allowed_mbps,
                cwnd_bytes: sender.map(|sender| sender.window().cwnd),
                srtt_us: sender.and_then(|sender| Some(sender.srtt()?.as_secs_f64() * 1e6)),
                ..Sample::default()
            });
        }
        if counts {
            self.seen.flows(probe.interval, &got);
        }
    }

    /// Summaries of the probed flows of job `number`, and the minimum use of a probed link.
    pub(crate) fn seen(&self, number: u16) -> (impl Iterator<Item = &ProbedFlow>, Option<f64>) {
        let flows = self.plan.scenario.probe.as_ref().map_or(0, |probe| probe.flows);
        let of_job = probed(self.traffic(), flows).zip(&self.seen.flows);
        let of_job = of_job.filter(move |((_, flow), _)| flow.job == number).map(|(_, seen)| seen);
        (of_job, self.seen.link_use_share_min)
    }

    /// Rows of the weeks of circuits that follow demand, and the numbers of weeks and days.
    pub(crate) fn take_weeks(&mut self) -> Option<(Vec<WeekRow>, u64, u64)> {
        let switch = self.plan.network.circuit_switch()?;
        let switch = self.fabric.circuit_switch(switch)?;
        self.weeks.take().map(|weeks| weeks.finish(switch, self.fabric.now()))
    }

    pub(crate) fn take_series(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.series)
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = LinkId> + use<'a, Q> {
        self.plan.network.topology().link_ids()
    }
}

/// Returns the first `count` flows that carry data, each with its number.
fn probed(traffic: &Traffic, count: u32) -> impl Iterator<Item = (u32, &Flow)> {
    let numbered = (0u32..).zip(traffic.flows());
    numbered.filter(|(_, flow)| !flow.is_control).take(count as usize)
}
