//! The world of a schedule: a controller, four sites, their transfers, and the faults.

use super::controller::{Answer, Controller, SiteRequest, Store};
use super::directories::Sources;
use super::network::{Conn, GreetingResult, Queue, Side, draw_rate};
use super::requests::{draw_requests, draw_topology, last_request};
use super::site::{Host, path, source};
use anabranch_graph::Topology;
use anabranch_replicate_proto::control::{Run, SiteProgram, TransferId};
use anabranch_replicate_proto::coordinator::{CoordinatorConfig, JointConfig, TransferRequest};
use anabranch_replicate_proto::daemon::Job;
use anabranch_testing::faults::{Schedule, ScheduleEnd, some_of};
use anabranch_units::{BitRate, Duration, Instant, LinkId, RandomStream, Seed, SiteId};
use std::collections::{BTreeMap, BTreeSet};

/// Time in which faults occur, and maximum time until everything has ended afterwards.
const CHAOS: Duration = Duration::from_secs(30);
const HEALED_MAX: Duration = Duration::from_secs(400);
/// Time until all sites have received the end of all transfers.
const SWEEP: Duration = Duration::from_secs(120);
/// Maximum duration of the last requests, and size of their files in bytes.
const LAST_MAX: Duration = Duration::from_secs(60);
const LAST_BYTES: u64 = 3_000;
/// Time for which a transfer waits for an absent site: longer than any absence.
const SITE_WAIT: Duration = Duration::from_secs(120);
/// More memory than any attempt needs.
pub const MEMORY_ENOUGH: u64 = 1 << 30;
/// Machine number of the controller, after the numbers of the sites.
pub const CONTROLLER: usize = 4;
/// Maximum delay of a healthy disk in milliseconds.
pub const DISK_MS: u64 = 3;

/// A kind of fault.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A site's process is killed.
    Crash,
    /// A site's machine loses its power.
    Power,
    ControllerCrash,
    /// A process stops for a while, and handles all events of that time afterwards.
    Frozen,
    /// No message passes between two machines for a while.
    Cut,
    /// A connection for data is lost.
    Reset,
    /// A site's connections to the controller are lost.
    ControlReset,
    /// Some requests and answers are lost.
    Lost,
    FullDisk,
    /// The controller cannot save its changes.
    FullStore,
    SlowDisk,
    /// A bit flips in a partial file that no process has open.
    Flip,
    /// A relay's memory corrupts symbols.
    Spoil,
    /// A process's clock jumps ahead.
    Jump,
}

impl Fault {
    const ALL: [Self; 14] = [
        Self::Crash,
        Self::Power,
        Self::ControllerCrash,
        Self::Frozen,
        Self::Cut,
        Self::Reset,
        Self::ControlReset,
        Self::Lost,
        Self::FullDisk,
        Self::FullStore,
        Self::SlowDisk,
        Self::Flip,
        Self::Spoil,
        Self::Jump,
    ];
}

/// An event of the schedule.
#[derive(Debug)]
pub enum ScheduleEvent {
    Fault(Fault),
    Heal,
    Start(usize),
    Thaw(usize, u64),
    Mend(usize, usize),
    DiskFast(usize),
    /// A site lacks room from now on, or has room again.
    Crowd(usize, bool),
    /// The source of a request's directory changes.
    Edit(usize),
    Submit(usize),
    Cancel(usize),
    // Events of the communication with the controller.
    Ask {
        site: usize,
        session: u64,
        ask: u64,
        what: SiteRequest,
    },
    Answer {
        site: usize,
        session: u64,
        ask: u64,
        answer: Answer,
    },
    AskAgain {
        site: usize,
        session: u64,
        lane: usize,
        ask: u64,
    },
    PollOver {
        site: usize,
        ask: u64,
    },
    // Events of a site.
    Job {
        site: usize,
        session: u64,
        job: Box<Job>,
    },
    Progress {
        site: usize,
        session: u64,
    },
    Written {
        site: usize,
        session: u64,
        run: Run,
    },
    Errand {
        site: usize,
        session: u64,
        run: Run,
    },
    // Events of a connection.
    Greet(u64, u32, Instant),
    Greeted(u64, u32, GreetingResult),
    GreetAgain(u64),
    Answerless(u64, u32),
    Unconnected(u64),
    Frame(u64),
    Acked(u64),
    Taken(u64),
    Closed(u64, Side),
    Beat(u64),
    Confirm(u64),
    Confirmed(u64),
}

pub struct World {
    pub schedule: Schedule<ScheduleEvent>,
    pub random: RandomStream,
    pub topology: Topology,
    pub config: CoordinatorConfig,
    pub controller: Option<Controller>,
    pub store: Store,
    /// Number of the freeze in which the controller's process or machine is stopped, and the events
    /// that are handled afterwards.
    frozen: Option<u64>,
    held: Vec<ScheduleEvent>,
    freezings: u64,
    pub hosts: Vec<Host>,
    pub memory_max: u64,
    pub conns: BTreeMap<u64, Conn>,
    pub conns_so_far: u64,
    /// Maximum number of frames of a connection in sockets' buffers and in transit.
    pub window: usize,
    /// The links' queues, and the rate of links without a queue.
    pub links: BTreeMap<LinkId, Queue>,
    pub rate: BitRate,
    /// Pairs of machines without connectivity.
    pub cuts: BTreeSet<(usize, usize)>,
    /// Programs that sites have received.
    pub programs: BTreeMap<(SiteId, Run), Box<SiteProgram>>,
    /// Ended attempts with state left at a site, and the time at which they ended.
    pub stale: BTreeMap<(usize, Run), Instant>,
    pub asks: u64,
    pub lost_ppm: u32,
    pub requests: Vec<TransferRequest>,
    pub sources: Sources,
    pub ids: BTreeMap<TransferId, usize>,
    pub cancelled: BTreeSet<usize>,
    /// Sites that have corrupted data, transfers with corrupted data, and sites whose disk was
    /// full.
    pub spoilers: BTreeSet<usize>,
    pub spoiled: BTreeSet<TransferId>,
    pub filled: BTreeSet<usize>,
    /// The only kind of fault, if the schedule has just one.
    pub only: Option<Fault>,
    /// Number of requests in the schedule, without the last requests.
    asked: usize,
    healed_at: Option<Instant>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Seed::new(seed).stream("faults", 0);
        let topology = draw_topology(&mut random);
        let joint = (random.below(2) == 0).then(JointConfig::default);
        let requests = draw_requests(&mut random, &topology);
        let lengths = [0, 1, 1_000, 30_001, 200_000, 400_000, 400_000, 1_000_000];
        let sources = requests.iter().enumerate().map(|(number, request)| {
            let length = lengths[random.below(lengths.len() as u64) as usize];
            (request.source_path.clone(), source(number, length))
        });
        let sources = sources.collect();
        let host = || Host { disk_ms: DISK_MS, ..Host::default() };
        let mut new = Self {
            schedule: Schedule::new(),
            topology,
            config: CoordinatorConfig {
                joint,
                site_wait: SITE_WAIT,
                surplus_bytes_min: 0,
                ..CoordinatorConfig::default()
            },
            controller: None,
            store: Store::default(),
            frozen: None,
            held: Vec::new(),
            freezings: 0,
            hosts: (0..CONTROLLER).map(|_| host()).collect(),
            memory_max: [8 << 20, 12 << 20, MEMORY_ENOUGH, MEMORY_ENOUGH][random.below(4) as usize],
            conns: BTreeMap::new(),
            conns_so_far: 0,
            window: [1, 3, 16][random.below(3) as usize],
            links: BTreeMap::new(),
            rate: draw_rate(&mut random),
            cuts: BTreeSet::new(),
            programs: BTreeMap::new(),
            stale: BTreeMap::new(),
            asks: 0,
            lost_ppm: 0,
            asked: requests.len(),
            requests,
            sources: Sources::new(sources, seed),
            ids: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            spoilers: BTreeSet::new(),
            spoiled: BTreeSet::new(),
            filled: BTreeSet::new(),
            only: None,
            healed_at: None,
            random,
        };
        // On a slow link, many frames in transit would arrive minutes late. TCP would not allow
        // that.
        if new.rate < BitRate::mbps(1) {
            new.window = new.window.min(3);
        }
        new.plan();
        new.plan_crowds(Seed::new(seed).stream("crowds", 0));
        new
    }

    /// A world without faults whose links carry `rates`, whatever capacity `declared` gives them.
    pub fn calm(declared: Topology, rates: impl Fn(LinkId) -> BitRate) -> Self {
        let mut new = Self::new(0);
        new.schedule = Schedule::new();
        let queue = |link| (link, Queue { free_at: Instant::ZERO, rate: rates(link) });
        new.links = declared.link_ids().map(queue).collect();
        new.topology = declared;
        new.config.joint = Some(JointConfig::default());
        (new.memory_max, new.window) = (MEMORY_ENOUGH, 16);
        (new.requests, new.sources, new.asked) = (Vec::new(), Sources::new(BTreeMap::new(), 0), 0);
        (0..=CONTROLLER).for_each(|who| new.schedule.after(Duration::ZERO, ScheduleEvent::Start(who)));
        new.healed_at = Some(Instant::ZERO);
        new
    }

    /// Executes a transfer in a world without faults. Returns the transfer's duration.
    pub fn transfer(&mut self, request: TransferRequest, bytes: u64) -> Duration {
        let number = self.requests.len();
        self.sources.files.insert(request.source_path.clone(), source(number, bytes));
        self.requests.push(request);
        // All sites have registered by this time.
        let began = self.schedule.now() + Duration::from_secs(2);
        self.schedule.at(began, ScheduleEvent::Submit(number));
        self.healed_at = Some(began);
        let mut ended = None;
        while ended.is_none() || !self.is_quiet() {
            if let Some(what) = self.schedule.step(self.due()) {
                self.handle(what);
            }
            self.keep_time();
            self.check();
            let now = self.schedule.now();
            assert!(now < began + HEALED_MAX, "{}", self.left());
            if ended.is_none() && self.is_over() {
                ended = Some(now);
            }
        }
        ended.expect("the loop ends after it").saturating_since(began)
    }

    /// Plans requests and faults: the kinds of faults and their numbers are drawn for each
    /// schedule.
    fn plan(&mut self) {
        (0..=CONTROLLER).for_each(|who| self.schedule.after(Duration::ZERO, ScheduleEvent::Start(who)));
        for number in 0..self.requests.len() {
            let late = if self.random.below(2) == 0 { 20_000 } else { 4_000 };
            let at = self.draw_ms(late);
            self.schedule.after(at, ScheduleEvent::Submit(number));
            if self.random.below(8) == 0 {
                let after = self.draw_ms(10_000);
                self.schedule.after(at + after, ScheduleEvent::Cancel(number));
            }
        }
        // With only one kind of fault, the checks are stricter.
        let kinds = match self.random.below(4) {
            0 => vec![Fault::ALL[self.random.below(Fault::ALL.len() as u64) as usize]],
            _ => some_of(&mut self.random, Fault::ALL),
        };
        self.only = (kinds.len() == 1).then(|| kinds[0]);
        self.schedule.say(format!("{} transfers at {}, {kinds:?}", self.requests.len(), self.rate));
        for kind in kinds {
            for _ in 0..self.random.below(7) {
                let at = match kind {
                    Fault::Lost | Fault::Spoil => self.draw_ms(2_000),
                    _ => self.draw_ms(CHAOS.as_us() / 1_000),
                };
                self.schedule.after(at, ScheduleEvent::Fault(kind));
            }
        }
        self.schedule.after(CHAOS, ScheduleEvent::Heal);
    }

    /// Plans a site without room in every fourth schedule, for some time or until all faults are
    /// healed. The site is never the source.
    ///
    /// `random` is a separate stream, so that the schedules in [`super::KEPT`] keep the faults with
    /// which they failed.
    fn plan_crowds(&mut self, mut random: RandomStream) {
        if random.below(4) > 0 {
            return;
        }
        let site = 1 + random.below(CONTROLLER as u64 - 1) as usize;
        let begin = Duration::from_ms(random.below(4_000));
        let lasts = Duration::from_ms([2_000, 15_000, CHAOS.as_us() / 1_000][random.below(3) as usize]);
        self.schedule.after(begin, ScheduleEvent::Crowd(site, true));
        self.schedule.after(begin + lasts, ScheduleEvent::Crowd(site, false));
    }

    fn draw_ms(&mut self, below: u64) -> Duration {
        Duration::from_ms(self.random.below(below))
    }

    fn draw_site(&mut self) -> usize {
        self.random.below(CONTROLLER as u64) as usize
    }

    /// Delay of a message from one machine to another.
    pub fn delay(&mut self) -> Duration {
        self.draw_ms(40)
    }

    /// Whether messages pass between two machines.
    pub fn is_reached(&self, a: usize, b: usize) -> bool {
        let is_dark = |who: usize| self.hosts.get(who).is_some_and(|host| host.is_dark);
        !is_dark(a) && !is_dark(b) && !self.cuts.contains(&(a.min(b), a.max(b)))
    }

    pub fn is_frozen(&self, who: usize) -> bool {
        self.freezing(who).is_some()
    }

    fn freezing(&self, who: usize) -> Option<u64> {
        match self.hosts.get(who) {
            Some(host) => host.process.as_ref().and_then(|process| process.frozen),
            None => self.frozen,
        }
    }

    /// Runs the schedule to its end, and then the last requests. State of earlier transfers must
    /// not disturb them.
    pub fn run(mut self) -> ScheduleEnd {
        self.run_until_over(HEALED_MAX);
        self.check_end();
        let (topology, names) = (&self.topology, self.requests.iter().flat_map(|r| &r.destinations));
        let names: BTreeSet<String> = names.map(|d| path(&d.path)).collect();
        let last = names.into_iter().map(|name| last_request(topology, &name));
        self.requests.extend(last);
        for number in self.asked..self.requests.len() {
            let name = self.requests[number].source_path.clone();
            if name.ends_with('/') {
                self.add_last_directory(&name);
            } else {
                self.sources.files.insert(name, source(number, LAST_BYTES));
            }
            self.schedule.after(Duration::ZERO, ScheduleEvent::Submit(number));
        }
        self.healed_at = Some(self.schedule.now());
        self.run_until_over(LAST_MAX);
        self.check_last(self.asked);
        self.schedule.say("over");
        self.schedule.ended()
    }

    fn run_until_over(&mut self, most: Duration) {
        let mut over_at = None;
        loop {
            if let Some(what) = self.schedule.step(self.due()) {
                self.handle(what);
            }
            self.keep_time();
            self.check();
            self.check_stale();
            let now = self.schedule.now();
            let Some(healed_at) = self.healed_at else { continue };
            if !self.is_over() {
                assert!(now < healed_at + most, "transfers go on: {}", self.left());
                continue;
            }
            let since = *over_at.get_or_insert(now);
            if self.is_quiet() {
                return;
            }
            assert!(now < since + SWEEP, "{}", self.left());
        }
    }

    fn due(&self) -> Option<Instant> {
        let sites = self.hosts.iter().filter_map(|host| host.process.as_ref());
        let sites = sites.filter(|process| process.frozen.is_none()).filter_map(|process| process.due());
        let controller = self.controller.as_ref().filter(|_| self.frozen.is_none()).and_then(Controller::due);
        sites.chain(controller).min()
    }

    fn keep_time(&mut self) {
        let now = self.schedule.now();
        for site in 0..CONTROLLER {
            let due = self.hosts[site].process.as_ref().and_then(|process| process.due());
            if !self.is_frozen(site) && due.is_some_and(|t| t <= now) {
                self.keep_site_time(site);
            }
        }
        let due = self.controller.as_ref().and_then(Controller::due);
        if self.frozen.is_none() && due.is_some_and(|t| t <= now) {
            self.keep_controller_time();
        }
    }

    /// The machine whose process must handle the event.
    fn concerns(&self, what: &ScheduleEvent) -> Option<usize> {
        let end = |id: &u64, side| {
            let conn = self.conns.get(id)?;
            Some(if side == Side::Sender { conn.from } else { conn.to })
        };
        match what {
            ScheduleEvent::Submit(_)
            | ScheduleEvent::Cancel(_)
            | ScheduleEvent::Ask { .. }
            | ScheduleEvent::PollOver { .. } => Some(CONTROLLER),
            ScheduleEvent::Answer { site, .. }
            | ScheduleEvent::AskAgain { site, .. }
            | ScheduleEvent::Job { site, .. }
            | ScheduleEvent::Progress { site, .. }
            | ScheduleEvent::Written { site, .. }
            | ScheduleEvent::Errand { site, .. } => Some(*site),
            ScheduleEvent::Greet(id, ..) | ScheduleEvent::Confirm(id) => end(id, Side::Receiver),
            ScheduleEvent::Greeted(id, ..)
            | ScheduleEvent::GreetAgain(id)
            | ScheduleEvent::Answerless(id, _)
            | ScheduleEvent::Unconnected(id)
            | ScheduleEvent::Acked(id)
            | ScheduleEvent::Taken(id)
            | ScheduleEvent::Confirmed(id) => end(id, Side::Sender),
            ScheduleEvent::Closed(id, side) => end(id, *side),
            _ => None,
        }
    }

    fn handle(&mut self, what: ScheduleEvent) {
        if let Some(who) = self.concerns(&what).filter(|who| self.is_frozen(*who)) {
            let held = match self.hosts.get_mut(who) {
                Some(host) => &mut host.process.as_mut().expect("it is frozen").held,
                None => &mut self.held,
            };
            return held.push(what);
        }
        match what {
            ScheduleEvent::Fault(fault) => self.go_wrong(fault),
            ScheduleEvent::Heal => self.heal(),
            ScheduleEvent::Start(CONTROLLER) if self.controller.is_none() => self.start_controller(),
            ScheduleEvent::Start(who) if who < CONTROLLER && self.hosts[who].process.is_none() => {
                self.start_site(who)
            }
            ScheduleEvent::Start(_) => {}
            ScheduleEvent::Thaw(who, freezing) if self.freezing(who) == Some(freezing) => self.thaw(who),
            ScheduleEvent::Thaw(..) => {}
            ScheduleEvent::Mend(a, b) => {
                self.cuts.remove(&(a, b));
            }
            ScheduleEvent::DiskFast(site) => self.hosts[site].disk_ms = DISK_MS,
            ScheduleEvent::Crowd(site, is_crowded) => {
                self.schedule.say(format!("site {site} has {}", if is_crowded { "no room" } else { "room" }));
                self.hosts[site].is_crowded = is_crowded;
            }
            ScheduleEvent::Edit(number) => self.edit(number),
            ScheduleEvent::Submit(number) => self.submit(number),
            ScheduleEvent::Cancel(number) => self.cancel(number),
            ScheduleEvent::Ask { site, session, ask, what } => self.handle_ask(site, session, ask, what),
            ScheduleEvent::Answer { site, session, ask, answer } => {
                self.handle_answer(site, session, ask, answer)
            }
            ScheduleEvent::AskAgain { site, session, lane, ask } => {
                self.handle_ask_again(site, session, lane, ask)
            }
            ScheduleEvent::PollOver { site, ask } => self.handle_poll_over(site, ask),
            ScheduleEvent::Job { site, session, job } => self.handle_job(site, session, *job),
            ScheduleEvent::Progress { site, session } => self.handle_progress(site, session),
            ScheduleEvent::Written { site, session, run } => self.handle_written(site, session, run),
            ScheduleEvent::Errand { site, session, run } => self.handle_errand(site, session, run),
            ScheduleEvent::Greet(id, try_, since) => self.handle_greet(id, try_, since),
            ScheduleEvent::Greeted(id, try_, answer) => self.handle_greeted(id, try_, answer),
            ScheduleEvent::GreetAgain(id) => self.handle_greet_again(id),
            ScheduleEvent::Answerless(id, try_) => self.handle_answerless(id, try_),
            ScheduleEvent::Unconnected(id) => self.handle_unconnected(id),
            ScheduleEvent::Frame(id) => self.handle_frame(id),
            ScheduleEvent::Acked(id) => self.handle_acked(id),
            ScheduleEvent::Taken(id) => self.handle_taken(id),
            ScheduleEvent::Closed(id, side) => self.handle_closed(id, side),
            ScheduleEvent::Beat(id) => self.handle_beat(id),
            ScheduleEvent::Confirm(id) => self.handle_confirm(id),
            ScheduleEvent::Confirmed(id) => self.handle_confirmed(id),
        }
    }

    /// Submits a request. A client that is refused, or receives no answer, asks again.
    fn submit(&mut self, number: usize) {
        let request = self.requests[number].clone();
        let is_writable = self.trouble().is_none();
        let id = is_writable.then(|| self.coordinate(|c, now| c.submit(now, request))).flatten();
        let Some(id) = id else {
            return self.schedule.after(Duration::from_ms(500), ScheduleEvent::Submit(number));
        };
        let id = id.expect("a good request");
        if self.trouble().is_some() {
            self.coordinate(|c, now| c.cancel(now, id));
            return self.schedule.after(Duration::from_ms(500), ScheduleEvent::Submit(number));
        }
        assert!(self.store.snapshots.contains_key(&id), "{id} is taken on, and not durable");
        self.ids.insert(id, number);
    }

    fn cancel(&mut self, number: usize) {
        let id = self.ids.iter().find(|(_, n)| **n == number).map(|(id, _)| *id);
        let Some(id) = id else { return };
        if self.coordinate(|c, now| c.cancel(now, id)) == Some(true) {
            let is_told = self.trouble().is_none();
            self.schedule
                .say(format!("transfer {id} is cancelled{}", if is_told { "" } else { ", and not told so" }));
            self.cancelled.insert(number);
            assert!(!is_told || self.is_durably_over(id), "{id} is given up, and that is not durable");
        }
    }

    fn go_wrong(&mut self, fault: Fault) {
        if self.healed_at.is_some() {
            return;
        }
        let who = self.draw_site();
        let most = if self.random.below(3) == 0 { 15_000 } else { 1_500 };
        let lasts = self.draw_ms(most);
        match fault {
            Fault::Crash | Fault::Power => {
                self.crash_site(who, fault == Fault::Power);
                self.schedule.after(lasts, ScheduleEvent::Start(who));
            }
            Fault::ControllerCrash => self.crash_controller(lasts),
            Fault::Frozen => {
                let who = self.random.below(CONTROLLER as u64 + 1) as usize;
                self.freeze(who, lasts);
            }
            Fault::Cut => {
                let other = (who + 1 + self.random.below(CONTROLLER as u64) as usize) % (CONTROLLER + 1);
                let (a, b) = (who.min(other), who.max(other));
                self.schedule.say(format!("nothing passes between {a} and {b} for {lasts}"));
                self.cuts.insert((a, b));
                self.schedule.after(lasts, ScheduleEvent::Mend(a, b));
            }
            Fault::Reset => self.lose_connection(),
            Fault::ControlReset => self.lose_requests(who),
            Fault::Lost => self.lost_ppm = self.random.below(300_000) as u32,
            Fault::FullDisk => {
                // At most one disk is full, so that data always has a path around its site.
                if self.filled.is_empty() || self.filled.contains(&who) {
                    self.schedule.say(format!("site {who}'s disk is full"));
                    self.filled.insert(who);
                    self.hosts[who].disk.is_full = true;
                }
            }
            Fault::FullStore => self.store.is_full = true,
            Fault::SlowDisk => {
                self.hosts[who].disk_ms = 100 + self.random.below(3_000);
                self.schedule.after(lasts, ScheduleEvent::DiskFast(who));
            }
            Fault::Flip => {
                if self.hosts[who].disk.flip(&mut self.random) {
                    self.schedule.say(format!("a bit flips on {who}'s disk"));
                }
            }
            Fault::Spoil => {
                let is_first = self.hosts.iter().all(|host| host.spoils_ppm == 0);
                if is_first && who != 0 {
                    self.hosts[who].spoils_ppm = [5_000, 100_000, 1_000_000][self.random.below(3) as usize];
                    self.schedule.say(format!("site {who} spoils symbols"));
                }
            }
            Fault::Jump => {
                let who = self.random.below(CONTROLLER as u64 + 1) as usize;
                self.schedule.say(format!("the clock of {who} runs ahead by {lasts}"));
                let process = self.hosts.get_mut(who).and_then(|host| host.process.as_mut());
                match (process, self.controller.as_mut().filter(|_| who == CONTROLLER)) {
                    (Some(process), _) => process.ahead += lasts,
                    (None, Some(controller)) => controller.ahead += lasts,
                    (None, None) => {}
                }
            }
        }
    }

    fn crash_controller(&mut self, back: Duration) {
        let Some(controller) = self.controller.take() else { return };
        self.schedule.say("controller dies");
        self.frozen = None;
        // A client with an open request detects the end of the connection, and asks again.
        let standing = controller.standing();
        for what in std::mem::take(&mut self.held) {
            match what {
                ScheduleEvent::Submit(_) | ScheduleEvent::Cancel(_) => self.schedule.after(back, what),
                ScheduleEvent::Ask { site, session, ask, .. } => {
                    self.answer(site, session, ask, Answer::Broken)
                }
                _ => {}
            }
        }
        for (site, session, ask) in standing {
            self.answer(site, session, ask, Answer::Broken);
        }
        self.schedule.after(back, ScheduleEvent::Start(CONTROLLER));
    }

    fn freeze(&mut self, who: usize, lasts: Duration) {
        if self.is_frozen(who) {
            return;
        }
        self.freezings += 1;
        let freezing = Some(self.freezings);
        match self.hosts.get_mut(who) {
            Some(host) => {
                let Some(process) = &mut host.process else { return };
                process.frozen = freezing;
            }
            None if self.controller.is_some() => self.frozen = freezing,
            None => return,
        }
        self.schedule.say(format!("{who} stands still for {lasts}"));
        self.schedule.after(lasts, ScheduleEvent::Thaw(who, self.freezings));
    }

    fn thaw(&mut self, who: usize) {
        self.schedule.say(format!("{who} goes on"));
        let held = match self.hosts.get_mut(who).and_then(|host| host.process.as_mut()) {
            Some(process) => {
                process.frozen = None;
                std::mem::take(&mut process.held)
            }
            None => {
                self.frozen = None;
                std::mem::take(&mut self.held)
            }
        };
        held.into_iter().for_each(|what| self.schedule.after(Duration::ZERO, what));
        let process = self.hosts.get(who).and_then(|host| host.process.as_ref());
        let runs: Vec<Run> =
            process.into_iter().flat_map(|process| process.runners.keys().copied()).collect();
        runs.into_iter().for_each(|run| self.stir(who, run));
    }

    /// Ends all faults.
    fn heal(&mut self) {
        self.schedule.say("all is well");
        self.healed_at = Some(self.schedule.now());
        self.cuts.clear();
        self.lost_ppm = 0;
        self.store.is_full = false;
        for host in &mut self.hosts {
            host.disk.is_full = false;
            host.is_crowded = false;
            (host.disk_ms, host.spoils_ppm) = (DISK_MS, 0);
        }
        for who in 0..=CONTROLLER {
            if self.is_frozen(who) {
                self.thaw(who);
            }
            self.schedule.after(Duration::ZERO, ScheduleEvent::Start(who));
        }
    }
}
