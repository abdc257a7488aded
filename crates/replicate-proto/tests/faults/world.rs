//! The world of a schedule: a controller, four sites, and what passes between them.

use anabranch_graph::{LinkProperties, Topology};
use anabranch_pieces::name::normal;
use anabranch_pieces::{ByteRange, FileHash, RangeSet};
use anabranch_replicate_proto::control::{
    Command, FailureKind, Finish, HopSettings, Priority, Report, Run, SiteProgram, TransferId,
};
use anabranch_replicate_proto::coordinator::{
    Coordinator, CoordinatorConfig, CorruptPolicy, DefaultPlanner, Destination, JointConfig, SchemeChoice,
    TransferRequest, TransferSnapshot, Verdict,
};
use anabranch_replicate_proto::daemon::{Daemon, Done, Job};
use anabranch_units::{BitRate, Duration, Instant, RandomStream, Seed, SiteId};
use std::collections::{BTreeMap, BTreeSet};

const TICK: Duration = Duration::from_ms(10);
/// How long faults come, and how long everything has to end afterwards.
const CHAOS: Duration = Duration::from_secs(20);
const HEALING: Duration = Duration::from_secs(50);
/// How long sites have to be told that transfers are over.
const SWEEP: Duration = Duration::from_secs(5);
/// What a destination gets in a tick in which data moves.
const STEP: u64 = 8_000;
/// What the source has read and sent, and no destination has written.
const ON_THE_WAY: u64 = 10 * STEP;
/// After so long without a word a site counts as gone.
const GRACE: Duration = Duration::from_secs(3);
const PROGRESS_TICKS: u64 = 50;

/// A stretch of a file, and whose content it has.
type Piece = (ByteRange, u8);

/// What survives a site's crash.
#[derive(Clone, Debug, Default)]
struct Disk {
    /// Files that arrive, each with its number: what is opened anew is another one.
    partial: BTreeMap<String, (u64, Vec<Piece>)>,
    finished: BTreeMap<String, (u8, u64)>,
}

/// An attempt that is installed.
#[derive(Clone, Debug)]
struct Running {
    program: SiteProgram,
    /// Which partial file its data goes to.
    file: Option<u64>,
    verified: u64,
    is_ready: bool,
    is_source_done: bool,
    is_sink_done: bool,
    is_broken: bool,
}

struct Site {
    disk: Disk,
    /// Of the process; none while it is down.
    session: Option<u64>,
    daemon: Daemon,
    runs: BTreeMap<Run, Running>,
}

enum Event {
    Command { site: usize, session: u64, epoch: u64, command: Command },
    Report { site: usize, session: u64, report: Report },
    Register { site: usize, session: u64 },
    Missed { site: usize, session: u64 },
    Done { site: usize, session: u64, job: Job },
    Submit { number: usize },
    Crash { who: usize },
    Start { who: usize },
}

/// What one schedule is made of.
pub struct World {
    seed: u64,
    random: RandomStream,
    now: Instant,
    sequence: u64,
    events: BTreeMap<(Instant, u64), Event>,
    /// When the last message of each direction arrives: none overtakes another.
    last: BTreeMap<(usize, bool), Instant>,
    topology: Topology,
    config: CoordinatorConfig,
    coordinator: Option<Coordinator<DefaultPlanner>>,
    epoch: u64,
    /// Durable at the controller.
    snapshots: BTreeMap<TransferId, TransferSnapshot>,
    next_transfer: TransferId,
    registered: Vec<Option<u64>>,
    sites: Vec<Site>,
    requests: Vec<TransferRequest>,
    lengths: Vec<u64>,
    ids: BTreeMap<TransferId, usize>,
    files: u64,
    /// Nothing breaks.
    is_calm: bool,
    log: u64,
}

const CONTROLLER: usize = 4;

fn hash(content: u8) -> FileHash {
    FileHash([content; 32])
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Seed::new(seed).stream("faults", 0);
        let mut topology = Topology::new("five");
        for name in ["s", "r", "d", "e"] {
            topology.add_site(name, None).expect("names differ");
        }
        for (a, b) in [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)] {
            let properties = LinkProperties::new(BitRate::mbps(100), Duration::from_ms(1));
            topology.add_cable(SiteId(a), SiteId(b), properties).expect("a good cable");
        }
        let joint = (random.below(2) == 0).then(JointConfig::default);
        let config = CoordinatorConfig { joint, ..CoordinatorConfig::default() };
        let count = 1 + random.below(4) as usize;
        let (mut requests, mut lengths) = (Vec::new(), Vec::new());
        for number in 0..count {
            let path = ["a", "./a", "b", "c"][random.below(4) as usize];
            let to: &[u16] = [&[2][..], &[3], &[2, 3]][random.below(3) as usize];
            requests.push(TransferRequest {
                source: SiteId(0),
                source_path: format!("from-{number}"),
                destinations: to
                    .iter()
                    .map(|d| Destination { site: SiteId(*d), path: path.into() })
                    .collect(),
                avoid_sites: vec![],
                avoid_links: vec![],
                scheme: SchemeChoice::Auto,
                hop: HopSettings { stripes: 1, congestion_control: None, priority: Priority::Bulk },
                hop_overrides: vec![],
                bandwidth_limit: None,
                symbol_bytes: 16_384,
                buffer_packets: 4,
                on_corrupt: CorruptPolicy::Repair,
                fill: false,
                submitter: Default::default(),
                replace: random.below(3) == 0,
            });
            lengths.push([1, 1_000, 300_001, 3 << 20][random.below(4) as usize]);
        }
        let site = || Site {
            disk: Disk::default(),
            session: None,
            daemon: Daemon::new("/srv", 1 << 30),
            runs: BTreeMap::new(),
        };
        let mut new = Self {
            seed,
            random,
            now: Instant::ZERO,
            sequence: 0,
            events: BTreeMap::new(),
            last: BTreeMap::new(),
            topology,
            config,
            coordinator: None,
            epoch: 0,
            snapshots: BTreeMap::new(),
            next_transfer: TransferId(1),
            registered: vec![None; 4],
            sites: (0..4).map(|_| site()).collect(),
            requests,
            lengths,
            ids: BTreeMap::new(),
            files: 0,
            is_calm: true,
            log: 0xcbf2_9ce4_8422_2325,
        };
        new.draw_faults();
        new
    }

    /// Which faults there are, and how many, is drawn for each schedule.
    fn draw_faults(&mut self) {
        for who in [CONTROLLER, 0, 1, 2, 3] {
            self.push(Duration::ZERO, Event::Start { who });
        }
        for number in 0..self.requests.len() {
            let after = self.draw_ms(4_000);
            self.push(after, Event::Submit { number });
        }
        let kinds: Vec<usize> = (0..5).filter(|_| self.random.below(2) == 0).collect();
        if kinds.is_empty() {
            return;
        }
        for _ in 0..self.random.below(12) {
            let who = kinds[self.random.below(kinds.len() as u64) as usize];
            let at = self.draw_ms(CHAOS.as_us() / 1_000);
            let most = if self.random.below(3) == 0 { 8_000 } else { 400 };
            let back = at + self.draw_ms(most);
            self.is_calm = false;
            self.push(at, Event::Crash { who });
            self.push(back.min(CHAOS), Event::Start { who });
        }
    }

    fn draw_ms(&mut self, below: u64) -> Duration {
        Duration::from_ms(self.random.below(below))
    }

    fn push(&mut self, after: Duration, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + after, self.sequence), event);
    }

    /// Sends something so that it overtakes nothing of its direction.
    fn send(&mut self, direction: (usize, bool), event: Event) {
        let delay = self.draw_ms(40);
        let last = self.last.get(&direction).copied().unwrap_or(Instant::ZERO);
        let at = last.max(self.now + delay);
        self.last.insert(direction, at);
        self.push(at.saturating_since(self.now), event);
    }

    fn note(&mut self, text: &str) {
        for byte in text.bytes().chain(self.now.saturating_since(Instant::ZERO).as_ps().to_le_bytes()) {
            self.log = (self.log ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if crate::faults::is_shown() {
            println!("{:>8} ms  {text}", self.now.saturating_since(Instant::ZERO).as_us() / 1_000);
        }
    }

    /// Runs it to its end: the log's hash, and how much time passed.
    pub fn run(mut self) -> (u64, f64) {
        let end = Instant::ZERO + CHAOS + HEALING + SWEEP;
        let mut ticks = 0;
        let mut over_at = None;
        while self.now < end {
            while let Some(entry) = self.events.first_entry().filter(|e| e.key().0 <= self.now) {
                let event = entry.remove();
                self.handle(event);
            }
            self.move_data(ticks);
            self.keep_time();
            self.check();
            let is_late = self.is_calm && self.now >= Instant::ZERO + CHAOS && !self.is_over();
            assert!(!is_late, "seed {}: nothing broke, and transfers go on after {CHAOS}", self.seed);
            if self.now >= Instant::ZERO + CHAOS && self.is_over() {
                let since = *over_at.get_or_insert(self.now);
                if self.now >= since + SWEEP {
                    break;
                }
            }
            self.now += TICK;
            ticks += 1;
        }
        self.check_end();
        (self.log, self.now.saturating_since(Instant::ZERO).as_secs_f64())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start { who: CONTROLLER } if self.coordinator.is_none() => {
                self.note("controller starts");
                self.epoch += 1;
                let snapshots = self.snapshots.values().cloned().collect();
                let coordinator = Coordinator::restore(
                    self.config.clone(),
                    self.topology.clone(),
                    DefaultPlanner,
                    self.now,
                    self.next_transfer,
                    snapshots,
                );
                self.coordinator = Some(coordinator.expect("what it wrote fits"));
                for site in 0..4 {
                    if let Some(session) = self.sites[site].session {
                        self.send((site, true), Event::Register { site, session });
                    }
                }
                self.drain();
            }
            Event::Start { who } if who != CONTROLLER && self.sites[who].session.is_none() => {
                self.note(&format!("site {who} starts"));
                let session = self.random.next_u64();
                let site = &mut self.sites[who];
                (site.session, site.daemon) = (Some(session), Daemon::new("/srv", 1 << 30));
                site.runs.clear();
                self.send((who, true), Event::Register { site: who, session });
            }
            Event::Crash { who: CONTROLLER } => {
                self.note("controller dies");
                self.coordinator = None;
                self.registered = vec![None; 4];
            }
            Event::Crash { who } if who < CONTROLLER => {
                if let Some(session) = self.sites[who].session.take() {
                    self.note(&format!("site {who} dies"));
                    self.sites[who].runs.clear();
                    // Nothing that verified nothing is left.
                    self.sites[who].disk.partial.retain(|_, (_, pieces)| !pieces.is_empty());
                    self.push(GRACE, Event::Missed { site: who, session });
                }
            }
            Event::Start { .. } | Event::Crash { .. } => {}
            Event::Submit { number } => {
                let Some(coordinator) = &mut self.coordinator else {
                    return self.push(Duration::from_ms(500), Event::Submit { number });
                };
                let id = coordinator.submit(self.now, self.requests[number].clone()).expect("a good request");
                self.next_transfer = coordinator.next_transfer();
                self.ids.insert(id, number);
                self.drain();
            }
            Event::Register { site, session } => {
                if self.sites[site].session != Some(session) {
                    return;
                }
                let Some(coordinator) = &mut self.coordinator else {
                    return self.push(Duration::from_ms(300), Event::Register { site, session });
                };
                self.registered[site] = Some(session);
                let id = SiteId(site as u16);
                let addresses = self.topology.links_in(id).map(|l| (l, "x:1".to_owned()));
                coordinator.handle_site_up(self.now, id, session, addresses);
                self.drain();
            }
            Event::Missed { site, session } => {
                if self.registered[site] == Some(session)
                    && let Some(coordinator) = &mut self.coordinator
                {
                    self.registered[site] = None;
                    coordinator.handle_site_down(self.now, SiteId(site as u16));
                    self.drain();
                }
            }
            Event::Command { site, session, epoch, command } => {
                if self.sites[site].session == Some(session)
                    && self.epoch == epoch
                    && self.coordinator.is_some()
                {
                    self.sites[site].daemon.handle_command(self.now, command);
                    self.turn(site);
                }
            }
            Event::Report { site, session, report } => {
                if self.sites[site].session != Some(session) {
                    return;
                }
                match &mut self.coordinator {
                    Some(coordinator) if self.registered[site] == Some(session) => {
                        coordinator.handle_report(self.now, SiteId(site as u16), report);
                        self.drain();
                    }
                    // It is said again until somebody hears it.
                    _ => self.send((site, true), Event::Report { site, session, report }),
                }
            }
            Event::Done { site, session, job } => {
                if self.sites[site].session == Some(session) {
                    let (transfer, done) = (job.transfer(), self.carry_out(site, job));
                    self.sites[site].daemon.handle_done(self.now, transfer, done);
                    self.turn(site);
                }
            }
        }
    }

    /// First what changed is durable, then commands leave.
    fn drain(&mut self) {
        let Some(coordinator) = &mut self.coordinator else { return };
        while let Some(id) = coordinator.poll_changed() {
            match coordinator.snapshot(id) {
                Some(snapshot) => drop(self.snapshots.insert(id, snapshot)),
                None => drop(self.snapshots.remove(&id)),
            }
        }
        let commands: Vec<_> = std::iter::from_fn(|| coordinator.poll_command()).collect();
        let events: Vec<_> = std::iter::from_fn(|| coordinator.poll_event()).collect();
        for event in events {
            let text = format!("{event:?}");
            if !text.contains("Progress") {
                self.note(&text);
            }
        }
        for (site, command) in commands {
            let site = site.index();
            if let Some(session) = self.registered[site] {
                self.send((site, false), Event::Command { site, session, epoch: self.epoch, command });
            }
        }
    }

    /// A daemon's jobs and reports.
    fn turn(&mut self, site: usize) {
        let Some(session) = self.sites[site].session else { return };
        let reports: Vec<_> = std::iter::from_fn(|| self.sites[site].daemon.poll_report()).collect();
        for report in reports {
            if !matches!(report, Report::Progress { .. }) {
                self.note(&format!("site {site} says {report:?}"));
            }
            self.send((site, true), Event::Report { site, session, report });
        }
        while let Some(job) = self.sites[site].daemon.poll_job() {
            let takes = self.draw_ms(80);
            self.push(takes, Event::Done { site, session, job });
        }
    }

    fn path(name: &str) -> String {
        normal(name).expect("names are good")
    }

    fn have(&self, site: usize, path: &str) -> Vec<ByteRange> {
        let pieces = self.sites[site].disk.partial.get(path).map_or(&[][..], |(_, pieces)| pieces);
        RangeSet::from_ranges(pieces.iter().map(|(range, _)| *range)).ranges().to_vec()
    }

    fn carry_out(&mut self, site: usize, job: Job) -> Done {
        match job {
            Job::Inquire { run, is_source: true, .. } => {
                let length = Some(self.lengths[self.ids[&run.transfer]]);
                Done::Answer(Report::Inventory { run, length, have: vec![], hash: None, attributes: None })
            }
            Job::Inquire { run, path, .. } => {
                let path = Self::path(&path);
                let finished = self.sites[site].disk.finished.get(&path);
                let (hash, length) = finished.map(|(content, length)| (hash(*content), *length)).unzip();
                let have = self.have(site, &path);
                Done::Answer(Report::Inventory { run, length, have, hash, attributes: None })
            }
            Job::Install { program } => {
                let file = program.sinks.first().map(|sink| {
                    let (files, length) = (&mut self.files, program.length);
                    let entry = self.sites[site].disk.partial.entry(Self::path(&sink.path));
                    let (number, pieces) = entry.or_insert_with(|| {
                        *files += 1;
                        (*files, Vec::new())
                    });
                    pieces.retain(|(range, _)| range.end <= length);
                    *number
                });
                let run = program.run;
                let running = Running {
                    program: *program,
                    file,
                    verified: 0,
                    is_ready: false,
                    is_source_done: false,
                    is_sink_done: false,
                    is_broken: false,
                };
                self.sites[site].runs.insert(run, running);
                Done::Installed
            }
            Job::Remove { run } => {
                self.sites[site].runs.remove(&run);
                Done::Nothing
            }
            Job::Forget { transfer } => {
                self.sites[site].runs.retain(|run, _| run.transfer != transfer);
                Done::Nothing
            }
            Job::Hash { run, .. } => {
                Done::Answer(Report::Hashed { run, hash: hash(self.ids[&run.transfer] as u8 + 1) })
            }
            Job::Audit { .. } => Done::Nothing,
            Job::Finish(file) => self.finish(site, &file),
        }
    }

    fn finish(&mut self, site: usize, file: &Finish) -> Done {
        let (run, path) = (file.run, Self::path(&file.path));
        let total: u64 = self.have(site, &path).iter().map(|r| r.len()).sum();
        let writes = self.sites[site].runs.get(&run).is_some_and(|running| running.file.is_some());
        if writes && total < file.length {
            return Done::NotYet;
        }
        let disk = &mut self.sites[site].disk;
        let there = disk.finished.get(&path).copied();
        let Some((_, pieces)) = disk.partial.get_mut(&path) else {
            let is_it = there.is_some_and(|(content, _)| hash(content) == file.hash);
            return Done::Answer(match is_it {
                true => Report::Completed { run },
                false => Report::SinkDone { run, have: vec![] },
            });
        };
        pieces.retain(|(range, _)| range.end <= file.length);
        let whole = RangeSet::from_ranges(pieces.iter().map(|(range, _)| *range)).total() == file.length;
        if !whole || pieces.iter().any(|(_, content)| hash(*content) != file.hash) {
            if whole {
                pieces.clear();
            }
            return Done::Answer(Report::SinkDone { run, have: self.have(site, &path) });
        }
        let content = file.hash.0[0];
        if there.is_some_and(|(other, _)| other != content) && !file.replace {
            let (kind, reason) = (FailureKind::Unwritable, "another file has this name".to_owned());
            return Done::Answer(Report::Failed { run, kind, reason });
        }
        disk.finished.insert(path.clone(), (content, file.length));
        disk.partial.remove(&path);
        Done::Answer(Report::Completed { run })
    }

    /// Which of a run's hops stand, and what moves over them.
    fn move_data(&mut self, ticks: u64) {
        let runs: BTreeSet<Run> = self.sites.iter().flat_map(|s| s.runs.keys().copied()).collect();
        for run in runs {
            let there: BTreeSet<usize> = (0..4).filter(|i| self.sites[*i].runs.contains_key(&run)).collect();
            for &i in &there {
                let running = &self.sites[i].runs[&run];
                let lost = running.program.outgoing.iter().map(|o| (o.flow, o.to));
                let lost = lost.chain(running.program.incoming.iter().map(|o| (o.flow, o.from)));
                let lost = lost.clone().find(|(_, peer)| !there.contains(&peer.index()));
                let outgoing_stand = running.program.outgoing.iter().all(|o| there.contains(&o.to.index()));
                let is_over = running.is_sink_done || running.is_source_done;
                if let Some((flow, peer)) =
                    lost.filter(|_| running.is_ready && !running.is_broken && !is_over)
                {
                    self.sites[i].runs.get_mut(&run).expect("it is there").is_broken = true;
                    let (unconnected, reason) = (false, "it went away".to_owned());
                    self.say(i, Report::HopFailed { run, flow, peer, unconnected, reason });
                } else if !running.is_ready
                    && outgoing_stand
                    && running.program.incoming.iter().all(|o| there.contains(&o.from.index()))
                {
                    self.sites[i].runs.get_mut(&run).expect("it is there").is_ready = true;
                    self.say(i, Report::Ready { run });
                }
            }
            let Some(source) =
                there.iter().copied().find(|i| self.sites[*i].runs[&run].program.source_path.is_some())
            else {
                continue;
            };
            let flows = |i: usize| self.sites[i].runs[&run].is_ready && !self.sites[i].runs[&run].is_broken;
            let all_stand = there.iter().all(|i| flows(*i));
            let content = self.ids[&run.transfer] as u8 + 1;
            let mut is_all_sent = all_stand;
            for &i in there.iter().filter(|_| all_stand) {
                is_all_sent &= self.bring(i, run, content);
            }
            if is_all_sent && !self.sites[source].runs[&run].is_source_done {
                let running = self.sites[source].runs.get_mut(&run).expect("it is there");
                running.is_source_done = true;
                let whole =
                    running.program.groups[0].work == [ByteRange { start: 0, end: running.program.length }];
                let hash = (whole && running.program.groups.len() == 1).then(|| hash(content));
                self.say(source, Report::SourceDone { run, hash });
            }
            if ticks.is_multiple_of(PROGRESS_TICKS) {
                for &i in &there {
                    let verified_bytes = self.sites[i].runs[&run].verified;
                    self.say(i, Report::Progress { run, verified_bytes, sink_stalled: 0.0, flows: vec![] });
                }
            }
        }
    }

    /// Some more of a run's file arrives at a site. True if the source has sent all of it.
    fn bring(&mut self, site: usize, run: Run, content: u8) -> bool {
        let Site { disk, runs, .. } = &mut self.sites[site];
        let running = runs.get_mut(&run).expect("it is there");
        let Some(sink) = running.program.sinks.first() else { return true };
        let path = Self::path(&sink.path);
        let work = &running.program.groups[usize::from(sink.group)].work;
        let mut skip = running.verified;
        let mut left = STEP;
        for range in work {
            let start = range.start + skip.min(range.len());
            skip -= skip.min(range.len());
            let end = range.end.min(start + left);
            if start < end {
                let piece = ByteRange { start, end };
                // What goes to a file that was finished or is another one goes nowhere.
                if let Some((number, pieces)) = disk.partial.get_mut(&path)
                    && Some(*number) == running.file
                {
                    write(pieces, (piece, content));
                }
                running.verified += piece.len();
                left -= piece.len();
            }
        }
        let total: u64 = work.iter().map(|r| r.len()).sum();
        if running.verified < total {
            return running.verified + ON_THE_WAY >= total;
        }
        if !std::mem::replace(&mut running.is_sink_done, true) {
            let have = self.have(site, &path);
            self.say(site, Report::SinkDone { run, have });
        }
        true
    }

    fn say(&mut self, site: usize, report: Report) {
        self.sites[site].daemon.handle_report(self.now, report);
        self.turn(site);
    }

    fn keep_time(&mut self) {
        for site in 0..4 {
            if self.sites[site].session.is_some()
                && self.sites[site].daemon.poll_timeout().is_some_and(|t| t <= self.now)
            {
                self.sites[site].daemon.handle_timeout(self.now);
                self.turn(site);
            }
        }
        if let Some(coordinator) = &mut self.coordinator
            && coordinator.poll_timeout().is_some_and(|t| t <= self.now)
        {
            coordinator.handle_timeout(self.now);
            self.drain();
        }
    }

    fn is_over(&self) -> bool {
        let is_done = |id| self.snapshots.get(id).is_some_and(|s| s.outcome.is_some());
        self.ids.len() == self.requests.len() && self.ids.keys().all(is_done)
    }

    /// Contents that may stand under a name of a site.
    fn allowed(&self, site: usize, path: &str) -> BTreeSet<u8> {
        let wants = |r: &TransferRequest| {
            r.destinations.iter().any(|d| d.site.index() == site && Self::path(&d.path) == path)
        };
        (0..self.requests.len()).filter(|n| wants(&self.requests[*n])).map(|n| n as u8 + 1).collect()
    }

    /// What holds after every step.
    fn check(&self) {
        for (site, s) in self.sites.iter().enumerate() {
            for (path, (content, length)) in &s.disk.finished {
                let seed = self.seed;
                assert!(
                    self.allowed(site, path).contains(content),
                    "seed {seed}: {path} at {site} is nobody's"
                );
                let n = usize::from(*content) - 1;
                assert_eq!(*length, self.lengths[n], "seed {seed}: {path} at {site} is not whole");
            }
            assert!(s.daemon.memory_bytes() <= 1 << 30);
        }
    }

    /// What holds in the end.
    fn check_end(&self) {
        let seed = self.seed;
        assert!(self.is_over(), "seed {seed}: transfers go on after {HEALING}");
        for (site, s) in self.sites.iter().enumerate() {
            let left: Vec<Run> = s.daemon.attempts().collect();
            assert!(s.daemon.is_idle() && left.is_empty(), "seed {seed}: site {site} still has {left:?}");
        }
        for (id, number) in &self.ids {
            let (request, snapshot) = (&self.requests[*number], &self.snapshots[id]);
            for (d, state) in request.destinations.iter().zip(&snapshot.destinations) {
                let (site, path) = (d.site.index(), Self::path(&d.path));
                let is_alone = self.allowed(site, &path).len() == 1;
                let is_done = state.verdict == Some(Verdict::Done);
                assert!(is_done || !is_alone, "seed {seed}: {id} to {site}: {:?}", state.verdict);
                assert!(
                    !is_done || self.sites[site].disk.finished.contains_key(&path),
                    "seed {seed}: {path} is gone"
                );
            }
        }
    }
}

/// Writes a piece over what was there.
fn write(pieces: &mut Vec<Piece>, (new, content): Piece) {
    let mut kept: Vec<Piece> = Vec::new();
    for (old, whose) in pieces.drain(..) {
        for part in [
            ByteRange { start: old.start, end: old.end.min(new.start) },
            ByteRange { start: old.start.max(new.end), end: old.end },
        ] {
            if part.start < part.end {
                kept.push((part, whose));
            }
        }
    }
    kept.push((new, content));
    *pieces = kept;
}
