//! The coordinator's side of its agents' sessions as a machine: which agents are joined, which of their requests wait for limits, and
//! when rates are decided.
//!
//! An agent joins with a session of its own, and is there until it leaves, another agent of its host joins, or it is silent for
//! [`SessionsConfig::silence_max`]. A request for limits waits until the agent has new limits, until its time is over, or until the
//! session is. Agents' reports are decided on together, when the driver asks for the next decision.
//!
//! Leaves out: HTTP and clocks, which addresses a host may have (the `shuffle` room); flows and rates ([`Coordinator`]). Read
//! [`Sessions`] first.

use crate::Coordinator;
use crate::control::{Limit, Report};
use crate::coordinator::{CoflowView, Decision, Ended, Host, ReportError, Settings};
use anabranch_fluid::{Allocator, DecisionError};
use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// The most requests of one agent that wait for limits; of more, the oldest is answered without any.
pub const WAITS_MAX: usize = 64;

/// How sessions are kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SessionsConfig {
    /// How flows are told apart.
    pub settings: Settings,
    /// How long an agent may be silent before it counts as gone.
    pub silence_max: Duration,
    /// After how long the clock is to begin anew, as [`Instant`] ends after 213 days: as soon as no coflow is under way then,
    /// after twice as long in any case.
    pub clock_max: Duration,
}

impl Default for SessionsConfig {
    /// A second of silence, and a clock that begins anew after a hundred days.
    fn default() -> Self {
        let (silence_max, clock_max) = (Duration::from_secs(1), Duration::from_secs(100 * 86_400));
        Self { settings: Settings::default(), silence_max, clock_max }
    }
}

/// What has happened, for the log and the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The agent of this host has left.
    Left(String),
    /// The agent of this host has fallen silent, and counts as gone.
    Silent(String),
    /// The coflow of this name has begun.
    Begun(String),
    /// A coflow has ended.
    Ended(Ended),
}

/// Counts since the start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Agents that have joined, each as often as it has.
    pub joins: u64,
    /// Agents that have fallen silent.
    pub silent: u64,
    /// Reports that agents have made.
    pub reports: u64,
    /// Requests with a report that was refused.
    pub reports_refused: u64,
    /// Limits that agents were answered.
    pub limits: u64,
}

/// The coordinator, and the sessions of its agents.
///
/// After any `handle_*`, [`Sessions::begin_decision`] and [`Sessions::end_decision`], [`Sessions::poll_answer`] and
/// [`Sessions::poll_event`] are drained until `None`, then [`Sessions::poll_timeout`] is read.
#[derive(Debug)]
pub struct Sessions<A> {
    config: SessionsConfig,
    coordinator: Coordinator<A>,
    /// By host.
    agents: BTreeMap<String, Agent>,
    waits_so_far: u64,
    /// Whether something has been said since the last decision began.
    is_undecided: bool,
    /// Whether a decision is made elsewhere.
    is_deciding: bool,
    answers: VecDeque<(u64, Result<Vec<Limit>, ReportError>)>,
    events: VecDeque<Event>,
    counts: Counts,
}

/// A host's agent that has joined and not gone.
#[derive(Debug)]
struct Agent {
    session: u64,
    heard_at: Instant,
    /// By its number, until when each request waits for limits.
    waits: BTreeMap<u64, Instant>,
}

impl<A: Allocator> Sessions<A> {
    /// No agent has joined.
    pub fn new(config: SessionsConfig, allocator: A) -> Self {
        Self {
            config,
            coordinator: Coordinator::new(config.settings, allocator),
            agents: BTreeMap::new(),
            waits_so_far: 0,
            is_undecided: false,
            is_deciding: false,
            answers: VecDeque::new(),
            events: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// A host's agent joins, and says what flows there are. It takes the place of an earlier one, whose requests are refused.
    ///
    /// Errors: see [`ReportError`]. After a report that cannot be taken the agent has joined all the same, and the reports before it
    /// count.
    pub fn handle_join(
        &mut self,
        now: Instant,
        name: &str,
        session: u64,
        host: Host,
        reports: &[Report],
    ) -> Result<(), ReportError> {
        self.coordinator.handle_join(now, name, session, host)?;
        self.counts.joins += 1;
        let agent = Agent { session, heard_at: now, waits: BTreeMap::new() };
        if let Some(earlier) = self.agents.insert(name.to_owned(), agent) {
            self.refuse(name, earlier);
        }
        self.take(now, name, session, reports)
    }

    /// A host's agent says what has become of flows; nothing, where it only says that it is there.
    ///
    /// Errors: see [`ReportError`]; the reports before the one that cannot be taken count.
    pub fn handle_reports(
        &mut self,
        now: Instant,
        name: &str,
        session: u64,
        reports: &[Report],
    ) -> Result<(), ReportError> {
        self.hear(now, name, session)?;
        self.take(now, name, session, reports)
    }

    /// A host's agent asks for limits, and waits for them until then: the number by which [`Sessions::poll_answer`] answers.
    ///
    /// Errors: [`ReportError::NotJoined`].
    pub fn handle_limits(
        &mut self,
        now: Instant,
        name: &str,
        session: u64,
        until: Instant,
    ) -> Result<u64, ReportError> {
        let number = self.waits_so_far;
        self.waits_so_far += 1;
        let agent = self.hear(now, name, session)?;
        agent.waits.insert(number, until);
        let oldest = (agent.waits.len() > WAITS_MAX).then(|| agent.waits.pop_first()).flatten();
        self.answers.extend(oldest.map(|(oldest, _)| (oldest, Ok(Vec::new()))));
        self.tell(name);
        Ok(number)
    }

    /// A request for limits is given up: they are kept for the agent's next one.
    pub fn handle_given_up(&mut self, name: &str, number: u64) {
        if let Some(agent) = self.agents.get_mut(name) {
            agent.waits.remove(&number);
        }
    }

    /// A host's agent goes. One that has not joined, or not in this session, changes nothing.
    pub fn handle_leave(&mut self, now: Instant, name: &str, session: u64) {
        if self.is_joined(name, session) {
            self.forget(now, name);
            self.events.push_back(Event::Left(name.to_owned()));
        }
    }

    /// Time has passed: agents that were silent for too long are gone, and requests whose time is over are answered without limits.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_silent = |agent: &Agent| now >= agent.heard_at + self.config.silence_max;
        let silent = self.agents.iter().filter(|(_, agent)| is_silent(agent));
        let silent: Vec<String> = silent.map(|(name, _)| name.clone()).collect();
        for name in silent {
            self.counts.silent += 1;
            self.forget(now, &name);
            self.events.push_back(Event::Silent(name));
        }
        let Self { agents, answers, .. } = self;
        for agent in agents.values_mut() {
            agent.waits.retain(|number, until| {
                let is_over = *until <= now;
                answers.extend(is_over.then(|| (*number, Ok(Vec::new()))));
                !is_over
            });
        }
    }

    /// Whether the clock has run for so long that it has to begin anew, by [`Sessions::begin_anew`].
    pub fn is_clock_over(&self, now: Instant) -> bool {
        let over_at = Instant::ZERO + self.config.clock_max;
        let is_idle = self.coordinator.count() == (0, 0, 0);
        now >= over_at && (is_idle || now >= over_at + self.config.clock_max)
    }

    /// All agents and flows are forgotten, and the next instant may be any: agents join again, as after a restart.
    ///
    /// Panics: while a decision is made elsewhere, which would be on flows that are forgotten.
    pub fn begin_anew(&mut self, allocator: A) {
        assert!(!self.is_deciding, "the driver waits for a decision before it sets the clock back");
        self.coordinator = Coordinator::new(self.config.settings, allocator);
        for (name, agent) in std::mem::take(&mut self.agents) {
            self.refuse(&name, agent);
        }
    }

    /// What is to be decided, if anything: the driver makes the decision where it likes, and brings it back by
    /// [`Sessions::end_decision`]. Until then agents are heard, and nothing else is decided.
    pub fn begin_decision(&mut self, now: Instant) -> Option<Decision<A>> {
        let is_due = self.is_undecided || self.coordinator.poll_timeout().is_some_and(|at| at <= now);
        if self.is_deciding || !is_due {
            return None;
        }
        self.is_undecided = false;
        let decision = self.coordinator.begin_decision(now);
        self.is_deciding = decision.is_some();
        if decision.is_none() {
            self.tell_all();
        }
        decision
    }

    /// Takes a decision, and answers agents that wait for limits.
    ///
    /// Errors: the allocator's decision is none; the limits of before hold.
    pub fn end_decision(&mut self, now: Instant, decision: Decision<A>) -> Result<(), DecisionError> {
        self.is_deciding = false;
        let decided = self.coordinator.end_decision(now, decision);
        self.tell_all();
        decided
    }

    /// The next answer to a request for limits, with its number: limits, which are said once, or none within its time.
    pub fn poll_answer(&mut self) -> Option<(u64, Result<Vec<Limit>, ReportError>)> {
        self.answers.pop_front()
    }

    /// What has happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front().or_else(|| self.coordinator.poll_begun().map(Event::Begun));
        event.or_else(|| self.coordinator.poll_ended().map(Event::Ended))
    }

    /// When [`Sessions::handle_timeout`] and [`Sessions::begin_decision`] are to be called although no agent has said anything.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silent = self.agents.values().map(|agent| agent.heard_at + self.config.silence_max);
        let waits = self.agents.values().flat_map(|agent| agent.waits.values().copied());
        let look = self.coordinator.poll_timeout().filter(|_| !self.is_deciding);
        silent.chain(waits).chain(look).min()
    }

    /// Whether a host's agent is there in this session.
    pub fn is_joined(&self, name: &str, session: u64) -> bool {
        self.agents.get(name).is_some_and(|agent| agent.session == session)
    }

    /// Coflows under way, by name, with their flows at this instant.
    ///
    /// Panics: for an instant before the last one that it was told of.
    pub fn coflows(&mut self, now: Instant) -> Vec<CoflowView> {
        self.coordinator.coflows(now)
    }

    /// What is known of hosts and flows.
    pub const fn coordinator(&self) -> &Coordinator<A> {
        &self.coordinator
    }

    /// Counts since the start.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Notes that the host's present agent has said something.
    fn hear(&mut self, now: Instant, name: &str, session: u64) -> Result<&mut Agent, ReportError> {
        let agent = self.agents.get_mut(name).filter(|agent| agent.session == session);
        let agent = agent.ok_or_else(|| ReportError::NotJoined(name.to_owned()))?;
        agent.heard_at = now;
        Ok(agent)
    }

    fn take(
        &mut self,
        now: Instant,
        name: &str,
        session: u64,
        reports: &[Report],
    ) -> Result<(), ReportError> {
        self.is_undecided = true;
        self.counts.reports += reports.len() as u64;
        let taken = self.coordinator.handle_reports(now, name, session, reports);
        self.counts.reports_refused += u64::from(taken.is_err());
        taken
    }

    fn forget(&mut self, now: Instant, name: &str) {
        let Some(agent) = self.agents.remove(name) else { return };
        self.coordinator.handle_leave(now, name, agent.session);
        self.is_undecided = true;
        self.refuse(name, agent);
    }

    /// The session is over: what waits in it is told so.
    fn refuse(&mut self, name: &str, agent: Agent) {
        let refused = |number| (number, Err(ReportError::NotJoined(name.to_owned())));
        self.answers.extend(agent.waits.into_keys().map(refused));
    }

    /// Answers the oldest request of a host's agent, if it has limits to be told.
    fn tell(&mut self, name: &str) {
        let Some(agent) = self.agents.get_mut(name).filter(|agent| !agent.waits.is_empty()) else { return };
        let limits = self.coordinator.poll_limits(name, agent.session);
        if limits.is_empty() {
            return;
        }
        self.counts.limits += limits.len() as u64;
        let oldest = agent.waits.pop_first();
        self.answers.extend(oldest.map(|(number, _)| (number, Ok(limits))));
    }

    fn tell_all(&mut self) {
        let changed: Vec<String> =
            self.coordinator.hosts_changed().map(|(name, _)| name.to_owned()).collect();
        changed.iter().for_each(|name| self.tell(name));
    }
}

#[cfg(test)]
mod tests;
