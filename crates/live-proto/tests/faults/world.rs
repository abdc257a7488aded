//! The simulated system of one schedule: nodes, a controller, their messages, the flow of video,
//! and faults.

use super::laws::Laws;
use super::planner;
use super::viewers::Viewer;
use anabranch_live_proto::control::controller::{Controller, ControllerEvent, ControllerSettings, Plan};
use anabranch_live_proto::control::ledger::Capacity;
use anabranch_live_proto::control::messages::{
    ChildMessage, GroupId, ParentMessage, Report, ToChild, ToNode, ToParent,
};
use anabranch_live_proto::control::node::{Event, Node, RequestId, Settings, Transmit};
use anabranch_live_proto::{ChannelId, Link, Network, NodeId, Object, Tier};
use anabranch_testing::faults::{self, FaultChances, Schedule, ScheduleEnd};
use anabranch_units::{BitRate, Duration, Instant, LinkId, RandomStream, Seed};
use std::collections::{BTreeMap, BTreeSet};

/// Time between two plans.
pub const ROUND: Duration = Duration::from_secs(10);
/// Time from the start during which faults are drawn.
const CHAOS: Duration = Duration::from_secs(40);
/// Interval at which faults are drawn, and at which viewers check their edge.
const TICK: Duration = Duration::from_ms(500);
/// Interval at which video is forwarded and the laws of flows are checked.
const FLOW: Duration = Duration::from_ms(100);
/// Age of the last video at which a stream still counts as fresh.
const FRESH: Duration = Duration::from_ms(350);
/// Time without video after which a data plane reports a stream as stalled.
const STALLED: Duration = Duration::from_secs(3);
/// Running time of the optimiser.
const OPTIMISER: Duration = Duration::from_ms(300);

/// Longest delay of a late message, in microseconds.
pub const LATE_US_MAX: u64 = 5_000_000;

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Lost,
    Late,
    LostUpdates,
    CutLink,
    OneWay,
    CutControl,
    Split,
    Degraded,
    NodeCrash,
    Frozen,
    ControllerCrash,
    ControllerFrozen,
    Drain,
    /// Adds links and nodes, and raises capacities.
    Grow,
    /// Lowers capacities of links, to 0 for some.
    Shrink,
}

impl Fault {
    /// Each fault with its highest probability in ppm, for each message or at each [`TICK`]. For
    /// [`Fault::Late`] the number is the longest delay in microseconds.
    const ALL: [(Self, u64); 15] = [
        (Self::Lost, 200_000),
        (Self::Late, LATE_US_MAX),
        (Self::LostUpdates, 1_000_000),
        (Self::CutLink, 60_000),
        (Self::OneWay, 40_000),
        (Self::CutControl, 60_000),
        (Self::Split, 20_000),
        (Self::Degraded, 80_000),
        (Self::NodeCrash, 40_000),
        (Self::Frozen, 40_000),
        (Self::ControllerCrash, 30_000),
        (Self::ControllerFrozen, 30_000),
        (Self::Drain, 20_000),
        (Self::Grow, 60_000),
        (Self::Shrink, 60_000),
    ];

    /// Faults that interrupt no video: faults of the controller, drains, and growth.
    const OF_CONTROL: [Self; 6] = [
        Self::LostUpdates,
        Self::CutControl,
        Self::ControllerCrash,
        Self::ControllerFrozen,
        Self::Drain,
        Self::Grow,
    ];
}

/// Index of the controller among senders and receivers of messages.
const CONTROLLER: usize = usize::MAX;

#[derive(Clone, Debug)]
pub enum ScheduleEvent {
    Tick,
    Flow,
    ToParent {
        from: NodeId,
        to: NodeId,
        message: ToParent,
    },
    ToChild {
        from: NodeId,
        to: NodeId,
        message: ToChild,
    },
    Report {
        from: NodeId,
        report: Report,
    },
    ToNode {
        to: NodeId,
        message: ToNode,
    },
    Plan {
        lead: u64,
        number: u64,
        plan: Plan,
    },
    StartNode(usize),
    StartController,
    Undrain(NodeId),
    /// A node receives the changed network.
    NodeNetwork(NodeId),
    /// The controller receives the changed network.
    ControllerNetwork,
    /// A viewer's request reaches an edge.
    Ask {
        edge: NodeId,
        life: u64,
        request: RequestId,
        group: GroupId,
        object: Object,
    },
    /// An edge is notified that a viewer has left, unless the edge is frozen.
    Left {
        edge: NodeId,
        life: u64,
        group: GroupId,
        object: Object,
    },
    Wake,
}

/// A running node.
pub struct Process {
    pub life: u64,
    pub machine: Node,
    pub frozen_until: Instant,
    /// Parents from which each object is fetched, with the arrival time of their last video.
    pub fetching: BTreeMap<(Object, NodeId), Instant>,
}

/// A running controller.
pub struct RunningController {
    pub machine: Controller,
    frozen_until: Instant,
}

/// The fixed part of a schedule.
pub struct FixedPart {
    pub network: Network,
    pub groups: Vec<Vec<NodeId>>,
    /// Objects that each source imports.
    pub imports: BTreeMap<NodeId, BTreeSet<Object>>,
}

pub struct World {
    pub schedule: Schedule<ScheduleEvent>,
    pub place: FixedPart,
    pub nodes: Vec<Option<Process>>,
    pub controller: Option<RunningController>,
    pub viewers: Vec<Viewer>,
    /// Edge of each group for each object, as DNS last received it.
    pub dns: BTreeMap<(GroupId, Object), NodeId>,
    /// Requests that their viewers have cancelled.
    pub abandoned: BTreeMap<RequestId, (GroupId, Object)>,
    pub laws: Laws,
    /// Available share of each link's capacity, in percent.
    pub shares: Vec<u64>,
    degraded_until: BTreeMap<usize, Instant>,
    /// End of each interruption of messages, by sender and receiver; the controller is
    /// [`CONTROLLER`].
    cuts: BTreeMap<(usize, usize), Instant>,
    faults: FaultChances<Fault>,
    /// Whether no fault of this schedule interrupts video.
    pub is_video_safe: bool,
    lives: u64,
    pub healed_at: Option<Instant>,
    pub random: Randoms,
}

/// Named streams of random numbers.
pub struct Randoms {
    network: RandomStream,
    pub chaos: RandomStream,
    pub viewers: RandomStream,
    seed: Seed,
}

/// Whether a message answers a request.
fn is_answer(message: &ToChild) -> bool {
    matches!(
        message.body,
        ParentMessage::Granted { .. } | ParentMessage::Refused { .. } | ParentMessage::Compare
    )
}

fn place(draw: &mut RandomStream) -> FixedPart {
    let counts = [1 + draw.below(2), 2 + draw.below(2), 2 + draw.below(3)];
    let tiers = [Tier::Source, Tier::Reflector, Tier::Edge];
    let mut nodes = Vec::new();
    for (tier, count) in tiers.into_iter().zip(counts) {
        nodes.extend((0..count).map(|number| (format!("{tier:?}{number}").to_lowercase(), tier)));
    }
    let ids = |tier: Tier| -> Vec<u32> {
        (0..nodes.len() as u32).filter(|id| nodes[*id as usize].1 == tier).collect()
    };
    let mut links = Vec::new();
    for pair in tiers.windows(2) {
        for to in ids(pair[1]) {
            let parents = ids(pair[0]);
            let sure = draw.below(parents.len() as u64) as usize;
            for (index, from) in parents.into_iter().enumerate() {
                if index == sure || draw.below(5) > 0 {
                    let capacity = BitRate::mbps(4 + draw.below(16));
                    links.push(Link { from: NodeId(from), to: NodeId(to), capacity, cost: 1.0 });
                }
            }
        }
    }
    let node = |(name, tier): &(String, Tier)| anabranch_live_proto::Node { name: name.clone(), tier: *tier };
    let network = Network::new(nodes.iter().map(node).collect(), links).expect("tiers are in order");
    let edges = ids(Tier::Edge);
    let groups = (0..3 + draw.below(3)).map(|_| {
        let mut near: Vec<NodeId> = edges.iter().copied().map(NodeId).collect();
        draw.shuffle(&mut near);
        near.truncate(1 + draw.below(near.len() as u64) as usize);
        near
    });
    let groups = groups.collect();
    let sources = ids(Tier::Source);
    let mut imports: BTreeMap<NodeId, BTreeSet<Object>> = BTreeMap::new();
    for channel in 0..3 + draw.below(3) as u32 {
        let sure = draw.below(sources.len() as u64) as usize;
        for (index, source) in sources.iter().enumerate() {
            if index == sure || draw.below(2) == 0 {
                imports.entry(NodeId(*source)).or_default().extend(ladder(ChannelId(channel)));
            }
        }
    }
    FixedPart { network, groups, imports }
}

/// The objects of a channel, the highest bitrate first.
pub fn ladder(channel: ChannelId) -> [Object; 2] {
    [3, 1].map(|mbps| Object { channel, bitrate: BitRate::mbps(mbps) })
}

impl World {
    pub fn new(number: u64) -> Self {
        let seed = Seed::new(number);
        let mut draw = seed.stream("world", 0);
        let place = place(&mut draw);
        let channels: BTreeSet<ChannelId> =
            place.imports.values().flatten().map(|object| object.channel).collect();
        let viewers = (0..4 + draw.below(8)).map(|_| {
            let group = GroupId(draw.below(place.groups.len() as u64) as u32);
            Viewer::new(group, ChannelId(draw.below(channels.len() as u64) as u32))
        });
        let viewers = viewers.collect();
        let mut faults = FaultChances::draw(&mut draw, Fault::ALL);
        if draw.below(8) == 0 {
            faults.retain(|fault| Fault::OF_CONTROL.contains(&fault));
        }
        let is_video_safe = faults.kinds().all(|fault| Fault::OF_CONTROL.contains(&fault));
        let has_controller = draw.below(8) > 0;
        let mut world = Self {
            schedule: Schedule::new(),
            nodes: place.network.nodes().iter().map(|_| None).collect(),
            controller: None,
            viewers,
            dns: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            laws: Laws::default(),
            shares: vec![100; place.network.links().len()],
            degraded_until: BTreeMap::new(),
            cuts: BTreeMap::new(),
            faults,
            is_video_safe,
            lives: 0,
            healed_at: None,
            random: Randoms {
                network: seed.stream("network", 0),
                chaos: seed.stream("chaos", 0),
                viewers: seed.stream("viewers", 0),
                seed,
            },
            place,
        };
        world.schedule.say(format!(
            "{} nodes, {} links, groups {:?}, {:?}",
            world.nodes.len(),
            world.shares.len(),
            world.place.groups,
            world.faults
        ));
        (0..world.nodes.len()).for_each(|at| world.schedule.at(Instant::ZERO, ScheduleEvent::StartNode(at)));
        if has_controller {
            world.schedule.at(Instant::ZERO, ScheduleEvent::StartController);
        }
        world.schedule.after(TICK, ScheduleEvent::Tick);
        world.schedule.after(FLOW, ScheduleEvent::Flow);
        world
    }

    /// Runs the schedule to its end.
    pub fn run(mut self) -> ScheduleEnd {
        let end = CHAOS + ROUND * 2 + Duration::from_secs(10);
        loop {
            match self.schedule.step(self.due()) {
                Some(what) => self.happen(what),
                None => self.keep_time(),
            }
            self.drain();
            if self.schedule.now() >= Instant::ZERO + end {
                self.check_end();
                return self.schedule.ended();
            }
        }
    }

    pub fn now(&self) -> Instant {
        self.schedule.now()
    }

    /// The process of a node, if it is running and not frozen.
    pub fn awake(&mut self, node: NodeId) -> Option<&mut Process> {
        let now = self.schedule.now();
        self.nodes[node.index()].as_mut().filter(|process| process.frozen_until <= now)
    }

    fn due(&self) -> Option<Instant> {
        let nodes = self.nodes.iter().flatten();
        let nodes = nodes.map(|process| process.machine.poll_timeout().max(process.frozen_until));
        let controller = self.controller.iter();
        let controller = controller.map(|running| running.machine.poll_timeout().max(running.frozen_until));
        nodes.chain(controller).min()
    }

    fn keep_time(&mut self) {
        let now = self.now();
        for process in self.nodes.iter_mut().flatten().filter(|process| process.frozen_until <= now) {
            process.machine.handle_timeout(now);
        }
        if let Some(running) = self.controller.as_mut().filter(|running| running.frozen_until <= now) {
            running.machine.handle_timeout(now);
        }
    }

    fn happen(&mut self, what: ScheduleEvent) {
        let now = self.now();
        let to = match &what {
            ScheduleEvent::ToParent { to, .. }
            | ScheduleEvent::ToChild { to, .. }
            | ScheduleEvent::ToNode { to, .. } => Some(*to),
            ScheduleEvent::Ask { edge, .. }
            | ScheduleEvent::Left { edge, .. }
            | ScheduleEvent::NodeNetwork(edge) => Some(*edge),
            _ => None,
        };
        if let Some(process) = to.and_then(|to| self.nodes[to.index()].as_ref())
            && process.frozen_until > now
        {
            return self.schedule.at(process.frozen_until, what);
        }
        if let (
            ScheduleEvent::Report { .. } | ScheduleEvent::Plan { .. } | ScheduleEvent::ControllerNetwork,
            Some(running),
        ) = (&what, &self.controller)
            && running.frozen_until > now
        {
            return self.schedule.at(running.frozen_until, what);
        }
        if faults::is_shown() {
            match &what {
                ScheduleEvent::ToParent { from, to, message }
                    if !matches!(message.body, ChildMessage::Heartbeat(_)) =>
                {
                    self.schedule.say(format!("{} to parent {}: {:?}", from.0, to.0, message.body));
                }
                ScheduleEvent::ToChild { from, to, message } if is_answer(message) => {
                    self.schedule.say(format!("{} to child {}: {:?}", from.0, to.0, message.body));
                }
                _ => {}
            }
        }
        match what {
            ScheduleEvent::Tick => self.tick(),
            ScheduleEvent::Flow => self.flow(),
            ScheduleEvent::ToParent { from, to, message } => {
                self.laws.note_given_up(from, to, &message);
                if let Some(process) = self.awake(to) {
                    process.machine.handle_child(now, from, message);
                }
            }
            ScheduleEvent::ToChild { from, to, message } => {
                if let Some(process) = self.awake(to) {
                    process.machine.handle_parent(now, from, message);
                }
            }
            ScheduleEvent::ToNode { to, message } => {
                if let Some(process) = self.awake(to) {
                    process.machine.handle_controller(now, message);
                }
            }
            ScheduleEvent::Report { from, report } => {
                if let Some(running) = &mut self.controller {
                    running.machine.handle_report(now, from, report);
                }
            }
            ScheduleEvent::Plan { lead, number, plan } => {
                let running = self.controller.as_mut();
                if let Some(running) = running.filter(|running| running.machine.version().lead == lead) {
                    let taken = running.machine.handle_plan(now, number, plan);
                    self.schedule.say(format!("plan {number}: {taken:?}"));
                }
            }
            ScheduleEvent::StartNode(at) => self.start_node(at),
            ScheduleEvent::StartController => self.start_controller(),
            ScheduleEvent::Undrain(node) => {
                if let Some(running) = &mut self.controller {
                    running.machine.handle_undrain(now, node);
                }
            }
            ScheduleEvent::NodeNetwork(node) => self.give_node_network(node),
            ScheduleEvent::ControllerNetwork => self.give_controller_network(),
            ScheduleEvent::Ask { edge, life, request, group, object } => {
                // A viewer that has cancelled has closed its connection.
                let is_abandoned = self.abandoned.remove(&request).is_some();
                let process = self.awake(edge).filter(|process| process.life == life && !is_abandoned);
                if let Some(process) = process {
                    process.machine.handle_viewer(now, request, group, object);
                }
            }
            ScheduleEvent::Left { edge, life, group, object } => {
                if let Some(process) = self.awake(edge).filter(|process| process.life == life) {
                    process.machine.handle_viewer_left(group, object);
                }
            }
            ScheduleEvent::Wake => {}
        }
    }

    /// A viewer leaves an edge. The edge is notified if it is not frozen.
    pub fn leave(&mut self, edge: NodeId, life: u64, group: GroupId, object: Object) {
        self.schedule.after(Duration::from_ms(1), ScheduleEvent::Left { edge, life, group, object });
    }

    fn start_node(&mut self, at: usize) {
        if self.nodes[at].is_some() {
            return;
        }
        self.lives += 1;
        // Incarnation numbers are farther apart than the request numbers of one incarnation.
        let (now, life, id) = (self.now(), self.lives << 32, NodeId(at as u32));
        let seed = Seed::new(self.random.seed.stream("node", life).next_u64());
        let mut machine = Node::new(now, &self.place.network, id, life, Settings::default(), seed);
        for object in self.place.imports.get(&id).into_iter().flatten() {
            assert!(machine.handle_import(*object));
        }
        self.schedule.say(format!("node {at} starts"));
        self.nodes[at] = Some(Process { life, machine, frozen_until: now, fetching: BTreeMap::new() });
        self.measure();
    }

    fn start_controller(&mut self) {
        if self.controller.is_some() {
            return;
        }
        self.lives += 1;
        let now = self.now();
        let settings = ControllerSettings { round: ROUND, moves_max: 6, ..ControllerSettings::default() };
        let (network, groups) = (self.place.network.clone(), self.place.groups.clone());
        let machine = Controller::new(now, network, groups, self.lives, settings).expect("groups have edges");
        self.schedule.say("controller starts");
        self.controller = Some(RunningController { machine, frozen_until: now });
    }

    // ---- messages ----

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|until| *until > self.now())
    }

    fn post(&mut self, from: usize, to: usize, what: ScheduleEvent) {
        if self.is_cut(from, to) || self.random.network.chance_ppm(self.faults.ppm(Fault::Lost)) {
            return;
        }
        let mut delay = Duration::from_us(1_000 + self.random.network.below(9_000));
        let most = self.faults.ppm(Fault::Late);
        if most > 0 && self.random.network.below(8) == 0 {
            delay += Duration::from_us(self.random.network.below(u64::from(most)));
        }
        self.schedule.after(delay, what);
    }

    /// Delivers the output of all machines.
    pub fn drain(&mut self) {
        for at in 0..self.nodes.len() {
            while self.drain_node(at) {}
        }
        while self.drain_controller() {}
    }

    fn drain_node(&mut self, at: usize) -> bool {
        let id = NodeId(at as u32);
        let Some(process) = &mut self.nodes[at] else { return false };
        if let Some(message) = process.machine.poll_transmit() {
            match message {
                Transmit::Parent(to, message) => {
                    self.post(at, to.index(), ScheduleEvent::ToParent { from: id, to, message });
                }
                Transmit::Child(to, message) => {
                    self.laws.note_sent(id, to, &message);
                    self.post(at, to.index(), ScheduleEvent::ToChild { from: id, to, message });
                }
                Transmit::Controller(report) => {
                    self.post(at, CONTROLLER, ScheduleEvent::Report { from: id, report })
                }
            }
            return true;
        }
        let Some(event) = process.machine.poll_event() else { return false };
        self.handle_event(id, event);
        true
    }

    fn handle_event(&mut self, at: NodeId, event: Event) {
        let now = self.now();
        let process = self.nodes[at.index()].as_mut().expect("it has said something");
        self.schedule.say(format!("node {}: {event:?}", at.0));
        match event {
            Event::Fetch { object, parent, cause, .. } => {
                process.fetching.insert((object, parent), now);
                self.laws.note_fetch(at, cause);
            }
            Event::Stop(object, parent) => {
                let last = process.fetching.remove(&(object, parent));
                self.check_stop(at, object, parent, last);
            }
            Event::ParentFailed(parent) => self.laws.failed.insert((at, parent), now).map_or((), drop),
            Event::ViewerAdmitted(request) => self.handle_answer(at, request, true),
            Event::ViewerRefused(request, _) => self.handle_answer(at, request, false),
            Event::ViewersLost(object, _) => self.handle_lost(at, object),
            _ => {}
        }
    }

    fn drain_controller(&mut self) -> bool {
        let Some(running) = &mut self.controller else { return false };
        if let Some((to, message)) = running.machine.poll_transmit() {
            let is_lost = message.update.is_some()
                && self.random.network.chance_ppm(self.faults.ppm(Fault::LostUpdates));
            if !is_lost {
                self.post(CONTROLLER, to.index(), ScheduleEvent::ToNode { to, message });
            }
        } else if let Some(job) = running.machine.poll_job() {
            let plan = planner::plan(&self.place.network, &self.place.groups, &job);
            let lead = running.machine.version().lead;
            self.schedule.after(OPTIMISER, ScheduleEvent::Plan { lead, number: job.number, plan });
        } else if let Some(event) = running.machine.poll_event() {
            if event == ControllerEvent::Mapping {
                self.dns = running.machine.mapping().clone();
            }
            self.schedule.say(format!("controller: {event:?}"));
        } else {
            return false;
        }
        true
    }

    // ---- video ----

    /// Forwards video tier by tier, then runs the viewers and checks the laws.
    fn flow(&mut self) {
        let now = self.now();
        self.schedule.after(FLOW, ScheduleEvent::Flow);
        self.measure();
        self.drain();
        // A tier fetches from the tier above, so tiers are visited from the sources down.
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|at| self.place.network.nodes()[*at].tier);
        for at in order {
            let id = NodeId(at as u32);
            let Some(process) = self.awake(id) else { continue };
            let fetching: Vec<_> = process.fetching.iter().map(|(key, last)| (*key, *last)).collect();
            for ((object, parent), last) in fetching {
                let is_connected = !self.is_cut(at, parent.index()) && !self.is_cut(parent.index(), at);
                let sends = self.nodes[parent.index()].as_ref().is_some_and(|process| {
                    process.machine.is_granted(id, object) && process.frozen_until <= now
                });
                let is_fresh = is_connected && sends && self.is_fresh(parent, object);
                let process = self.awake(id).expect("awake above");
                if !process.fetching.contains_key(&(object, parent)) {
                    continue;
                }
                if is_fresh {
                    process.fetching.insert((object, parent), now);
                    process.machine.handle_delivered(now, object, parent);
                } else if now > last + STALLED && process.machine.upstream(object) == Some(parent) {
                    process.machine.handle_stalled(now, object);
                }
                self.drain();
            }
        }
        self.check_flows();
        self.watch();
    }

    /// Whether a node has the newest video of an object.
    pub fn is_fresh(&self, node: NodeId, object: Object) -> bool {
        let now = self.now();
        if self.place.network.node(node).tier == Tier::Source {
            return self.place.imports.get(&node).is_some_and(|objects| objects.contains(&object));
        }
        let Some(process) = &self.nodes[node.index()] else { return false };
        let parent = process.machine.upstream(object);
        let last = parent.and_then(|parent| process.fetching.get(&(object, parent)));
        process.frozen_until <= now && last.is_some_and(|last| now <= *last + FRESH)
    }

    /// Reports to each sender the available capacity of its links.
    pub fn measure(&mut self) {
        for (number, link) in self.place.network.links().to_vec().into_iter().enumerate() {
            let measured = BitRate::bps(link.capacity.as_bps() * self.shares[number] / 100);
            let Some(process) = self.awake(link.from) else { continue };
            // The node may not yet have a new link, or its new declared capacity.
            let Some(ledger) = process.machine.ledger(link.to) else { continue };
            let capacity = Capacity { measured: Some(measured), ..ledger.capacity() };
            let is_lower = capacity.believed() < ledger.capacity().believed();
            if capacity.believed() != ledger.capacity().believed() {
                process.machine.handle_capacity(link.to, capacity);
                self.laws.evictor = is_lower.then_some(link.from);
                self.drain();
                self.laws.evictor = None;
            }
        }
    }

    // ---- faults ----

    fn tick(&mut self) {
        let now = self.now();
        if self.healed_at.is_some() {
            return self.schedule.after(TICK, ScheduleEvent::Tick);
        }
        if now >= Instant::ZERO + CHAOS {
            self.heal();
            return self.schedule.after(TICK, ScheduleEvent::Tick);
        }
        let over: Vec<usize> =
            self.degraded_until.iter().filter(|(_, until)| **until <= now).map(|(link, _)| *link).collect();
        for link in over {
            self.degraded_until.remove(&link);
            self.shares[link] = 100;
        }
        for fault in self.faults.kinds().collect::<Vec<_>>() {
            if self.random.chaos.chance_ppm(self.faults.ppm(fault)) {
                self.strike(fault);
            }
        }
        self.draw_viewers();
        self.schedule.after(TICK, ScheduleEvent::Tick);
    }

    fn strike(&mut self, fault: Fault) {
        let now = self.now();
        let count = self.nodes.len();
        let random = &mut self.random.chaos;
        let link = random.below(self.shares.len() as u64) as usize;
        let node = random.below(count as u64) as usize;
        let until = now + Duration::from_ms(200 + random.below(12_000));
        // Messages to a frozen process are delivered when it resumes, before faults end.
        let thawed_at = until.min(Instant::ZERO + CHAOS);
        let Link { from, to, .. } = *self.place.network.link(LinkId(link as u32));
        let (from, to) = (from.index(), to.index());
        match fault {
            Fault::Lost | Fault::Late | Fault::LostUpdates => return,
            Fault::CutLink => {
                self.cuts.extend([((from, to), until), ((to, from), until)]);
            }
            Fault::OneWay => {
                let pair = if random.below(2) == 0 { (from, to) } else { (to, from) };
                self.cuts.insert(pair, until);
            }
            Fault::CutControl => {
                self.cuts.extend([((node, CONTROLLER), until), ((CONTROLLER, node), until)]);
            }
            Fault::Split => {
                let ends = (0..count).chain([CONTROLLER]);
                let sides: Vec<(usize, bool)> = ends.map(|end| (end, random.below(2) == 0)).collect();
                for ((a, side), (b, other)) in sides.iter().flat_map(|a| sides.iter().map(move |b| (a, b))) {
                    if side != other {
                        self.cuts.insert((*a, *b), until);
                    }
                }
            }
            Fault::Degraded => {
                self.shares[link] = random.below(100);
                self.degraded_until.insert(link, until);
            }
            Fault::NodeCrash => {
                // Half of the restarts end before neighbours count the node as silent.
                let is_short = random.below(2) == 0;
                let until = if is_short { now + Duration::from_ms(50 + random.below(500)) } else { until };
                self.nodes[node] = None;
                self.schedule.at(until, ScheduleEvent::StartNode(node));
            }
            Fault::Frozen => {
                if let Some(process) = &mut self.nodes[node] {
                    process.frozen_until = thawed_at;
                    self.schedule.at(thawed_at, ScheduleEvent::Wake);
                }
            }
            Fault::ControllerCrash => {
                self.controller = None;
                self.schedule.at(until, ScheduleEvent::StartController);
            }
            Fault::ControllerFrozen => {
                if let Some(running) = &mut self.controller {
                    running.frozen_until = thawed_at;
                    self.schedule.at(thawed_at, ScheduleEvent::Wake);
                }
            }
            Fault::Grow => self.grow(),
            Fault::Shrink => self.shrink(link),
            Fault::Drain => {
                let node = NodeId(node as u32);
                if let Some(running) = &mut self.controller {
                    running.machine.handle_drain(now, node);
                    self.schedule.at(until, ScheduleEvent::Undrain(node));
                }
            }
        }
        self.schedule.say(format!("{fault:?}: node {node}, link {from} to {to}, until {until:?}"));
    }

    fn heal(&mut self) {
        let now = self.now();
        self.schedule.say("all is well again");
        self.faults.clear();
        self.cuts.clear();
        self.degraded_until.clear();
        self.shares.fill(100);
        for process in self.nodes.iter_mut().flatten() {
            process.frozen_until = process.frozen_until.min(now);
        }
        (0..self.nodes.len()).for_each(|at| self.start_node(at));
        (0..self.nodes.len() as u32).for_each(|at| self.give_node_network(NodeId(at)));
        self.start_controller();
        self.give_controller_network();
        let running = self.controller.as_mut().expect("started above");
        running.frozen_until = running.frozen_until.min(now);
        let draining = running.machine.draining().clone();
        draining.into_iter().for_each(|node| running.machine.handle_undrain(now, node));
        self.healed_at = Some(now);
    }

    /// The edge to which DNS directs a viewer.
    pub fn resolve(&self, group: GroupId, object: Object) -> Option<NodeId> {
        let planned = self.dns.get(&(group, object)).copied();
        let now = self.now();
        let controller = self.controller.as_ref().filter(|running| running.frozen_until <= now);
        controller.map_or(planned, |running| running.machine.edge_for(group, object))
    }

    /// Number of a new request.
    pub fn request(&mut self) -> RequestId {
        self.lives += 1;
        RequestId(self.lives)
    }
}
