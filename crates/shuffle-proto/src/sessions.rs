//! The coordinator's sessions with agents: waiting requests for limits, and when decisions are
//! made.
//!
//! An agent is joined until it leaves, another agent of its host joins, or it is silent for
//! [`SessionsConfig::silence_max`]. `anabranch_sessions` tracks these conditions. A request for
//! limits waits until the agent has new limits, the request times out, or the session ends. Limits
//! need no queue, because a flow's last limit replaces all earlier limits. One decision covers all
//! reports received until the driver starts the decision.
//!
//! Leaves out: HTTP and clocks, permitted addresses of hosts (the `shuffle` room); flows and rates
//! ([`Coordinator`]). Read [`Sessions`] first.

use crate::Coordinator;
use crate::control::{Limit, Report};
use crate::coordinator::{ClassSettings, CoflowView, Decision, EndedCoflow, Host, ReportError};
use anabranch_fluid::{Allocator, DecisionError};
use anabranch_sessions::{OverflowRule, Rejoin};
use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

/// Maximum number of waiting requests of one agent. Above it the oldest request is answered without
/// limits.
pub const WAITS_MAX: usize = 64;

/// Settings of the sessions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SessionsConfig {
    /// Classification of flows.
    pub settings: ClassSettings,
    /// Silence after which an agent counts as disconnected.
    pub silence_max: Duration,
}

impl Default for SessionsConfig {
    /// The default of `silence_max` is one second.
    fn default() -> Self {
        Self { settings: ClassSettings::default(), silence_max: Duration::from_secs(1) }
    }
}

/// An event for the log and the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The agent of this host has left.
    Left(String),
    /// The agent of this host was silent for too long, and counts as disconnected.
    Silent(String),
    /// The coflow of this name has begun.
    Begun(String),
    /// A coflow has ended.
    Ended(EndedCoflow),
}

/// Counters since the start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Number of registrations of agents.
    pub joins: u64,
    /// Number of agents that fell silent.
    pub silent: u64,
    /// Number of agents' reports.
    pub reports: u64,
    /// Number of requests with a refused report.
    pub reports_refused: u64,
    /// Number of limits sent to agents.
    pub limits: u64,
}

/// The coordinator, and the sessions of its agents.
///
/// After any `handle_*`, [`Sessions::begin_decision`] and [`Sessions::end_decision`],
/// [`Sessions::poll_answer`] and [`Sessions::poll_event`] are drained until `None`, then
/// [`Sessions::poll_timeout`] is read.
#[derive(Debug)]
pub struct Sessions<A> {
    coordinator: Coordinator<A>,
    /// Sessions of agents by host.
    sessions: anabranch_sessions::Sessions<String, Infallible>,
    /// Waiting requests for limits by host and number, each with its deadline.
    waits: BTreeMap<String, BTreeMap<u64, Instant>>,
    waits_so_far: u64,
    /// True if input has arrived since the last decision began.
    is_undecided: bool,
    /// True while a decision is made outside of this state machine.
    is_deciding: bool,
    answers: VecDeque<(u64, Result<Vec<Limit>, ReportError>)>,
    events: VecDeque<Event>,
    counts: SessionCounts,
}

impl<A: Allocator> Sessions<A> {
    /// Creates sessions without agents.
    pub fn new(config: SessionsConfig, allocator: A) -> Self {
        Self {
            coordinator: Coordinator::new(config.settings, allocator),
            sessions: anabranch_sessions::Sessions::new(anabranch_sessions::SessionsConfig {
                silence_max: config.silence_max,
                polls_keep_alive: false,
                rejoin: Rejoin::StartsAnew,
                mailbox_max: 0,
                overflow: OverflowRule::DropsOldest,
                answer_max: 0,
            }),
            waits: BTreeMap::new(),
            waits_so_far: 0,
            is_undecided: false,
            is_deciding: false,
            answers: VecDeque::new(),
            events: VecDeque::new(),
            counts: SessionCounts::default(),
        }
    }

    /// Handles a joining agent with its flows. The agent replaces an earlier agent of the host,
    /// whose waiting requests are refused.
    ///
    /// Errors: see [`ReportError`]. After a refused report the agent has joined nevertheless, and
    /// the reports before the refused report are applied.
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

    /// Handles an agent's reports. A request without reports is a keep-alive.
    ///
    /// Errors: see [`ReportError`]; the reports before the refused report are applied.
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

    /// Handles an agent's request for limits, which waits until `until`. Returns the request's
    /// number, with which [`Sessions::poll_answer`] returns the answer.
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

    /// Handles a cancelled request for limits. The limits are kept for the agent's next request.
    pub fn handle_given_up(&mut self, name: &str, number: u64) {
        if let Some(waits) = self.waits.get_mut(name) {
            waits.remove(&number);
        }
    }

    /// Handles a leaving agent. Ignored unless it has joined with this session.
    pub fn handle_leave(&mut self, now: Instant, name: &str, session: u64) {
        if self.sessions.handle_leave(&name.to_owned(), session).is_ok() {
            self.end(now, name, session);
            self.events.push_back(Event::Left(name.to_owned()));
        }
    }

    /// Handles a timeout: drops agents that were silent for too long, and answers expired requests
    /// without limits.
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

    /// Starts a decision if one is due. The driver makes the decision on any thread, and returns it
    /// by [`Sessions::end_decision`]. Until then agents are served, and no other decision starts.
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

    /// Applies a decision, and answers agents that wait for limits.
    ///
    /// Errors: the allocator's decision is invalid; earlier limits stay in force.
    pub fn end_decision(&mut self, now: Instant, decision: Decision<A>) -> Result<(), DecisionError> {
        self.is_deciding = false;
        let decided = self.coordinator.end_decision(now, decision);
        self.tell_all();
        decided
    }

    /// Returns the next answer to a request for limits, with the request's number. The answer has
    /// limits, or none after a timeout. Each limit is returned once.
    pub fn poll_answer(&mut self) -> Option<(u64, Result<Vec<Limit>, ReportError>)> {
        self.answers.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front().or_else(|| self.coordinator.poll_begun().map(Event::Begun));
        event.or_else(|| self.coordinator.poll_ended().map(Event::Ended))
    }

    /// Time of the next [`Sessions::handle_timeout`] and [`Sessions::begin_decision`] if no request
    /// arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silent_at = self.sessions.poll_timeout();
        let waits = self.waits.values().flat_map(|waits| waits.values().copied());
        let look = self.coordinator.poll_timeout().filter(|_| !self.is_deciding);
        waits.chain(silent_at).chain(look).min()
    }

    /// Returns true if a host's agent is joined with this session.
    pub fn is_joined(&self, name: &str, session: u64) -> bool {
        self.sessions.is_joined(&name.to_owned(), session)
    }

    /// Returns the active coflows by name, with the state of their flows at `now`.
    ///
    /// Panics: if `now` is before an earlier call's `now`.
    pub fn coflows(&mut self, now: Instant) -> Vec<CoflowView> {
        self.coordinator.coflows(now)
    }

    /// The coordinator, read-only.
    pub const fn coordinator(&self) -> &Coordinator<A> {
        &self.coordinator
    }

    /// Counters since the start.
    pub const fn counts(&self) -> SessionCounts {
        self.counts
    }

    /// Records that a request of the host's current agent has arrived.
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

    /// Ends a session: the coordinator forgets the host's flows, and waiting requests are refused.
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

    /// Answers the oldest request of a host's agent, if there are limits to send.
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
