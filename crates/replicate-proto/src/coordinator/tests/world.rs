//! A network of simulated sites that obey a coordinator, fail, and return, with a simulated clock.
//!
//! Leaves out: assertions (`tests`).

use super::super::*;
use crate::control::{
    DirectoryRules, EntryCounts, Finish, FlowDigest, FlowSide, FoldedNames, Inventory, LeftCause, LeftEntry,
    Priority, Submitter, Unsettled,
};
use crate::plan::{Flow, Group, Input, Mode, Scheme, Sink, Term};
use anabranch_graph::LinkProperties;
use anabranch_pieces::{Attributes, ByteRange};
use anabranch_sets::comparison::{Comparison, DifferenceKind, DifferentEntry};
use anabranch_sets::folding::{Collisions, Folding};

pub(super) const LENGTH: u64 = 1_000_000;
pub(super) const HASH: FileHash = FileHash([7; 32]);
pub(super) const ATTRIBUTES: Attributes = Attributes { mode: 0o640, modified_ns: 5 };
pub(super) const TICK: Duration = Duration::from_ms(100);
/// Bytes that reach every sink in a tick without faults: the planned 20 Mbit/s.
pub(super) const STEP: u64 = 250_000;

pub(super) fn whole() -> Vec<ByteRange> {
    vec![ByteRange { start: 0, end: LENGTH }]
}

pub(super) fn whole_of(length: u64) -> Vec<ByteRange> {
    ranges::missing(&[], length)
}

pub(super) fn topology(sites: usize, cables: &[(u16, u16)]) -> Topology {
    let mut t = Topology::new("test");
    for i in 0..sites {
        t.add_site(format!("s{i}"), None).expect("names differ");
    }
    for &(a, b) in cables {
        let properties = LinkProperties::new(BitRate::mbps(20), Duration::from_ms(1));
        t.add_cable(SiteId(a), SiteId(b), properties).expect("a good cable");
    }
    t
}

/// Nine sites and 13 cables: Internet2.
pub(super) fn internet2() -> Topology {
    let cables = [
        (0, 1),
        (0, 2),
        (1, 2),
        (1, 3),
        (2, 4),
        (3, 4),
        (3, 5),
        (4, 6),
        (5, 6),
        (5, 7),
        (6, 7),
        (6, 8),
        (7, 8),
    ];
    topology(9, &cables)
}

/// One shortest-path tree, by breadth-first search: destinations relay the data that they receive.
pub(super) fn tree_planner(request: &PlanRequest<'_>) -> Result<Plan, String> {
    let t = request.topology;
    let mut via: BTreeMap<SiteId, LinkId> = BTreeMap::new();
    let mut queue = VecDeque::from([request.source]);
    if request.fill {
        return filled_plan(request);
    }
    while let Some(site) = queue.pop_front() {
        for link in t.links_out(site) {
            let to = t.link(link).to;
            if to != request.source
                && !via.contains_key(&to)
                && !request.avoid_sites.contains(&to)
                && !request.avoid_links.contains(&link)
            {
                via.insert(to, link);
                queue.push_back(to);
            }
        }
    }
    let mut order: Vec<LinkId> = Vec::new();
    for &d in request.destinations {
        let mut at = d;
        let mut path = Vec::new();
        while at != request.source {
            let link = *via.get(&at).ok_or_else(|| format!("no path from {} to {d}", request.source))?;
            path.push(link);
            at = t.link(link).from;
        }
        path.reverse();
        path.retain(|l| !order.contains(l));
        order.extend(path);
    }
    let flow_into = |site: SiteId| {
        order
            .iter()
            .position(|l| t.link(*l).to == site)
            .map(|i| FlowId(i as u32))
            .expect("the tree reaches it")
    };
    let flows = order
        .iter()
        .map(|&link| {
            let from = t.link(link).from;
            let input = if from == request.source { Input::Stream(0) } else { Input::Flow(flow_into(from)) };
            Flow { group: 0, link, terms: vec![Term { input, coefficient: 1, delayed: false }] }
        })
        .collect();
    let sinks = request
        .destinations
        .iter()
        .map(|&site| Sink { site, inputs: vec![flow_into(site)], decode: None })
        .collect();
    Ok(Plan {
        scheme: Scheme::Steiner,
        source: request.source,
        destinations: request.destinations.to_vec(),
        unit: BitRate::mbps(20),
        groups: vec![Group { streams: 1, weights: vec![], mode: Mode::Routed, sinks, fills: None }],
        flows,
        rate: BitRate::mbps(20),
        bound: BitRate::mbps(20),
        store_and_forward: false,
    })
}

/// A plan of the real planner with filling groups.
pub(super) fn filled_plan(request: &PlanRequest<'_>) -> Result<Plan, String> {
    let mut asked = crate::plan::Request::new(request.topology, request.source, request.destinations);
    asked.avoid_sites = request.avoid_sites.to_vec();
    asked.avoid_links = request.avoid_links.to_vec();
    let planner = crate::plan::Planner::new(asked).map_err(|e| e.to_string())?;
    let planned = planner.plan(Scheme::SinglePath).map_err(|e| e.to_string())?;
    Ok(planner.fill(&planned.plan))
}

pub(in crate::coordinator) fn request(source: u16, destinations: &[u16]) -> TransferRequest {
    TransferRequest {
        replace: false,
        source: SiteId(source),
        source_path: "/data/in".into(),
        destinations: destinations
            .iter()
            .map(|&d| Destination { site: SiteId(d), path: "/data/out".into() })
            .collect(),
        avoid_sites: vec![],
        avoid_links: vec![],
        scheme: SchemeChoice::Auto,
        hop: HopSettings { stripes: 1, congestion_control: None, priority: Priority::Bulk },
        hop_overrides: vec![],
        bandwidth_limit: None,
        symbol_bytes: 9_000,
        buffer_packets: 4,
        on_corrupt: CorruptPolicy::Repair,
        fill: false,
        submitter: Submitter::Operator,
        rules: DirectoryRules::default(),
    }
}

pub(super) type PlannerFn = fn(&PlanRequest<'_>) -> Result<Plan, String>;

#[derive(Default)]
pub(super) struct FakeSite {
    pub(super) alive: bool,
    pub(super) session: u64,
    /// Time of the site's failure, until the driver has reported it to the coordinator.
    pub(super) died: Option<Instant>,
    pub(super) inbox: VecDeque<Command>,
    pub(super) have: Vec<ByteRange>,
    pub(super) finished: bool,
    /// Mode of the finished file, if the site reports it.
    pub(super) mode: Option<u32>,
    /// Length and hash of another file with the same name.
    pub(super) other: Option<(u64, FileHash)>,
    pub(super) program: Option<SiteProgram>,
    /// At a source: whether every hop of its program was connected.
    pub(super) connected: bool,
    pub(super) finish_later: Option<Command>,
    pub(super) sink_told: bool,
    pub(super) source_told: bool,
    pub(super) verified: u64,
    pub(super) corrupt_told: bool,
    pub(super) hop_told: bool,
    /// Runs whose removal the site received, for assertions.
    pub(super) removed: Vec<Run>,
    pub(super) forgotten: bool,
    // Faults of the site.
    pub(super) disk_full: bool,
    pub(super) deaf: bool,
    pub(super) refuses: bool,
    /// Other transfers hold the resources for the site's part.
    pub(super) is_busy: bool,
    /// The site has room for one attempt at a time.
    pub(super) has_one_place: bool,
    /// The last attempt for which the site had no room.
    pub(super) refused: Option<Run>,
    /// The site refuses only programs with filling groups.
    pub(super) refuses_fill: bool,
    pub(super) slow_divisor: u64,
    pub(super) flips_bits: bool,
    pub(super) finish_fails: u32,
    pub(super) knows_no_hash: bool,
    pub(super) remembers_hash: bool,
}

/// A destination's directory.
#[derive(Default)]
pub(super) struct FakeDirectory {
    /// Ranges in other files, which are found once the head of the stream is there.
    pub(super) local: Vec<ByteRange>,
    /// Snapshot to which the arrived ranges belong.
    pub(super) arriving: Option<FileHash>,
    /// The site loses each head that it gets.
    pub(super) loses_heads: bool,
    /// Entries that the site leaves because another program changed them.
    pub(super) conflicts: u64,
    /// Entries that the site lacks when it compares.
    pub(super) missing: u64,
    /// Rules of the commands that the site got, for assertions.
    pub(super) rules: Vec<DirectoryRules>,
    /// The site never ends to write the directory.
    pub(super) writes_slowly: bool,
    /// Numbers of the sources whose directories the site wrote.
    pub(super) origins: Vec<u64>,
    /// Differences between names that its file system ignores.
    pub(super) folding: Folding,
}

impl FakeDirectory {
    /// Writes the directory.
    fn written(&mut self, Finish { run, rules, origin, unsettled, .. }: Finish) -> Report {
        let compares = rules.compare;
        self.rules.push(rules);
        self.origins.push(origin);
        if compares {
            let entry = DifferentEntry { kind: DifferenceKind::Missing, path: "x".repeat(9_000), from: None };
            let named = vec![entry; 1_000];
            let comparison = Comparison { missing: self.missing, named, ..Comparison::default() };
            return Report::Compared { run, comparison };
        }
        let entries = EntryCounts {
            surplus: Some(2),
            deleted: 1,
            conflicts: self.conflicts,
            unsettled: unsettled.len() as u64,
        };
        let is_left = self.conflicts > 0 || entries.unsettled > 0;
        let conflicts = is_left.then(|| "in/x: changed here".to_owned());
        let entry = LeftEntry { cause: LeftCause::Conflict, path: "x".repeat(9_000) };
        let left = if is_left { vec![entry; 1_000] } else { Vec::new() };
        Report::Written { run, entries, conflicts, left }
    }

    /// Adds the ranges in other files to `have` if it has the head.
    fn find_local(&self, have: &mut Vec<ByteRange>, head_bytes: u64, length: u64) {
        let of_head = ranges::normal(have, head_bytes);
        if self.arriving == Some(HASH) && ranges::missing(&of_head, head_bytes).is_empty() {
            *have = ranges::normal(&[&have[..], &self.local[..]].concat(), length);
        }
    }
}

/// The ranges of an attempt's work that a site lacks.
fn gaps(have: &[ByteRange], work: &[ByteRange], length: u64) -> Vec<ByteRange> {
    ranges::common(&ranges::missing(&ranges::normal(have, length), length), work)
}

pub(super) struct World {
    pub(super) coordinator: Coordinator<PlannerFn>,
    pub(super) now: Instant,
    pub(super) sites: Vec<FakeSite>,
    pub(super) dead_links: BTreeSet<LinkId>,
    /// Sites to which no other site can connect.
    pub(super) walled: BTreeSet<SiteId>,
    pub(super) length: u64,
    /// Of destinations of a directory: their state.
    pub(super) directories: BTreeMap<SiteId, FakeDirectory>,
    /// Number of finishes that sites refuse because they are busy.
    pub(super) busy_finishes: u32,
    /// Number of questions for the hash that the source still refuses because it is busy.
    pub(super) busy_hashes: u32,
    /// Of a directory: bytes of its stream's head.
    pub(super) head_bytes: Option<u64>,
    /// Of a directory: entries that its source cannot send.
    pub(super) unsettled: Unsettled,
    /// Of a directory: entries with equal names.
    pub(super) collisions: Vec<Collisions>,
    pub(super) events: Vec<Event>,
    pub(super) store: BTreeMap<TransferId, String>,
    pub(super) next_id: TransferId,
    pub(super) config: CoordinatorConfig,
}

impl World {
    pub(super) fn new(topology: Topology) -> Self {
        Self::with(topology, CoordinatorConfig::default())
    }

    pub(super) fn with(topology: Topology, config: CoordinatorConfig) -> Self {
        let sites =
            topology.site_ids().map(|_| FakeSite { slow_divisor: 1, ..FakeSite::default() }).collect();
        let now = Instant::ZERO;
        let planner: PlannerFn = tree_planner;
        let mut world = Self {
            coordinator: Coordinator::new(config.clone(), topology, planner, now),
            now,
            sites,
            dead_links: BTreeSet::new(),
            walled: BTreeSet::new(),
            length: LENGTH,
            directories: BTreeMap::new(),
            busy_finishes: 0,
            busy_hashes: 0,
            head_bytes: None,
            unsettled: Unsettled::default(),
            collisions: vec![],
            events: vec![],
            store: BTreeMap::new(),
            next_id: TransferId(1),
            config,
        };
        for site in world.coordinator.topology().site_ids() {
            world.start(site);
        }
        world
    }

    pub(super) fn register(&mut self, site: SiteId) {
        let t = self.coordinator.topology();
        let addresses: Vec<_> = t.links_in(site).map(|l| (l, format!("10.0.0.{l}:7000"))).collect();
        self.coordinator.handle_site_up(self.now, site, self.sites[site.index()].session, addresses);
    }

    pub(super) fn start(&mut self, site: SiteId) {
        let s = &mut self.sites[site.index()];
        s.alive = true;
        s.died = None;
        s.session += 1;
        s.inbox.clear();
        s.program = None;
        self.register(site);
    }

    pub(super) fn kill(&mut self, site: SiteId) {
        let s = &mut self.sites[site.index()];
        if s.alive {
            s.alive = false;
            s.died = Some(self.now);
            s.program = None;
            s.inbox.clear();
        }
    }

    /// Kills the controller and restarts it from the durable state.
    pub(super) fn restart_controller(&mut self) {
        let snapshots = self.store.values().map(|s| serde_json::from_str(s).expect("we wrote it")).collect();
        let planner: PlannerFn = tree_planner;
        let topology = self.coordinator.topology().clone();
        self.coordinator =
            Coordinator::restore(self.config.clone(), topology, planner, self.now, self.next_id, snapshots)
                .expect("the store fits");
        self.register_all();
    }

    pub(super) fn register_all(&mut self) {
        for i in 0..self.sites.len() {
            self.sites[i].inbox.clear();
            if self.sites[i].alive {
                self.register(SiteId(i as u16));
            }
        }
    }

    pub(super) fn drain(&mut self) {
        while let Some(id) = self.coordinator.poll_changed() {
            match self.coordinator.snapshot(id) {
                Some(s) => self.store.insert(id, serde_json::to_string(&s).expect("a snapshot is JSON")),
                None => self.store.remove(&id),
            };
        }
        self.next_id = self.coordinator.next_transfer();
        while let Some((site, command)) = self.coordinator.poll_command() {
            if self.sites[site.index()].alive {
                self.sites[site.index()].inbox.push_back(command);
            }
        }
        while let Some(event) = self.coordinator.poll_event() {
            self.events.push(event);
        }
        let open = self.coordinator.transfer_ids().any(|id| self.outcome(id).is_none());
        assert!(!open || self.coordinator.poll_timeout().is_some(), "a transfer under way has a deadline");
    }

    pub(super) fn report(&mut self, site: SiteId, report: Report) {
        let text = serde_json::to_string(&report).expect("a report is JSON");
        let report = serde_json::from_str(&text).expect("we wrote it");
        self.coordinator.handle_report(self.now, site, report);
        self.drain();
    }

    fn inventory(&mut self, site: SiteId, run: Run, is_source: bool, rules: DirectoryRules) -> Report {
        let (length, head_bytes) = (self.length, self.head_bytes);
        let directory = self.directories.entry(site).or_default();
        directory.rules.push(rules);
        let s = &mut self.sites[site.index()];
        if is_source {
            let (length, hash) = (Some(length), s.remembers_hash.then_some(HASH));
            let (have, attributes, arriving) = (vec![], Some(ATTRIBUTES), None);
            let unsettled = self.unsettled.clone();
            let names = FoldedNames { folding: Folding::NONE, collisions: self.collisions.clone() };
            return Report::Inventory(Inventory {
                run,
                length,
                have,
                hash,
                attributes,
                arriving,
                head_bytes,
                unsettled,
                names,
            });
        }
        if let Some(head_bytes) = head_bytes {
            directory.find_local(&mut s.have, head_bytes, length);
        }
        Report::Inventory(Inventory {
            length: s.finished.then_some(length).or(s.other.map(|(length, _)| length)),
            have: s.have.clone(),
            hash: s.finished.then_some(HASH).or(s.other.map(|(_, hash)| hash)),
            attributes: s.mode.map(|mode| Attributes { mode, modified_ns: 9 }),
            arriving: directory.arriving.filter(|_| !directory.loses_heads),
            names: FoldedNames { folding: directory.folding, collisions: Vec::new() },
            ..Inventory::new(run)
        })
    }

    /// Finishes a file, or the directory. `None` if it is not complete.
    fn finish(&mut self, site: SiteId, file: Finish) -> Option<Report> {
        let (run, hash, length) = (file.run, file.hash, self.length);
        let s = &mut self.sites[site.index()];
        assert_eq!(file.attributes, Some(ATTRIBUTES), "what the source said is passed on");
        let right = if length == 0 { FileHash(*blake3::hash(b"").as_bytes()) } else { HASH };
        // The test with arbitrary reports has a lying source that claims the other hash.
        assert!(hash == right || hash == FileHash([3; 32]));
        let have = ranges::normal(&[&s.have[..], &file.unsettled].concat(), length);
        if have != whole_of(length) && !(s.finished && s.mode.is_some()) {
            let arriving = s.program.as_ref().is_some_and(|p| p.run == run);
            assert!(arriving, "only a whole file, or one that is arriving, is finished");
            s.finish_later = Some(Command::Finish(file));
            return None;
        }
        if s.finish_fails > 0 {
            s.finish_fails -= 1;
            s.have = vec![];
            return Some(Report::SinkDone { run, have: vec![] });
        }
        if self.directories.entry(site).or_default().writes_slowly {
            return None;
        }
        s.finished = true;
        s.mode = s.mode.map(|mode| Attributes::narrowed(mode, ATTRIBUTES.mode));
        Some(match self.head_bytes {
            Some(_) => self.directories.entry(site).or_default().written(file),
            None => Report::Completed { run },
        })
    }

    pub(super) fn obey(&mut self, site: SiteId, command: Command) {
        let text = serde_json::to_string(&command).expect("a command is JSON");
        let command: Command = serde_json::from_str(&text).expect("we wrote it");
        let s = &mut self.sites[site.index()];
        if s.deaf {
            return;
        }
        let answer = match command {
            Command::Inquire { run, is_source, rules, .. } => self.inventory(site, run, is_source, rules),
            Command::Install { program }
                if s.is_busy
                    || s.has_one_place
                        && s.program.as_ref().is_some_and(|p| p.run.transfer != program.run.transfer) =>
            {
                s.refused = Some(program.run);
                Report::Failed {
                    run: program.run,
                    kind: FailureKind::Busy,
                    reason:
                        "4 GiB of memory beside those of other transfers: it begins when others have ended"
                            .into(),
                }
            }
            Command::Install { program }
                if s.refuses || s.refuses_fill && program.groups.iter().any(|g| g.fills.is_some()) =>
            {
                Report::Failed {
                    run: program.run,
                    kind: FailureKind::Refused,
                    reason: "4 GiB of buffers: at most 1 GiB".into(),
                }
            }
            Command::Install { program } if program.outgoing.iter().any(|o| self.walled.contains(&o.to)) => {
                let out =
                    program.outgoing.iter().find(|o| self.walled.contains(&o.to)).expect("there is one");
                let (run, flow, peer) = (program.run, out.flow, out.to);
                Report::HopFailed { run, flow, peer, unconnected: true, reason: "no such host".into() }
            }
            Command::Install { program } => {
                let run = program.run;
                let directory = self.directories.entry(site).or_default();
                if program.snapshot.is_some() && directory.arriving != program.snapshot {
                    directory.arriving = program.snapshot;
                    s.have.clear();
                }
                s.program = Some(*program);
                (s.connected, s.sink_told, s.source_told, s.corrupt_told, s.hop_told) =
                    (false, false, false, false, false);
                (s.verified, s.finish_later) = (0, None);
                Report::Ready { run }
            }
            Command::Uninstall { run } => {
                s.removed.push(run);
                s.program = s.program.take().filter(|p| p.run != run);
                return;
            }
            Command::Finish(file) if s.refused == Some(file.run) => return,
            Command::Finish(file) if self.busy_finishes > 0 => {
                self.busy_finishes -= 1;
                Report::Failed { run: file.run, kind: FailureKind::Busy, reason: "commands wait".into() }
            }
            Command::Finish(file) => match self.finish(site, file) {
                Some(answer) => answer,
                None => return,
            },
            Command::Hash { run, .. } if self.busy_hashes > 0 => {
                self.busy_hashes -= 1;
                Report::Failed { run, kind: FailureKind::Busy, reason: "commands wait".into() }
            }
            Command::Hash { run, .. } => Report::Hashed { run, hash: HASH },
            Command::Forget { .. } => {
                s.forgotten = true;
                return;
            }
            Command::Audit { run, .. } => {
                let digests = self.digests(site, run);
                Report::Audit { run, group: 0, generation: 3, digests }
            }
        };
        self.report(site, answer);
    }

    /// Whether the flow's data was corrupted by its sender or earlier.
    pub(super) fn spoilt(&self, plan: &Plan, flow: FlowId) -> bool {
        let Some(f) = plan.flows.get(flow.index()) else { return false };
        let from = self.coordinator.topology().link(f.link).from;
        self.sites[from.index()].flips_bits
            || f.terms.iter().any(|t| matches!(t.input, Input::Flow(i) if self.spoilt(plan, i)))
    }

    pub(super) fn digests(&self, site: SiteId, run: Run) -> Vec<FlowDigest> {
        let (Some(plan), Some(program)) =
            (self.coordinator.plan(run.transfer), &self.sites[site.index()].program)
        else {
            return vec![];
        };
        let digest = |flow| if self.spoilt(plan, flow) { 666 } else { 1 };
        let received = program.incoming.iter().map(|i| FlowDigest {
            flow: i.flow,
            side: FlowSide::Received,
            digest: digest(i.flow),
        });
        // A site that flips bits does so after it takes the digest, so it claims to have passed on
        // the received data.
        let sent = program.outgoing.iter().map(|o| FlowDigest {
            flow: o.flow,
            side: FlowSide::Sent,
            digest: program.incoming.first().map_or(1, |i| digest(i.flow)),
        });
        received.chain(sent).collect()
    }

    /// Moves data of the run whose program `source` has installed.
    pub(super) fn flow(&mut self, source: SiteId) {
        let Some(program) = self.sites[source.index()].program.clone() else { return };
        if program.source_path.is_none() {
            return;
        }
        let run = program.run;
        let Some(plan) = self.coordinator.plan(run.transfer).cloned() else { return };
        let topology = self.coordinator.topology().clone();
        let takes_part =
            |s: SiteId, w: &Self| w.sites[s.index()].program.as_ref().is_some_and(|p| p.run == run);
        let mut broken = false;
        let ends = |l: LinkId| [topology.link(l).from, topology.link(l).to];
        // Filling flows carry no data in this world, and no site may depend on them.
        let bulk = || plan.flows.iter().enumerate().filter(|(_, f)| !plan.fills(f));
        if bulk().flat_map(|(_, f)| ends(f.link)).all(|s| takes_part(s, self)) {
            self.sites[source.index()].connected = true;
        }
        if !self.sites[source.index()].connected {
            // Sites with a program wait for the sites that have none yet.
            return;
        }
        for (i, flow) in bulk() {
            let (from, to) = (topology.link(flow.link).from, topology.link(flow.link).to);
            if self.dead_links.contains(&flow.link) || !takes_part(from, self) || !takes_part(to, self) {
                broken = true;
                for (site, peer) in [(from, to), (to, from)] {
                    if takes_part(site, self) && !self.sites[site.index()].hop_told {
                        self.sites[site.index()].hop_told = true;
                        let flow = FlowId(i as u32);
                        let reason = "reset".into();
                        self.report(site, Report::HopFailed { run, flow, peer, unconnected: false, reason });
                    }
                }
            }
        }
        if broken {
            return;
        }
        let slowest = plan
            .groups
            .iter()
            .flat_map(|g| &g.sinks)
            .map(|s| self.sites[s.site.index()].slow_divisor)
            .max()
            .unwrap_or(1);
        let groups = plan.groups.iter().filter(|g| g.fills.is_none());
        let sinks: Vec<Sink> = groups.flat_map(|g| g.sinks.clone()).collect();
        let mut all_read = true;
        for sink in sinks {
            let spoilt = self.spoilt(&plan, sink.inputs[0]);
            let length = self.length;
            let s = &mut self.sites[sink.site.index()];
            let Some(program) = s.program.clone() else { continue };
            if s.disk_full && s.verified > 0 {
                let reason = "no space left".to_owned();
                self.report(sink.site, Report::Failed { run, kind: FailureKind::Unwritable, reason });
                return;
            }
            // All sites read the union of the missing data; the slowest sets the rate.
            let work = &program.groups[0].work;
            let mut budget = STEP / slowest;
            s.verified += budget;
            for gap in gaps(&s.have, work, length) {
                let end = gap.end.min(gap.start + budget);
                budget -= end - gap.start;
                if spoilt {
                    continue;
                }
                s.have.push(ByteRange { start: gap.start, end });
            }
            s.have = ranges::normal(&s.have, length);
            let over = s.verified >= ranges::bytes(work);
            all_read &= over;
            let progress = Report::Progress {
                run,
                verified_bytes: if spoilt { 0 } else { s.verified },
                sink_stalled: if s.slow_divisor > 1 { 0.9 } else { 0.0 },
                flows: vec![],
                arrivals: vec![],
            };
            if spoilt {
                for _ in 0..if s.corrupt_told { 0 } else { 20 } {
                    self.report(sink.site, Report::Corrupt { run, group: 0, generation: 3 });
                }
                self.sites[sink.site.index()].corrupt_told = true;
            }
            self.report(sink.site, progress);
            let s = &mut self.sites[sink.site.index()];
            if over && !s.sink_told && s.program.is_some() {
                s.sink_told = true;
                let have = s.have.clone();
                let later = s.finish_later.take().filter(|_| have == whole_of(self.length));
                self.report(sink.site, Report::SinkDone { run, have });
                if let Some(finish) = later {
                    self.obey(sink.site, finish);
                }
            }
        }
        let first = program.groups[0].work == whole_of(self.length);
        let s = &mut self.sites[source.index()];
        if all_read && !s.source_told {
            s.source_told = true;
            let hash = (first && !s.knows_no_hash).then_some(HASH);
            self.report(source, Report::SourceDone { run, hash });
        }
    }

    pub(super) fn tick(&mut self) {
        self.drain();
        for i in 0..self.sites.len() {
            let site = SiteId(i as u16);
            while self.sites[i].alive {
                let Some(command) = self.sites[i].inbox.pop_front() else { break };
                self.obey(site, command);
            }
            if self.sites[i].died.is_some_and(|t| self.now.saturating_since(t) >= Duration::from_secs(2)) {
                self.sites[i].died = None;
                self.coordinator.handle_site_down(self.now, site);
            }
        }
        for i in 0..self.sites.len() {
            self.flow(SiteId(i as u16));
        }
        self.now += TICK;
        if self.coordinator.poll_timeout().is_some_and(|t| t <= self.now) {
            self.coordinator.handle_timeout(self.now);
            let again = self.coordinator.poll_timeout();
            assert!(again.is_none_or(|t| t > self.now), "a deadline that was handled is gone");
        }
        self.drain();
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.tick();
        }
    }

    pub(super) fn outcome(&self, id: TransferId) -> Option<Outcome> {
        self.coordinator.status(id).expect("it is remembered").outcome
    }

    pub(super) fn run_to_end(&mut self, id: TransferId) -> TransferStatus {
        for _ in 0..40_000 {
            if self.outcome(id).is_some() {
                return self.coordinator.status(id).expect("it is remembered");
            }
            self.tick();
        }
        panic!("no end after {}: {:#?}", self.now.as_secs_f64(), self.coordinator.status(id));
    }

    pub(super) fn submit(&mut self, request: TransferRequest) -> TransferId {
        let id = self.coordinator.submit(self.now, request).expect("a good request");
        self.drain();
        id
    }

    pub(super) fn seen(&self, f: impl Fn(&EventKind) -> bool) -> bool {
        self.events.iter().any(|e| f(&e.kind))
    }
}

pub(super) fn verdict(status: &TransferStatus, site: u16) -> &Verdict {
    let d = status.destinations.iter().find(|d| d.site == SiteId(site)).expect("a destination");
    d.verdict.as_ref().expect("it is over")
}
