//! UDP sockets for high datagram rates.
//!
//! [`DatagramSocket::try_send`] sends many datagrams of one size to one peer in one system call
//! (segmentation offload, UDP GSO), or one by one if the kernel or a device cannot.
//! [`DatagramSocket::recv`] fills a [`Batch`] with up to 32 messages of up to 64 datagrams each
//! (receive offload, UDP GRO) in one call. Fragmentation is forbidden: a datagram that is too big
//! for the path is an error ([`SendError::TooBig`]). Memory is bounded by the two kernel buffers
//! and the caller's batches. One socket serves any number of threads, each with a separate batch.
//!
//! quinn-udp, which QUIC implementations share, makes the system calls. This module decides when to
//! use offload: before Linux 6.14 a segment above the device's MTU fails an offloaded send just as
//! a device without offload does, so one oversized datagram would end offload for the whole socket.
//!
//! [`SendSocket`] only sends.
//!
//! Leaves out: the datagrams' contents ([`crate::seal`]), pacing, and the search for a path's MTU.
//! Read [`DatagramSocket`], [`Segments`] and [`Batch`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: sockets and /proc are its business")]

use anabranch_units::ByteCount;
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// The largest payload of one datagram: 65,535 bytes less the headers of IPv4 and UDP.
pub const PAYLOAD_MAX: usize = 65_507;
/// Maximum bytes of datagrams in one system call: the kernel first builds one IP packet of them.
/// The limit is lower for IPv6 than for IPv4, and applies to both here.
const TOGETHER_BYTES_MAX: usize = 65_535 - 48;
/// Maximum number of datagrams in one system call: the limit of Linux before 6.9.
const SEGMENTS_MAX: usize = 64;
/// Maximum number of messages that one system call receives.
const MESSAGES_MAX: usize = quinn_udp::BATCH_SIZE;
/// Buffer size of a message: the datagrams that the kernel merges never exceed one IP packet.
const MESSAGE_BYTES: usize = 65_536;

/// Number of times that the kernel's socket table is read in search of a socket.
const TABLE_READS_MAX: usize = 4;

/// Maximum payload of an unfragmented datagram to `to` over a path with an MTU of `mtu_bytes`.
/// `None` if the headers leave no room.
///
/// Units: bytes, headers of IP (without options) and UDP taken off; at most [`PAYLOAD_MAX`].
///
/// ```
/// use anabranch_net::datagram::payload_max;
/// assert_eq!(payload_max(1_500, "192.0.2.1".parse()?), Some(1_472));
/// assert_eq!(payload_max(1_500, "2001:db8::1".parse()?), Some(1_452));
/// assert_eq!(payload_max(28, "192.0.2.1".parse()?), None);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn payload_max(mtu_bytes: u32, to: IpAddr) -> Option<usize> {
    let headers = if to.to_canonical().is_ipv4() { 20 + 8 } else { 40 + 8 };
    let payload = usize::try_from(mtu_bytes).ok()?.checked_sub(headers)?;
    (payload > 0).then_some(payload.min(PAYLOAD_MAX))
}

/// MTU of the route to `to` in this machine's routing table: the device's MTU, or a lower value
/// that the kernel has learnt from the path.
///
/// Units: bytes, IP header included. The value describes the first hop rather than the path. A
/// narrower link further on shows only because no datagram arrives.
/// Errors: no route, or the system's error, with the address in the text.
pub fn route_mtu(to: SocketAddr) -> io::Result<u32> {
    let to = canonical(to);
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let ask = || {
        let socket = std::net::UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        let mtu = if to.is_ipv4() {
            rustix::net::sockopt::ip_mtu(&socket)
        } else {
            rustix::net::sockopt::ipv6_mtu(&socket)
        };
        Ok(mtu?)
    };
    ask().map_err(|e: io::Error| io::Error::new(e.kind(), format!("{to}: {e}")))
}

/// Options of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramOptions {
    /// Kernel buffer for datagrams received but not read yet.
    pub receive_buffer: ByteCount,
    /// Kernel buffer for datagrams that have not left.
    pub send_buffer: ByteCount,
    /// True to use segmentation offload if it works.
    pub offload: bool,
}

impl Default for DatagramOptions {
    /// 4 MiB for each direction, with offload.
    fn default() -> Self {
        Self { receive_buffer: ByteCount::mib(4), send_buffer: ByteCount::mib(4), offload: true }
    }
}

/// The sizes of a socket's buffers.
///
/// Units: bytes, as requested. The kernel reserves twice the request and charges each datagram for
/// its own bookkeeping, at least half a kilobyte. So small datagrams fill a buffer before their
/// payload does.
/// Source: socket(7), `SO_RCVBUF`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Buffer for received datagrams.
    pub receive: ByteCount,
    /// Buffer for sent datagrams.
    pub send: ByteCount,
}

/// The congestion mark in a datagram's IP header (RFC 3168).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// The transport reacts to marks: ECT(0).
    Ect0,
    /// The transport reacts to marks: ECT(1), for L4S (RFC 9331).
    Ect1,
    /// Congestion experienced: a queue on the path has marked the datagram.
    Ce,
}

impl Ecn {
    const fn codepoint(self) -> EcnCodepoint {
        match self {
            Self::Ect0 => EcnCodepoint::Ect0,
            Self::Ect1 => EcnCodepoint::Ect1,
            Self::Ce => EcnCodepoint::Ce,
        }
    }

    const fn of(codepoint: EcnCodepoint) -> Self {
        match codepoint {
            EcnCodepoint::Ect0 => Self::Ect0,
            EcnCodepoint::Ect1 => Self::Ect1,
            EcnCodepoint::Ce => Self::Ce,
        }
    }
}

/// Consecutive datagrams for one peer in one buffer. All have the same size, except that the last
/// may be smaller.
#[derive(Copy, Clone, Debug)]
pub struct Segments<'a> {
    to: SocketAddr,
    bytes: &'a [u8],
    segment_bytes: usize,
    ecn: Option<Ecn>,
    source: Option<IpAddr>,
}

impl<'a> Segments<'a> {
    /// Splits `bytes` into datagrams of `segment_bytes` each; without bytes there is no datagram.
    ///
    /// Panics: `segment_bytes` is 0.
    pub const fn new(to: SocketAddr, bytes: &'a [u8], segment_bytes: usize) -> Self {
        assert!(segment_bytes > 0, "a datagram that is one of many has at least one byte");
        Self { to, bytes, segment_bytes, ecn: None, source: None }
    }

    /// Creates one datagram of all `bytes`; without bytes there is no datagram.
    pub const fn one(to: SocketAddr, bytes: &'a [u8]) -> Self {
        let segment_bytes = if bytes.is_empty() { 1 } else { bytes.len() };
        Self { to, bytes, segment_bytes, ecn: None, source: None }
    }

    /// Sets the ECN field of the datagrams' IP headers.
    #[must_use]
    pub const fn with_ecn(self, ecn: Option<Ecn>) -> Self {
        Self { ecn, ..self }
    }

    /// Sets the source address of the datagrams: a response leaves from the address of the request
    /// ([`Datagram::local`]), also on a machine with several addresses.
    #[must_use]
    pub const fn with_source(self, source: Option<IpAddr>) -> Self {
        Self { source, ..self }
    }

    /// Number of datagrams.
    pub const fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.segment_bytes)
    }

    /// The datagrams after the first `count`.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        let start = self.bytes.len().min(count.saturating_mul(self.segment_bytes));
        Self { bytes: &self.bytes[start..], ..self }
    }

    /// The first `count` datagrams, for one system call.
    fn transmit(&self, count: usize) -> Transmit<'a> {
        let contents = &self.bytes[..self.bytes.len().min(count * self.segment_bytes)];
        Transmit {
            destination: self.to,
            ecn: self.ecn.map(Ecn::codepoint),
            contents,
            // A single datagram needs no offload, so it also passes devices that cannot segment.
            segment_size: (contents.len() > self.segment_bytes).then_some(self.segment_bytes),
            src_ip: self.source,
        }
    }
}

/// Reason why a datagram was not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// The datagram exceeds the path's MTU (`EMSGSIZE`).
    TooBig {
        /// Destination.
        to: SocketAddr,
        /// Payload in bytes.
        size_bytes: usize,
        /// Maximum payload; `None` if this machine does not know the path's MTU.
        limit_bytes: Option<usize>,
    },
    /// There is no route to the destination.
    Unreachable {
        /// Destination.
        to: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// A firewall of this machine forbids the datagram, or the destination is a broadcast address.
    Forbidden {
        /// Destination.
        to: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// The machine has no memory for the datagram now. A later attempt may succeed.
    NoBuffers {
        /// Destination.
        to: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// Any other error.
    Other {
        /// Destination.
        to: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooBig { to, size_bytes, limit_bytes: Some(limit) } => {
                write!(
                    f,
                    "datagram of {size_bytes} bytes to {to}: too big for the way there, at most {limit} bytes pass"
                )
            }
            Self::TooBig { to, size_bytes, limit_bytes: None } => {
                write!(f, "datagram of {size_bytes} bytes to {to}: too big for the way there")
            }
            Self::Unreachable { to, error } => write!(f, "datagram to {to}: no way there: {error}"),
            Self::Forbidden { to, error } => {
                write!(
                    f,
                    "datagram to {to}: {error}: see this machine's firewall, and that the address is one host's"
                )
            }
            Self::NoBuffers { to, error } | Self::Other { to, error } => {
                write!(f, "datagram to {to}: {error}")
            }
        }
    }
}
impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::TooBig { .. } => None,
            Self::Unreachable { error, .. }
            | Self::Forbidden { error, .. }
            | Self::NoBuffers { error, .. }
            | Self::Other { error, .. } => Some(error),
        }
    }
}

/// A UDP socket that only sends, without an async runtime.
///
/// The kernel reports free buffer space after every sent datagram, which wakes a runtime each time.
/// For many sockets that each send little, the wake-ups cost as much as the sends.
#[derive(Debug)]
pub struct SendSocket {
    socket: std::net::UdpSocket,
    state: UdpSocketState,
    /// Separate state for offloaded sends, as in [`DatagramSocket`].
    state_offload: UdpSocketState,
    offload: Offload,
}

impl SendSocket {
    /// Binds a socket to `at`, like [`DatagramSocket::bind`].
    ///
    /// Errors: the system's, with the address in the text.
    pub fn bind(at: SocketAddr, options: &DatagramOptions) -> io::Result<Self> {
        let (socket, _) = open(at, options).map_err(|e| crate::socket::cannot_listen(at, &e))?;
        let state = UdpSocketState::new((&socket).into())?;
        let state_offload = UdpSocketState::new((&socket).into())?;
        let offload = Offload(AtomicBool::new(options.offload && state.max_gso_segments() > 1));
        Ok(Self { socket, state, state_offload, offload })
    }

    /// Does the same as [`DatagramSocket::try_send`].
    ///
    /// Errors: see [`DatagramSocket::try_send`].
    pub fn try_send(&self, segments: &Segments<'_>) -> Result<usize, SendError> {
        self.offload.send(segments, |transmit| {
            let state = if transmit.segment_size.is_some() { &self.state_offload } else { &self.state };
            state.try_send((&self.socket).into(), transmit)
        })
    }
}

/// Opens a socket with buffers of these sizes, as far as the kernel grants them.
fn open(at: SocketAddr, options: &DatagramOptions) -> io::Result<(std::net::UdpSocket, Buffers)> {
    use rustix::net::sockopt;
    let socket = std::net::UdpSocket::bind(at)?;
    // The kernel doubles the requested size and stores the result in 32 bits.
    let asked = |size: ByteCount| usize::try_from(size.as_u64()).unwrap_or(usize::MAX).min(1 << 30);
    let (receive, send) = (asked(options.receive_buffer), asked(options.send_buffer));
    if sockopt::set_socket_recv_buffer_size_force(&socket, receive).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, receive)?;
    }
    if sockopt::set_socket_send_buffer_size_force(&socket, send).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, send)?;
    }
    let granted = |doubled: usize| ByteCount::new(doubled as u64 / 2);
    let buffers = Buffers {
        receive: granted(sockopt::socket_recv_buffer_size(&socket)?),
        send: granted(sockopt::socket_send_buffer_size(&socket)?),
    };
    Ok((socket, buffers))
}

/// Counters of a socket.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that the kernel accepted.
    pub sent: u64,
    /// Payload bytes of the sent datagrams.
    pub sent_bytes: u64,
    /// System calls that sent these datagrams.
    pub send_calls: u64,
    /// Datagrams received.
    pub received: u64,
    /// Payload bytes of the received datagrams.
    pub received_bytes: u64,
    /// System calls that received these datagrams.
    pub receive_calls: u64,
    /// Datagrams not sent: [`SendError::TooBig`].
    pub send_too_big: u64,
    /// Datagrams not sent: [`SendError::Unreachable`].
    pub send_unreachable: u64,
    /// Datagrams not sent: [`SendError::Forbidden`].
    pub send_forbidden: u64,
    /// Datagrams not sent: [`SendError::NoBuffers`].
    pub send_no_buffers: u64,
    /// Datagrams not sent: [`SendError::Other`].
    pub send_other: u64,
}

#[derive(Debug, Default)]
struct DatagramTally {
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    send_calls: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    receive_calls: AtomicU64,
    send_too_big: AtomicU64,
    send_unreachable: AtomicU64,
    send_forbidden: AtomicU64,
    send_no_buffers: AtomicU64,
    send_other: AtomicU64,
}

/// True while sends use offload.
#[derive(Debug)]
struct Offload(AtomicBool);

/// A UDP socket under tokio. See the module.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Separate state for offloaded sends: after the kernel refuses an offloaded send, quinn-udp no
    /// longer sets ECN with that state.
    state_offload: UdpSocketState,
    offload: Offload,
    buffers: Buffers,
    tally: DatagramTally,
}

impl DatagramSocket {
    /// Binds a socket to `at`. A socket on `[::]` also receives IPv4 datagrams if the machine
    /// permits that (`net.ipv6.bindv6only` is 0, the default).
    ///
    /// Buffers exceed `net.core.{r,w}mem_max` if the process has the capability `CAP_NET_ADMIN`.
    /// Otherwise the kernel limits them to that maximum: see [`DatagramSocket::buffers`].
    ///
    /// Errors: the system's, with the address in the text.
    /// Panics: outside a tokio runtime that drives I/O.
    pub fn bind(at: SocketAddr, options: &DatagramOptions) -> io::Result<Self> {
        Self::set_up(at, options).map_err(|e| crate::socket::cannot_listen(at, &e))
    }

    fn set_up(at: SocketAddr, options: &DatagramOptions) -> io::Result<Self> {
        let (socket, buffers) = open(at, options)?;
        let state = UdpSocketState::new((&socket).into())?;
        let state_offload = UdpSocketState::new((&socket).into())?;
        let offload = options.offload && state.max_gso_segments() > 1;
        Ok(Self {
            socket: UdpSocket::from_std(socket)?,
            state,
            state_offload,
            offload: Offload(AtomicBool::new(offload)),
            buffers,
            tally: DatagramTally::default(),
        })
    }

    /// Local address.
    ///
    /// Errors: the system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sizes of the buffers that the kernel granted.
    pub fn buffers(&self) -> Buffers {
        self.buffers
    }

    /// Returns true while sends use offload. The first time that the kernel refuses an offloaded
    /// send ends offload.
    pub fn offloads(&self) -> bool {
        self.offload.0.load(Relaxed)
    }

    /// Returns true if the system may fragment datagrams because it has no way to forbid it.
    pub fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Sends as many of `segments` as the kernel accepts now, and returns the number of datagrams
    /// sent. Returns 0 if `segments` is empty, or if the runtime has noted a full buffer;
    /// [`DatagramSocket::writable`] then waits for room.
    ///
    /// Errors: the first datagram cannot be sent, and none was sent. Later datagrams may still be
    /// sendable ([`Segments::after`]).
    /// Cost: one system call per 64 datagrams or 64 KiB with offload, else one per datagram; no
    /// allocation.
    pub fn try_send(&self, segments: &Segments<'_>) -> Result<usize, SendError> {
        let mut calls = 0;
        let result = self.offload.send(segments, |transmit| {
            let state = if transmit.segment_size.is_some() { &self.state_offload } else { &self.state };
            // Makes the system call only if the runtime has not noted a full buffer.
            self.socket.try_io(Interest::WRITABLE, || {
                calls += 1;
                state.try_send((&self.socket).into(), transmit)
            })
        });
        self.tally.send_calls.fetch_add(calls, Relaxed);
        match &result {
            Ok(sent) => {
                let bytes = segments.bytes.len() - segments.after(*sent).bytes.len();
                self.tally.sent.fetch_add(*sent as u64, Relaxed);
                self.tally.sent_bytes.fetch_add(bytes as u64, Relaxed);
            }
            Err(error) => {
                let counter = match error {
                    SendError::TooBig { .. } => &self.tally.send_too_big,
                    SendError::Unreachable { .. } => &self.tally.send_unreachable,
                    SendError::Forbidden { .. } => &self.tally.send_forbidden,
                    SendError::NoBuffers { .. } => &self.tally.send_no_buffers,
                    SendError::Other { .. } => &self.tally.send_other,
                };
                counter.fetch_add(1, Relaxed);
            }
        }
        result
    }

    /// Sends all of `segments`, and waits whenever the buffer is full.
    ///
    /// If the call is dropped while it waits, the datagrams before that point have been sent.
    ///
    /// Errors: a datagram cannot be sent; the datagrams before it have been sent.
    pub async fn send(&self, segments: &Segments<'_>) -> Result<(), SendError> {
        let mut rest = *segments;
        while rest.count() > 0 {
            // Loopback never fills the buffer, so the loop never waits; only this call lets other
            // tasks run.
            tokio::task::coop::consume_budget().await;
            match self.try_send(&rest)? {
                0 => self.writable().await.map_err(|error| SendError::Other { to: rest.to, error })?,
                sent => rest = rest.after(sent),
            }
        }
        Ok(())
    }

    /// Waits until the kernel may have room again.
    ///
    /// Errors: the runtime has shut down.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Fills `batch` with received datagrams, and returns their number. Returns 0 if the runtime
    /// knows of no datagram; the runtime learns of arrivals only while a task waits.
    ///
    /// Errors: the system's.
    /// Cost: one system call; no allocation.
    pub fn try_recv(&self, batch: &mut Batch) -> io::Result<usize> {
        match self.socket.try_io(Interest::READABLE, || self.receive(batch)) {
            Ok(count) => Ok(count),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Waits until datagrams arrive, and fills `batch` with at least one. A dropped call loses no
    /// datagram.
    ///
    /// Errors: the system's.
    pub async fn recv(&self, batch: &mut Batch) -> io::Result<usize> {
        self.socket.async_io(Interest::READABLE, || self.receive(batch)).await
    }

    fn receive(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.messages = 0;
        let mut slots = batch.bytes.chunks_exact_mut(MESSAGE_BYTES);
        let mut slices: [IoSliceMut<'_>; MESSAGES_MAX] =
            std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
        let slots = batch.slots;
        let messages =
            self.state.recv((&self.socket).into(), &mut slices[..slots], &mut batch.meta[..slots])?;
        batch.messages = messages;
        let (mut count, mut bytes) = (0, 0);
        for meta in &batch.meta[..messages] {
            count += datagrams_in(meta);
            bytes += meta.len;
        }
        self.tally.receive_calls.fetch_add(1, Relaxed);
        self.tally.received.fetch_add(count as u64, Relaxed);
        self.tally.received_bytes.fetch_add(bytes as u64, Relaxed);
        Ok(count)
    }

    /// Counters so far.
    pub fn counters(&self) -> Counters {
        let t = &self.tally;
        let [sent, sent_bytes, send_calls, received, received_bytes, receive_calls] =
            [&t.sent, &t.sent_bytes, &t.send_calls, &t.received, &t.received_bytes, &t.receive_calls]
                .map(|c| c.load(Relaxed));
        let [send_too_big, send_unreachable, send_forbidden, send_no_buffers, send_other] =
            [&t.send_too_big, &t.send_unreachable, &t.send_forbidden, &t.send_no_buffers, &t.send_other]
                .map(|c| c.load(Relaxed));
        Counters {
            sent,
            sent_bytes,
            send_calls,
            received,
            received_bytes,
            receive_calls,
            send_too_big,
            send_unreachable,
            send_forbidden,
            send_no_buffers,
            send_other,
        }
    }

    /// Number of received messages that the kernel has dropped for this socket, nearly always
    /// because of a full receive buffer; `None` if the system does not report it.
    ///
    /// A lower bound for datagrams: up to 64 datagrams merged by receive offload count once.
    /// Cost: reads the table of all UDP sockets in this network namespace, so do not call this for
    /// every datagram.
    /// Source: proc_net_udp(5), the column `drops`.
    pub fn receive_drops(&self) -> Option<u64> {
        let inode = rustix::fs::fstat(&self.socket).ok()?.st_ino;
        let table = if self.local_addr().ok()?.is_ipv4() { "udp" } else { "udp6" };
        // The table of the thread's network namespace, which may differ from the process's.
        let path = format!("/proc/thread-self/net/{table}");
        // The kernel resumes its listing of the table by position, so a socket that closes
        // meanwhile makes it skip an entry.
        (0..TABLE_READS_MAX).find_map(|_| drops_of(&std::fs::read_to_string(&path).ok()?, inode))
    }
}

impl Offload {
    /// Sends the segments with `call`, which makes one system call. Returns the number of datagrams
    /// sent.
    fn send(
        &self,
        segments: &Segments<'_>,
        mut call: impl FnMut(&Transmit<'_>) -> io::Result<()>,
    ) -> Result<usize, SendError> {
        let (count, mut sent) = (segments.count(), 0);
        // True once the kernel has refused an offloaded send in this call; the cause may be the
        // offload or a datagram.
        let mut doubted = false;
        while sent < count {
            let rest = segments.after(sent);
            let most = (TOGETHER_BYTES_MAX / rest.segment_bytes).clamp(1, SEGMENTS_MAX);
            let together = if !doubted && self.0.load(Relaxed) { most.min(count - sent) } else { 1 };
            match call(&rest.transmit(together)) {
                Ok(()) => {
                    sent += together;
                    if doubted {
                        // The same datagram passes without offload, so offload was the cause.
                        self.0.store(false, Relaxed);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if together > 1 && refuses_offload(&e) => doubted = true,
                Err(_) if sent > 0 => break,
                Err(e) => return Err(explain(e, &rest)),
            }
        }
        Ok(sent)
    }
}

/// Returns true if the error may be due to offload: `EIO` and `EINVAL` from devices without it,
/// `EMSGSIZE` and `EINVAL` from kernels for a segment above the MTU.
fn refuses_offload(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::IO | Errno::INVAL | Errno::MSGSIZE))
}

fn explain(error: io::Error, segments: &Segments<'_>) -> SendError {
    let to = segments.to;
    match Errno::from_io_error(&error) {
        Some(Errno::MSGSIZE) => {
            let size_bytes = segments.segment_bytes.min(segments.bytes.len());
            let limit = route_mtu(to).ok().and_then(|mtu| payload_max(mtu, to.ip()));
            // Another source address may take another route, so a limit that contradicts the error
            // is dropped.
            SendError::TooBig { to, size_bytes, limit_bytes: limit.filter(|limit| *limit < size_bytes) }
        }
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT) => {
            SendError::Unreachable { to, error }
        }
        Some(Errno::PERM | Errno::ACCESS) => SendError::Forbidden { to, error },
        Some(Errno::NOBUFS | Errno::NOMEM) => SendError::NoBuffers { to, error },
        _ => SendError::Other { to, error },
    }
}

/// Converts an IPv4-mapped IPv6 address of a dual-stack socket's peer to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// Reads the drop count of the socket with `inode` from a table in the format of `/proc/net/udp`.
fn drops_of(table: &str, inode: u64) -> Option<u64> {
    const INODE: usize = 9;
    const DROPS: usize = 12;
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(INODE);
        (fields.next()?.parse() == Ok(inode)).then(|| fields.nth(DROPS - INODE - 1)?.parse().ok())?
    })
}

fn datagrams_in(meta: &RecvMeta) -> usize {
    // A datagram may be empty.
    meta.len.div_ceil(meta.stride.max(1)).max(1)
}

/// Buffers for the datagrams of one receiving call.
pub struct Batch {
    bytes: Vec<u8>,
    slots: usize,
    meta: [RecvMeta; MESSAGES_MAX],
    messages: usize,
}

impl Batch {
    /// Creates buffers for 32 messages, 2 MiB in total; untouched pages take no memory.
    pub fn new() -> Self {
        Self::with_messages(MESSAGES_MAX)
    }

    /// Creates buffers for `messages` of 64 KiB each. A message is one datagram, or up to 64
    /// datagrams that the kernel has merged.
    ///
    /// Panics: `messages` is not in 1 to 32.
    pub fn with_messages(messages: usize) -> Self {
        assert!((1..=MESSAGES_MAX).contains(&messages), "{messages} messages: must be 1 to {MESSAGES_MAX}");
        Self {
            bytes: vec![0; messages * MESSAGE_BYTES],
            slots: messages,
            meta: [RecvMeta::default(); MESSAGES_MAX],
            messages: 0,
        }
    }

    /// The datagrams that the last call received, in order. Their bytes are mutable because
    /// [`crate::seal`] decrypts in place.
    pub fn datagrams(&mut self) -> impl Iterator<Item = Datagram<'_>> {
        let messages = self.bytes.chunks_exact_mut(MESSAGE_BYTES).zip(&self.meta).take(self.messages);
        messages.flat_map(|(bytes, meta)| {
            let mut rest = &mut bytes[..meta.len];
            (0..datagrams_in(meta)).map(move |_| {
                // The last datagram may be smaller.
                let size = meta.stride.min(rest.len());
                let (bytes, after) = std::mem::take(&mut rest).split_at_mut(size);
                rest = after;
                Datagram {
                    from: canonical(meta.addr),
                    local: meta.dst_ip.map(|ip| ip.to_canonical()),
                    ecn: meta.ecn.map(Ecn::of),
                    bytes,
                }
            })
        })
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("messages", &self.messages).finish_non_exhaustive()
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// A received datagram.
#[derive(Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Sender's address, unless spoofed. An IPv4 sender has an IPv4 address, also on a dual-stack
    /// socket.
    pub from: SocketAddr,
    /// This machine's address to which the datagram was sent.
    pub local: Option<IpAddr>,
    /// ECN field of the datagram's IP header; `None` if the sender is not ECN-capable.
    pub ecn: Option<Ecn>,
    /// Payload.
    pub bytes: &'a mut [u8],
}

#[cfg(test)]
mod tests;
