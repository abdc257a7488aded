//! One attempt at one site: the machine, and the daemon's runner around it without the connections.

use super::disk::piece_hash;
use anabranch_endpoint::Bytes;
use anabranch_pieces::{ByteRange, FileHash};
use anabranch_replicate_proto::control::{
    FailureKind, FlowArrival, FlowDigest, FlowProgress, FlowSide, FlowVector, Report, Run, SiteProgram,
};
use anabranch_replicate_proto::daemon::room::DIGESTS_MAX;
use anabranch_replicate_proto::pace::{Pace, cost};
use anabranch_replicate_proto::plan::{FlowId, Mode};
use anabranch_replicate_proto::site::{Event, Fetch, Packet, Site, Store, Write};
use anabranch_replicate_proto::symbol::Symbol;
use anabranch_units::{Duration, Instant, RandomStream};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Maximum number of wrong generations that an attempt reports.
const CORRUPT_REPORTS_MAX: u32 = 256;

/// Work of the disk for an attempt that stores data before it passes it on.
pub enum DiskTask {
    Store(Store<Bytes>),
    Fetch(Fetch),
}

/// The source's file.
#[derive(Clone)]
pub struct Source {
    pub bytes: Arc<Vec<u8>>,
    pub hash: FileHash,
}

/// Time in which a condition held.
#[derive(Default)]
struct ConditionTime {
    since: Option<Instant>,
    total: Duration,
}

impl ConditionTime {
    fn note(&mut self, now: Instant, is_so: bool) {
        self.total = self.until(now);
        self.since = is_so.then_some(now);
    }
    fn until(&self, now: Instant) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| now.saturating_since(since))
    }
}

/// Counters of a flow at one end.
#[derive(Default)]
struct Counters {
    bytes: u64,
    /// Time in which the sender waits for the connection, or the receiver for room.
    held: ConditionTime,
    /// Time of the last report, and the total of `held` at that time.
    reported: (Instant, Duration),
}

pub struct Runner {
    pub program: SiteProgram,
    pub machine: Site<Bytes>,
    /// The file that the attempt writes, and its number.
    pub file: Option<(String, u64)>,
    source: Option<Source>,
    pace: Option<Pace>,
    /// Instant at which the clock of `pace` is zero.
    begun: Instant,
    /// Whether a fault has occurred. Later faults are its consequences.
    pub is_broken: bool,
    /// Number of missing connections before the attempt is ready.
    pub waiting: usize,
    corrupt: u32,
    digests: BTreeMap<(FlowId, FlowSide), VecDeque<(u64, u64)>>,
    pub writes: VecDeque<Write<Bytes>>,
    pub is_writing: bool,
    pub errands: VecDeque<DiskTask>,
    pub is_on_errand: bool,
    pub shelves: BTreeMap<(FlowId, u64), Packet<Bytes>>,
    counters: BTreeMap<(FlowId, FlowSide), Counters>,
    /// Packet count in each flow's `Frame::End`, once the site's state machine has produced that
    /// frame.
    pub ends: BTreeMap<FlowId, u64>,
    is_source_done: bool,
    /// Connections that have arrived; each may arrive only once.
    pub attached: BTreeSet<(FlowId, u16)>,
    /// Time at which the source's pace lets it continue.
    pub due: Option<Instant>,
    /// Reports that have not been sent.
    pub reports: VecDeque<Report>,
}

/// The digest that both ends of a flow compare.
fn digest(symbol: &[u8]) -> u64 {
    u64::from_le_bytes(blake3::hash(symbol).as_bytes()[..8].try_into().expect("eight bytes"))
}

/// Divides a piece into symbols of equal length, the last padded with zeros.
fn cut(bytes: &[u8], streams: usize, length: usize) -> Vec<Bytes> {
    let symbol = |i: usize| {
        let (start, end) = ((i * length).min(bytes.len()), ((i + 1) * length).min(bytes.len()));
        let mut symbol = bytes[start..end].to_vec();
        symbol.resize(length, 0);
        Bytes::from(symbol)
    };
    (0..streams).map(symbol).collect()
}

impl Runner {
    pub fn new(
        program: SiteProgram,
        file: Option<(String, u64)>,
        source: Option<Source>,
        now: Instant,
    ) -> Self {
        let machine = Site::new(&program).expect("the controller's programs are good");
        let counted =
            program.outgoing.iter().filter(|o| program.groups[usize::from(o.group)].fills.is_none());
        let waiting = counted.map(|o| usize::from(o.hop.stripes)).sum();
        let mut new = Self {
            machine,
            file,
            source: source.filter(|_| program.source_path.is_some()),
            pace: Pace::of(&program),
            begun: now,
            is_broken: false,
            waiting,
            corrupt: 0,
            digests: BTreeMap::new(),
            writes: VecDeque::new(),
            is_writing: false,
            errands: VecDeque::new(),
            is_on_errand: false,
            shelves: BTreeMap::new(),
            counters: BTreeMap::new(),
            ends: BTreeMap::new(),
            is_source_done: false,
            attached: BTreeSet::new(),
            due: None,
            reports: VecDeque::new(),
            program,
        };
        if waiting == 0 {
            new.reports.push_back(Report::Ready { run: new.program.run });
        }
        new
    }

    /// Handles a change of the source's directory.
    pub fn stop_reading(&mut self) {
        (self.source, self.due) = (None, None);
        if !std::mem::replace(&mut self.is_broken, true) {
            let (run, reason) = (self.run(), "changed while it was read".to_owned());
            self.reports.push_back(Report::Failed { run, kind: FailureKind::Unreadable, reason });
        }
    }

    pub fn run(&self) -> Run {
        self.program.run
    }

    pub fn fills(&self, group: u16) -> bool {
        self.program.groups[usize::from(group)].fills.is_some()
    }

    /// Bytes of the attempt's symbols in memory now.
    pub fn live_bytes(&self) -> u64 {
        self.machine.live_bytes()
    }

    /// Records that a connection is open.
    pub fn connected(&mut self, now: Instant) {
        self.waiting -= 1;
        if self.waiting == 0 {
            let progress = self.progress(now);
            self.reports.push_back(progress);
            self.reports.push_back(Report::Ready { run: self.run() });
        }
    }

    /// The time since the attempt began, as an instant after [`Instant::ZERO`].
    pub fn since(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_since(self.begun)
    }

    fn counters(&mut self, flow: FlowId, side: FlowSide) -> &mut Counters {
        self.counters.entry((flow, side)).or_default()
    }

    pub fn received(&mut self, flow: FlowId, bytes: u64) {
        self.counters(flow, FlowSide::Received).bytes += bytes;
    }

    pub fn note_room(&mut self, flow: FlowId, now: Instant, has_room: bool) {
        self.counters(flow, FlowSide::Received).held.note(now, !has_room);
    }

    pub fn note_blocked(&mut self, flow: FlowId, now: Instant, is_blocked: bool) {
        self.counters(flow, FlowSide::Sent).held.note(now, is_blocked);
    }

    pub fn progress(&mut self, now: Instant) -> Report {
        let outgoing: Vec<FlowId> = self.machine.outgoing().collect();
        let flows = outgoing.into_iter().map(|flow| {
            let counters = self.counters(flow, FlowSide::Sent);
            let total = counters.held.until(now);
            let (at, before) = std::mem::replace(&mut counters.reported, (now, total));
            let passed = now.saturating_since(at).as_secs_f64();
            let blocked = (total - before).as_secs_f64() / passed.max(1e-9);
            FlowProgress { flow, sent_bytes: counters.bytes, blocked, congestion_control: None }
        });
        let flows = flows.collect();
        let elapsed_s = now.saturating_since(self.begun).as_secs_f64();
        let incoming: Vec<FlowId> = self.program.incoming.iter().map(|i| i.flow).collect();
        let arrivals = incoming.into_iter().map(|flow| {
            let counters = self.counters(flow, FlowSide::Received);
            let waited_s = counters.held.until(now).as_secs_f64();
            FlowArrival { flow, received_bytes: counters.bytes, elapsed_s, waited_s }
        });
        let arrivals = arrivals.collect();
        Report::Progress {
            run: self.run(),
            verified_bytes: self.machine.verified_bytes(),
            sink_stalled: f64::from(self.machine.is_sink_stalled()),
            flows,
            arrivals,
        }
    }

    /// Does all work that needs neither connection nor disk. Returns whether there was any work.
    pub fn work(&mut self, now: Instant, random: &mut RandomStream) -> bool {
        let mut moved = self.supply(now);
        loop {
            let mut jobs: Vec<_> = std::iter::from_fn(|| self.machine.poll_work()).collect();
            if jobs.is_empty() {
                break;
            }
            // On many cores, jobs end in any order.
            random.shuffle(&mut jobs);
            jobs.into_iter().for_each(|job| self.machine.complete(job.run()));
            moved = true;
        }
        self.writes.extend(std::iter::from_fn(|| self.machine.poll_write()));
        self.errands.extend(std::iter::from_fn(|| self.machine.poll_store()).map(DiskTask::Store));
        self.errands.extend(std::iter::from_fn(|| self.machine.poll_fetch()).map(DiskTask::Fetch));
        let run = self.run();
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Corrupt { group, generation, .. } => {
                    self.corrupt += 1;
                    if self.corrupt <= CORRUPT_REPORTS_MAX {
                        self.reports.push_back(Report::Corrupt { run, group, generation });
                    }
                }
                Event::SinkDone { .. } if self.machine.are_sinks_done() => {
                    self.reports.push_back(Report::SinkDone { run, have: Vec::new() });
                }
                _ => {}
            }
        }
        self.say_if_sent();
        moved
    }

    fn symbols(&self, group: u16, range: ByteRange) -> Option<Vec<Bytes>> {
        let bytes = &self.source.as_ref()?.bytes[range.start as usize..range.end as usize];
        let g = &self.program.groups[usize::from(group)];
        let streams = if g.mode == Mode::Coded { usize::from(g.streams) } else { 1 };
        let length =
            if g.flush > 0 { self.program.symbol_bytes as usize } else { bytes.len().div_ceil(streams) };
        Some(cut(bytes, streams, length))
    }

    /// Supplies the wanted pieces of the source's groups.
    fn supply(&mut self, now: Instant) -> bool {
        if self.source.is_none() {
            return false;
        }
        let (mut moved, since) = (false, Instant::ZERO + now.saturating_since(self.begun));
        self.due = None;
        self.machine.handle_timeout(since);
        for group in 0..self.program.groups.len() as u16 {
            let fills = self.fills(group);
            while let Some(range) = self.machine.wanted(group) {
                if let Some(pace) = self.pace.as_mut().filter(|_| !fills) {
                    if pace.due() > since {
                        self.due = Some(self.begun + pace.due().saturating_since(Instant::ZERO));
                        break;
                    }
                    pace.spend(since, cost(&self.program, group, range.len()));
                }
                let source = self.source.as_ref().expect("asked above");
                let hash = piece_hash(range, &source.bytes[range.start as usize..range.end as usize]);
                let symbols = self.symbols(group, range).expect("asked above");
                self.machine.supply(group, symbols, hash);
                moved = true;
            }
        }
        let timeout = self.machine.poll_timeout();
        let timeout = timeout.map(|at| self.begun + at.saturating_since(Instant::ZERO));
        self.due = self.due.into_iter().chain(timeout).min();
        moved
    }

    /// Reports once that the source is done, when all groups that fill no other group have been
    /// sent.
    fn say_if_sent(&mut self) {
        let Some(source) = self.source.as_ref().filter(|_| !self.is_source_done) else { return };
        let groups = self.program.groups.iter().enumerate();
        let bulk: Vec<_> = groups.filter(|(_, g)| g.fills.is_none()).collect();
        if bulk.is_empty() || bulk.iter().any(|(number, _)| self.machine.has_work(*number as u16)) {
            return;
        }
        let whole = [ByteRange { start: 0, end: self.program.length }];
        let hash = (bulk.len() == 1 && bulk[0].1.work == whole).then_some(source.hash);
        self.is_source_done = true;
        self.reports.push_back(Report::SourceDone { run: self.program.run, hash });
    }

    /// Records the digest of a flow's packet.
    pub fn note(&mut self, flow: FlowId, side: FlowSide, packet: &Packet<Bytes>) {
        if side == FlowSide::Sent {
            self.counters(flow, side).bytes += packet.symbol.len() as u64;
        }
        let kept = self.digests.entry((flow, side)).or_default();
        if kept.len() == DIGESTS_MAX {
            kept.pop_front();
        }
        kept.push_back((packet.generation, digest(&packet.symbol)));
    }

    /// The digests of a generation at this site.
    pub fn audit(&self, group: u16, generation: u64, vectors: &[FlowVector]) -> Report {
        let of_group = |flow: FlowId| {
            self.program.incoming.iter().any(|i| i.flow == flow && i.group == group)
                || self.program.outgoing.iter().any(|o| o.flow == flow && o.group == group)
        };
        let kept = self.digests.iter().filter(|((flow, _), _)| of_group(*flow));
        let kept = kept.filter_map(|(&(flow, side), kept)| {
            let (_, digest) = kept.iter().rev().find(|(g, _)| *g == generation)?;
            Some(FlowDigest { flow, side, digest: *digest })
        });
        let mut digests: Vec<FlowDigest> = kept.collect();
        let piece = self.machine.work_map(group).and_then(|map| map.piece(generation));
        if let Some(symbols) = piece.and_then(|piece| self.symbols(group, piece)) {
            let length = symbols.first().map_or(0, Bytes::len);
            digests.extend(vectors.iter().filter(|v| v.coefficients.len() == symbols.len()).map(|v| {
                let terms: Vec<(u8, &Bytes)> = v.coefficients.iter().copied().zip(&symbols).collect();
                let expected = digest(&Bytes::combine(&terms, length));
                FlowDigest { flow: v.flow, side: FlowSide::Expected, digest: expected }
            }));
        }
        Report::Audit { run: self.run(), group, generation, digests }
    }
}
