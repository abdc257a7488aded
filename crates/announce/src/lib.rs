//! For programs: announce your flows to this host's `anabranch shuffle agent`, so that the tasks that wait for them end early.
//!
//! For each TCP connection over which it sends, a program names the *coflow* (the flows that a task waits for together; all of
//! them, on any host, have its name) and tells how much the connection has to move. Announce when the data is there; announce again
//! when there is more, and when all of it has been sent. A program that only receives announces nothing.
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
//! Announcing hardly holds up data: a call takes at most [`TIMEOUT`] (or what [`Announcer::with_timeout`] says) and fails then, and
//! for [`RETRY`] after it all others fail at once; none panics; and threads do not wait for each other, as each that finds the
//! connection in use makes one of its own. Without an agent a call fails at once. The next call connects anew, also after the
//! agent was started again or this process was forked. An agent that is started anew knows nothing of flows: [`Flow::grow`], with
//! the same size, announces a flow again. For a connection's second or later coflow it then also counts the bytes of those before,
//! so that it takes the flow for nearly through until it ends.
//!
//! Leaves out: receiving, and the agent's use of announcements (docs/shuffle.md). Linux only. Read [`Announcer`] and
//! [`Flow`] first. For programs that cannot be changed there is the `preload` room.

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

/// What the fuzz target does with bytes as an agent's answer. True if they are one.
#[doc(hidden)]
pub fn exercise_reply(bytes: &[u8]) -> bool {
    connection::Reply::read(bytes).is_ok()
}

/// The environment's word for where the agent listens (its `--listen`).
pub const SOCKET_VARIABLE: &str = "ANABRANCH_SHUFFLE_SOCKET";
/// The longest that a call takes unless told otherwise. An agent answers within a millisecond unless its machine is overloaded.
pub const TIMEOUT: Duration = Duration::from_millis(100);
/// After a call that took all of its time, how long others do not ask the agent but fail at once.
pub const RETRY: Duration = Duration::from_secs(1);

/// Why a flow has not been announced. Its data may go all the same.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnnounceError {
    /// [`SOCKET_VARIABLE`] is not set.
    NoPath,
    /// The flow's socket is no connected TCP socket.
    Socket(std::io::Error),
    /// The agent is not there, has gone, or has not answered in time.
    Away {
        /// Where it should listen.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// The agent does not take it, for this reason.
    Refused(String),
    /// A coflow's name of more than [`line::NAME_BYTES_MAX`] bytes.
    TooLong {
        /// The name's bytes.
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

/// A way to this host's agent. Clones share its connection; one is enough for a program.
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
    /// What no call uses at the moment.
    idle: Option<Connection>,
    /// Until when an agent that did not answer in time is not asked.
    away_until: Option<Instant>,
}

impl Announcer {
    /// To the agent that listens where [`SOCKET_VARIABLE`] says. It connects when the first flow is announced.
    pub fn from_env() -> Self {
        let path = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        Self::with(path.map(PathBuf::from), TIMEOUT)
    }

    /// To the agent that listens there. It connects when the first flow is announced.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::with(Some(path.into()), TIMEOUT)
    }

    /// To the agent that listens there, which has to be there now.
    ///
    /// Errors: it is not.
    pub fn connect(path: impl Into<PathBuf>) -> Result<Self, AnnounceError> {
        let announcer = Self::new(path);
        let connection = announcer.shared.open(Deadline::after(TIMEOUT))?;
        announcer.shared.put(connection);
        Ok(announcer)
    }

    /// The same with another longest time for a call; flows that were announced before keep theirs.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self::with(self.shared.path.clone(), timeout)
    }

    fn with(path: Option<PathBuf>, timeout: Duration) -> Self {
        Self { shared: Arc::new(Shared { path, timeout, state: Mutex::default() }) }
    }

    /// Says that this connected TCP socket has so much to send for this coflow, in all.
    ///
    /// A coflow's name is 1 to 128 printable ASCII characters without blanks. What the connection has moved before counts if
    /// this is its first coflow, and does not for later ones.
    ///
    /// Errors: see [`AnnounceError`]; the flow may send all the same.
    pub fn announce(&self, socket: &impl AsFd, coflow: &str, size: ByteCount) -> Result<Flow, AnnounceError> {
        let mut flow = self.flow(socket, coflow)?;
        if let Err(error) = flow.grow(size) {
            // Its end is nobody's to say, also where the agent has heard of it after all.
            flow.is_said = false;
            return Err(error);
        }
        Ok(flow)
    }

    /// The flow of this connected TCP socket, of which nothing is said until it grows: for what has nothing to send yet, or is
    /// to be announced later where the agent is away now.
    ///
    /// Errors: it is none.
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

/// A flow that has been announced. Dropped, it says that all that it has for its coflow has been sent.
///
/// One is enough for a coflow on a connection: of two with the same name, the first that is dropped ends both. Announced for
/// another coflow, the connection is that one's, and what an older flow says later does not end it.
#[derive(Debug)]
#[must_use = "dropped, it says that all has been sent"]
pub struct Flow {
    shared: Arc<Shared>,
    key: FlowKey,
    coflow: String,
    /// Whether the agent knows of it, or may: one that did not answer may have heard all the same.
    is_said: bool,
}

impl Flow {
    /// This end of the connection.
    pub const fn local(&self) -> SocketAddr {
        self.key.local
    }

    /// The other end.
    pub const fn remote(&self) -> SocketAddr {
        self.key.remote
    }

    /// Says that it has so much to send for its coflow, in all: not so much more. Said again, it changes nothing, unless the
    /// agent was started anew and has forgotten it; less than before changes nothing.
    ///
    /// Errors: see [`AnnounceError`]; the flow may send all the same.
    pub fn grow(&mut self, to: ByteCount) -> Result<(), AnnounceError> {
        let (key, coflow) = (self.key, self.coflow.as_str());
        let mut is_heard = false;
        let result = self.shared.say(&Line::announce(key, coflow, to.as_u64()), &mut is_heard);
        self.is_said |= is_heard;
        result
    }

    /// Says that all that it has for its coflow has been sent, though the connection may stay for another one. Needless before
    /// the connection is closed, as the agent sees that by itself.
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
    /// Takes as long as any call. What the agent answers, nobody hears: a connection that is closed already has ended anyway.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Shared {
    /// Says a line, and whether the agent may have heard and taken it.
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
                // The agent may have been started anew since; one that is silent has had its time.
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

    /// `None` if another thread has it, which then need not be waited for. In a forked child that thread may be none of its own,
    /// and have it for ever.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Its Rust is run with this room's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/shuffle.md")]
pub struct Page;

#[cfg(test)]
mod tests;
