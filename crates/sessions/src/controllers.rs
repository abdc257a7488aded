//! Which of several controllers a peer asks, and when it tries again.
//!
//! A peer stays with a controller that answers. After a failure it pauses; unless the controller
//! only wants it to join again, the next one in turn is asked then. Leaves out: the requests. Read
//! [`Controllers`].

use crate::backoff::Backoff;
use anabranch_units::Duration;

/// Why a session with a controller, or the attempt to join, has ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The controller does not know the session: the peer joins the same controller again.
    NotJoined,
    /// The controller answers, but another one leads.
    NotLeading,
    /// The controller does not answer, or not as it should.
    Away,
}

/// A peer's next step after a failure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Pause before the peer joins again.
    pub pause: Duration,
    /// True for the first [`Failure::Away`] since the peer last joined: worth a warning.
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
    /// `count` controllers. The first one is asked first.
    ///
    /// Panics: without a controller, which callers refuse.
    pub const fn new(count: usize, backoff: Backoff) -> Self {
        assert!(count > 0, "a peer has at least one controller");
        Self { count, current: 0, backoff, is_away: false }
    }

    /// Index of the controller to ask.
    pub const fn current(&self) -> usize {
        self.current
    }

    /// Number of controllers.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Notes that the current controller has taken the peer. Returns true if a controller was away
    /// before.
    pub const fn handle_joined(&mut self) -> bool {
        self.backoff.reset();
        std::mem::replace(&mut self.is_away, false)
    }

    /// Notes a failure, and moves on to the next controller if another one may help.
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
