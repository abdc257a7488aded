//! Runs one site's machine for one attempt: connections, files and cores around a [`Site`].
//!
//! One task per connection, one thread that reads the file at the source, one that writes it at a destination, one that
//! stores what may be passed on only whole. Work
//! (coding, decoding, hashing) runs in whichever task finds it, outside the machine's lock, so it uses all of the
//! runtime's cores. A hop that breaks ends the attempt: the controller plans the next one from what each site has.
//!
//! Liveness: the receiving end of a connection sends a byte every [`HEARTBEAT`] the other way; the sending end gives a
//! hop up after [`HOP_TIMEOUT`] without one, the receiving end when its byte stays unacknowledged for as long.
//!
//! Flows that fill (lowest priority) may starve, so nothing waits for them: they do not count for `Ready`, are not timed,
//! and one that breaks is only logged. Their receiving end says, among the heartbeats, how many packets are where they
//! belong; see [`Site::confirmed`].

use super::partial::PartialFile;
use super::service::SiteConfig;
use super::spool::{Errand, Spool};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::socket::{self, TcpOptions};
use anabranch_replicate::control::{
    ByteRange, FailureKind, FileHash, FlowDigest, FlowProgress, FlowSide, FlowVector, Outgoing, Priority,
    Report, SiteProgram,
};
use anabranch_replicate::msg::{FrameHeader, Hello, HelloReply};
use anabranch_replicate::plan::{FlowId, Mode};
use anabranch_replicate::site::{AcceptError, Event, Frame, Packet, ProgramError, Site, Write};
use anabranch_replicate::symbol::{GenerationHash, Symbol};
use anabranch_replicate::tree::{FileHasher, PieceHasher};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

/// How often the receiving end of a connection shows that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a hop may be silent before it is given up.
pub const HOP_TIMEOUT: Duration = Duration::from_secs(8);
/// How long connecting to the next site may take, its own setting-up included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// A destination's file, kept over the attempts of its transfer.
pub type SharedFile = Arc<Mutex<PartialFile>>;

const ALIVE: u8 = 1;
const TAKEN: u8 = 2;
/// Followed by the number of packets, 8 bytes, big-endian.
const CONFIRMED: u8 = 3;
/// The least time between two confirmations of a flow.
const CONFIRM_EVERY: Duration = Duration::from_millis(50);

/// One attempt at one site, running until dropped.
pub struct Runner {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

struct Shared {
    program: SiteProgram,
    site: Mutex<Site<Bytes>>,
    /// Woken when a flow that arrives may have room.
    room: BTreeMap<FlowId, Notify>,
    /// Woken when a flow that leaves may have a frame.
    ready: BTreeMap<FlowId, Notify>,
    supply: Notify,
    writes: mpsc::UnboundedSender<Write<Bytes>>,
    errands: mpsc::UnboundedSender<Errand>,
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

/// What a site does wrong on purpose, so that tests can see it found. Nothing by default.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Symbols, in a million, in which one bit is flipped before they are sent.
    pub flip_ppm: u32,
}

impl std::str::FromStr for Fault {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let flip_ppm = text.strip_prefix("flip-ppm=").and_then(|n| n.parse().ok());
        let flip_ppm = flip_ppm.filter(|n| *n <= 1_000_000);
        flip_ppm.map(|flip_ppm| Self { flip_ppm }).ok_or_else(|| {
            format!("fault `{text}`: must be flip-ppm=N, with N symbols in a million, at most 1000000")
        })
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
/// What a connection takes besides symbols: its TLS records, on their way in or out (rustls holds back at most 64 KiB), and
/// its task.
const CONNECTION_BYTES: u64 = 96 << 10;

/// The most bytes that an attempt takes here: symbols, connections, and what is remembered for audits.
pub fn memory_bytes(program: &SiteProgram) -> u64 {
    let stripes = program.incoming.iter().map(|i| i.stripes);
    let stripes = stripes.chain(program.outgoing.iter().map(|o| o.hop.stripes));
    let sides = (program.incoming.len() + program.outgoing.len()) as u64;
    let digests = sides * (DIGESTS_MAX * size_of::<(u64, u64)>()) as u64;
    program.memory_bytes() + stripes.map(u64::from).sum::<u64>() * CONNECTION_BYTES + digests
}

/// How many packets of a flow are remembered at each end. More than buffers hold between two sites.
const DIGESTS_MAX: usize = 4096;

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
    /// Errors: a program that contradicts itself or wants more than `memory_max` bytes.
    pub fn install(
        program: SiteProgram,
        identity: Arc<Identity>,
        source: Option<PathBuf>,
        file: Option<SharedFile>,
        memory_max: u64,
        config: &SiteConfig,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Result<Self, ProgramError> {
        let wants = memory_bytes(&program);
        if wants > memory_max {
            return Err(ProgramError::OutOfRange {
                what: "bytes of memory (see --memory)",
                value: wants,
                allowed: (1, memory_max),
            });
        }
        let site = Site::new(&program)?;
        let (writes, writes_in) = mpsc::unbounded_channel();
        let (errands, errands_in) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            room: program.incoming.iter().map(|i| (i.flow, Notify::new())).collect(),
            ready: program.outgoing.iter().map(|o| (o.flow, Notify::new())).collect(),
            flows: program.outgoing.iter().map(|o| (o.flow, FlowCounters::default())).collect(),
            supply: Notify::new(),
            writes,
            errands,
            reports,
            broken: AtomicBool::new(false),
            stalled: Mutex::default(),
            corrupt: AtomicU32::new(0),
            attached: Mutex::default(),
            digests: Mutex::default(),
            fault: config.fault,
            site: Mutex::new(site),
            program,
        });
        let runner = Self { tasks: Mutex::new(JoinSet::new()), shared };
        if runner.shared.program.store_and_forward {
            let spool = Spool::new(config.root.clone(), runner.shared.program.symbol_bytes);
            let shared = Arc::downgrade(&runner.shared);
            lock(&runner.tasks).spawn_blocking(move || run_errands(&shared, spool, errands_in));
        }
        runner.begin(identity, source, file, writes_in);
        Ok(runner)
    }

    fn begin(
        &self,
        identity: Arc<Identity>,
        source: Option<PathBuf>,
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
            tasks.spawn_blocking(move || write_file(&shared, &file, writes));
        }
        if let Some(path) = source {
            let groups = shared.program.groups.len() as u16;
            let bulk = shared.program.groups.iter().filter(|g| g.fills.is_none());
            let supplying = Arc::new(AtomicU64::new(bulk.count() as u64));
            let pace = Arc::new(tokio::sync::Mutex::new(Instant::now()));
            for group in 0..groups {
                let (shared, path, pace) = (Arc::clone(shared), path.clone(), Arc::clone(&pace));
                let supplying = Arc::clone(&supplying);
                if shared.fills(group) {
                    tasks.spawn(async move { shared.supply_fill(group, path).await });
                    continue;
                }
                tasks.spawn(async move {
                    let Ok(hash) = shared.supply_group(group, path, &pace).await else { return };
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

    /// Takes in a connection that was expected.
    pub fn attach(&self, hello: Hello, stream: TlsStream<TcpStream>) {
        let shared = Arc::clone(&self.shared);
        lock(&self.tasks).spawn(async move { shared.receive_flow(hello.flow, stream).await });
    }

    /// Where things stand.
    pub fn progress(&self) -> Report {
        self.shared.progress()
    }

    /// What this site knows of a generation of `group`, for an audit.
    ///
    /// With `vectors` (at the source) also what each flow ought to have carried, worked out from the file.
    pub fn audit(
        &self,
        group: u16,
        generation: u64,
        vectors: &[FlowVector],
        source: Option<&Path>,
    ) -> Report {
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
        if let Some(path) = source
            && let Some(symbols) = shared.read_generation(path, group, generation)
        {
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

    fn fail(&self, kind: FailureKind, reason: String) {
        if !self.broken.swap(true, Relaxed) {
            self.report(Report::Failed { run: self.program.run, kind, reason });
        }
    }

    fn hop_failed(&self, flow: FlowId, peer: anabranch_units::SiteId, reason: String) {
        if !self.broken.swap(true, Relaxed) {
            self.report(Report::HopFailed { run: self.program.run, flow, peer, reason });
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

    // ---- flows that leave ----

    async fn send_flow(&self, index: usize, stripe: u16, identity: &Identity, waiting: &AtomicU64) {
        let out = &self.program.outgoing[index];
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect(out, stripe, identity)).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(reason)) => return self.hop_failed(out.flow, out.to, reason),
            Err(_) => {
                let reason = format!(
                    "flow {} to {} at {}: not connected within {} s (is the site up, and its data port open?)",
                    out.flow.0,
                    out.to_name,
                    out.address,
                    CONNECT_TIMEOUT.as_secs()
                );
                return self.hop_failed(out.flow, out.to, reason);
            }
        };
        if waiting.fetch_sub(1, Relaxed) == 1 {
            // What the connections run on, also of an attempt that is over before the first regular report.
            self.report(self.progress());
            self.report(Report::Ready { run: self.program.run });
        }
        let (read, write) = tokio::io::split(stream);
        let sent = async {
            let mut write = write;
            self.write_frames(out, &mut write).await?;
            write.shutdown().await
        };
        let result = tokio::select! {
            alive = watch_peer(read) => alive,
            // After the last frame the peer's word that it took it is awaited.
            Err(error) = sent => Err(error),
        };
        if let Err(error) = result {
            let reason = format!("flow {} to {} at {}: {error}", out.flow.0, out.to_name, out.address);
            self.hop_failed(out.flow, out.to, reason);
        }
    }

    /// As [`Self::send_flow`], for a flow that fills: tries for as long as the attempt runs, and ends quietly.
    async fn send_fill(&self, index: usize, identity: &Identity) {
        let out = &self.program.outgoing[index];
        let sent = async {
            let stream = self.connect(out, 0, identity).await.map_err(io::Error::other)?;
            let class = TcpOptions { dscp: dscp(out.hop.priority), ..TcpOptions::default() };
            socket::configure(stream.get_ref().0, &class)?;
            let (read, mut write) = tokio::io::split(stream);
            let frames = async {
                self.write_frames(out, &mut write).await?;
                write.shutdown().await
            };
            tokio::select! {
                over = self.watch_fill(out.flow, read) => over,
                Err(error) = frames => Err(error),
            }
        };
        if let Err(error) = sent.await {
            tracing::info!(flow = out.flow.0, to = %out.to_name, %error, "fills no more");
        }
    }

    /// Reads what the receiving end of a flow that fills says, to its end.
    async fn watch_fill(&self, flow: FlowId, mut read: ReadHalf<TlsStream<TcpStream>>) -> io::Result<()> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        loop {
            match read.read_u8().await? {
                ALIVE => {}
                CONFIRMED => {
                    let packets = read.read_u64().await?;
                    self.stir(|s| s.confirm(flow, packets)).map_err(|e| invalid(e.to_string()))?;
                }
                TAKEN => return Ok(()),
                other => return Err(invalid(format!("unexpected byte {other}"))),
            }
        }
    }

    async fn connect(
        &self,
        out: &Outgoing,
        stripe: u16,
        identity: &Identity,
    ) -> Result<TlsStream<TcpStream>, String> {
        let hello = Hello { run: self.program.run, flow: out.flow, stripe }.encode();
        // The few packets of a greeting must not starve.
        let class = if self.fills(out.group) { Priority::Bulk } else { out.hop.priority };
        let options = TcpOptions {
            congestion_control: out.hop.congestion_control.clone(),
            dscp: dscp(class),
            user_timeout: None,
        };
        let mut pause = Duration::from_millis(20);
        loop {
            let tried = async {
                let address = resolve(&out.address)?;
                let tcp = socket::connect(address, &options).await?;
                *lock(&self.flows[&out.flow].congestion_control) = socket::congestion_control(&tcp).ok();
                let mut stream = identity.connect(tcp, Role::Site, &out.to_name).await?;
                stream.write_all(&hello).await?;
                stream.flush().await?;
                let reply = HelloReply::decode(stream.read_u8().await?);
                Ok::<_, io::Error>((stream, reply))
            };
            match tried.await {
                Ok((stream, Ok(HelloReply::Welcome))) => return Ok(stream),
                Ok((_, Ok(HelloReply::NotInstalled))) => {}
                Ok((_, Ok(HelloReply::Refused))) => {
                    return Err(format!("flow {} to {}: refused by the site", out.flow.0, out.to_name));
                }
                Ok((_, Err(error))) => {
                    return Err(format!("flow {} to {}: {error}", out.flow.0, out.to_name));
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(format!(
                        "flow {} to {} at {}: {error}",
                        out.flow.0, out.to_name, out.address
                    ));
                }
                Err(error) => tracing::debug!(to = %out.address, %error, "connecting again"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    async fn write_frames(
        &self,
        out: &Outgoing,
        write: &mut WriteHalf<TlsStream<TcpStream>>,
    ) -> io::Result<()> {
        let counters = &self.flows[&out.flow];
        let notify = &self.ready[&out.flow];
        loop {
            if !lock(&self.site).can_produce(out.flow) {
                write.flush().await?;
            }
            let frame = wait_for(notify, || {
                if let Some(packets) = *lock(&counters.end) {
                    return Some(Frame::End { packets });
                }
                // Looking costs little, taking stirs the machine. (The lock must be free again before it does.)
                let can = lock(&self.site).can_produce(out.flow);
                if can { self.stir(|s| s.produce(out.flow)) } else { None }
            })
            .await;
            match frame {
                Frame::Data(mut packet) => {
                    self.fault.spoil(out.flow, &mut packet);
                    let length = packet.symbol.len() as u32;
                    let digest = digest(&packet.symbol);
                    lock(&self.digests).note(out.flow, FlowSide::Sent, packet.generation, digest);
                    let header =
                        FrameHeader::Data { generation: packet.generation, hash: packet.hash, length };
                    lock(&counters.blocked).note(true, out.hop.stripes);
                    write.write_all(&header.encode()).await?;
                    write.write_all(&packet.symbol).await?;
                    lock(&counters.blocked).note(false, out.hop.stripes);
                    counters.sent_bytes.fetch_add(u64::from(length), Relaxed);
                }
                Frame::End { packets } => {
                    // All stripes end, whichever took the end from the machine.
                    *lock(&counters.end) = Some(packets);
                    notify.notify_waiters();
                    write.write_all(&FrameHeader::End { packets }.encode()).await?;
                    return write.flush().await;
                }
            }
        }
    }

    // ---- flows that arrive ----

    async fn receive_flow(&self, flow: FlowId, stream: TlsStream<TcpStream>) {
        let (mut read, mut write) = tokio::io::split(stream);
        let from =
            self.program.incoming.iter().find(|i| i.flow == flow).expect("attached only if it arrives here");
        let fills = self.fills(from.group);
        let mut beating = async || -> io::Result<()> {
            let mut told = 0;
            loop {
                let confirmed = if fills { lock(&self.site).confirmed(flow) } else { told };
                if confirmed > told {
                    told = confirmed;
                    write.write_u8(CONFIRMED).await?;
                    write.write_u64(confirmed).await?;
                } else {
                    write.write_u8(ALIVE).await?;
                }
                write.flush().await?;
                if fills {
                    tokio::time::sleep(CONFIRM_EVERY).await;
                    let more = wait_for(&self.room[&flow], || {
                        (lock(&self.site).confirmed(flow) > told).then_some(())
                    });
                    let _ = tokio::time::timeout(HEARTBEAT, more).await;
                } else {
                    tokio::time::sleep(HEARTBEAT).await;
                }
            }
        };
        let result = tokio::select! {
            result = self.read_frames(flow, &mut read) => result,
            result = beating() => result,
        };
        let result = match result {
            Ok(()) => {
                let told = async {
                    write.write_u8(TAKEN).await?;
                    write.shutdown().await
                };
                // The flow is whole here; whether the sender still hears of it is the sender's concern.
                let _ = tokio::time::timeout(HOP_TIMEOUT, told).await;
                return;
            }
            Err(error) => error,
        };
        if fills {
            return tracing::info!(flow = flow.0, from = %from.from_name, error = %result, "fills no more");
        }
        self.hop_failed(flow, from.from, format!("flow {} from {}: {result}", flow.0, from.from_name));
    }

    async fn read_frames(&self, flow: FlowId, read: &mut ReadHalf<TlsStream<TcpStream>>) -> io::Result<()> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let mut header = [0; FrameHeader::LEN];
        loop {
            read.read_exact(&mut header).await?;
            let decoded = FrameHeader::decode(&header, self.program.symbol_bytes);
            match decoded.map_err(|e| invalid(e.to_string()))? {
                FrameHeader::Data { generation, hash, length } => {
                    let mut symbol = BytesMut::with_capacity(length as usize);
                    let mut limited = read.take(length.into());
                    while symbol.len() < length as usize {
                        if limited.read_buf(&mut symbol).await? == 0 {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                    }
                    let digest = digest(&symbol);
                    lock(&self.digests).note(flow, FlowSide::Received, generation, digest);
                    let mut packet = Some(Packet { generation, hash, symbol: symbol.freeze() });
                    let accepted = wait_for(&self.room[&flow], || {
                        if !lock(&self.site).has_room(flow, generation) {
                            return None;
                        }
                        match self
                            .stir(|s| s.accept(flow, packet.take().expect("put back below if not taken")))
                        {
                            Err(AcceptError::Full(back)) => {
                                packet = Some(back);
                                None
                            }
                            other => Some(other.map_err(|e| e.to_string())),
                        }
                    });
                    accepted.await.map_err(invalid)?;
                }
                FrameHeader::End { packets } => {
                    return self.stir(|s| s.accept_end(flow, packets)).map_err(|e| invalid(e.to_string()));
                }
            }
        }
    }

    // ---- files ----

    /// The symbols of a generation, read from the source's file.
    fn read_generation(&self, path: &Path, group: u16, generation: u64) -> Option<Vec<Bytes>> {
        let piece = lock(&self.site).work_map(group)?.piece(generation)?;
        let (streams, length) = self.cutting(group);
        Some(cut(read_range(path, piece).ok()?, streams, length))
    }

    /// Into how many symbols a piece of `group` is cut, and their length where it is fixed.
    fn cutting(&self, group: u16) -> (usize, Option<usize>) {
        let g = &self.program.groups[usize::from(group)];
        let streams = if g.mode == Mode::Coded { usize::from(g.streams) } else { 1 };
        (streams, (g.flush > 0).then_some(self.program.symbol_bytes as usize))
    }

    /// Feeds a group that fills another, as long as it has work.
    async fn supply_fill(&self, group: u16, path: PathBuf) {
        let path = Arc::new(path);
        loop {
            let wanted = wait_for(&self.supply, || {
                let site = lock(&self.site);
                let over = !site.has_work(group);
                let wanted = site.wanted(group);
                (over || wanted.is_some()).then_some(wanted)
            });
            let Some(range) = wanted.await else { return };
            let from = Arc::clone(&path);
            let read = tokio::task::spawn_blocking(move || read_range(&from, range));
            let bytes = match read.await {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(error)) => {
                    return self.fail(FailureKind::Unreadable, format!("{}: {error}", path.display()));
                }
                // The runtime ends.
                Err(_) => return,
            };
            let mut hasher = PieceHasher::new(range);
            hasher.update(&bytes);
            let hash = hasher.finish().expect("the whole piece was read").hash;
            // A confirmation may have come in between.
            self.stir(|s| {
                if s.wanted(group) == Some(range) {
                    s.supply(group, vec![bytes], hash);
                }
            });
        }
    }

    /// Feeds a group to its end, and says the hash of the file if it read all of it.
    ///
    /// Errors: the file cannot be read, which was reported.
    async fn supply_group(
        &self,
        group: u16,
        path: PathBuf,
        pace: &tokio::sync::Mutex<Instant>,
    ) -> Result<Option<FileHash>, ()> {
        let (pieces_out, mut pieces) = mpsc::channel(2);
        let program = &self.program;
        let map = lock(&self.site).work_map(group).cloned();
        let Some(map) = map else { return Ok(None) };
        let alone = program.groups.iter().filter(|g| g.fills.is_none()).count() == 1;
        let whole = (alone && map.pieces() > 0 || program.length == 0)
            && (0..map.pieces()).filter_map(|i| map.piece(i)).map(ByteRange::len).sum::<u64>()
                == program.length;
        let length = program.length;
        tokio::task::spawn_blocking(move || read_pieces(&path, length, &map, whole, &pieces_out));
        let coded = program.groups[usize::from(group)].mode == Mode::Coded;
        let (streams, fixed) = self.cutting(group);
        // What one piece costs the source's uplink.
        let copies: usize = program.outgoing.iter().filter(|o| o.group == group).map(|o| o.terms.len()).sum();
        let mut hash = None;
        let mut over = false;
        while let Some(piece) = pieces.recv().await {
            let (bytes, generation_hash) = match piece {
                Ok(Piece::Data(bytes, generation_hash)) => (bytes, generation_hash),
                Ok(Piece::Whole(found)) => {
                    hash = Some(found);
                    continue;
                }
                Err(reason) => {
                    self.fail(FailureKind::Unreadable, reason);
                    return Err(());
                }
            };
            if over {
                continue;
            }
            if let Some(limit) = program.bandwidth_limit {
                let sent = if coded { bytes.len() * copies / streams } else { bytes.len() };
                let cost = Duration::from_secs_f64(sent as f64 * 8.0 / limit.as_bps() as f64);
                let mut next = pace.lock().await;
                tokio::time::sleep_until((*next).into()).await;
                *next = (*next).max(Instant::now() - Duration::from_millis(50)) + cost;
            }
            let mut symbols = Some(cut(bytes, streams, fixed));
            let supplied = wait_for(&self.supply, || {
                let site = lock(&self.site);
                if !site.has_work(group) {
                    return Some(false);
                }
                let open = site.wanted(group).is_some();
                drop(site);
                // What was wanted may not be any more: a confirmation can come in between.
                let supply = |s: &mut Site<Bytes>| {
                    s.wanted(group)?;
                    s.supply(group, symbols.take()?, generation_hash);
                    Some(true)
                };
                if open { self.stir(supply) } else { None }
            });
            if !supplied.await {
                if !whole {
                    return Ok(None);
                }
                // The rest is read for the file's hash only.
                over = true;
            }
        }
        Ok(hash)
    }
}

fn write_file(shared: &Weak<Shared>, file: &SharedFile, mut writes: mpsc::UnboundedReceiver<Write<Bytes>>) {
    while let Some(write) = writes.blocking_recv() {
        let Some(shared) = shared.upgrade() else { return };
        if let Err(error) = lock(file).write(write.range, &write.parts, write.hash.0) {
            return shared.fail(FailureKind::Unwritable, error.to_string());
        }
        shared.stir(|s| s.handle_written(write.sink, write.range));
    }
}

fn run_errands(shared: &Weak<Shared>, mut spool: Spool, mut errands: mpsc::UnboundedReceiver<Errand>) {
    while let Some(errand) = errands.blocking_recv() {
        let Some(shared) = shared.upgrade() else { return };
        let done = match errand {
            Errand::Store(store) => {
                spool.store(&store).map(|()| shared.stir(|s| s.handle_stored(store.flow)))
            }
            Errand::Fetch(fetch) => {
                spool.fetch(fetch).map(|packet| shared.stir(|s| s.fetched(fetch, packet)))
            }
        };
        if let Err(error) = done {
            return shared.fail(FailureKind::Unwritable, error.to_string());
        }
    }
}

fn begins_a_chunk(piece: ByteRange) -> bool {
    piece.start.is_multiple_of(blake3::CHUNK_LEN as u64)
}

fn read_range(path: &Path, range: ByteRange) -> io::Result<Bytes> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; range.len() as usize];
    std::fs::File::open(path)?.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes.into())
}

enum Piece {
    Data(Bytes, GenerationHash),
    Whole(FileHash),
}

/// Reads a group's pieces in order and hashes them; and the whole file, where the pieces are all of it.
fn read_pieces(
    path: &std::path::Path,
    length: u64,
    map: &anabranch_replicate::work::WorkMap,
    whole: bool,
    out: &mpsc::Sender<Result<Piece, String>>,
) {
    use std::io::{Read as _, Seek as _};
    let place = |e: io::Error| format!("{}: {e}", path.display());
    let read = || {
        let file = std::fs::File::open(path).map_err(place)?;
        let before = file.metadata().map_err(place)?;
        if before.len() != length {
            return Err(format!(
                "{}: is {} bytes long, was {length} when planned",
                path.display(),
                before.len()
            ));
        }
        // The pieces' hashes make up the file's, unless one begins within a chunk or it is a single one.
        let in_tree = map.pieces() > 1 && (0..map.pieces()).filter_map(|i| map.piece(i)).all(begins_a_chunk);
        let (mut tree, mut hasher) = (FileHasher::default(), blake3::Hasher::new());
        for piece in (0..map.pieces()).filter_map(|i| map.piece(i)) {
            // Without zeros first, as `read_exact_at` would want them.
            let mut bytes = Vec::with_capacity(piece.len() as usize);
            (&file).seek(io::SeekFrom::Start(piece.start)).map_err(place)?;
            (&file).take(piece.len()).read_to_end(&mut bytes).map_err(place)?;
            if bytes.len() as u64 != piece.len() {
                return Err(place(io::ErrorKind::UnexpectedEof.into()));
            }
            let mut piece_hasher = PieceHasher::new(piece);
            piece_hasher.update(&bytes);
            let hashed = piece_hasher.finish().expect("the piece's length was read");
            let hash = hashed.hash;
            if whole && in_tree {
                tree.push(hashed);
            } else if whole {
                hasher.update(&bytes);
            }
            if out.blocking_send(Ok(Piece::Data(bytes.into(), hash))).is_err() {
                return Ok(());
            }
        }
        let after = file.metadata().map_err(place)?;
        if after.len() != before.len() || after.modified().ok() != before.modified().ok() {
            return Err(format!(
                "{}: changed while it was read: send it again when it rests",
                path.display()
            ));
        }
        if whole {
            let plain = || FileHash(*hasher.finalize().as_bytes());
            let _ = out.blocking_send(Ok(Piece::Whole(tree.finish().unwrap_or_else(plain))));
        }
        Ok(())
    };
    if let Err(reason) = read() {
        let _ = out.blocking_send(Err(reason));
    }
}

/// Cuts a piece into `streams` symbols of equal length, the last padded with zeros.
fn cut(bytes: Bytes, streams: usize, length: Option<usize>) -> Vec<Bytes> {
    let length = length.unwrap_or(bytes.len().div_ceil(streams));
    (0..streams)
        .map(|i| {
            let (start, end) = ((i * length).min(bytes.len()), ((i + 1) * length).min(bytes.len()));
            if end - start == length {
                return bytes.slice(start..end);
            }
            let mut padded = BytesMut::zeroed(length);
            padded[..end - start].copy_from_slice(&bytes[start..end]);
            padded.freeze()
        })
        .collect()
}

fn resolve(address: &str) -> io::Result<std::net::SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{address}: not an address of the form host:port"),
        )
    })
}

/// Reads what the receiving end says: that it lives, and at the end that it took everything.
async fn watch_peer(mut read: ReadHalf<TlsStream<TcpStream>>) -> io::Result<()> {
    loop {
        let word = tokio::time::timeout(HOP_TIMEOUT, read.read_u8()).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("silent for {} s", HOP_TIMEOUT.as_secs()))
        })?;
        match word? {
            ALIVE => {}
            TAKEN => return Ok(()),
            other => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected byte {other}")));
            }
        }
    }
}
