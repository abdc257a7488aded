//! A broker's sessions with its networks: connected agents, waiting messages, and the effects of
//! agents' requests.
//!
//! While this broker leads, agents join it, and an agent that is silent for [`SILENCE_MAX`] counts
//! as disconnected. After a broker starts to lead, the networks of the last decision have
//! [`SILENCE_MAX`] to join, so that viewers are not moved away and back. While another broker
//! leads, that broker reports the connected networks.
//!
//! Leaves out: HTTP, names and contracts (the `broker` room), the lead and the store
//! ([`crate::replica`]), rounds ([`crate::broker`]). Contract: one mutation, then `poll_*` to
//! `None`, then [`Networks::poll_timeout`]. Read [`Networks`] first.

use crate::broker::{Broker, Contract, Job, PlaceDemand, ToNetwork};
use crate::messages::{Assent, Bids, BidsReply};
use crate::optimiser::Answer;
use crate::replica::{Replica, RoleChange, StoreReply, StoreRequest};
use anabranch_sessions::{NotJoined, OverflowRule, Position, Rejoin, Sessions, SessionsConfig};
use anabranch_units::{Duration, Instant, PeerId};
use std::collections::{BTreeSet, VecDeque};

/// Silence after which an agent counts as disconnected. An agent sends a request at least every ten
/// seconds.
pub const SILENCE_MAX: Duration = Duration::from_secs(25);
/// Maximum number of messages waiting for a network. A full mailbox drops its oldest message.
pub const MAILBOX_MAX: usize = 8;
/// Validity, in leases, of the leader's list of networks, and of another broker's counts.
pub const TOLD_LEASES: u64 = 3;
/// A constant number of the series of messages: each join begins a new series, and the wire format
/// has no field for it.
const NUMBERING: u64 = 0;

const SESSIONS: SessionsConfig = SessionsConfig {
    silence_max: SILENCE_MAX,
    // A poll of a broken connection may still wait here, so a waiting poll is no sign of life.
    polls_keep_alive: false,
    rejoin: Rejoin::StartsAnew,
    mailbox_max: MAILBOX_MAX,
    overflow: OverflowRule::DropsOldest,
    answer_max: MAILBOX_MAX,
};

/// Reason for refusing a network's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The network's agent must join first.
    NotJoined,
    /// Another broker leads; its address, if known.
    NotLeading(Option<String>),
}

/// Error: another broker leads; its address, if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLeaderError(pub Option<String>);

impl From<NotLeaderError> for Refusal {
    fn from(NotLeaderError(leader): NotLeaderError) -> Self {
        Self::NotLeading(leader)
    }
}

impl From<NotJoined> for Refusal {
    fn from(_: NotJoined) -> Self {
        Self::NotJoined
    }
}

/// An event for the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The lead or the decision has changed, or a round has ended.
    Turn(RoleChange),
    /// The agent of this network has fallen silent, and counts as disconnected.
    Silent(PeerId),
    /// Every waiting poll must check again for messages or a refusal.
    PollsDue,
}

/// The leader's list of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkRoll {
    /// Last accepted round; 0 before the first.
    pub round: u64,
    /// Networks whose agents are connected.
    pub up: Vec<PeerId>,
    /// Networks whose agents still have time to join.
    pub awaited: Vec<PeerId>,
}

/// State machine of the sessions.
#[derive(Debug)]
pub struct Networks {
    replica: Replica,
    sessions: Sessions<PeerId, ToNetwork>,
    lease: Duration,
    /// Round of the leader's last list of networks, and the end of its validity.
    told: Option<(u64, Instant)>,
    /// Last called round, and the time of its call.
    called: Option<(u64, Instant)>,
    /// Connected and expected networks, as last polled.
    there: Option<BTreeSet<PeerId>>,
    events: VecDeque<Event>,
}

impl Networks {
    /// Creates the sessions around a replica with this lease, without agents.
    pub const fn new(replica: Replica, lease: Duration) -> Self {
        Self {
            replica,
            sessions: Sessions::new(SESSIONS),
            lease,
            told: None,
            called: None,
            there: None,
            events: VecDeque::new(),
        }
    }

    /// The replica, read-only.
    pub const fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Returns the broker's state machine.
    ///
    /// Errors: this broker does not lead.
    pub fn leading(&mut self) -> Result<&mut Broker, NotLeaderError> {
        let leader = self.replica.leader().map(str::to_owned);
        self.replica.leading().ok_or(NotLeaderError(leader))
    }

    /// Handles a joining agent. Its network takes part from the next round on.
    ///
    /// Errors: this broker does not lead.
    pub fn handle_join(
        &mut self,
        now: Instant,
        network: PeerId,
        session: u64,
        contract: Contract,
    ) -> Result<(), NotLeaderError> {
        self.leading()?.handle_joined(network, contract);
        self.sessions.handle_join(now, &network, session, NUMBERING);
        self.settle(now);
        Ok(())
    }

    /// Handles a leaving agent.
    ///
    /// Errors: see [`Refusal`].
    pub fn handle_leave(&mut self, now: Instant, network: PeerId, session: u64) -> Result<(), Refusal> {
        self.leading()?;
        self.sessions.handle_leave(&network, session)?;
        self.leading()?.handle_left(network);
        self.settle(now);
        Ok(())
    }

    /// Returns the messages to a network after number `after`, and acknowledges the messages up to
    /// `after`; `None` without messages.
    ///
    /// Errors: see [`Refusal`].
    pub fn poll_messages(
        &mut self,
        now: Instant,
        network: PeerId,
        session: u64,
        after: u64,
    ) -> Result<Option<Vec<(u64, ToNetwork)>>, Refusal> {
        self.leading()?;
        let position = Position { numbering: NUMBERING, after };
        Ok(self.sessions.poll_messages(now, &network, session, position, &mut None)?)
    }

    /// Handles a network's bids.
    ///
    /// Errors: see [`Refusal`].
    pub fn handle_bids(
        &mut self,
        now: Instant,
        network: PeerId,
        session: u64,
        bids: Bids,
    ) -> Result<BidsReply, Refusal> {
        let reply = self.speaker(now, network, session)?.handle_bids(network, bids);
        self.settle(now);
        Ok(reply)
    }

    /// Handles a network's answer to a proposal.
    ///
    /// Errors: see [`Refusal`].
    pub fn handle_assent(
        &mut self,
        now: Instant,
        network: PeerId,
        session: u64,
        assent: &Assent,
    ) -> Result<(), Refusal> {
        self.speaker(now, network, session)?.handle_assent(network, assent);
        self.settle(now);
        Ok(())
    }

    /// Handles the leader's list of networks, so that this broker's players leave a network that
    /// disconnects between two rounds. A list from any other broker than the leader is ignored.
    pub fn handle_roll(&mut self, now: Instant, leader: &str, roll: &NetworkRoll) {
        if self.replica.leader() != Some(leader) {
            return;
        }
        self.told = Some((roll.round, now + self.lease * TOLD_LEASES));
        self.sessions.restart();
        roll.up.iter().for_each(|network| self.sessions.note_up_elsewhere(now, network));
        roll.awaited.iter().for_each(|network| self.sessions.expect(now, network));
        if self.replica.known().is_some_and(|decision| decision.round > roll.round) {
            self.expect_decided(now);
        }
    }

    /// Returns the list of networks for followers.
    ///
    /// Errors: this broker does not lead.
    pub fn roll(&mut self) -> Result<NetworkRoll, NotLeaderError> {
        // An accepted decision counts even before it is stored: it may contain a network that has
        // disconnected since the stored decision.
        let round = self.leading()?.accepted().map_or(0, |decision| decision.round);
        let those = |up: bool| {
            let some = self.sessions.peers().filter(|(_, is_up)| *is_up == up);
            some.map(|(network, _)| *network).collect()
        };
        Ok(NetworkRoll { round, up: those(true), awaited: those(false) })
    }

    /// Returns true if the next [`Networks::handle_timeout`] begins a round and so needs the
    /// clients.
    pub fn needs_clients(&mut self, now: Instant) -> bool {
        self.leading().is_ok_and(|broker| broker.poll_timeout().is_some_and(|at| at <= now))
    }

    /// Sets the clients of the next round.
    pub fn handle_clients(&mut self, gathered: Vec<PlaceDemand>) {
        if let Ok(broker) = self.leading() {
            broker.handle_gathered(gathered);
        }
    }

    /// Handles a timeout: drops agents that were silent for too long, and continues rounds.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.replica.leads() {
            for (network, _) in self.sessions.handle_timeout(now) {
                self.leading().expect("it leads").handle_left(network);
                self.events.push_back(Event::Silent(network));
            }
        }
        self.replica.handle_timeout(now);
        self.settle(now);
    }

    /// Handles the result of a job.
    pub fn handle_found(&mut self, now: Instant, job: &Job, answer: Answer) {
        self.replica.handle_answer(now, job, answer);
        self.settle(now);
    }

    /// Handles the store's answer; see [`Replica::handle_told`].
    pub fn handle_told(&mut self, now: Instant, number: u64, told: Option<StoreReply>) {
        self.replica.handle_told(now, number, told);
        self.settle(now);
    }

    /// Returns the next job; see [`Replica::poll_job`].
    pub fn poll_job(&mut self) -> Option<Job> {
        self.replica.poll_job()
    }

    /// Returns the next operation on the store; see [`Replica::poll_ask`].
    pub fn poll_ask(&mut self, now: Instant) -> Option<(u64, StoreRequest)> {
        let ask = self.replica.poll_ask(now);
        self.settle(now);
        ask
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the networks that are connected or expected, if they have changed since the last
    /// call.
    pub fn poll_there(&mut self) -> Option<BTreeSet<PeerId>> {
        let there: BTreeSet<PeerId> = self.sessions.peers().map(|(network, _)| *network).collect();
        if self.there.as_ref() == Some(&there) {
            return None;
        }
        self.there = Some(there.clone());
        Some(there)
    }

    /// Time of the next [`Networks::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silent_at = self.sessions.poll_timeout().filter(|_| self.replica.leads());
        silent_at.into_iter().chain(self.replica.poll_timeout()).min()
    }

    /// Returns true if a network's agent is connected, here or to the leader.
    pub fn is_up(&self, network: PeerId) -> bool {
        self.sessions.peers().any(|(other, is_up)| *other == network && is_up)
    }

    /// Number of connected networks.
    pub fn up_count(&self) -> usize {
        self.sessions.peers().filter(|(_, is_up)| *is_up).count()
    }

    /// Time since the call for a round; `None` for a round that another broker called.
    pub fn since_call(&self, now: Instant, round: u64) -> Option<Duration> {
        let called = self.called.filter(|(called, _)| *called == round);
        called.map(|(_, at)| now.saturating_since(at))
    }

    /// Returns the broker's state machine for a request of a joined agent, and records a sign of
    /// life.
    fn speaker(&mut self, now: Instant, network: PeerId, session: u64) -> Result<&mut Broker, Refusal> {
        self.leading()?;
        self.sessions.handle_request(now, &network, session)?;
        Ok(self.leading()?)
    }

    /// Handles the replica's output: turns change the connected networks, and messages enter
    /// mailboxes.
    fn settle(&mut self, now: Instant) {
        while let Some(turn) = self.replica.poll_turn() {
            match &turn {
                RoleChange::Began => self.expect_decided_only(now),
                RoleChange::Ended => {
                    self.expect_decided_only(now);
                    self.events.push_back(Event::PollsDue);
                }
                RoleChange::News(decision) if !self.replica.leads() => {
                    match self.told.filter(|(_, until)| now < *until) {
                        None => self.expect_decided_only(now),
                        Some((round, _)) if round < decision.round => self.expect_decided(now),
                        // The leader's list is newer than the decision.
                        Some(_) => {}
                    }
                }
                _ => {}
            }
            self.events.push_back(Event::Turn(turn));
        }
        let mut has_messages = false;
        while let Some((network, message)) = self.replica.poll_transmit() {
            if let ToNetwork::Call(call) = &message
                && self.called.is_none_or(|(round, _)| round != call.round)
            {
                self.called = Some((call.round, now));
            }
            self.sessions.push(now, &network, message);
            has_messages = true;
        }
        self.events.extend(has_messages.then_some(Event::PollsDue));
    }

    /// Removes the state of all agents, and marks the networks of the last decision as expected.
    fn expect_decided_only(&mut self, now: Instant) {
        self.told = None;
        self.sessions.restart();
        self.expect_decided(now);
    }

    /// Marks the absent networks of the last decision as expected: each has the silence timeout to
    /// join again.
    fn expect_decided(&mut self, now: Instant) {
        let decision = self.replica.known();
        let placed = decision.iter().flat_map(|decision| &decision.placed).filter_map(|placed| placed.to);
        for (to, _) in placed {
            self.sessions.expect(now, &to.network);
        }
    }
}
