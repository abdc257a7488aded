//! The controller's side of the sessions with its peers: the present process of each peer, whether
//! the process is alive, and which messages are queued for it.
//!
//! A peer's process draws a session number when it starts, and joins with this number. Messages to
//! the process are numbered, and stay in a mailbox until the process acknowledges them: no message
//! is lost or delivered twice while the process runs. Batches from the process are numbered, too,
//! so that no batch counts twice. A process that is silent for [`SessionsConfig::silence_max`]
//! counts as failed, and has to join again. Before a second process replaces a peer's first
//! process, [`Sessions::probe`] asks the first process for a sign of life.
//!
//! Leaves out: the transport of requests, the contents of messages and batches, durability. Read
//! [`SessionsConfig`] and [`Sessions`] first.

use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Time for a sign of life of a probed process that has a waiting poll.
pub(crate) const PROBE_WAITING: Duration = Duration::from_secs(3);
/// Time for a sign of life of a probed process without a waiting poll, whose connection is probably
/// broken.
pub(crate) const PROBE_DISCONNECTED: Duration = Duration::from_secs(1);

/// Treatment of the mailbox of a process that falls silent, or joins again in the same session.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Rejoin {
    /// The mailbox is kept: the process continues its numbering.
    Resumes,
    /// The mailbox is dropped: each join begins with an empty mailbox.
    StartsAnew,
}

/// Treatment of a message to a full mailbox.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OverflowRule {
    /// The session ends: the peer has to join again, with an empty mailbox. For messages that must
    /// not be lost.
    EndsSession,
    /// The oldest message is dropped. For messages that newer messages replace.
    DropsOldest,
}

/// Configuration of sessions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SessionsConfig {
    /// Time without a sign of life after which a peer counts as failed.
    pub silence_max: Duration,
    /// Whether a peer counts as alive for as long as one of its polls waits for an answer.
    pub polls_keep_alive: bool,
    /// Treatment of the mailbox of a process that joins again.
    pub rejoin: Rejoin,
    /// Maximum number of messages in a mailbox.
    pub mailbox_max: usize,
    /// Treatment of a message beyond [`SessionsConfig::mailbox_max`].
    pub overflow: OverflowRule,
    /// Maximum number of messages in one answer. The next answer contains the following messages.
    pub answer_max: usize,
}

/// Error: the peer has to join, or join again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NotJoined;

/// The last message that a peer has received.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Numbering of the messages.
    pub numbering: u64,
    /// Number of the message; 0 before the first message.
    pub after: u64,
}

/// Answer to a process that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinReply {
    /// Numbering of the messages to the process.
    pub numbering: u64,
    /// Number of the last message that the process has acknowledged.
    pub after: u64,
    /// Whether the process replaces another process that was up.
    pub has_replaced: bool,
    /// Whether the peer was not up before, or has changed its process.
    pub is_news: bool,
}

/// A process that was asked for a sign of life. Read [`Sessions::probe`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Time for the sign of life.
    pub within: Duration,
    requests: u64,
}

/// Present result of a [`Probe`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The probed process has left, failed or been replaced.
    Gone,
    /// The process has given no sign of life yet.
    Silent,
    /// The process of this session has given a sign of life.
    Alive(u64),
}

/// State of a peer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Presence {
    #[default]
    Absent,
    /// The peer was up before this controller started, and has time to join again.
    Expected,
    Up,
}

/// The controller's record of a peer.
#[derive(Clone, Debug)]
struct Peer<M> {
    session: Option<u64>,
    presence: Presence,
    heard_at: Option<Instant>,
    mailbox: VecDeque<(u64, M)>,
    /// Distinguishes the numberings of messages, across restarts of the controller.
    numbering: u64,
    last_number: u64,
    acknowledged: u64,
    last_batch: u64,
    /// Number of requests from the present process.
    requests: u64,
    /// Number of probes of the present process. Each probe ends the waiting polls.
    probes: u64,
    /// Number of polls that wait for an answer.
    polls: usize,
}

impl<M> Default for Peer<M> {
    fn default() -> Self {
        Self {
            session: None,
            presence: Presence::Absent,
            heard_at: None,
            mailbox: VecDeque::new(),
            numbering: 0,
            last_number: 0,
            acknowledged: 0,
            last_batch: 0,
            requests: 0,
            probes: 0,
            polls: 0,
        }
    }
}

/// The controller's side of all sessions. The module's text defines the rules.
///
/// The caller reads [`Sessions::poll_timeout`] after each change.
#[derive(Clone, Debug)]
pub struct Sessions<Id, M> {
    config: SessionsConfig,
    peers: BTreeMap<Id, Peer<M>>,
    overflows: u64,
    messages: u64,
}

impl<Id: Clone + Ord, M: Clone> Sessions<Id, M> {
    /// Creates the sessions without any joined peer.
    pub const fn new(config: SessionsConfig) -> Self {
        Self { config, peers: BTreeMap::new(), overflows: 0, messages: 0 }
    }

    /// Removes all peers, as a restart does; the next instant may be earlier than the last one.
    /// Waiting polls are refused at their next call of [`Sessions::poll_messages`].
    pub fn restart(&mut self) {
        self.peers.retain(|_, peer| {
            peer.forget();
            peer.polls > 0
        });
    }

    /// Takes a process that joins, and replaces the peer's earlier process. `numbering` is used for
    /// a new mailbox, and must differ from all earlier numberings that the process may remember.
    pub fn handle_join(&mut self, now: Instant, id: &Id, session: u64, numbering: u64) -> JoinReply {
        let peer = self.peers.entry(id.clone()).or_default();
        let (is_up, is_other) = (peer.presence == Presence::Up, peer.session != Some(session));
        if is_other || self.config.rejoin == Rejoin::StartsAnew {
            peer.forget();
            (peer.session, peer.numbering) = (Some(session), numbering);
        }
        (peer.presence, peer.heard_at) = (Presence::Up, Some(now));
        JoinReply {
            numbering: peer.numbering,
            after: peer.acknowledged,
            has_replaced: is_up && is_other,
            is_news: !is_up || is_other,
        }
    }

    /// Takes the departure of the process of this session.
    ///
    /// Errors: `session` is not the peer's present session; nothing changes.
    pub fn handle_leave(&mut self, id: &Id, session: u64) -> Result<(), NotJoined> {
        if !self.is_joined(id, session) {
            return Err(NotJoined);
        }
        self.forget(id);
        Ok(())
    }

    /// Takes a request of the process of this session, which is a sign of life.
    ///
    /// Errors: the peer has to join.
    pub fn handle_request(&mut self, now: Instant, id: &Id, session: u64) -> Result<(), NotJoined> {
        self.hear(now, id, session).map(drop)
    }

    /// Takes a numbered batch. Returns true for the first copy of the batch.
    ///
    /// Errors: the peer has to join, and send the batch again.
    pub fn handle_batch(
        &mut self,
        now: Instant,
        id: &Id,
        session: u64,
        number: u64,
    ) -> Result<bool, NotJoined> {
        let peer = self.hear(now, id, session)?;
        peer.requests += 1;
        let is_new = number > peer.last_batch;
        peer.last_batch = peer.last_batch.max(number);
        Ok(is_new)
    }

    /// Asks the peer's process for a sign of life, because a process of another session wants to
    /// replace it. `None` if there is no process to probe.
    ///
    /// The driver then calls [`Sessions::poll_messages`] again for each waiting poll, and the poll
    /// is answered without messages. The next request of the process is the sign of life.
    pub fn probe(&mut self, id: &Id, session: u64) -> Option<Probe> {
        let peer = self.peers.get_mut(id)?;
        peer.other_than(session)?;
        peer.probes += 1;
        let within = if peer.polls == 0 { PROBE_DISCONNECTED } else { PROBE_WAITING };
        Some(Probe { within, requests: peer.requests })
    }

    /// Present result of a probe that was made for a process of this session.
    pub fn probe_result(&self, id: &Id, session: u64, probe: Probe) -> ProbeResult {
        let peer = self.peers.get(id);
        match peer.and_then(|peer| Some((peer.other_than(session)?, peer.requests))) {
            None => ProbeResult::Gone,
            Some((_, requests)) if requests == probe.requests => ProbeResult::Silent,
            Some((other, _)) => ProbeResult::Alive(other),
        }
    }

    /// Records that a poll of the peer waits, until [`Sessions::end_poll`].
    pub fn begin_poll(&mut self, id: &Id) {
        self.peers.entry(id.clone()).or_default().polls += 1;
    }

    /// Records that a poll of the peer was answered, or that its connection has ended.
    ///
    /// Panics: without a [`Sessions::begin_poll`] of the peer.
    pub fn end_poll(&mut self, now: Instant, id: &Id) {
        let peer = self.peers.get_mut(id).expect("a peer with a poll that waits is kept");
        peer.polls -= 1;
        if peer.polls > 0 || !self.config.polls_keep_alive {
            return;
        }
        if peer.heard_at.is_some() {
            peer.heard_at = Some(now);
        }
    }

    /// The answer to a poll for the messages after `position`. `None` while the poll has to wait.
    /// The poll acknowledges the messages up to `position`. `probes` is kept with the poll, and is
    /// `None` at the first call.
    ///
    /// Errors: the peer has to join, or the poll was sent before the peer's last join.
    pub fn poll_messages(
        &mut self,
        now: Instant,
        id: &Id,
        session: u64,
        position: Position,
        probes: &mut Option<u64>,
    ) -> Result<Option<Vec<(u64, M)>>, NotJoined> {
        let probes_now = self.peers.get(id).map_or(0, |peer| peer.probes);
        if probes.is_some_and(|probes| probes != probes_now) {
            // The poll ends without messages and is not counted. The peer's next request shows that
            // the peer is alive.
            return Ok(Some(Vec::new()));
        }
        let answer_max = self.config.answer_max;
        let peer = self.hear(now, id, session)?;
        // A poll of another numbering must acknowledge no message.
        if peer.numbering != position.numbering {
            return Err(NotJoined);
        }
        peer.requests += u64::from(probes.is_none());
        *probes = Some(peer.probes);
        peer.acknowledged = peer.acknowledged.max(position.after.min(peer.last_number));
        let acknowledged = peer.acknowledged;
        peer.mailbox.retain(|(number, _)| *number > acknowledged);
        let waiting = peer.mailbox.iter().take(answer_max).cloned().collect::<Vec<_>>();
        Ok((!waiting.is_empty()).then_some(waiting))
    }

    /// Puts a message into a peer's mailbox. Returns false if the mailbox was full and the session
    /// has ended.
    pub fn push(&mut self, now: Instant, id: &Id, message: M) -> bool {
        let peer = self.peers.entry(id.clone()).or_default();
        if peer.mailbox.len() >= self.config.mailbox_max {
            self.overflows += 1;
            match self.config.overflow {
                OverflowRule::EndsSession => {
                    peer.forget();
                    (peer.presence, peer.heard_at) = (Presence::Up, Some(now));
                    return false;
                }
                OverflowRule::DropsOldest => drop(peer.mailbox.pop_front()),
            }
        }
        peer.last_number += 1;
        peer.mailbox.push_back((peer.last_number, message));
        self.messages += 1;
        true
    }

    /// Expects a peer that was up before this controller started. The peer has
    /// [`SessionsConfig::silence_max`] to join. A peer that is up or expected is not changed.
    pub fn expect(&mut self, now: Instant, id: &Id) {
        let peer = self.peers.entry(id.clone()).or_default();
        if peer.presence == Presence::Absent {
            (peer.presence, peer.heard_at) = (Presence::Expected, Some(now));
        }
    }

    /// Records that a peer is up with another controller, and has no session with this controller.
    pub fn note_up_elsewhere(&mut self, now: Instant, id: &Id) {
        let peer = self.peers.entry(id.clone()).or_default();
        peer.forget();
        (peer.presence, peer.heard_at) = (Presence::Up, Some(now));
    }

    /// Ignores all silence until `now`, because the controller itself could not receive.
    pub fn excuse(&mut self, now: Instant) {
        for peer in self.peers.values_mut().filter(|peer| peer.presence != Presence::Absent) {
            peer.heard_at = Some(now);
        }
    }

    /// Ends sessions that are silent for too long. Returns their peers in order, each with its
    /// session; `None` for a peer without a session.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<(Id, Option<u64>)> {
        let is_silent =
            |(_, peer): &(&Id, &Peer<M>)| peer.silent_at(&self.config).is_some_and(|at| now >= at);
        let silent = self.peers.iter().filter(is_silent);
        let gone: Vec<(Id, Option<u64>)> = silent.map(|(id, peer)| (id.clone(), peer.session)).collect();
        for (id, _) in &gone {
            match self.config.rejoin {
                Rejoin::StartsAnew => self.forget(id),
                Rejoin::Resumes => {
                    let peer = self.peers.get_mut(id).expect("it was found above");
                    peer.presence = Presence::Absent;
                }
            }
        }
        gone
    }

    /// Time of the next call of [`Sessions::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.peers.values().filter_map(|peer| peer.silent_at(&self.config)).min()
    }

    /// Configuration of the sessions.
    pub const fn config(&self) -> SessionsConfig {
        self.config
    }

    /// The peer's present session. `None` unless the peer is up.
    pub fn session(&self, id: &Id) -> Option<u64> {
        self.peers.get(id).filter(|peer| peer.presence == Presence::Up)?.session
    }

    /// Whether this session is the peer's present session, and the peer is up.
    pub fn is_joined(&self, id: &Id, session: u64) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.is_joined(session))
    }

    /// Peers that are up or expected, in order. The flag is true for a peer that is up.
    pub fn peers(&self) -> impl Iterator<Item = (&Id, bool)> {
        let there = self.peers.iter().filter(|(_, peer)| peer.presence != Presence::Absent);
        there.map(|(id, peer)| (id, peer.presence == Presence::Up))
    }

    /// Number of messages in all mailboxes.
    pub fn waiting(&self) -> usize {
        self.peers.values().map(|peer| peer.mailbox.len()).sum()
    }

    /// Number of messages that were put into mailboxes since the start.
    pub const fn messages(&self) -> u64 {
        self.messages
    }

    /// Number of messages that met a full mailbox since the start.
    pub const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Records a sign of life of the peer's present process. A process that counts as failed must
    /// join again, so that the system is notified of its return.
    fn hear(&mut self, now: Instant, id: &Id, session: u64) -> Result<&mut Peer<M>, NotJoined> {
        let peer = self.peers.get_mut(id).filter(|peer| peer.is_joined(session)).ok_or(NotJoined)?;
        peer.heard_at = Some(now);
        Ok(peer)
    }

    fn forget(&mut self, id: &Id) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.forget();
            if peer.polls == 0 {
                self.peers.remove(id);
            }
        }
    }
}

impl<M> Peer<M> {
    /// Resets all fields except the count of polls, which have not ended yet.
    fn forget(&mut self) {
        *self = Self { polls: self.polls, ..Self::default() };
    }

    fn is_joined(&self, session: u64) -> bool {
        self.session == Some(session) && self.presence == Presence::Up
    }

    /// The present session. `None` if it equals `session` or the peer is not up.
    fn other_than(&self, session: u64) -> Option<u64> {
        self.session.filter(|other| self.presence == Presence::Up && *other != session)
    }

    /// Time at which the peer counts as failed unless another sign of life arrives.
    fn silent_at(&self, config: &SessionsConfig) -> Option<Instant> {
        let is_kept_alive = config.polls_keep_alive && self.polls > 0;
        let heard_at = self.heard_at.filter(|_| self.presence != Presence::Absent && !is_kept_alive)?;
        Some(heard_at + config.silence_max)
    }
}
