//! A limit on the rate of one end, besides its windows: an external one, such as a socket's
//! `SO_MAX_PACING_RATE`, or a congestion control's.
//!
//! Data leaves in quanta: one segment, or several if a quantum is set. After a quantum the next
//! waits for its transmission time at the limit. In any interval a sender thus sends at most the
//! limit times the interval, and one quantum more. Unused time is not made up for.
//!
//! Counts data, not headers, as Linux does for TCP's internal pacing (net/ipv4/tcp_output.c,
//! `tcp_update_skb_after_send`). Differs: under an external limit Linux sends about a millisecond's
//! data at once, and at least two segments, which has no benefit here.
//!
//! Leaves out: the choice of the limit, and pacing by window and round trip (RFC 9002 section 7.7),
//! which is not done here.

use anabranch_units::{BitRate, ByteCount, Duration, Instant};

/// A limit, and the last data sent under it.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    limit: BitRate,
    /// Bytes that may leave together; at least one segment always may.
    quantum: u64,
    /// Start of the last quantum, and its bytes.
    last: Option<(Instant, u64)>,
    /// Whether data may be waiting for the next quantum.
    is_waiting: bool,
}

impl Pacing {
    /// Panics: if the limit is zero, at which nothing could be sent again.
    pub(crate) fn new(limit: BitRate, quantum: u64) -> Self {
        assert!(limit.as_bps() > 0, "a pacing limit is at least 1 bit/s; without one is None");
        Self { limit, quantum, last: None, is_waiting: false }
    }
    /// Changes the limit, counted from the last quantum.
    pub(crate) fn set(&mut self, limit: BitRate, quantum: u64) {
        *self = Self { last: self.last, ..Self::new(limit, quantum) };
    }
    /// Time of the next quantum; `None` for any time before the first.
    fn next_at(&self) -> Option<Instant> {
        let (at, bytes) = self.last?;
        // The transmission time is rounded down; one picosecond more keeps the limit exactly.
        Some(at + self.limit.transmit_time(ByteCount::new(bytes)) + Duration::from_ps(1))
    }
    /// Whether a segment of up to `bytes` may be sent. If not and `has_more` is set, the timer
    /// runs.
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
    /// Time of the next poll; `None` while no data waits.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.next_at().filter(|_| self.is_waiting)
    }
}
