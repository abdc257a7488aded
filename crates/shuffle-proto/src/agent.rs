//! A host's agent as a state machine: when it joins, lists connections and reports, and which
//! limits are in force.
//!
//! The state machine asks its driver for actions ([`AgentAction`]), and gets the result of each
//! ([`Answer`], or a [`Failure`]). While the coordinator is unreachable, no flow has a limit: after
//! [`SILENCE_MAX`] without an answer all limits are lifted. When the coordinator answers again, the
//! agent joins again with all flows. The agent also joins again after any other failure.
//!
//! Leaves out: sockets and clocks (the `shuffle` room), the reports ([`crate::announced_flows`]),
//! the limits in force ([`crate::enforcement`]). Read [`Agent`] and [`AgentAction`] first.

use crate::announced_flows::{AnnounceError, AnnouncedFlows, ListedConnection};
use crate::announcement::Announcement;
use crate::control::{FlowKey, JoinRequest, Limit, ReportsRequest};
use crate::coordinator::{ClassSettings, HOST_FLOWS_MAX};
use crate::enforcement::LimitOrder;
use crate::rules::Rules;
use anabranch_sessions::{Backoff, Controllers};
use anabranch_units::{BitRate, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Silence of the coordinator after which limits are lifted.
pub const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Time limit of one request.
pub const REPLY_MAX: Duration = SILENCE_MAX;
/// Interval between two listings of connections. The interval shrinks down to [`LOOK_SOON`] if a
/// flow should complete earlier, and grows if listings take more than one part in [`LOOKS_MIN`] of
/// the time.
const LOOK_EVERY: Duration = Duration::from_ms(100);
const LOOK_SOON: Duration = Duration::from_ms(5);
const LOOKS_MIN: u64 = 20;
/// Maximum interval between two listings, unless listings take half of the time. The coordinator
/// treats flows as idle if there is no update for twice as long.
const LOOK_LATE: Duration = Duration::from_ms(250);
/// Maximum interval between two requests of the agent.
pub const SAY_EVERY: Duration = Duration::from_ms(200);
/// Maximum wait of one request for limits.
pub const LIMITS_WAIT: Duration = Duration::from_secs(10);
/// Pauses between two attempts to join.
const BACKOFF: Backoff = Backoff::new(Duration::from_ms(50), Duration::from_ms(500));
/// Time after the start of a session for which limits of the previous session stay in force if the
/// coordinator does not repeat them.
pub const OLD_LIMITS: Duration = SILENCE_MAX;
/// Maximum number of unannounced connections in a listing, to which rules may apply.
pub const CONNECTIONS_MAX: usize = 2 * HOST_FLOWS_MAX;
/// Maximum number of flows in one request. It keeps requests below 64 KiB, because larger requests
/// take turns at the coordinator.
pub const FLOWS_TOGETHER: usize = 100;

/// Configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Addresses of flows to the agent's host. If empty, the coordinator decides.
    pub addresses: Vec<IpAddr>,
    /// All addresses in the network namespace of the agent's host.
    pub addresses_here: Vec<IpAddr>,
    /// Goodput of the host's link in each direction.
    pub link_rate: BitRate,
    /// Rules by which flows are announced on behalf of their programs.
    pub rules: Rules,
    /// Classification of flows, equal to the coordinator's.
    pub settings: ClassSettings,
    /// True for an ideal network in simulations, where nothing fails and requests keep their order.
    /// Then no request waits for the previous answer, there are no keep-alives, and the caller
    /// lists connections at any time.
    pub is_ideal: bool,
}

impl AgentConfig {
    /// Creates a configuration with a link of this rate, no rules, and addresses left to the
    /// coordinator.
    pub fn new(link_rate: BitRate) -> Self {
        let (addresses, addresses_here) = (Vec::new(), Vec::new());
        let (rules, settings) = (Rules::default(), ClassSettings::default());
        Self { addresses, addresses_here, link_rate, rules, settings, is_ideal: false }
    }
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// Gather the input for joining: answered by [`Answer::Prepared`], within [`REPLY_MAX`].
    Prepare,
    /// List this host's connections: answered by [`Answer::Listing`].
    Look,
    /// Register with the coordinator: answered by [`Answer::Taken`], within [`REPLY_MAX`].
    Join(JoinRequest),
    /// Send reports to the coordinator: answered by [`Answer::Taken`], within [`REPLY_MAX`].
    Report(ReportsRequest),
    /// Ask the coordinator for limits: answered by [`Answer::Limits`], within [`LIMITS_WAIT`] and
    /// [`REPLY_MAX`].
    Limits {
        /// Session of the agent.
        session: u64,
    },
    /// Deregister from the coordinator, once limits are lifted: no answer is needed.
    Leave {
        /// Session of the agent.
        session: u64,
    },
}

/// Result of an [`AgentAction`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Input for joining.
    Prepared {
        /// Addresses of the coordinator; `None` if the lookup failed, and the agent keeps the
        /// earlier addresses.
        coordinator: Option<Vec<SocketAddr>>,
        /// Random number that nobody can guess, which identifies the session.
        session: u64,
    },
    /// Connections of this host.
    Listing {
        /// Connections in the order of flows, announced connections included.
        flows: Vec<ListedConnection>,
        /// Number of further connections that were left out.
        left_out: u64,
    },
    /// The coordinator has accepted the request.
    Taken,
    /// Changed limits; empty if none changed in time.
    Limits(Vec<Limit>),
}

/// Reason for the failure of an [`AgentAction`], with a text of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The coordinator does not know the agent's session.
    NotJoined(String),
    /// The request can never succeed. If it was a request to join, the agent gives up.
    Refused(String),
    /// The request may succeed later.
    Passing(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotJoined(line) | Self::Refused(line) | Self::Passing(line)) = self;
        f.write_str(line)
    }
}

/// Output of an agent besides actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An order about limits; orders must be executed in sequence.
    Order(LimitOrder),
    /// A message for the log.
    Notice(Notice),
    /// The coordinator refuses this agent for good, with the reason in one line. The driver must
    /// end the agent.
    GivenUp(String),
}

/// An event for the agent's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The agent has joined.
    Joined,
    /// The coordinator is reachable again.
    Back,
    /// The coordinator asks the agent to join again.
    Rejoins(String),
    /// The coordinator is unreachable. Reported once until it is reachable again.
    Away(String),
    /// The coordinator is still unreachable.
    StillAway(String),
    /// All limits are lifted, because the coordinator is silent.
    Silent,
    /// Connections cannot be listed.
    Unlisted(String),
    /// Number of connections to which no rule applies for lack of room. Reported when this state
    /// begins.
    Cut(u64),
    /// There are more flows than may be announced. Reported when this state begins.
    Full,
}

/// Log text for limits lifted during the coordinator's silence.
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
/// After any `handle_*`, [`Agent::poll_event`] and [`Agent::poll_ask`] are drained until `None`,
/// then [`Agent::poll_timeout`] is read.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    book: AnnouncedFlows,
    /// Last known addresses of the coordinator. Rules do not apply to connections with it.
    coordinator: Vec<SocketAddr>,
    now: Instant,
    phase: Phase,
    /// Last session that the coordinator has accepted.
    last_session: Option<u64>,
    /// Time of the coordinator's last answer; `None` once limits are lifted because of its silence.
    heard_at: Option<Instant>,
    /// Time at which limits of sessions before the last one are lifted; `None` if there are none. A
    /// further session does not postpone this time.
    lift_old_at: Option<Instant>,
    /// Session with the coordinator, which is the only controller.
    controllers: Controllers,
    is_cut: bool,
    is_full: bool,
    /// Flows announced since the pending listing was requested, with the kernel's state at the
    /// announcement. The listing may lack these flows.
    newer: BTreeMap<FlowKey, ListedConnection>,
    asks_so_far: u64,
    asks: VecDeque<(u64, AgentAction)>,
    events: VecDeque<Event>,
}

/// Phase of the agent. The numbers identify unanswered actions.
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
    /// True if there was something to report at the last check. All reports are sent before the
    /// next listing.
    is_saying: bool,
}

impl Agent {
    /// Creates an agent that is about to join.
    pub fn new(now: Instant, config: AgentConfig) -> Self {
        Self {
            book: AnnouncedFlows::new(config.settings),
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

    /// Handles a timeout.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Handles a program's announcement about its flow, with the flow's state in the kernel.
    ///
    /// Errors: see [`AnnounceError`].
    pub fn handle_announcement(
        &mut self,
        now: Instant,
        said: &Announcement,
        seen: &ListedConnection,
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

    /// Handles a listing of the host's connections in the order of flows, with the number of
    /// connections left out.
    pub fn handle_listing(&mut self, now: Instant, flows: &[ListedConnection], left_out: u64) {
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
        self.events.push_back(Event::Order(LimitOrder::Keep(flows)));
    }

    /// Handles the end of a flow, even if its connection stays open.
    pub fn handle_over(&mut self, now: Instant, flow: FlowKey) {
        self.advance(now);
        self.book.end(flow);
    }

    /// Handles the result of the action with this number. A result that is no longer awaited is
    /// ignored.
    pub fn handle_answer(&mut self, now: Instant, number: u64, answer: Result<Answer, Failure>) {
        self.advance(now);
        match &self.phase {
            Phase::Preparing { asked } if *asked == number => match answer {
                Ok(Answer::Prepared { coordinator, session }) => {
                    self.coordinator = coordinator.unwrap_or_else(|| std::mem::take(&mut self.coordinator));
                    self.phase = Phase::Looking { asked: self.ask(AgentAction::Look), session };
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
        // True if limits were lifted meanwhile, which the coordinator does not know.
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
                    let asked = self.ask(AgentAction::Limits { session });
                    if let Phase::Joined(session) = &mut self.phase {
                        session.limits = asked;
                    }
                }
                Ok(_) => {}
                Err(failure) => self.fail(failure),
            }
        }
    }

    /// Ends the agent: lifts all limits, and deregisters from the coordinator.
    pub fn handle_end(&mut self, now: Instant) {
        self.advance(now);
        if matches!(self.phase, Phase::Ended { asked: Some(_) }) {
            return;
        }
        (self.heard_at, self.lift_old_at) = (None, None);
        self.asks.clear();
        self.events.push_back(Event::Order(LimitOrder::LiftAll));
        // Without this request the coordinator would wait a second before it treats the agent as
        // disconnected.
        let asked = self.last_session.map(|session| self.ask(AgentAction::Leave { session }));
        self.phase = Phase::Ended { asked };
    }

    /// Returns the next action, and the number for its answer.
    pub fn poll_ask(&mut self) -> Option<(u64, AgentAction)> {
        if self.asks.is_empty() {
            self.go_on();
        }
        self.asks.pop_front()
    }

    /// Returns true if the answer to the action with this number is still awaited. The driver may
    /// cancel all other requests in flight.
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

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Time of the next [`Agent::handle_timeout`].
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

    /// Announced flows whose connections still exist, as far as known. A listing must include them.
    pub fn connections(&self) -> BTreeSet<FlowKey> {
        self.book.connections()
    }

    /// Returns true if the coordinator has accepted this agent, as far as known.
    pub const fn is_joined(&self) -> bool {
        matches!(self.phase, Phase::Joined(_))
    }

    fn ask(&mut self, ask: AgentAction) -> u64 {
        if ask == AgentAction::Look {
            self.newer.clear();
        }
        self.asks_so_far += 1;
        self.asks.push_back((self.asks_so_far, ask));
        self.asks_so_far
    }

    fn notice(&mut self, notice: Notice) {
        self.events.push_back(Event::Notice(notice));
    }

    /// Advances to this instant: lifts limits that have been in force for too long.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.config.is_ideal {
            return;
        }
        let is_silent = |heard_at: &mut Instant| *heard_at + SILENCE_MAX <= self.now;
        if self.heard_at.take_if(is_silent).is_some() {
            self.notice(Notice::Silent);
            self.events.push_back(Event::Order(LimitOrder::LiftAll));
            self.lift_old_at = None;
        }
        if self.lift_old_at.take_if(|at| *at <= self.now).is_some() {
            self.events.push_back(Event::Order(LimitOrder::LiftOld));
        }
    }

    /// Requests the actions that are due.
    fn go_on(&mut self) {
        let (now, is_ideal) = (self.now, self.config.is_ideal);
        match &self.phase {
            Phase::Pausing { until } if *until <= now => {
                self.phase = Phase::Preparing { asked: self.ask(AgentAction::Prepare) };
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
                    true => Some((self.ask(AgentAction::Look), true)),
                    false if is_empty && !is_silent => None,
                    false => Some((
                        self.ask(AgentAction::Report(ReportsRequest { session: number, reports })),
                        false,
                    )),
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

    /// Time of the next listing. Programs that wait for a flow's end must not wait for the listing.
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
            // A flow that has ended by now needs no limit.
            known.extend(self.book.socket(*flow).map(|socket| (*flow, rate, socket)));
        }
        self.events.push_back(Event::Order(LimitOrder::Set(known)));
    }

    /// Joins with reports of all flows, or of the first of them.
    fn join(&mut self, session: u64) {
        self.book.say_all();
        let reports = self.book.take(FLOWS_TOGETHER);
        let (addresses, link_rate_bps) = (self.config.addresses.clone(), self.config.link_rate.as_bps());
        let asked = self.ask(AgentAction::Join(JoinRequest { session, addresses, link_rate_bps, reports }));
        self.phase = Phase::Joining { asked, session };
        if self.config.is_ideal {
            self.begin(session);
        }
    }

    /// Begins the session after the coordinator has accepted it.
    fn begin(&mut self, number: u64) {
        let now = self.now;
        (self.heard_at, self.last_session) = (Some(now), Some(number));
        self.lift_old_at.get_or_insert(now + OLD_LIMITS);
        self.notice(Notice::Joined);
        self.events.push_back(Event::Order(LimitOrder::BeginSession));
        if self.controllers.handle_joined() {
            self.notice(Notice::Back);
        }
        self.phase = Phase::Joined(Session {
            number,
            report: None,
            limits: self.ask(AgentAction::Limits { session: number }),
            look: None,
            looked_at: now,
            look_took: Duration::ZERO,
            said_at: now,
            is_saying: false,
        });
    }

    /// Handles a failure. The agent ends if its join was refused; otherwise it joins again after a
    /// pause.
    fn fail(&mut self, failure: Failure) {
        let is_joining = !matches!(self.phase, Phase::Joined(_));
        self.asks.clear();
        let retry = match failure {
            // Keys of another host or invalid settings: a retry cannot succeed.
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

/// Interval between the starts of two listings, if a listing takes `look_took` and the first flow
/// should complete after `soonest_end`.
fn look_after(look_took: Duration, soonest_end: Option<Duration>) -> Duration {
    let soonest = soonest_end.unwrap_or(LOOK_EVERY).clamp(LOOK_SOON, LOOK_EVERY);
    soonest.max((look_took * LOOKS_MIN).min(LOOK_LATE)).max(look_took * 2)
}

/// Returns true for a connection with the coordinator: the agent's own connection, or another
/// agent's connection if the coordinator runs on this host.
fn is_control(key: FlowKey, coordinator: &[SocketAddr], addresses: &[IpAddr]) -> bool {
    coordinator.iter().any(|at| {
        let is_here = at.ip() == key.local.ip() || at.ip().is_loopback() || addresses.contains(&at.ip());
        *at == key.remote || is_here && at.port() == key.local.port()
    })
}

#[cfg(test)]
mod tests;
