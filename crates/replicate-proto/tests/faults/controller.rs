//! The controller's process around the coordinator, and each site's conversation with it: commands by long polls, reports in
//! batches, both tried until they are answered; which sites count as gone; what is durable before commands leave.
//!
//! As `controller.rs`, `client.rs` and `relay.rs` of the service. Leaves out: a site's process that is refused as another one is
//! there.

use super::world::{CONTROLLER, What, World};
use anabranch_replicate_proto::control::{Command, Report, TransferId};
use anabranch_replicate_proto::coordinator::{Coordinator, DefaultPlanner, EventKind, TransferSnapshot};
use anabranch_units::{Duration, Instant, SiteId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// After so long without a word a site counts as gone.
const GRACE: Duration = Duration::from_secs(3);
const COMMANDS_WAIT: Duration = Duration::from_secs(5);
const REPLY_TIME: Duration = Duration::from_secs(20);
const STORE_RETRY: Duration = Duration::from_secs(1);
/// How long one batch of reports is tried before it counts as another one.
const PATIENCE: Duration = Duration::from_secs(30);
const COMMANDS_TOGETHER_MAX: usize = 256;

/// What is durable at the controller.
#[derive(Default)]
pub struct Store {
    pub snapshots: BTreeMap<TransferId, TransferSnapshot>,
    next_transfer: Option<TransferId>,
    pub is_full: bool,
}

/// What the controller knows of a site's process.
#[derive(Default)]
struct Line {
    session: Option<u64>,
    is_up: bool,
    heard_at: Option<Instant>,
    /// The request for commands that waits, its site's process, and that one's registration.
    poll: Option<(u64, u64, u64)>,
    queue: VecDeque<(u64, Command)>,
    /// Changes with the queue.
    id: u64,
    last_number: u64,
    acknowledged: u64,
    last_batch: u64,
}

pub struct Controller {
    pub coordinator: Coordinator<DefaultPlanner>,
    /// When its clock began, and how far that ran ahead since.
    began: Instant,
    pub ahead: Duration,
    lines: Vec<Line>,
    unsaved: BTreeSet<TransferId>,
    store_retry_at: Option<Instant>,
}

#[derive(Clone, Debug)]
pub enum Ask {
    Register,
    Poll { after: u64, times: u64 },
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

/// A site's end of its conversation.
#[derive(Default)]
pub struct Link {
    times: u64,
    is_registered: bool,
    queue: Option<u64>,
    after: u64,
    /// Requests that are not answered: to register, for commands, with reports.
    waiting: [Option<u64>; 3],
    batch: u64,
    in_hand: Vec<Report>,
    in_hand_since: Instant,
    outbox: Vec<Report>,
}

impl Link {
    pub fn is_idle(&self) -> bool {
        let is_progress = |report: &Report| matches!(report, Report::Progress { .. });
        self.in_hand.iter().chain(&self.outbox).all(is_progress)
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

    fn silent_at(line: &Line) -> Option<Instant> {
        let heard_at = line.heard_at.filter(|_| line.is_up && line.poll.is_none())?;
        Some(heard_at + GRACE)
    }

    /// When something is due, in the world's time.
    pub fn due(&self) -> Option<Instant> {
        let silent = self.lines.iter().filter_map(Self::silent_at).min();
        let due = [silent, self.coordinator.poll_timeout(), self.store_retry_at].into_iter().flatten().min();
        due.map(|local| self.world(local))
    }

    pub fn queued(&self) -> usize {
        self.lines.iter().map(|line| line.queue.len()).sum()
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
            lines: (0..CONTROLLER).map(|_| Line { id: self.random.next_u64(), ..Line::default() }).collect(),
            unsaved: BTreeSet::new(),
            store_retry_at: None,
        });
        self.drain();
    }

    /// Its clock begins anew: all sites register again.
    pub fn renew_clock(&mut self) {
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else { return };
        self.schedule.say("the controller's clock begins anew");
        (controller.began, controller.ahead) = (now, Duration::ZERO);
        controller.coordinator.restart(Instant::ZERO);
        controller.store_retry_at = controller.store_retry_at.map(|_| Instant::ZERO);
        for line in &mut controller.lines {
            *line = Line { poll: line.poll, id: self.random.next_u64(), ..Line::default() };
        }
        (0..CONTROLLER).for_each(|site| self.answer_poll(site, true));
        self.drain();
    }

    /// The site's process died, and the controller's host sees its connections close.
    pub fn hang_up(&mut self, site: usize, session: u64) {
        let now = self.schedule.now();
        let is_reached = self.is_reached(site, CONTROLLER);
        let Some(controller) = self.controller.as_mut().filter(|_| is_reached) else { return };
        let now = controller.local(now);
        let line = &mut controller.lines[site];
        if line.poll.take_if(|(_, whose, _)| *whose == session).is_some() && line.heard_at.is_some() {
            line.heard_at = Some(now);
        }
    }

    /// Has the coordinator do something, and lets out what follows.
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

    /// First what changed is durable, then commands leave.
    fn drain(&mut self) {
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else { return };
        let local = controller.local(now);
        controller.unsaved.extend(std::iter::from_fn(|| controller.coordinator.poll_changed()));
        while let Some(event) = controller.coordinator.poll_event() {
            if let EventKind::Suspected { site } = event.kind {
                let is_true = self.spoilers.contains(&site.index());
                assert!(is_true, "{}: {site} is suspected, and has spoiled nothing", event.transfer);
            }
            if !matches!(event.kind, EventKind::Progress { .. }) {
                self.schedule.say(format!("{event:?}"));
            }
        }
        let waits = !controller.unsaved.is_empty() && controller.store_retry_at.is_some_and(|t| local < t);
        if waits {
            return;
        }
        if !controller.unsaved.is_empty() && self.store.is_full {
            controller.store_retry_at = Some(local + STORE_RETRY);
            return;
        }
        controller.store_retry_at = None;
        for id in std::mem::take(&mut controller.unsaved) {
            match controller.coordinator.snapshot(id) {
                Some(snapshot) => drop(self.store.snapshots.insert(id, snapshot)),
                None => drop(self.store.snapshots.remove(&id)),
            }
        }
        self.store.next_transfer = Some(controller.coordinator.next_transfer());
        while let Some((site, command)) = controller.coordinator.poll_command() {
            let line = &mut controller.lines[site.index()];
            line.last_number += 1;
            line.queue.push_back((line.last_number, command));
        }
        for site in 0..CONTROLLER {
            self.answer_poll(site, false);
        }
    }

    /// Answers the request for commands that waits, if there are some, or its time is over.
    fn answer_poll(&mut self, site: usize, is_over: bool) {
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else { return };
        let local = controller.local(now);
        let line = &mut controller.lines[site];
        let Some((ask, session, times)) = line.poll else { return };
        if line.queue.is_empty() && !is_over {
            return;
        }
        line.poll = None;
        let answer = if line.session == Some(session) && line.is_up {
            line.heard_at = Some(local);
            let commands = line.queue.iter().take(COMMANDS_TOGETHER_MAX).cloned().collect();
            Answer::Commands { times, commands }
        } else {
            Answer::NotRegistered
        };
        self.answer(site, session, ask, answer);
    }

    fn answer(&mut self, site: usize, session: u64, ask: u64, answer: Answer) {
        let delay = self.delay();
        let is_lost = self.random.chance_ppm(self.lost_ppm);
        let answer = if is_lost { Answer::Broken } else { answer };
        self.schedule.after(delay, What::Answer { site, session, ask, answer });
    }

    /// A request comes to the controller's host.
    pub fn handle_ask(&mut self, site: usize, session: u64, ask: u64, what: Ask) {
        if !self.is_reached(site, CONTROLLER) {
            return;
        }
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else {
            return self.answer(site, session, ask, Answer::Broken);
        };
        let local = controller.local(now);
        let line = &mut controller.lines[site];
        if let Ask::Register = what {
            if line.session != Some(session) {
                let id = self.random.next_u64();
                *line = Line { session: Some(session), poll: line.poll, id, ..Line::default() };
            }
            (line.heard_at, line.is_up) = (Some(local), true);
            let answer = Answer::Registered { queue: line.id, after: line.acknowledged };
            let id = SiteId(site as u16);
            let addresses: Vec<_> = self.topology.links_in(id).map(|l| (l, "x:1".to_owned())).collect();
            self.coordinate(|c, now| c.handle_site_up(now, id, session, addresses));
            return self.answer(site, session, ask, answer);
        }
        // A site that was given up as gone registers again.
        if line.session != Some(session) || !line.is_up {
            return self.answer(site, session, ask, Answer::NotRegistered);
        }
        line.heard_at = Some(local);
        match what {
            Ask::Register => unreachable!("answered above"),
            Ask::Poll { after, times } => {
                line.acknowledged = line.acknowledged.max(after.min(line.last_number));
                let acknowledged = line.acknowledged;
                line.queue.retain(|(number, _)| *number > acknowledged);
                line.poll = Some((ask, session, times));
                self.schedule.after(COMMANDS_WAIT, What::PollOver { site, ask });
                self.answer_poll(site, false);
            }
            Ask::Reports { batch, reports } => {
                if batch > line.last_batch {
                    line.last_batch = batch;
                    for report in reports {
                        self.coordinate(|c, now| c.handle_report(now, SiteId(site as u16), report));
                    }
                }
                self.answer(site, session, ask, Answer::Taken);
            }
        }
    }

    pub fn handle_poll_over(&mut self, site: usize, ask: u64) {
        let line = self.controller.as_ref().map(|controller| &controller.lines[site]);
        if line.is_some_and(|line| line.poll.is_some_and(|(waiting, _, _)| waiting == ask)) {
            self.answer_poll(site, true);
        }
    }

    /// What is due at the controller.
    pub fn keep_controller_time(&mut self) {
        let now = self.schedule.now();
        let Some(controller) = &mut self.controller else { return };
        let local = controller.local(now);
        for (site, line) in controller.lines.iter_mut().enumerate() {
            if Controller::silent_at(line).is_some_and(|t| local >= t) {
                line.is_up = false;
                self.schedule.say(format!("site {site} is away"));
                controller.coordinator.handle_site_down(local, SiteId(site as u16));
            }
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

    /// A site says something.
    pub fn say(&mut self, site: usize, report: Report) {
        let Some(session) = self.hosts[site].process.as_ref().map(|process| process.session) else { return };
        if !matches!(report, Report::Progress { .. }) {
            self.schedule.say(format!("site {site} says {report:?}"));
        }
        let link = self.link(site, session).expect("asked above");
        if let Report::Progress { run, .. } = &report {
            link.outbox.retain(|old| !matches!(old, Report::Progress { run: other, .. } if other == run));
        }
        link.outbox.push(report);
        self.converse(site, session);
    }

    /// Asks the controller all that a site may ask now.
    pub fn converse(&mut self, site: usize, session: u64) {
        let now = self.schedule.now();
        let Some(link) = self.link(site, session) else { return };
        if !link.is_registered {
            if link.waiting[REGISTER].is_none() {
                self.ask(site, session, REGISTER, Ask::Register);
            }
            return;
        }
        let (after, times, polls) = (link.after, link.times, link.waiting[POLL].is_none());
        if link.waiting[REPORTS].is_none() {
            if link.in_hand.is_empty() && !link.outbox.is_empty() {
                link.in_hand = std::mem::take(&mut link.outbox);
                link.in_hand_since = now;
                link.batch += 1;
            } else if !link.in_hand.is_empty() && now >= link.in_hand_since + PATIENCE {
                link.in_hand_since = now;
                link.batch += 1;
            }
            if !link.in_hand.is_empty() {
                let what = Ask::Reports { batch: link.batch, reports: link.in_hand.clone() };
                self.ask(site, session, REPORTS, what);
            }
        }
        if polls {
            self.ask(site, session, POLL, Ask::Poll { after, times });
        }
    }

    fn ask(&mut self, site: usize, session: u64, lane: usize, what: Ask) {
        self.asks += 1;
        let ask = self.asks;
        self.link(site, session).expect("callers looked it up").waiting[lane] = Some(ask);
        let patience = REPLY_TIME + if lane == POLL { COMMANDS_WAIT } else { Duration::ZERO };
        let delay = self.delay();
        if self.random.chance_ppm(self.lost_ppm) {
            let answer = Answer::Broken;
            self.schedule.after(delay, What::Answer { site, session, ask, answer });
        } else {
            self.schedule.after(delay, What::Ask { site, session, ask, what });
        }
        self.schedule.after(patience, What::Answer { site, session, ask, answer: Answer::Broken });
    }

    /// An answer comes to a site's host.
    pub fn handle_answer(&mut self, site: usize, session: u64, ask: u64, answer: Answer) {
        let is_broken = matches!(answer, Answer::Broken);
        if !is_broken && !self.is_reached(site, CONTROLLER) {
            return;
        }
        let Some(link) = self.link(site, session) else { return };
        let Some(lane) = link.waiting.iter().position(|waiting| *waiting == Some(ask)) else { return };
        link.waiting[lane] = None;
        match answer {
            Answer::Registered { queue, after } => {
                link.after = if link.queue == Some(queue) { link.after.max(after) } else { after };
                link.queue = Some(queue);
                link.times += 1;
                link.is_registered = true;
            }
            Answer::Commands { times, commands } => {
                if link.times == times {
                    let after = link.after;
                    link.after = commands.iter().map(|(number, _)| *number).max().unwrap_or(0).max(after);
                    let new = commands.into_iter().filter(|(number, _)| *number > after);
                    let new: Vec<Command> = new.map(|(_, command)| command).collect();
                    new.into_iter().for_each(|command| self.command(site, command));
                }
            }
            Answer::Taken => link.in_hand.clear(),
            Answer::NotRegistered => link.is_registered = false,
            Answer::Broken => {
                let pause = Duration::from_ms(100 + self.random.below(900));
                // Until then the lane is taken.
                self.link(site, session).expect("looked up above").waiting[lane] = Some(ask);
                return self.schedule.after(pause, What::AskAgain { site, session, lane, ask });
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

    /// A site's requests under way are lost.
    pub fn lose_requests(&mut self, site: usize) {
        let Some(process) = &self.hosts[site].process else { return };
        let session = process.session;
        self.schedule.say(format!("site {site} loses its connection to the controller"));
        for ask in process.link.waiting.into_iter().flatten() {
            self.schedule.after(Duration::ZERO, What::Answer { site, session, ask, answer: Answer::Broken });
        }
        self.hang_up(site, session);
    }
}
