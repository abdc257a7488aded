//! One of several brokers that decide in turn: which of them leads, and what it may say before its decision is kept.
//!
//! Brokers share a store that has leases and compares before it writes. One of them holds a lease and leads: it calls rounds. Before anybody is told
//! of an accepted round it is kept in the store, on the condition that the lease still stands and that the value before is the one that was seen.
//! The others take over the decision, answer players by it, and try for the lead. A leader that cannot renew its lease ends by its own clock; one
//! whose clock is slow is held by the store's condition, so that clocks matter for how long nobody leads and never for what is accepted.
//!
//! Each value in the store has a [`Stamp`]. A broker takes over a value of a later lead or of a higher round. A value that is lost, unreadable or
//! older than the known decision is damage: the leader writes the known decision again, and the followers keep theirs meanwhile.
//!
//! Invariants: what networks and players are told of a round is kept; rounds that are kept have rising numbers; at most one question to the store is
//! open. A broker with a store of its own is one that leads at once. Leaves out: the store (a driver's: etcd, or a file). Contract: one mutation
//! of [`Replica::leading`] or of this, then `poll_*` to `None`, then [`Replica::poll_timeout`]. Read [`Replica`], [`StoreAsk`] and [`Turn`] first.

use crate::broker::{Broker, Decision, Event, Job, Settings, Standing, ToNetwork, Why};
use anabranch_units::{Duration, Instant, PeerId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Parts of a lease after which it is renewed, and after which the others try for it.
const RENEWALS: u64 = 3;
/// Parts of a lease after which what has failed is asked again.
const RETRIES: u64 = 10;
/// Rounds in a row without a kept decision after which a broker counts as stalled.
pub const MISSED_ROUNDS_MAX: u64 = 3;

/// Identity of the store's value for the last decision. The default stands for no value.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Revision of the store at which the value was written.
    pub revision: u64,
    /// Lead under which the round was decided; 0 for an unreadable value.
    pub epoch: u64,
    /// Round of the decision; 0 for an unreadable value.
    pub round: u64,
}

/// A question to the store.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StoreAsk {
    /// Give the lead to this broker, for a lease, unless another has it. Of one that has it already the lease begins anew.
    Lead,
    /// Begin the lease anew.
    Renew {
        /// Of which lead.
        epoch: u64,
    },
    /// Keep a decision, if this lead still stands and the store's value is still `before`. If the store has the decision already, the answer is
    /// [`StoreTold::Kept`].
    Keep {
        /// Which lead.
        epoch: u64,
        /// Lead under which the round was decided: an earlier one if a known decision is written again.
        decided: u64,
        /// The value that is replaced.
        before: Stamp,
        /// What to keep.
        decision: Arc<Decision>,
    },
    /// Read the decision that was kept last.
    Read,
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StoreTold {
    /// This broker leads, and its lease began no earlier than the question.
    Leads {
        /// The lead's number: no other lead has it.
        epoch: u64,
        /// Revision of the whole store; it falls only if the store was replaced.
        revision: u64,
        /// The store's value.
        last: Stamp,
    },
    /// Another leads.
    Follows {
        /// Address of the leader for networks; `None` while nobody can lead.
        leader: Option<String>,
        /// Revision of the whole store.
        revision: u64,
        /// The store's value.
        last: Stamp,
    },
    /// The lease begins anew.
    Renewed {
        /// Revision of the whole store.
        revision: u64,
        /// The store's value.
        last: Stamp,
    },
    /// The decision is kept.
    Kept {
        /// Revision at which it was written.
        revision: u64,
    },
    /// The lead stands, but the store's value is not the expected one: nothing was done.
    Changed {
        /// The store's value.
        last: Stamp,
    },
    /// The lead does not stand any more: nothing was done.
    Lost,
    /// The decision that was kept last.
    Last {
        /// The store's value.
        last: Stamp,
        /// Its content; `None` if there is no value or an unreadable one.
        decision: Option<Arc<Decision>>,
    },
}

/// Why rounds do not go on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stall {
    /// The lead was lost before any of the last decisions was kept.
    Unkept {
        /// Decisions in a row.
        rounds: u64,
    },
    /// No broker leads, as far as the store says.
    NoLeader {
        /// Time since the broker was in step with the store.
        lasts: Duration,
    },
    /// The store does not have the last decision.
    Unwritten {
        /// Time since the broker was in step with the store.
        lasts: Duration,
    },
}

/// What came about.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Turn {
    /// This broker leads from now on. Its machine is a new one: networks join it again.
    Began,
    /// It leads no more.
    Ended,
    /// It has accepted a round, which is kept.
    Accepted(Arc<Decision>),
    /// A round of another, or of before, was kept.
    News(Arc<Decision>),
    /// A round changed nothing.
    Void {
        /// Which.
        round: u64,
        /// Why.
        why: Why,
    },
}

/// Whether this broker leads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Follows,
    /// It has the lead, and reads the decision before it begins.
    Catches {
        epoch: u64,
        until: Instant,
    },
    Leads {
        epoch: u64,
        until: Instant,
    },
}

/// The machine.
#[derive(Debug)]
pub struct Replica {
    settings: Settings,
    lease: Duration,
    rounds_after: u64,
    role: Role,
    leader: Option<String>,
    broker: Broker,
    known: Option<Arc<Decision>>,
    /// Lead under which the known decision was made.
    known_epoch: u64,
    /// The store's value and the store's revision, as of the last answer.
    found: Stamp,
    revision: u64,
    /// The value that could not be read, so that it is not read again.
    unreadable: Option<Stamp>,
    /// Whether the last answer showed another broker that leads.
    is_led: bool,
    /// Decisions in a row that were not kept.
    unkept_rounds: u64,
    /// Time since which this broker is out of step with the store; `None` while it is in step.
    out_since: Option<Instant>,
    /// When the next question may be asked: to lead, or to renew the lease; and one that failed.
    next_at: Instant,
    retry_at: Instant,
    /// Questions so far; the open one: its number, when it was asked, and itself until it is taken.
    asks: u64,
    open: Option<(u64, Instant)>,
    /// The decision of the open question, and the lead under which it was made.
    written: Option<(Arc<Decision>, u64)>,
    ask: Option<(u64, StoreAsk)>,
    /// A decision that is to be kept.
    keeping: Option<Arc<Decision>>,
    /// What networks are told once the decision is kept.
    held: VecDeque<(PeerId, ToNetwork)>,
    transmits: VecDeque<(PeerId, ToNetwork)>,
    turns: VecDeque<Turn>,
}

impl Replica {
    /// A broker that has yet to try for the lead. `lease` is how long one lasts that is not renewed; rounds have higher numbers than `rounds_after`
    /// and than those that are kept.
    pub fn new(now: Instant, settings: Settings, lease: Duration, rounds_after: u64) -> Self {
        Self {
            broker: Broker::new(now, settings.clone()),
            settings,
            lease,
            rounds_after,
            role: Role::Follows,
            leader: None,
            known: None,
            known_epoch: 0,
            found: Stamp::default(),
            revision: 0,
            unreadable: None,
            is_led: false,
            unkept_rounds: 0,
            out_since: Some(now),
            next_at: now,
            retry_at: now,
            asks: 0,
            open: None,
            written: None,
            ask: None,
            keeping: None,
            held: VecDeque::new(),
            transmits: VecDeque::new(),
            turns: VecDeque::new(),
        }
    }

    /// Begins again as after a restart, by a clock that begins again: it is `now` by that. The lead ends, without a word to networks, and is asked for
    /// anew; what was asked of the store may have been done, and no answer to it counts.
    pub fn begin_anew(&mut self, now: Instant, rounds_after: u64) {
        let new = Self::new(now, self.settings.clone(), self.lease, rounds_after);
        let old = std::mem::replace(self, new);
        (self.asks, self.known, self.leader, self.turns) = (old.asks, old.known, old.leader, old.turns);
        (self.known_epoch, self.revision) = (old.known_epoch, old.revision);
        if old.role != Role::Follows {
            self.turns.push_back(Turn::Ended);
        }
    }

    /// The broker's machine while this one leads.
    pub const fn leading(&mut self) -> Option<&mut Broker> {
        if self.leads() { Some(&mut self.broker) } else { None }
    }
    /// Whether this one leads.
    pub const fn leads(&self) -> bool {
        matches!(self.role, Role::Leads { .. })
    }
    /// Whether this one leads at this time: its lease may have ended before it could say so, as a process may have stood still.
    pub fn leads_at(&self, now: Instant) -> bool {
        matches!(self.role, Role::Leads { until, .. } if now < until)
    }
    /// Where the one is found that leads in its place, as far as that is known.
    pub fn leader(&self) -> Option<&str> {
        self.leader.as_deref().filter(|_| !self.leads())
    }
    /// The last round that is known to be kept.
    pub const fn known(&self) -> Option<&Arc<Decision>> {
        self.known.as_ref()
    }
    /// What is thought of a network: by this one while it leads, else as it was kept with the last decision.
    pub fn standing(&self, network: PeerId) -> Option<Standing> {
        if self.leads() {
            self.broker.standing(network)
        } else {
            self.known.as_ref()?.standings.get(&network).copied()
        }
    }

    /// Why no round was kept for [`MISSED_ROUNDS_MAX`] rounds; `None` while rounds go on, or while there is nothing to decide.
    pub fn stall(&self, now: Instant) -> Option<Stall> {
        if self.unkept_rounds >= MISSED_ROUNDS_MAX {
            return Some(Stall::Unkept { rounds: self.unkept_rounds });
        }
        let lasts = now.saturating_since(self.out_since?);
        let is_led = self.is_led || self.role != Role::Follows;
        let stall = if is_led { Stall::Unwritten { lasts } } else { Stall::NoLeader { lasts } };
        (lasts >= self.settings.every * MISSED_ROUNDS_MAX).then_some(stall)
    }

    /// One of so many parts of the lease.
    const fn part(&self, of: u64) -> Duration {
        Duration::from_ps(self.lease.as_ps() / of)
    }

    fn known_round(&self) -> u64 {
        self.known.as_ref().map_or(0, |decision| decision.round)
    }

    /// A job has found this.
    pub fn handle_answer(&mut self, now: Instant, job: &Job, answer: crate::optimiser::Answer) {
        if self.leads() {
            self.broker.handle_answer(now, job, answer);
        }
        self.go_on(now);
    }

    /// The store has answered; none if it cannot be asked, or has not answered in time: what was asked may have been done.
    pub fn handle_told(&mut self, now: Instant, number: u64, told: Option<StoreTold>) {
        let Some((_, asked_at)) = self.open.take_if(|(open, _)| *open == number) else { return };
        let written = self.written.take();
        let until = asked_at + self.lease;
        let renew_at = asked_at + self.part(RENEWALS);
        match told {
            None => {
                self.is_led = false;
                self.retry_at = now + self.part(RETRIES);
            }
            Some(StoreTold::Leads { epoch, revision, last }) => {
                self.next_at = renew_at;
                self.leader = None;
                self.role = Role::Catches { epoch, until };
                self.note_found(revision, last);
                if !self.is_unread() {
                    self.begin_lead(now);
                }
            }
            Some(StoreTold::Follows { leader, revision, last }) => {
                self.end_lead();
                self.is_led = leader.is_some();
                self.leader = leader;
                self.next_at = renew_at;
                self.note_found(revision, last);
            }
            Some(StoreTold::Renewed { revision, last }) => {
                self.next_at = renew_at;
                if let Role::Leads { until: before, .. } | Role::Catches { until: before, .. } =
                    &mut self.role
                {
                    *before = until;
                }
                self.note_found(revision, last);
            }
            Some(StoreTold::Kept { revision }) => self.handle_kept(revision, written),
            Some(StoreTold::Changed { last }) => self.note_found(self.revision, last),
            Some(StoreTold::Lost) => {
                self.end_lead();
                self.next_at = now;
            }
            Some(StoreTold::Last { last, decision }) => self.handle_last(now, last, decision),
        }
        self.go_on(now);
    }

    /// Notes the store's value. A store whose revision has fallen is another one: its leads so far count as earlier than the known decision's.
    fn note_found(&mut self, revision: u64, last: Stamp) {
        if revision < self.revision {
            self.known_epoch = revision;
        }
        (self.revision, self.found) = (revision, last);
        if last.round == self.known_round() && last.epoch != 0 {
            self.known_epoch = self.known_epoch.min(last.epoch);
        }
    }

    /// Whether this broker must take a value over: its lead is later, or its round is higher.
    fn is_newer(&self, stamp: Stamp) -> bool {
        let known = self.known.as_ref();
        stamp != Stamp::default()
            && known.is_none_or(|known| stamp.round > known.round || stamp.epoch > self.known_epoch)
    }

    fn is_unread(&self) -> bool {
        self.is_newer(self.found) && self.unreadable != Some(self.found)
    }

    /// Whether the store's value is damaged: it is not the known decision.
    fn is_damaged(&self) -> bool {
        let is_known =
            |known: &Arc<Decision>| (self.found.epoch, self.found.round) == (self.known_epoch, known.round);
        self.known.as_ref().is_some_and(|known| !is_known(known))
    }

    fn handle_last(&mut self, now: Instant, last: Stamp, decision: Option<Arc<Decision>>) {
        self.note_found(self.revision, last);
        match decision {
            Some(decision) if self.is_newer(last) => {
                if self.leads() {
                    // Somebody else has written it: the next lead goes on from there.
                    self.end_lead();
                    self.next_at = now;
                }
                self.known_epoch = last.epoch;
                self.unkept_rounds = 0;
                if self.known.as_ref() != Some(&decision) {
                    self.known = Some(Arc::clone(&decision));
                    self.turns.push_back(Turn::News(decision));
                }
            }
            Some(_) => {}
            None => self.unreadable = Some(last),
        }
        self.begin_lead(now);
    }

    /// Has the lead, and knows what was kept.
    fn begin_lead(&mut self, now: Instant) {
        let Role::Catches { epoch, until } = self.role else { return };
        self.role = Role::Leads { epoch, until };
        let passed = now.saturating_since(Instant::ZERO).as_us() / 1_000;
        let mut broker =
            Broker::new(now, self.settings.clone()).with_rounds_after(self.rounds_after + passed);
        if let Some(decision) = &self.known {
            broker = broker.with_accepted((**decision).clone());
        }
        self.broker = broker;
        self.turns.push_back(Turn::Began);
    }

    fn end_lead(&mut self) {
        self.unkept_rounds += u64::from(self.keeping.take().is_some());
        self.held.clear();
        self.transmits.clear();
        if std::mem::replace(&mut self.role, Role::Follows) != Role::Follows {
            self.turns.push_back(Turn::Ended);
        }
    }

    fn handle_kept(&mut self, revision: u64, written: Option<(Arc<Decision>, u64)>) {
        let Some((decision, decided)) = written else { return };
        self.found = Stamp { revision, epoch: decided, round: decision.round };
        self.revision = self.revision.max(revision);
        if self.keeping.take_if(|keeping| Arc::ptr_eq(keeping, &decision)).is_some() {
            (self.known, self.known_epoch) = (Some(Arc::clone(&decision)), decided);
            self.unkept_rounds = 0;
            self.turns.push_back(Turn::Accepted(decision));
            self.transmits.append(&mut self.held);
        }
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.leads() && self.broker.poll_timeout().is_some_and(|at| at <= now) {
            self.broker.handle_timeout(now);
        }
        self.go_on(now);
    }

    /// Ends a lead whose lease is over, takes what the broker's machine says, and asks what is to be asked.
    fn go_on(&mut self, now: Instant) {
        if let Role::Leads { until, .. } | Role::Catches { until, .. } = self.role
            && now >= until
        {
            self.end_lead();
            self.next_at = now;
        }
        self.take_from_broker();
        self.out_since = self.is_out_of_step().then(|| self.out_since.unwrap_or(now));
        if self.open.is_some() || now < self.retry_at {
            return;
        }
        let Some(ask) = self.question(now) else { return };
        if let StoreAsk::Keep { decided, decision, .. } = &ask {
            self.written = Some((Arc::clone(decision), *decided));
        }
        self.asks += 1;
        self.open = Some((self.asks, now));
        self.ask = Some((self.asks, ask));
    }

    /// The next question to the store.
    fn question(&self, now: Instant) -> Option<StoreAsk> {
        let is_due = now >= self.next_at;
        match &self.role {
            Role::Leads { epoch, .. } if is_due => Some(StoreAsk::Renew { epoch: *epoch }),
            _ if self.is_unread() => Some(StoreAsk::Read),
            Role::Follows if is_due => Some(StoreAsk::Lead),
            Role::Catches { epoch, .. } if is_due => Some(StoreAsk::Renew { epoch: *epoch }),
            Role::Leads { epoch, .. } => {
                let (decided, decision) = self.to_write(*epoch)?;
                Some(StoreAsk::Keep { epoch: *epoch, decided, before: self.found, decision })
            }
            Role::Follows | Role::Catches { .. } => None,
        }
    }

    /// The decision that a leader writes next, with the lead under which it was made: a new one, or the known one in place of a damaged value.
    fn to_write(&self, epoch: u64) -> Option<(u64, Arc<Decision>)> {
        let new = self.keeping.as_ref().map(|decision| (epoch, Arc::clone(decision)));
        new.or_else(|| {
            let known = self.known.as_ref().filter(|_| self.is_damaged())?;
            Some((self.known_epoch, Arc::clone(known)))
        })
    }

    /// Whether rounds cannot go on as the store is now: nobody leads, or its value is not the known decision.
    fn is_out_of_step(&self) -> bool {
        match self.role {
            Role::Leads { epoch, .. } => self.to_write(epoch).is_some(),
            Role::Catches { .. } => true,
            Role::Follows => !self.is_led || self.found.round != self.known_round(),
        }
    }

    fn take_from_broker(&mut self) {
        // What is said after a decision waits until that is kept.
        if !self.leads() || self.keeping.is_some() {
            return;
        }
        while let Some(event) = self.broker.poll_event() {
            match event {
                Event::Accepted(decision) => {
                    self.keeping = Some(decision);
                }
                Event::Void { round, why } => self.turns.push_back(Turn::Void { round, why }),
            }
        }
        while let Some(message) = self.broker.poll_transmit() {
            let to = if self.keeping.is_some() { &mut self.held } else { &mut self.transmits };
            to.push_back(message);
        }
    }

    /// What to send next.
    pub fn poll_transmit(&mut self) -> Option<(PeerId, ToNetwork)> {
        self.take_from_broker();
        self.transmits.pop_front()
    }
    /// What came about.
    pub fn poll_turn(&mut self) -> Option<Turn> {
        self.take_from_broker();
        self.turns.pop_front()
    }
    /// What is to be run, and its answer given to [`Replica::handle_answer`].
    pub const fn poll_job(&mut self) -> Option<Job> {
        if self.leads() { self.broker.poll_job() } else { None }
    }
    /// What is to be asked of the store, and its answer given to [`Replica::handle_told`], within a third of the lease.
    pub fn poll_ask(&mut self, now: Instant) -> Option<(u64, StoreAsk)> {
        self.go_on(now);
        self.ask.take()
    }
    /// When [`Replica::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_lead = match self.role {
            Role::Leads { until, .. } | Role::Catches { until, .. } => Some(until),
            Role::Follows => None,
        };
        let of_broker = if self.leads() { self.broker.poll_timeout() } else { None };
        let is_waiting = self.open.is_none();
        let wants_now = match self.role {
            Role::Leads { epoch, .. } => self.is_unread() || self.to_write(epoch).is_some(),
            Role::Follows | Role::Catches { .. } => self.is_unread(),
        };
        let of_asks =
            is_waiting.then(|| if wants_now { self.retry_at } else { self.next_at.max(self.retry_at) });
        of_lead.into_iter().chain(of_broker).chain(of_asks).min()
    }
}
