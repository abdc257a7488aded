//! A limit to how fast one end sends, whatever its windows allow, as `SO_MAX_PACING_RATE` is for a socket.
//!
//! After each segment the next waits for as long as the first takes at the limit. So in any time a sender sends at most
//! the limit times that time, and one segment more. Time in which it sent less is not made up for.
//!
//! Counts data, not headers, as Linux does where TCP itself paces (net/ipv4/tcp_output.c, `tcp_update_skb_after_send`).
//! Differs: Linux sends about a millisecond's data at once, and at least two segments; here nothing is gained by that.
//!
//! Leaves out: the choice of the limit, and pacing by the window and the round trip (RFC 9002 section 7.7), which is not done here.

use anabranch_units::{BitRate, ByteCount, Duration, Instant};

/// A limit, and what was sent last under it.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    limit: BitRate,
    /// When the last segment was sent, and its data.
    last: Option<(Instant, u32)>,
    /// Something may be there to be sent once the time has come.
    is_waiting: bool,
}

impl Pacing {
    /// Panics: for a limit of zero, at which nothing would ever be sent again.
    pub(crate) fn new(limit: BitRate) -> Self {
        assert!(limit.as_bps() > 0, "a pacing limit is at least 1 bit/s; without one is None");
        Self { limit, last: None, is_waiting: false }
    }
    /// Another limit, from the segment on that was sent last.
    pub(crate) fn set(&mut self, limit: BitRate) {
        *self = Self { last: self.last, ..Self::new(limit) };
    }
    /// When the next segment may be sent; at any time where none was.
    fn next_at(&self) -> Option<Instant> {
        let (at, bytes) = self.last?;
        // That time is rounded down, and the limit is not passed by a picosecond either.
        Some(at + self.limit.transmit_time(ByteCount::new(bytes.into())) + Duration::from_ps(1))
    }
    /// Whether a segment may be sent. If not, and if `has_more`, the time is waited for.
    pub(crate) fn may_send(&mut self, now: Instant, has_more: bool) -> bool {
        let may = self.next_at().is_none_or(|at| at <= now);
        self.is_waiting = !may && has_more;
        may
    }
    pub(crate) fn note_sent(&mut self, now: Instant, bytes: u32) {
        self.last = Some((now, bytes));
    }
    /// When to ask again; none while nobody waits.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.next_at().filter(|_| self.is_waiting)
    }
}
