//! When a network's agent joins which broker, asks for messages and answers them.
//!
//! The agent sends one request at a time. It polls the broker that leads for messages, and answers
//! each in turn: a call with bids, a proposal with an assent. After a failure it pauses and joins
//! again; a broker that does not lead or does not answer has it try the next one. Each pause is
//! twice as long as the one before, up to [`BACKOFF`]'s limit.
//!
//! Leaves out: HTTP and the network's files (the `broker` room), the contents of bids and assents
//! ([`Agent`]). Contract: one `handle_*`, then `poll_*` to `None`, then
//! [`AgentSession::poll_timeout`]. Read [`AgentSession`], [`Ask`] and [`Failure`] first.

use crate::agent::{Agent, Estimates};
use crate::broker::ToNetwork;
use crate::designs;
use crate::messages::{Accepted, Assent, Bids, BidsReply, Call, Proposal};
use anabranch_sessions::{Backoff, Controllers, PeerSession};
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Time in which a broker answers a request.
pub const WITHIN: Duration = Duration::from_secs(20);
/// Time for which a poll waits for messages. The next poll tells the broker that the agent is up.
pub const WAIT: Duration = Duration::from_secs(8);
/// The same for an agent with several brokers. No other sign tells of a broker that stands still or
/// is cut off.
pub const WAIT_OF_SEVERAL: Duration = Duration::from_secs(3);
/// Time beyond [`WAIT_OF_SEVERAL`] in which one of several brokers answers a poll.
pub const WITHIN_OF_SEVERAL: Duration = Duration::from_secs(10);
/// Pauses before the agent joins again.
pub const BACKOFF: Backoff = Backoff::new(Duration::from_ms(100), Duration::from_secs(1));
/// Most bids of one message: far below the limit of a request.
const BIDS_PER_MESSAGE: usize = 100_000;
/// The agent's id for its brokers: one of them leads at a time.
const BROKER: PeerId = PeerId(0);

/// An action for the driver. Each is answered by [`AgentSession::handle_answer`], except
/// [`Ask::Estimate`].
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Join the broker: answered by [`Answer::Taken`].
    Join {
        /// Time for the answer.
        within: Duration,
    },
    /// Ask for the messages after this one: answered by [`Answer::Messages`].
    Messages {
        /// Number of the last message that was taken over.
        after: u64,
        /// Time for which the broker waits for a message.
        wait: Duration,
        /// Time for the answer beyond that.
        within: Duration,
    },
    /// Read the network's estimates: answered by [`AgentSession::handle_estimates`].
    Estimate,
    /// Send bids: answered by [`Answer::Bids`], within [`WITHIN`].
    Bids(Bids),
    /// Send an assent: answered by [`Answer::Taken`], within [`WITHIN`].
    Assent(Assent),
}

/// The broker's answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The broker has taken it.
    Taken,
    /// Messages, each with its number; none if none came in time.
    Messages(Vec<(u64, ToNetwork)>),
    /// Counts of the bids that were taken and refused.
    Bids(BidsReply),
}

/// Why an [`Ask`] has failed, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The broker does not know the session.
    NotJoined(String),
    /// Another broker leads.
    NotLeading(String),
    /// The broker does not answer, or not as it should.
    Away(String),
    /// The broker refuses this agent for good.
    Refused(String),
}

/// An event for the agent's log.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A broker has taken the agent.
    Joined,
    /// A broker is away; the flag is true for the first failure since the agent last joined.
    Away(String, bool),
    /// Another broker leads.
    NotLeading(String),
    /// The call's design is unknown here: the agent does not bid.
    UnknownDesign {
        /// The round.
        round: u64,
        /// The design's name.
        design: String,
    },
    /// A bid was refused.
    BidRefused {
        /// The round.
        round: u64,
        /// The broker's reason.
        reason: String,
    },
    /// A round was accepted.
    Accepted {
        /// The round.
        round: u64,
        /// Clients of all clusters.
        sessions: u64,
        /// Rate of all clients together.
        rate: BitRate,
    },
    /// The broker refuses this agent for good: the driver ends it.
    GivenUp(String),
}

/// A message that waits for the network's estimates.
#[derive(Clone, Debug)]
enum Question {
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
    Estimating(Question),
    /// Bids or an assent are on their way.
    Answering,
    Ended,
}

/// The machine. See the module.
#[derive(Clone, Debug)]
pub struct AgentSession {
    agent: Agent,
    controllers: Controllers,
    peer: PeerSession,
    /// Session of the last attempt to join. Each attempt has its own. A poll of an earlier session
    /// cannot acknowledge messages of a later one.
    session: u64,
    phase: Phase,
    /// Messages that are not answered yet.
    messages: VecDeque<ToNetwork>,
    /// Parts of a bid that are not sent yet, and the part that is on its way.
    parts: VecDeque<Bids>,
    round: u64,
    asks: u64,
    ask: Option<Ask>,
    events: VecDeque<Event>,
}

impl AgentSession {
    /// An agent of `brokers` brokers, which joins the first one at once. `random` is a number that
    /// no other agent can guess.
    ///
    /// Panics: without a broker, which callers refuse.
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

    /// Index of the broker that requests go to.
    pub const fn broker(&self) -> usize {
        self.controllers.current()
    }

    /// Session of the requests.
    pub const fn session(&self) -> u64 {
        self.session
    }

    /// Time has passed: after a pause the agent joins.
    pub fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Pausing { until } if until <= now) {
            let (_, within) = self.patience();
            self.phase = Phase::Joining;
            self.session = self.session.wrapping_add(1);
            self.ask(Ask::Join { within: Duration::from_ps(within.as_ps() / 2) });
        }
    }

    /// The answer to the ask with this number. An answer that is not awaited any more changes
    /// nothing.
    pub fn handle_answer(&mut self, now: Instant, number: u64, answer: Result<Answer, Failure>) {
        if number != self.asks {
            return;
        }
        match (&self.phase, answer) {
            (Phase::Pausing { .. } | Phase::Estimating(_) | Phase::Ended, _) => {}
            (_, Err(failure)) => self.fail(now, failure),
            (Phase::Joining, Ok(_)) => {
                self.controllers.handle_joined();
                // The broker's numbering is new with each join.
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

    /// The network's estimates, for the ask with this number.
    pub fn handle_estimates(&mut self, number: u64, estimates: &impl Estimates) {
        if number != self.asks {
            return;
        }
        let Phase::Estimating(question) = self.phase.clone() else { return };
        match question {
            Question::Call(call) => {
                let design = designs::by_name(&call.design).expect("it was known when the question was put");
                let bids = self.agent.handle_call(BROKER, &*design, estimates, &call);
                (self.round, self.parts) = (bids.round, parts(bids).into());
                self.go_on();
            }
            Question::Proposal(proposal) => {
                let assent = self.agent.handle_proposal(estimates, BROKER, &proposal);
                self.phase = Phase::Answering;
                self.ask(Ask::Assent(assent));
            }
        }
    }

    /// The next action, with the number by which it is answered. It goes to
    /// [`AgentSession::broker`].
    pub fn poll_ask(&mut self) -> Option<(u64, Ask)> {
        let ask = self.ask.take()?;
        Some((self.asks, ask))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`AgentSession::handle_timeout`].
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Pausing { until } => Some(until),
            _ => None,
        }
    }

    fn ask(&mut self, ask: Ask) {
        self.asks += 1;
        self.ask = Some(ask);
    }

    /// Time for which a poll waits, and time for its answer beyond that.
    const fn patience(&self) -> (Duration, Duration) {
        if self.controllers.count() > 1 { (WAIT_OF_SEVERAL, WITHIN_OF_SEVERAL) } else { (WAIT, WITHIN) }
    }

    /// Sends the next part of a bid, answers the next message, or polls for more.
    fn go_on(&mut self) {
        if let Some(part) = self.parts.pop_front() {
            self.phase = Phase::Answering;
            return self.ask(Ask::Bids(part));
        }
        while let Some(message) = self.messages.pop_front() {
            let question = match message {
                ToNetwork::Call(call) if designs::by_name(&call.design).is_none() => {
                    let (round, design) = (call.round, call.design.clone());
                    self.events.push_back(Event::UnknownDesign { round, design });
                    continue;
                }
                ToNetwork::Call(call) => Question::Call(call),
                ToNetwork::Proposal(proposal) => Question::Proposal(proposal),
                ToNetwork::Accepted(accepted) => {
                    self.agent.handle_accepted(BROKER, &accepted);
                    let (sessions, rate) = totals(&accepted);
                    self.events.push_back(Event::Accepted { round: accepted.round, sessions, rate });
                    continue;
                }
            };
            self.phase = Phase::Estimating(question);
            return self.ask(Ask::Estimate);
        }
        let (wait, within) = self.patience();
        self.phase = Phase::Polling;
        self.ask(Ask::Messages { after: self.peer.position().after, wait, within });
    }

    /// The session, or the attempt to join, has ended: the agent joins again after a pause, unless
    /// it may never join.
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

/// Clients of all clusters, and their rate together.
pub fn totals(accepted: &Accepted) -> (u64, BitRate) {
    let (sessions, bps) = accepted.clusters.iter().fold((0u64, 0u64), |(sessions, bps), cluster| {
        (sessions.saturating_add(cluster.sessions), bps.saturating_add(cluster.rate_bps))
    });
    (sessions, BitRate::bps(bps))
}

/// Splits bids into messages of bounded length. All but the last have more to follow.
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

    fn asked(session: &mut AgentSession) -> (u64, Ask) {
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
    fn an_agent_answers_each_message_and_acknowledges_it() {
        let mut session = joined(1);
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, Ask::Messages { after: 0, wait: WAIT, within: WITHIN });
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
        assert_eq!(ask, Ask::Estimate);
        session.handle_estimates(number, &Nothing);
        let (number, ask) = asked(&mut session);
        assert!(matches!(ask, Ask::Bids(Bids { round: 1, more: false, .. })), "{ask:?}");
        let reply = BidsReply { taken: 0, refused: 1, reasons: vec!["it is too late".to_owned()] };
        session.handle_answer(at(2), number, Ok(Answer::Bids(reply)));
        let refused = Event::BidRefused { round: 1, reason: "it is too late".to_owned() };
        assert_eq!(session.poll_event(), Some(refused));
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, Ask::Estimate);
        session.handle_estimates(number, &Nothing);
        let (number, ask) = asked(&mut session);
        assert!(matches!(ask, Ask::Assent(_)), "{ask:?}");
        session.handle_answer(at(3), number, Ok(Answer::Taken));
        assert!(matches!(asked(&mut session).1, Ask::Messages { after: 3, .. }));
    }

    #[test]
    fn after_a_failure_it_pauses_and_joins_the_next_broker() {
        let mut session = joined(2);
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, Ask::Messages { after: 0, wait: WAIT_OF_SEVERAL, within: WITHIN_OF_SEVERAL });
        let away = |line: &str| Err(Failure::Away(line.to_owned()));
        session.handle_answer(at(0), number, away("no answer"));
        assert_eq!(session.poll_event(), Some(Event::Away("no answer".to_owned(), true)));
        // A late answer changes nothing.
        session.handle_answer(at(1), number, Ok(Answer::Messages(vec![])));
        assert_eq!((session.broker(), session.poll_timeout()), (1, Some(at(100))));
        session.handle_timeout(at(99));
        assert_eq!(session.poll_ask(), None);
        session.handle_timeout(at(100));
        let (number, ask) = asked(&mut session);
        assert_eq!(ask, Ask::Join { within: Duration::from_secs(5) });
        session.handle_answer(at(100), number, away("no answer"));
        assert_eq!(session.poll_event(), Some(Event::Away("no answer".to_owned(), false)));
        assert_eq!((session.broker(), session.poll_timeout()), (0, Some(at(300))));
    }

    #[test]
    fn an_unknown_session_joins_the_same_broker_again() {
        let mut session = joined(2);
        let (number, _) = asked(&mut session);
        let messages =
            vec![(1, ToNetwork::Accepted(Accepted { round: 1, clusters: vec![], shares: vec![] }))];
        session.handle_answer(at(0), number, Ok(Answer::Messages(messages)));
        let (number, ask) = asked(&mut session);
        assert!(matches!(ask, Ask::Messages { after: 1, .. }));
        session.handle_answer(at(1), number, Err(Failure::NotJoined("join again".to_owned())));
        assert_eq!((session.broker(), session.poll_timeout()), (0, Some(at(101))));
        session.handle_timeout(at(101));
        let (number, _) = asked(&mut session);
        session.handle_answer(at(101), number, Ok(Answer::Taken));
        // The broker's mailbox is a new one.
        assert!(matches!(asked(&mut session).1, Ask::Messages { after: 0, .. }));
    }

    #[test]
    fn an_agent_that_is_refused_for_good_gives_up() {
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
