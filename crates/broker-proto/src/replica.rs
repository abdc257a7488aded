//! One of several brokers that decide in turn: which of them leads, and what it may say before its decision is kept.
//!
//! Brokers share a store that has leases and compares before it writes. One of them holds a lease and leads: it calls rounds. Before anybody is told
//! of an accepted round it is kept in the store, on the condition that the lease still stands and that the round before is the one that is known.
//! The others take over the decision, answer players by it, and try for the lead. A leader that cannot renew its lease ends by its own clock; one
//! whose clock is slow is held by the store's condition, so that clocks matter for how long nobody leads and never for what is accepted.
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
    /// Keep a decision, if this lead still stands and the round that was kept last is this one. Of one that this lead has kept already, nothing is to
    /// be done: it is kept.
    Keep {
        /// Which lead.
        epoch: u64,
        /// The round before; 0 for none.
        before: u64,
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
        /// The round that was kept last; 0 for none.
        round: u64,
    },
    /// Another leads.
    Follows {
        /// Where networks find it, where that is known.
        leader: Option<String>,
        /// The round that was kept last; 0 for none.
        round: u64,
    },
    /// The lease begins anew.
    Renewed,
    /// The decision is kept.
    Kept,
    /// The lead does not stand any more, or another round was kept: nothing was done.
    Lost,
    /// The decision that was kept last, if there is one.
    Last(Option<Arc<Decision>>),
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
    /// A round of this number is kept and is to be read.
    unread: Option<u64>,
    /// When the next question may be asked: to lead, or to renew the lease; and one that failed.
    next_at: Instant,
    retry_at: Instant,
    /// Questions so far; the open one: its number, when it was asked, and itself until it is taken.
    asks: u64,
    open: Option<(u64, Instant)>,
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
            unread: None,
            next_at: now,
            retry_at: now,
            asks: 0,
            open: None,
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
        let until = asked_at + self.lease;
        let renew_at = asked_at + self.part(RENEWALS);
        match told {
            None => self.retry_at = now + self.part(RETRIES),
            Some(StoreTold::Leads { epoch, round }) => {
                self.next_at = renew_at;
                self.leader = None;
                self.role = Role::Catches { epoch, until };
                self.unread = (round > self.known_round()).then_some(round);
                if self.unread.is_none() {
                    self.begin_lead(now);
                }
            }
            Some(StoreTold::Follows { leader, round }) => {
                self.end_lead();
                self.leader = leader;
                self.next_at = renew_at;
                self.unread = (round > self.known_round()).then_some(round);
            }
            Some(StoreTold::Renewed) => {
                self.next_at = renew_at;
                if let Role::Leads { until: before, .. } | Role::Catches { until: before, .. } =
                    &mut self.role
                {
                    *before = until;
                }
            }
            Some(StoreTold::Kept) => self.handle_kept(),
            Some(StoreTold::Lost) => {
                self.end_lead();
                self.next_at = now;
            }
            Some(StoreTold::Last(last)) => self.handle_last(now, last),
        }
        self.go_on(now);
    }

    fn handle_last(&mut self, now: Instant, last: Option<Arc<Decision>>) {
        let round = last.as_ref().map_or(0, |decision| decision.round);
        if self.unread.is_some_and(|unread| round < unread) {
            // It was taken away while it was read: a newer one is there.
            self.retry_at = now + self.part(RETRIES);
            return;
        }
        self.unread = None;
        if let Some(decision) = last.filter(|decision| decision.round > self.known_round()) {
            self.known = Some(Arc::clone(&decision));
            self.turns.push_back(Turn::News(decision));
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
        self.keeping = None;
        self.held.clear();
        self.transmits.clear();
        if std::mem::replace(&mut self.role, Role::Follows) != Role::Follows {
            self.turns.push_back(Turn::Ended);
        }
    }

    fn handle_kept(&mut self) {
        if let Some(decision) = self.keeping.take() {
            self.known = Some(Arc::clone(&decision));
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
        if self.open.is_some() || now < self.retry_at {
            return;
        }
        let is_due = now >= self.next_at;
        let ask = match &self.role {
            Role::Follows | Role::Catches { .. } if self.unread.is_some() => StoreAsk::Read,
            Role::Follows if is_due => StoreAsk::Lead,
            Role::Leads { epoch, .. } | Role::Catches { epoch, .. } if is_due => {
                StoreAsk::Renew { epoch: *epoch }
            }
            Role::Leads { epoch, .. } => match &self.keeping {
                Some(decision) => StoreAsk::Keep {
                    epoch: *epoch,
                    before: self.known_round(),
                    decision: Arc::clone(decision),
                },
                None => return,
            },
            Role::Follows | Role::Catches { .. } => return,
        };
        self.asks += 1;
        self.open = Some((self.asks, now));
        self.ask = Some((self.asks, ask));
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
        let wants_now = self.unread.is_some() || self.keeping.is_some();
        let of_asks =
            is_waiting.then(|| if wants_now { self.retry_at } else { self.next_at.max(self.retry_at) });
        of_lead.into_iter().chain(of_broker).chain(of_asks).min()
    }
}
