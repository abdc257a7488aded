//! The coordinator's state machine under its own clock, with decisions that take time.

use super::host::{LINK, address};
use anabranch_shuffle_proto::agent::{AgentAction, Answer, Failure, LIMITS_WAIT, SILENCE_MAX};
use anabranch_shuffle_proto::control::FlowKey;
use anabranch_shuffle_proto::coordinator::{Decision, Host, ReportError};
use anabranch_shuffle_proto::sessions::SessionsConfig;
use anabranch_shuffle_proto::{BoxedAllocator, Scheduler, Sessions};
use anabranch_units::{BitRate, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// Origin of a request: host, generation of its agent, and the number with which the agent expects
/// the answer.
pub type RequestOrigin = (usize, u64, u64);

/// A running coordinator.
pub struct Service {
    machine: Sessions<BoxedAllocator>,
    /// World time at which the coordinator's clock is zero.
    began: Instant,
    decision_takes: Duration,
    /// Decision in progress, and the time at which it will be complete.
    deciding: Option<(Instant, Decision<BoxedAllocator>)>,
    /// Waiting requests for limits and their deadlines, by the state machine's request numbers.
    waiting: BTreeMap<u64, (RequestOrigin, Instant)>,
    /// Time of the last request of each host's agent.
    heard_at: BTreeMap<String, Instant>,
}

/// Interval between two calls of the state machine, which is the maximum delay of its timeouts.
const TICK: Duration = Duration::from_ms(20);

pub type Reply = (RequestOrigin, Result<Answer, Failure>);

fn name(host: usize) -> String {
    format!("h{host}")
}

fn failure(error: ReportError) -> Failure {
    match error {
        ReportError::NotJoined(_) => Failure::NotJoined(error.to_string()),
        _ => Failure::Refused(error.to_string()),
    }
}

impl Service {
    pub fn new(
        began: Instant,
        scheduler: Scheduler,
        config: SessionsConfig,
        decision_takes: Duration,
    ) -> Self {
        let machine = Sessions::new(config, scheduler.make());
        let (waiting, heard_at) = (BTreeMap::new(), BTreeMap::new());
        Self { machine, began, decision_takes, deciding: None, waiting, heard_at }
    }

    fn clock(&self, now: Instant) -> Instant {
        Instant::ZERO + (now - self.began)
    }

    pub fn is_joined(&self, host: usize, session: u64) -> bool {
        self.machine.is_joined(&name(host), session)
    }

    /// Returns true if the agents of all hosts have joined, and the coordinator knows no flow.
    pub fn is_idle(&self, hosts: usize) -> bool {
        let coordinator = self.machine.coordinator();
        coordinator.hosts().filter(|host| host.is_up).count() == hosts && coordinator.count() == (0, 0, 0)
    }

    /// Summary of known flows, flows with rates, coflows and connected agents, for messages of
    /// failed tests.
    pub fn left(&self) -> String {
        let coordinator = self.machine.coordinator();
        let hosts: Vec<_> = coordinator.hosts().map(|host| (host.name.to_owned(), host.is_up)).collect();
        format!("{:?}, {hosts:?}", coordinator.count())
    }

    /// Flows of a host that the coordinator knows, without mice.
    pub fn flows_of(&mut self, now: Instant, host: usize) -> BTreeSet<FlowKey> {
        let (clock, name) = (self.clock(now), name(host));
        let flows = self.machine.coflows(clock).into_iter().flat_map(|coflow| coflow.flows);
        flows.filter(|flow| flow.host == name).map(|flow| flow.flow).collect()
    }

    /// Limits of all flows that are not mice, by host.
    pub fn rates(&mut self, now: Instant) -> BTreeMap<usize, BTreeMap<FlowKey, Option<BitRate>>> {
        let mut rates = BTreeMap::<usize, BTreeMap<_, _>>::new();
        let coflows = self.machine.coflows(self.clock(now));
        for flow in coflows.into_iter().flat_map(|coflow| coflow.flows) {
            let host = flow.host[1..].parse().expect("hosts are called by numbers");
            rates.entry(host).or_default().insert(flow.flow, flow.rate);
        }
        rates
    }

    /// Handles a request. Returns all answers that result from it.
    pub fn handle(&mut self, now: Instant, asker: RequestOrigin, ask: AgentAction) -> Vec<Reply> {
        let (name, clock, machine) = (name(asker.0), self.clock(now), &mut self.machine);
        self.heard_at.insert(name.clone(), now);
        let taken = match ask {
            AgentAction::Join(request) => {
                let host = Host { addresses: vec![address(asker.0)], rate: LINK, uplinks: Vec::new() };
                Some(machine.handle_join(clock, &name, request.session, host, &request.reports))
            }
            AgentAction::Report(request) => {
                Some(machine.handle_reports(clock, &name, request.session, &request.reports))
            }
            AgentAction::Limits { session } => {
                match machine.handle_limits(clock, &name, session, clock + LIMITS_WAIT) {
                    Ok(number) => {
                        self.waiting.insert(number, (asker, now + LIMITS_WAIT));
                        None
                    }
                    Err(error) => Some(Err(error)),
                }
            }
            AgentAction::Leave { session } => {
                machine.handle_leave(clock, &name, session);
                None
            }
            AgentAction::Prepare | AgentAction::Look => unreachable!("no request of the coordinator's"),
        };
        let mut replies = Vec::new();
        replies.extend(taken.map(|taken| (asker, taken.map(|()| Answer::Taken).map_err(failure))));
        self.decide(now, &mut replies);
        replies
    }

    /// Handles timeouts and a due decision.
    pub fn handle_tick(&mut self, now: Instant) -> Vec<Reply> {
        let mut replies = Vec::new();
        self.machine.handle_timeout(self.clock(now));
        self.decide(now, &mut replies);
        self.check(now);
        replies
    }

    /// Checks that no agent counts as connected after the silence limit, and that no request waits
    /// beyond its deadline.
    fn check(&self, now: Instant) {
        for host in self.machine.coordinator().hosts().filter(|host| host.is_up) {
            let heard_at = self.heard_at[host.name];
            assert!(now < heard_at + SILENCE_MAX + TICK, "{} is there, heard at {heard_at:?}", host.name);
        }
        for (asker, until) in self.waiting.values() {
            assert!(now < *until + TICK, "{asker:?} waits since it was to be answered at {until:?}");
            assert!(self.is_known(asker.0), "{asker:?} waits, and its agent is gone");
        }
    }

    fn is_known(&self, host: usize) -> bool {
        let name = name(host);
        self.machine.coordinator().hosts().any(|host| host.is_up && host.name == name)
    }

    fn decide(&mut self, now: Instant, replies: &mut Vec<Reply>) {
        let clock = self.clock(now);
        if let Some(mut decision) = self.machine.begin_decision(clock) {
            decision.make();
            self.deciding = Some((now + self.decision_takes, decision));
        }
        if let Some((_, decision)) = self.deciding.take_if(|(at, _)| *at <= now) {
            self.machine.end_decision(clock, decision).expect("links carry what is decided");
        }
        while self.machine.poll_event().is_some() {}
        while let Some((number, answer)) = self.machine.poll_answer() {
            let (asker, _) = self.waiting.remove(&number).expect("each request is answered once");
            replies.push((asker, answer.map(Answer::Limits).map_err(failure)));
        }
    }
}
