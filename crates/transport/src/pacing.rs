//! A limit to how fast one end sends, whatever its windows allow: one from outside, as `SO_MAX_PACING_RATE` is for a socket, or a
//! congestion control's.
//!
//! What leaves together is a quantum: one segment, or several where a quantum is set. After it the next waits for as long as it takes
//! at the limit. So in any time a sender sends at most the limit times that time, and one quantum more. Time in which it sent less
//! is not made up for.
//!
//! Counts data, not headers, as Linux does where TCP itself paces (net/ipv4/tcp_output.c, `tcp_update_skb_after_send`).
//! Differs: under a limit from outside Linux sends about a millisecond's data at once, and at least two segments; here nothing is
//! gained by that.
//!
//! Leaves out: the choice of the limit, and pacing by the window and the round trip (RFC 9002 section 7.7), which is not done here.

use anabranch_units::{BitRate, ByteCount, Duration, Instant};

/// A limit, and what was sent last under it.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    limit: BitRate,
    /// Bytes that may leave together; a segment always may.
    quantum: u64,
    /// When the last quantum began to leave, and its data.
    last: Option<(Instant, u64)>,
    /// Something may be there to be sent once the time has come.
    is_waiting: bool,
}

impl Pacing {
    /// Panics: for a limit of zero, at which nothing would ever be sent again.
    pub(crate) fn new(limit: BitRate, quantum: u64) -> Self {
        assert!(limit.as_bps() > 0, "a pacing limit is at least 1 bit/s; without one is None");
        Self { limit, quantum, last: None, is_waiting: false }
    }
    /// Another limit, from the quantum on that was sent last.
    pub(crate) fn set(&mut self, limit: BitRate, quantum: u64) {
        *self = Self { last: self.last, ..Self::new(limit, quantum) };
    }
    /// When the next quantum may be sent; at any time where none was.
    fn next_at(&self) -> Option<Instant> {
        let (at, bytes) = self.last?;
        // That time is rounded down, and the limit is not passed by a picosecond either.
        Some(at + self.limit.transmit_time(ByteCount::new(bytes)) + Duration::from_ps(1))
    }
    /// Whether a segment of up to `bytes` may be sent. If not, and if `has_more`, the time is waited for.
    pub(crate) fn may_send(&mut self, now: Instant, bytes: u64, has_more: bool) -> bool {
        let may = self.last.is_none_or(|(_, sent)| sent + bytes <= self.quantum)
            || self.next_at().is_none_or(|at| at <= now);
        self.is_waiting = !may && has_more;
        may
    }
    pub(crate) fn note_sent(&mut self, now: Instant, bytes: u32) {
        let begun = self.last.filter(|_| self.next_at().is_some_and(|at| at > now));
        let (at, sent) = begun.unwrap_or((now, 0));
        self.last = Some((at, sent + u64::from(bytes)));
    }
    /// When to ask again; none while nobody waits.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.next_at().filter(|_| self.is_waiting)
    }
}
