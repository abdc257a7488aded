//! Messages on one direction of a stream: a stream carries lengths, and who uses it knows by order which messages they are.
//!
//! Leaves out: streams (`app`). Read [`Messages`].

use std::collections::VecDeque;

/// What was written and has not come whole, in order.
#[derive(Debug)]
pub struct Messages<M> {
    /// With their bytes.
    written: VecDeque<(M, u64)>,
    /// Bytes that have come of the first.
    arrived_bytes: u64,
}

impl<M> Default for Messages<M> {
    fn default() -> Self {
        Self { written: VecDeque::new(), arrived_bytes: 0 }
    }
}

impl<M> Messages<M> {
    /// A message of so many bytes was written.
    pub fn write(&mut self, message: M, bytes: u64) {
        self.written.push_back((message, bytes));
    }
    /// So many bytes have come.
    pub const fn note_arrived(&mut self, bytes: u64) {
        self.arrived_bytes += bytes;
    }
    /// The first message, if it is whole.
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
    fn messages_come_in_order_and_whole() {
        let mut messages = Messages::default();
        messages.write('a', 10);
        messages.write('b', 5);
        messages.note_arrived(9);
        assert_eq!(messages.pop(), None);
        messages.note_arrived(6);
        assert_eq!((messages.pop(), messages.pop(), messages.pop()), (Some('a'), Some('b'), None));
    }
}
