//! The sans-IO contract between protocol state machines and the drivers that run them.
//!
//! A state machine never reads a clock, a socket or a file: time enters as `now`, messages enter
//! through `handle_*`, and messages, events and deadlines leave through `poll_*`. The same state
//! machine then runs in the simulator, in the emulator and on real sockets.
//!
//! Contract: one mutation, then drain [`Endpoint::poll_transmit`] and [`Endpoint::poll_event`] to
//! `None`, then read [`Endpoint::poll_timeout`]. `now` never goes back.
//!
//! Leaves out: any driver. Read [`Endpoint`], [`Payload`] and [`WireMessage`] first.

pub use anabranch_units::{Duration, Instant, PeerId};
pub use bytes::Bytes;

/// A message with a known size on the wire.
pub trait Message: Clone {
    /// Bytes on the wire, this protocol's headers included and those below it not.
    fn wire_len(&self) -> u32;
    /// Returns true if queues may mark it instead of dropping it (RFC 3168: ECT).
    fn is_ect(&self) -> bool {
        false
    }
    /// Marks it as having met congestion (CE). Called only if [`Message::is_ect`].
    fn mark_ce(&mut self) {}
    /// Marks it because a switch reports a circuit from its receiver to its sender, present or
    /// imminent.
    fn mark_circuit(&mut self) {}
}

/// A message that can cross a real socket. Only messages over [`Bytes`] implement it, so that a
/// phantom payload of the simulator cannot reach one.
pub trait WireMessage: Message + Sized {
    /// Appends the encoding to `out`: exactly [`Message::wire_len`] bytes.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads one message from the whole of `bytes`.
    ///
    /// Errors: see [`DecodeError`]; never panics, whatever the bytes.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError>;
}

/// Error of bytes that are not a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends before its own fields do.
    TooShort {
        /// Bytes that the fields read so far ask for.
        need: usize,
        /// Bytes there are.
        got: usize,
    },
    /// A length field is above the protocol's limit.
    TooLong {
        /// The largest length allowed.
        limit: usize,
        /// The length claimed.
        got: usize,
    },
    /// The kind byte names no message of this protocol.
    UnknownKind(u8),
    /// The peer speaks a version that this program does not.
    UnknownVersion(u8),
    /// Bytes are left after the message.
    Trailing {
        /// Number of bytes.
        extra: usize,
    },
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooShort { need, got } => write!(f, "message of {got} bytes ends early: needs {need}"),
            Self::TooLong { limit, got } => {
                write!(f, "length field says {got} bytes: at most {limit} allowed")
            }
            Self::UnknownKind(kind) => write!(f, "message kind {kind} is not known"),
            Self::UnknownVersion(version) => write!(f, "protocol version {version} is not spoken here"),
            Self::Trailing { extra } => write!(f, "{extra} bytes after the end of the message"),
        }
    }
}
impl std::error::Error for DecodeError {}

/// Bulk data as a machine carries it: real [`Bytes`] on a wire, or only a [`Len`] in the simulator.
pub trait Payload: Clone {
    /// Length in bytes.
    fn len(&self) -> usize;
    /// True for a length of zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A payload represented by its length only.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Len(pub usize);

impl Payload for Len {
    fn len(&self) -> usize {
        self.0
    }
}
impl Payload for Bytes {
    fn len(&self) -> usize {
        Bytes::len(self)
    }
}

/// An outgoing message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit<M> {
    /// The receiver.
    pub to: PeerId,
    /// When it may leave at the earliest (pacing); `None` for at once.
    pub not_before: Option<Instant>,
    /// The message.
    pub msg: M,
}

/// A protocol machine for datagrams. See the module's contract.
pub trait Endpoint {
    /// The messages that it sends and receives.
    type Msg: Message;
    /// The events for its user.
    type Event;
    /// Takes in a message that arrived at `now`.
    fn handle_message(&mut self, now: Instant, from: PeerId, msg: Self::Msg);
    /// Tells the machine that `now` has come; deadlines that are due run.
    fn handle_timeout(&mut self, now: Instant);
    /// The next message to send, until `None`.
    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<Self::Msg>>;
    /// The next event for the user, until `None`.
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// When to call `handle_timeout` next.
    fn poll_timeout(&self) -> Option<Instant>;
}
