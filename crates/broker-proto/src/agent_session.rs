//! Session of a network's agent with its brokers: when it joins which broker, polls for messages
//! and answers them.
//!
//! The agent sends one request at a time. It polls the leading broker for messages, and answers
//! each message in turn: a call with bids, a proposal with an assent. After a failure the agent
//! pauses and joins again; it tries the next broker if the current one does not lead or does not
//! answer. Pauses double up to [`BACKOFF`]'s limit.
//!
//! Leaves out: HTTP and the network's files (the `broker` room), the contents of bids and assents
//! ([`Agent`]). Contract: one `handle_*`, then `poll_*` to `None`, then
//! [`AgentSession::poll_timeout`]. Read [`AgentSession`], [`AgentAction`] and [`Failure`] first.

use crate::agent::{Agent, Estimates};
use crate::broker::ToNetwork;
use crate::designs;
use crate::messages::{Assent, BidResult, Bids, BidsReply, Call, Proposal};
use anabranch_sessions::{Backoff, Controllers, PeerSession};
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Time limit of a broker's answer.
pub const WITHIN: Duration = Duration::from_secs(20);
/// Maximum wait of a poll for messages. Each poll also shows the broker that the agent is up.
pub const WAIT: Duration = Duration::from_secs(8);
/// Maximum wait of a poll in an agent with several brokers. It is shorter than [`WAIT`], because
/// only an unanswered poll reveals a broker that is stalled or cut off.
pub const WAIT_OF_SEVERAL: Duration = Duration::from_secs(3);
/// Time limit of an answer beyond [`WAIT_OF_SEVERAL`], in an agent with several brokers.
pub const WITHIN_OF_SEVERAL: Duration = Duration::from_secs(10);
/// Pauses before the agent joins again.
pub const BACKOFF: Backoff = Backoff::new(Duration::from_ms(100), Duration::from_secs(1));
/// Maximum bids in one message, far below the size limit of a request.
const BIDS_PER_MESSAGE: usize = 100_000;
/// The agent's one id for all its brokers, because only one broker leads at a time.
const BROKER: PeerId = PeerId(0);

/// An action for the driver. Each is answered by [`AgentSession::handle_answer`], except
/// [`AgentAction::Estimate`].
#[derive(Clone, Debug, PartialEq)]
pub enum AgentAction {
    /// Join the broker: answered by [`Answer::Taken`].
    Join {
        /// Time limit of the answer.
        within: Duration,
    },
    /// Request the messages after a number: answered by [`Answer::Messages`].
    Messages {
        /// Number of the last message received.
        after: u64,
        /// Time for which the broker waits for a message.
        wait: Duration,
        /// Time limit of the answer beyond `wait`.
        within: Duration,
    },
    /// Read the network's estimates: answered by [`AgentSession::handle_estimates`].
    Estimate,
    /// Send bids: answered by [`Answer::Bids`], within [`WITHIN`].
    Bids(Bids),
    /// Send an assent: answered by [`Answer::Taken`], within [`WITHIN`].
    Assent(Assent),
}

/// The broker's answer to an [`AgentAction`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The broker has accepted the request.
    Taken,
    /// Messages, each with its number; empty if none arrived in time.
    Messages(Vec<(u64, ToNetwork)>),
    /// Counts of accepted and refused bids.
    Bids(BidsReply),
}

/// Reason for the failure of an [`AgentAction`], with a message of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The broker does not know the session.
    NotJoined(String),
    /// Another broker leads.
    NotLeading(String),
    /// The broker is unreachable, or its answer is malformed.
    Away(String),
    /// The broker refuses this agent for good.
    Refused(String),
}

/// An event for the agent's log.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A broker has accepted the agent.
    Joined,
    /// A broker is unreachable; the flag is true for the first failure since the agent last joined.
    Away(String, bool),
    /// Another broker leads.
    NotLeading(String),
    /// The agent does not know the call's design, and does not bid.
    UnknownDesign {
        /// Number of the round.
        round: u64,
        /// Name of the design.
        design: String,
    },
    /// A bid was refused.
    BidRefused {
        /// Number of the round.
        round: u64,
        /// The broker's reason.
        reason: String,
    },
    /// A round was accepted.
    Accepted {
        /// Number of the round.
        round: u64,
        /// Number of clients on all clusters.
        sessions: u64,
        /// Total rate of these clients.
        rate: BitRate,
    },
    /// The broker refuses this agent for good: the driver ends the agent.
    GivenUp(String),
}

/// A message that waits for the network's estimates.
#[derive(Clone, Debug)]
enum PendingEstimate {
    Call(Arc<Call>),
    Proposal(Proposal),
}

#[derive(Clone, Debug)]
enum Phase {
    Pausing {
        until: Instant,
    },
    Joining,
    Polling,
    Estimating(PendingEstimate),
    /// Bids or an assent are in flight.
    Answering,
    Ended,
}

/// The session's state machine.
#[derive(Clone, Debug)]
pub struct AgentSession {
    agent: Agent,
    controllers: Controllers,
    peer: PeerSession,
    /// Session number of the last attempt to join. Each attempt has a new number, so a poll of an
    /// earlier session cannot acknowledge messages of a later one.
    session: u64,
    phase: Phase,
    /// Messages not answered yet.
    messages: VecDeque<ToNetwork>,
    /// Unsent parts of a bid, and the part in flight.
    parts: VecDeque<Bids>,
    round: u64,
    asks: u64,
    ask: Option<AgentAction>,
    events: VecDeque<Event>,
}

impl AgentSession {
    /// Creates a session for an agent of `brokers` brokers, which joins the first one at once.
    /// `random` must be unpredictable to other agents.
    ///
    /// Panics: if `brokers` is 0, which callers refuse.
    pub fn new(now: Instant, brokers: usize, random: u64) -> Self {
        let mut session = Self {
            session: random,
            agent: Agent::default(),
            controllers: Controllers::new(brokers, BACKOFF),
            peer: PeerSession::default(),
            phase: Phase::Pausing { until: now },
            messages: VecDeque::new(),
            parts: VecDeque::new(),
            round: 0,
            asks: 0,
            ask: None,
            events: VecDeque::new(),
        };
        session.handle_timeout(now);
        session
    }

    /// Index of the broker that receives requests.
    pub const fn broker(&self) -> usize {
        self.controllers.current()
    }

    /// Session number of the requests.
    pub const fn session(&self) -> u64 {
        self.session
    }

    /// Handles a timeout: after a pause the agent joins.
    pub fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Pausing { until } if until <= now) {
            let (_, within) = self.patience();
            self.phase = Phase::Joining;
            self.session = self.session.wrapping_add(1);
            self.ask(AgentAction::Join { within: Duration::from_ps(within.as_ps() / 2) });
        }
    }

    /// Handles the answer to the action with this number. An answer to an earlier action is
    /// ignored.
    pub fn handle_answer(&mut self, now: Instant, number: u64, answer: Result<Answer, Failure>) {
        if number != self.asks {
            return;
        }
        match (&self.phase, answer) {
            (Phase::Pausing { .. } | Phase::Estimating(_) | Phase::Ended, _) => {}
            (_, Err(failure)) => self.fail(now, failure),
            (Phase::Joining, Ok(_)) => {
                self.controllers.handle_joined();
                // The broker numbers messages from the start after each join.
                self.peer.handle_joined(self.peer.joins() + 1, 0);
                self.events.push_back(Event::Joined);
                self.go_on();
            }
            (Phase::Polling, Ok(Answer::Messages(messages))) => {
                let new = self.peer.handle_messages(self.peer.joins(), messages);
                self.messages.extend(new.into_iter().flatten());
                self.go_on();
            }
            (Phase::Answering, Ok(answer)) => {
                if let Answer::Bids(BidsReply { reasons, .. }) = answer {
                    let refused = |reason| Event::BidRefused { round: self.round, reason };
                    self.events.extend(reasons.into_iter().map(refused));
                }
                self.go_on();
            }
            (Phase::Polling, Ok(_)) => self.go_on(),
        }
    }

    /// Handles the network's estimates, for the action with this number.
    pub fn handle_estimates(&mut self, number: u64, estimates: &impl Estimates) {
        if number != self.asks {
            return;
        }
        let Phase::Estimating(question) = self.phase.clone() else { return };
        match question {
            PendingEstimate::Call(call) => {
                let design = designs::by_name(&call.design).expect("it was known when the question was put");
                let bids = self.agent.handle_call(BROKER, &*design, estimates, &call);
                (self.round, self.parts) = (bids.round, parts(bids).into());
                self.go_on();
            }
            PendingEstimate::Proposal(proposal) => {
                let assent = self.agent.handle_proposal(estimates, BROKER, &proposal);
                self.phase = Phase::Answering;
                self.ask(AgentAction::Assent(assent));
            }
        }
    }

    /// Returns the next action, and the number that its answer must name. The action is for the
    /// broker [`AgentSession::broker`].
    pub fn poll_ask(&mut self) -> Option<(u64, AgentAction)> {
        let ask = self.ask.take()?;
        Some((self.asks, ask))
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Time of the next [`AgentSession::handle_timeout`].
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Pausing { until } => Some(until),
            _ => None,
        }
    }

    fn ask(&mut self, ask: AgentAction) {
        self.asks += 1;
        self.ask = Some(ask);
    }

    /// Wait of a poll, and time limit of its answer beyond that.
    const fn patience(&self) -> (Duration, Duration) {
        if self.controllers.count() > 1 { (WAIT_OF_SEVERAL, WITHIN_OF_SEVERAL) } else { (WAIT, WITHIN) }
    }

    /// Sends the next part of the bids, answers the next message, or polls again.
    fn go_on(&mut self) {
        if let Some(part) = self.parts.pop_front() {
            self.phase = Phase::Answering;
            return self.ask(AgentAction::Bids(part));
        }
        while let Some(message) = self.messages.pop_front() {
            let question = match message {
                ToNetwork::Call(call) if designs::by_name(&call.design).is_none() => {
                    let (round, design) = (call.round, call.design.clone());
                    self.events.push_back(Event::UnknownDesign { round, design });
                    continue;
                }
                ToNetwork::Call(call) => PendingEstimate::Call(call),
                ToNetwork::Proposal(proposal) => PendingEstimate::Proposal(proposal),
                ToNetwork::Accepted(accepted) => {
                    self.agent.handle_accepted(BROKER, &accepted);
                    let (sessions, rate) = totals(&accepted);
                    self.events.push_back(Event::Accepted { round: accepted.round, sessions, rate });
                    continue;
                }
            };
            self.phase = Phase::Estimating(question);
            return self.ask(AgentAction::Estimate);
        }
        let (wait, within) = self.patience();
        self.phase = Phase::Polling;
        self.ask(AgentAction::Messages { after: self.peer.position().after, wait, within });
    }

    /// Ends the session, or the attempt to join. After a pause the agent joins again, unless the
    /// broker refuses it for good.
    fn fail(&mut self, now: Instant, failure: Failure) {
        self.messages.clear();
        self.parts.clear();
        let reason = match &failure {
            Failure::NotJoined(_) => anabranch_sessions::Failure::NotJoined,
            Failure::NotLeading(_) => anabranch_sessions::Failure::NotLeading,
            Failure::Away(_) => anabranch_sessions::Failure::Away,
            Failure::Refused(line) => {
                self.events.push_back(Event::GivenUp(line.clone()));
                self.phase = Phase::Ended;
                return;
            }
        };
        let retry = self.controllers.handle_failure(reason);
        match failure {
            Failure::Away(line) => self.events.push_back(Event::Away(line, retry.is_first_away)),
            Failure::NotLeading(line) => self.events.push_back(Event::NotLeading(line)),
            Failure::NotJoined(_) | Failure::Refused(_) => {}
        }
        self.peer.handle_not_joined(self.peer.joins());
        self.phase = Phase::Pausing { until: now + retry.pause };
    }
}

/// Number of clients on all clusters, and their total rate.
pub fn totals(accepted: &BidResult) -> (u64, BitRate) {
    let (sessions, bps) = accepted.clusters.iter().fold((0u64, 0u64), |(sessions, bps), cluster| {
        (sessions.saturating_add(cluster.sessions), bps.saturating_add(cluster.rate_bps))
    });
    (sessions, BitRate::bps(bps))
}

/// Splits bids into messages of bounded length. Every part but the last announces further parts.
pub fn parts(bids: Bids) -> Vec<Bids> {
    let mut parts = vec![Bids { round: bids.round, clusters: bids.clusters, ..Bids::default() }];
    let mut count = 0;
    for share in bids.shares {
        if count + share.clusters.len() > BIDS_PER_MESSAGE && count > 0 {
            count = 0;
            parts.push(Bids { round: bids.round, ..Bids::default() });
        }
        count += share.clusters.len();
        let last = parts.len() - 1;
        parts[last].shares.push(share);
    }
    let last = parts.len() - 1;
    parts[..last].iter_mut().for_each(|part| part.more = true);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::ShareBids;
    use crate::world::{Offer, Site};

    struct Nothing;

    impl Estimates for Nothing {
        fn site(&self, _: u32) -> Option<Site> {
            None
        }
        fn considered(&self, _: &str, _: &str) -> Vec<Offer> {
            Vec::new()
        }
        fn all(&self, _: &str, _: &str) -> Vec<Offer> {
            Vec::new()
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }

    fn asked(session: &mut AgentSession) -> (u64, AgentAction) {
        session.poll_ask().expect("something is to be done")
    }

    fn joined(brokers: usize) -> AgentSession {
        let mut session = AgentSession::new(at(0), brokers, 7);
        let (number, _) = asked(&mut session);
        session.handle_answer(at(0), number, Ok(Answer::Taken));
        assert_eq!(session.poll_event(), Some(Event::Joined));
        session
    }

    #[test]
    fn agent_answers_and_acknowledges_each_message() {
        let mut session = joined(1);
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, AgentAction::Messages { after: 0, wait: WAIT, within: WITHIN });
        let call = |design: &str| Arc::new(Call { round: 1, design: design.to_owned(), shares: vec![] });
        let proposal = Proposal { round: 1, attempt: 1, clusters: vec![] };
        let messages = vec![
            (1, ToNetwork::Call(call("no such design"))),
            (2, ToNetwork::Call(call("marketplace"))),
            (3, ToNetwork::Proposal(proposal)),
        ];
        session.handle_answer(at(1), number, Ok(Answer::Messages(messages)));
        let unknown = Event::UnknownDesign { round: 1, design: "no such design".to_owned() };
        assert_eq!(session.poll_event(), Some(unknown));
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, AgentAction::Estimate);
        session.handle_estimates(number, &Nothing);
        let (number, ask) = asked(&mut session);
        assert!(matches!(ask, AgentAction::Bids(Bids { round: 1, more: false, .. })), "{ask:?}");
        let reply = BidsReply { taken: 0, refused: 1, reasons: vec!["it is too late".to_owned()] };
        session.handle_answer(at(2), number, Ok(Answer::Bids(reply)));
        let refused = Event::BidRefused { round: 1, reason: "it is too late".to_owned() };
        assert_eq!(session.poll_event(), Some(refused));
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, AgentAction::Estimate);
        session.handle_estimates(number, &Nothing);
        let (number, ask) = asked(&mut session);
        assert!(matches!(ask, AgentAction::Assent(_)), "{ask:?}");
        session.handle_answer(at(3), number, Ok(Answer::Taken));
        assert!(matches!(asked(&mut session).1, AgentAction::Messages { after: 3, .. }));
    }

    #[test]
    fn agent_pauses_after_failure_then_joins_the_next_broker() {
        let mut session = joined(2);
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, AgentAction::Messages { after: 0, wait: WAIT_OF_SEVERAL, within: WITHIN_OF_SEVERAL });
        let away = |line: &str| Err(Failure::Away(line.to_owned()));
        session.handle_answer(at(0), number, away("no answer"));
        assert_eq!(session.poll_event(), Some(Event::Away("no answer".to_owned(), true)));
        // A late answer is ignored.
        session.handle_answer(at(1), number, Ok(Answer::Messages(vec![])));
        assert_eq!((session.broker(), session.poll_timeout()), (1, Some(at(100))));
        session.handle_timeout(at(99));
        assert_eq!(session.poll_ask(), None);
        session.handle_timeout(at(100));
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, AgentAction::Join { within: Duration::from_secs(5) });
        session.handle_answer(at(100), number, away("no answer"));
        assert_eq!(session.poll_event(), Some(Event::Away("no answer".to_owned(), false)));
        assert_eq!((session.broker(), session.poll_timeout()), (0, Some(at(300))));
    }

    #[test]
    fn agent_with_unknown_session_rejoins_the_same_broker() {
        let mut session = joined(2);
        let (number, _) = asked(&mut session);
        let messages =
            vec![(1, ToNetwork::Accepted(BidResult { round: 1, clusters: vec![], shares: vec![] }))];
        session.handle_answer(at(0), number, Ok(Answer::Messages(messages)));
        let (number, ask) = asked(&mut session);
        assert!(matches!(ask, AgentAction::Messages { after: 1, .. }));
        session.handle_answer(at(1), number, Err(Failure::NotJoined("join again".to_owned())));
        assert_eq!((session.broker(), session.poll_timeout()), (0, Some(at(101))));
        session.handle_timeout(at(101));
        let (number, _) = asked(&mut session);
        session.handle_answer(at(101), number, Ok(Answer::Taken));
        // The new join has a new mailbox, whose messages are numbered from 1.
        assert!(matches!(asked(&mut session).1, AgentAction::Messages { after: 0, .. }));
    }

    #[test]
    fn permanently_refused_agent_gives_up() {
        let mut session = AgentSession::new(at(0), 2, 7);
        let (number, _) = asked(&mut session);
        session.handle_answer(at(0), number, Err(Failure::Refused("no contract".to_owned())));
        assert_eq!(session.poll_event(), Some(Event::GivenUp("no contract".to_owned())));
        assert_eq!((session.poll_ask(), session.poll_timeout()), (None, None));
    }

    #[test]
    fn long_bids_are_split_into_parts() {
        let share = |share| ShareBids { share, clusters: vec![(1, 1.0); 40_000] };
        let bids = Bids { round: 3, shares: (0..5).map(share).collect(), ..Bids::default() };
        let parts = parts(bids);
        assert_eq!(parts.iter().map(|part| part.shares.len()).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(parts.iter().map(|part| part.more).collect::<Vec<_>>(), [true, true, false]);
    }
}
