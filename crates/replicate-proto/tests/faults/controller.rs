//! The controller's process around the coordinator, and its communication with each site. Sites
//! fetch commands by long polls and send reports in batches; both are repeated until they are
//! answered. The controller also tracks sites that count as lost, and makes state durable before
//! commands leave.
//!
//! Modelled on `controller.rs`, `client.rs` and `relay.rs` of the service, around the same
//! machines. Leaves out: a site's process that is refused because another process serves the site.

use super::network::AGAIN;
use super::world::{CONTROLLER, ScheduleEvent, World};
use anabranch_replicate_proto::control::{Command, Report, TransferId};
use anabranch_replicate_proto::coordinator::{Coordinator, DefaultPlanner, EventKind, TransferSnapshot};
use anabranch_replicate_proto::outbox::Outbox;
use anabranch_replicate_proto::sessions::{SiteSessions, site_sessions};
use anabranch_replicate_proto::unsaved_transfers::{NextAction, UnsavedTransfers};
use anabranch_sessions::{NotJoined, PeerSession, Position};
use anabranch_units::{Duration, Instant, SiteId};
use std::collections::BTreeMap;

/// Silence after which a site counts as lost.
const GRACE: Duration = Duration::from_secs(3);
const COMMANDS_WAIT: Duration = Duration::from_secs(5);
const REPLY_TIME: Duration = Duration::from_secs(20);
/// Time for which a batch of reports is retried before it counts as a new batch.
const PATIENCE: Duration = Duration::from_secs(30);

/// Durable state of the controller.
#[derive(Default)]
pub struct Store {
    pub snapshots: BTreeMap<TransferId, TransferSnapshot>,
    next_transfer: Option<TransferId>,
    pub is_full: bool,
}

/// An open request for commands.
struct Poll {
    ask: u64,
    session: u64,
    /// Number of the site's registration.
    times: u64,
    position: Position,
    probes: Option<u64>,
}

pub struct Controller {
    pub coordinator: Coordinator<DefaultPlanner>,
    /// Start of the controller's clock, and the total of the clock's jumps since then.
    began: Instant,
    pub ahead: Duration,
    sessions: SiteSessions,
    /// Open request of each site.
    polls: [Option<Poll>; CONTROLLER],
    unsaved: UnsavedTransfers,
}

#[derive(Clone, Debug)]
pub enum SiteRequest {
    Register,
    Poll { position: Position, times: u64 },
    Reports { batch: u64, reports: Vec<Report> },
}

#[derive(Clone, Debug)]
pub enum Answer {
    Registered { queue: u64, after: u64 },
    Commands { times: u64, commands: Vec<(u64, Command)> },
    Taken,
    NotRegistered,
    Broken,
}

/// A site's end of its communication with the controller.
#[derive(Default)]
pub struct Link {
    session: PeerSession,
    /// Open requests: for registration, for commands, and with reports.
    waiting: [Option<u64>; 3],
    /// Number of the registration in which each request was sent.
    sent_in: [u64; 3],
    /// The current batch of reports, the time of its first try, and the number of reports that it
    /// takes from the outbox.
    batch: u64,
    since: Instant,
    in_hand: usize,
    outbox: Outbox,
    /// Reports that arrived since the batch was made.
    new: Vec<Report>,
}

impl Link {
    pub fn is_idle(&self) -> bool {
        let is_progress = |report: &Report| matches!(report, Report::Progress { .. });
        self.outbox.waiting().iter().chain(&self.new).all(is_progress)
    }
}

const REGISTER: usize = 0;
const POLL: usize = 1;
const REPORTS: usize = 2;

impl Controller {
    fn local(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_since(self.began) + self.ahead
    }

    fn world(&self, local: Instant) -> Instant {
        self.began + local.saturating_since(Instant::ZERO + self.ahead)
    }

    /// Next due time at the controller, in the world's time.
    pub fn due(&self) -> Option<Instant> {
        let due =
            [self.sessions.poll_timeout(), self.coordinator.poll_timeout(), self.unsaved.poll_timeout()];
        Instant::earliest(due).map(|local| self.world(local))
    }

    /// The open requests: site, session and number of each request.
    pub fn standing(self) -> Vec<(usize, u64, u64)> {
        let polls = self.polls.into_iter().enumerate();
        polls.filter_map(|(site, poll)| poll.map(|poll| (site, poll.session, poll.ask))).collect()
    }

    pub fn queued(&self) -> usize {
        self.sessions.waiting()
    }
}

impl World {
    pub fn start_controller(&mut self) {
        self.schedule.say("controller starts");
        let snapshots = self.store.snapshots.values().cloned().collect();
        let next = self.store.next_transfer.unwrap_or(TransferId(1));
        let coordinator = Coordinator::restore(
            self.config.clone(),
            self.topology.clone(),
            DefaultPlanner,
            Instant::ZERO,
            next,
            snapshots,
        );
        self.controller = Some(Controller {
            coordinator: coordinator.expect("what it wrote fits"),
            began: self.schedule.now(),
            ahead: Duration::ZERO,
            sessions: site_sessions(GRACE),
            polls: Default::default(),
            unsaved: UnsavedTransfers::default(),
        });
        self.drain();
    }

    /// Handles the failure of a site's process, whose connections to the controller's host close.
    pub fn hang_up(&mut self, site: usize, session: u64) {
        let now = self.schedule.now();
        let is_reached = self.is_reached(site, CONTROLLER);
        let Some(controller) = self.controller.as_mut().filter(|_| is_reached) else { return };
        let now = controller.local(now);
        if controller.polls[site].take_if(|poll| poll.session == session).is_some() {
            controller.sessions.end_poll(now, &SiteId(site as u16));
        }
    }

    /// Calls the coordinator, and sends the resulting commands.
    pub fn coordinate<T>(
        &mut self,
        act: impl FnOnce(&mut Coordinator<DefaultPlanner>, Instant) -> T,
    ) -> Option<T> {
        let now = self.schedule.now();
        let controller = self.controller.as_mut()?;
        let local = controller.local(now);
        let result = act(&mut controller.coordinator, local);
        self.drain();
        Some(result)
    }

    /// Reason why the store cannot be written, if any.
    pub fn trouble(&self) -> Option<&str> {
        self.controller.as_ref()?.unsaved.trouble()
    }

    /// Makes the changes durable, and then sends the commands.
    fn drain(&mut self) {
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else { return };
        let local = controller.local(now);
        loop {
            let transfers = match controller.unsaved.poll(local, &mut controller.coordinator) {
                NextAction::Save(transfers) => transfers,
                NextAction::LetOut => break,
                NextAction::Wait => return,
            };
            if self.store.is_full {
                controller.unsaved.handle_failed(local, "no space left on device".to_owned());
                continue;
            }
            for id in transfers {
                match controller.coordinator.snapshot(id) {
                    Some(snapshot) => drop(self.store.snapshots.insert(id, snapshot)),
                    None => drop(self.store.snapshots.remove(&id)),
                }
            }
            self.store.next_transfer = Some(controller.coordinator.next_transfer());
            controller.unsaved.handle_saved();
        }
        while let Some(event) = controller.coordinator.poll_event() {
            if let EventKind::Suspected { site } = event.kind {
                let is_true = self.spoilers.contains(&site.index());
                assert!(is_true, "{}: {site} is suspected, and has spoiled nothing", event.transfer);
            }
            if !matches!(event.kind, EventKind::Progress { .. }) {
                self.schedule.say(format!("{event:?}"));
            }
        }
        while let Some((site, command)) = controller.coordinator.poll_command() {
            if !matches!(command, Command::Install { .. }) {
                self.schedule.say(format!("to {site}: {command:?}"));
            }
            if let Command::Install { program } = &command {
                let known = self.programs.entry((site, program.run)).or_insert_with(|| program.clone());
                assert_eq!(known, program, "{:?} is the number of two attempts", program.run);
            }
            assert!(controller.sessions.push(local, &site, command), "too many commands wait for {site}");
        }
        for site in 0..CONTROLLER {
            self.answer_poll(site, false);
        }
    }

    /// Answers a waiting request for commands, if there are commands or its time has passed.
    fn answer_poll(&mut self, site: usize, is_over: bool) {
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else { return };
        let local = controller.local(now);
        let Some(mut poll) = controller.polls[site].take() else { return };
        let id = SiteId(site as u16);
        let found =
            controller.sessions.poll_messages(local, &id, poll.session, poll.position, &mut poll.probes);
        let answer = match found {
            Ok(None) if !is_over => {
                controller.polls[site] = Some(poll);
                return;
            }
            Ok(commands) => Answer::Commands { times: poll.times, commands: commands.unwrap_or_default() },
            Err(NotJoined) => Answer::NotRegistered,
        };
        controller.sessions.end_poll(local, &id);
        self.answer(site, poll.session, poll.ask, answer);
    }

    pub fn answer(&mut self, site: usize, session: u64, ask: u64, answer: Answer) {
        let delay = self.delay();
        let is_lost = self.random.chance_ppm(self.lost_ppm);
        let answer = if is_lost { Answer::Broken } else { answer };
        self.schedule.after(delay, ScheduleEvent::Answer { site, session, ask, answer });
    }

    /// Handles a request that arrives at the controller's host.
    pub fn handle_ask(&mut self, site: usize, session: u64, ask: u64, what: SiteRequest) {
        if !self.is_session(site, session) {
            return;
        }
        if !self.is_reached(site, CONTROLLER) {
            return self.schedule.after(AGAIN, ScheduleEvent::Ask { site, session, ask, what });
        }
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else {
            return self.answer(site, session, ask, Answer::Broken);
        };
        let local = controller.local(now);
        let id = SiteId(site as u16);
        match what {
            SiteRequest::Register => {
                let queue = self.random.next_u64();
                let joined = controller.sessions.handle_join(local, &id, session, queue);
                let addresses: Vec<_> = self.topology.links_in(id).map(|l| (l, "x:1".to_owned())).collect();
                self.coordinate(|c, now| c.handle_site_up(now, id, session, addresses));
                let answer = Answer::Registered { queue: joined.numbering, after: joined.after };
                self.answer(site, session, ask, answer);
            }
            SiteRequest::Poll { position, times } => {
                // Each site has one open request at a time. The connection of an earlier request
                // has ended. A newer request stays open if a delayed one arrives after it.
                let newer = controller.polls[site].take_if(|poll| poll.ask > ask);
                if controller.polls[site]
                    .replace(Poll { ask, session, times, position, probes: None })
                    .is_some()
                {
                    controller.sessions.end_poll(local, &id);
                }
                controller.sessions.begin_poll(&id);
                self.schedule.after(COMMANDS_WAIT, ScheduleEvent::PollOver { site, ask });
                self.answer_poll(site, newer.is_some());
                if let Some(controller) = self.controller.as_mut().filter(|_| newer.is_some()) {
                    controller.polls[site] = newer;
                }
            }
            SiteRequest::Reports { batch, reports } => {
                let answer = match controller.sessions.handle_batch(local, &id, session, batch) {
                    Ok(is_new) => {
                        for report in reports.into_iter().filter(|_| is_new) {
                            self.coordinate(|c, now| c.handle_report(now, id, report.clone()));
                            self.check_report(&report);
                        }
                        Answer::Taken
                    }
                    Err(NotJoined) => Answer::NotRegistered,
                };
                self.answer(site, session, ask, answer);
            }
        }
    }

    pub fn handle_poll_over(&mut self, site: usize, ask: u64) {
        let poll = self.controller.as_ref().and_then(|controller| controller.polls[site].as_ref());
        if poll.is_some_and(|poll| poll.ask == ask) {
            self.answer_poll(site, true);
        }
    }

    /// Handles everything that is due at the controller.
    pub fn keep_controller_time(&mut self) {
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else { return };
        let local = controller.local(now);
        for (site, _) in controller.sessions.handle_timeout(local) {
            self.schedule.say(format!("site {site} is away"));
            controller.coordinator.handle_site_down(local, site);
        }
        if controller.coordinator.poll_timeout().is_some_and(|t| local >= t) {
            controller.coordinator.handle_timeout(local);
        }
        self.drain();
    }

    // ---- a site's end ----

    fn link(&mut self, site: usize, session: u64) -> Option<&mut Link> {
        let process = self.hosts[site].process.as_mut().filter(|process| process.session == session)?;
        Some(&mut process.link)
    }

    /// Sends a report of a site to the controller.
    pub fn say(&mut self, site: usize, report: Report) {
        let Some(session) = self.hosts[site].process.as_ref().map(|process| process.session) else { return };
        if !matches!(report, Report::Progress { .. }) {
            self.schedule.say(format!("site {site} says {report:?}"));
        }
        let link = self.link(site, session).expect("asked above");
        link.new.push(report);
        self.converse(site, session);
    }

    /// Sends the controller every request that a site may send now.
    pub fn converse(&mut self, site: usize, session: u64) {
        let now = self.schedule.now();
        let Some(link) = self.link(site, session) else { return };
        if link.session.must_join() {
            if link.waiting[REGISTER].is_none() {
                self.ask(site, session, REGISTER, SiteRequest::Register);
            }
            return;
        }
        let (position, times, polls) =
            (link.session.position(), link.session.joins(), link.waiting[POLL].is_none());
        if link.waiting[REPORTS].is_none() {
            let is_late = link.in_hand > 0 && now >= link.since + PATIENCE;
            if link.in_hand == 0 || is_late {
                link.outbox.extend(link.new.drain(..));
                if is_late {
                    link.outbox.handle_away();
                } else {
                    link.outbox.thin();
                }
                (link.in_hand, link.since) = (link.outbox.next().len(), now);
                link.batch += u64::from(link.in_hand > 0);
            }
            if link.in_hand > 0 {
                let reports = link.outbox.waiting()[..link.in_hand].to_vec();
                let what = SiteRequest::Reports { batch: link.batch, reports };
                self.ask(site, session, REPORTS, what);
            }
        }
        if polls {
            self.ask(site, session, POLL, SiteRequest::Poll { position, times });
        }
    }

    fn ask(&mut self, site: usize, session: u64, lane: usize, what: SiteRequest) {
        self.asks += 1;
        let ask = self.asks;
        let link = self.link(site, session).expect("callers looked it up");
        (link.waiting[lane], link.sent_in[lane]) = (Some(ask), link.session.joins());
        let patience = REPLY_TIME + if lane == POLL { COMMANDS_WAIT } else { Duration::ZERO };
        let delay = self.delay();
        if self.random.chance_ppm(self.lost_ppm) {
            let answer = Answer::Broken;
            self.schedule.after(delay, ScheduleEvent::Answer { site, session, ask, answer });
        } else {
            self.schedule.after(delay, ScheduleEvent::Ask { site, session, ask, what });
        }
        self.schedule.after(patience, ScheduleEvent::Answer { site, session, ask, answer: Answer::Broken });
    }

    /// Handles an answer that arrives at a site's host.
    pub fn handle_answer(&mut self, site: usize, session: u64, ask: u64, answer: Answer) {
        let is_broken = matches!(answer, Answer::Broken);
        if !is_broken && !self.is_reached(site, CONTROLLER) {
            return self.schedule.after(AGAIN, ScheduleEvent::Answer { site, session, ask, answer });
        }
        let Some(link) = self.link(site, session) else { return };
        let Some(lane) = link.waiting.iter().position(|waiting| *waiting == Some(ask)) else { return };
        link.waiting[lane] = None;
        match answer {
            Answer::Registered { queue, after } => {
                link.session.handle_joined(queue, after);
                // Requests to an earlier controller need no answer.
                link.waiting = [None; 3];
            }
            Answer::Commands { times, commands } => {
                let new = link.session.handle_messages(times, commands);
                new.into_iter().flatten().for_each(|command| self.command(site, command));
            }
            Answer::Taken => link.outbox.handle_sent(std::mem::take(&mut link.in_hand)),
            Answer::NotRegistered => link.session.handle_not_joined(link.sent_in[lane]),
            Answer::Broken => {
                let pause = Duration::from_ms(100 + self.random.below(900));
                // The lane is occupied until the pause ends.
                self.link(site, session).expect("looked up above").waiting[lane] = Some(ask);
                return self.schedule.after(pause, ScheduleEvent::AskAgain { site, session, lane, ask });
            }
        }
        self.converse(site, session);
    }

    pub fn handle_ask_again(&mut self, site: usize, session: u64, lane: usize, ask: u64) {
        if let Some(link) = self.link(site, session).filter(|link| link.waiting[lane] == Some(ask)) {
            link.waiting[lane] = None;
            self.converse(site, session);
        }
    }

    /// Loses the open requests of a site.
    pub fn lose_requests(&mut self, site: usize) {
        let Some(process) = &self.hosts[site].process else { return };
        let session = process.session;
        self.schedule.say(format!("site {site} loses its connection to the controller"));
        for ask in process.link.waiting.into_iter().flatten() {
            self.schedule
                .after(Duration::ZERO, ScheduleEvent::Answer { site, session, ask, answer: Answer::Broken });
        }
        self.hang_up(site, session);
    }
}
