//! `shuffle` in the simulator: a workload in which the coordinator's and the agents' state machines
//! set the rates of simulated TCP.
//!
//! Each host that sends or receives has an agent. Messages of agents and coordinator travel over
//! TCP connections in the same network, with the byte counts of the real programs (JSON in HTTP/1.1
//! in TLS records), so limits arrive with realistic delay. Limits pace the flows' senders as
//! `SO_MAX_PACING_RATE` paces sockets. They count data without headers, so agents report the
//! goodput of their hosts' links.
//!
//! Idealised compared with real programs: decisions take no time, agents list their flows
//! simultaneously, programs know at once that all bytes have arrived, and no agent fails, so there
//! are no keep-alives. A real agent has a second connection for waiting requests; here both share
//! one connection. Read [`Shuffle`] and [`ShuffleApp`] first.

mod settings;

use crate::agent::{Agent, AgentAction, AgentConfig, Answer, Event};
use crate::announced_flows::ListedConnection;
use crate::announcement::Announcement;
use crate::control::{FlowKey, JoinRequest, Limit, LimitsReply, ReportsRequest};
use crate::coordinator::{ClassSettings, Host};
use crate::enforcement::LimitOrder;
use crate::scheduler::BoxedAllocator;
use crate::{Coordinator, Scheduler};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::system::{System, SystemPlan};
use anabranch_sim::traffic::{
    App, AppCx, Coflow, Messages, Side, Start, StreamEvent, StreamSpec, TLS_RECORD_BYTES,
};
use anabranch_sim::{CompletionTimes, Network, PlanError, WorkloadRow};
use anabranch_units::stats::{mean, percentile};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, Seed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub use settings::plan;

/// Approximate bytes before the body of a request.
const REQUEST_HEAD_BYTES: u64 = 150;
/// Approximate bytes before the body of an answer.
const ANSWER_HEAD_BYTES: u64 = 110;
/// Session number of all agents. It has as many digits as a random number.
const SESSION: u64 = 1 << 63;
/// First local port and number of local ports, which are used in turn, and first remote port.
const LOCAL_PORTS: (u16, u32) = (10_000, 50_000);
const REMOTE_PORT: u16 = 7_000;
/// Timers: when the next flow begins, when agents list their flows, and when the coordinator
/// decides without new input.
const BEGIN: u16 = 0;
const LOOK: u16 = 1;
const DECIDE: u16 = 2;

/// `shuffle` in scenarios.
#[derive(Copy, Clone, Debug)]
pub struct SimulatedSystem;

impl System for SimulatedSystem {
    fn kind(&self) -> &'static str {
        "shuffle"
    }
    fn settings(&self) -> Option<schemars::Schema> {
        Some(schemars::schema_for!(settings::Settings))
    }
    fn plan(
        &self,
        workload: &SystemWorkload,
        network: &Network,
        field: &str,
    ) -> Result<Box<dyn SystemPlan>, PlanError> {
        Ok(Box::new(settings::plan(workload, network, field)?))
    }
}

/// A `shuffle` workload, resolved against its network.
#[derive(Debug)]
pub struct Shuffle {
    allocator: Option<Scheduler>,
    settings: ClassSettings,
    coordinator: u16,
    look_every: Duration,
    /// Strict priorities of data and of control messages.
    priorities: Vec<u8>,
    /// Coflows by name.
    coflows: Vec<(String, Vec<FlowSpec>)>,
    /// Hosts with an agent, and the rates of their links.
    hosts: BTreeMap<u16, BitRate>,
}

/// A flow to start.
#[derive(Copy, Clone, Debug)]
struct FlowSpec {
    from: u16,
    to: u16,
    size: ByteCount,
    start: Instant,
}

impl Shuffle {
    /// Returns true if the workload has a coordinator with agents.
    pub const fn has_coordinator(&self) -> bool {
        self.allocator.is_some()
    }
    /// Coflows by name, with their flows.
    pub fn coflows(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = Start>)> {
        let start =
            |flow: &FlowSpec| Start { at: flow.start, src: flow.from, dst: flow.to, size: Some(flow.size) };
        self.coflows.iter().map(move |(name, flows)| (name.as_str(), flows.iter().map(start)))
    }
    /// Strict priority of data.
    pub fn priority(&self) -> u8 {
        self.priorities[0]
    }
    /// Scheduler; `None` without a coordinator.
    pub const fn allocator(&self) -> Option<Scheduler> {
        self.allocator
    }
    /// Host of the coordinator.
    pub const fn coordinator_host(&self) -> u16 {
        self.coordinator
    }
    /// Hosts with an agent, and the rates of their links, headers included.
    pub const fn hosts(&self) -> &BTreeMap<u16, BitRate> {
        &self.hosts
    }
}

/// Reports the completion times of ended coflows in microseconds, and their share of all coflows.
pub fn report_coflows(mut times: Vec<f64>, all: usize, row: &mut WorkloadRow) {
    times.sort_by(f64::total_cmp);
    row.more.insert("finished_coflows_share", times.len() as f64 / all.max(1) as f64);
    let mut more = |name, value: Option<f64>| value.map(|value| row.more.insert(name, value));
    more("cct_us_mean", mean(&times).map(|mean| mean.mean));
    more("cct_us_p50", percentile(&times, 0.5));
    more("cct_us_p99", percentile(&times, 0.99));
}

impl SystemPlan for Shuffle {
    fn app(&self, _: &Network, _: Seed) -> Result<Box<dyn App>, PlanError> {
        Ok(Box::new(ShuffleApp::new(self)))
    }
    fn has_end(&self) -> bool {
        true
    }
    fn priorities(&self) -> &[u8] {
        &self.priorities
    }
}

/// Application that runs the workload's coflows.
pub struct ShuffleApp {
    coordinator: Option<Coordinator<BoxedAllocator>>,
    settings: ClassSettings,
    coordinator_host: u16,
    /// Time of the next decision without new input.
    decides_at: Option<Instant>,
    look_every: Duration,
    priority: u8,
    control_priority: u8,
    agents: BTreeMap<u16, HostAgent>,
    coflows: Vec<String>,
    /// Flows in the order of their start.
    flows: Vec<Flow>,
    begun: usize,
    finished: usize,
    ended_at: Option<Instant>,
    /// Content of each stream, by stream number.
    streams: Vec<Option<StreamContent>>,
    /// For each flow that got a limit, the time from its announcement to its first limit, in
    /// microseconds.
    unlimited_us: Vec<f64>,
    control_bytes: u64,
}

impl fmt::Debug for ShuffleApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An allocator has no debug output.
        f.debug_struct("Shuffling")
            .field("agents", &self.agents)
            .field("flows", &self.flows)
            .finish_non_exhaustive()
    }
}

/// Traffic of a stream.
#[derive(Copy, Clone, Debug)]
enum StreamContent {
    /// Control messages between this host's agent and the coordinator.
    Control(u16),
    /// The data of this flow.
    Data(usize),
}

#[derive(Debug)]
struct HostAgent {
    link: BitRate,
    /// `None` on the coordinator's own host, where messages need no stream.
    stream: Option<u32>,
    machine: Agent,
    /// True once the coordinator is reachable.
    is_connected: bool,
    /// Number of the pending request for limits.
    limits_asked: u64,
    /// Numbers of the started flows that the host sends.
    flows: Vec<usize>,
    to_coordinator: Messages<Request>,
    /// Limits in flight to the agent; an empty list is an acknowledgement.
    to_agent: Messages<Vec<Limit>>,
}

impl HostAgent {
    /// Returns the host's sending connections, in the order of flows.
    fn listing(&self, cx: &AppCx<'_, '_>, flows: &[Flow]) -> Vec<ListedConnection> {
        let mut listing: Vec<ListedConnection> =
            self.flows.iter().map(|number| flows[*number].seen(cx, *number)).collect();
        listing.sort_by_key(|seen| seen.flow);
        listing
    }

    /// Passes a listing of the host's flows to the agent.
    fn look(&mut self, cx: &AppCx<'_, '_>, flows: &[Flow]) {
        let listing = self.listing(cx, flows);
        self.machine.handle_listing(cx.now(), &listing, 0);
    }
}

impl Flow {
    /// Returns the flow as a listing shows it. `number` is used as the socket's cookie.
    fn seen(&self, cx: &AppCx<'_, '_>, number: usize) -> ListedConnection {
        let written_bytes = self.written_bytes;
        let acked_bytes = written_bytes - cx.unacknowledged_bytes(self.stream, Side::Opener);
        ListedConnection {
            flow: self.key,
            cookie: number as u64,
            user: 0,
            may_send: !self.is_over,
            acked_bytes,
            written_bytes,
            limit: None,
        }
    }
}

/// An agent's message to the coordinator.
#[derive(Debug)]
enum Request {
    /// Registration.
    Join(JoinRequest),
    /// Reports about the agent's flows.
    Report(ReportsRequest),
}

/// A flow of the run.
#[derive(Debug)]
struct Flow {
    spec: FlowSpec,
    coflow: usize,
    key: FlowKey,
    stream: u32,
    /// Time of the flow's announcement; `None` once the flow has its first limit.
    unlimited_since: Option<Instant>,
    written_bytes: u64,
    arrived_bytes: u64,
    is_over: bool,
    finished_at: Option<Instant>,
    limit: Option<BitRate>,
}

/// Index of the flow with a key made by [`ShuffleApp::new`].
fn number_of(key: FlowKey) -> usize {
    let (local, remote) = (key.local.port() - LOCAL_PORTS.0, key.remote.port() - REMOTE_PORT);
    (u32::from(remote) * LOCAL_PORTS.1 + u32::from(local)) as usize
}

/// Address of a host.
const fn address(host: u16) -> IpAddr {
    let [high, low] = host.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(10, 0, high, low))
}

fn host_name(host: u16) -> String {
    format!("h{host}")
}

fn json_bytes(body: &impl Serialize) -> u64 {
    serde_json::to_vec(body).map_or(0, |json| json.len() as u64)
}

impl ShuffleApp {
    fn new(plan: &Shuffle) -> Self {
        let named = plan.coflows.iter().enumerate();
        let mut flows: Vec<Flow> = named
            .flat_map(|(coflow, (_, flows))| flows.iter().map(move |spec| (coflow, *spec)))
            .map(|(coflow, spec)| Flow {
                spec,
                coflow,
                key: FlowKey {
                    local: SocketAddr::new(address(spec.from), 0),
                    remote: SocketAddr::new(address(spec.to), 0),
                },
                stream: 0,
                unlimited_since: None,
                written_bytes: 0,
                arrived_bytes: 0,
                is_over: false,
                finished_at: None,
                limit: None,
            })
            .collect();
        flows.sort_by_key(|flow| flow.spec.start);
        // Flows between the same two hosts get different ports.
        for (number, flow) in flows.iter_mut().enumerate() {
            let number = number as u32;
            flow.key.local.set_port(LOCAL_PORTS.0 + (number % LOCAL_PORTS.1) as u16);
            flow.key.remote.set_port(REMOTE_PORT + (number / LOCAL_PORTS.1) as u16);
        }
        let agent = |link: &BitRate| HostAgent {
            link: *link,
            stream: None,
            machine: Agent::new(Instant::ZERO, AgentConfig::new(*link)),
            is_connected: false,
            limits_asked: 0,
            flows: Vec::new(),
            to_coordinator: Messages::default(),
            to_agent: Messages::default(),
        };
        let hosts = plan.hosts.iter().filter(|_| plan.allocator.is_some());
        Self {
            coordinator: plan.allocator.map(|name| Coordinator::new(plan.settings, name.make())),
            settings: plan.settings,
            coordinator_host: plan.coordinator,
            decides_at: None,
            look_every: plan.look_every,
            priority: plan.priorities[0],
            control_priority: plan.priorities[1],
            agents: hosts.map(|(host, link)| (*host, agent(link))).collect(),
            coflows: plan.coflows.iter().map(|(name, _)| name.clone()).collect(),
            flows,
            begun: 0,
            finished: 0,
            ended_at: None,
            streams: Vec::new(),
            unlimited_us: Vec::new(),
            control_bytes: 0,
        }
    }

    fn note(&mut self, stream: u32, carries: StreamContent) {
        let at = stream as usize;
        if self.streams.len() <= at {
            self.streams.resize(at + 1, None);
        }
        self.streams[at] = Some(carries);
    }

    /// Starts the flows whose start time has come.
    fn begin(&mut self, cx: &mut AppCx<'_, '_>) {
        while let Some(flow) = self.flows.get(self.begun).filter(|flow| flow.spec.start <= cx.now()) {
            let FlowSpec { from, to, size, .. } = flow.spec;
            let spec = StreamSpec {
                from,
                to,
                links: [None; 2],
                size: Some(size),
                priority: self.priority,
                is_control: false,
            };
            let (stream, number) = (cx.open(&spec), self.begun);
            self.flows[number].stream = stream;
            self.note(stream, StreamContent::Data(number));
            self.begun += 1;
            if !cx.has_handshakes() {
                self.announce(cx, number);
            }
        }
        if let Some(flow) = self.flows.get(self.begun) {
            cx.arm(flow.spec.start, BEGIN);
        }
    }

    /// Announces a flow on behalf of its program, which then sends.
    fn announce(&mut self, cx: &mut AppCx<'_, '_>, number: usize) {
        let flow = &mut self.flows[number];
        let (host, stream, size_bytes) = (flow.spec.from, flow.stream, flow.spec.size.as_u64());
        let (seen, coflow) = (flow.seen(cx, number), self.coflows[flow.coflow].clone());
        if let Some(agent) = self.agents.get_mut(&host) {
            flow.unlimited_since = Some(cx.now());
            agent.flows.push(number);
            let said = Announcement::Flow { flow: flow.key, coflow, size_bytes };
            let taken = agent.machine.handle_announcement(cx.now(), &said, &seen);
            taken.expect("names are checked, and flows are few");
            self.say(cx, host);
        }
        self.flows[number].written_bytes = size_bytes;
        cx.write(stream, Side::Opener, size_bytes);
    }

    /// Handles the end of a flow at its program: all data has arrived, or will never arrive.
    fn end(&mut self, cx: &mut AppCx<'_, '_>, number: usize) {
        let flow = &mut self.flows[number];
        flow.is_over = true;
        let (host, key) = (flow.spec.from, flow.key);
        if let Some(agent) = self.agents.get_mut(&host) {
            agent.look(cx, &self.flows);
            agent.machine.handle_over(cx.now(), key);
            agent.flows.retain(|other| *other != number);
            self.say(cx, host);
        }
    }

    /// Makes all agents list their flows.
    fn look(&mut self, cx: &mut AppCx<'_, '_>) {
        let hosts: Vec<u16> = self.agents.keys().copied().collect();
        for host in hosts {
            let agent = self.agents.get_mut(&host).expect("listed above");
            agent.look(cx, &self.flows);
            self.say(cx, host);
        }
        if self.ended_at.is_none() {
            cx.arm(cx.now() + self.look_every, LOOK);
        }
    }

    /// Sends an agent's messages, and applies its limits.
    fn say(&mut self, cx: &mut AppCx<'_, '_>, host: u16) {
        loop {
            let agent = self.agent(host);
            let machine = &mut agent.machine;
            match machine.poll_event() {
                Some(Event::Order(LimitOrder::Set(limits))) => {
                    let limits = limits.into_iter().map(|(flow, rate, _)| (flow, rate));
                    self.enforce(cx, limits);
                    continue;
                }
                // Other orders are ignored: there is only one session, and ended flows need no
                // lifting of limits.
                Some(_) => continue,
                None => {}
            }
            let asked = if agent.is_connected { machine.poll_ask() } else { None };
            let Some((number, ask)) = asked else { return };
            let now = cx.now();
            match ask {
                AgentAction::Prepare => {
                    let prepared = Answer::Prepared { coordinator: None, session: SESSION };
                    machine.handle_answer(now, number, Ok(prepared));
                }
                AgentAction::Look => {
                    let agent = &self.agents[&host];
                    let listing = Answer::Listing { flows: agent.listing(cx, &self.flows), left_out: 0 };
                    self.agent(host).machine.handle_answer(now, number, Ok(listing));
                }
                AgentAction::Join(body) => {
                    let bytes = json_bytes(&body);
                    self.ask(cx, host, Request::Join(body), bytes);
                }
                AgentAction::Report(body) => {
                    let bytes = json_bytes(&body);
                    self.ask(cx, host, Request::Report(body), bytes);
                }
                AgentAction::Limits { .. } => agent.limits_asked = number,
                AgentAction::Leave { .. } => {}
            }
        }
    }

    fn join(&mut self, cx: &mut AppCx<'_, '_>, host: u16) {
        self.agent(host).is_connected = true;
        self.say(cx, host);
    }

    fn ask(&mut self, cx: &mut AppCx<'_, '_>, host: u16, request: Request, body_bytes: u64) {
        let agent = self.agent(host);
        let Some(stream) = agent.stream else { return self.answer(cx, host, request) };
        let bytes = REQUEST_HEAD_BYTES + body_bytes + TLS_RECORD_BYTES;
        agent.to_coordinator.write(request, bytes);
        self.control_bytes += bytes;
        cx.write(stream, Side::Opener, bytes);
    }

    /// Handles an agent's message at the coordinator, which decides afterwards.
    fn answer(&mut self, cx: &mut AppCx<'_, '_>, host: u16, request: Request) {
        let (now, name) = (cx.now(), host_name(host));
        let Some(coordinator) = &mut self.coordinator else { return };
        match request {
            Request::Join(JoinRequest { session, addresses, link_rate_bps, reports }) => {
                let joining = Host { addresses, rate: BitRate::bps(link_rate_bps), uplinks: Vec::new() };
                let joined = coordinator.handle_join(now, &name, session, joining);
                joined.and_then(|()| coordinator.handle_reports(now, &name, session, &reports))
            }
            Request::Report(ReportsRequest { session, reports }) => {
                coordinator.handle_reports(now, &name, session, &reports)
            }
        }
        .expect("agents say what there is, in order");
        self.tell(cx, host, Vec::new());
        self.decide(cx);
    }

    /// Makes a decision, and sends changed limits to all agents.
    fn decide(&mut self, cx: &mut AppCx<'_, '_>) {
        let now = cx.now();
        let Some(coordinator) = &mut self.coordinator else { return };
        coordinator.decide(now).expect("allocators put no more on a link than it carries");
        while coordinator.poll_ended().is_some() {}
        if let Some(at) = coordinator.poll_timeout()
            && self.decides_at.is_none_or(|armed| at < armed)
        {
            self.decides_at = Some(at);
            cx.arm(at.max(now), DECIDE);
        }
        let told =
            self.agents.keys().map(|host| (*host, coordinator.poll_limits(&host_name(*host), SESSION)));
        let told: Vec<(u16, Vec<Limit>)> = told.filter(|(_, limits)| !limits.is_empty()).collect();
        told.into_iter().for_each(|(host, limits)| self.tell(cx, host, limits));
    }

    fn agent(&mut self, host: u16) -> &mut HostAgent {
        self.agents.get_mut(&host).expect("hosts that are told or heard have agents")
    }

    /// Sends the coordinator's answer: an acknowledgement, or limits.
    fn tell(&mut self, cx: &mut AppCx<'_, '_>, host: u16, limits: Vec<Limit>) {
        let agent = self.agent(host);
        let Some(stream) = agent.stream else { return self.hear(cx, host, limits) };
        let body_bytes =
            if limits.is_empty() { 0 } else { json_bytes(&LimitsReply { limits: limits.clone() }) };
        let bytes = ANSWER_HEAD_BYTES + body_bytes + TLS_RECORD_BYTES;
        agent.to_agent.write(limits, bytes);
        self.control_bytes += bytes;
        cx.write(stream, Side::Acceptor, bytes);
    }

    /// Handles an answer at an agent.
    fn hear(&mut self, cx: &mut AppCx<'_, '_>, host: u16, limits: Vec<Limit>) {
        let agent = self.agent(host);
        if !limits.is_empty() {
            agent.machine.handle_answer(cx.now(), agent.limits_asked, Ok(Answer::Limits(limits)));
        }
        self.say(cx, host);
    }

    /// Applies limits at an agent.
    fn enforce(&mut self, cx: &mut AppCx<'_, '_>, limits: impl Iterator<Item = (FlowKey, Option<BitRate>)>) {
        for (flow, rate) in limits {
            let flow = &mut self.flows[number_of(flow)];
            // A flow that has ended by now needs no limit.
            if flow.is_over {
                continue;
            }
            flow.limit = rate;
            cx.set_pacing_limit(flow.stream, Side::Opener, flow.limit);
            // A mouse receives the message that it has no limit, which does not count as its first
            // limit.
            if let Some(announced_at) = flow.limit.and_then(|_| flow.unlimited_since.take()) {
                self.unlimited_us.push(us(cx.now() - announced_at));
            }
        }
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl App for ShuffleApp {
    fn start(&mut self, cx: &mut AppCx<'_, '_>) {
        let (share, now, settings) = (cx.data_share(), cx.now(), self.settings);
        let hosts: Vec<u16> = self.agents.keys().copied().collect();
        for from in hosts {
            let agent = self.agent(from);
            let link_rate = BitRate::bps((agent.link.as_bps() as f64 * share) as u64);
            let addresses = vec![address(from)];
            let config = AgentConfig { addresses, settings, is_ideal: true, ..AgentConfig::new(link_rate) };
            agent.machine = Agent::new(now, config);
            if from != self.coordinator_host {
                let (to, priority) = (self.coordinator_host, self.control_priority);
                let stream = cx.open(&StreamSpec {
                    from,
                    to,
                    links: [None; 2],
                    size: None,
                    priority,
                    is_control: true,
                });
                self.agent(from).stream = Some(stream);
                self.note(stream, StreamContent::Control(from));
            }
            if from == self.coordinator_host || !cx.has_handshakes() {
                self.join(cx, from);
            }
        }
        self.begin(cx);
        if self.coordinator.is_some() {
            cx.arm(cx.now() + self.look_every, LOOK);
        }
    }

    fn on_timer(&mut self, cx: &mut AppCx<'_, '_>, token: u16) {
        match token {
            BEGIN => self.begin(cx),
            LOOK => self.look(cx),
            _ => {
                if self.decides_at.take_if(|at| *at <= cx.now()).is_some() {
                    self.decide(cx);
                }
            }
        }
    }

    fn on_stream(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, side: Side, event: StreamEvent) {
        let Some(carries) = self.streams.get(stream as usize).copied().flatten() else { return };
        match (carries, side, event) {
            (StreamContent::Control(host), Side::Opener, StreamEvent::Connected) => self.join(cx, host),
            (StreamContent::Control(host), Side::Acceptor, StreamEvent::Arrived { bytes }) => {
                cx.read(stream, side, bytes);
                self.agent(host).to_coordinator.note_arrived(bytes);
                while let Some(request) = self.agent(host).to_coordinator.pop() {
                    self.answer(cx, host, request);
                }
            }
            (StreamContent::Control(host), Side::Opener, StreamEvent::Arrived { bytes }) => {
                cx.read(stream, side, bytes);
                self.agent(host).to_agent.note_arrived(bytes);
                while let Some(limits) = self.agent(host).to_agent.pop() {
                    self.hear(cx, host, limits);
                }
            }
            (StreamContent::Data(number), Side::Opener, StreamEvent::Connected) => self.announce(cx, number),
            (StreamContent::Data(number), Side::Acceptor, StreamEvent::Arrived { bytes }) => {
                cx.read(stream, side, bytes);
                let flow = &mut self.flows[number];
                flow.arrived_bytes += bytes;
                if flow.arrived_bytes == flow.spec.size.as_u64() {
                    flow.finished_at = Some(cx.now());
                    self.finished += 1;
                    self.ended_at = (self.finished == self.flows.len()).then(|| cx.now());
                }
            }
            (StreamContent::Data(number), Side::Opener, StreamEvent::Acknowledged)
                if cx.unacknowledged_bytes(stream, side) == 0 =>
            {
                self.end(cx, number);
            }
            (StreamContent::Data(number), Side::Opener, StreamEvent::GivenUp) => self.end(cx, number),
            _ => {}
        }
    }

    fn end_warmup(&mut self) {}
    fn ended_at(&self) -> Option<Instant> {
        self.ended_at
    }
    fn allowed_bps(&self, stream: u32) -> Option<f64> {
        match self.streams.get(stream as usize).copied().flatten()? {
            StreamContent::Data(number) => self.flows[number].limit.map(|limit| limit.as_bps() as f64),
            StreamContent::Control(_) => None,
        }
    }
    fn progress(&self) -> Option<f64> {
        let shares = self.flows.iter().map(|flow| flow.arrived_bytes as f64 / flow.spec.size.as_u64() as f64);
        Some(shares.sum::<f64>() / self.flows.len() as f64)
    }

    fn coflows(&self) -> Vec<Coflow> {
        let names = self.coflows.iter().enumerate();
        let coflow = |(number, name): (usize, &String)| {
            let flows = || self.flows.iter().filter(move |flow| flow.coflow == number);
            let ends: Option<Vec<Instant>> = flows().map(|flow| flow.finished_at).collect();
            Coflow {
                name: name.clone(),
                flows: flows().count() as u64,
                size: ByteCount::new(flows().map(|flow| flow.spec.size.as_u64()).sum()),
                started_at: flows().map(|flow| flow.spec.start).min().unwrap_or(Instant::ZERO),
                finished_at: ends.and_then(|ends| ends.into_iter().max()),
            }
        };
        names.map(coflow).collect()
    }

    fn report(&self, _: Duration, row: &mut WorkloadRow) {
        row.flows = self.begun as u64;
        let whole = self.flows.iter().filter_map(|flow| {
            let took = flow.finished_at?.saturating_since(flow.spec.start);
            Some((flow.spec.size.as_u64(), us(took)))
        });
        row.complete(&CompletionTimes(whole.collect()));
        let ended = self.coflows();
        let took = |coflow: &Coflow| Some(us(coflow.finished_at?.saturating_since(coflow.started_at)));
        report_coflows(ended.iter().filter_map(took).collect(), ended.len(), row);
        if self.coordinator.is_some() {
            let mut unlimited_us = self.unlimited_us.clone();
            unlimited_us.sort_by(f64::total_cmp);
            let mut more = |name, value: Option<f64>| value.map(|value| row.more.insert(name, value));
            more("first_limit_us_p50", percentile(&unlimited_us, 0.5));
            more("first_limit_us_max", unlimited_us.last().copied());
            more("control_bytes", Some(self.control_bytes as f64));
        }
    }
}
