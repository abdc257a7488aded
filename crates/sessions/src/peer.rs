//! A peer's side of its session: whether it has joined, and which messages it has received.
//!
//! Leaves out: the transport of requests, and the times of retries ([`crate::Controllers`]). Read
//! [`PeerSession`].

use crate::controller::Position;

/// A peer's process and its registration with a controller.
#[derive(Clone, Debug, Default)]
pub struct PeerSession {
    /// Number of joins. It distinguishes a new refusal from a late refusal of a request that was
    /// sent before the last join.
    joins: u64,
    is_joined: bool,
    numbering: Option<u64>,
    after: u64,
}

impl PeerSession {
    /// Whether the peer has to join before any other request.
    pub const fn must_join(&self) -> bool {
        !self.is_joined
    }

    /// Number of joins. A request belongs to the join after which it was sent.
    pub const fn joins(&self) -> u64 {
        self.joins
    }

    /// The last message that was received.
    pub fn position(&self) -> Position {
        Position { numbering: self.numbering.unwrap_or_default(), after: self.after }
    }

    /// Takes the controller's answer to a join: the numbering of the peer's messages, and the last
    /// message that the controller has recorded as acknowledged.
    pub fn handle_joined(&mut self, numbering: u64, after: u64) {
        // In the same numbering, the peer may have received messages beyond the controller's
        // record.
        self.after = if self.numbering == Some(numbering) { self.after.max(after) } else { after };
        self.numbering = Some(numbering);
        self.joins += 1;
        self.is_joined = true;
    }

    /// Takes the refusal of a request that belongs to join `joins`: the controller has no such
    /// session. A refusal from before the last join is ignored.
    pub fn handle_not_joined(&mut self, joins: u64) {
        if self.joins == joins {
            self.is_joined = false;
        }
    }

    /// Takes messages that answer a request of join `joins`. Returns the new messages, in order.
    ///
    /// `None` if the peer has joined again after the request: the controller repeats the messages
    /// that are still in the mailbox.
    pub fn handle_messages<M>(&mut self, joins: u64, messages: Vec<(u64, M)>) -> Option<Vec<M>> {
        if self.joins != joins {
            return None;
        }
        let mut new = Vec::with_capacity(messages.len());
        for (number, message) in messages {
            if number > self.after {
                self.after = number;
                new.push(message);
            }
        }
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_numbering_restarts_and_old_numbering_continues() {
        let message = |number| (number, number);
        let mut peer = PeerSession::default();
        assert!(peer.must_join());
        peer.handle_joined(7, 0);
        assert_eq!(peer.handle_messages(1, vec![message(1), message(2)]), Some(vec![1, 2]));
        // An unacknowledged message arrives again, and is not delivered again.
        assert_eq!(peer.handle_messages(1, vec![message(2), message(3)]), Some(vec![3]));
        peer.handle_not_joined(1);
        assert!(peer.must_join());
        peer.handle_joined(7, 1);
        assert_eq!((peer.position().after, peer.joins()), (3, 2));
        // A second caller reports its refusal late, after the join.
        peer.handle_not_joined(1);
        assert!(!peer.must_join());
        // The controller has restarted.
        peer.handle_not_joined(2);
        peer.handle_joined(8, 0);
        assert_eq!(peer.handle_messages(2, vec![message(4)]), None, "an answer to the join before");
        assert_eq!(peer.handle_messages(3, vec![message(1)]), Some(vec![1]));
    }
}
