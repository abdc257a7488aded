//! One connection to the agent, with a limit on each wait.
//!
//! Leaves out: the lines. Read [`Connection`].

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum bytes of a reply: its reason may quote the line.
const REPLY_BYTES_MAX: usize = 8_192;

/// Deadline of a call; `None` is beyond the clock's range.
#[derive(Copy, Clone, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    pub fn after(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }

    pub fn is_past(self) -> bool {
        self.left().is_err()
    }

    /// Remaining time, as sockets take it. Errors: the deadline has passed.
    fn left(self) -> Result<Option<Duration>> {
        let left = self.0.map(|end| end.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => Err(Error::new(ErrorKind::TimedOut, "did not answer in time")),
            left => Ok(left),
        }
    }
}

/// The agent's answer. Fields of later versions are ignored.
#[derive(Debug, Deserialize)]
pub struct Reply {
    pub ok: bool,
    pub error: Option<String>,
}

impl Reply {
    /// Errors: a line that is none.
    pub fn read(line: &[u8]) -> Result<Self> {
        serde_json::from_slice(line).map_err(|error| Error::new(ErrorKind::InvalidData, error))
    }
}

#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// Number of the process that made the connection.
    pub process: u32,
}

impl Connection {
    pub fn open(path: &Path, deadline: Deadline) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Does not wait: the agent refuses connections above its limit.
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?).map_err(|error| match error {
            rustix::io::Errno::AGAIN => Error::new(ErrorKind::WouldBlock, "has too many programs waiting"),
            other => other.into(),
        })?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        // A line fits into the buffer of an otherwise idle connection.
        stream.set_write_timeout(deadline.left()?)?;
        Ok(Self { stream, process: std::process::id() })
    }

    /// Returns true if this process made the connection: a child's lines would mix with its
    /// parent's.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Sends one line, and returns the answer. After an error the connection must not be used
    /// again.
    pub fn exchange(&mut self, line: &[u8], deadline: Deadline) -> Result<Reply> {
        let mut rest = line;
        while !rest.is_empty() {
            // A closed peer must not raise a signal, independently of the program's handlers.
            match rustix::net::send(&self.stream, rest, SendFlags::NOSIGNAL) {
                Ok(length) => rest = &rest[length..],
                Err(rustix::io::Errno::INTR) => {
                    deadline.left()?;
                }
                Err(error) => return Err(late(error.into())),
            }
        }
        let (mut reply, mut chunk) = (Vec::new(), [0; 512]);
        while reply.last() != Some(&b'\n') {
            self.stream.set_read_timeout(deadline.left()?)?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Error::new(ErrorKind::UnexpectedEof, "has closed the connection")),
                Ok(length) => reply.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(late(error)),
            }
            if reply.len() > REPLY_BYTES_MAX {
                return Err(Error::new(ErrorKind::InvalidData, "its reply has no end"));
            }
        }
        Reply::read(&reply)
    }
}

/// The system reports an expired wait as a wait that would block.
fn late(error: Error) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock => Error::new(ErrorKind::TimedOut, "did not answer in time"),
        _ => error,
    }
}
