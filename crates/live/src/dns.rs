//! The name server of `live`: viewers query the name of a stream, and get the addresses of their
//! edge.
//!
//! Source: VDN, §4.4.2 ("Initial requests"); RFC 1035, RFC 7766 (TCP), RFC 7871 (client subnet).
//! The server is authoritative for one zone, and never queries another server. The viewer's address
//! is the client subnet in the query, or else the address of the sender.
//!
//! Leaves out: DNSSEC, transfers and updates of the zone. Read [`DnsServer`] and [`DnsConfig`] first.

mod message;

#[doc(hidden)]
pub use message::exercise;

use anabranch_http::metrics::Metrics;
use anabranch_http::plain::RequestRate;
use anabranch_live_proto::directory::Directory;
use anabranch_live_proto::directory::names::Zone;
use anabranch_net::admission::{Admission, AdmissionLimits, Arrival};
use hickory_proto::op::ResponseCode;
use message::{Responder, Transport};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

/// Longest query in bytes. Longer queries are dropped.
const QUESTION_BYTES_MAX: usize = 4_096;
/// Maximum number of attempts to find a port that is free for both UDP and TCP.
const PORT_ATTEMPTS_MAX: usize = 16;
/// Shortest interval between two log lines about malformed queries.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Configuration of a name server.
#[derive(Clone, Debug)]
pub struct DnsConfig {
    /// Address for UDP and TCP. Port 0 selects a free port. UDP answers are sent from this address,
    /// so a host with several addresses should name one.
    pub address: SocketAddr,
    /// DNS zone with the names of the streams.
    pub zone: Zone,
    /// Time to live of all records, in seconds.
    pub ttl_s: u32,
    /// Limits of TCP connections.
    pub admission: AdmissionLimits,
    /// Maximum number of answers per second over UDP. Above this rate each network still gets
    /// [`anabranch_http::plain::ADDRESS_REQUESTS_PER_S`] answers, and further queries are dropped.
    pub answers_per_s_max: u64,
}

impl DnsConfig {
    /// Creates a configuration with default limits.
    pub fn new(address: SocketAddr, zone: Zone) -> Self {
        let admission = AdmissionLimits {
            silent_max: 512,
            speaking_max: 512,
            silent_time: Duration::from_secs(3),
            speaking_time: Duration::from_secs(10),
        };
        Self { address, zone, ttl_s: 5, admission, answers_per_s_max: 50_000 }
    }
}

/// Event counts of a name server since its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsCounts {
    /// Messages received.
    pub questions: u64,
    /// Answers without an error code.
    pub answered: u64,
    /// Answers that the queried name does not exist.
    pub no_name: u64,
    /// Queries for names outside the zone, or for another class.
    pub refused: u64,
    /// Malformed messages, and messages of an unsupported kind.
    pub malformed: u64,
    /// Queries for which no edge was open.
    pub unavailable: u64,
    /// UDP answers that were truncated.
    pub truncated: u64,
    /// Messages not answered: not a query, above the rate limit, or a full socket.
    pub dropped: u64,
}

impl DnsCounts {
    /// Formats the counts as metrics for Prometheus.
    fn text(&self) -> String {
        let mut all = Metrics::default();
        all.counter("live_dns_questions_total", "Messages that arrived", self.questions);
        all.counter("live_dns_answered_total", "Answers without an error", self.answered);
        all.counter("live_dns_truncated_total", "Answers over UDP that were too long", self.truncated);
        let failures = [
            ("dropped", self.dropped),
            ("malformed", self.malformed),
            ("no_name", self.no_name),
            ("refused", self.refused),
            ("unavailable", self.unavailable),
        ];
        let failures = failures.map(|(cause, count)| ([cause.to_owned()], count));
        let help = "Messages without an answer, and answers with an error, by cause";
        all.counters("live_dns_failures_total", help, ["cause"], failures);
        all.text()
    }
}

/// A bound name server that does not serve yet.
pub struct DnsServer {
    udp: UdpSocket,
    tcp: TcpListener,
    admission: Admission,
    state: Arc<State>,
}

struct State {
    responder: Responder,
    directory: watch::Receiver<Arc<Directory>>,
    rate: RequestRate,
    counts: Mutex<(DnsCounts, BadQuestions)>,
}

/// Malformed queries since the last log line.
#[derive(Default)]
struct BadQuestions {
    count: u64,
    /// Time of the last log line; `None` before the first.
    logged_at: Option<Instant>,
}

impl DnsServer {
    /// Binds UDP and TCP sockets. Queries are answered from the current value of `directory`.
    ///
    /// Errors: an address that cannot be bound.
    pub fn bind(config: DnsConfig, directory: watch::Receiver<Arc<Directory>>) -> io::Result<Self> {
        let (udp, tcp) = listen(config.address)?;
        let state = State {
            responder: Responder::new(config.zone, config.ttl_s),
            directory,
            rate: RequestRate::new(config.answers_per_s_max),
            counts: Mutex::default(),
        };
        Ok(Self { udp, tcp, admission: Admission::new(config.admission), state: Arc::new(state) })
    }

    /// Address of the listeners.
    ///
    /// Errors: an error of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Returns a function that formats the metrics for Prometheus. It can be called while the
    /// server runs.
    pub fn metrics(&self) -> impl Fn() -> String + Clone + Send + Sync + use<> {
        let state = Arc::clone(&self.state);
        move || state.lock().0.text()
    }

    /// Returns a function that reads the counts. It can be called while the server runs.
    pub fn counter(&self) -> impl Fn() -> DnsCounts + Send + Sync + use<> {
        let state = Arc::clone(&self.state);
        move || state.lock().0
    }

    /// Serves queries. Never returns; stops when dropped.
    pub async fn run(self) -> Infallible {
        let Self { udp, tcp, admission, state } = self;
        tokio::select! {
            never = serve_udp(&udp, &state) => never,
            never = serve_tcp(&tcp, &admission, &state) => never,
        }
    }
}

/// Binds sockets of both transports to one port.
fn listen(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let mut attempts = 1..=PORT_ATTEMPTS_MAX;
    loop {
        let udp = std::net::UdpSocket::bind(address)
            .map_err(|error| io::Error::new(error.kind(), format!("UDP {address}: {error}")))?;
        udp.set_nonblocking(true)?;
        let tcp = anabranch_net::socket::listen(udp.local_addr()?);
        match tcp {
            Ok(tcp) => return Ok((UdpSocket::from_std(udp)?, tcp)),
            // A port that is free for UDP may be in use for TCP.
            Err(error) if address.port() != 0 || attempts.next().is_none() => return Err(error),
            Err(_) => {}
        }
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, (DnsCounts, BadQuestions)> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a message, and counts the result.
    fn answer(&self, message: &[u8], from: IpAddr, transport: Transport) -> Option<Vec<u8>> {
        let from = from.to_canonical();
        let is_admitted = transport == Transport::Tcp || self.rate.admits(Instant::now(), from);
        let directory = Arc::clone(&self.directory.borrow());
        let respond = || self.responder.answer(&directory, message, from, transport);
        let reply = if is_admitted { respond() } else { None };
        let (counts, bad) = &mut *self.lock();
        counts.questions += 1;
        let Some(reply) = reply else {
            counts.dropped += 1;
            return None;
        };
        counts.truncated += u64::from(reply.is_truncated);
        match reply.code {
            ResponseCode::NoError => counts.answered += 1,
            ResponseCode::NXDomain => counts.no_name += 1,
            ResponseCode::Refused => counts.refused += 1,
            ResponseCode::ServFail => counts.unavailable += 1,
            _ => {
                counts.malformed += 1;
                bad.note(Instant::now(), from);
            }
        }
        Some(reply.bytes)
    }
}

impl BadQuestions {
    /// Counts a malformed query, and logs the count at most once in [`LOG_EVERY`].
    fn note(&mut self, now: Instant, from: IpAddr) {
        self.count += 1;
        if self.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_EVERY) {
            tracing::warn!("{} bad questions, the last from {from}", self.count);
            *self = Self { count: 0, logged_at: Some(now) };
        }
    }
}

async fn serve_udp(socket: &UdpSocket, state: &State) -> Infallible {
    let mut buffer = vec![0; QUESTION_BYTES_MAX];
    loop {
        // The error belongs to an earlier answer, whose receiver is unreachable (ICMP).
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            tokio::task::yield_now().await;
            continue;
        };
        let Some(answer) = state.answer(&buffer[..length], from.ip(), Transport::Udp) else { continue };
        // If the socket is full, the answer is dropped, as in the network, and the client repeats
        // its query.
        if socket.try_send_to(&answer, from).is_err() {
            state.lock().0.dropped += 1;
        }
    }
}

async fn serve_tcp(listener: &TcpListener, admission: &Admission, state: &Arc<State>) -> Infallible {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let arrival = admission.accept(listener).await;
        let (from, state) = (arrival.from(), Arc::clone(state));
        connections.spawn(async move {
            if let Err(error) = serve_connection(arrival, &state).await {
                tracing::debug!("{from}: {error}");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(arrival: Arrival, state: &State) -> io::Result<()> {
    let (mut stream, mut half_open) = arrival.unidentified();
    stream.set_nodelay(true)?;
    let from = half_open.from().ip();
    while half_open.within(exchange(&mut stream, from, state)).await? {
        half_open.speaks();
    }
    Ok(())
}

/// Reads one query and writes its answer, each after its length (RFC 7766, section 8). Returns
/// false at the end of the connection, and after a message without an answer.
async fn exchange(stream: &mut TcpStream, from: IpAddr, state: &State) -> io::Result<bool> {
    let mut length = [0; 2];
    if stream.read(&mut length[..1]).await? == 0 {
        return Ok(false);
    }
    stream.read_exact(&mut length[1..]).await?;
    let length = usize::from(u16::from_be_bytes(length));
    if length > QUESTION_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("question of {length} bytes: at most {QUESTION_BYTES_MAX}"),
        ));
    }
    let mut question = vec![0; length];
    stream.read_exact(&mut question).await?;
    let Some(answer) = state.answer(&question, from, Transport::Tcp) else { return Ok(false) };
    let length = u16::try_from(answer.len()).expect("answers are bounded");
    stream.write_all(&[&length.to_be_bytes(), &*answer].concat()).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_list_all_metrics() {
        let text = DnsCounts::default().text();
        anabranch_testing::exposition::check_table("docs/live.md", "live dns", &text);
    }
}
