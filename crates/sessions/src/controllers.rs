//! A peer's choice among several controllers, and the times of its retries.
//!
//! A peer stays with a controller that answers. After a failure it pauses. Then it asks the next
//! controller in turn, or the same controller if that only requires a new join. Leaves out: the
//! requests. Read [`Controllers`].

use crate::backoff::Backoff;
use anabranch_units::Duration;

/// Reason why a session with a controller, or the attempt to join, has ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The controller has no such session: the peer joins the same controller again.
    NotJoined,
    /// The controller answers, but another controller leads.
    NotLeading,
    /// The controller does not answer, or its answer is invalid.
    Away,
}

/// A peer's next step after a failure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Pause before the peer joins again.
    pub pause: Duration,
    /// True for the first [`Failure::Away`] since the peer last joined, which deserves a warning.
    pub is_first_away: bool,
}

/// A peer's choice among its controllers.
#[derive(Clone, Debug)]
pub struct Controllers {
    count: usize,
    current: usize,
    backoff: Backoff,
    is_away: bool,
}

impl Controllers {
    /// Creates the choice among `count` controllers, which begins with the first controller.
    ///
    /// Panics: without a controller, which callers refuse.
    pub const fn new(count: usize, backoff: Backoff) -> Self {
        assert!(count > 0, "a peer has at least one controller");
        Self { count, current: 0, backoff, is_away: false }
    }

    /// Index of the controller to which the peer sends its requests.
    pub const fn current(&self) -> usize {
        self.current
    }

    /// Number of controllers.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Records that the current controller has accepted the peer. Returns true if a controller was
    /// unreachable before.
    pub const fn handle_joined(&mut self) -> bool {
        self.backoff.reset();
        std::mem::replace(&mut self.is_away, false)
    }

    /// Records a failure, and selects the next controller unless the failure is
    /// [`Failure::NotJoined`].
    pub const fn handle_failure(&mut self, failure: Failure) -> Retry {
        if !matches!(failure, Failure::NotJoined) {
            self.current = (self.current + 1) % self.count;
        }
        let is_away = matches!(failure, Failure::Away);
        let is_first_away = is_away && !self.is_away;
        self.is_away |= is_away;
        Retry { pause: self.backoff.next_pause(), is_first_away }
    }
}
