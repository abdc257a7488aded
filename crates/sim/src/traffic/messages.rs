//! Messages on one direction of a stream. A stream carries only lengths, and its user identifies
//! messages by their order.
//!
//! Leaves out: streams (`app`). Read [`Messages`].

use std::collections::VecDeque;

/// Messages that are written but not completely received, in order.
#[derive(Debug)]
pub struct Messages<M> {
    /// Messages with their lengths in bytes.
    written: VecDeque<(M, u64)>,
    /// Number of received bytes of the first message.
    arrived_bytes: u64,
}

impl<M> Default for Messages<M> {
    fn default() -> Self {
        Self { written: VecDeque::new(), arrived_bytes: 0 }
    }
}

impl<M> Messages<M> {
    /// Records a written message of `bytes`.
    pub fn write(&mut self, message: M, bytes: u64) {
        self.written.push_back((message, bytes));
    }
    /// Records received bytes.
    pub const fn note_arrived(&mut self, bytes: u64) {
        self.arrived_bytes += bytes;
    }
    /// Removes the first message, if it is complete.
    pub fn pop(&mut self) -> Option<M> {
        let (_, bytes) = self.written.front().filter(|(_, bytes)| *bytes <= self.arrived_bytes)?;
        self.arrived_bytes -= bytes;
        self.written.pop_front().map(|(message, _)| message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_complete_and_in_order() {
        let mut messages = Messages::default();
        messages.write('a', 10);
        messages.write('b', 5);
        messages.note_arrived(9);
        assert_eq!(messages.pop(), None);
        messages.note_arrived(6);
        assert_eq!((messages.pop(), messages.pop(), messages.pop()), (Some('a'), Some('b'), None));
    }
}
