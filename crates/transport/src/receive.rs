//! The receiving half of a connection: orders data, decides when to acknowledge, and announces the
//! receive window.
//!
//! Leaves out: segments (made in `connection`), and retransmission (the peer's `send`).

use crate::config::Config;
use crate::segment::Segment;
use anabranch_units::{Duration, Instant, RunInstant};

/// Maximum number of recorded gaps. Data that would add another gap is dropped, and the peer sends
/// it again.
const GAPS_MAX: usize = 4_096;

/// The receiving half.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveHalf {
    buffer: u64,
    reads_at_once: bool,
    mss: u64,
    delayed_ack: Option<Duration>,
    ack_every: u32,
    /// Whether ECN marks are echoed for each segment.
    has_exact_echo: bool,
    /// Position of the first missing byte.
    next: u64,
    /// Position after the last byte read by the user.
    read: u64,
    /// Position of the stream's end, once the FIN has arrived.
    end: Option<u64>,
    /// Received ranges beyond `next`, the last changed one first. The ranges are disjoint, with
    /// gaps between them.
    beyond: Vec<(u64, u64)>,
    /// Highest position that was announced as acceptable.
    edge: u64,
    /// Number of full segments since the last acknowledgement.
    unacked: u32,
    ack_at: Option<Instant>,
    ack_now: bool,
    /// Time at which the segment left that the next acknowledgement echoes (RFC 7323 section 4.3).
    echo: Option<RunInstant>,
    /// Whether the next acknowledgement echoes a mark: until CWR (RFC 3168), or for the last
    /// segment only (RFC 8257).
    ece: bool,
    out_of_order_total: u64,
    /// State of optional features; `None` if the settings use no optional feature, which keeps a
    /// flow small.
    extras: Option<Box<OptionalState>>,
}

/// State of optional features.
#[derive(Clone, Debug)]
struct OptionalState {
    /// Whether duplicates are reported (RFC 2883).
    says_repeats: bool,
    /// The last duplicate.
    repeat: Option<(u64, u64)>,
    quick: QuickAck,
}

/// Immediate acknowledgements in spite of a configured delay.
///
/// Source: Linux, net/ipv4/tcp_input.c, `tcp_event_data_recv` and `tcp_enter_quickack_mode`. A
/// number of acknowledgements is immediate if a connection is new, was idle, or has a gap, so that
/// a window in slow start grows fast. An end that sends data soon after it received data is in
/// conversation ("pingpong mode"): until a gap, its acknowledgements travel with its data. Differs:
/// a connection is idle after a pause of the minimum retransmission timeout, where Linux takes the
/// current timeout. The delay does not adapt, and an early read causes no early acknowledgement.
#[derive(Clone, Debug)]
struct QuickAck {
    most: u32,
    left: u32,
    in_conversation: bool,
    last_at: Option<Instant>,
    idle: Duration,
}

impl QuickAck {
    fn note_data(&mut self, now: Instant) {
        if self.last_at.is_none_or(|at| now.saturating_since(at) > self.idle) {
            self.left = self.most;
        }
        self.last_at = Some(now);
    }
    fn note_gap(&mut self) {
        (self.left, self.in_conversation) = (self.most, false);
    }
    fn is_on(&self) -> bool {
        self.left > 0 && !self.in_conversation
    }
}

/// Effect of a segment's data.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataEffect {
    /// Number of bytes that are newly in order.
    pub(crate) in_order: u64,
    /// Whether the stream is now complete.
    pub(crate) ended: bool,
}

impl ReceiveHalf {
    pub(crate) fn new(config: &Config) -> Self {
        let buffer = config.receive_buffer.as_u64();
        Self {
            buffer,
            reads_at_once: config.reads_at_once,
            mss: config.mss.into(),
            delayed_ack: config.delayed_ack,
            ack_every: config.ack_every,
            has_exact_echo: config.control.has_exact_echo(),
            next: 0,
            read: 0,
            end: None,
            beyond: Vec::new(),
            edge: buffer,
            unacked: 0,
            ack_at: None,
            ack_now: false,
            echo: None,
            ece: false,
            out_of_order_total: 0,
            extras: (config.rack || config.quick_ack > 0).then(|| {
                let (most, idle) = (config.quick_ack, config.rto_min);
                let quick = QuickAck { most, left: 0, in_conversation: false, last_at: None, idle };
                Box::new(OptionalState { says_repeats: config.rack, repeat: None, quick })
            }),
        }
    }

    pub(crate) fn out_of_order_total(&self) -> u64 {
        self.out_of_order_total
    }

    /// Whether the mark of `segment` differs from the marks of the segments that wait for an
    /// acknowledgement. The waiting segments must then be acknowledged first.
    ///
    /// Source: RFC 8257 section 3.2.
    pub(crate) fn must_ack_before(&self, segment: &Segment) -> bool {
        self.has_exact_echo && segment.len > 0 && segment.ce != self.ece && self.unacked > 0
    }

    /// Handles a segment's data.
    pub(crate) fn handle_segment(&mut self, now: Instant, segment: &Segment) -> DataEffect {
        let mut taken = DataEffect::default();
        if segment.len == 0 && !segment.fin {
            return taken;
        }
        if self.has_exact_echo {
            self.ece = segment.ce;
        } else {
            self.ece = (self.ece && !segment.cwr) || segment.ce;
        }
        let (start, end) =
            (segment.seq.max(self.next), segment.end().min(self.edge + u64::from(segment.fin)));
        if let Some(extras) = &mut self.extras {
            extras.quick.note_data(now);
        }
        if segment.seq <= self.next {
            // The acknowledgement echoes the segment that moves the edge, or the first of the
            // waiting segments.
            self.echo = Some(self.echo.filter(|_| self.unacked > 0).unwrap_or(segment.sent_at));
        }
        if start >= end {
            // A duplicate, or data beyond the window (a probe), is acknowledged at once (RFC 9293
            // section 3.10.7.4).
            self.ack_now = true;
            if let Some(extras) = &mut self.extras {
                extras.quick.note_gap();
                let there = (segment.seq, segment.end().min(self.next));
                extras.repeat = Some(there).filter(|(from, to)| extras.says_repeats && from < to);
            }
            return taken;
        }
        if segment.fin && end == segment.end() {
            self.end = Some(end - 1);
        }
        if start > self.next {
            self.keep(start, end);
            self.out_of_order_total += 1;
            // RFC 5681 section 4.2: the acknowledgement is immediate, unless one acknowledgement
            // covers many segments.
            if self.ack_every > 2 {
                self.unacked += 1;
                self.wait_to_ack(now, true);
            } else {
                self.ack_now = true;
            }
            if let Some(extras) = &mut self.extras {
                extras.quick.note_gap();
            }
            return taken;
        }
        let (before, had_gap) = (self.next, !self.beyond.is_empty());
        self.next = end;
        while let Some(at) = self.beyond.iter().position(|(s, _)| *s <= self.next) {
            let (_, block_end) = self.beyond.remove(at);
            self.next = self.next.max(block_end);
        }
        taken.in_order = self.next - before;
        taken.ended = self.end.is_some_and(|end| self.next > end);
        if taken.ended {
            taken.in_order -= 1;
        }
        if self.reads_at_once {
            self.read = self.next;
        }
        // RFC 5681 section 4.2: every second full segment is acknowledged. The acknowledgement is
        // immediate if a gap closes, and otherwise leaves within the delay.
        self.unacked += 1;
        let is_quick = self.extras.as_ref().is_some_and(|extras| extras.quick.is_on());
        self.wait_to_ack(now, (!had_gap || self.ack_every > 2) && !taken.ended && !is_quick);
        taken
    }

    /// Delays the acknowledgement, if it may wait and too few segments have arrived.
    fn wait_to_ack(&mut self, now: Instant, may_wait: bool) {
        match self.delayed_ack {
            Some(wait) if may_wait && self.unacked < self.ack_every => {
                self.ack_at.get_or_insert(now + wait);
            }
            _ => self.ack_now = true,
        }
    }

    /// Records that the user's data leaves at `now`.
    pub(crate) fn note_data_sent(&mut self, now: Instant) {
        if let (Some(extras), Some(wait)) = (&mut self.extras, self.delayed_ack) {
            extras.quick.in_conversation |=
                extras.quick.last_at.is_some_and(|at| now.saturating_since(at) < wait);
        }
    }

    fn keep(&mut self, mut start: u64, mut end: u64) {
        self.beyond.retain(|(s, e)| {
            let apart = *e < start || *s > end;
            if !apart {
                (start, end) = (start.min(*s), end.max(*e));
            }
            apart
        });
        if self.beyond.len() < GAPS_MAX {
            self.beyond.insert(0, (start, end));
        }
    }

    /// Records that the user has read `bytes` bytes. Returns true if the window must be announced
    /// at once.
    ///
    /// Source: RFC 9293 section 3.8.6.2.2. The window moves by at least a segment or half of the
    /// buffer.
    pub(crate) fn read(&mut self, bytes: u64) -> bool {
        self.read = (self.read + bytes).min(self.next);
        let gain = (self.read + self.buffer).saturating_sub(self.edge);
        let told = self.edge.saturating_sub(self.next);
        gain >= self.mss.min(self.buffer / 2) && told < 2 * self.mss
    }

    /// Deadline of a delayed acknowledgement, if there is one.
    pub(crate) fn ack_at(&self) -> Option<Instant> {
        self.ack_at
    }
    /// Requests an acknowledgement.
    pub(crate) fn ask_ack(&mut self) {
        self.ack_now = true;
    }
    /// Whether an acknowledgement must be sent now.
    pub(crate) fn must_ack(&self, now: Instant) -> bool {
        self.ack_now || self.ack_at.is_some_and(|t| t <= now)
    }

    /// Writes the acknowledgement fields of a segment that is about to be sent.
    pub(crate) fn stamp(&mut self, segment: &mut Segment, sack: bool) {
        // The window's right edge never moves back, and moves only by a useful amount.
        let gain = (self.read + self.buffer).saturating_sub(self.edge);
        if gain >= self.mss.min(self.buffer / 2) {
            self.edge += gain;
        }
        segment.ack = Some(self.next);
        segment.window = self.edge.saturating_sub(self.next);
        segment.ece = self.ece;
        segment.echo = self.echo;
        if sack {
            // The duplicate block is first (RFC 2883 section 4).
            let repeat = self.extras.as_mut().and_then(|extras| extras.repeat.take());
            repeat.into_iter().for_each(|(start, end)| segment.sack.push(start, end));
            self.beyond.iter().for_each(|(start, end)| segment.sack.push(*start, *end));
        }
        (self.unacked, self.ack_at, self.ack_now) = (0, None, false);
        if let Some(extras) = &mut self.extras {
            extras.quick.left = extras.quick.left.saturating_sub(1);
        }
    }

    /// Number of bytes that wait for the user to read them.
    pub(crate) fn unread(&self) -> u64 {
        let fin = u64::from(self.end.is_some_and(|end| self.next > end));
        (self.next - fin).saturating_sub(self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controls::Control;
    use crate::segment::SackBlocks;
    use anabranch_units::ByteCount;

    const MSS: u32 = 1_000;

    fn config() -> Config {
        Config { mss: MSS, receive_buffer: ByteCount::new(10_000), ..Config::default() }
    }
    fn data(seq: u64, len: u32) -> Segment {
        Segment {
            seq,
            len,
            header_bytes: 0,
            syn: false,
            fin: false,
            ack: None,
            window: 0,
            sack: SackBlocks::default(),
            sent_at: Instant::from_us(seq).into(),
            echo: None,
            ece: false,
            cwr: false,
            ect: false,
            ce: false,
            circuit: false,
        }
    }
    fn stamped(half: &mut ReceiveHalf) -> Segment {
        let mut segment = data(0, 0);
        half.stamp(&mut segment, true);
        segment
    }

    #[test]
    fn only_the_second_segment_is_acknowledged_immediately() {
        let mut half = ReceiveHalf::new(&config());
        half.handle_segment(Instant::ZERO, &data(0, MSS));
        assert_eq!(half.ack_at(), Some(Instant::ZERO + Duration::from_ms(40)));
        half.handle_segment(Instant::ZERO, &data(1_000, MSS));
        assert!(half.must_ack(Instant::ZERO));
        let ack = stamped(&mut half);
        assert_eq!((ack.ack, ack.echo), (Some(2_000), Some(RunInstant::ZERO)), "the echo is the first one's");
        assert_eq!(half.ack_at(), None);
    }

    #[test]
    fn ranges_beyond_a_gap_are_reported_newest_first() {
        let mut half = ReceiveHalf::new(&config());
        for seq in [2_000, 6_000, 4_000] {
            assert_eq!(half.handle_segment(Instant::ZERO, &data(seq, MSS)).in_order, 0);
            assert!(half.must_ack(Instant::ZERO));
        }
        let ack = stamped(&mut half);
        assert_eq!(ack.ack, Some(0));
        assert_eq!(ack.sack.iter().collect::<Vec<_>>(), [(4_000, 5_000), (6_000, 7_000), (2_000, 3_000)]);
        // The new segment merges two blocks into one.
        half.handle_segment(Instant::ZERO, &data(5_000, MSS));
        assert_eq!(stamped(&mut half).sack.iter().collect::<Vec<_>>(), [(4_000, 7_000), (2_000, 3_000)]);
        let taken = half.handle_segment(Instant::ZERO, &data(0, 2 * MSS));
        assert_eq!(taken.in_order, 3_000);
        assert!(half.must_ack(Instant::ZERO), "a gap that closes is told at once");
    }

    #[test]
    fn window_closes_without_reads_and_reopens_by_a_segment() {
        let mut half = ReceiveHalf::new(&Config { reads_at_once: false, ..config() });
        for n in 0..10 {
            half.handle_segment(Instant::ZERO, &data(n * 1_000, MSS));
        }
        assert_eq!(stamped(&mut half).window, 0);
        assert_eq!(half.unread(), 10_000);
        assert!(!half.read(999));
        assert_eq!(stamped(&mut half).window, 0, "a silly window is not told");
        assert!(half.read(1));
        assert_eq!(stamped(&mut half).window, 1_000);
        // Data beyond the window is dropped.
        let taken = half.handle_segment(Instant::ZERO, &data(10_000, 2 * MSS));
        assert_eq!(taken.in_order, 1_000);
    }

    #[test]
    fn fin_takes_a_position_and_is_reported_last() {
        let mut half = ReceiveHalf::new(&config());
        let fin = Segment { fin: true, ..data(1_000, 500) };
        assert_eq!(half.handle_segment(Instant::ZERO, &fin), DataEffect::default());
        let taken = half.handle_segment(Instant::ZERO, &data(0, MSS));
        assert!(taken.ended);
        assert_eq!(taken.in_order, 1_500);
        assert_eq!(stamped(&mut half).ack, Some(1_501));
    }

    #[test]
    fn marks_are_echoed_until_the_sender_responds() {
        let mut half = ReceiveHalf::new(&config());
        half.handle_segment(Instant::ZERO, &Segment { ce: true, ..data(0, MSS) });
        assert!(stamped(&mut half).ece);
        half.handle_segment(Instant::ZERO, &data(1_000, MSS));
        assert!(stamped(&mut half).ece);
        half.handle_segment(Instant::ZERO, &Segment { cwr: true, ..data(2_000, MSS) });
        assert!(!stamped(&mut half).ece);
    }

    #[test]
    fn one_acknowledgement_may_cover_several_segments_in_any_order() {
        let mut half = ReceiveHalf::new(&Config { ack_every: 4, ..config() });
        for (number, seq) in [1_000, 0, 3_000, 5_000].into_iter().enumerate() {
            half.handle_segment(Instant::ZERO, &data(seq, MSS));
            assert_eq!(half.must_ack(Instant::ZERO), number == 3, "{seq}");
        }
        assert_eq!(stamped(&mut half).ack, Some(2_000));
        half.handle_segment(Instant::ZERO, &data(7_000, MSS));
        assert!(half.must_ack(Instant::ZERO + Duration::from_ms(40)), "none waits for longer");
    }

    #[test]
    fn dctcp_echoes_each_segments_own_mark() {
        for control in [Control::Dctcp, Control::Nscc] {
            echoes_each_mark(&Config { control, ecn: true, ..config() });
        }
    }

    fn echoes_each_mark(config: &Config) {
        let mut half = ReceiveHalf::new(config);
        half.handle_segment(Instant::ZERO, &data(0, MSS));
        let marked = Segment { ce: true, ..data(1_000, MSS) };
        assert!(half.must_ack_before(&marked), "what waits was not marked");
        assert!(!stamped(&mut half).ece);
        half.handle_segment(Instant::ZERO, &marked);
        assert!(!half.must_ack_before(&Segment { ce: true, ..data(2_000, MSS) }));
        assert!(stamped(&mut half).ece);
        assert!(!half.must_ack_before(&data(2_000, MSS)), "nothing waits");
    }

    #[test]
    fn repeated_data_is_acknowledged_again_and_counted_once() {
        let mut half = ReceiveHalf::new(&config());
        half.handle_segment(Instant::ZERO, &data(0, MSS));
        stamped(&mut half);
        assert_eq!(half.handle_segment(Instant::ZERO, &data(0, MSS)).in_order, 0);
        assert!(half.must_ack(Instant::ZERO));
    }
}
