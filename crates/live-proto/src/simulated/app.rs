//! The application of a run: all machines on their hosts, with control messages, parts, viewers and
//! faults.
//!
//! Read [`LiveApp`] first; requests for parts are in [`pipes`], viewers in [`audience`].

mod audience;
mod pipes;

use super::ResolvedWorkload;
use super::relay::NodeParts;
use super::settings::{FaultKind, host_of};
use super::viewer::SimulatedViewer;
use crate::control::capacity::CapacityEstimator;
use crate::control::controller::{Controller, ControllerEvent, ControllerSettings};
use crate::control::messages::{GroupId, Report, ToChild, ToNode, ToParent};
use crate::control::node::{self, Event, Node, RequestId, Transmit};
use crate::round::{Round, RoundSettings};
use crate::{NodeId, Object, Tier};
use anabranch_media::player::PlaybackStats;
use anabranch_media::qoe::Experience;
use anabranch_sim::WorkloadRow;
use anabranch_sim::traffic::{
    App, AppCx, HEAD_BYTES, Messages, Side, StreamEvent, StreamSpec, TLS_RECORD_BYTES,
};
use anabranch_units::stats::percentile;
use anabranch_units::{BitRate, Duration, Instant, Seed};
use pipes::Pipe;
use serde::Serialize;
use std::collections::BTreeMap;

/// Media duration of the newest parts of a stream that a node keeps.
const WINDOW: Duration = Duration::from_secs(10);
/// Time without a byte of a part that exists at the source, after which its stream is stalled.
const STALLED: Duration = Duration::from_secs(3);
/// Timer token of the controller. The tokens of nodes begin at [`NODES`].
const CONTROLLER: u16 = 0;
const NODES: u16 = 1;
/// Number of low bits of a request number that count the requests within one incarnation of a
/// node's process.
const LIFE_SHIFT: u32 = 32;

/// A node's process.
#[derive(Debug)]
struct NodeRun {
    /// The node's machine. `None` while the node has failed.
    machine: Option<Node>,
    life: u64,
    parts: NodeParts,
    /// Estimators of the capacity of the links from its parents.
    estimators: BTreeMap<NodeId, CapacityEstimator>,
    report_stream: u32,
    reports: Messages<Report>,
    updates: Messages<ToNode>,
}

/// Control connection of a link.
#[derive(Debug, Default)]
struct LinkRun {
    stream: u32,
    up: Messages<ToParent>,
    down: Messages<ToChild>,
}

/// Use of a transport stream.
#[derive(Copy, Clone, Debug)]
enum StreamUse {
    Link(usize),
    Reports(usize),
    Parts(Pipe),
}

/// Totals of a run.
#[derive(Debug, Default)]
struct RunSums {
    control_bytes: u64,
    upstream_parts: u64,
    upstream_bytes: u64,
    plans: u64,
    /// Ages of the parts received by viewers after the warm-up, in ms.
    ages_ms: Vec<f64>,
    /// Bytes of the parts received by viewers during the warm-up.
    warmup_bytes: u64,
    at_warmup: Vec<PlaybackStats>,
}

/// Application of all hosts in a run.
#[derive(Debug)]
pub(super) struct LiveApp {
    stage: ResolvedWorkload,
    seed: Seed,
    controller: Option<Controller>,
    round: Round,
    mapping: BTreeMap<(GroupId, Object), NodeId>,
    nodes: Vec<NodeRun>,
    links: Vec<LinkRun>,
    viewers: Vec<SimulatedViewer>,
    streams: Vec<Option<StreamUse>>,
    /// Idle connections of a client to a node.
    idle: BTreeMap<(pipes::Client, NodeId), Vec<u32>>,
    /// Connection of each viewer request that its edge has not yet answered.
    asking: BTreeMap<RequestId, u32>,
    lives: u64,
    armed: BTreeMap<u16, Instant>,
    sums: RunSums,
    now: Instant,
}

/// Size of a JSON message with its HTTP and TLS headers, in bytes.
fn message_bytes(message: &impl Serialize) -> u64 {
    serde_json::to_vec(message).map_or(0, |json| json.len() as u64) + HEAD_BYTES + TLS_RECORD_BYTES
}

impl LiveApp {
    pub(super) fn new(stage: &ResolvedWorkload, seed: Seed) -> Self {
        let ResolvedWorkload { settings, overlay, .. } = stage;
        let viewers = stage.viewers(seed).map(|viewer| {
            let host = settings.first_viewer_host() + viewer.group as u16;
            let opens_at = Instant::ZERO + viewer.opens_after;
            SimulatedViewer::new(host, GroupId(viewer.group as u32), viewer.channel, opens_at)
        });
        let node = || NodeRun {
            machine: None,
            life: 0,
            parts: NodeParts::default(),
            estimators: BTreeMap::new(),
            report_stream: 0,
            reports: Messages::default(),
            updates: Messages::default(),
        };
        Self {
            viewers: viewers.collect(),
            nodes: overlay.nodes().iter().map(|_| node()).collect(),
            links: overlay.links().iter().map(|_| LinkRun::default()).collect(),
            controller: None,
            round: Round::new(RoundSettings::default()),
            mapping: BTreeMap::new(),
            streams: Vec::new(),
            idle: BTreeMap::new(),
            asking: BTreeMap::new(),
            lives: 0,
            armed: BTreeMap::new(),
            sums: RunSums::default(),
            now: Instant::ZERO,
            seed,
            stage: stage.clone(),
        }
    }

    // ---- timers ----

    fn channel_token(&self, channel: u32) -> u16 {
        NODES + (self.nodes.len() as u32 + channel) as u16
    }

    fn viewer_token(&self, viewer: usize) -> u16 {
        self.channel_token(self.stage.settings.channels) + viewer as u16
    }

    fn fault_token(&self, fault: usize) -> u16 {
        self.viewer_token(self.viewers.len()) + fault as u16
    }

    fn arm(&mut self, cx: &mut AppCx<'_, '_>, token: u16, at: Instant) {
        let at = at.max(cx.now() + Duration::from_us(1));
        let armed = self.armed.entry(token).or_insert(Instant::MAX);
        if at < *armed {
            *armed = at;
            cx.arm(at, token);
        }
    }

    // ---- parts by the clock ----

    /// Number of a channel's parts that are complete at the sources.
    fn whole_parts(&self, channel: u32, now: Instant) -> u64 {
        let since = now.saturating_since(Instant::ZERO + self.offset(channel));
        since.as_ps() / self.stage.settings.part.as_ps()
    }

    /// Time at which a part is complete at the sources.
    fn ready_at(&self, channel: u32, number: u64) -> Instant {
        Instant::ZERO + self.offset(channel) + self.stage.settings.part * (number + 1)
    }

    /// Start time of a channel. Starts are spread over the duration of one part.
    fn offset(&self, channel: u32) -> Duration {
        let settings = &self.stage.settings;
        Duration::from_ps(settings.part.as_ps() * u64::from(channel) / u64::from(settings.channels))
    }

    // ---- processes ----

    fn start_node(&mut self, cx: &mut AppCx<'_, '_>, at: usize) {
        self.lives += 1;
        let (now, life, id) = (cx.now(), self.lives << LIFE_SHIFT, NodeId(at as u32));
        let of = &self.stage.settings;
        let (mode, rule) = (of.mode.control(), of.rule.control());
        let settings = node::Settings { mode, rule, ..node::Settings::default() };
        let seed = Seed::new(self.seed.stream("live-node", life).next_u64());
        let mut machine = Node::new(now, &self.stage.overlay, id, life, settings, seed);
        if self.stage.overlay.node(id).tier == Tier::Source {
            for object in
                (0..self.stage.settings.channels).flat_map(|channel| self.stage.settings.ladder(channel))
            {
                assert!(machine.handle_import(object), "renditions are fewer than streams of a node");
            }
        }
        let links = self.stage.overlay.links_in(id).iter().map(|link| self.stage.overlay.link(*link));
        let estimators = links.map(|link| (link.from, CapacityEstimator::new(link.capacity))).collect();
        let run = &mut self.nodes[at];
        (run.machine, run.life, run.estimators) = (Some(machine), life, estimators);
        self.stir_node(cx, at);
    }

    /// Fails a node silently: its connections stay open, and its state is lost.
    fn kill_node(&mut self, at: usize) {
        let id = NodeId(at as u32);
        let run = &mut self.nodes[at];
        let fetches: Vec<u32> = run.parts.fetches().map(|(_, fetch)| fetch.stream).collect();
        (run.machine, run.parts) = (None, NodeParts::default());
        fetches.into_iter().for_each(|stream| self.drop_pipe(stream));
        self.idle.retain(|(client, _), _| *client != pipes::Client::Node(id));
    }

    fn start_controller(&mut self, cx: &mut AppCx<'_, '_>) {
        self.lives += 1;
        let settings =
            ControllerSettings { round: self.stage.settings.every, ..ControllerSettings::default() };
        let groups =
            self.stage.groups.iter().map(|edges| edges.iter().map(|(edge, _)| *edge).collect()).collect();
        let controller = Controller::new(cx.now(), self.stage.overlay.clone(), groups, self.lives, settings);
        self.controller = Some(controller.expect("groups are of edges"));
        self.round = Round::new(RoundSettings::default());
        self.stir_controller(cx);
    }

    fn strike(&mut self, cx: &mut AppCx<'_, '_>, fault: usize) {
        let now = cx.now();
        let fault = self.stage.settings.faults[fault].clone();
        let (_, until) = fault.times();
        let begins = until.is_none_or(|until| now < until);
        let node = fault.node.as_deref().and_then(|name| self.stage.overlay.find(name));
        match (fault.what, node) {
            (FaultKind::NodeDies, Some(node)) if begins => self.kill_node(node.index()),
            (FaultKind::NodeDies, Some(node)) => self.start_node(cx, node.index()),
            (FaultKind::ControllerDies, _) if begins => self.controller = None,
            (FaultKind::ControllerDies, _) => self.start_controller(cx),
            (FaultKind::Drain, Some(node)) => {
                if let Some(controller) = &mut self.controller {
                    if begins {
                        controller.handle_drain(now, node);
                    } else {
                        controller.handle_undrain(now, node);
                    }
                    self.stir_controller(cx);
                }
            }
            (FaultKind::NodeDies | FaultKind::Drain, None) => unreachable!("names are checked"),
        }
    }

    // ---- machines ----

    /// Delivers the output of a node's machine, and arms its timer.
    fn stir_node(&mut self, cx: &mut AppCx<'_, '_>, at: usize) {
        while let Some(machine) = &mut self.nodes[at].machine {
            if let Some(message) = machine.poll_transmit() {
                self.send_of_node(cx, at, message);
            } else if let Some(event) = machine.poll_event() {
                self.handle_event(cx, at, event);
            } else {
                let machine = machine.poll_timeout();
                let estimators = self.nodes[at].estimators.values();
                let due = estimators.filter_map(CapacityEstimator::poll_timeout).fold(machine, Instant::min);
                return self.arm(cx, NODES + at as u16, due);
            }
        }
    }

    fn send_of_node(&mut self, cx: &mut AppCx<'_, '_>, at: usize, message: Transmit) {
        let id = NodeId(at as u32);
        match message {
            Transmit::Parent(parent, message) => {
                let (link, bytes) = (self.link(parent, id), message_bytes(&message));
                self.links[link].up.write(message, bytes);
                self.write_control(cx, self.links[link].stream, Side::Opener, bytes);
            }
            Transmit::Child(child, message) => {
                let (link, bytes) = (self.link(id, child), message_bytes(&message));
                self.links[link].down.write(message, bytes);
                self.write_control(cx, self.links[link].stream, Side::Acceptor, bytes);
            }
            Transmit::Controller(report) => {
                let bytes = message_bytes(&report);
                self.nodes[at].reports.write(report, bytes);
                self.write_control(cx, self.nodes[at].report_stream, Side::Opener, bytes);
            }
        }
    }

    fn write_control(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, side: Side, bytes: u64) {
        self.sums.control_bytes += bytes;
        cx.write(stream, side, bytes);
    }

    fn link(&self, from: NodeId, to: NodeId) -> usize {
        let links = self.stage.overlay.links_in(to).iter();
        let mut links = links.filter(|link| self.stage.overlay.link(**link).from == from);
        links.next().expect("machines speak over their links").index()
    }

    fn handle_event(&mut self, cx: &mut AppCx<'_, '_>, at: usize, event: Event) {
        let node = NodeId(at as u32);
        match event {
            Event::Fetch { object, parent, .. } => {
                self.nodes[at].parts.add_route(object, parent);
                self.fetch_waiting(cx, node, object);
            }
            Event::Stop(object, parent) => {
                for (_, stream) in self.nodes[at].parts.remove_route(object, parent) {
                    self.drop_pipe(stream);
                }
                self.fetch_waiting(cx, node, object);
            }
            Event::ViewerAdmitted(request) => self.answer_viewer(cx, request, true),
            Event::ViewerRefused(request, _) => self.answer_viewer(cx, request, false),
            Event::ViewersLost(object, _) => self.lose_viewers(cx, node, object),
            _ => {}
        }
    }

    fn stir_controller(&mut self, cx: &mut AppCx<'_, '_>) {
        while let Some(controller) = &mut self.controller {
            if let Some((node, message)) = controller.poll_transmit() {
                let bytes = message_bytes(&message);
                let run = &mut self.nodes[node.index()];
                run.updates.write(message, bytes);
                let stream = run.report_stream;
                self.write_control(cx, stream, Side::Acceptor, bytes);
            } else if let Some(job) = controller.poll_job() {
                // A job without a program, for example without demand, yields no plan.
                if let Ok((plan, _)) = self.round.solve(&self.stage.overlay, &self.stage.groups, &job)
                    && controller.handle_plan(cx.now(), job.number, plan).is_ok()
                {
                    self.sums.plans += 1;
                }
            } else if let Some(event) = controller.poll_event() {
                if event == ControllerEvent::Mapping {
                    self.mapping.clone_from(controller.mapping());
                }
            } else {
                let due = controller.poll_timeout();
                return self.arm(cx, CONTROLLER, due);
            }
        }
    }

    fn on_node_timer(&mut self, cx: &mut AppCx<'_, '_>, at: usize) {
        let now = cx.now();
        let NodeRun { machine: Some(machine), estimators, parts, .. } = &mut self.nodes[at] else { return };
        for (parent, estimator) in estimators {
            estimator.handle_parent_limited(machine.is_parent_limited(*parent));
            if estimator.poll_timeout().is_some_and(|at| at <= now) {
                estimator.handle_timeout(now);
            }
            machine.handle_limiting(*parent, estimator.is_limiting(now));
            if let Some(estimate) = estimator.estimate() {
                machine.handle_measured(*parent, estimate);
            }
        }
        let fetches: Vec<_> = parts.fetches().collect();
        machine.handle_timeout(now);
        for (part, fetch) in fetches {
            if self.is_stalled(now, part, fetch.stream)
                && let Some(machine) = &mut self.nodes[at].machine
                && machine.upstream(part.0) == Some(fetch.parent)
            {
                machine.handle_stalled(now, part.0);
            }
        }
        self.stir_node(cx, at);
    }

    // ---- streams ----

    fn open(&mut self, cx: &mut AppCx<'_, '_>, (from, to): (u16, u16), carries: StreamUse) -> u32 {
        let is_control = !matches!(carries, StreamUse::Parts(_));
        let spec = StreamSpec { from, to, links: [None; 2], size: None, priority: 1, is_control };
        let stream = cx.open(&spec);
        let at = stream as usize;
        if self.streams.len() <= at {
            self.streams.resize(at + 1, None);
        }
        self.streams[at] = Some(carries);
        stream
    }

    fn open_link(&mut self, cx: &mut AppCx<'_, '_>, link: usize) {
        let ends = &self.stage.overlay.links()[link];
        let hosts = (host_of(ends.to.index()), host_of(ends.from.index()));
        let stream = self.open(cx, hosts, StreamUse::Link(link));
        self.links[link] = LinkRun { stream, ..LinkRun::default() };
    }

    fn open_reports(&mut self, cx: &mut AppCx<'_, '_>, at: usize) {
        let stream = self.open(cx, (host_of(at), 0), StreamUse::Reports(at));
        let run = &mut self.nodes[at];
        run.report_stream = stream;
        (run.reports, run.updates) = Default::default();
    }

    fn on_link(&mut self, cx: &mut AppCx<'_, '_>, link: usize, side: Side, bytes: u64) {
        let now = cx.now();
        let (parent, child) = (self.stage.overlay.links()[link].from, self.stage.overlay.links()[link].to);
        let run = &mut self.links[link];
        match side {
            Side::Acceptor => {
                run.up.note_arrived(bytes);
                while let Some(message) = self.links[link].up.pop() {
                    if let Some(machine) = &mut self.nodes[parent.index()].machine {
                        machine.handle_child(now, child, message);
                    }
                }
                self.stir_node(cx, parent.index());
            }
            Side::Opener => {
                run.down.note_arrived(bytes);
                while let Some(message) = self.links[link].down.pop() {
                    if let Some(machine) = &mut self.nodes[child.index()].machine {
                        machine.handle_parent(now, parent, message);
                    }
                }
                self.stir_node(cx, child.index());
            }
        }
    }

    fn on_reports(&mut self, cx: &mut AppCx<'_, '_>, at: usize, side: Side, bytes: u64) {
        let now = cx.now();
        match side {
            Side::Acceptor => {
                self.nodes[at].reports.note_arrived(bytes);
                while let Some(report) = self.nodes[at].reports.pop() {
                    if let Some(controller) = &mut self.controller {
                        controller.handle_report(now, NodeId(at as u32), report);
                    }
                }
                self.stir_controller(cx);
            }
            Side::Opener => {
                self.nodes[at].updates.note_arrived(bytes);
                while let Some(message) = self.nodes[at].updates.pop() {
                    if let Some(machine) = &mut self.nodes[at].machine {
                        machine.handle_controller(now, message);
                    }
                }
                self.stir_node(cx, at);
            }
        }
    }

    /// Rate of `bytes` in the measured time, in Mbit/s.
    fn mbps(bytes: u64, measured: Duration) -> Option<f64> {
        let rate = BitRate::average(anabranch_units::ByteCount::new(bytes), measured)?;
        Some(rate.as_bps() as f64 / 1e6)
    }
}

impl App for LiveApp {
    fn start(&mut self, cx: &mut AppCx<'_, '_>) {
        (0..self.nodes.len()).for_each(|at| self.open_reports(cx, at));
        (0..self.links.len()).for_each(|link| self.open_link(cx, link));
        (0..self.nodes.len()).for_each(|at| self.start_node(cx, at));
        self.start_controller(cx);
        for channel in 0..self.stage.settings.channels {
            let (token, at) = (self.channel_token(channel), self.ready_at(channel, 0));
            self.arm(cx, token, at);
        }
        for viewer in 0..self.viewers.len() {
            let (token, at) = (self.viewer_token(viewer), self.viewers[viewer].due);
            self.arm(cx, token, at);
        }
        for fault in 0..self.stage.settings.faults.len() {
            let (at, until) = self.stage.settings.faults[fault].times();
            let token = self.fault_token(fault);
            cx.arm(at, token);
            until.into_iter().for_each(|until| cx.arm(until, token));
        }
    }

    fn on_timer(&mut self, cx: &mut AppCx<'_, '_>, token: u16) {
        let now = cx.now();
        self.now = now;
        if token >= self.fault_token(0) {
            return self.strike(cx, usize::from(token - self.fault_token(0)));
        }
        if self.armed.get(&token).is_none_or(|at| *at > now) {
            return;
        }
        self.armed.remove(&token);
        if token == CONTROLLER {
            if let Some(controller) = &mut self.controller {
                controller.handle_timeout(now);
            }
            self.stir_controller(cx);
        } else if token < self.channel_token(0) {
            self.on_node_timer(cx, usize::from(token - NODES));
        } else if token < self.viewer_token(0) {
            self.on_part_ready(cx, u32::from(token - self.channel_token(0)));
        } else {
            self.on_viewer_timer(cx, usize::from(token - self.viewer_token(0)));
        }
    }

    fn on_stream(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, side: Side, event: StreamEvent) {
        self.now = cx.now();
        let Some(carries) = self.streams.get(stream as usize).copied().flatten() else { return };
        match (carries, event) {
            (_, StreamEvent::Arrived { bytes }) => {
                cx.read(stream, side, bytes);
                match carries {
                    StreamUse::Link(link) => self.on_link(cx, link, side, bytes),
                    StreamUse::Reports(at) => self.on_reports(cx, at, side, bytes),
                    StreamUse::Parts(_) if side == Side::Acceptor => self.on_request(cx, stream, bytes),
                    StreamUse::Parts(_) => self.on_answer(cx, stream, bytes),
                }
            }
            (StreamUse::Link(link), StreamEvent::GivenUp) if self.links[link].stream == stream => {
                self.open_link(cx, link);
            }
            (StreamUse::Reports(at), StreamEvent::GivenUp) if self.nodes[at].report_stream == stream => {
                self.open_reports(cx, at);
            }
            (StreamUse::Parts(_), StreamEvent::GivenUp) => self.on_broken(cx, stream),
            _ => {}
        }
    }

    fn end_warmup(&mut self) {
        let now = self.now;
        self.sums.at_warmup = self.viewers.iter().map(|viewing| viewing.stats(now)).collect();
        self.sums.warmup_bytes = self.viewers.iter().map(|viewing| viewing.bytes).sum();
        self.sums.ages_ms.clear();
        (self.sums.upstream_parts, self.sums.upstream_bytes) = (0, 0);
    }

    fn ended_at(&self) -> Option<Instant> {
        None
    }

    fn report(&self, measured: Duration, row: &mut WorkloadRow) {
        row.flows = self.viewers.len() as u64;
        let stats: Vec<PlaybackStats> = self.viewers.iter().map(|viewing| viewing.stats(self.now)).collect();
        let experience = Experience::new(&stats, &self.sums.at_warmup, measured, 0);
        row.more.extend(experience.columns);
        let bytes: u64 = self.viewers.iter().map(|viewing| viewing.bytes).sum();
        row.goodput_mbps = Self::mbps(bytes - self.sums.warmup_bytes, measured);
        let mut ages = self.sums.ages_ms.clone();
        ages.sort_by(f64::total_cmp);
        let sum = |of: fn(&SimulatedViewer) -> u64| Some(self.viewers.iter().map(of).sum::<u64>() as f64);
        let columns = [
            ("part_age_ms_p50", percentile(&ages, 0.5)),
            ("part_age_ms_p99", percentile(&ages, 0.99)),
            ("refused", sum(|viewing| viewing.refused)),
            ("skips", sum(|viewing| viewing.skips)),
            ("watching", sum(|viewing| u64::from(viewing.is_watching()))),
            ("upstream_parts", Some(self.sums.upstream_parts as f64)),
            ("upstream_mbps", Self::mbps(self.sums.upstream_bytes, measured)),
            ("plans", Some(self.sums.plans as f64)),
            ("control_bytes", Some(self.sums.control_bytes as f64)),
        ];
        row.more.extend(columns.into_iter().filter_map(|(name, value)| Some((name, value?))));
    }
}
