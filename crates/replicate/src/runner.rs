//! Runs one attempt at one site: connections, files and coding around a [`Site`].
//!
//! Tasks and threads: one task per connection, one thread that reads the file at the source, one
//! that writes it at a destination, one that stores flows which may be forwarded only as a whole.
//! Coding, decoding and hashing run outside the state machine's lock, in the task that finds the
//! work, so they use all cores of the runtime. A broken hop ends the attempt; the controller plans
//! the next attempt from each site's data.
//!
//! Liveness: the receiver of a connection sends a byte every [`HEARTBEAT`]. The sender gives up the
//! hop after [`HOP_TIMEOUT`] without a heartbeat. The receiver gives up if its byte stays
//! unacknowledged for the same time.
//!
//! Fill flows (lowest priority) may starve, so no other work waits for them: they do not delay
//! `Ready`, have no timeout, and a broken one is only logged. Between heartbeats, their receiver
//! reports the number of packets that have reached their destinations; see [`Site::confirmed`].

mod connections;
#[doc(hidden)]
pub use connections::exercise_confirmations;
mod files;

use crate::metrics::SiteMetrics;
use crate::spool::{Spool, SpoolTask};
use anabranch_disk::folder::{Folder, lacks_descriptors};
use anabranch_disk::partial::PartialFile;
use anabranch_disk::tree::stream::TreeStream;
use anabranch_http::metrics::Counter;
use anabranch_net::admission::ConnectionSlot;
use anabranch_net::identity::{Guard, Identity};
use anabranch_replicate_proto::control::{
    FailureKind, FlowArrival, FlowDigest, FlowProgress, FlowSide, FlowVector, IncomingSpec, OutgoingSpec,
    Priority, Report, SiteProgram,
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

/// Interval between two heartbeats of a connection's receiver.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// Silence after which a hop is given up.
pub const HOP_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit of a connection to the next site, setup included. It is shorter than the controller's
/// timeout for the installation.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(13);
/// Time limit of one connection attempt without an answer: four SYNs of Linux.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// Retry time after an error that retries rarely mend, such as an unknown host or a closed port.
pub const FIRM_TIMEOUT: Duration = Duration::from_secs(1);

/// A destination's file, kept across the attempts of its transfer.
pub type SharedFile = Arc<Mutex<PartialFile>>;

/// The source's bytes.
#[derive(Clone, Debug)]
pub enum SourceFile {
    /// A file, held open during an attempt: renaming or replacing it does not change the data sent.
    File {
        /// Open file.
        file: Arc<File>,
        /// Path of the file, for messages.
        path: PathBuf,
    },
    /// The stream of a directory.
    Directory(Arc<TreeStream>),
}

/// One attempt at one site. Dropping it ends the attempt.
pub struct Runner {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
    metrics: Arc<SiteMetrics>,
}

struct Shared {
    program: SiteProgram,
    source: Option<SourceFile>,
    site: Mutex<Site<Bytes>>,
    /// State of each incoming flow.
    incoming: BTreeMap<FlowId, IncomingFlow>,
    /// Wakes the sender of a flow when there may be a frame.
    ready: BTreeMap<FlowId, Notify>,
    supply: Notify,
    /// Start of the pace of a rate-limited source.
    begun: Instant,
    // Bounded by the state machine, whose outstanding writes fit the capacities of its sinks and
    // spools ([`SiteProgram::memory_bytes`] counts them).
    writes: mpsc::UnboundedSender<Write<Bytes>>,
    errands: mpsc::UnboundedSender<SpoolTask>,
    // Bounded by an attempt's reports: a few single reports, [`CORRUPT_REPORTS_MAX`], and progress
    // twice a second, which `relay` thins out.
    reports: mpsc::UnboundedSender<Report>,
    flows: BTreeMap<FlowId, FlowCounters>,
    digests: Mutex<Digests>,
    fault: Fault,
    /// True after the first failure; later failures of the same attempt follow from it.
    broken: AtomicBool,
    stalled: Mutex<Share>,
    /// Number of corrupt generations reported.
    corrupt: AtomicU32,
    /// Accepted connections, by flow and stripe; each is accepted once.
    attached: Mutex<BTreeSet<(FlowId, u16)>>,
}

#[derive(Default)]
struct FlowCounters {
    sent_bytes: AtomicU64,
    /// Payload bytes sent to its site, by all flows of all attempts.
    site_bytes: Counter,
    blocked: Mutex<BlockedShare>,
    /// Total packets, once the end was taken from the state machine; `u64::MAX` before.
    end: Mutex<Option<u64>>,
    congestion_control: Mutex<Option<String>>,
}

struct IncomingFlow {
    /// Wakes the flow's receiver when there may be buffer space.
    room: Notify,
    received_bytes: AtomicU64,
    /// Payload bytes received from its site, by all flows of all attempts.
    site_bytes: Counter,
    waits: Mutex<WaitShare>,
}

/// Time in which a stripe of a flow held a packet for which there was no room.
#[derive(Default)]
struct WaitShare {
    waiting: u16,
    share: Share,
}

impl WaitShare {
    /// Notes that one more stripe waits, or waits no longer.
    fn note(&mut self, more: bool) {
        self.waiting = if more { self.waiting + 1 } else { self.waiting - 1 };
        self.share.note(self.waiting > 0);
    }
}

impl IncomingFlow {
    fn new(flow: &IncomingSpec, metrics: &SiteMetrics) -> Self {
        Self {
            room: Notify::new(),
            received_bytes: AtomicU64::new(0),
            site_bytes: metrics.received_from(&flow.from_name),
            waits: Mutex::default(),
        }
    }
}

impl FlowCounters {
    fn new(flow: &OutgoingSpec, metrics: &SiteMetrics) -> Self {
        Self { site_bytes: metrics.sent_to(&flow.to_name), ..Self::default() }
    }
}

/// Share of time in which all stripes of a flow waited for TCP's send buffer.
#[derive(Default)]
struct BlockedShare {
    writing: u16,
    share: Share,
}

impl BlockedShare {
    /// Notes that one of `stripes` stripes starts (or stops) waiting for TCP.
    fn note(&mut self, more: bool, stripes: u16) {
        self.writing = if more { self.writing + 1 } else { self.writing - 1 };
        self.share.note(self.writing == stripes);
    }
}

/// A fault that a site injects, so that tests can detect it. None by default.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Symbols with one flipped bit, per million.
    pub flip_ppm: u32,
}

/// Error of a text that names no [`Fault`].
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
    /// Corrupts the packet if its number selects it; the choice depends on flow and generation
    /// only.
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

/// Digests of recent generations of each flow and side, from which an audit finds the site that
/// changed a packet.
#[derive(Default)]
struct Digests(BTreeMap<(FlowId, FlowSide), VecDeque<(u64, u64)>>);

/// Maximum corrupt generations reported by an attempt. The controller acts on the first few, and a
/// malicious peer must not fill the report queue.
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

/// Digest for comparing a flow's two ends. Detects faults, not forgeries.
fn digest(symbol: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(symbol)
}

/// Share of time in which a condition held.
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

/// Classifies a failure of `kind`. Running out of descriptors counts as busy, because other users
/// release theirs.
pub(crate) fn failure(kind: FailureKind, error: &io::Error) -> (FailureKind, String) {
    (if lacks_descriptors(error) { FailureKind::Busy } else { kind }, error.to_string())
}

/// Waits until `attempt` returns a value; retries whenever `notify` fires.
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

/// DSCP of a priority class; see [`Priority`].
pub const fn dscp(priority: Priority) -> u8 {
    match priority {
        Priority::Interactive => 46,
        Priority::Bulk => 10,
        Priority::Fill => 1,
    }
}

impl Runner {
    /// Installs the attempt and starts to connect. Reports `Ready` once all outgoing flows are
    /// connected.
    ///
    /// Errors: a program that contradicts itself.
    pub fn install(
        program: SiteProgram,
        identity: Arc<Identity>,
        source: Option<SourceFile>,
        file: Option<SharedFile>,
        (folder, fault): (&Arc<Folder>, Fault),
        reports: mpsc::UnboundedSender<Report>,
        metrics: Arc<SiteMetrics>,
    ) -> Result<Self, ProgramError> {
        let site = Site::new(&program)?;
        let (writes, writes_in) = mpsc::unbounded_channel();
        let (errands, errands_in) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            incoming: program.incoming.iter().map(|i| (i.flow, IncomingFlow::new(i, &metrics))).collect(),
            ready: program.outgoing.iter().map(|o| (o.flow, Notify::new())).collect(),
            flows: program.outgoing.iter().map(|o| (o.flow, FlowCounters::new(o, &metrics))).collect(),
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
        let runner = Self { tasks: Mutex::new(JoinSet::new()), shared, metrics };
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
            // A weak reference: the channel's sender lives in `Shared`, and closing the channel
            // ends the thread.
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
                    // One report, after the last group: until then the file is still being read.
                    if supplying.fetch_sub(1, Relaxed) == 1 {
                        shared.report(Report::SourceDone { run: shared.program.run, hash });
                    }
                });
            }
        }
    }

    /// The installed program.
    pub fn program(&self) -> &SiteProgram {
        &self.shared.program
    }

    /// Returns true if `hello` names a connection that site `peer` may open here, and that is not
    /// open yet.
    pub fn expects(&self, hello: Hello, peer: &str) -> bool {
        let known = self.shared.program.incoming.iter().find(|i| i.flow == hello.flow);
        known.is_some_and(|i| i.from_name == peer && hello.stripe < i.stripes)
            && lock(&self.shared.attached).insert((hello.flow, hello.stripe))
    }

    /// Returns true if `flow` arrives here and is a fill flow, which may starve.
    pub fn fills(&self, flow: FlowId) -> bool {
        self.shared.program.incoming.iter().any(|i| i.flow == flow && self.shared.fills(i.group))
    }

    /// Attaches an expected connection, which holds `place` among its peer's connections, for as
    /// long as `guard` trusts the peer.
    pub fn attach(&self, hello: Hello, stream: TlsStream<TcpStream>, guard: Guard, place: ConnectionSlot) {
        let shared = Arc::clone(&self.shared);
        lock(&self.tasks).spawn(async move {
            shared.receive_flow(hello.flow, stream, guard).await;
            drop(place);
        });
    }

    /// Current progress.
    pub fn progress(&self) -> Report {
        self.shared.progress()
    }

    /// Returns this site's digests of a generation of `group`, for an audit.
    ///
    /// With `vectors` (at the source), also the digests that each flow should have, computed from
    /// the file.
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
        self.metrics.attempt_seconds.observe(self.shared.begun.elapsed().as_secs_f64());
    }
}

impl Share {
    /// Share of the time since the last call in which the condition held, 0 to 1. The condition is
    /// unchanged.
    fn take(&mut self) -> f64 {
        self.note(self.since.is_some());
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut self.asked, now);
        let so = std::mem::take(&mut self.total).as_secs_f64();
        (so / elapsed.as_secs_f64().max(1e-9)).min(1.0)
    }
    /// Total time in which the condition held since the last [`Share::take`].
    fn total(&self) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| since.elapsed())
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
    /// Direction: `to` or `from`.
    way: &'static str,
}

impl<'a> From<&'a OutgoingSpec> for Hop<'a> {
    fn from(out: &'a OutgoingSpec) -> Self {
        Self { flow: out.flow, peer: out.to, name: &out.to_name, way: "to" }
    }
}

impl<'a> From<&'a IncomingSpec> for Hop<'a> {
    fn from(comes: &'a IncomingSpec) -> Self {
        Self { flow: comes.flow, peer: comes.from, name: &comes.from_name, way: "from" }
    }
}

impl Shared {
    /// Returns true for a group that fills another.
    fn fills(&self, group: u16) -> bool {
        self.program.groups[usize::from(group)].fills.is_some()
    }

    fn report(&self, report: Report) {
        // The receiver is dropped only when the daemon ends.
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
        let arrivals = self
            .incoming
            .iter()
            .map(|(flow, c)| FlowArrival {
                flow: *flow,
                received_bytes: c.received_bytes.load(Relaxed),
                elapsed_s: self.begun.elapsed().as_secs_f64(),
                waited_s: lock(&c.waits).share.total().as_secs_f64(),
            })
            .collect();
        Report::Progress { run: self.program.run, verified_bytes, sink_stalled, flows, arrivals }
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

    /// Changes the state machine, then executes all resulting work.
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
            // The writer ends early only after a failure that it has reported.
            let _ = self.writes.send(write);
        }
        while let Some(store) = site.poll_store() {
            let _ = self.errands.send(SpoolTask::Store(store));
        }
        while let Some(fetch) = site.poll_fetch() {
            let _ = self.errands.send(SpoolTask::Fetch(fetch));
        }
        while let Some(event) = site.poll_event() {
            self.note(event, &site);
        }
        lock(&self.stalled).note(site.is_sink_stalled());
        let ready: Vec<&Notify> =
            self.ready.iter().filter(|(flow, _)| site.can_produce(**flow)).map(|(_, n)| n).collect();
        drop(site);
        let room = self.incoming.values().map(|incoming| &incoming.room);
        ready.into_iter().chain(room).chain([&self.supply]).for_each(Notify::notify_waiters);
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
            // One report for the file, after the last of its groups. The service adds the file's
            // attributes.
            Event::SinkDone { .. } if site.are_sinks_done() => {
                self.report(Report::SinkDone { run, have: Vec::new() });
            }
            _ => {}
        }
    }
}
