//! A limit on the sending rate of one end, in addition to its windows. The limit is an external
//! one, such as a socket's `SO_MAX_PACING_RATE`, or a congestion control's.
//!
//! Data leaves in quanta: one segment, or several if a quantum is set. After a quantum, the next
//! quantum waits for the first quantum's transmission time at the limit. In any interval a sender
//! thus sends at most the limit times the interval, plus one quantum. Unused time is not made up
//! for.
//!
//! The limit counts data, not headers, as Linux does for TCP's internal pacing
//! (net/ipv4/tcp_output.c, `tcp_update_skb_after_send`). Differs: under an external limit Linux
//! sends the data of about a millisecond at once, and at least two segments, which has no benefit
//! here.
//!
//! Leaves out: the choice of the limit, and pacing by window and round trip (RFC 9002 section 7.7),
//! which no congestion control here uses.

use anabranch_units::{BitRate, ByteCount, Duration, Instant};

/// A limit on the rate, and the last quantum sent under the limit.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    limit: BitRate,
    /// Number of bytes that may leave together. One segment always may.
    quantum: u64,
    /// Start of the last quantum, and the number of its bytes.
    last: Option<(Instant, u64)>,
    /// Whether data may be waiting for the next quantum.
    is_waiting: bool,
}

impl Pacing {
    /// Panics: if the limit is zero, because no further segment could be sent.
    pub(crate) fn new(limit: BitRate, quantum: u64) -> Self {
        assert!(limit.as_bps() > 0, "a pacing limit is at least 1 bit/s; without one is None");
        Self { limit, quantum, last: None, is_waiting: false }
    }
    /// Changes the limit, which applies from the start of the last quantum.
    pub(crate) fn set(&mut self, limit: BitRate, quantum: u64) {
        *self = Self { last: self.last, ..Self::new(limit, quantum) };
    }
    /// Time of the next quantum; `None` if it may leave at any time.
    fn next_at(&self) -> Option<Instant> {
        let (at, bytes) = self.last?;
        // The transmission time is rounded down, so one picosecond more keeps the limit exactly.
        Some(at + self.limit.transmit_time(ByteCount::new(bytes)) + Duration::from_ps(1))
    }
    /// Whether a segment of up to `bytes` bytes may be sent. If not, and `has_more` is set, the
    /// timer is set.
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
