//! A connection to the agent, with a time limit on each wait.
//!
//! Leaves out: the content of lines (`line`). Read [`Connection`] first.

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum length of a reply in bytes. A reply's reason may quote the whole line.
const REPLY_BYTES_MAX: usize = 8_192;

/// Deadline of a call; `None` if it is beyond the clock's range.
#[derive(Copy, Clone, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    pub fn after(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }

    pub fn is_past(self) -> bool {
        self.left().is_err()
    }

    /// Remaining time in the form that sockets accept. Errors: the deadline has passed.
    fn left(self) -> Result<Option<Duration>> {
        let left = self.0.map(|end| end.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => Err(Error::new(ErrorKind::TimedOut, "did not answer in time")),
            left => Ok(left),
        }
    }
}

/// The agent's reply. Fields of later versions are ignored.
#[derive(Debug, Deserialize)]
pub struct Reply {
    pub ok: bool,
    pub error: Option<String>,
}

impl Reply {
    /// Parses a reply. Errors: the line is not a reply.
    pub fn read(line: &[u8]) -> Result<Self> {
        serde_json::from_slice(line).map_err(|error| Error::new(ErrorKind::InvalidData, error))
    }
}

#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// Id of the process that opened the connection.
    pub process: u32,
}

impl Connection {
    pub fn open(path: &Path, deadline: Deadline) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The call does not block, because the agent refuses connections above its limit.
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?).map_err(|error| match error {
            rustix::io::Errno::AGAIN => Error::new(ErrorKind::WouldBlock, "has too many programs waiting"),
            other => other.into(),
        })?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        // A line fits into the socket buffer of an otherwise idle connection.
        stream.set_write_timeout(deadline.left()?)?;
        Ok(Self { stream, process: std::process::id() })
    }

    /// Whether this process opened the connection. A forked child's lines would otherwise mix with
    /// its parent's lines.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Sends one line, and returns the reply. After an error the connection must not be used again.
    pub fn exchange(&mut self, line: &[u8], deadline: Deadline) -> Result<Reply> {
        let mut rest = line;
        while !rest.is_empty() {
            // A closed peer must not raise a signal, whatever the program's signal handlers.
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

/// Converts the error of an expired wait, which the system reports as a wait that would block.
fn late(error: Error) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock => Error::new(ErrorKind::TimedOut, "did not answer in time"),
        _ => error,
    }
}
