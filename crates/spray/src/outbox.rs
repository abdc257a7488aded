//! Datagrams queued for one path: datagrams of equal length are sent in one system call.
//!
//! Read [`Outbox`] first.

use anabranch_net::datagram::{Ecn, Segments, SendError, SendSocket};
use std::net::SocketAddr;

/// Maximum bytes queued.
const BYTES_MAX: usize = 60_000;

/// Consecutive datagrams to one host over one path.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    segment_bytes: usize,
    ecn: Option<Ecn>,
    /// True once a shorter datagram was queued, after which no datagram may follow.
    is_closed: bool,
}

/// Result of sending the queue.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendOutcome {
    pub(crate) sent: u64,
    /// Datagrams that the kernel refused for lack of buffer space or a route.
    pub(crate) dropped: u64,
    /// Datagrams longer than the path's MTU.
    pub(crate) too_long: u64,
}

impl Outbox {
    /// Returns true if a datagram of `length` bytes can join the queue.
    pub(crate) fn takes(&self, length: usize, ecn: Option<Ecn>) -> bool {
        self.bytes.is_empty()
            || !self.is_closed
                && length <= self.segment_bytes
                && ecn == self.ecn
                && self.bytes.len() + length <= BYTES_MAX
    }

    /// Appends a datagram of `length` bytes, for which [`takes`](Outbox::takes) must be true.
    pub(crate) fn push(&mut self, length: usize, ecn: Option<Ecn>, write: impl FnOnce(&mut Vec<u8>)) {
        if self.bytes.is_empty() {
            (self.segment_bytes, self.ecn, self.is_closed) = (length, ecn, false);
        }
        let begin = self.bytes.len();
        write(&mut self.bytes);
        debug_assert_eq!(self.bytes.len() - begin, length, "it is as long as was said");
        self.is_closed |= length < self.segment_bytes;
    }

    /// Bytes of the last datagram, which starts at `begin`.
    pub(crate) fn since(&mut self, begin: usize) -> &mut [u8] {
        &mut self.bytes[begin..]
    }
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
    /// Removes the last datagram, which starts at `begin`.
    pub(crate) fn cut(&mut self, begin: usize) {
        self.bytes.truncate(begin);
    }

    /// Sends and clears the queue.
    pub(crate) fn send(&mut self, socket: &SendSocket, to: SocketAddr) -> SendOutcome {
        let mut left = SendOutcome::default();
        if self.bytes.is_empty() {
            return left;
        }
        let mut rest = Segments::new(to, &self.bytes, self.segment_bytes).with_ecn(self.ecn);
        while rest.count() > 0 {
            match socket.try_send(&rest) {
                Ok(0) => {
                    left.dropped += rest.count() as u64;
                    break;
                }
                Ok(count) => {
                    left.sent += count as u64;
                    rest = rest.after(count);
                }
                Err(error) => {
                    let counter = match error {
                        SendError::TooBig { .. } => &mut left.too_long,
                        _ => &mut left.dropped,
                    };
                    *counter += 1;
                    rest = rest.after(1);
                }
            }
        }
        self.bytes.clear();
        left
    }
}
