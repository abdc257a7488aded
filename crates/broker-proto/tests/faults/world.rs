//! The world of one schedule: brokers around a store, a process for each network, the messages
//! between them, and the faults.
//!
//! Invariants, checked after every event:
//! 1. A broker accepts requests only of the session that joined it last; while it leads, it refuses
//!    no request of that session.
//! 2. An agent receives each message of a join at most once and in order, and misses a message only
//!    if its mailbox was full.
//! 3. A network receives the result of an accepted round only if the store has that round.
//! 4. A leading broker ends a session exactly when its agent has been silent for [`SILENCE_MAX`].
//! 5. A running agent has a request in flight, or joins within the longest pause.
//!
//! After all faults have ended, one of several brokers stays down. Then one of the remaining
//! brokers leads, every agent joins the leader, all brokers list all networks as connected, and
//! every network receives the result of a new round.

use super::store::{LEASE, Store};
use anabranch_broker_proto::agent_session::{self, AgentAction, Answer, Failure, WITHIN};
use anabranch_broker_proto::broker::{Settings, ToNetwork};
use anabranch_broker_proto::designs;
use anabranch_broker_proto::networks::{
    self, MAILBOX_MAX, NetworkRoll, NotLeaderError, Refusal, SILENCE_MAX,
};
use anabranch_broker_proto::replica::{RoleChange, StoreReply, StoreRequest};
use anabranch_broker_proto::{
    AgentSession, Networks, Parties, Replica, World as Market, WorldShape, generate,
};
use anabranch_testing::faults::{FaultChances, Schedule, ScheduleEnd};
use anabranch_units::{Duration, Instant, PeerId, RandomStream, Seed};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Interval between two rounds.
const EVERY: Duration = Duration::from_secs(20);
/// Duration of the faults.
const CHAOS: Duration = Duration::from_secs(150);
/// Time limit of recovery after the last fault: the sum of an agent's slowest request, the
/// election, and two rounds.
const HEALED: Duration = Duration::from_secs(120);
/// Interval between two draws of faults.
const TICK: Duration = Duration::from_ms(500);
/// An agent's longest pause between two attempts to join.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const NETWORKS: u32 = 3;

static MARKET: LazyLock<Market> = LazyLock::new(|| {
    let networks = vec![4, 2, 2];
    let shape =
        WorldShape { networks, sessions: 30, countries: 1, cities: 6, providers: 2, ..WorldShape::default() };
    generate(&shape, Seed::new(1))
});

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Lost,
    Late,
    /// A connection breaks at the agent, unnoticed by its broker.
    Broken,
    Cut,
    StoreAway,
    AgentCrash,
    SecondProcess,
    Frozen,
    BrokerCrash,
}

impl Fault {
    /// Each fault with its maximum rate per million: for each message, or at each [`TICK`]. For
    /// [`Fault::Late`] the number is the maximum delay in microseconds.
    const ALL: [(Self, u64); 9] = [
        (Self::Lost, 200_000),
        (Self::Late, 3_000_000),
        (Self::Broken, 100_000),
        (Self::Cut, 40_000),
        (Self::StoreAway, 20_000),
        (Self::AgentCrash, 30_000),
        (Self::SecondProcess, 20_000),
        (Self::Frozen, 30_000),
        (Self::BrokerCrash, 20_000),
    ];
}

/// A process of a network's agent, by its network and its incarnation.
type AgentProcess = (usize, u64);

#[derive(Clone, Debug)]
enum ScheduleEvent {
    Tick,
    Request {
        from: AgentProcess,
        number: u64,
        to: usize,
        session: u64,
        ask: AgentAction,
    },
    Reply {
        from: AgentProcess,
        number: u64,
        answer: Result<Answer, Failure>,
    },
    /// A request times out at the agent, or its connection breaks there.
    TimeOver {
        from: AgentProcess,
        number: u64,
    },
    PollOver {
        to: usize,
        life: u64,
        poll: u64,
    },
    ToStore {
        by: usize,
        life: u64,
        number: u64,
        ask: StoreRequest,
    },
    FromStore {
        to: usize,
        life: u64,
        number: u64,
        told: Option<StoreReply>,
    },
    /// A broker asks the leader for the connected networks.
    AskRoll {
        by: usize,
        life: u64,
    },
    Roll {
        to: usize,
        life: u64,
        leader: String,
        roll: NetworkRoll,
    },
    StartAgent(usize),
    StartBroker(usize),
    /// A frozen agent resumes, or the schedule ends.
    Wake,
}

/// A running agent.
struct Process {
    life: u64,
    machine: AgentSession,
    /// Number of the request in flight.
    pending: Option<u64>,
    frozen_until: Instant,
    /// Number of the last message received in the current join.
    after: u64,
    /// Number of the last accepted round whose result the agent has received.
    round: u64,
}

/// A poll that waits at a broker.
struct Poll {
    from: AgentProcess,
    number: u64,
    session: u64,
    after: u64,
}

struct RunningBroker {
    life: u64,
    networks: Networks,
    /// Time of the schedule at which the broker's clock reads zero.
    began: Instant,
    polls: BTreeMap<u64, Poll>,
    /// By network: the session that joined last, and the time of its last request.
    joined: BTreeMap<usize, (u64, Instant)>,
}

impl RunningBroker {
    fn local(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_since(self.began)
    }
}

pub struct World {
    schedule: Schedule<ScheduleEvent>,
    store: Store,
    store_away_until: Instant,
    agents: Vec<Option<Process>>,
    brokers: Vec<Option<RunningBroker>>,
    /// Time at which each cut between an agent and a broker ends.
    cuts: BTreeMap<(usize, usize), Instant>,
    faults: FaultChances<Fault>,
    lives: u64,
    polls: u64,
    design: &'static str,
    /// The broker that stays down after all faults.
    dead: Option<usize>,
    /// Time at which all faults ended, and the last stored round at that time.
    healed: Option<(Instant, u64)>,
    network: RandomStream,
    chaos: RandomStream,
    sessions: RandomStream,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let seed = Seed::new(seed);
        let mut draw = seed.stream("faults", 0);
        let brokers = 1 + draw.below(3) as usize;
        let design = ["marketplace", "transactions"][draw.below(2) as usize];
        let faults = FaultChances::draw(&mut draw, Fault::ALL);
        let mut world = Self {
            schedule: Schedule::new(),
            store: Store::default(),
            store_away_until: Instant::ZERO,
            agents: (0..NETWORKS).map(|_| None).collect(),
            brokers: (0..brokers).map(|_| None).collect(),
            cuts: BTreeMap::new(),
            faults,
            lives: 0,
            polls: 0,
            design,
            dead: None,
            healed: None,
            network: seed.stream("network", 0),
            chaos: seed.stream("chaos", 0),
            sessions: seed.stream("sessions", 0),
        };
        world.schedule.say(format!("{brokers} brokers, {design}, {:?}", world.faults));
        (0..brokers).for_each(|at| world.schedule.at(Instant::ZERO, ScheduleEvent::StartBroker(at)));
        (0..world.agents.len())
            .for_each(|at| world.schedule.at(Instant::ZERO, ScheduleEvent::StartAgent(at)));
        world.schedule.after(TICK, ScheduleEvent::Tick);
        world
    }

    /// Runs the schedule to its end.
    pub fn run(mut self) -> ScheduleEnd {
        loop {
            let due = self.due();
            match self.schedule.step(due) {
                Some(what) => self.happen(what),
                None => self.keep_time(),
            }
            self.drain();
            self.check();
            if self.healed.is_some_and(|(at, _)| self.schedule.now() >= at + HEALED) {
                self.check_end();
                return self.schedule.ended();
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        let agents = self
            .agents
            .iter()
            .flatten()
            .filter_map(|process| Some(process.machine.poll_timeout()?.max(process.frozen_until)));
        let brokers = self.brokers.iter().flatten().filter_map(|running| {
            let at = running.networks.poll_timeout()?;
            Some(running.began + at.saturating_since(Instant::ZERO))
        });
        agents.chain(brokers).min()
    }

    /// Delivers due timeouts to agents and brokers.
    fn keep_time(&mut self) {
        let now = self.schedule.now();
        for process in self.agents.iter_mut().flatten().filter(|process| process.frozen_until <= now) {
            process.machine.handle_timeout(now);
        }
        let parties = Parties::new(&MARKET);
        for running in self.brokers.iter_mut().flatten() {
            let local = running.local(now);
            if running.networks.poll_timeout().is_some_and(|at| at <= local) {
                if running.networks.needs_clients(local) {
                    running.networks.handle_clients(parties.gathered());
                }
                running.networks.handle_timeout(local);
            }
        }
    }

    fn happen(&mut self, what: ScheduleEvent) {
        let now = self.schedule.now();
        match what {
            ScheduleEvent::Tick => self.tick(),
            ScheduleEvent::Request { from, number, to, session, ask } => {
                self.handle_request(from, number, to, session, ask);
            }
            ScheduleEvent::Reply { from, number, answer } => self.handle_reply(from, number, answer),
            ScheduleEvent::TimeOver { from, number } => {
                let answer = Err(Failure::Away("no answer in time".to_owned()));
                if self.agents[from.0].as_ref().is_some_and(|process| process.pending == Some(number)) {
                    self.handle_reply(from, number, answer);
                }
            }
            ScheduleEvent::PollOver { to, life, poll } => {
                let running = self.brokers[to].as_mut().filter(|running| running.life == life);
                if let Some(poll) = running.and_then(|running| running.polls.remove(&poll)) {
                    self.reply(to, poll.from, poll.number, Ok(Answer::Messages(Vec::new())));
                }
            }
            ScheduleEvent::ToStore { by, life, number, ask } => {
                let is_away = self.store_away_until > now;
                let told = (!is_away).then(|| self.store.answer(now, life, &ask));
                let told = told.filter(|_| !self.network.chance_ppm(self.faults.ppm(Fault::Lost)));
                let delay = self.delay();
                self.schedule.after(delay, ScheduleEvent::FromStore { to: by, life, number, told });
            }
            ScheduleEvent::FromStore { to, life, number, told } => {
                if let Some(running) = self.brokers[to].as_mut().filter(|running| running.life == life) {
                    let local = running.local(now);
                    running.networks.handle_told(local, number, told);
                }
            }
            ScheduleEvent::AskRoll { by, life } => self.ask_roll(by, life),
            ScheduleEvent::Roll { to, life, leader, roll } => {
                if let Some(running) = self.brokers[to].as_mut().filter(|running| running.life == life) {
                    let local = running.local(now);
                    running.networks.handle_roll(local, &leader, &roll);
                }
            }
            ScheduleEvent::StartAgent(at) => self.start_agent(at),
            ScheduleEvent::StartBroker(at) => self.start_broker(at),
            ScheduleEvent::Wake => {}
        }
    }

    fn start_agent(&mut self, at: usize) {
        self.lives += 1;
        let session = self.sessions.next_u64();
        self.schedule.say(format!("agent {at} starts"));
        self.agents[at] = Some(Process {
            life: self.lives,
            machine: AgentSession::new(self.schedule.now(), self.brokers.len(), session),
            pending: None,
            frozen_until: Instant::ZERO,
            after: 0,
            round: 0,
        });
    }

    fn start_broker(&mut self, at: usize) {
        if self.brokers[at].is_some() || self.dead == Some(at) {
            return;
        }
        self.lives += 1;
        self.schedule.say(format!("broker {at} starts as {}", self.lives));
        let now = self.schedule.now();
        let settings = Settings {
            every: EVERY,
            bids_within: Duration::from_secs(4),
            assents_within: Duration::from_secs(2),
            ..Settings::new(designs::by_name(self.design).expect("there is one"))
        };
        let replica = Replica::new(Instant::ZERO, settings, LEASE, self.wall_ms());
        self.brokers[at] = Some(RunningBroker {
            life: self.lives,
            networks: Networks::new(replica, LEASE),
            began: now,
            polls: BTreeMap::new(),
            joined: BTreeMap::new(),
        });
        self.schedule.after(LEASE, ScheduleEvent::AskRoll { by: at, life: self.lives });
    }

    fn wall_ms(&self) -> u64 {
        self.schedule.now().saturating_since(Instant::ZERO).as_us() / 1_000
    }

    fn delay(&mut self) -> Duration {
        let late = u64::from(self.faults.ppm(Fault::Late));
        let is_late = late > 0 && self.network.below(5) == 0;
        let more = if is_late { self.network.below(late) } else { 0 };
        Duration::from_us(1_000 + self.network.below(100_000) + more)
    }

    fn is_cut(&self, agent: usize, broker: usize) -> bool {
        self.cuts.get(&(agent, broker)).is_some_and(|until| *until > self.schedule.now())
    }

    // ---- faults ----

    fn tick(&mut self) {
        let now = self.schedule.now();
        if now >= Instant::ZERO + CHAOS {
            return self.heal();
        }
        self.schedule.after(TICK, ScheduleEvent::Tick);
        let some_time =
            |random: &mut RandomStream, most_s: u64| Duration::from_ms(random.below(1_000 * most_s));
        for at in 0..self.agents.len() {
            if self.chaos.chance_ppm(self.faults.ppm(Fault::AgentCrash)) && self.agents[at].take().is_some() {
                self.schedule.say(format!("agent {at} dies"));
                let away = some_time(&mut self.chaos, 40);
                self.schedule.after(away, ScheduleEvent::StartAgent(at));
            }
            // The previous process keeps running.
            if self.chaos.chance_ppm(self.faults.ppm(Fault::SecondProcess)) && self.agents[at].is_some() {
                self.start_agent(at);
            }
            if self.chaos.chance_ppm(self.faults.ppm(Fault::Frozen)) {
                let until = now + some_time(&mut self.chaos, 40);
                self.schedule.say(format!("agent {at} stands still"));
                self.agents[at].iter_mut().for_each(|process| process.frozen_until = until);
                self.schedule.at(until, ScheduleEvent::Wake);
            }
            for broker in 0..self.brokers.len() {
                if self.chaos.chance_ppm(self.faults.ppm(Fault::Cut)) {
                    let until = now + some_time(&mut self.chaos, 40);
                    self.schedule.say(format!("agent {at} is cut off from broker {broker}"));
                    self.cuts.insert((at, broker), until);
                }
            }
        }
        for at in 0..self.brokers.len() {
            if self.chaos.chance_ppm(self.faults.ppm(Fault::BrokerCrash)) && self.brokers[at].is_some() {
                self.kill_broker(at);
                let away = some_time(&mut self.chaos, 20);
                self.schedule.after(away, ScheduleEvent::StartBroker(at));
            }
        }
        if self.chaos.chance_ppm(self.faults.ppm(Fault::StoreAway)) {
            self.store_away_until = now + some_time(&mut self.chaos, 20);
        }
    }

    fn kill_broker(&mut self, at: usize) {
        self.schedule.say(format!("broker {at} dies"));
        let running = self.brokers[at].take().expect("callers asked");
        // The broker's host closes the connections of waiting polls.
        for poll in running.polls.into_values() {
            self.reply(at, poll.from, poll.number, Err(Failure::Away("the connection broke".to_owned())));
        }
    }

    fn heal(&mut self) {
        let now = self.schedule.now();
        self.schedule.say("all is well again");
        self.faults.clear();
        self.cuts.clear();
        self.store_away_until = now;
        for process in self.agents.iter_mut().flatten() {
            process.frozen_until = process.frozen_until.min(now);
        }
        for at in 0..self.agents.len() {
            if self.agents[at].is_none() {
                self.start_agent(at);
            }
        }
        // One of several brokers stays down for good, so its agents must join another broker.
        if self.brokers.len() > 1 {
            let dead = self.chaos.below(self.brokers.len() as u64) as usize;
            self.dead = Some(dead);
            if self.brokers[dead].is_some() {
                self.kill_broker(dead);
            }
        }
        (0..self.brokers.len()).for_each(|at| self.start_broker(at));
        self.healed = Some((now, self.last_round()));
        self.schedule.after(HEALED, ScheduleEvent::Wake);
    }

    // ---- an agent's side ----

    /// Sends an agent's requests, and records its events.
    fn drain_agent(&mut self, at: usize) {
        let now = self.schedule.now();
        let parties = Parties::new(&MARKET);
        loop {
            let Some(process) = self.agents[at].as_mut().filter(|process| process.frozen_until <= now) else {
                return;
            };
            while let Some(event) = process.machine.poll_event() {
                self.schedule.say(format!("agent {at}: {event:?}"));
                match event {
                    agent_session::Event::Joined => process.after = 0,
                    agent_session::Event::Accepted { round, .. } => process.round = process.round.max(round),
                    agent_session::Event::UnknownDesign { .. } | agent_session::Event::GivenUp(_) => {
                        panic!("agent {at}: {event:?}");
                    }
                    _ => {}
                }
            }
            let Some((number, ask)) = process.machine.poll_ask() else { return };
            if ask == AgentAction::Estimate {
                process.machine.handle_estimates(number, &parties.own(at as u32));
                continue;
            }
            let (from, to, session) =
                ((at, process.life), process.machine.broker(), process.machine.session());
            process.pending = Some(number);
            let within = match &ask {
                AgentAction::Join { within } => *within,
                AgentAction::Messages { wait, within, .. } => *wait + *within,
                _ => WITHIN,
            };
            self.schedule.after(within, ScheduleEvent::TimeOver { from, number });
            if self.network.chance_ppm(self.faults.ppm(Fault::Broken)) {
                let breaks = Duration::from_us(self.network.below(within.as_us()));
                self.schedule.after(breaks, ScheduleEvent::TimeOver { from, number });
            }
            let delay = self.delay();
            if !self.network.chance_ppm(self.faults.ppm(Fault::Lost)) {
                self.schedule.after(delay, ScheduleEvent::Request { from, number, to, session, ask });
            }
        }
    }

    fn handle_reply(&mut self, from: AgentProcess, number: u64, answer: Result<Answer, Failure>) {
        let now = self.schedule.now();
        let Some(process) = self.agents[from.0].as_mut().filter(|process| process.life == from.1) else {
            return;
        };
        if process.frozen_until > now {
            return self.schedule.at(process.frozen_until, ScheduleEvent::Reply { from, number, answer });
        }
        if process.pending == Some(number) {
            process.pending = None;
            if let Ok(Answer::Messages(messages)) = &answer {
                for (message, _) in messages {
                    let is_next = *message <= process.after + 1;
                    let is_full = messages.len() == MAILBOX_MAX;
                    assert!(is_next || is_full, "agent {}: {message} after {}", from.0, process.after);
                    process.after = process.after.max(*message);
                }
            }
        }
        process.machine.handle_answer(now, number, answer);
    }

    // ---- a broker's side ----

    fn reply(&mut self, by: usize, to: AgentProcess, number: u64, answer: Result<Answer, Failure>) {
        let delay = self.delay();
        if !self.is_cut(to.0, by) && !self.network.chance_ppm(self.faults.ppm(Fault::Lost)) {
            self.schedule.after(delay, ScheduleEvent::Reply { from: to, number, answer });
        }
    }

    fn handle_request(&mut self, from: AgentProcess, number: u64, to: usize, session: u64, ask: AgentAction) {
        let now = self.schedule.now();
        if self.is_cut(from.0, to) {
            return;
        }
        let Some(running) = &mut self.brokers[to] else {
            let refused = Err(Failure::Away("connection refused".to_owned()));
            return self.reply(to, from, number, refused);
        };
        let (local, id) = (running.local(now), PeerId(from.0 as u32));
        let answer = match ask {
            AgentAction::Join { .. } => {
                let contract = Parties::new(&MARKET).contract(id.0);
                let joined = running.networks.handle_join(local, id, session, contract);
                if joined.is_ok() {
                    running.joined.insert(from.0, (session, now));
                }
                joined.map(|()| Answer::Taken).map_err(|NotLeaderError(leader)| Refusal::NotLeading(leader))
            }
            AgentAction::Messages { after, wait, .. } => {
                self.polls += 1;
                let (life, poll) = (running.life, self.polls);
                running.polls.insert(poll, Poll { from, number, session, after });
                self.schedule.after(wait, ScheduleEvent::PollOver { to, life, poll });
                return self.answer_poll(to, poll);
            }
            AgentAction::Bids(bids) => {
                running.networks.handle_bids(local, id, session, bids).map(Answer::Bids)
            }
            AgentAction::Assent(assent) => {
                running.networks.handle_assent(local, id, session, &assent).map(|()| Answer::Taken)
            }
            AgentAction::Estimate => unreachable!("no request"),
        };
        self.check_taken(to, from.0, session, answer.as_ref().err());
        self.reply(to, from, number, answer.map_err(failure));
    }

    /// Answers a poll if there are messages, or if it is refused.
    fn answer_poll(&mut self, at: usize, poll: u64) {
        let now = self.schedule.now();
        let running = self.brokers[at].as_mut().expect("polls wait at brokers that run");
        let local = running.local(now);
        let Poll { from, number, session, after } = running.polls[&poll];
        let found = running.networks.poll_messages(local, PeerId(from.0 as u32), session, after);
        self.check_taken(at, from.0, session, found.as_ref().err());
        let Some(answer) = found.transpose() else { return };
        if let Ok(messages) = &answer {
            messages.iter().for_each(|(_, message)| self.check_told(message));
        }
        self.brokers[at].as_mut().expect("asked above").polls.remove(&poll);
        self.reply(at, from, number, answer.map(Answer::Messages).map_err(failure));
    }

    fn ask_roll(&mut self, by: usize, life: u64) {
        let Some(running) = self.brokers[by].as_mut().filter(|running| running.life == life) else { return };
        self.schedule.after(LEASE, ScheduleEvent::AskRoll { by, life });
        let Some(leader) = running.networks.replica().leader().map(str::to_owned) else { return };
        let address = |running: &RunningBroker| format!("broker {}", running.life);
        let found = self.brokers.iter_mut().flatten().find(|running| address(running) == leader);
        let Some(Ok(roll)) = found.map(|running| running.networks.roll()) else { return };
        let delay = self.delay();
        if !self.network.chance_ppm(self.faults.ppm(Fault::Lost)) {
            self.schedule.after(delay, ScheduleEvent::Roll { to: by, life, leader, roll });
        }
    }

    /// Drains all state machines.
    fn drain(&mut self) {
        for at in 0..self.brokers.len() {
            while self.drain_broker(at) {}
        }
        (0..self.agents.len()).for_each(|at| self.drain_agent(at));
    }

    /// Drains one output of a broker; returns false if there is none.
    fn drain_broker(&mut self, at: usize) -> bool {
        let now = self.schedule.now();
        let Some(running) = &mut self.brokers[at] else { return false };
        let (local, life) = (running.local(now), running.life);
        if let Some((number, ask)) = running.networks.poll_ask(local) {
            let delay = self.delay();
            self.schedule.after(delay, ScheduleEvent::ToStore { by: at, life, number, ask });
        } else if let Some(job) = running.networks.poll_job() {
            let answer = job.run();
            running.networks.handle_found(local, &job, answer);
        } else if let Some(event) = running.networks.poll_event() {
            self.handle_event(at, event);
        } else {
            return false;
        }
        true
    }

    fn handle_event(&mut self, at: usize, event: networks::Event) {
        let now = self.schedule.now();
        let running = self.brokers[at].as_mut().expect("it has said something");
        match event {
            networks::Event::Turn(turn) => {
                match &turn {
                    RoleChange::Began | RoleChange::Ended => running.joined.clear(),
                    RoleChange::Accepted(decision) | RoleChange::News(decision) => {
                        assert!(self.store.kept.contains(decision), "round {} is not kept", decision.round);
                    }
                    _ => {}
                }
                let word = match turn {
                    RoleChange::Began => "leads".to_owned(),
                    RoleChange::Ended => "leads no more".to_owned(),
                    RoleChange::Accepted(decision) => format!("accepts round {}", decision.round),
                    RoleChange::News(decision) => format!("hears of round {}", decision.round),
                    other => format!("{other:?}"),
                };
                self.schedule.say(format!("broker {at} {word}"));
            }
            networks::Event::Silent(network) => {
                self.schedule.say(format!("broker {at}: network {network} is silent"));
                let joined = running.joined.remove(&network.index());
                let is_silent = joined.is_none_or(|(_, heard_at)| now >= heard_at + SILENCE_MAX);
                assert!(is_silent, "broker {at} ends {network}, heard {joined:?}");
            }
            networks::Event::PollsDue => {
                let polls: Vec<u64> = running.polls.keys().copied().collect();
                polls.into_iter().for_each(|poll| self.answer_poll(at, poll));
            }
        }
    }

    // ---- invariants ----

    /// Checks that a broker accepts a request only of the joined session, and does not refuse the
    /// joined session. Records the time of an accepted request.
    fn check_taken(&mut self, at: usize, network: usize, session: u64, refusal: Option<&Refusal>) {
        let now = self.schedule.now();
        let running = self.brokers[at].as_mut().expect("it has answered");
        let joined = running.joined.get_mut(&network).filter(|(joined, _)| *joined == session);
        match (refusal, joined) {
            (None, Some((_, heard_at))) => *heard_at = now,
            (None, None) => panic!("broker {at} takes a request of network {network} that has not joined"),
            (Some(Refusal::NotJoined), Some(_)) => {
                panic!("broker {at} refuses network {network}, which has joined")
            }
            _ => {}
        }
    }

    fn check_told(&self, message: &ToNetwork) {
        let ToNetwork::Accepted(accepted) = message else { return };
        let is_kept = self.store.kept.iter().any(|decision| decision.round == accepted.round);
        assert!(is_kept, "networks are told of round {}, which is not kept", accepted.round);
    }

    fn check(&self) {
        let now = self.schedule.now();
        for (at, running) in self.brokers.iter().enumerate() {
            let Some(running) = running.as_ref().filter(|running| running.networks.replica().leads()) else {
                continue;
            };
            // An event at exactly the deadline still counts as in time.
            for (network, (_, heard_at)) in &running.joined {
                assert!(
                    now <= *heard_at + SILENCE_MAX,
                    "broker {at} keeps network {network}, silent since {heard_at:?}"
                );
                assert!(
                    running.networks.is_up(PeerId(*network as u32)),
                    "broker {at} lost network {network}"
                );
            }
        }
        for (at, process) in self.agents.iter().enumerate() {
            let Some(process) = process.as_ref().filter(|process| process.frozen_until <= now) else {
                continue;
            };
            let pauses = process.machine.poll_timeout().is_some_and(|until| until <= now + PAUSE_MAX);
            assert!(process.pending.is_some() || pauses, "agent {at} does nothing");
        }
    }

    fn last_round(&self) -> u64 {
        self.store.kept.last().map_or(0, |decision| decision.round)
    }

    /// Checks the recovered state: one leader, all agents joined to it, and a new round at each
    /// agent.
    fn check_end(&self) {
        let leads = |running: &&RunningBroker| running.networks.replica().leads();
        let leaders: Vec<&RunningBroker> = self.brokers.iter().flatten().filter(leads).collect();
        assert_eq!(leaders.len(), 1, "one broker leads");
        let (_, before) = self.healed.expect("it is over");
        assert!(self.last_round() > before, "no round after {before}, since all is well");
        for (at, process) in self.agents.iter().enumerate() {
            let process = process.as_ref().expect("all were started");
            let joined = leaders[0].joined.get(&at).map(|(session, _)| *session);
            assert_eq!(joined, Some(process.machine.session()), "agent {at} is joined with the leader");
            assert!(
                process.round > before,
                "agent {at} has heard of round {}, not after {before}",
                process.round
            );
        }
        for running in self.brokers.iter().flatten() {
            assert_eq!(running.networks.up_count(), self.agents.len(), "all brokers know the networks");
        }
    }
}

fn failure(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::NotJoined => Failure::NotJoined("join again".to_owned()),
        Refusal::NotLeading(_) => Failure::NotLeading("another broker leads".to_owned()),
    }
}
