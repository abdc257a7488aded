//! The sans-IO contract between protocol state machines and the drivers that run them.
//!
//! A state machine never reads a clock, a socket or a file. Time is passed as `now`, messages are
//! passed to `handle_*`, and `poll_*` returns messages, events and deadlines. So the same state
//! machine runs in the simulator, in the emulator and on real sockets.
//!
//! Contract: one mutation, then drain [`Endpoint::poll_transmit`] and [`Endpoint::poll_event`] to
//! `None`, then read [`Endpoint::poll_timeout`]. `now` never decreases.
//!
//! Leaves out: any driver. Read [`Endpoint`], [`Payload`] and [`WireMessage`] first.

pub use anabranch_units::{Duration, Instant, PeerId};
pub use bytes::Bytes;

/// A message with a known size on the wire.
pub trait Message: Clone {
    /// Bytes on the wire, including this protocol's headers, without the headers of lower layers.
    fn wire_len(&self) -> u32;
    /// Returns true if queues may mark the message instead of dropping it (RFC 3168: ECT).
    fn is_ect(&self) -> bool {
        false
    }
    /// Marks the message with congestion experienced (CE). Called only if [`Message::is_ect`].
    fn mark_ce(&mut self) {}
    /// Marks the message because a switch reports a present or imminent circuit from the message's
    /// receiver to its sender.
    fn mark_circuit(&mut self) {}
}

/// A message that can be sent on a real socket. Only messages over [`Bytes`] implement this trait,
/// so that no real socket carries the length-only payload of the simulator.
pub trait WireMessage: Message + Sized {
    /// Appends the encoding to `out`: exactly [`Message::wire_len`] bytes.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads one message that occupies all of `bytes`.
    ///
    /// Errors: [`DecodeError`]. Never panics.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError>;
}

/// Error of bytes that are not a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends before its last field.
    TooShort {
        /// Number of bytes that the fields read so far require.
        need: usize,
        /// Number of bytes in the message.
        got: usize,
    },
    /// A length field is above the protocol's limit.
    TooLong {
        /// The largest length allowed.
        limit: usize,
        /// The length in the message.
        got: usize,
    },
    /// No message of this protocol has this kind byte.
    UnknownKind(u8),
    /// The peer uses a protocol version that this program does not support.
    UnknownVersion(u8),
    /// Bytes follow the message.
    Trailing {
        /// Number of bytes after the message.
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

/// Bulk data in a machine: real [`Bytes`] on a wire, or only a [`Len`] in the simulator.
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
    /// Receiver of the message.
    pub to: PeerId,
    /// Earliest time to send the message (pacing). `None` means at once.
    pub not_before: Option<Instant>,
    /// The message.
    pub msg: M,
}

/// A protocol machine for datagrams. The module's text defines the contract.
pub trait Endpoint {
    /// The messages that the machine sends and receives.
    type Msg: Message;
    /// The events for the user of the machine.
    type Event;
    /// Takes a message that arrived at `now`.
    fn handle_message(&mut self, now: Instant, from: PeerId, msg: Self::Msg);
    /// Handles the deadlines that have passed at `now`.
    fn handle_timeout(&mut self, now: Instant);
    /// The next message to send. `None` if no message is left.
    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<Self::Msg>>;
    /// The next event for the user. `None` if no event is left.
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// Time of the next call of [`Endpoint::handle_timeout`].
    fn poll_timeout(&self) -> Option<Instant>;
}
