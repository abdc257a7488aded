//! Datagrams that wait to leave by one way: those of one length go to the kernel together.
//!
//! Read [`Outbox`] first.

use anabranch_net::datagram::{Ecn, Segments, SendError, SendSocket};
use std::net::SocketAddr;

/// The most bytes that wait.
const BYTES_MAX: usize = 60_000;

/// Datagrams to one host, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    segment_bytes: usize,
    ecn: Option<Ecn>,
    /// A shorter one is the last.
    is_closed: bool,
}

/// What became of datagrams.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) sent: u64,
    /// The kernel had no room, or no way.
    pub(crate) dropped: u64,
    /// They are longer than the way allows.
    pub(crate) too_long: u64,
}

impl Outbox {
    /// Whether one of so many bytes can wait with the others.
    pub(crate) fn takes(&self, length: usize, ecn: Option<Ecn>) -> bool {
        self.bytes.is_empty()
            || !self.is_closed
                && length <= self.segment_bytes
                && ecn == self.ecn
                && self.bytes.len() + length <= BYTES_MAX
    }

    /// Room for one of so many bytes, which it [`takes`](Outbox::takes).
    pub(crate) fn push(&mut self, length: usize, ecn: Option<Ecn>, write: impl FnOnce(&mut Vec<u8>)) {
        if self.bytes.is_empty() {
            (self.segment_bytes, self.ecn, self.is_closed) = (length, ecn, false);
        }
        let begin = self.bytes.len();
        write(&mut self.bytes);
        debug_assert_eq!(self.bytes.len() - begin, length, "it is as long as was said");
        self.is_closed |= length < self.segment_bytes;
    }

    /// The bytes of the last one, which began here.
    pub(crate) fn since(&mut self, begin: usize) -> &mut [u8] {
        &mut self.bytes[begin..]
    }
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
    /// Takes the last one back.
    pub(crate) fn cut(&mut self, begin: usize) {
        self.bytes.truncate(begin);
    }

    /// Sends what waits.
    pub(crate) fn send(&mut self, socket: &SendSocket, to: SocketAddr) -> Left {
        let mut left = Left::default();
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
