//! A host of an emulated scenario: a program in a network namespace that sends and receives flows,
//! and sends and serves requests, over the kernel's TCP and UDP.
//!
//! The program reads its [`Task`] as a line of JSON, listens, and prints `ready`. It reads the
//! start time (on the machine's monotonic clock, the same for all hosts), performs its task, and
//! prints `done`. It prints its observations ([`HostObservations`]) once all hosts are done.
//!
//! One thread, the pacer, starts flows and sends datagrams at their times; a second thread receives
//! datagrams. Flows are tasks of a third thread, so that thousands cost little. Requests of an
//! incast have a thread each, because they wait for one another. A flow is identified by its source
//! port. Read [`run`] first.

use super::ScenarioError;
use super::controls::refused;
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
/// Maximum number of flows of a run: each flow has its own source port.
pub(super) const FLOWS_MAX: u32 = 10_000;
/// Listening port for TCP flows of priority 0; the other priorities have the next ports. Datagrams
/// of all priorities arrive at this port.
const PORT_LISTENING: u16 = 19_990;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 4_096;
/// Receive buffer for datagrams: a third of a second at 100 Mbit/s.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// A host's part of a run. Times are emulated nanoseconds from the start of the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Task {
    /// Maximum duration of the run.
    pub duration_ns: u64,
    /// End of the warm-up; only bytes from this time on count in results.
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
    /// Numbers of the datagram flows that this host receives.
    pub sinks: Vec<u32>,
}

/// A flow that this host receives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct IncomingFlow {
    pub flow: u32,
    pub size_bytes: Option<u64>,
}

/// A flow that this host sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OutgoingFlow {
    pub flow: u32,
    pub to: IpAddr,
    pub priority: u8,
    /// The kernel's name of the flow's congestion control; `None` for the task's.
    pub congestion_control: Option<String>,
    pub start_ns: u64,
    pub size_bytes: Option<u64>,
    /// Announcement of the flow before it sends, if any.
    #[serde(default)]
    pub announce: Option<Announce>,
}

/// Announcement of a flow before it sends: a line of JSON written to a Unix socket. The answer must
/// contain `"ok": true`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Announce {
    /// Path of the socket.
    pub socket: PathBuf,
    /// The line. The host adds `"flow": {"local": .., "remote": ..}`, the two ends of the
    /// connection.
    pub line: Map<String, Value>,
}

/// A flow of datagrams that this host sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Source {
    pub flow: u32,
    pub to: IpAddr,
    pub priority: u8,
    pub start_ns: u64,
    pub stop_ns: Option<u64>,
    pub udp: UdpFlow,
}

/// A server that answers every request with a block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Serve {
    pub port: u16,
    pub priority: u8,
    pub request_bytes: u64,
    pub block_bytes: u64,
}

/// A client that requests blocks from several servers at once.
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

/// Observations of a host. Times are nanoseconds from the start of the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostObservations {
    /// Time at which the host was done.
    pub over_ns: u64,
    /// TCP flows, by number.
    pub flows: BTreeMap<u32, FlowObservation>,
    /// Rounds of the host's incasts.
    pub asked: Vec<IncastRounds>,
    /// Datagrams sent, by flow.
    pub sent: BTreeMap<u32, u64>,
    /// Datagrams received, by flow.
    pub sinks: BTreeMap<u32, SinkObservation>,
    /// Lateness of the starts of flows.
    pub starts_late: Histogram,
    /// Lateness of sent datagrams.
    pub datagrams_late: Histogram,
    /// Datagrams that the kernel dropped because the receive buffer was full.
    pub unread_datagrams: u64,
    /// Flows and datagrams that failed.
    pub failed: u64,
    /// Reason of the first failure.
    pub failure: Option<String>,
}

/// Observations of a flow at its receiver, and `start_ns` at its sender.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FlowObservation {
    /// Bytes that arrived.
    pub received_bytes: u64,
    /// Bytes that arrived before the end of the warm-up.
    pub warmup_bytes: u64,
    /// Time at which the sender opened the flow's connection.
    pub start_ns: Option<u64>,
    /// Time at which all bytes had arrived; `None` if bytes are missing.
    pub whole_ns: Option<u64>,
}

/// Observations of a datagram flow at its receiver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SinkObservation {
    /// Count, delays and order of datagrams.
    pub sink: UdpSink,
    /// Bytes that arrived, headers included.
    pub received_bytes: u64,
    /// Bytes that arrived before the end of the warm-up.
    pub warmup_bytes: u64,
}

/// The rounds of an incast.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct IncastRounds {
    /// The number of the incast's first flow.
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

/// The source port of `flow`.
pub(super) fn port(flow: u32) -> u16 {
    PORT_FIRST + flow as u16
}

/// The flow with the source port `port`; `None` if no flow has it.
fn flow_from(port: u16) -> Option<u32> {
    port.checked_sub(PORT_FIRST).map(u32::from).filter(|flow| *flow < FLOWS_MAX)
}

/// The byte of a socket's IP headers that sets the priority: DSCP EF (RFC 3246), default, or LE
/// (RFC 8622), above the two bits of ECN. The emulator maps these code points to priorities.
const fn tos(priority: u8) -> u8 {
    match priority {
        0 => 46 << 2,
        1 => 0,
        _ => 1 << 2,
    }
}

/// Header in the first bytes of a datagram's payload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Stamp {
    flow: u32,
    number: u64,
    sent_ns: u64,
}

/// Bytes of the headers of IPv4 and UDP.
const HEADERS_BYTES: u32 = 28;
/// Minimum size in bytes of a datagram on the wire.
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

    /// Parses the stamp of a datagram received at `now_ns`. Sender and receiver read the same
    /// clock, so a stamp in the future is not from one of our hosts.
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

/// Exercise for the fuzz target: returns true if the bytes are a datagram that may have arrived by
/// now.
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

/// Maximum bytes of one read.
const CHUNK: usize = 64 << 10;
/// Maximum bytes of one write. A write of a whole flow shows its size to a preloaded library; the
/// largest flow of the rings in experiments/circuit has 89 MB.
const WRITE_MAX: u64 = 128 << 20;

/// Start of the run by the machine's clock, and conversion of emulated times.
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
    /// Emulated time since the start of the run.
    fn now_ns(self) -> u64 {
        self.dilation.emulated_ns(monotonic_ns().saturating_sub(self.begin_ns))
    }
    /// Real time until the emulated time `at_ns`.
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
    /// Sizes in bytes of received flows; `None` for an endless flow.
    sizes: BTreeMap<u32, Option<u64>>,
    seen: Mutex<HostObservations>,
    /// Payload of all sent flows. Pages that are only read take no memory.
    zeroes: Vec<u8>,
    /// Buffer for received data, which is discarded.
    scratch: Mutex<Vec<u8>>,
    /// Notified of each finished part of the task.
    done: Sender<()>,
}

impl Host {
    fn seen(&self) -> MutexGuard<'_, HostObservations> {
        self.seen.lock().expect("nobody panics with it")
    }
    fn part_is_done(&self) {
        // The main thread no longer receives when time is up; the error is ignored.
        let _ = self.done.send(());
    }
}

/// Runs a host's program in this process, which [`super::run`] started. Reads a task, performs it,
/// prints its observations, and ends the process.
///
/// Errors: the system's; input that is not a task.
pub fn run() -> Result<(), ScenarioError> {
    let mut lines = std::io::stdin().lock().lines();
    let mut line = |what: &str| match lines.next() {
        Some(line) => Ok(line?),
        None => Err(ScenarioError::new(format!("standard input: no {what}"))),
    };
    let task: Task = serde_json::from_str(&line("task")?)?;
    // With the default timer slack, sleeps end up to 50 us late. Threads inherit the setting.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    // Real hosts do not share processors. If the priority is refused, the effect is lateness.
    let _ = rustix::process::nice(-20);
    let files = getrlimit(Resource::Nofile);
    // Each flow has a descriptor, and the usual limit is 1,024. If the limit cannot be raised,
    // further flows fail and are reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let control = task.congestion_control.as_str();
    let trial = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let others = task.outgoing.iter().filter_map(|flow| flow.congestion_control.as_deref());
    for control in others.chain([control]) {
        set_tcp_congestion(&trial, control).map_err(|error| refused(control, error))?;
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
        // The kernel cuts the size to its maximum; datagrams dropped at a full buffer are counted.
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
    // Until all hosts are done, datagrams are still in flight and servers still answer.
    line("word that all are done")?;
    let mut seen = host.seen().clone();
    seen.unread_datagrams = unread_datagrams();
    println!("{}", serde_json::to_string(&seen)?);
    std::io::stdout().flush()?;
    // Ends without waiting for running tasks.
    std::process::exit(0)
}

fn thread(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().spawn(work).map(drop)
}

/// Creates a non-blocking socket with this congestion control and priority, bound to `port`.
fn tcp_socket(control: &str, priority: u8, port: u16) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    set_tcp_congestion(&socket, control)?;
    set_ip_tos(&socket, tos(priority))?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    Ok(socket)
}

/// Starts flows and sends datagrams at their times, until none is left or the run ends.
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
            // The connection opens on this thread, because the task may have to wait for other
            // tasks.
            let begun = begin(host, &flow);
            let host = host.clone();
            runtime.spawn(async move {
                let sent = match begun {
                    Ok(stream) => send(stream, &flow, &host.zeroes).await,
                    Err(error) => Err(error),
                };
                // A flow may be blocked by the network, and receivers close when the run ends.
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

/// Sender of a datagram flow.
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

    /// Time at which the next datagram is due, rounded up to a nanosecond.
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

/// Receives datagrams until the process ends.
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

/// Datagrams that the kernel dropped because a socket's receive buffer was full: `RcvbufErrors` in
/// `/proc/net/snmp` (RFC 4113 counts these in udpInErrors).
fn unread_datagrams() -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/snmp").unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let of = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "RcvbufErrors");
    of.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// Accepts flows until the process ends.
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
                // If no descriptor is free, flows that end will free one.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Receives one flow until all its bytes have arrived or its sender has closed.
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

/// Starts to open a flow's connection, and returns without waiting for the handshake.
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

/// Size in bytes of the largest write of a task: the largest flow, at most [`WRITE_MAX`].
fn write_max(task: &Task) -> u64 {
    let sizes = task.outgoing.iter().map(|flow| flow.size_bytes.unwrap_or(WRITE_MAX));
    sizes.max().unwrap_or(0).min(WRITE_MAX)
}

/// Sends one flow, and waits until its receiver has all bytes.
async fn send(stream: TcpStream, task: &OutgoingFlow, zeroes: &[u8]) -> std::io::Result<()> {
    let mut stream = tokio::net::TcpStream::from_std(stream)?;
    if let Some(announce) = &task.announce {
        // Until the handshake is complete, only this host knows the connection.
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
    // The receiver closes once it has all bytes. An earlier close here would leave unsent bytes to
    // the kernel, which may give up. The closed connection shows other hosts that the flow is
    // complete.
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

/// Requests a block from every server, and again when all blocks have arrived. Each server has a
/// thread, with a barrier between rounds.
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
