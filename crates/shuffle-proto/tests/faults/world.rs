//! The world of one run: hosts, the coordinator, the network between them, and the faults.

use super::host::{Flow, Host, LINK, Process, address};
use super::service::{Reply, RequestOrigin, Service};
use anabranch_shuffle_proto::Scheduler;
use anabranch_shuffle_proto::agent::{
    AgentAction, Answer, Event, Failure, LIMITS_WAIT, Notice, OLD_LIMITS, REPLY_MAX, SILENCE_MAX,
};
use anabranch_shuffle_proto::announcement::Announcement;
use anabranch_shuffle_proto::control::FlowKey;
use anabranch_shuffle_proto::sessions::SessionsConfig;
use anabranch_testing::faults::{FaultChances, Schedule, ScheduleEnd};
use anabranch_units::{BitRate, Duration, Instant, RandomStream, Seed};

/// Duration of the period with faults, and time limit of the recovery afterwards.
const CHAOS: Duration = Duration::from_secs(15);
const HEALED_MAX: Duration = Duration::from_secs(120);
/// Interval between two steps of the programs and of the coordinator.
const TICK: Duration = Duration::from_ms(20);
/// Age of an announcement from which an answered request must have reported it.
const TOLD_WITHIN: Duration = Duration::from_ms(1_300);
/// Size below which flows have no limit.
const MICE_BELOW_BYTES: u64 = 50_000;
/// Time limit, after the start of the last flows, for all limits to equal the coordinator's.
const AGREED_WITHIN: Duration = Duration::from_secs(5);
/// Size of a long flow, and local port of the long flow that starts at each host after recovery.
const LONG_BYTES: u64 = 40_000_000;
const LAST_PORT: u16 = 20_000;
/// Time limit within which a refused lift must be retried.
const TRIED_AGAIN: Duration = Duration::from_secs(4);

/// A kind of fault in a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Lost,
    Late,
    Cut,
    AgentCrash,
    AgentEnd,
    GuardKilled,
    CoordinatorCrash,
    Frozen,
    Jump,
    /// Decisions of the coordinator take time.
    LateDecisions,
}

impl Fault {
    /// Each fault with its maximum rate in parts per million, for each message or each 20 ms. For
    /// late messages and decisions the number is the maximum delay in microseconds.
    const ALL: [(Self, u64); 10] = [
        (Self::Lost, 100_000),
        (Self::Late, 600_000),
        (Self::Cut, 10_000),
        (Self::AgentCrash, 10_000),
        (Self::AgentEnd, 5_000),
        (Self::GuardKilled, 1_000_000),
        (Self::CoordinatorCrash, 5_000),
        (Self::Frozen, 10_000),
        (Self::Jump, 5_000),
        (Self::LateDecisions, 300_000),
    ];
}

#[derive(Clone, Debug)]
enum ScheduleEvent {
    Tick,
    /// A request reaches the coordinator.
    Request(RequestOrigin, AgentAction),
    /// An answer reaches an agent.
    Answer(RequestOrigin, Result<Answer, Failure>),
    /// An agent receives its listing.
    Listing(RequestOrigin),
    /// A deadline of an agent may be due.
    Timer(usize, u64),
    Thaw(usize, u64),
    /// The guard of a killed agent lifts the agent's limits.
    Guard(usize),
    StartAgent(usize),
    /// A long flow starts at each host.
    LastFlows,
    StartCoordinator,
}

pub struct World {
    schedule: Schedule<ScheduleEvent>,
    hosts: Vec<Host>,
    agents_so_far: u64,
    service: Option<Service>,
    scheduler: Scheduler,
    faults: FaultChances<Fault>,
    is_healed: bool,
    /// Start time of the last flows, and true if all limits have equalled the coordinator's since
    /// then.
    last_flows_at: Option<Instant>,
    is_agreed: bool,
    network: RandomStream,
    programs: RandomStream,
    chaos: RandomStream,
    sessions: RandomStream,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let seed = Seed::new(seed);
        let mut draw = seed.stream("faults", 0);
        let hosts = 2 + draw.below(4);
        let mut ppm = |most: u64| if draw.below(3) > 0 { 0 } else { draw.below(most) as u32 };
        let (refused_ppm, full_ppm) = (ppm(300_000), ppm(500_000));
        let faults = FaultChances::draw(&mut draw, Fault::ALL);
        let scheduler = Scheduler::ALL[draw.below(Scheduler::ALL.len() as u64) as usize];
        let host = |number| Host::new(seed.stream("kernel", number), refused_ppm, full_ppm);
        let mut world = Self {
            schedule: Schedule::new(),
            agents_so_far: 0,
            hosts: (0..hosts).map(host).collect(),
            service: None,
            scheduler,
            faults,
            is_healed: false,
            last_flows_at: None,
            is_agreed: false,
            network: seed.stream("network", 0),
            programs: seed.stream("programs", 0),
            chaos: seed.stream("chaos", 0),
            sessions: seed.stream("sessions", 0),
        };
        let faults = format!("{:?}, refused {refused_ppm}, full {full_ppm}", world.faults);
        world.schedule.say(format!("{scheduler}, {faults}"));
        world.schedule.after(Duration::ZERO, ScheduleEvent::StartCoordinator);
        (0..hosts as usize)
            .for_each(|host| world.schedule.after(Duration::ZERO, ScheduleEvent::StartAgent(host)));
        world.schedule.after(Duration::ZERO, ScheduleEvent::Tick);
        world
    }

    /// Runs the schedule until all faults are over and all flows have ended.
    pub fn run(mut self) -> ScheduleEnd {
        while let Some(what) = self.schedule.step(None) {
            let now = self.schedule.now();
            self.hosts.iter().for_each(|host| host.kernel.borrow_mut().now = now);
            self.handle(what);
            self.check();
            if self.is_healed && self.is_done() {
                self.schedule.say("done");
                break;
            }
            assert!(now < Instant::ZERO + CHAOS + HEALED_MAX, "not at its end: {}", self.left());
        }
        self.schedule.ended()
    }

    /// Checks the invariants.
    fn check(&self) {
        for (number, host) in self.hosts.iter().enumerate() {
            let kernel = host.kernel.borrow();
            for (key, flow) in kernel.limited() {
                let is_noted = kernel.notes.iter().any(|note| note.cookie == flow.cookie);
                assert!(is_noted, "h{number}: {key:?} has a limit that nobody would lift: {flow:?}");
            }
            let Some(agent) = host.agent.as_ref().filter(|agent| agent.frozen_until.is_none()) else {
                continue;
            };
            let is_tried = kernel.refused_at.is_some_and(|at| self.schedule.now() < at + TRIED_AGAIN);
            if self.schedule.now() > agent.heard_at + SILENCE_MAX && !is_tried {
                let limited = kernel.limited().next();
                assert!(
                    limited.is_none(),
                    "h{number}: {limited:?} stands, {agent:?} heard nothing for more than a second"
                );
            }
            if agent.joined_at.is_some_and(|at| self.schedule.now() > at + OLD_LIMITS) && !is_tried {
                let old = kernel.limited().find(|(_, flow)| flow.limited_at < agent.joined_at);
                assert!(old.is_none(), "h{number}: {old:?} has a limit of before {:?}", agent.joined_at);
            }
            assert!(agent.limits.limited().len() <= 200, "h{number}: limits of flows that are gone are kept");
        }
    }

    /// Description of all flows and limits that remain, for messages of failed tests.
    fn left(&self) -> String {
        let service = self.service.as_ref().map(Service::left);
        let host = |host: &Host| {
            let (kernel, agent) = (host.kernel.borrow(), host.agent.as_ref());
            let joined = agent.map(|agent| (agent.machine.is_joined(), agent.machine.connections()));
            format!("{:?}, limited {}, agent {joined:?}", kernel.flows, kernel.limited().count())
        };
        format!("{service:?}, {:#?}", self.hosts.iter().map(host).collect::<Vec<_>>())
    }

    /// Checks after an answer that the coordinator knows all flows announced well before the
    /// request.
    fn check_known(&mut self, host: usize) {
        let (now, service) = (self.schedule.now(), self.service.as_mut());
        let Some((agent, service)) = self.hosts[host].agent.as_ref().zip(service) else { return };
        let has_just_thawed = agent.thawed_at.is_some_and(|at| now <= at + TOLD_WITHIN);
        if has_just_thawed || !service.is_joined(host, agent.session) {
            return;
        }
        let known = service.flows_of(now, host);
        for (key, flow) in &self.hosts[host].kernel.borrow().flows {
            let is_told =
                flow.told.is_some_and(|(told, at)| told == agent.generation && at + TOLD_WITHIN <= now);
            if is_told && flow.size_bytes >= MICE_BELOW_BYTES {
                assert!(known.contains(key), "h{host}: {key:?} is not known: {flow:?}");
            }
        }
    }

    fn is_done(&self) -> bool {
        let is_idle = |host: &Host| {
            let kernel = host.kernel.borrow();
            kernel.flows.is_empty() && kernel.limited().next().is_none()
        };
        let is_service_idle = self.service.as_ref().is_some_and(|service| service.is_idle(self.hosts.len()));
        self.is_agreed && is_service_idle && self.hosts.iter().all(is_idle)
    }

    /// Returns true if there are limits, and each flow has the limit that the coordinator has set.
    fn agree(&mut self) -> bool {
        let (now, mut limits) = (self.schedule.now(), 0);
        let Some(service) = &mut self.service else { return false };
        let mut rates = service.rates(now);
        let mut is_as_wanted = |(number, host): (usize, &Host)| {
            let rates = rates.remove(&number).unwrap_or_default();
            let rate = |key: &FlowKey| rates.get(key).copied().flatten();
            let kernel = host.kernel.borrow();
            limits += kernel.flows.keys().filter(|key| rate(key).is_some()).count();
            kernel.flows.iter().all(|(key, flow)| flow.limit == rate(key).or(flow.own))
        };
        self.hosts.iter().enumerate().all(&mut is_as_wanted) && limits > 0
    }

    fn handle(&mut self, what: ScheduleEvent) {
        if !matches!(what, ScheduleEvent::Tick | ScheduleEvent::Timer(..)) {
            self.schedule.say(format!("{what:?}"));
        }
        match what {
            ScheduleEvent::Tick => self.tick(),
            ScheduleEvent::Request(asker, ask) => match &mut self.service {
                Some(service) => {
                    let replies = service.handle(self.schedule.now(), asker, ask);
                    self.reply(replies);
                }
                None => self.reply(vec![(asker, Err(Failure::Passing("refused".to_owned())))]),
            },
            ScheduleEvent::Answer((host, generation, number), answer) => {
                let now = self.schedule.now();
                let Some(agent) = self.awake(host, generation, || {
                    ScheduleEvent::Answer((host, generation, number), answer.clone())
                }) else {
                    return;
                };
                let is_heard = answer == Ok(Answer::Taken) && agent.machine.is_awaited(number);
                if is_heard {
                    agent.heard_at = now;
                }
                agent.machine.handle_answer(now + agent.ahead, number, answer);
                if is_heard {
                    self.check_known(host);
                }
                self.settle(host);
            }
            ScheduleEvent::Listing((host, generation, number)) => {
                let flows = self.hosts[host].kernel.borrow().listing();
                let answer = Ok(Answer::Listing { flows, left_out: 0 });
                self.handle(ScheduleEvent::Answer((host, generation, number), answer));
            }
            ScheduleEvent::Timer(host, generation) => {
                let now = self.schedule.now();
                if let Some(agent) = self.awake(host, generation, || ScheduleEvent::Timer(host, generation)) {
                    agent.armed = None;
                    agent.machine.handle_timeout(now + agent.ahead);
                    self.settle(host);
                }
            }
            ScheduleEvent::Thaw(host, generation) => {
                let now = self.schedule.now();
                if let Some(agent) = self.agent(host, generation) {
                    (agent.frozen_until, agent.thawed_at) = (None, Some(now));
                    agent.machine.handle_timeout(now + agent.ahead);
                    self.settle(host);
                }
            }
            ScheduleEvent::Guard(host) => {
                if self.hosts[host].agent.is_none() {
                    self.hosts[host].kernel.borrow_mut().lift_left();
                    let kernel = self.hosts[host].kernel.borrow();
                    assert!(kernel.limited().next().is_none(), "h{host}: a guard has left a limit");
                }
            }
            ScheduleEvent::StartAgent(host) => {
                self.agents_so_far += 1;
                let (now, generation) = (self.schedule.now(), self.agents_so_far);
                if self.hosts[host].agent.is_none() {
                    self.hosts[host].start(now, host, generation);
                    self.settle(host);
                }
            }
            ScheduleEvent::LastFlows => {
                self.last_flows_at = Some(self.schedule.now());
                (0..self.hosts.len()).for_each(|host| self.begin_flow(host, LAST_PORT, LONG_BYTES));
            }
            ScheduleEvent::StartCoordinator => {
                if self.service.is_none() {
                    self.service = Some(self.coordinator());
                }
            }
        }
    }

    /// Creates a coordinator that starts now.
    fn coordinator(&self) -> Service {
        let config = SessionsConfig::default();
        let decision_takes = Duration::from_us(self.faults.ppm(Fault::LateDecisions).into());
        Service::new(self.schedule.now(), self.scheduler, config, decision_takes)
    }

    fn agent(&mut self, host: usize, generation: u64) -> Option<&mut Process> {
        self.hosts[host].agent.as_mut().filter(|agent| agent.generation == generation)
    }

    /// Returns the agent if it is running. A frozen agent gets the event later.
    fn awake(
        &mut self,
        host: usize,
        generation: u64,
        what: impl Fn() -> ScheduleEvent,
    ) -> Option<&mut Process> {
        let thaws_at = self.agent(host, generation)?.frozen_until;
        if let Some(thaws_at) = thaws_at {
            self.schedule.at(thaws_at + Duration::from_us(1), what());
            return None;
        }
        self.agent(host, generation)
    }

    /// Drains an agent's output.
    fn settle(&mut self, host: usize) {
        let now = self.schedule.now();
        let Some(agent) = &mut self.hosts[host].agent else { return };
        let generation = agent.generation;
        let mut asks = Vec::new();
        let mut lines = Vec::new();
        loop {
            while let Some(event) = agent.machine.poll_event() {
                match event {
                    Event::Order(order) => agent.limits.carry_out(order),
                    Event::Notice(notice) => {
                        if notice == Notice::Joined {
                            agent.joined_at = Some(now);
                        }
                        lines.push(format!("h{host}: {notice}"));
                    }
                    Event::GivenUp(line) => panic!("h{host}: gives up: {line}"),
                }
            }
            match agent.machine.poll_ask() {
                Some((number, ask)) => {
                    if let AgentAction::Join(request) = &ask {
                        agent.session = request.session;
                    }
                    asks.push((number, ask));
                }
                None => break,
            }
        }
        let due = agent.machine.poll_timeout().map(|at| now + at.saturating_since(now + agent.ahead));
        let arm = due.filter(|at| agent.armed.is_none_or(|armed| *at < armed));
        agent.armed = arm.or(agent.armed);
        if let Some(at) = arm {
            self.schedule.at(at, ScheduleEvent::Timer(host, generation));
        }
        lines.into_iter().for_each(|line| self.schedule.say(line));
        for (number, ask) in asks {
            self.ask((host, generation, number), ask);
        }
    }

    /// Executes an action that an agent requests.
    fn ask(&mut self, asker: RequestOrigin, ask: AgentAction) {
        let within = match &ask {
            AgentAction::Prepare => {
                let session = self.sessions.next_u64();
                let prepared = Ok(Answer::Prepared { coordinator: None, session });
                return self.schedule.after(Duration::from_ms(1), ScheduleEvent::Answer(asker, prepared));
            }
            AgentAction::Look => {
                let took = Duration::from_us(self.network.below(5_000));
                return self.schedule.after(took, ScheduleEvent::Listing(asker));
            }
            AgentAction::Limits { .. } => LIMITS_WAIT + REPLY_MAX,
            AgentAction::Join(_) | AgentAction::Report(_) | AgentAction::Leave { .. } => REPLY_MAX,
        };
        let late = Err(Failure::Passing("no answer in time".to_owned()));
        self.schedule.after(within, ScheduleEvent::Answer(asker, late));
        if let Some(delay) = self.delay(asker.0) {
            self.schedule.after(delay, ScheduleEvent::Request(asker, ask));
        }
    }

    /// Returns the delay of a message between a host and the coordinator; `None` if the message is
    /// lost.
    fn delay(&mut self, host: usize) -> Option<Duration> {
        let (lost_ppm, late_us) = (self.faults.ppm(Fault::Lost), self.faults.ppm(Fault::Late));
        let is_lost = self.network.chance_ppm(lost_ppm);
        let most = 100 + u64::from(late_us);
        // Most messages are fast, and some take the maximum.
        let delay = self.network.below(most) / (1 + self.network.below(20));
        (!is_lost && self.hosts[host].cut_until <= self.schedule.now()).then(|| Duration::from_us(50 + delay))
    }

    fn reply(&mut self, replies: Vec<Reply>) {
        for (asker, answer) in replies {
            if let Some(delay) = self.delay(asker.0) {
                self.schedule.after(delay, ScheduleEvent::Answer(asker, answer));
            }
        }
    }

    /// Advances programs and the coordinator by one step, and may inject faults.
    fn tick(&mut self) {
        if !self.is_healed && self.schedule.now() >= Instant::ZERO + CHAOS {
            self.heal();
        }
        for host in 0..self.hosts.len() {
            if !self.is_healed {
                self.go_wrong(host);
                self.begin_flows(host);
            }
            self.move_flows(host);
            self.announce(host);
        }
        if let Some(begun_at) = self.last_flows_at {
            self.is_agreed = self.is_agreed || self.agree();
            let is_late = self.schedule.now() > begun_at + AGREED_WITHIN;
            assert!(self.is_agreed || !is_late, "limits are not what is decided: {}", self.left());
        }
        if let Some(service) = &mut self.service {
            let replies = service.handle_tick(self.schedule.now());
            self.reply(replies);
            let crash_ppm = self.faults.ppm(Fault::CoordinatorCrash);
            if self.chaos.chance_ppm(crash_ppm) {
                self.service = None;
                let after = Duration::from_ms(self.chaos.below(3_000));
                self.schedule.say("the coordinator crashes");
                self.schedule.after(after, ScheduleEvent::StartCoordinator);
            }
        }
        self.schedule.after(TICK, ScheduleEvent::Tick);
    }

    fn go_wrong(&mut self, host: usize) {
        let now = self.schedule.now();
        let mut some_ms = |fault, most_ms| {
            let chance_ppm = self.faults.ppm(fault);
            let happens = self.chaos.chance_ppm(chance_ppm);
            let ms = self.chaos.below(most_ms);
            happens.then(|| Duration::from_ms(ms))
        };
        let cut = some_ms(Fault::Cut, 4_000);
        let crash = some_ms(Fault::AgentCrash, 3_000);
        let end = some_ms(Fault::AgentEnd, 1_000);
        let is_guard_killed = some_ms(Fault::GuardKilled, 1).is_some();
        let freeze = some_ms(Fault::Frozen, 3_000);
        let jump = some_ms(Fault::Jump, 3_600_000);
        let guard_after = Duration::from_ms(self.chaos.below(200));
        if let Some(cut) = cut {
            self.hosts[host].cut_until = now + cut;
        }
        let Some(agent) = &mut self.hosts[host].agent else { return };
        let generation = agent.generation;
        if let Some(jump) = jump {
            agent.ahead += jump;
            agent.armed = None;
            self.schedule.after(Duration::ZERO, ScheduleEvent::Timer(host, generation));
        } else if let Some(freeze) = freeze.filter(|_| agent.frozen_until.is_none()) {
            agent.frozen_until = Some(now + freeze);
            self.schedule.after(freeze, ScheduleEvent::Thaw(host, generation));
        } else if let Some(restart) = crash {
            self.hosts[host].agent = None;
            self.schedule.say(format!("h{host}: its agent crashes, and its guard: {is_guard_killed}"));
            if !is_guard_killed {
                self.schedule.after(guard_after, ScheduleEvent::Guard(host));
            }
            self.schedule.after(restart, ScheduleEvent::StartAgent(host));
        } else if let Some(restart) = end.filter(|_| agent.frozen_until.is_none()) {
            let at = now + agent.ahead;
            agent.machine.handle_end(at);
            self.settle(host);
            self.hosts[host].agent = None;
            // The agent's guard lifts the limits that the agent could not lift.
            self.schedule.after(guard_after.min(restart), ScheduleEvent::Guard(host));
            self.schedule.after(restart, ScheduleEvent::StartAgent(host));
        }
    }

    fn heal(&mut self) {
        self.schedule.say("all is healed");
        self.is_healed = true;
        self.faults.clear();
        for host in 0..self.hosts.len() {
            self.hosts[host].cut_until = self.schedule.now();
            let mut kernel = self.hosts[host].kernel.borrow_mut();
            (kernel.refused_ppm, kernel.full_ppm) = (0, 0);
        }
        // By then the coordinator or the agent has noticed each lost request or answer.
        self.schedule.after(LIMITS_WAIT + REPLY_MAX + TICK, ScheduleEvent::LastFlows);
    }

    fn begin_flows(&mut self, host: usize) {
        if self.programs.below(20) > 0 {
            return;
        }
        let port = 10_000 + self.programs.below(40) as u16;
        let most_bytes = if self.programs.below(20) == 0 { LONG_BYTES } else { 4_000_000 };
        let size_bytes = 1_000 + self.programs.below(most_bytes);
        self.begin_flow(host, port, size_bytes);
    }

    fn begin_flow(&mut self, host: usize, port: u16, size_bytes: u64) {
        let others = self.hosts.len() as u64 - 1;
        let to = (host + 1 + self.programs.below(others) as usize) % self.hosts.len();
        let coflow = self.programs.below(6);
        let own = (self.programs.below(5) == 0).then(|| BitRate::mbps(20 + self.programs.below(50)));
        let says_end = self.programs.below(2) == 0;
        let key = FlowKey { local: (address(host), port).into(), remote: (address(to), 7_000).into() };
        self.hosts[host].flows_so_far += 1;
        let cookie = self.hosts[host].flows_so_far;
        let flow = Flow {
            cookie,
            coflow: format!("t{coflow}"),
            size_bytes,
            acked_bytes: 0,
            own,
            limit: own,
            limited_at: None,
            told: None,
            says_end,
        };
        // A port in use keeps its flow. A free port gets a new connection.
        self.hosts[host].kernel.borrow_mut().flows.entry(key).or_insert(flow);
    }

    /// Moves bytes of flows at their limits, and closes complete flows.
    fn move_flows(&mut self, host: usize) {
        let kernel = self.hosts[host].kernel.clone();
        let flows = kernel.borrow().flows.len() as u64;
        let mut through = Vec::new();
        for (key, flow) in &mut kernel.borrow_mut().flows {
            let fair_bps = LINK.as_bps() / flows;
            let bps = flow.limit.map_or(fair_bps, |limit| limit.as_bps().min(fair_bps));
            flow.acked_bytes = (flow.acked_bytes + bps / 8 / 50).min(flow.size_bytes);
            if flow.acked_bytes == flow.size_bytes {
                through.push(*key);
            }
        }
        for key in through {
            let says_end = kernel.borrow().flows[&key].says_end;
            if says_end {
                self.tell(host, key, |flow| Announcement::Ended {
                    flow: key,
                    coflow: Some(flow.coflow.clone()),
                });
            }
            kernel.borrow_mut().flows.remove(&key);
        }
    }

    /// Announces a few flows at a time to an agent that has not received their announcement.
    fn announce(&mut self, host: usize) {
        let Some(agent) = self.hosts[host].agent.as_ref().filter(|agent| agent.frozen_until.is_none()) else {
            return;
        };
        let (now, generation) = (self.schedule.now(), agent.generation);
        let untold: Vec<FlowKey> = {
            let kernel = self.hosts[host].kernel.borrow();
            let is_untold =
                |(_, flow): &(&FlowKey, &Flow)| flow.told.is_none_or(|(told, _)| told != generation);
            kernel.flows.iter().filter(is_untold).map(|(key, _)| *key).collect()
        };
        for key in untold {
            if self.programs.below(3) > 0 {
                continue;
            }
            if let Some(flow) = self.hosts[host].kernel.borrow_mut().flows.get_mut(&key) {
                flow.told = Some((generation, now));
            }
            self.tell(host, key, |flow| Announcement::Flow {
                flow: key,
                coflow: flow.coflow.clone(),
                size_bytes: flow.size_bytes,
            });
        }
    }

    fn tell(&mut self, host: usize, key: FlowKey, said: impl Fn(&Flow) -> Announcement) {
        let kernel = self.hosts[host].kernel.clone();
        let seen = kernel.borrow().listing().into_iter().find(|seen| seen.flow == key);
        let Some(agent) = self.hosts[host].agent.as_mut().filter(|agent| agent.frozen_until.is_none()) else {
            return;
        };
        let said = said(&kernel.borrow().flows[&key]);
        let seen = seen.expect("it is there until it is closed");
        let taken = agent.machine.handle_announcement(self.schedule.now() + agent.ahead, &said, &seen);
        taken.expect("there is room");
        self.settle(host);
    }
}
