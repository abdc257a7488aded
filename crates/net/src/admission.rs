//! Admission at a listener, so that silent connections do not keep other peers out.
//!
//! Every connection is accepted at once. Until its peer has shown an identity the connection is
//! *half-open*, and has an entry in one of two bounded tables. The table *silent* is for
//! connections whose first TLS message is incomplete. The table *speaking* is for the time from
//! that message to the end of handshake and greeting. When a table is full, the address with the
//! most connections loses its oldest one ([`HalfOpenTable`]). The same applies when the process has
//! no descriptor left; each table also has a time limit. So a newcomer always gets in, and an
//! attacker with few addresses drops only his own connections. A peer that has shown its identity
//! takes one of [`ConnectionSlots`]. Slots are counted separately, and each identity has a limited
//! number.
//!
//! A listener without TLS admits by the same rule ([`Arrival::unidentified`]). Its connections stay
//! half-open for good: *silent* until the driver has read a first request, and *speaking* from then
//! on. Each request makes its connection the youngest of the table again.
//!
//! Leaves out: the rights of an admitted peer. Read [`Admission`] first, then [`Arrival`] and
//! [`ConnectionSlots`].

mod half_open;
mod slots;

pub use half_open::{HalfOpenTable, Network, Number};
pub use slots::{ConnectionSlot, ConnectionSlots, NoFreeSlot};

use crate::tls::{PeerIdentity, peer_identity};
use rustls::ServerConfig;
use rustls::server::{Accepted, Acceptor};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsStream;
use tokio_rustls::server::{StartHandshake, TlsStream as ServerStream};

/// Maximum size in bytes of a first TLS message, including the headers of its records. A message of
/// our clients has less than a thousand bytes.
const CLIENT_HELLO_BYTES_MAX: usize = 8 << 10;
/// Pause of an accept loop without free descriptors, while a dropped connection closes.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(50);
/// Interval between two log lines about dropped half-open connections.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Limits of half-open connections, in number and time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Maximum number of connections whose first TLS message, or first request without TLS, is
    /// incomplete. With TLS a connection takes up to 12 KiB.
    pub silent_max: usize,
    /// Maximum number of connections in handshake or greeting; without TLS, of all connections that
    /// have sent a request. With TLS a connection takes up to 64 KiB, the maximum that rustls
    /// buffers for a message.
    pub speaking_max: usize,
    /// Time limit for the first message or request.
    pub silent_time: Duration,
    /// Time limit for handshake and greeting after the first message; without TLS, maximum idle
    /// time between requests.
    pub speaking_time: Duration,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        Self {
            silent_max: 1_024,
            speaking_max: 256,
            silent_time: Duration::from_secs(3),
            speaking_time: Duration::from_secs(5),
        }
    }
}

impl AdmissionLimits {
    /// The default limits for a process that may have `descriptors`. Half-open connections take at
    /// most three eighths, so that identified peers and files find free descriptors.
    pub fn for_descriptors(descriptors: u64) -> Self {
        let part = |of: u64| usize::try_from(descriptors / of).unwrap_or(usize::MAX).max(1);
        let default = Self::default();
        Self {
            silent_max: default.silent_max.min(part(4)),
            speaking_max: default.speaking_max.min(part(8)),
            ..default
        }
    }

    /// Maximum number of descriptors that half-open connections take.
    pub fn descriptors(&self) -> u64 {
        (self.silent_max + self.speaking_max) as u64
    }
}

/// The half-open connections of a process, over all its listeners.
#[derive(Clone)]
pub struct Admission {
    shared: Arc<Shared>,
}

struct Shared {
    limits: AdmissionLimits,
    tables: Mutex<Tables>,
    /// Notified when a half-open connection has closed and its descriptor is free.
    gone: Notify,
}

struct Tables {
    /// One table for each [`HalfOpenStage`]. The value of a connection wakes its task to drop it.
    stages: [HalfOpenTable<Arc<Notify>>; 2],
    /// Half-open connections with a descriptor: the tables' connections, and dropped ones that have
    /// not closed yet.
    open: usize,
    /// Number of connections dropped since the last log line about drops.
    untold: u64,
    told_at: Option<Instant>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum HalfOpenStage {
    Silent,
    Speaking,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// Wakes the task of a dropped connection, if there is one, and counts the drop.
    fn note_dropped(&mut self, dropped: Option<Arc<Notify>>, why: &str) {
        let Some(bell) = dropped else { return };
        bell.notify_one();
        self.untold += 1;
        self.tell(why);
    }

    /// Logs the number of drops, at most once per [`TELL_EVERY`].
    fn tell(&mut self, why: &str) {
        let now = Instant::now();
        if self.told_at.is_none_or(|t| now - t >= TELL_EVERY) {
            let count = std::mem::take(&mut self.untold);
            tracing::warn!(
                "{why}: {count} connections that had shown no identity were dropped for newer ones"
            );
            self.told_at = Some(now);
        }
    }

    fn enter(&mut self, stage: HalfOpenStage, from: SocketAddr, bell: &Arc<Notify>) -> Number {
        let (number, dropped) = self.stages[stage as usize].arrive(from.ip(), Arc::clone(bell));
        self.note_dropped(dropped, "too many are half-open");
        number
    }
}

impl Admission {
    /// Creates the admission without half-open connections.
    pub fn new(limits: AdmissionLimits) -> Self {
        let stages = [limits.silent_max, limits.speaking_max].map(HalfOpenTable::new);
        let tables = Mutex::new(Tables { stages, open: 0, untold: 0, told_at: None });
        Self { shared: Arc::new(Shared { limits, tables, gone: Notify::new() }) }
    }

    /// Returns the next connection; errors of earlier connections do not end the wait.
    ///
    /// If connections arrive faster than dropped ones close, the call waits until enough have
    /// closed. All half-open connections together never have more descriptors than
    /// [`AdmissionLimits::descriptors`] plus one for each listener.
    pub async fn accept(&self, listener: &TcpListener) -> Arrival {
        loop {
            self.until_few_are_open().await;
            let error = match listener.accept().await {
                Ok((tcp, from)) => return self.enter(tcp, from),
                Err(error) => error,
            };
            if !is_out_of_descriptors(&error) {
                // Most likely a connection that closed before it was accepted; no pause is needed.
                tracing::debug!(%error, "accepting a connection");
                tokio::task::yield_now().await;
                continue;
            }
            let gone = self.shared.gone.notified();
            tokio::pin!(gone);
            gone.as_mut().enable();
            self.drop_one();
            let _ = timeout(DESCRIPTOR_WAIT, gone).await;
        }
    }

    async fn until_few_are_open(&self) {
        loop {
            let gone = self.shared.gone.notified();
            tokio::pin!(gone);
            // Registers before the count is read, so that no notification is missed.
            gone.as_mut().enable();
            if self.shared.lock().open as u64 <= self.shared.limits.descriptors() {
                return;
            }
            gone.await;
        }
    }

    fn enter(&self, tcp: TcpStream, from: SocketAddr) -> Arrival {
        let bell = Arc::new(Notify::new());
        let number = {
            let mut tables = self.shared.lock();
            tables.open += 1;
            tables.enter(HalfOpenStage::Silent, from, &bell)
        };
        let ends_at = Instant::now() + self.shared.limits.silent_time;
        let shared = Arc::clone(&self.shared);
        Arrival {
            tcp,
            half_open: HalfOpen { shared, stage: HalfOpenStage::Silent, number, bell, from, ends_at },
        }
    }

    /// Drops the oldest half-open connection of the address with the most; a silent connection,
    /// unless there is none.
    fn drop_one(&self) {
        let mut tables = self.shared.lock();
        let found = tables.stages.iter_mut().find_map(HalfOpenTable::drop_one);
        tables.note_dropped(found, "no descriptor is left (see ulimit -n)");
        tables.tell("no descriptor is left (see ulimit -n)");
    }

    /// Number of half-open connections.
    pub fn half_open(&self) -> usize {
        self.shared.lock().stages.iter().map(HalfOpenTable::len).sum()
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// A connection that was just accepted.
pub struct Arrival {
    // Declared before `half_open`, and hence dropped first: when a task waits for this descriptor
    // and is notified, the descriptor is free.
    tcp: TcpStream,
    half_open: HalfOpen,
}

impl Arrival {
    /// The TCP connection, to set its options.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Address of the caller.
    pub fn from(&self) -> SocketAddr {
        self.half_open.from
    }

    /// The TCP connection, from which a driver reads a header before the first message, and its
    /// half-open entry, which limits the time for that ([`HalfOpen::within`]).
    pub const fn before_first_message(&mut self) -> (&mut TcpStream, &HalfOpen) {
        (&mut self.tcp, &self.half_open)
    }

    /// Returns the connection and its half-open entry, for a listener that requires no identity.
    /// The caller must drop the entry after the connection.
    pub fn unidentified(self) -> (TcpStream, HalfOpen) {
        (self.tcp, self.half_open)
    }

    /// Performs the TLS handshake with a client that presents no certificate. The connection stays
    /// *silent*, and the time limit of the first request includes the handshake.
    ///
    /// Errors: timeout (`TimedOut`); the connection was dropped for another (`ConnectionAborted`);
    /// errors of rustls (`InvalidData`); the connection's own errors.
    pub async fn encrypt(self, tls: Arc<ServerConfig>) -> io::Result<(ServerStream<TcpStream>, HalfOpen)> {
        let half_open = self.half_open;
        let mut tcp = self.tcp;
        let handshake = async {
            let accepted = client_hello(&mut tcp).await?;
            StartHandshake::from_parts(accepted, tcp).into_stream(tls).await
        };
        let stream = half_open.within(handshake).await?;
        Ok((stream, half_open))
    }

    /// Performs the TLS handshake, and returns the caller's identity. The connection stays
    /// half-open until the returned [`HalfOpen`] is dropped: the caller greets within
    /// [`HalfOpen::within`], then drops it.
    ///
    /// Errors: timeout (`TimedOut`); the connection was dropped for another (`ConnectionAborted`);
    /// a certificate that is not from our authority, or names no party (`InvalidData`); the
    /// connection's own errors.
    pub async fn identify(
        self,
        tls: Arc<ServerConfig>,
    ) -> io::Result<(TlsStream<TcpStream>, PeerIdentity, HalfOpen)> {
        // The order of declarations matters: the value declared last is dropped first.
        let mut half_open = self.half_open;
        let mut tcp = self.tcp;
        let accepted = half_open.within(client_hello(&mut tcp)).await?;
        half_open.speaks();
        let handshake = async { StartHandshake::from_parts(accepted, tcp).into_stream(tls).await };
        let stream = TlsStream::from(half_open.within(handshake).await?);
        let peer = stream.get_ref().1.peer_certificates().and_then(peer_identity);
        let peer = peer.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the verified certificate names no holder")
        })?;
        Ok((stream, peer, half_open))
    }
}

/// Reads the first TLS message, of at most [`CLIENT_HELLO_BYTES_MAX`].
async fn client_hello(tcp: &mut TcpStream) -> io::Result<Accepted> {
    let mut acceptor = Acceptor::default();
    let mut buffer = [0; 512];
    let mut total = 0;
    while total <= CLIENT_HELLO_BYTES_MAX {
        let read = tcp.read(&mut buffer).await?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed before it spoke TLS"));
        }
        total += read;
        let mut bytes = &buffer[..read];
        while !bytes.is_empty() {
            acceptor.read_tls(&mut bytes)?;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                alert.write_all(&mut bytes)?;
                // The peer may have gone, so a failed write is ignored; the error returned below
                // has the cause.
                let _ = tcp.write_all(&bytes).await;
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
    let text = format!("its first message of TLS has more than {CLIENT_HELLO_BYTES_MAX} bytes");
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

fn dropped() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "dropped while half-open, for a new one")
}

/// A connection's entry among the half-open ones, which is freed when dropped.
pub struct HalfOpen {
    shared: Arc<Shared>,
    stage: HalfOpenStage,
    number: Number,
    bell: Arc<Notify>,
    from: SocketAddr,
    ends_at: Instant,
}

impl HalfOpen {
    /// Runs `work` for as long as the connection may stay half-open.
    ///
    /// Errors: timeout (`TimedOut`); the connection was dropped for another (`ConnectionAborted`);
    /// errors of `work`.
    pub async fn within<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let limits = &self.shared.limits;
        let late = || {
            let (what, time) = match self.stage {
                HalfOpenStage::Silent => ("said nothing whole", limits.silent_time),
                HalfOpenStage::Speaking => {
                    ("did not finish its handshake and greeting", limits.speaking_time)
                }
            };
            io::Error::new(io::ErrorKind::TimedOut, format!("{what} within {:.1} s", time.as_secs_f64()))
        };
        tokio::select! {
            () = self.bell.notified() => Err(dropped()),
            result = tokio::time::timeout_at(self.ends_at, work) => result.map_err(|_| late())?,
        }
    }

    /// Address of the caller.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Runs `work` until the connection is dropped for another, without a time limit.
    ///
    /// Errors: the connection was dropped for another (`ConnectionAborted`); errors of `work`.
    pub async fn until_dropped<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        tokio::select! {
            () = self.bell.notified() => Err(dropped()),
            result = work => result,
        }
    }

    /// Moves the connection to the table of connections whose first message or request is complete,
    /// as the youngest of that table.
    pub fn speaks(&mut self) {
        let mut tables = self.shared.lock();
        tables.stages[self.stage as usize].leave(self.number);
        self.stage = HalfOpenStage::Speaking;
        self.number = tables.enter(self.stage, self.from, &self.bell);
        drop(tables);
        self.ends_at = Instant::now() + self.shared.limits.speaking_time;
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        let mut tables = self.shared.lock();
        tables.stages[self.stage as usize].leave(self.number);
        tables.open -= 1;
        drop(tables);
        self.shared.gone.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
