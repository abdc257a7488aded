//! Runs one site's machine for one attempt: connections, files and cores around a [`Site`].
//!
//! One task per connection, one thread that reads the file at the source, one that writes it at a destination, one that
//! stores flows which may be passed on only whole. Work
//! (coding, decoding, hashing) runs in whichever task finds it, outside the machine's lock, so it uses all of the
//! runtime's cores. A hop that breaks ends the attempt: the controller plans the next one from each site's data.
//!
//! Liveness: the receiving end of a connection sends a byte every [`HEARTBEAT`] the other way; the sending end gives a
//! hop up after [`HOP_TIMEOUT`] without one, the receiving end when its byte stays unacknowledged for as long.
//!
//! Flows that fill (lowest priority) may starve, so nothing waits for them: they do not count for `Ready`, are not timed,
//! and one that breaks is only logged. Their receiving end says, among the heartbeats, how many packets have reached their
//! destinations; see [`Site::confirmed`].

mod connections;
#[doc(hidden)]
pub use connections::exercise_confirmations;
mod files;

use crate::spool::{Errand, Spool};
use anabranch_disk::folder::{Folder, lacks_descriptors};
use anabranch_disk::partial::PartialFile;
use anabranch_net::admission::Place;
use anabranch_net::identity::{Guard, Identity};
use anabranch_replicate_proto::control::{
    FailureKind, FlowDigest, FlowProgress, FlowSide, FlowVector, Incoming, Outgoing, Priority, Report,
    SiteProgram,
};
use anabranch_replicate_proto::daemon::room::DIGESTS_MAX;
use anabranch_replicate_proto::msg::Hello;
use anabranch_replicate_proto::pace::Pace;
use anabranch_replicate_proto::plan::FlowId;
use anabranch_replicate_proto::site::{Event, Packet, ProgramError, Site, Write};
use anabranch_replicate_proto::symbol::Symbol;
use anabranch_units::SiteId;
use anabranch_units::text::printable;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

/// How often the receiving end of a connection shows that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a hop may be silent before it is given up.
pub const HOP_TIMEOUT: Duration = Duration::from_secs(8);
/// How long connecting to the next site may take, its own setting-up included: less than a controller waits for it.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(13);
/// How long a site may leave a try to connect without any answer: four SYNs of Linux.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a cause that tries most likely do not mend (no such host, nobody listens) is tried against.
pub const FIRM_TIMEOUT: Duration = Duration::from_secs(1);

/// A destination's file, kept over the attempts of its transfer.
pub type SharedFile = Arc<Mutex<PartialFile>>;

/// The source's file, open for as long as an attempt reads it: renaming or replacing it changes nothing of what is sent.
#[derive(Debug)]
pub struct SourceFile {
    /// The file.
    pub file: File,
    /// Where it was, for messages.
    pub path: PathBuf,
}

/// One attempt at one site, running until dropped.
pub struct Runner {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

struct Shared {
    program: SiteProgram,
    source: Option<SourceFile>,
    site: Mutex<Site<Bytes>>,
    /// Woken when a flow that arrives may have room.
    room: BTreeMap<FlowId, Notify>,
    /// Woken when a flow that leaves may have a frame.
    ready: BTreeMap<FlowId, Notify>,
    supply: Notify,
    /// When the pace of a source that is held to a rate begins.
    begun: Instant,
    // Bounded by the machine, which hands out no more than its sinks' and spools' capacities until it hears that it is done
    // ([`SiteProgram::memory_bytes`] counts it).
    writes: mpsc::UnboundedSender<Write<Bytes>>,
    errands: mpsc::UnboundedSender<Errand>,
    // Bounded by what an attempt says: a few reports once, [`CORRUPT_REPORTS_MAX`], and progress twice a second, which
    // whoever sends them thins out.
    reports: mpsc::UnboundedSender<Report>,
    flows: BTreeMap<FlowId, FlowCounters>,
    digests: Mutex<Digests>,
    fault: Fault,
    /// Set once something broke: later troubles of the same attempt are its echo.
    broken: AtomicBool,
    stalled: Mutex<Share>,
    /// Wrong generations that were reported.
    corrupt: AtomicU32,
    /// Connections that arrived, by flow and stripe: each comes once.
    attached: Mutex<BTreeSet<(FlowId, u16)>>,
}

#[derive(Default)]
struct FlowCounters {
    sent_bytes: AtomicU64,
    blocked: Mutex<Blocked>,
    /// Packets in all, once its end was taken from the machine; `u64::MAX` before.
    end: Mutex<Option<u64>>,
    congestion_control: Mutex<Option<String>>,
}

/// The share of time in which every stripe of a flow had a packet that TCP did not take yet.
#[derive(Default)]
struct Blocked {
    writing: u16,
    share: Share,
}

impl Blocked {
    /// One stripe more (or less) of `stripes` waits for TCP.
    fn note(&mut self, more: bool, stripes: u16) {
        self.writing = if more { self.writing + 1 } else { self.writing - 1 };
        self.share.note(self.writing == stripes);
    }
}

/// A fault that a site has on purpose, so that tests can see it found. None by default.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Symbols, in a million, in which one bit is flipped before they are sent.
    pub flip_ppm: u32,
}

/// A text that says no [`Fault`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFault(pub String);

impl std::fmt::Display for UnknownFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "fault `{}`: must be flip-ppm=N, with N symbols in a million, at most 1000000", self.0)
    }
}
impl std::error::Error for UnknownFault {}

impl std::str::FromStr for Fault {
    type Err = UnknownFault;
    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let flip_ppm = text.strip_prefix("flip-ppm=").and_then(|n| n.parse().ok());
        let flip_ppm = flip_ppm.filter(|n| *n <= 1_000_000);
        flip_ppm.map(|flip_ppm| Self { flip_ppm }).ok_or_else(|| UnknownFault(text.to_owned()))
    }
}

impl Fault {
    /// Spoils the packet if its turn has come; which ones are spoiled depends on their numbers only.
    fn spoil(self, flow: FlowId, packet: &mut Packet<Bytes>) {
        if self.flip_ppm == 0 {
            return;
        }
        let draw = digest(&[packet.generation.to_le_bytes(), u64::from(flow.0).to_le_bytes()].concat());
        if draw % 1_000_000 < u64::from(self.flip_ppm) && !packet.symbol.is_empty() {
            let mut bytes = packet.symbol.to_vec();
            let at = (draw >> 32) as usize % bytes.len();
            bytes[at] ^= 1 << (draw >> 29 & 7);
            packet.symbol = bytes.into();
        }
    }
}

/// What each flow carried lately, by flow, side and generation: enough to say later who changed it.
#[derive(Default)]
struct Digests(BTreeMap<(FlowId, FlowSide), VecDeque<(u64, u64)>>);

/// The most wrong generations that an attempt reports: a controller acts on the first few, and a peer that sends nothing
/// else must not fill the queue to it.
const CORRUPT_REPORTS_MAX: u32 = 256;
impl Digests {
    fn note(&mut self, flow: FlowId, side: FlowSide, generation: u64, digest: u64) {
        let kept = self.0.entry((flow, side)).or_default();
        if kept.len() == DIGESTS_MAX {
            kept.pop_front();
        }
        kept.push_back((generation, digest));
    }
}

/// The digest by which ends of a flow compare what it carried. Finds faults, not forgers.
fn digest(symbol: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(symbol)
}

/// The share of time in which something was so.
struct Share {
    asked: Instant,
    since: Option<Instant>,
    total: Duration,
}

impl Default for Share {
    fn default() -> Self {
        Self { asked: Instant::now(), since: None, total: Duration::ZERO }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a site says that `kind` of thing failed: nothing is to blame where all descriptors are in use, as others give theirs back.
pub(crate) fn failure(kind: FailureKind, error: &io::Error) -> (FailureKind, String) {
    (if lacks_descriptors(error) { FailureKind::Busy } else { kind }, error.to_string())
}

/// Waits until `attempt` gives something, looking again whenever `notify` is woken.
pub(super) async fn wait_for<T>(notify: &Notify, mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        let woken = notify.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        if let Some(found) = attempt() {
            return found;
        }
        woken.await;
    }
}

/// The code point of a priority class; see [`Priority`].
pub const fn dscp(priority: Priority) -> u8 {
    match priority {
        Priority::Interactive => 46,
        Priority::Bulk => 10,
        Priority::Fill => 1,
    }
}

impl Runner {
    /// Sets the attempt up and begins to connect. `Ready` is reported when all flows that leave are connected.
    ///
    /// Errors: a program that contradicts itself.
    pub fn install(
        program: SiteProgram,
        identity: Arc<Identity>,
        source: Option<SourceFile>,
        file: Option<SharedFile>,
        (folder, fault): (&Arc<Folder>, Fault),
        reports: mpsc::UnboundedSender<Report>,
    ) -> Result<Self, ProgramError> {
        let site = Site::new(&program)?;
        let (writes, writes_in) = mpsc::unbounded_channel();
        let (errands, errands_in) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            room: program.incoming.iter().map(|i| (i.flow, Notify::new())).collect(),
            ready: program.outgoing.iter().map(|o| (o.flow, Notify::new())).collect(),
            flows: program.outgoing.iter().map(|o| (o.flow, FlowCounters::default())).collect(),
            supply: Notify::new(),
            begun: Instant::now(),
            writes,
            errands,
            reports,
            broken: AtomicBool::new(false),
            stalled: Mutex::default(),
            corrupt: AtomicU32::new(0),
            attached: Mutex::default(),
            digests: Mutex::default(),
            fault,
            site: Mutex::new(site),
            source,
            program,
        });
        let runner = Self { tasks: Mutex::new(JoinSet::new()), shared };
        if runner.shared.program.store_and_forward {
            let spool = Spool::new(Arc::clone(folder), runner.shared.program.symbol_bytes);
            let shared = Arc::downgrade(&runner.shared);
            lock(&runner.tasks).spawn_blocking(move || files::run_errands(&shared, spool, errands_in));
        }
        runner.begin(identity, file, writes_in);
        Ok(runner)
    }

    fn begin(
        &self,
        identity: Arc<Identity>,
        file: Option<SharedFile>,
        writes: mpsc::UnboundedReceiver<Write<Bytes>>,
    ) {
        let shared = &self.shared;
        let mut tasks = lock(&self.tasks);
        let counted = shared.program.outgoing.iter().filter(|o| !shared.fills(o.group));
        let waiting = Arc::new(AtomicU64::new(counted.map(|o| u64::from(o.hop.stripes)).sum()));
        if waiting.load(Relaxed) == 0 {
            shared.report(Report::Ready { run: shared.program.run });
        }
        for (index, out) in shared.program.outgoing.iter().enumerate() {
            if shared.fills(out.group) {
                let (shared, identity) = (Arc::clone(shared), Arc::clone(&identity));
                tasks.spawn(async move { shared.send_fill(index, &identity).await });
                continue;
            }
            for stripe in 0..out.hop.stripes {
                let (shared, identity, waiting) =
                    (Arc::clone(shared), Arc::clone(&identity), Arc::clone(&waiting));
                tasks.spawn(async move { shared.send_flow(index, stripe, &identity, &waiting).await });
            }
        }
        if let Some(file) = file {
            // A weak hold: the channel's sender lives in `Shared`, and its end is the thread's end.
            let shared = Arc::downgrade(shared);
            tasks.spawn_blocking(move || files::write_file(&shared, &file, writes));
        }
        if shared.source.is_some() {
            let groups = shared.program.groups.len() as u16;
            let bulk = shared.program.groups.iter().filter(|g| g.fills.is_none());
            let supplying = Arc::new(AtomicU64::new(bulk.count() as u64));
            let pace = Arc::new(tokio::sync::Mutex::new(Pace::of(&shared.program)));
            if shared.program.groups.iter().any(|g| !g.ceilings.is_empty()) {
                let shared = Arc::clone(shared);
                tasks.spawn(async move { shared.keep_time().await });
            }
            for group in 0..groups {
                let (shared, pace) = (Arc::clone(shared), Arc::clone(&pace));
                let supplying = Arc::clone(&supplying);
                if shared.fills(group) {
                    tasks.spawn(async move { shared.supply_fill(group).await });
                    continue;
                }
                tasks.spawn(async move {
                    let Ok(hash) = shared.supply_group(group, &pace).await else { return };
                    // One report, when the last group is out: before that the file is still being read.
                    if supplying.fetch_sub(1, Relaxed) == 1 {
                        shared.report(Report::SourceDone { run: shared.program.run, hash });
                    }
                });
            }
        }
    }

    /// The program that runs.
    pub fn program(&self) -> &SiteProgram {
        &self.shared.program
    }

    /// True if `hello` is what the site called `peer` may say here, for the first time.
    pub fn expects(&self, hello: Hello, peer: &str) -> bool {
        let known = self.shared.program.incoming.iter().find(|i| i.flow == hello.flow);
        known.is_some_and(|i| i.from_name == peer && hello.stripe < i.stripes)
            && lock(&self.shared.attached).insert((hello.flow, hello.stripe))
    }

    /// True if `flow` arrives here and fills, so that it may starve.
    pub fn fills(&self, flow: FlowId) -> bool {
        self.shared.program.incoming.iter().any(|i| i.flow == flow && self.shared.fills(i.group))
    }

    /// Takes in a connection that was expected, with the place that it holds among its peer's, for as long as the peer is
    /// trusted.
    pub fn attach(&self, hello: Hello, stream: TlsStream<TcpStream>, guard: Guard, place: Place) {
        let shared = Arc::clone(&self.shared);
        lock(&self.tasks).spawn(async move {
            shared.receive_flow(hello.flow, stream, guard).await;
            drop(place);
        });
    }

    /// Where things stand.
    pub fn progress(&self) -> Report {
        self.shared.progress()
    }

    /// What this site knows of a generation of `group`, for an audit.
    ///
    /// With `vectors` (at the source) also what each flow ought to have carried, worked out from the file.
    pub fn audit(&self, group: u16, generation: u64, vectors: &[FlowVector]) -> Report {
        let shared = &self.shared;
        let of_group = |flow: FlowId| {
            let program = &shared.program;
            program.incoming.iter().any(|i| i.flow == flow && i.group == group)
                || program.outgoing.iter().any(|o| o.flow == flow && o.group == group)
        };
        let mut digests: Vec<FlowDigest> = lock(&shared.digests)
            .0
            .iter()
            .filter(|((flow, _), _)| of_group(*flow))
            .filter_map(|((flow, side), kept)| {
                let (_, digest) = kept.iter().rev().find(|(g, _)| *g == generation)?;
                Some(FlowDigest { flow: *flow, side: *side, digest: *digest })
            })
            .collect();
        if let Some(symbols) = shared.read_generation(group, generation) {
            let length = symbols.first().map_or(0, Bytes::len);
            digests.extend(vectors.iter().filter(|v| v.coefficients.len() == symbols.len()).map(|v| {
                let terms: Vec<(u8, &Bytes)> = v.coefficients.iter().copied().zip(&symbols).collect();
                let expected = digest(&Bytes::combine(&terms, length));
                FlowDigest { flow: v.flow, side: FlowSide::Expected, digest: expected }
            }));
        }
        Report::Audit { run: shared.program.run, group, generation, digests }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.broken.store(true, Relaxed);
        lock(&self.tasks).abort_all();
    }
}

impl Share {
    /// Share of the time since the last call, 0 to 1, in which it was so; it stays as it is.
    fn take(&mut self) -> f64 {
        self.note(self.since.is_some());
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut self.asked, now);
        let so = std::mem::take(&mut self.total).as_secs_f64();
        (so / elapsed.as_secs_f64().max(1e-9)).min(1.0)
    }
    fn note(&mut self, so: bool) {
        let now = Instant::now();
        if let Some(since) = self.since.take() {
            self.total += now - since;
        }
        self.since = so.then_some(now);
    }
}

/// A flow and the site at its other end.
struct Hop<'a> {
    flow: FlowId,
    peer: SiteId,
    name: &'a str,
    /// Whether it goes `to` that site or comes `from` it.
    way: &'static str,
}

impl<'a> From<&'a Outgoing> for Hop<'a> {
    fn from(out: &'a Outgoing) -> Self {
        Self { flow: out.flow, peer: out.to, name: &out.to_name, way: "to" }
    }
}

impl<'a> From<&'a Incoming> for Hop<'a> {
    fn from(comes: &'a Incoming) -> Self {
        Self { flow: comes.flow, peer: comes.from, name: &comes.from_name, way: "from" }
    }
}

impl Shared {
    /// True for a group that fills another.
    fn fills(&self, group: u16) -> bool {
        self.program.groups[usize::from(group)].fills.is_some()
    }

    fn report(&self, report: Report) {
        // The receiver goes only when the daemon ends, and then nobody is left to tell.
        let _ = self.reports.send(report);
    }

    fn progress(&self) -> Report {
        let verified_bytes = lock(&self.site).verified_bytes();
        let sink_stalled = lock(&self.stalled).take();
        let flows = self
            .flows
            .iter()
            .map(|(flow, c)| FlowProgress {
                flow: *flow,
                sent_bytes: c.sent_bytes.load(Relaxed),
                blocked: lock(&c.blocked).share.take(),
                congestion_control: lock(&c.congestion_control).clone(),
            })
            .collect();
        Report::Progress { run: self.program.run, verified_bytes, sink_stalled, flows }
    }

    fn fail(&self, kind: FailureKind, error: &io::Error) {
        if !self.broken.swap(true, Relaxed) {
            let (kind, reason) = failure(kind, error);
            self.report(Report::Failed { run: self.program.run, kind, reason });
        }
    }

    fn hop_failed<'a>(&self, hop: impl Into<Hop<'a>>, reason: String) {
        self.hop_is_lost(hop, false, reason);
    }

    fn hop_is_lost<'a>(&self, hop: impl Into<Hop<'a>>, unconnected: bool, reason: String) {
        if !self.broken.swap(true, Relaxed) {
            let Hop { flow, peer, name, way } = hop.into();
            let transfer = self.program.run.transfer.0;
            tracing::warn!(transfer, "the hop {way} {} failed: {}", printable(name), printable(&reason));
            self.report(Report::HopFailed { run: self.program.run, flow, peer, unconnected, reason });
        }
    }

    /// Changes the machine, then does all work that this makes possible.
    fn stir<R>(&self, change: impl FnOnce(&mut Site<Bytes>) -> R) -> R {
        let mut site = lock(&self.site);
        let result = change(&mut site);
        while let Some(work) = site.poll_work() {
            drop(site);
            let done = work.run();
            site = lock(&self.site);
            site.complete(done);
        }
        while let Some(write) = site.poll_write() {
            // The writer goes only when it failed, which was reported.
            let _ = self.writes.send(write);
        }
        while let Some(store) = site.poll_store() {
            let _ = self.errands.send(Errand::Store(store));
        }
        while let Some(fetch) = site.poll_fetch() {
            let _ = self.errands.send(Errand::Fetch(fetch));
        }
        while let Some(event) = site.poll_event() {
            self.note(event, &site);
        }
        lock(&self.stalled).note(site.is_sink_stalled());
        let ready: Vec<&Notify> =
            self.ready.iter().filter(|(flow, _)| site.can_produce(**flow)).map(|(_, n)| n).collect();
        drop(site);
        ready.into_iter().chain(self.room.values()).chain([&self.supply]).for_each(Notify::notify_waiters);
        result
    }

    fn note(&self, event: Event, site: &Site<Bytes>) {
        let run = self.program.run;
        match event {
            Event::Corrupt { group, generation, .. }
                if self.corrupt.fetch_add(1, Relaxed) < CORRUPT_REPORTS_MAX =>
            {
                self.report(Report::Corrupt { run, group, generation });
            }
            // One report for the file, when the last of its groups is done. The service adds what is there.
            Event::SinkDone { .. } if site.are_sinks_done() => {
                self.report(Report::SinkDone { run, have: Vec::new() });
            }
            _ => {}
        }
    }
}
