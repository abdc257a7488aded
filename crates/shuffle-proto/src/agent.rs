//! A host's agent as a machine: when it joins, looks at flows and reports, and which limits are to stand.
//!
//! The machine asks its driver for actions ([`Ask`]), and is told each result ([`Answer`], or a [`Failure`]). While the coordinator is
//! away, no flow has a limit: after [`SILENCE_MAX`] without a word of the coordinator all are lifted, and when it is back the agent
//! joins anew with all flows. After any failure between the two they begin anew likewise.
//!
//! Leaves out: sockets and clocks (the `shuffle` room), the reports ([`crate::book`]), limits that stand
//! ([`crate::enforcement`]). Read [`Agent`] and [`Ask`] first.

use crate::announcement::Announcement;
use crate::book::{AnnounceError, Book, Seen};
use crate::control::{FlowKey, JoinRequest, Limit, ReportsRequest};
use crate::coordinator::{HOST_FLOWS_MAX, Settings};
use crate::enforcement::Order;
use crate::rules::Rules;
use anabranch_sessions::{Backoff, Controllers};
use anabranch_units::{BitRate, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// After so long without a word of the coordinator, limits are lifted.
pub const SILENCE_MAX: Duration = Duration::from_secs(1);
/// How long one request may take.
pub const REPLY_MAX: Duration = SILENCE_MAX;
/// How often flows are looked at; sooner where one should be through, but no sooner than [`LOOK_SOON`], and later where looks take
/// more than one part in [`LOOKS_MIN`] of the time.
const LOOK_EVERY: Duration = Duration::from_ms(100);
const LOOK_SOON: Duration = Duration::from_ms(5);
const LOOKS_MIN: u64 = 20;
/// No later than this unless looks take half of the time: flows of which nothing is heard for twice as long count as idle.
const LOOK_LATE: Duration = Duration::from_ms(250);
/// The agent says something at least this often.
pub const SAY_EVERY: Duration = Duration::from_ms(200);
/// How long one request waits for limits.
pub const LIMITS_WAIT: Duration = Duration::from_secs(10);
/// Pauses before joining is tried again.
const BACKOFF: Backoff = Backoff::new(Duration::from_ms(50), Duration::from_ms(500));
/// After a session has begun, how long limits of the one before stand that were not said again.
pub const OLD_LIMITS: Duration = SILENCE_MAX;
/// The most connections that nobody has announced which a listing has, for rules.
pub const CONNECTIONS_MAX: usize = 2 * HOST_FLOWS_MAX;
/// Flows of one request: with these, one stays below the 64 KiB from which on requests take turns.
pub const FLOWS_TOGETHER: usize = 100;

/// What an agent knows of its host from the start.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The addresses that flows to its host have; none is for the coordinator to say.
    pub addresses: Vec<IpAddr>,
    /// All addresses of its host's network.
    pub addresses_here: Vec<IpAddr>,
    /// What its host's link has for data, out and in.
    pub link_rate: BitRate,
    /// Which flows are announced by themselves.
    pub rules: Rules,
    /// How flows are told apart, as the coordinator does.
    pub settings: Settings,
    /// Whether nothing goes wrong, and requests keep their order: then no request waits for the answer to the one before, nobody
    /// says that it is still there, and whoever runs the agent lists connections when it likes. For simulations.
    pub is_ideal: bool,
}

impl AgentConfig {
    /// A host with a link of this rate, no rules, and addresses that are for the coordinator to say.
    pub fn new(link_rate: BitRate) -> Self {
        let (addresses, addresses_here) = (Vec::new(), Vec::new());
        let (rules, settings) = (Rules::default(), Settings::default());
        Self { addresses, addresses_here, link_rate, rules, settings, is_ideal: false }
    }
}

/// What an agent wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Find what joining needs: answered by [`Answer::Prepared`], within [`REPLY_MAX`].
    Prepare,
    /// List this host's connections: answered by [`Answer::Listing`].
    Look,
    /// Tell the coordinator that this agent is there: answered by [`Answer::Taken`], within [`REPLY_MAX`].
    Join(JoinRequest),
    /// Tell the coordinator what has become of flows: answered by [`Answer::Taken`], within [`REPLY_MAX`].
    Report(ReportsRequest),
    /// Ask the coordinator for limits: answered by [`Answer::Limits`], within [`LIMITS_WAIT`] and [`REPLY_MAX`].
    Limits {
        /// The agent's session.
        session: u64,
    },
    /// Tell the coordinator that this agent goes, once limits are lifted: no answer is needed.
    Leave {
        /// The agent's session.
        session: u64,
    },
}

/// What came of an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All that joining needs.
    Prepared {
        /// Where the coordinator is; `None` where that could not be found, and it is where it was.
        coordinator: Option<Vec<SocketAddr>>,
        /// A number that nobody can guess.
        session: u64,
    },
    /// This host's connections.
    Listing {
        /// In the order of flows; the announced ones are among them.
        flows: Vec<Seen>,
        /// How many others there are.
        left_out: u64,
    },
    /// The coordinator has heard it.
    Taken,
    /// Limits that have changed; none if none did in time.
    Limits(Vec<Limit>),
}

/// Why nothing came of an [`Ask`]; in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The coordinator does not know the agent's session.
    NotJoined(String),
    /// The request cannot be: to join is given up after it.
    Refused(String),
    /// It may be done later.
    Passing(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotJoined(line) | Self::Refused(line) | Self::Passing(line)) = self;
        f.write_str(line)
    }
}

/// What an agent gives out beside asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What is to become of limits; in order.
    Order(Order),
    /// Something to be said to people.
    Notice(Notice),
    /// The coordinator never lets this agent join: why, in one line. There is nothing more to do but to end.
    GivenUp(String),
}

/// What happens to an agent, for its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It has joined.
    Joined,
    /// The coordinator is back after it was away.
    Back,
    /// The coordinator wants it to join again.
    Rejoins(String),
    /// The coordinator is away; said once, until it is back.
    Away(String),
    /// It still is.
    StillAway(String),
    /// All limits are lifted, as the coordinator says nothing.
    Silent,
    /// Connections cannot be listed.
    Unlisted(String),
    /// So many connections are looked at by no rule. Said when it begins.
    Cut(u64),
    /// There are more flows than may be announced. Said when it begins.
    Full,
}

/// What is said when limits are lifted as the coordinator says nothing.
const SILENT: &str = "the coordinator is silent";

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined => f.write_str("joined the coordinator"),
            Self::Back => f.write_str("the coordinator is back"),
            Self::Away(error) => write!(f, "{error}; trying on"),
            Self::Rejoins(error) | Self::StillAway(error) => f.write_str(error),
            Self::Silent => write!(f, "{SILENT}: no flow has a limit until it is back"),
            Self::Unlisted(error) => write!(f, "flows cannot be listed: {error}"),
            Self::Cut(more) => write!(
                f,
                "more than {CONNECTIONS_MAX} connections that nobody has announced: no rule looks at {more} of them"
            ),
            Self::Full => write!(f, "more than {HOST_FLOWS_MAX} flows: the others pass without limits"),
        }
    }
}

/// A host's agent.
///
/// After any `handle_*`, [`Agent::poll_event`] and [`Agent::poll_ask`] are drained until `None`, then [`Agent::poll_timeout`] is read.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    book: Book,
    /// Where the coordinator was last found: connections with it are for no rule.
    coordinator: Vec<SocketAddr>,
    now: Instant,
    phase: Phase,
    /// The last session that the coordinator has taken.
    last_session: Option<u64>,
    /// When the coordinator last answered; `None` once limits are lifted for its silence.
    heard_at: Option<Instant>,
    /// When limits are lifted that were set before the last session, and not in it; `None` if there are none. Another session that
    /// begins meanwhile does not put it off.
    lift_old_at: Option<Instant>,
    /// The only controller is the coordinator.
    controllers: Controllers,
    is_cut: bool,
    is_full: bool,
    /// Flows that were announced since the listing that is awaited was asked for, as the kernel described them then: it may lack
    /// them.
    newer: BTreeMap<FlowKey, Seen>,
    asks_so_far: u64,
    asks: VecDeque<(u64, Ask)>,
    events: VecDeque<Event>,
}

/// How far the agent is. Numbers are those of asks that are not answered yet.
#[derive(Debug)]
enum Phase {
    Pausing { until: Instant },
    Preparing { asked: u64 },
    Looking { asked: u64, session: u64 },
    Joining { asked: u64, session: u64 },
    Joined(Session),
    Ended { asked: Option<u64> },
}

#[derive(Debug)]
struct Session {
    number: u64,
    report: Option<u64>,
    limits: u64,
    look: Option<u64>,
    looked_at: Instant,
    look_took: Duration,
    said_at: Instant,
    /// Whether there was something to be said when that was last asked: it is said to its end before flows are looked at.
    is_saying: bool,
}

impl Agent {
    /// An agent that is about to join.
    pub fn new(now: Instant, config: AgentConfig) -> Self {
        Self {
            book: Book::new(config.settings),
            config,
            coordinator: Vec::new(),
            now,
            phase: Phase::Pausing { until: now },
            last_session: None,
            heard_at: None,
            lift_old_at: None,
            controllers: Controllers::new(1, BACKOFF),
            is_cut: false,
            is_full: false,
            newer: BTreeMap::new(),
            asks_so_far: 0,
            asks: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// A program says something of its flow, which the kernel describes so.
    ///
    /// Errors: see [`AnnounceError`].
    pub fn handle_announcement(
        &mut self,
        now: Instant,
        said: &Announcement,
        seen: &Seen,
    ) -> Result<(), AnnounceError> {
        self.advance(now);
        match said {
            Announcement::Flow { coflow, size_bytes, .. } => {
                self.book.announce(seen, coflow, *size_bytes)?;
                let looks = match &self.phase {
                    Phase::Looking { .. } => true,
                    Phase::Joined(session) => session.look.is_some(),
                    _ => false,
                };
                if looks {
                    self.newer.insert(seen.flow, *seen);
                }
                Ok(())
            }
            Announcement::Ended { coflow, .. } => {
                self.book.finish(seen, coflow.as_deref());
                Ok(())
            }
        }
    }

    /// These are the host's connections now, in the order of flows, and so many others were left out.
    pub fn handle_listing(&mut self, now: Instant, flows: &[Seen], left_out: u64) {
        self.advance(now);
        let is_cut = left_out > 0;
        if !std::mem::replace(&mut self.is_cut, is_cut) && is_cut {
            self.events.push_back(Event::Notice(Notice::Cut(left_out)));
        }
        let Self { book, config, coordinator, .. } = self;
        book.observe(flows, |key| {
            let is_control = is_control(key, coordinator, &config.addresses_here);
            if is_control { None } else { config.rules.coflow(key) }
        });
        let (is_full, flows) = (book.take_full(), book.flows());
        if is_full {
            if !std::mem::replace(&mut self.is_full, true) {
                self.events.push_back(Event::Notice(Notice::Full));
            }
        } else if flows.len() < HOST_FLOWS_MAX {
            self.is_full = false;
        }
        self.events.push_back(Event::Order(Order::Keep(flows)));
    }

    /// A flow is over, whatever its connection does.
    pub fn handle_over(&mut self, now: Instant, flow: FlowKey) {
        self.advance(now);
        self.book.end(flow);
    }

    /// What came of the ask with this number. Nothing changes if it is not awaited any more.
    pub fn handle_answer(&mut self, now: Instant, number: u64, answer: Result<Answer, Failure>) {
        self.advance(now);
        match &self.phase {
            Phase::Preparing { asked } if *asked == number => match answer {
                Ok(Answer::Prepared { coordinator, session }) => {
                    self.coordinator = coordinator.unwrap_or_else(|| std::mem::take(&mut self.coordinator));
                    self.phase = Phase::Looking { asked: self.ask(Ask::Look), session };
                }
                Ok(_) => {}
                Err(failure) => self.fail(failure),
            },
            Phase::Looking { asked, session } if *asked == number => {
                let session = *session;
                self.take_listing(answer);
                self.join(session);
            }
            Phase::Joining { asked, session } if *asked == number => {
                let session = *session;
                match answer {
                    Ok(_) => self.begin(session),
                    Err(failure) => self.fail(failure),
                }
            }
            Phase::Joined(_) => self.handle_answer_in_session(number, answer),
            _ => {}
        }
    }

    fn handle_answer_in_session(&mut self, number: u64, answer: Result<Answer, Failure>) {
        // Limits were lifted meanwhile, and the coordinator does not know.
        let is_silent = self.heard_at.is_none() && !self.config.is_ideal;
        let Phase::Joined(session) = &mut self.phase else { return };
        if session.look.take_if(|asked| *asked == number).is_some() {
            session.look_took = self.now.saturating_since(session.looked_at);
            self.take_listing(answer);
        } else if session.report.take_if(|asked| *asked == number).is_some() {
            match answer {
                Ok(_) if is_silent => self.fail(Failure::Passing(SILENT.to_owned())),
                Ok(_) => self.heard_at = Some(self.now),
                Err(failure) => self.fail(failure),
            }
        } else if session.limits == number {
            match answer {
                Ok(_) if is_silent => self.fail(Failure::Passing(SILENT.to_owned())),
                Ok(Answer::Limits(limits)) => {
                    let session = session.number;
                    self.take_limits(&limits);
                    let asked = self.ask(Ask::Limits { session });
                    if let Phase::Joined(session) = &mut self.phase {
                        session.limits = asked;
                    }
                }
                Ok(_) => {}
                Err(failure) => self.fail(failure),
            }
        }
    }

    /// The agent is to end: limits are lifted, and the coordinator is told.
    pub fn handle_end(&mut self, now: Instant) {
        self.advance(now);
        if matches!(self.phase, Phase::Ended { asked: Some(_) }) {
            return;
        }
        (self.heard_at, self.lift_old_at) = (None, None);
        self.asks.clear();
        self.events.push_back(Event::Order(Order::LiftAll));
        // Without this the agent counts as gone a second later.
        let asked = self.last_session.map(|session| self.ask(Ask::Leave { session }));
        self.phase = Phase::Ended { asked };
    }

    /// What is to be done next, with the number by which it is answered.
    pub fn poll_ask(&mut self) -> Option<(u64, Ask)> {
        if self.asks.is_empty() {
            self.go_on();
        }
        self.asks.pop_front()
    }

    /// Whether somebody still waits for the answer to the ask with this number; whatever else is under way may be given up.
    pub fn is_awaited(&self, number: u64) -> bool {
        match &self.phase {
            Phase::Pausing { .. } => false,
            Phase::Preparing { asked } | Phase::Looking { asked, .. } | Phase::Joining { asked, .. } => {
                *asked == number
            }
            Phase::Joined(session) => {
                session.limits == number
                    || session.report == Some(number)
                    || session.look == Some(number)
                    || self.config.is_ideal
            }
            Phase::Ended { asked } => *asked == Some(number),
        }
    }

    /// What has happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Agent::handle_timeout`] is to be called although nothing has happened.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silent_at = self.heard_at.map(|heard_at| heard_at + SILENCE_MAX);
        let lift_at = silent_at.into_iter().chain(self.lift_old_at).filter(|_| !self.config.is_ideal).min();
        let next = match &self.phase {
            Phase::Pausing { until } => Some(*until),
            Phase::Joined(session) if !self.config.is_ideal => {
                let is_free = session.report.is_none() && session.look.is_none();
                let (look_at, say_at) = (self.look_at(session), session.said_at + SAY_EVERY);
                is_free.then(|| look_at.min(say_at))
            }
            _ => None,
        };
        next.into_iter().chain(lift_at).min()
    }

    /// Flows that were announced and whose connections are there still, for all that is known: a listing has them.
    pub fn connections(&self) -> BTreeSet<FlowKey> {
        self.book.connections()
    }

    /// Whether the coordinator has taken this agent, for all that is known.
    pub const fn is_joined(&self) -> bool {
        matches!(self.phase, Phase::Joined(_))
    }

    fn ask(&mut self, ask: Ask) -> u64 {
        if ask == Ask::Look {
            self.newer.clear();
        }
        self.asks_so_far += 1;
        self.asks.push_back((self.asks_so_far, ask));
        self.asks_so_far
    }

    fn notice(&mut self, notice: Notice) {
        self.events.push_back(Event::Notice(notice));
    }

    /// Brings all up to this instant: limits are lifted that stand for too long.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.config.is_ideal {
            return;
        }
        let is_silent = |heard_at: &mut Instant| *heard_at + SILENCE_MAX <= self.now;
        if self.heard_at.take_if(is_silent).is_some() {
            self.notice(Notice::Silent);
            self.events.push_back(Event::Order(Order::LiftAll));
            self.lift_old_at = None;
        }
        if self.lift_old_at.take_if(|at| *at <= self.now).is_some() {
            self.events.push_back(Event::Order(Order::LiftOld));
        }
    }

    /// Asks for what is due.
    fn go_on(&mut self) {
        let (now, is_ideal) = (self.now, self.config.is_ideal);
        match &self.phase {
            Phase::Pausing { until } if *until <= now => {
                self.phase = Phase::Preparing { asked: self.ask(Ask::Prepare) };
            }
            Phase::Joined(session) if is_ideal || session.report.is_none() && session.look.is_none() => {
                let number = session.number;
                let is_look_due = !is_ideal && self.look_at(session) <= now;
                let is_silent = !is_ideal && session.said_at + SAY_EVERY <= now;
                let reports = match is_look_due && !session.is_saying {
                    true => Vec::new(),
                    false => self.book.take(FLOWS_TOGETHER),
                };
                let (is_saying, is_empty) = (!reports.is_empty(), reports.is_empty());
                let asked = match is_empty && is_look_due {
                    true => Some((self.ask(Ask::Look), true)),
                    false if is_empty && !is_silent => None,
                    false => {
                        Some((self.ask(Ask::Report(ReportsRequest { session: number, reports })), false))
                    }
                };
                let Phase::Joined(session) = &mut self.phase else { return };
                session.is_saying = is_saying;
                match asked {
                    Some((look, true)) => (session.look, session.looked_at) = (Some(look), now),
                    Some((report, false)) => (session.report, session.said_at) = (Some(report), now),
                    None => {}
                }
            }
            _ => {}
        }
    }

    /// When flows are to be looked at. Whoever waits for a flow's end should not wait for a look.
    fn look_at(&self, session: &Session) -> Instant {
        session.looked_at + look_after(session.look_took, self.book.soonest_end())
    }

    fn take_listing(&mut self, answer: Result<Answer, Failure>) {
        match answer {
            Ok(Answer::Listing { mut flows, left_out }) => {
                let newer = std::mem::take(&mut self.newer);
                flows.retain(|seen| !newer.contains_key(&seen.flow));
                flows.extend(newer.into_values());
                flows.sort_by_key(|seen| seen.flow);
                self.handle_listing(self.now, &flows, left_out);
            }
            Ok(_) => {}
            Err(failure) => self.notice(Notice::Unlisted(failure.to_string())),
        }
    }

    fn take_limits(&mut self, limits: &[Limit]) {
        let mut known = Vec::new();
        for Limit { flow, rate_bps } in limits {
            let rate = rate_bps.map(BitRate::bps);
            self.book.limit(*flow, rate);
            // One that has ended meanwhile needs none.
            known.extend(self.book.socket(*flow).map(|socket| (*flow, rate, socket)));
        }
        self.events.push_back(Event::Order(Order::Set(known)));
    }

    /// Joins with all flows, or the first of them.
    fn join(&mut self, session: u64) {
        self.book.say_all();
        let reports = self.book.take(FLOWS_TOGETHER);
        let (addresses, link_rate_bps) = (self.config.addresses.clone(), self.config.link_rate.as_bps());
        let asked = self.ask(Ask::Join(JoinRequest { session, addresses, link_rate_bps, reports }));
        self.phase = Phase::Joining { asked, session };
        if self.config.is_ideal {
            self.begin(session);
        }
    }

    /// The coordinator has taken it.
    fn begin(&mut self, number: u64) {
        let now = self.now;
        (self.heard_at, self.last_session) = (Some(now), Some(number));
        self.lift_old_at.get_or_insert(now + OLD_LIMITS);
        self.notice(Notice::Joined);
        self.events.push_back(Event::Order(Order::BeginSession));
        if self.controllers.handle_joined() {
            self.notice(Notice::Back);
        }
        self.phase = Phase::Joined(Session {
            number,
            report: None,
            limits: self.ask(Ask::Limits { session: number }),
            look: None,
            looked_at: now,
            look_took: Duration::ZERO,
            said_at: now,
            is_saying: false,
        });
    }

    /// Something went wrong: it joins again after a while.
    fn fail(&mut self, failure: Failure) {
        let is_joining = !matches!(self.phase, Phase::Joined(_));
        self.asks.clear();
        let retry = match failure {
            // The keys are another's, or the settings are none: that stays so.
            Failure::Refused(line) if is_joining => {
                self.phase = Phase::Ended { asked: None };
                self.events.push_back(Event::GivenUp(line));
                return;
            }
            Failure::NotJoined(line) => {
                self.notice(Notice::Rejoins(line));
                self.controllers.handle_failure(anabranch_sessions::Failure::NotJoined)
            }
            Failure::Refused(line) | Failure::Passing(line) => {
                let retry = self.controllers.handle_failure(anabranch_sessions::Failure::Away);
                self.notice(if retry.is_first_away { Notice::Away(line) } else { Notice::StillAway(line) });
                retry
            }
        };
        self.phase = Phase::Pausing { until: self.now + retry.pause };
    }
}

/// How long after a look that took so long has begun the next one is due, if so soon a flow should be through.
fn look_after(look_took: Duration, soonest_end: Option<Duration>) -> Duration {
    let soonest = soonest_end.unwrap_or(LOOK_EVERY).clamp(LOOK_SOON, LOOK_EVERY);
    soonest.max((look_took * LOOKS_MIN).min(LOOK_LATE)).max(look_took * 2)
}

/// Whether a connection is one with the coordinator: the agent's own, or another agent's where it runs on this host.
fn is_control(key: FlowKey, coordinator: &[SocketAddr], addresses: &[IpAddr]) -> bool {
    coordinator.iter().any(|at| {
        let is_here = at.ip() == key.local.ip() || at.ip().is_loopback() || addresses.contains(&at.ip());
        *at == key.remote || is_here && at.port() == key.local.port()
    })
}

#[cfg(test)]
mod tests;
