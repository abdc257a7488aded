//! The coordinator and its agents: which requests wait for limits, and when rates are decided.
//!
//! An agent is joined until it leaves, another agent of its host joins, or it is silent for
//! [`SessionsConfig::silence_max`]; the machine for that is `anabranch_sessions`. A request for
//! limits waits until the agent has new limits, its time is over, or the session ends. Limits need
//! no mailbox, as the last one of a flow replaces all before. Agents' reports are decided on
//! together, when the driver asks for the next decision.
//!
//! Leaves out: HTTP and clocks, which addresses a host may have (the `shuffle` room); flows and rates ([`Coordinator`]). Read
//! [`Sessions`] first.

use crate::Coordinator;
use crate::control::{Limit, Report};
use crate::coordinator::{CoflowView, Decision, Ended, Host, ReportError, Settings};
use anabranch_fluid::{Allocator, DecisionError};
use anabranch_sessions::{Overflow, Rejoin};
use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

/// The most requests of one agent that wait for limits; of more, the oldest is answered without any.
pub const WAITS_MAX: usize = 64;

/// How sessions are kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SessionsConfig {
    /// How flows are told apart.
    pub settings: Settings,
    /// How long an agent may be silent before it counts as gone.
    pub silence_max: Duration,
}

impl Default for SessionsConfig {
    /// A second of silence.
    fn default() -> Self {
        Self { settings: Settings::default(), silence_max: Duration::from_secs(1) }
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
    coordinator: Coordinator<A>,
    /// Agents by host.
    sessions: anabranch_sessions::Sessions<String, Infallible>,
    /// Requests for limits that wait, by host and number, and until when each waits.
    waits: BTreeMap<String, BTreeMap<u64, Instant>>,
    waits_so_far: u64,
    /// Whether something has been said since the last decision began.
    is_undecided: bool,
    /// Whether a decision is made elsewhere.
    is_deciding: bool,
    answers: VecDeque<(u64, Result<Vec<Limit>, ReportError>)>,
    events: VecDeque<Event>,
    counts: Counts,
}

impl<A: Allocator> Sessions<A> {
    /// No agent has joined.
    pub fn new(config: SessionsConfig, allocator: A) -> Self {
        Self {
            coordinator: Coordinator::new(config.settings, allocator),
            sessions: anabranch_sessions::Sessions::new(anabranch_sessions::SessionsConfig {
                silence_max: config.silence_max,
                polls_keep_alive: false,
                rejoin: Rejoin::StartsAnew,
                mailbox_max: 0,
                overflow: Overflow::DropsOldest,
                answer_max: 0,
            }),
            waits: BTreeMap::new(),
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
        self.sessions.handle_join(now, &name.to_owned(), session, 0);
        self.refuse_waits(name);
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
        self.hear(now, name, session)?;
        let waits = self.waits.entry(name.to_owned()).or_default();
        waits.insert(number, until);
        let oldest = (waits.len() > WAITS_MAX).then(|| waits.pop_first()).flatten();
        self.answers.extend(oldest.map(|(oldest, _)| (oldest, Ok(Vec::new()))));
        self.tell(name);
        Ok(number)
    }

    /// A request for limits is given up: they are kept for the agent's next one.
    pub fn handle_given_up(&mut self, name: &str, number: u64) {
        if let Some(waits) = self.waits.get_mut(name) {
            waits.remove(&number);
        }
    }

    /// A host's agent goes. One that has not joined, or not in this session, changes nothing.
    pub fn handle_leave(&mut self, now: Instant, name: &str, session: u64) {
        if self.sessions.handle_leave(&name.to_owned(), session).is_ok() {
            self.end(now, name, session);
            self.events.push_back(Event::Left(name.to_owned()));
        }
    }

    /// Time has passed: agents that were silent for too long are gone, and requests whose time is over are answered without limits.
    pub fn handle_timeout(&mut self, now: Instant) {
        for (name, session) in self.sessions.handle_timeout(now) {
            self.counts.silent += 1;
            self.end(now, &name, session.expect("no agent is expected before it joins"));
            self.events.push_back(Event::Silent(name));
        }
        let Self { waits, answers, .. } = self;
        for waits in waits.values_mut() {
            waits.retain(|number, until| {
                let is_over = *until <= now;
                answers.extend(is_over.then(|| (*number, Ok(Vec::new()))));
                !is_over
            });
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
        let silent_at = self.sessions.poll_timeout();
        let waits = self.waits.values().flat_map(|waits| waits.values().copied());
        let look = self.coordinator.poll_timeout().filter(|_| !self.is_deciding);
        waits.chain(silent_at).chain(look).min()
    }

    /// Whether a host's agent is there in this session.
    pub fn is_joined(&self, name: &str, session: u64) -> bool {
        self.sessions.is_joined(&name.to_owned(), session)
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
    fn hear(&mut self, now: Instant, name: &str, session: u64) -> Result<(), ReportError> {
        let name = name.to_owned();
        self.sessions.handle_request(now, &name, session).map_err(|_| ReportError::NotJoined(name))
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

    /// A session has ended: the coordinator forgets the host's flows, and requests that wait are
    /// refused.
    fn end(&mut self, now: Instant, name: &str, session: u64) {
        self.coordinator.handle_leave(now, name, session);
        self.is_undecided = true;
        self.refuse_waits(name);
    }

    fn refuse_waits(&mut self, name: &str) {
        let refused = |number| (number, Err(ReportError::NotJoined(name.to_owned())));
        let waits = self.waits.remove(name).unwrap_or_default();
        self.answers.extend(waits.into_keys().map(refused));
    }

    /// Answers the oldest request of a host's agent, if it has limits to be told.
    fn tell(&mut self, name: &str) {
        let Some(waits) = self.waits.get_mut(name).filter(|waits| !waits.is_empty()) else { return };
        let session = self.sessions.session(&name.to_owned()).expect("requests wait in a session");
        let limits = self.coordinator.poll_limits(name, session);
        if limits.is_empty() {
            return;
        }
        self.counts.limits += limits.len() as u64;
        let oldest = waits.pop_first();
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
