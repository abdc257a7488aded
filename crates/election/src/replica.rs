//! One of several controllers: whether it leads, and which decision it has.
//!
//! Each value in the store has a [`Stamp`]. A controller adopts a value of a later lead or of a
//! higher round. A value that is lost, unreadable or older than the known decision is damaged: the
//! leader writes the known decision again, and the followers meanwhile keep the known decision.
//!
//! Invariants: a decision is stored before a client is notified of it; stored rounds have
//! increasing numbers; at most one request to the store is open. A controller whose store has no
//! other user leads at once. Leaves out: the store, the decisions. Contract: one mutation of
//! [`Replica::leading`] or of the replica, then `poll_*` to `None`, then [`Replica::poll_timeout`].
//! Read [`Replica`] and [`RoleChange`] first.

use crate::machine::{Event, Machine};
use crate::store::{Stamp, StoreReply, StoreRequest};
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;
use std::sync::Arc;

/// Renewals, or attempts to get the lead, within the duration of a lease.
const RENEWALS: u64 = 3;
/// Retries of a failed request within the duration of a lease.
const RETRIES: u64 = 10;
/// Consecutive rounds without a stored decision after which a controller counts as stalled.
pub const MISSED_ROUNDS_MAX: u64 = 3;

/// Reason why no decision is stored.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stall {
    /// Each of the last leads ended before its decision was stored.
    Unkept {
        /// Number of consecutive decisions that were not stored.
        rounds: u64,
    },
    /// No controller leads, according to the store.
    NoLeader {
        /// Time since the controller last agreed with the store.
        lasts: Duration,
    },
    /// The store does not have the last decision.
    Unwritten {
        /// Time since the controller last agreed with the store.
        lasts: Duration,
    },
}

/// A change of the lead or of the decision.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RoleChange<V, W> {
    /// This controller leads from now on. Its machine is new: clients have to join it again.
    Began,
    /// The lead ended.
    Ended,
    /// This controller has made a decision, and the decision is stored.
    Accepted(Arc<V>),
    /// A decision of another controller, or of an earlier lead, is stored.
    News(Arc<V>),
    /// A round changed nothing.
    Void {
        /// Number of the round.
        round: u64,
        /// Reason why the round changed nothing.
        why: W,
    },
}

/// Role of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Follows,
    /// The controller has the lead, and reads the stored decision before it starts its machine.
    Catches {
        epoch: u64,
        until: Instant,
    },
    Leads {
        epoch: u64,
        until: Instant,
    },
}

/// State of the store at its last answer.
#[derive(Debug, Default)]
struct StoreView {
    value: Stamp,
    revision: u64,
    /// A value that could not be read, and that is not read again.
    unreadable: Option<Stamp>,
    /// Whether another controller leads.
    is_led: bool,
}

/// Requests to the store.
#[derive(Debug)]
struct StoreQueue<V> {
    count: u64,
    /// Number and time of the request that has no answer yet.
    open: Option<(u64, Instant)>,
    /// Decision of the open request, and the lead under which the decision was made.
    written: Option<(Arc<V>, u64)>,
    /// The open request, until the driver takes it.
    ask: Option<(u64, StoreRequest<V>)>,
    /// Time of the next request for the lead or its renewal.
    next_at: Instant,
    /// Earliest time of a request after a failed request.
    retry_at: Instant,
}

impl<V> StoreQueue<V> {
    const fn new(now: Instant) -> Self {
        Self { count: 0, open: None, written: None, ask: None, next_at: now, retry_at: now }
    }
}

/// One of several controllers that share a store. The module's text defines the contract.
#[derive(Debug)]
pub struct Replica<M: Machine> {
    settings: M::Settings,
    lease: Duration,
    rounds_after: u64,
    role: Role,
    leader: Option<String>,
    /// The machine of this lead. `None` while the controller does not lead.
    machine: Option<M>,
    known: Option<Arc<M::Value>>,
    /// Lead under which the known decision was made.
    known_epoch: u64,
    seen: StoreView,
    /// Number of consecutive decisions that were not stored.
    unkept_rounds: u64,
    /// Time since which this controller disagrees with the store. `None` while they agree.
    out_since: Option<Instant>,
    questions: StoreQueue<M::Value>,
    /// A decision that is not stored yet.
    keeping: Option<Arc<M::Value>>,
    /// Messages that are withheld until the decision is stored.
    held: VecDeque<M::Message>,
    transmits: VecDeque<M::Message>,
    turns: VecDeque<RoleChange<M::Value, M::Void>>,
}

impl<M: Machine> Replica<M> {
    /// Creates a controller that has not requested the lead yet. A lead lasts for `lease` unless it
    /// is renewed. Rounds have higher numbers than `rounds_after` and than stored rounds.
    pub fn new(now: Instant, settings: M::Settings, lease: Duration, rounds_after: u64) -> Self {
        Self {
            settings,
            lease,
            rounds_after,
            role: Role::Follows,
            leader: None,
            machine: None,
            known: None,
            known_epoch: 0,
            seen: StoreView::default(),
            unkept_rounds: 0,
            out_since: Some(now),
            questions: StoreQueue::new(now),
            keeping: None,
            held: VecDeque::new(),
            transmits: VecDeque::new(),
            turns: VecDeque::new(),
        }
    }

    /// The machine, for changes. `None` while this controller does not lead.
    pub const fn leading(&mut self) -> Option<&mut M> {
        self.machine.as_mut()
    }
    /// The machine, read-only. `None` while this controller does not lead.
    pub const fn machine(&self) -> Option<&M> {
        self.machine.as_ref()
    }
    /// Whether this controller leads.
    pub const fn leads(&self) -> bool {
        matches!(self.role, Role::Leads { .. })
    }
    /// Whether this controller leads at `now`. Differs from [`Replica::leads`] if the process was
    /// suspended until after the end of its lease.
    pub fn leads_at(&self, now: Instant) -> bool {
        matches!(self.role, Role::Leads { until, .. } if now < until)
    }
    /// Address of another controller that leads. `None` if the leader is not known.
    pub fn leader(&self) -> Option<&str> {
        self.leader.as_deref().filter(|_| !self.leads())
    }
    /// The last decision that is known to be stored.
    pub const fn known(&self) -> Option<&Arc<M::Value>> {
        self.known.as_ref()
    }

    /// Reason why no decision was stored for [`MISSED_ROUNDS_MAX`] rounds. `None` while rounds
    /// continue, or while no decision is needed.
    pub fn stall(&self, now: Instant) -> Option<Stall> {
        if self.unkept_rounds >= MISSED_ROUNDS_MAX {
            return Some(Stall::Unkept { rounds: self.unkept_rounds });
        }
        let lasts = now.saturating_since(self.out_since?);
        let is_led = self.seen.is_led || self.role != Role::Follows;
        let stall = if is_led { Stall::Unwritten { lasts } } else { Stall::NoLeader { lasts } };
        (lasts >= M::round_time(&self.settings) * MISSED_ROUNDS_MAX).then_some(stall)
    }

    /// The duration of the lease, divided by `of`.
    const fn part(&self, of: u64) -> Duration {
        Duration::from_ps(self.lease.as_ps() / of)
    }

    fn known_round(&self) -> u64 {
        self.known.as_deref().map_or(0, M::round)
    }

    /// Takes the result of a job.
    pub fn handle_answer(&mut self, now: Instant, job: &M::Job, answer: M::Answer) {
        if let Some(machine) = &mut self.machine {
            machine.handle_answer(now, job, answer);
        }
        self.go_on(now);
    }

    /// Takes the store's answer to the request with this number. `None` means that no answer
    /// arrived in time; the store may have executed the request.
    pub fn handle_told(&mut self, now: Instant, number: u64, told: Option<StoreReply<M::Value>>) {
        let Some((_, asked_at)) = self.questions.open.take_if(|(open, _)| *open == number) else { return };
        let written = self.questions.written.take();
        let until = asked_at + self.lease;
        let renew_at = asked_at + self.part(RENEWALS);
        match told {
            None => {
                self.seen.is_led = false;
                self.questions.retry_at = now + self.part(RETRIES);
            }
            Some(StoreReply::Leads { epoch, revision, last }) => {
                self.questions.next_at = renew_at;
                self.leader = None;
                self.machine = None;
                self.role = Role::Catches { epoch, until };
                self.note_found(revision, last);
                if !self.is_unread() {
                    self.begin_lead(now);
                }
            }
            Some(StoreReply::Follows { leader, revision, last }) => {
                self.end_lead();
                self.seen.is_led = leader.is_some();
                self.leader = leader;
                self.questions.next_at = renew_at;
                self.note_found(revision, last);
            }
            Some(StoreReply::Renewed { revision, last }) => {
                self.questions.next_at = renew_at;
                if let Role::Leads { until: before, .. } | Role::Catches { until: before, .. } =
                    &mut self.role
                {
                    *before = until;
                }
                self.note_found(revision, last);
            }
            Some(StoreReply::Kept { revision }) => self.handle_kept(revision, written),
            Some(StoreReply::Changed { last }) => self.note_found(self.seen.revision, last),
            Some(StoreReply::Lost) => {
                self.end_lead();
                self.questions.next_at = now;
            }
            Some(StoreReply::Last { last, decision }) => self.handle_last(now, last, decision),
        }
        self.go_on(now);
    }

    /// Records the store's value. A store whose revision has decreased was replaced: all its leads
    /// up to now count as earlier than the lead of the known decision.
    fn note_found(&mut self, revision: u64, last: Stamp) {
        if revision < self.seen.revision {
            self.known_epoch = revision;
        }
        self.seen.revision = revision;
        self.seen.value = last;
        if last.round == self.known_round() && last.epoch != 0 {
            self.known_epoch = self.known_epoch.min(last.epoch);
        }
    }

    /// Whether this controller must adopt a value: its lead is later, or its round is higher.
    fn is_newer(&self, stamp: Stamp) -> bool {
        let known = self.known.as_deref().map(M::round);
        stamp != Stamp::default()
            && known.is_none_or(|known| stamp.round > known || stamp.epoch > self.known_epoch)
    }

    fn is_unread(&self) -> bool {
        self.is_newer(self.seen.value) && self.seen.unreadable != Some(self.seen.value)
    }

    /// Whether the store's value is damaged, because it is not the known decision.
    fn is_damaged(&self) -> bool {
        let value = self.seen.value;
        let is_known = |known: &M::Value| (value.epoch, value.round) == (self.known_epoch, M::round(known));
        self.known.as_deref().is_some_and(|known| !is_known(known))
    }

    fn handle_last(&mut self, now: Instant, last: Stamp, decision: Option<Arc<M::Value>>) {
        self.note_found(self.seen.revision, last);
        match decision {
            Some(decision) if self.is_newer(last) => {
                if self.leads() {
                    // Another controller has written the decision: the next lead starts from this
                    // decision.
                    self.end_lead();
                    self.questions.next_at = now;
                }
                self.known_epoch = last.epoch;
                self.unkept_rounds = 0;
                if self.known.as_ref() != Some(&decision) {
                    self.known = Some(Arc::clone(&decision));
                    self.turns.push_back(RoleChange::News(decision));
                }
            }
            Some(_) => {}
            None => self.seen.unreadable = Some(last),
        }
        self.begin_lead(now);
    }

    /// Begins to lead, once the stored decision is known.
    fn begin_lead(&mut self, now: Instant) {
        let Role::Catches { epoch, until } = self.role else { return };
        self.role = Role::Leads { epoch, until };
        let passed = now.saturating_since(Instant::ZERO).as_us() / 1_000;
        let rounds_after = self.rounds_after + passed;
        self.machine = Some(M::begin(now, &self.settings, rounds_after, self.known.as_deref()));
        self.turns.push_back(RoleChange::Began);
    }

    fn end_lead(&mut self) {
        self.unkept_rounds += u64::from(self.keeping.take().is_some());
        self.held.clear();
        self.transmits.clear();
        self.machine = None;
        if std::mem::replace(&mut self.role, Role::Follows) != Role::Follows {
            self.turns.push_back(RoleChange::Ended);
        }
    }

    fn handle_kept(&mut self, revision: u64, written: Option<(Arc<M::Value>, u64)>) {
        let Some((decision, decided)) = written else { return };
        self.seen.value = Stamp { revision, epoch: decided, round: M::round(&decision) };
        self.seen.revision = self.seen.revision.max(revision);
        if self.keeping.take_if(|keeping| Arc::ptr_eq(keeping, &decision)).is_some() {
            self.known = Some(Arc::clone(&decision));
            self.known_epoch = decided;
            self.unkept_rounds = 0;
            self.turns.push_back(RoleChange::Accepted(decision));
            self.transmits.append(&mut self.held);
        }
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(machine) = &mut self.machine
            && machine.poll_timeout().is_some_and(|at| at <= now)
        {
            machine.handle_timeout(now);
        }
        self.go_on(now);
    }

    /// Ends a lead whose lease has expired, drains the machine, and makes the next request to the
    /// store.
    fn go_on(&mut self, now: Instant) {
        if let Role::Leads { until, .. } | Role::Catches { until, .. } = self.role
            && now >= until
        {
            self.end_lead();
            self.questions.next_at = now;
        }
        self.drain_machine();
        self.out_since = self.is_out_of_step().then(|| self.out_since.unwrap_or(now));
        if self.questions.open.is_some() || now < self.questions.retry_at {
            return;
        }
        let Some(ask) = self.question(now) else { return };
        if let StoreRequest::Keep { decided, decision, .. } = &ask {
            self.questions.written = Some((Arc::clone(decision), *decided));
        }
        self.questions.count += 1;
        self.questions.open = Some((self.questions.count, now));
        self.questions.ask = Some((self.questions.count, ask));
    }

    /// The next request to the store.
    fn question(&self, now: Instant) -> Option<StoreRequest<M::Value>> {
        let is_due = now >= self.questions.next_at;
        match &self.role {
            Role::Leads { epoch, .. } if is_due => Some(StoreRequest::Renew { epoch: *epoch }),
            _ if self.is_unread() => Some(StoreRequest::Read),
            Role::Follows if is_due => Some(StoreRequest::Lead),
            Role::Catches { epoch, .. } if is_due => Some(StoreRequest::Renew { epoch: *epoch }),
            Role::Leads { epoch, .. } => {
                let (decided, decision) = self.to_write(*epoch)?;
                Some(StoreRequest::Keep { epoch: *epoch, decided, before: self.seen.value, decision })
            }
            Role::Follows | Role::Catches { .. } => None,
        }
    }

    /// The decision that a leader writes next, with the lead under which it was made. A new
    /// decision has priority over the known decision, which is written again if the stored value is
    /// damaged.
    fn to_write(&self, epoch: u64) -> Option<(u64, Arc<M::Value>)> {
        let new = self.keeping.as_ref().map(|decision| (epoch, Arc::clone(decision)));
        new.or_else(|| {
            let known = self.known.as_ref().filter(|_| self.is_damaged())?;
            Some((self.known_epoch, Arc::clone(known)))
        })
    }

    /// Whether the present state of the store prevents rounds: no controller leads, or the stored
    /// value is not the known decision.
    fn is_out_of_step(&self) -> bool {
        match self.role {
            Role::Leads { epoch, .. } => self.to_write(epoch).is_some(),
            Role::Catches { .. } => true,
            Role::Follows => !self.seen.is_led || self.seen.value.round != self.known_round(),
        }
    }

    fn drain_machine(&mut self) {
        // The machine is not drained until its decision is stored.
        let Some(machine) = self.machine.as_mut().filter(|_| self.keeping.is_none()) else { return };
        while let Some(event) = machine.poll_event() {
            match event {
                Event::Accepted(decision) => self.keeping = Some(decision),
                Event::Void { round, why } => self.turns.push_back(RoleChange::Void { round, why }),
            }
        }
        while let Some(message) = machine.poll_transmit() {
            let to = if self.keeping.is_some() { &mut self.held } else { &mut self.transmits };
            to.push_back(message);
        }
    }

    /// The next message of the machine. `None` if no message is left.
    pub fn poll_transmit(&mut self) -> Option<M::Message> {
        self.drain_machine();
        self.transmits.pop_front()
    }
    /// The next change. `None` if no change is left.
    pub fn poll_turn(&mut self) -> Option<RoleChange<M::Value, M::Void>> {
        self.drain_machine();
        self.turns.pop_front()
    }
    /// The next job. `None` if no job is left. [`Replica::handle_answer`] takes the job's result.
    pub fn poll_job(&mut self) -> Option<M::Job> {
        self.machine.as_mut().and_then(M::poll_job)
    }
    /// The next request to the store, with its number. `None` if no request is left.
    /// [`Replica::handle_told`] takes the answer within a third of the lease.
    pub fn poll_ask(&mut self, now: Instant) -> Option<(u64, StoreRequest<M::Value>)> {
        self.go_on(now);
        self.questions.ask.take()
    }
    /// Time of the next call of [`Replica::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_lead = match self.role {
            Role::Leads { until, .. } | Role::Catches { until, .. } => Some(until),
            Role::Follows => None,
        };
        let of_machine = self.machine.as_ref().and_then(M::poll_timeout);
        let wants_now = match self.role {
            Role::Leads { epoch, .. } => self.is_unread() || self.to_write(epoch).is_some(),
            Role::Follows | Role::Catches { .. } => self.is_unread(),
        };
        let StoreQueue { open, next_at, retry_at, .. } = &self.questions;
        let of_asks = if wants_now { *retry_at } else { *next_at.max(retry_at) };
        let of_asks = open.is_none().then_some(of_asks);
        of_lead.into_iter().chain(of_machine).chain(of_asks).min()
    }
}

#[cfg(test)]
mod tests;
