//! For programs: announces flows to this host's `anabranch shuffle agent`, so that the tasks that
//! wait for the flows finish early.
//!
//! For each TCP connection over which it sends, a program names the flow's *coflow* and states the
//! bytes that the connection will send. A coflow is the set of flows that a task waits for
//! together; all its flows, on any host, share its name. Announce a flow when its data is ready,
//! again when there is more data, and when all of it has been sent. A program that only receives
//! announces nothing.
//!
//! ```
//! use anabranch_announce::Announcer;
//! use anabranch_units::ByteCount;
//! use std::io::Write as _;
//!
//! # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! # let reducer = listener.local_addr()?;
//! let agent = Announcer::from_env(); // ANABRANCH_SHUFFLE_SOCKET; one for the whole program
//! let mut stream = std::net::TcpStream::connect(reducer)?;
//! let partition = vec![7; 60_000];
//! let flow = agent.announce(&stream, "job-7", ByteCount::new(60_000));
//! if let Err(error) = &flow {
//!     eprintln!("goes unannounced: {error}"); // and without a limit: nothing is lost but the stage's early end
//! }
//! stream.write_all(&partition)?;
//! drop(flow); // or `ended`, to hear whether the agent heard
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Announcing hardly delays data. A call takes at most [`TIMEOUT`] (or the time of
//! [`Announcer::with_timeout`]) and then fails. After a timeout all other calls fail at once for
//! [`RETRY`]. No call panics. Threads do not wait for each other, because a thread that finds the
//! connection in use opens another connection. Without an agent a call fails at once. The next call
//! reconnects, also after a restart of the agent or a fork of this process.
//!
//! A restarted agent has no record of flows: [`Flow::grow`] with the same size announces a flow
//! again. For a connection's second or later coflow, the agent then also counts the bytes of the
//! earlier coflows. It therefore takes the flow for nearly complete until the flow ends.
//!
//! Leaves out: receiving, and the agent's use of announcements (docs/shuffle.md). Linux only. Read
//! [`Announcer`] and [`Flow`] first. Programs that cannot be changed use the `preload` crate.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a driver: it speaks with the agent and reads the clock")]

mod connection;
pub mod line;

use anabranch_units::ByteCount;
use connection::{Connection, Deadline};
use line::{FlowKey, Line, NAME_BYTES_MAX};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Fuzz target: parses bytes as an agent's answer. Returns true if they are an answer.
#[doc(hidden)]
pub fn exercise_reply(bytes: &[u8]) -> bool {
    connection::Reply::read(bytes).is_ok()
}

/// Environment variable with the path of the socket on which the agent listens (its `--listen`).
pub const SOCKET_VARIABLE: &str = "ANABRANCH_SHUFFLE_SOCKET";
/// Default time limit of a call. An agent answers within a millisecond unless its machine is
/// overloaded.
pub const TIMEOUT: Duration = Duration::from_millis(100);
/// Time after a timed-out call in which further calls fail at once, without a request to the agent.
pub const RETRY: Duration = Duration::from_secs(1);

/// The reason why a flow was not announced. The flow's data may be sent nevertheless.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnnounceError {
    /// [`SOCKET_VARIABLE`] is not set.
    NoPath,
    /// The flow's socket is not a connected TCP socket.
    Socket(std::io::Error),
    /// The agent is unreachable, closed the connection, or did not answer in time.
    Away {
        /// Path of the agent's socket.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The agent refuses the announcement, for this reason.
    Refused(String),
    /// The coflow's name is longer than [`line::NAME_BYTES_MAX`] bytes.
    TooLong {
        /// Length of the name in bytes.
        bytes: usize,
    },
}

impl fmt::Display for AnnounceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPath => {
                write!(f, "no shuffle agent: set {SOCKET_VARIABLE} to the path that its --listen says")
            }
            Self::Socket(error) => write!(f, "not a connected TCP socket: {error}"),
            Self::Away { path, error } => write!(f, "shuffle agent at {}: {error}", path.display()),
            Self::Refused(reason) => write!(f, "refused by the shuffle agent: {reason}"),
            Self::TooLong { bytes } => {
                write!(f, "a coflow's name of {bytes} bytes: the agent takes at most {NAME_BYTES_MAX}")
            }
        }
    }
}

impl std::error::Error for AnnounceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Socket(error) | Self::Away { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Connection to this host's agent. Clones share the connection; one announcer is enough for a
/// program.
#[derive(Clone, Debug)]
pub struct Announcer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: Option<PathBuf>,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Connection that no call uses at present; `None` if there is no such connection.
    idle: Option<Connection>,
    /// Time until which an agent that did not answer in time is not called.
    away_until: Option<Instant>,
}

impl Announcer {
    /// Creates an announcer for the agent at the path in [`SOCKET_VARIABLE`]. The announcer
    /// connects when the first flow is announced.
    pub fn from_env() -> Self {
        let path = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        Self::with(path.map(PathBuf::from), TIMEOUT)
    }

    /// Creates an announcer for the agent that listens at `path`. The announcer connects when the
    /// first flow is announced.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::with(Some(path.into()), TIMEOUT)
    }

    /// Creates an announcer for the agent that listens at `path`, and connects to it.
    ///
    /// Errors: no agent listens at `path`.
    pub fn connect(path: impl Into<PathBuf>) -> Result<Self, AnnounceError> {
        let announcer = Self::new(path);
        let connection = announcer.shared.open(Deadline::after(TIMEOUT))?;
        announcer.shared.put(connection);
        Ok(announcer)
    }

    /// Sets another time limit for calls. Flows that were announced before keep their limit.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self::with(self.shared.path.clone(), timeout)
    }

    fn with(path: Option<PathBuf>, timeout: Duration) -> Self {
        Self { shared: Arc::new(Shared { path, timeout, state: Mutex::default() }) }
    }

    /// Announces that this connected TCP socket sends `size` bytes in total for this coflow.
    ///
    /// A coflow's name is 1 to 128 printable ASCII characters without blanks. Bytes that the
    /// connection has already sent count towards its first coflow, and not towards later ones.
    ///
    /// Errors: see [`AnnounceError`]. The flow may send its data nevertheless.
    pub fn announce(&self, socket: &impl AsFd, coflow: &str, size: ByteCount) -> Result<Flow, AnnounceError> {
        let mut flow = self.flow(socket, coflow)?;
        if let Err(error) = flow.grow(size) {
            // The caller receives no flow to end, even if the agent received the announcement.
            flow.is_said = false;
            return Err(error);
        }
        Ok(flow)
    }

    /// Creates the flow of this connected TCP socket, which is announced only when it grows. Use
    /// this for a flow without data so far, or for a later announcement while the agent is down.
    ///
    /// Errors: the socket is not a connected TCP socket.
    pub fn flow(&self, socket: &impl AsFd, coflow: &str) -> Result<Flow, AnnounceError> {
        let name = |end: rustix::io::Result<rustix::net::SocketAddrAny>| {
            let end =
                end.and_then(|end| SocketAddr::try_from(end).map_err(|_| rustix::io::Errno::AFNOSUPPORT));
            end.map_err(|error| AnnounceError::Socket(error.into()))
        };
        let peer = rustix::net::getpeername(socket);
        let key = FlowKey {
            local: name(rustix::net::getsockname(socket))?,
            remote: name(peer.and_then(|end| end.ok_or(rustix::io::Errno::NOTCONN)))?,
        };
        Ok(Flow { shared: self.shared.clone(), key, coflow: coflow.to_owned(), is_said: false })
    }
}

/// An announced flow. Dropping the flow announces that all of its data for its coflow has been
/// sent.
///
/// Keep one flow for each coflow on a connection. Of two flows with the same coflow, the first that
/// is dropped ends both. After an announcement for another coflow, the connection belongs to the
/// new coflow, and an older flow no longer ends it.
#[derive(Debug)]
#[must_use = "dropped, it says that all has been sent"]
pub struct Flow {
    shared: Arc<Shared>,
    key: FlowKey,
    coflow: String,
    /// Whether the agent knows the flow, or may know it because the agent may have received a call
    /// without answering.
    is_said: bool,
}

impl Flow {
    /// Address of this end of the connection.
    pub const fn local(&self) -> SocketAddr {
        self.key.local
    }

    /// Address of the other end of the connection.
    pub const fn remote(&self) -> SocketAddr {
        self.key.remote
    }

    /// Announces that the flow sends `to` bytes in total for its coflow. A repetition changes
    /// nothing, unless the agent was restarted and has lost its record of the flow. A smaller size
    /// changes nothing.
    ///
    /// Errors: see [`AnnounceError`]. The flow may send its data nevertheless.
    pub fn grow(&mut self, to: ByteCount) -> Result<(), AnnounceError> {
        let (key, coflow) = (self.key, self.coflow.as_str());
        let mut is_heard = false;
        let result = self.shared.say(&Line::announce(key, coflow, to.as_u64()), &mut is_heard);
        self.is_said |= is_heard;
        result
    }

    /// Announces that all data for the coflow has been sent, although the connection may continue
    /// with another coflow. Not needed before the connection is closed, because the agent detects
    /// the close by itself.
    ///
    /// Errors: see [`AnnounceError`].
    pub fn ended(mut self) -> Result<(), AnnounceError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), AnnounceError> {
        if std::mem::take(&mut self.is_said) {
            self.shared.say(&Line::ended(self.key, &self.coflow), &mut false)
        } else {
            Ok(())
        }
    }
}

impl Drop for Flow {
    /// Takes as long as any call. The answer is ignored, because a closed connection ends the flow
    /// anyway.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Shared {
    /// Sends a line. Sets `is_heard` to whether the agent may have accepted the line.
    fn say(&self, line: &Line<'_>, is_heard: &mut bool) -> Result<(), AnnounceError> {
        let deadline = Deadline::after(self.timeout);
        let mut buffer = [0; line::LINE_BYTES_MAX];
        let bytes = line.write(&mut buffer).ok_or(AnnounceError::TooLong { bytes: line.coflow_bytes() })?;
        let (away_until, idle) =
            self.lock().map_or((None, None), |mut state| (state.away_until, state.idle.take()));
        if away_until.is_some_and(|until| Instant::now() < until) {
            let why = format!("did not answer in time: not asked for {} s", RETRY.as_secs());
            return Err(self.away(std::io::Error::other(why)));
        }
        let mut idle = idle.filter(Connection::is_ours);
        let reply = loop {
            let is_old = idle.is_some();
            let mut connection = match idle.take() {
                Some(connection) => connection,
                None => self.open(deadline)?,
            };
            *is_heard = true;
            match connection.exchange(bytes, deadline) {
                Ok(reply) => {
                    self.put(connection);
                    break reply;
                }
                // The agent may have been restarted since the last call. A silent agent has used up
                // the time limit.
                Err(_) if is_old && !deadline.is_past() => {}
                Err(error) => return Err(self.away(error)),
            }
        };
        match reply.error {
            _ if reply.ok => Ok(()),
            reason => {
                *is_heard = false;
                Err(AnnounceError::Refused(reason.unwrap_or_else(|| "for no stated reason".to_owned())))
            }
        }
    }

    fn open(&self, deadline: Deadline) -> Result<Connection, AnnounceError> {
        let path = self.path.as_ref().ok_or(AnnounceError::NoPath)?;
        Connection::open(path, deadline).map_err(|error| self.away(error))
    }

    fn put(&self, connection: Connection) {
        if let Some(mut state) = self.lock() {
            state.idle = Some(connection);
        }
    }

    fn away(&self, error: std::io::Error) -> AnnounceError {
        if error.kind() == std::io::ErrorKind::TimedOut
            && let Some(mut state) = self.lock()
        {
            state.away_until = Instant::now().checked_add(RETRY);
        }
        AnnounceError::Away { path: self.path.clone().unwrap_or_default(), error }
    }

    /// Locks the state. Returns `None` if another thread holds the lock, which then need not be
    /// awaited. In a forked child that thread may not exist, and would never release the lock.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Compiles the Rust code of the documentation page together with this crate's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/shuffle.md")]
pub struct Page;

#[cfg(test)]
mod tests;
