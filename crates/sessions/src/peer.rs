//! A peer's side of its session: whether it has joined, and which messages it has taken over.
//!
//! Leaves out: how requests travel, and when they are tried again ([`crate::Controllers`]). Read
//! [`PeerSession`].

use crate::controller::Position;

/// A peer's process and its registration with a controller.
#[derive(Clone, Debug, Default)]
pub struct PeerSession {
    /// Number of joins so far. It tells two callers apart that were both told to join again.
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

    /// Number of joins so far. A request belongs to the join after which it was sent.
    pub const fn joins(&self) -> u64 {
        self.joins
    }

    /// The last message that was taken over.
    pub fn position(&self) -> Position {
        Position { numbering: self.numbering.unwrap_or_default(), after: self.after }
    }

    /// The controller has taken the peer. `numbering` and `after` are from its answer: the
    /// numbering of its messages, and the last message that it knows to be acknowledged.
    pub fn handle_joined(&mut self, numbering: u64, after: u64) {
        // In the same numbering the peer may be ahead of the controller's record.
        self.after = if self.numbering == Some(numbering) { self.after.max(after) } else { after };
        self.numbering = Some(numbering);
        self.joins += 1;
        self.is_joined = true;
    }

    /// The controller refused a request of the join with this number, as it does not know the
    /// session.
    pub fn handle_not_joined(&mut self, joins: u64) {
        if self.joins == joins {
            self.is_joined = false;
        }
    }

    /// Takes messages that answer a request of the join with this number. Returns the new ones, in
    /// order.
    ///
    /// `None` if the peer has joined again since: a message that still matters comes again.
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
    fn new_numbering_restarts_and_old_one_continues() {
        let message = |number| (number, number);
        let mut peer = PeerSession::default();
        assert!(peer.must_join());
        peer.handle_joined(7, 0);
        assert_eq!(peer.handle_messages(1, vec![message(1), message(2)]), Some(vec![1, 2]));
        // An unacknowledged message comes again, and is not delivered again.
        assert_eq!(peer.handle_messages(1, vec![message(2), message(3)]), Some(vec![3]));
        peer.handle_not_joined(1);
        assert!(peer.must_join());
        peer.handle_joined(7, 1);
        assert_eq!((peer.position().after, peer.joins()), (3, 2));
        // A second caller was told to join, too, and says so late.
        peer.handle_not_joined(1);
        assert!(!peer.must_join());
        // The controller was restarted.
        peer.handle_not_joined(2);
        peer.handle_joined(8, 0);
        assert_eq!(peer.handle_messages(2, vec![message(4)]), None, "an answer to the join before");
        assert_eq!(peer.handle_messages(3, vec![message(1)]), Some(vec![1]));
    }
}
