//! A host of an emulated scenario: a program in its namespace that sends, receives, requests and
//! answers over the kernel's TCP and UDP.
//!
//! It reads its [`Task`] as a line of JSON, listens, prints `ready`, reads the start time (on the
//! machine's monotonic clock, common to all hosts), does its part, prints `done`, and prints its
//! observations ([`HostObservations`]) once all hosts are done.
//!
//! One thread, the pacer, starts flows and sends datagrams at their times; one receives datagrams;
//! flows are tasks of a third thread, so that thousands cost little. Requests of an incast have a
//! thread each, because they wait for one another. A flow is identified by its source port. Read
//! [`run`] first.

use super::ScenarioError;
use crate::{Dilation, Histogram};
use anabranch_endpoint::{Endpoint as _, PeerId};
use anabranch_sim::UdpSink;
use anabranch_sim::traffic::UdpFlow;
use anabranch_transport::{Datagram, UdpSource};
use anabranch_units::{Instant, Seed};
use rustix::net::sockopt::{
    set_ip_tos, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_tcp_congestion,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::{BufRead as _, Error, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Handle;

/// Source port of flow 0; other flows use the following ports, below the kernel's ephemeral range.
const PORT_FIRST: u16 = 20_000;
/// Most flows of a run: each has its port.
pub(super) const FLOWS_MAX: u32 = 10_000;
/// Port for flows of priority 0; the other priorities follow. Datagrams of all priorities arrive at
/// the first.
const PORT_LISTENING: u16 = 19_990;
/// Connections that wait to be taken in.
const BACKLOG: i32 = 4_096;
/// Receive buffer for datagrams, a third of a second at 100 Mbit/s.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// A host's part of a run. Times are emulated nanoseconds from the beginning.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Task {
    /// When it ends at the latest.
    pub duration_ns: u64,
    /// Time from which bytes count.
    pub warmup_ns: u64,
    /// The kernel's name of the congestion control, set on every socket.
    pub congestion_control: String,
    /// Real time for each second of emulated time.
    pub dilation: Dilation,
    pub incoming: Vec<IncomingFlow>,
    pub outgoing: Vec<OutgoingFlow>,
    pub serve: Vec<Serve>,
    pub ask: Vec<IncastTask>,
    pub sources: Vec<Source>,
    /// Flows of datagrams that are received.
    pub sinks: Vec<u32>,
}

/// A flow that is received.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct IncomingFlow {
    pub flow: u32,
    pub size_bytes: Option<u64>,
}

/// A flow that is sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OutgoingFlow {
    pub flow: u32,
    pub to: IpAddr,
    pub priority: u8,
    /// The kernel's name of its congestion control, where it is not the task's.
    pub congestion_control: Option<String>,
    pub start_ns: u64,
    pub size_bytes: Option<u64>,
    /// Announcement of the flow before it sends, if any.
    #[serde(default)]
    pub announce: Option<Announce>,
}

/// Announcement of a flow before it sends: a line of JSON to a Unix socket, answered by `"ok":
/// true`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Announce {
    /// Path of the socket.
    pub socket: PathBuf,
    /// The line; `"flow": {"local": .., "remote": ..}`, the connection's two ends, is added.
    pub line: Map<String, Value>,
}

/// Datagrams that are sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Source {
    pub flow: u32,
    pub to: IpAddr,
    pub priority: u8,
    pub start_ns: u64,
    pub stop_ns: Option<u64>,
    pub udp: UdpFlow,
}

/// A block for every request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Serve {
    pub port: u16,
    pub priority: u8,
    pub request_bytes: u64,
    pub block_bytes: u64,
}

/// Requests to several servers at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct IncastTask {
    pub first_flow: u32,
    pub servers: Vec<(IpAddr, u16)>,
    pub priority: u8,
    pub rounds: u32,
    pub warmup_rounds: u32,
    pub request_bytes: u64,
    pub block_bytes: u64,
    pub jitter_ns: u64,
    pub seed: u64,
}

/// Observations of a host. Times are nanoseconds from the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostObservations {
    /// When it was done.
    pub over_ns: u64,
    /// Flows of TCP, by number.
    pub flows: BTreeMap<u32, FlowObservation>,
    /// Rounds of incasts.
    pub asked: Vec<IncastRounds>,
    /// Datagrams sent, by flow.
    pub sent: BTreeMap<u32, u64>,
    /// Datagrams received, by flow.
    pub sinks: BTreeMap<u32, SinkObservation>,
    /// Lateness of flows' starts.
    pub starts_late: Histogram,
    /// Lateness of datagrams' sending.
    pub datagrams_late: Histogram,
    /// Datagrams that arrived and were not read in time.
    pub unread_datagrams: u64,
    /// Flows and datagrams that the kernel did not take.
    pub failed: u64,
    /// Reason of the first failure.
    pub failure: Option<String>,
}

/// A flow, as its receiver saw it; `start_ns` as its sender did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FlowObservation {
    /// Bytes that arrived.
    pub received_bytes: u64,
    /// Bytes before the end of the warm-up.
    pub warmup_bytes: u64,
    /// When it began.
    pub start_ns: Option<u64>,
    /// Time at which all bytes had arrived.
    pub whole_ns: Option<u64>,
}

/// Datagrams of a flow, as their receiver saw them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SinkObservation {
    /// Count, delays and order of datagrams.
    pub sink: UdpSink,
    /// Bytes that arrived, headers included.
    pub received_bytes: u64,
    /// Bytes before the end of the warm-up.
    pub warmup_bytes: u64,
}

/// The rounds of an incast.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct IncastRounds {
    /// The number of its first flow.
    pub first_flow: u32,
    /// Bytes of a round, from all servers together.
    pub round_bytes: u64,
    /// Start and end of each round.
    pub rounds_ns: Vec<(u64, u64)>,
}

impl HostObservations {
    /// Adds the observations of another host.
    pub(super) fn merge(&mut self, other: Self) {
        self.over_ns = self.over_ns.max(other.over_ns);
        for (number, theirs) in other.flows {
            let flow = self.flows.entry(number).or_default();
            flow.received_bytes += theirs.received_bytes;
            flow.warmup_bytes += theirs.warmup_bytes;
            flow.start_ns = flow.start_ns.or(theirs.start_ns);
            flow.whole_ns = flow.whole_ns.or(theirs.whole_ns);
        }
        self.asked.extend(other.asked);
        self.sent.extend(other.sent);
        self.sinks.extend(other.sinks);
        self.starts_late.merge(&other.starts_late);
        self.datagrams_late.merge(&other.datagrams_late);
        self.unread_datagrams += other.unread_datagrams;
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }

    fn fail(&mut self, what: &str, error: &Error) {
        self.failed += 1;
        self.failure.get_or_insert_with(|| format!("{what}: {error}"));
    }
}

/// The port that is `flow`'s alone.
pub(super) fn port(flow: u32) -> u16 {
    PORT_FIRST + flow as u16
}

/// The flow of the source port `port`.
fn flow_from(port: u16) -> Option<u32> {
    port.checked_sub(PORT_FIRST).map(u32::from).filter(|flow| *flow < FLOWS_MAX)
}

/// The byte that gives a socket's packets their priority: DSCP EF (RFC 3246), none, or LE (RFC
/// 8622), as the emulator tells them apart, above the two bits of ECN.
const fn tos(priority: u8) -> u8 {
    match priority {
        0 => 46 << 2,
        1 => 0,
        _ => 1 << 2,
    }
}

/// Header of a datagram, in its first bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Stamp {
    flow: u32,
    number: u64,
    sent_ns: u64,
}

/// Bytes of the headers of IPv4 and UDP.
const HEADERS_BYTES: u32 = 28;
/// The smallest datagram on the wire.
pub(super) const DATAGRAM_BYTES_MIN: u32 = HEADERS_BYTES + Stamp::LEN as u32;

impl Stamp {
    const LEN: usize = 20;

    fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.flow.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..].copy_from_slice(&self.sent_ns.to_le_bytes());
        bytes
    }

    /// Parses the stamp of a datagram received by `now_ns`. One clock stamps and reads: a stamp in
    /// the future is not from one of our hosts.
    fn received(bytes: &[u8], now_ns: u64) -> Option<Self> {
        Self::decode(bytes).filter(|stamp| stamp.sent_ns <= now_ns)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (flow, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let sent_ns = rest.first_chunk()?;
        Some(Self {
            flow: u32::from_le_bytes(*flow),
            number: u64::from_le_bytes(*number),
            sent_ns: u64::from_le_bytes(*sent_ns),
        })
    }
}

/// For the fuzz target: returns true if the bytes are a datagram that may have arrived by now.
#[doc(hidden)]
pub fn exercise_stamp(bytes: &[u8]) -> bool {
    let Some(stamp) = Stamp::received(bytes, monotonic_ns()) else { return false };
    let datagram = Datagram { number: stamp.number, size_bytes: 1, sent_at: Instant::from_ns(stamp.sent_ns) };
    let mut flow = UdpSink::default();
    flow.handle(Instant::from_ns(monotonic_ns()), &datagram);
    assert_eq!(bytes[..Stamp::LEN], stamp.encode());
    true
}

/// The machine's monotonic clock.
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// Maximum bytes of a write. A write of a whole flow shows its size to a preloaded library; the
/// largest flow of the rings of experiments/circuit has 89 MB.
const WRITE_MAX: u64 = 128 << 20;

/// The beginning by the machine's clock, and emulated times that count from it.
#[derive(Copy, Clone, Debug)]
struct Clock {
    begin_ns: u64,
    end_ns: u64,
    warmup_ns: u64,
    dilation: Dilation,
}

impl Clock {
    fn of(task: &Task, begin_ns: u64) -> Self {
        let &Task { duration_ns: end_ns, warmup_ns, dilation, .. } = task;
        Self { begin_ns, end_ns, warmup_ns, dilation }
    }
    /// Emulated time since the beginning.
    fn now_ns(self) -> u64 {
        self.dilation.emulated_ns(monotonic_ns().saturating_sub(self.begin_ns))
    }
    /// Real time until an emulated time.
    fn until(self, at_ns: u64) -> Duration {
        let due_ns = self.begin_ns.saturating_add(self.dilation.real_ns(at_ns));
        Duration::from_nanos(due_ns.saturating_sub(monotonic_ns()))
    }
    fn left(self) -> Duration {
        self.until(self.end_ns)
    }
    fn sleep_until(self, at_ns: u64) {
        std::thread::sleep(self.until(at_ns.min(self.end_ns)));
    }
}

/// State common to the threads of a host.
#[derive(Debug)]
struct Host {
    task: Task,
    clock: Clock,
    /// Sizes of received flows.
    sizes: BTreeMap<u32, Option<u64>>,
    seen: Mutex<HostObservations>,
    /// Data of all sent flows. Pages that are only read take no memory.
    zeroes: Vec<u8>,
    /// Buffer for received data, which is discarded.
    scratch: Mutex<Vec<u8>>,
    /// Told of each part of the task that is done.
    done: Sender<()>,
}

impl Host {
    fn seen(&self) -> MutexGuard<'_, HostObservations> {
        self.seen.lock().expect("nobody panics with it")
    }
    fn part_is_done(&self) {
        // The main thread may have stopped counting: time is up.
        let _ = self.done.send(());
    }
}

/// Runs a host's program in this process, which [`super::run`] started: reads a task, performs it,
/// prints its observations, and ends the process.
///
/// Errors: the system's; input that is no task.
pub fn run() -> Result<(), ScenarioError> {
    let mut lines = std::io::stdin().lock().lines();
    let mut line = |what: &str| match lines.next() {
        Some(line) => Ok(line?),
        None => Err(ScenarioError::new(format!("standard input: no {what}"))),
    };
    let task: Task = serde_json::from_str(&line("task")?)?;
    // Else sleeps end up to 50 us late; threads inherit it.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    // Real hosts do not wait for other processors' work; without this right, lateness shows it.
    let _ = rustix::process::nice(-20);
    let files = getrlimit(Resource::Nofile);
    // Each flow is a file, and a usual limit is 1,024. If it cannot be raised, the flows beyond
    // fail and are reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let control = task.congestion_control.as_str();
    let trial = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let others = task.outgoing.iter().filter_map(|flow| flow.congestion_control.as_deref());
    for control in others.chain([control]) {
        set_tcp_congestion(&trial, control).map_err(|error| {
            ScenarioError::new(format!("congestion control {control}: not on this machine: {error}"))
        })?;
    }
    // Accepted connections inherit both options.
    let listening = |port, priority| {
        let socket = tcp_socket(control, priority, port)?;
        listen(&socket, BACKLOG)?;
        std::io::Result::Ok(TcpListener::from(socket))
    };
    let priorities = 0..anabranch_fabric::PRIORITIES as u8;
    let listeners: Vec<_> =
        priorities.map(|p| listening(PORT_LISTENING + u16::from(p), p)).collect::<Result<_, _>>()?;
    let serving: Vec<TcpListener> = task
        .serve
        .iter()
        .map(|s| {
            let listener = listening(s.port, s.priority)?;
            listener.set_nonblocking(false)?;
            Ok(listener)
        })
        .collect::<std::io::Result<_>>()?;
    let receiver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT_LISTENING))?;
    if set_socket_recv_buffer_size_force(&receiver, RECEIVE_BUFFER_BYTES).is_err() {
        // The kernel cuts it to what it allows; datagrams that do not fit are counted.
        let _ = set_socket_recv_buffer_size(&receiver, RECEIVE_BUFFER_BYTES);
    }
    let sources = task.sources.iter().map(DatagramSource::new).collect::<Result<Vec<_>, _>>()?;
    println!("ready");
    let begin = line("time to begin")?;
    let wrong = |_| ScenarioError::new(format!("standard input: `{begin}`: no time to begin"));
    let begin_ns: u64 = begin.trim().parse().map_err(wrong)?;
    let clock = Clock::of(&task, begin_ns);
    let (done, parts_done) = channel();
    let host = Arc::new(Host {
        sizes: task.incoming.iter().map(|i| (i.flow, i.size_bytes)).collect(),
        clock,
        seen: Mutex::default(),
        zeroes: vec![0; write_max(&task) as usize],
        scratch: Mutex::new(vec![0; CHUNK]),
        done,
        task,
    });
    for listener in listeners {
        let _in_runtime = runtime.enter();
        runtime.spawn(accept(host.clone(), tokio::net::TcpListener::from_std(listener)?));
    }
    for (number, listener) in serving.into_iter().enumerate() {
        let host = host.clone();
        thread(move || serve(&host.task.serve[number], &listener))?;
    }
    for number in 0..host.task.ask.len() {
        let host = host.clone();
        thread(move || {
            match ask(&host.task.ask[number], host.clock) {
                Ok(asked) => host.seen().asked.push(asked),
                Err(error) => host.seen().fail("incast", &error),
            }
            host.part_is_done();
        })?;
    }
    if !host.task.sinks.is_empty() {
        let host = host.clone();
        thread(move || receive_datagrams(&host, &receiver))?;
    }
    let (pacer, handle) = (host.clone(), runtime.handle().clone());
    thread(move || pace(&pacer, sources, &handle))?;

    let parts = 1 + host.task.ask.len() + host.task.outgoing.len() + host.task.incoming.len();
    for _ in 0..parts {
        if parts_done.recv_timeout(clock.left()).is_err() {
            break;
        }
    }
    host.seen().over_ns = clock.now_ns().min(clock.end_ns);
    println!("done");
    // Datagrams are on their way until all hosts are done, and servers answer.
    line("word that all are done")?;
    let mut seen = host.seen().clone();
    seen.unread_datagrams = unread_datagrams();
    println!("{}", serde_json::to_string(&seen)?);
    std::io::stdout().flush()?;
    // Running tasks are not awaited.
    std::process::exit(0)
}

fn thread(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().spawn(work).map(drop)
}

/// A socket of this congestion control and priority, bound to `port`. Calls on it do not wait.
fn tcp_socket(control: &str, priority: u8, port: u16) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    set_tcp_congestion(&socket, control)?;
    set_ip_tos(&socket, tos(priority))?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    Ok(socket)
}

/// Begins flows and sends datagrams at their times, until there is nothing left or time is up.
fn pace(host: &Arc<Host>, mut sources: Vec<DatagramSource>, runtime: &Handle) {
    crate::elevate();
    let clock = host.clock;
    let mut flows: Vec<OutgoingFlow> = host.task.outgoing.clone();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.start_ns));
    loop {
        let source = sources.iter_mut().filter_map(|s| Some((s.due_ns()?, s))).min_by_key(|(due, _)| *due);
        let flow_ns = flows.last().map(|flow| flow.start_ns);
        let due_ns = source.as_ref().map(|(due, _)| *due).into_iter().chain(flow_ns).min();
        let Some(due_ns) = due_ns.filter(|due| *due < clock.end_ns) else { break };
        clock.sleep_until(due_ns);
        if flow_ns == Some(due_ns) {
            let flow = flows.pop().expect("it is the next one");
            // Here and not in the task, which may have to wait for others.
            let begun = begin(host, &flow);
            let host = host.clone();
            runtime.spawn(async move {
                let sent = match begun {
                    Ok(stream) => send(stream, &flow, &host.zeroes).await,
                    Err(error) => Err(error),
                };
                // A network can keep a flow from its receiver; and receivers end when time is up.
                if let Err(error) = sent
                    && error.kind() != ErrorKind::TimedOut
                    && !host.clock.left().is_zero()
                {
                    host.seen().fail("a flow could not be sent", &error);
                }
                host.part_is_done();
            });
        } else if let Some((_, source)) = source {
            source.send(host);
        }
    }
    host.part_is_done();
}

/// A source of datagrams that sends.
struct DatagramSource {
    flow: u32,
    source: UdpSource,
    socket: UdpSocket,
    datagram: Vec<u8>,
}

impl DatagramSource {
    fn new(task: &Source) -> Result<Self, ScenarioError> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port(task.flow)))?;
        set_ip_tos(&socket, tos(task.priority)).map_err(Error::from)?;
        socket.connect((task.to, PORT_LISTENING))?;
        let stop = task.stop_ns.map(Instant::from_ns);
        let source = task.udp.source(PeerId(0), Instant::from_ns(task.start_ns), stop);
        let wrong = |what: &str| ScenarioError::new(format!("flow {}: {what}", task.flow));
        let bytes = task.udp.size_bytes.checked_sub(HEADERS_BYTES);
        let bytes = bytes.ok_or_else(|| wrong("datagrams that hold no headers"))?;
        let source = source.ok_or_else(|| wrong("a rate that no source can have"))?;
        Ok(Self { flow: task.flow, source, socket, datagram: vec![0; (bytes as usize).max(Stamp::LEN)] })
    }

    /// When the next datagram is due, rounded up.
    fn due_ns(&self) -> Option<u64> {
        self.source.poll_timeout().map(|at| (at + anabranch_units::Duration::from_ps(999)).as_ns())
    }

    fn send(&mut self, host: &Host) {
        let Some(due_ns) = self.due_ns() else { return };
        let Some(transmit) = self.source.poll_transmit(Instant::from_ns(due_ns)) else { return };
        let sent_ns = host.clock.now_ns();
        let stamp = Stamp { flow: self.flow, number: transmit.msg.number, sent_ns };
        self.datagram[..Stamp::LEN].copy_from_slice(&stamp.encode());
        let result = self.socket.send(&self.datagram);
        let mut seen = host.seen();
        seen.datagrams_late.record(sent_ns.saturating_sub(due_ns));
        seen.sent.insert(self.flow, self.source.sent());
        if let Err(error) = result {
            seen.fail("a datagram could not be sent", &error);
        }
    }
}

/// Receives datagrams for as long as the process lives.
fn receive_datagrams(host: &Host, socket: &UdpSocket) {
    crate::elevate();
    let mut buffer = vec![0; CHUNK];
    loop {
        let Ok(length) = socket.recv(&mut buffer) else { continue };
        let now_ns = host.clock.now_ns();
        let Some(stamp) = Stamp::received(&buffer[..length], now_ns) else { continue };
        if now_ns > host.clock.end_ns || !host.task.sinks.contains(&stamp.flow) {
            continue;
        }
        let size_bytes = length as u32 + HEADERS_BYTES;
        let sent_at = Instant::from_ns(stamp.sent_ns);
        let datagram = Datagram { number: stamp.number, size_bytes, sent_at };
        let mut seen = host.seen();
        let flow = seen.sinks.entry(stamp.flow).or_default();
        flow.sink.handle(Instant::from_ns(now_ns), &datagram);
        flow.received_bytes += u64::from(size_bytes);
        if now_ns < host.clock.warmup_ns {
            flow.warmup_bytes += u64::from(size_bytes);
        }
    }
}

/// Datagrams for which a socket here had no room: `RcvbufErrors` in `/proc/net/snmp` (RFC 4113 has
/// it among udpInErrors).
fn unread_datagrams() -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/snmp").unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let of = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "RcvbufErrors");
    of.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// Accepts flows for as long as the process lives.
async fn accept(host: Arc<Host>, listener: tokio::net::TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let flow = flow_from(from.port());
                if let Some((flow, size)) = flow.and_then(|flow| Some((flow, *host.sizes.get(&flow)?))) {
                    tokio::spawn(receive(host.clone(), stream, flow, size));
                }
            }
            Err(error) => {
                host.seen().fail("a flow could not be taken in", &error);
                // Out of descriptors: ended flows make room.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Takes in one flow until it is whole or its sender has gone.
async fn receive(host: Arc<Host>, stream: tokio::net::TcpStream, number: u32, size: Option<u64>) {
    loop {
        if stream.readable().await.is_err() {
            return;
        }
        let read = stream.try_read(&mut host.scratch.lock().expect("nobody panics with it"));
        let now_ns = host.clock.now_ns();
        match read {
            Ok(1..) if now_ns > host.clock.end_ns => return,
            Ok(length @ 1..) => {
                let mut seen = host.seen();
                let flow = seen.flows.entry(number).or_default();
                flow.received_bytes += length as u64;
                if now_ns < host.clock.warmup_ns {
                    flow.warmup_bytes += length as u64;
                }
                if size.is_some_and(|size| flow.received_bytes >= size) {
                    flow.whole_ns = Some(now_ns);
                    drop(seen);
                    return host.part_is_done();
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Opens a flow's connection, which is on its way then.
fn begin(host: &Host, task: &OutgoingFlow) -> std::io::Result<TcpStream> {
    let control = task.congestion_control.as_ref().unwrap_or(&host.task.congestion_control);
    let socket = tcp_socket(control, task.priority, port(task.flow))?;
    let began_ns = host.clock.now_ns();
    {
        let mut seen = host.seen();
        seen.starts_late.record(began_ns.saturating_sub(task.start_ns));
        seen.flows.entry(task.flow).or_default().start_ns = Some(began_ns);
    }
    match connect(&socket, &SocketAddr::new(task.to, PORT_LISTENING + u16::from(task.priority))) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Bytes of the largest write of a task: all of a flow, up to a limit.
fn write_max(task: &Task) -> u64 {
    let sizes = task.outgoing.iter().map(|flow| flow.size_bytes.unwrap_or(WRITE_MAX));
    sizes.max().unwrap_or(0).min(WRITE_MAX)
}

/// Sends one flow and waits until its receiver has it.
async fn send(stream: TcpStream, task: &OutgoingFlow, zeroes: &[u8]) -> std::io::Result<()> {
    let mut stream = tokio::net::TcpStream::from_std(stream)?;
    if let Some(announce) = &task.announce {
        // A pending connection is known to this host only.
        stream.writable().await?;
        say(announce, &stream).await?;
    }
    let mut left = task.size_bytes.unwrap_or(u64::MAX);
    while left > 0 {
        stream.writable().await?;
        match stream.try_write(&zeroes[..left.min(zeroes.len() as u64) as usize]) {
            Ok(written) => left -= written as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    stream.shutdown().await?;
    // The receiver closes once it has all bytes; an earlier end here would leave the rest to a
    // kernel that may give it up. The closed connection shows other hosts that the flow is over.
    stream.readable().await
}

/// Announces a flow, and waits until the announcement was accepted.
async fn say(announce: &Announce, stream: &tokio::net::TcpStream) -> std::io::Result<()> {
    let mut line = announce.line.clone();
    let ends = [("local", stream.local_addr()?), ("remote", stream.peer_addr()?)];
    let ends = ends.map(|(end, address)| (end.to_owned(), Value::from(address.to_string())));
    line.insert("flow".to_owned(), Map::from_iter(ends).into());
    let line = Value::Object(line);
    let mut agent = tokio::net::UnixStream::connect(&announce.socket).await?;
    agent.write_all(format!("{line}\n").as_bytes()).await?;
    let mut reply = String::new();
    tokio::io::BufReader::new(agent).read_line(&mut reply).await?;
    let is_taken = serde_json::from_str(&reply).is_ok_and(|reply: serde_json::Value| reply["ok"] == true);
    if is_taken { Ok(()) } else { Err(Error::other(format!("its agent does not take it: {}", reply.trim()))) }
}

/// Answers each request with a block.
fn serve(task: &Serve, listener: &TcpListener) {
    let Ok((mut stream, _)) = listener.accept() else { return };
    let _ = stream.set_nodelay(true);
    let block = vec![0; CHUNK];
    let mut request = vec![0; task.request_bytes as usize];
    while stream.read_exact(&mut request).is_ok() {
        let mut left = task.block_bytes;
        while left > 0 {
            let length = left.min(CHUNK as u64) as usize;
            if stream.write_all(&block[..length]).is_err() {
                return;
            }
            left -= length as u64;
        }
    }
}

/// Asks all servers for a block, and again when all have arrived; one thread for each server, and a
/// barrier between rounds.
fn ask(task: &IncastTask, clock: Clock) -> std::io::Result<IncastRounds> {
    let streams: Vec<TcpStream> = task.servers.iter().map(TcpStream::connect).collect::<Result<_, _>>()?;
    let barrier = std::sync::Barrier::new(streams.len() + 1);
    let ok = AtomicBool::new(true);
    let mut rounds_ns = Vec::new();
    clock.sleep_until(0);
    std::thread::scope(|scope| {
        for (index, mut stream) in streams.into_iter().enumerate() {
            let (barrier, ok) = (&barrier, &ok);
            scope.spawn(move || {
                let _ = stream.set_nodelay(true);
                let _ = set_ip_tos(&stream, tos(task.priority));
                let mut random = Seed::new(task.seed).stream("ask", index as u64);
                let request = vec![0; task.request_bytes as usize];
                let mut buffer = vec![0; CHUNK];
                for _ in 0..task.rounds + task.warmup_rounds {
                    barrier.wait();
                    let jitter_ns = clock.dilation.real_ns(random.below(task.jitter_ns + 1));
                    std::thread::sleep(Duration::from_nanos(jitter_ns));
                    let mut left = task.block_bytes;
                    let mut good = stream.write_all(&request).is_ok();
                    while good && left > 0 {
                        let length = left.min(CHUNK as u64) as usize;
                        match stream.read(&mut buffer[..length]) {
                            Ok(0) | Err(_) => good = false,
                            Ok(length) => left -= length as u64,
                        }
                    }
                    if !good {
                        ok.store(false, Relaxed);
                    }
                    barrier.wait();
                }
            });
        }
        for round in 0..task.rounds + task.warmup_rounds {
            let began_ns = clock.now_ns();
            barrier.wait();
            barrier.wait();
            let ended_ns = clock.now_ns();
            if round >= task.warmup_rounds && ok.load(Relaxed) && ended_ns <= clock.end_ns {
                rounds_ns.push((began_ns, ended_ns));
            }
        }
    });
    let round_bytes = task.block_bytes * task.servers.len() as u64;
    Ok(IncastRounds { first_flow: task.first_flow, round_bytes, rounds_ns })
}

#[cfg(test)]
mod tests;
