//! One connection to the agent, with a limit on each wait.
//!
//! Leaves out: the lines. Read [`Connection`].

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The most bytes of a reply: its reason may repeat what the line had.
const REPLY_BYTES_MAX: usize = 8_192;

/// When a call is to be over; `None` is later than the clock goes.
#[derive(Copy, Clone, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    pub fn after(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }

    pub fn is_past(self) -> bool {
        self.left().is_err()
    }

    /// As sockets take it. Errors: no time is left.
    fn left(self) -> Result<Option<Duration>> {
        let left = self.0.map(|end| end.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => Err(Error::new(ErrorKind::TimedOut, "did not answer in time")),
            left => Ok(left),
        }
    }
}

/// What the agent answers. Fields of later versions are not looked at.
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
    /// That made it.
    pub process: u32,
}

impl Connection {
    pub fn open(path: &Path, deadline: Deadline) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // It does not wait: it is refused, where too many already do.
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?).map_err(|error| match error {
            rustix::io::Errno::AGAIN => Error::new(ErrorKind::WouldBlock, "has too many programs waiting"),
            other => other.into(),
        })?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        // A line fits into the buffer of a connection on which nothing else is under way.
        stream.set_write_timeout(deadline.left()?)?;
        Ok(Self { stream, process: std::process::id() })
    }

    /// Whether it was this process that made it: a child's lines would mix with its parent's.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Says one line, and hears what is answered. After an error the connection is of no use any more.
    pub fn exchange(&mut self, line: &[u8], deadline: Deadline) -> Result<Reply> {
        let mut rest = line;
        while !rest.is_empty() {
            // Whatever handles signals in this program, a peer that has gone is no reason for one.
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

/// The system calls a wait that is over one that would go on.
fn late(error: Error) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock => Error::new(ErrorKind::TimedOut, "did not answer in time"),
        _ => error,
    }
}
