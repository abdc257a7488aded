//! The sending half of a connection: the data that may be sent, loss detection, and retransmission.
//!
//! Three methods of recovery: NewReno (RFC 6582) if acknowledgements are only cumulative; RFC 6675
//! if they are selective; RFC 8985, which detects losses by time (`rack`). After a timeout the
//! first two methods restart at the first unacknowledged byte and skip acknowledged ranges. The
//! third method retransmits only the segments found lost.
//!
//! Leaves out: segments (made in `connection`), and changes of the window (`congestion`).

use crate::config::{Config, WINDOW_BYTES_MAX};
use crate::congestion::{Ack, Arrival, CircuitMark, Congestion, ModelControl, Window};
use crate::pacing::Pacing;
use crate::rack::{Rack, SenderView};
use crate::ranges::Ranges;
use crate::rtt::RttEstimator;
use crate::segment::Segment;
use anabranch_units::{BitRate, Duration, Instant, Seed};

/// Number of duplicate acknowledgements that indicate a loss (RFC 5681 section 3.2).
const DUP_THRESHOLD: u32 = 3;
/// Default slow start threshold: above every window (RFC 5681 section 3.1, "arbitrarily high").
const SSTHRESH_BYTES: u64 = 2 * WINDOW_BYTES_MAX;

/// The sending half.
#[derive(Clone, Debug)]
pub(crate) struct SendHalf {
    control: Congestion,
    window: Window,
    rtt: RttEstimator,
    sack: bool,
    initial_window: u64,
    slow_start_restart: bool,
    timeouts_max: u32,
    /// End of the stream so far.
    written: u64,
    /// Whether the end of the stream is final.
    closed: bool,
    /// Position of the first unacknowledged byte.
    una: u64,
    /// Next position to send. It is below `sent` during recovery from a timeout.
    next: u64,
    /// Position after the last byte sent.
    sent: u64,
    /// Position up to which the peer's window accepts data.
    edge: u64,
    dup_acks: u32,
    repair: Repair,
    /// Value of `sent` at the last loss. Duplicates below this position belong to that loss (RFC
    /// 6582 section 3.2, "recover").
    recover: Option<u64>,
    sacked: Ranges,
    /// Ranges that were retransmitted in this recovery and have not arrived, ascending.
    resent: Vec<RetransmittedRange>,
    /// Whether to retransmit the first unacknowledged segment without regard to the window.
    again: bool,
    /// Whether to send a probe of the peer's window.
    probe: bool,
    timeouts: u32,
    /// Expiration of the retransmission timer, or of the timer for probes of a closed window.
    timer: Option<Instant>,
    /// Loss detection by time; `None` unless enabled.
    rack: Option<Box<Rack>>,
    /// Pacing by an external rate limit; `None` without a limit.
    pacing: Option<Box<Pacing>>,
    last_sent_at: Option<Instant>,
    /// Position below which echoed ECN marks belong to an earlier reaction.
    marks_seen: u64,
    say_cwr: bool,
    timeouts_total: u32,
    /// Congestion window at the first timeout.
    first_timeout_cwnd: Option<u64>,
    recoveries_total: u32,
}

/// Kind of the current recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Repair {
    Nothing,
    /// Recovery from a loss that duplicate acknowledgements revealed, until `end` is acknowledged.
    Fast {
        end: u64,
        /// Whether the single segment of RFC 6675's NextSeg rule 4 was sent.
        rescued: bool,
        /// Whether a partial acknowledgement has restarted the timer. Only the first may do so.
        partial: bool,
    },
    /// Recovery from a timeout, until `end` is acknowledged.
    Timeout {
        end: u64,
    },
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct RetransmittedRange {
    start: u64,
    end: u64,
    /// Value of `sent` at the retransmission. Data beyond this position was sent later.
    behind: u64,
}

/// A range of the stream to send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) seq: u64,
    pub(crate) len: u32,
    pub(crate) fin: bool,
    pub(crate) is_retransmission: bool,
}

/// Effect of an acknowledgement.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckEffect {
    pub(crate) bytes: u64,
    /// Whether the stream is closed and all of it is acknowledged.
    pub(crate) finished: bool,
}

impl SendHalf {
    pub(crate) fn new(config: &Config) -> Self {
        let mss = u64::from(config.mss);
        let initial_window = mss * u64::from(config.initial_window_segments);
        let cwnd_max = config.cwnd_max.map_or(WINDOW_BYTES_MAX, |most| most.as_u64());
        let ssthresh = config.initial_ssthresh.map_or(SSTHRESH_BYTES, |first| first.as_u64());
        Self {
            control: Congestion::new(config),
            window: Window {
                cwnd: initial_window.min(cwnd_max),
                ssthresh,
                mss,
                cwnd_max,
                abc_limit: mss * u64::from(config.abc_limit_segments),
            },
            rtt: RttEstimator::new(config.rto_initial, config.rto_min, config.rto_max),
            sack: config.sack,
            initial_window,
            slow_start_restart: config.slow_start_restart,
            timeouts_max: config.timeouts_max,
            written: 0,
            closed: false,
            una: 0,
            next: 0,
            sent: 0,
            edge: 0,
            dup_acks: 0,
            repair: Repair::Nothing,
            recover: None,
            sacked: Ranges::default(),
            resent: Vec::new(),
            again: false,
            probe: false,
            timeouts: 0,
            timer: None,
            rack: config.rack.then(|| {
                Box::new(Rack::new(config.delayed_ack.unwrap_or(Duration::ZERO), config.rack_reo_wnd_mult))
            }),
            pacing: None,
            last_sent_at: None,
            marks_seen: 0,
            say_cwr: false,
            timeouts_total: 0,
            first_timeout_cwnd: None,
            recoveries_total: 0,
        }
    }

    pub(crate) const fn first_timeout_cwnd(&self) -> Option<u64> {
        self.first_timeout_cwnd
    }
    pub(crate) fn timeouts_total(&self) -> u64 {
        self.timeouts_total.into()
    }
    pub(crate) fn recoveries_total(&self) -> u64 {
        self.recoveries_total.into()
    }
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }
    pub(crate) fn rtt(&mut self) -> &mut RttEstimator {
        &mut self.rtt
    }
    pub(crate) fn srtt(&self) -> Option<Duration> {
        self.rtt.srtt()
    }
    /// Bytes written but not acknowledged, whether or not they were sent.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.written - self.una.min(self.written)
    }
    /// Sequence number of segments without data.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }
    /// Time of the next call of [`Self::handle_timeout`]: the earliest timer for retransmission,
    /// reordering, loss probes, the pacing limit, or pacing by the congestion control.
    pub(crate) fn timer(&self) -> Option<Instant> {
        let rack = self.rack.as_ref().and_then(|rack| rack.timer());
        let pacing = self.pacing.as_ref().and_then(|pacing| pacing.timer());
        Instant::earliest([self.timer, rack, pacing, self.control.paced_until()])
    }
    /// Limits the rate of data from now on; `None` removes the limit.
    ///
    /// Panics: if the limit is zero.
    pub(crate) fn set_pacing_limit(&mut self, limit: Option<BitRate>) {
        match (limit, &mut self.pacing) {
            (Some(limit), Some(pacing)) => pacing.set(limit, 0),
            (limit, pacing) => *pacing = limit.map(|limit| Box::new(Pacing::new(limit, 0))),
        }
    }
    #[cfg(test)]
    pub(crate) fn bbr(&mut self) -> Option<&crate::bbr::Bbr> {
        self.control.model().and_then(|model| model.bbr())
    }
    #[cfg(test)]
    pub(crate) fn bbr1(&mut self) -> Option<&crate::bbr::Bbr1> {
        self.control.model().and_then(|model| model.bbr1())
    }
    pub(crate) fn set_seed(&mut self, seed: Seed) {
        self.control.set_seed(seed);
    }
    /// Sets the position up to which the peer accepts data.
    pub(crate) fn open(&mut self, window: u64) {
        self.edge = self.edge.max(window);
    }
    pub(crate) fn write(&mut self, bytes: u64) {
        debug_assert!(!self.closed, "a closed stream has an end");
        self.written += bytes;
    }
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Bytes sent and not cumulatively acknowledged (RFC 5681: FlightSize).
    fn flight(&self) -> u64 {
        self.next - self.una
    }
    /// Whether `flight` bytes use up the congestion window. In slow start half of the window
    /// suffices, because the window is about to double.
    fn is_limited(&self, flight: u64) -> bool {
        let w = &self.window;
        (if w.is_slow_start() { 2 * flight } else { flight + w.mss }) >= w.cwnd
    }
    /// Position after the stream written so far; the end of a closed stream takes a position, too.
    fn end(&self) -> u64 {
        self.written + u64::from(self.closed)
    }

    /// Handles a segment's acknowledgement.
    pub(crate) fn handle_ack(&mut self, now: Instant, segment: &Segment) -> AckEffect {
        let Some(ack) = segment.ack.filter(|a| *a <= self.sent) else { return AckEffect::default() };
        if ack < self.una {
            return AckEffect::default();
        }
        let (sent, limited) = (self.sent, self.is_limited(self.flight()));
        let is_recovering = matches!(self.repair, Repair::Fast { .. });
        let mark = CircuitMark { is_up: segment.circuit, sent, limited, is_recovering };
        self.control.handle_circuit_mark(&mut self.window, &mark);
        let edge = ack + segment.window;
        let moved = edge > self.edge;
        self.edge = self.edge.max(edge);
        let arrived = self.una + self.sacked.total();
        let newest = self.rack.as_mut().and_then(|rack| {
            let blocks = news_of(segment, self.una, self.sent);
            rack.handle_ack(now, ack, segment.echo.map(Instant::from), blocks, &self.sacked)
        });
        let news = self.sack && self.note_sack(segment);
        let bytes = ack - self.una;
        let mut acked =
            AckEffect { bytes: bytes.min(self.written - self.una.min(self.written)), finished: false };
        if bytes > 0 {
            self.handle_new_ack(now, segment, ack, bytes);
        } else if self.rack.is_none()
            && self.flight() > 0
            && segment.len == 0
            && !segment.fin
            && (news || !moved && !self.sack)
        {
            self.handle_duplicate(now);
        }
        let arrived = self.una + self.sacked.total() - arrived;
        if let Some(model) = self.control.model().filter(|_| arrived > 0) {
            model.handle_delivered(now, arrived, newest.as_ref());
        }
        if self.rack.is_some() {
            self.handle_ack_by_time(now, segment, bytes, moved);
        }
        if let Some(rtt) = self.rack.as_ref().filter(|_| arrived > 0).map(|rack| rack.sample()) {
            let in_flight = self.pipe_by_time();
            let arrival = Arrival { bytes: arrived, is_marked: segment.ece, rtt, in_flight };
            self.control.handle_arrived(now, &mut self.window, &arrival);
        }
        if arrived > 0 && self.control.model().is_some() {
            let (pipe, rtt) = (self.pipe_by_time(), newest.map(|sent| now.saturating_since(sent.at)));
            if let Some(model) = self.control.model() {
                model.handle_ack(now, &mut self.window, pipe, rtt);
            }
        }
        if segment.ece && self.una > self.marks_seen && self.repair == Repair::Nothing {
            let flight = self.flight();
            self.control.handle_marks(&mut self.window, flight);
            (self.marks_seen, self.say_cwr) = (self.sent, true);
        }
        if moved && self.flight() == 0 {
            self.rtt.handle_progress();
            self.timer = None;
        }
        acked.finished = bytes > 0 && self.closed && self.una == self.end();
        acked
    }

    fn note_sack(&mut self, segment: &Segment) -> bool {
        let before = self.sacked.total();
        news_of(segment, self.una, self.sent).for_each(|(start, end)| self.sacked.insert(start, end));
        self.sacked.total() > before
    }

    /// Checks for losses by time, once the scoreboard is up to date.
    ///
    /// Source: RFC 8985 sections 6.2 step 5, 7.2 and 7.4.2.
    fn handle_ack_by_time(&mut self, now: Instant, segment: &Segment, bytes: u64, moved: bool) {
        let is_duplicate = bytes == 0 && segment.len == 0 && !segment.fin && !moved;
        let (una, flight) = (self.una, self.flight() + bytes);
        let Some(rack) = &mut self.rack else { return };
        if rack.handle_probe_ack(una, segment, is_duplicate) && self.repair == Repair::Nothing {
            // The lost segment was repaired by the probe, so only the window must be reduced.
            self.control.handle_loss(&mut self.window, flight);
            self.window.cwnd = self.window.ssthresh;
        }
        self.detect(now);
        #[cfg(test)]
        assert!(self.looks_whole());
        if bytes > 0 || !self.sacked.is_empty() {
            self.mind_loss_probe(now);
        }
    }

    /// Whether the state of `rack` is consistent. To save time, long flights are rarely checked.
    #[cfg(test)]
    fn looks_whole(&self) -> bool {
        let is_passed =
            self.flight() > 200 * self.window.mss && !self.una.is_multiple_of(32 * self.window.mss);
        is_passed || self.rack.as_ref().is_none_or(|rack| rack.is_whole(self.una, self.sent, &self.sacked))
    }

    /// Finds lost segments, and starts their recovery.
    fn detect(&mut self, now: Instant) {
        let view = SenderView {
            sacked: &self.sacked,
            srtt: self.rtt.srtt(),
            is_repairing: self.repair != Repair::Nothing,
            dup_bytes: u64::from(DUP_THRESHOLD - 1) * self.window.mss + 1,
            is_tail: self.sent == self.end(),
        };
        let found = self.rack.as_mut().map_or(0, |rack| rack.detect(now, &view));
        if found > 0 {
            self.control.handle_lost(&mut self.window, found);
            if self.repair == Repair::Nothing {
                self.enter_recovery(now);
            }
        }
        self.tell_lost(now);
    }

    /// Reports lost segments to the congestion control's path model.
    fn tell_lost(&mut self, now: Instant) {
        if let (Some(rack), Some(model)) = (&mut self.rack, self.control.model()) {
            rack.take_found().for_each(|found| model.handle_segment_lost(now, &found));
        }
    }

    /// Sets the timer of the loss probe.
    ///
    /// Source: RFC 8985 section 7.2. No probe is sent in a recovery, nor while data beyond a gap is
    /// acknowledged.
    fn mind_loss_probe(&mut self, now: Instant) {
        let is_due = self.repair == Repair::Nothing && self.sacked.is_empty() && self.flight() > 0;
        if let Some(rack) = &mut self.rack {
            rack.mind_probe(now, is_due, self.rtt.srtt(), self.timer);
        }
    }

    fn handle_new_ack(&mut self, now: Instant, segment: &Segment, ack: u64, bytes: u64) {
        let flight = self.flight();
        self.una = ack;
        self.next = self.next.max(ack);
        self.sacked.forget_below(ack);
        self.timeouts = 0;
        self.rtt.handle_progress();
        if let Some(sent_at) = segment.echo {
            self.rtt.sample(now.saturating_since(sent_at.into()), flight / self.window.mss);
        }
        let mut restart = true;
        let mss = self.window.mss;
        match &mut self.repair {
            Repair::Fast { end, .. } if ack >= *end => {
                // RFC 6582 section 3.2 step 3, full acknowledgement: the option without a burst.
                if !self.sack {
                    let left = (self.next - self.una).max(mss) + mss;
                    self.window.cwnd = self.window.ssthresh.min(left);
                }
                self.repair = Repair::Nothing;
                self.control.handle_recovered();
                self.dup_acks = 0;
            }
            Repair::Fast { partial, .. } => {
                restart = !std::mem::replace(partial, true) || self.sack;
                if !self.sack {
                    // Partial acknowledgement: the next hole is retransmitted, and the window
                    // shrinks by the acknowledged bytes.
                    self.again = true;
                    let w = &mut self.window;
                    w.cwnd = w.cwnd.saturating_sub(bytes).max(mss) + if bytes >= mss { mss } else { 0 };
                }
            }
            Repair::Timeout { .. } | Repair::Nothing => {
                if matches!(self.repair, Repair::Timeout { end } if ack >= end) {
                    self.repair = Repair::Nothing;
                    self.control.handle_recovered();
                }
                self.dup_acks = 0;
                let ack = Ack {
                    bytes,
                    marked: segment.ece,
                    una: self.una,
                    sent: self.sent,
                    srtt: self.rtt.srtt(),
                    rtt: segment.echo.map(|sent_at| now.saturating_since(sent_at.into())),
                    limited: self.is_limited(flight),
                };
                self.control.handle_ack(now, &mut self.window, &ack);
            }
        }
        if restart {
            // RFC 6298 sections 5.2 and 5.3.
            self.timer = (self.flight() > 0).then(|| now + self.rtt.rto());
        }
    }

    fn handle_duplicate(&mut self, now: Instant) {
        self.dup_acks += 1;
        match &self.repair {
            Repair::Nothing => {
                let lost = self.dup_acks >= DUP_THRESHOLD || self.sack && self.is_lost(self.una);
                // RFC 6582 section 3.2 step 1: no recovery starts for segments that were sent
                // before the last loss was found.
                if lost && self.recover.is_none_or(|recover| self.una >= recover) {
                    self.enter_recovery(now);
                }
            }
            // RFC 5681 section 3.2 step 4: a segment has left the network.
            Repair::Fast { .. } if !self.sack => self.window.cwnd += self.window.mss,
            Repair::Fast { .. } | Repair::Timeout { .. } => {}
        }
    }

    fn enter_recovery(&mut self, now: Instant) {
        self.recoveries_total = self.recoveries_total.saturating_add(1);
        let flight = self.flight().saturating_sub(self.sacked.total());
        self.control.handle_loss(&mut self.window, flight);
        let w = &mut self.window;
        w.cwnd = w.ssthresh + if self.sack { 0 } else { u64::from(DUP_THRESHOLD) * w.mss };
        self.recover = Some(self.sent);
        self.repair = Repair::Fast { end: self.sent, rescued: false, partial: false };
        self.resent.clear();
        if let Some(rack) = &mut self.rack {
            rack.forget_probe();
        }
        self.again = true;
        self.timer = Some(now + self.rtt.rto());
    }

    /// Whether the byte at `position` counts as lost, because enough data beyond it was
    /// acknowledged.
    ///
    /// Source: RFC 6675 section 4, IsLost.
    fn is_lost(&self, position: u64) -> bool {
        position < self.lost_edge()
    }

    /// Position below which every unacknowledged byte counts as lost: the start of the highest
    /// acknowledged ranges that together are enough evidence.
    fn lost_edge(&self) -> u64 {
        let enough = u64::from(DUP_THRESHOLD - 1) * self.window.mss;
        let (mut ranges, mut bytes) = (0, 0);
        let is_enough = |&(start, end): &(u64, u64)| {
            (ranges, bytes) = (ranges + 1, bytes + (end - start));
            ranges >= DUP_THRESHOLD || bytes > enough
        };
        self.sacked.iter().rev().find(is_enough).map_or(0, |(start, _)| start)
    }

    /// Bytes in flight by selective acknowledgements.
    ///
    /// Source: RFC 6675 section 4, SetPipe. Cost: a check of the retransmitted ranges, and of the
    /// last three acknowledged ranges.
    fn pipe(&self) -> u64 {
        let highest = self.sacked.end().unwrap_or(self.una);
        let mut pipe = self.sent.saturating_sub(highest.max(self.una));
        pipe +=
            self.sacked.holes(self.una.max(self.lost_edge())).map(|(start, end)| end - start).sum::<u64>();
        pipe + self.resent.iter().map(|resent| resent.end - resent.start).sum::<u64>()
    }

    /// Drops records of retransmissions that have arrived or were lost again. A retransmission was
    /// lost if data sent three segments later has arrived and the retransmission has not.
    ///
    /// Differs: RFC 6675 leaves this loss to the timer. Linux detected it this way
    /// (`tcp_mark_lost_retrans`) until it had RACK (RFC 8985), which detects it by time.
    fn review_resent(&mut self) {
        let late = u64::from(DUP_THRESHOLD) * self.window.mss;
        let (una, highest, sacked) = (self.una, self.sacked.end().unwrap_or(self.una), &self.sacked);
        self.resent.retain(|resent| {
            let has_arrived = resent.end <= una || sacked.containing(resent.start).is_some();
            !has_arrived && highest < resent.behind + late
        });
    }

    /// The first part of a hole that was not retransmitted. With `lost` only bytes that count as
    /// lost are considered. Cost: a check of the earlier holes and of their retransmissions.
    fn hole(&self, lost: bool) -> Option<(u64, u64)> {
        let edge = if lost { self.lost_edge() } else { u64::MAX };
        let mut resent = self.resent.iter().peekable();
        for (from, end) in self.sacked.holes(self.una) {
            let mut start = from;
            while let Some(next) = resent.peek().filter(|next| next.start < end) {
                if next.start > start {
                    return (start < edge).then_some((start, next.start));
                }
                start = start.max(next.end);
                if next.end > end {
                    // The retransmitted range continues in the next hole.
                    break;
                }
                resent.next();
            }
            if start < end {
                return (start < edge).then_some((start, end));
            }
        }
        None
    }

    fn note_resent(&mut self, piece: &Piece) {
        let (start, end) = (piece.seq, piece.seq + u64::from(piece.len) + u64::from(piece.fin));
        let at = self.resent.partition_point(|resent| resent.start < start);
        self.resent.insert(at, RetransmittedRange { start, end, behind: self.sent });
    }

    /// The next range to send, which then counts as sent; `None` if no range may be sent.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Piece> {
        let is_modelled = self.control.model().is_some();
        if self.pacing.is_none() && !is_modelled {
            return self.poll_unpaced(now);
        }
        let piece = self.may_leave(now).then(|| self.poll_unpaced(now)).flatten();
        match &piece {
            Some(piece) => self.note_paced(now, piece.len),
            None if is_modelled => self.mind_app_limit(),
            None => {}
        }
        piece
    }

    /// Whether the external limit and the congestion control's pacing let a segment leave.
    fn may_leave(&mut self, now: Instant) -> bool {
        let (has_more, mss, srtt) = (self.una < self.end(), self.window.mss, self.rtt.srtt());
        let by_limit = self.pacing.as_mut().is_none_or(|pacing| pacing.may_send(now, mss, has_more));
        let by_model = self.control.model().is_none_or(|model| model.may_send(now, srtt, has_more));
        by_limit && by_model
    }

    fn note_paced(&mut self, now: Instant, bytes: u32) {
        if let Some(pacing) = &mut self.pacing {
            pacing.note_sent(now, bytes);
        }
        if let Some(model) = self.control.model() {
            model.note_paced(now, bytes);
        }
    }

    /// Notifies the path model if the sender is application-limited.
    ///
    /// Source: draft-ietf-ccwg-bbr-06 section 4.1.2.4, CheckIfApplicationLimited.
    fn mind_app_limit(&mut self) {
        let has_lost = self.rack.as_ref().is_some_and(|rack| rack.lost_bytes() > 0);
        if self.sent == self.end() && !has_lost && self.pipe_by_time() < self.window.cwnd {
            self.control.model().into_iter().for_each(ModelControl::note_app_limited);
        }
    }

    fn poll_unpaced(&mut self, now: Instant) -> Option<Piece> {
        if std::mem::take(&mut self.probe) {
            // RFC 9293 section 3.8.6.1. The probe repeats an acknowledged byte, or sends the first
            // byte beyond a closed window. The peer must answer in both cases.
            return Some(Piece {
                seq: self.una.saturating_sub(1),
                len: 1,
                fin: false,
                is_retransmission: true,
            });
        }
        if self.rack.is_some() {
            return self.poll_by_time(now);
        }
        if std::mem::take(&mut self.again) {
            let piece = self.piece(self.una, self.sacked.start().unwrap_or(self.sent).min(self.sent))?;
            if self.sack && matches!(self.repair, Repair::Fast { .. }) {
                self.note_resent(&piece);
            }
            return Some(self.note_sent(now, piece));
        }
        if self.sack && matches!(self.repair, Repair::Fast { .. }) {
            return self.poll_selective(now);
        }
        if self.slow_start_restart && self.flight() == 0 {
            self.note_idle(now);
        }
        // Skips ranges that the peer has already acknowledged, after a timeout.
        while let Some((_, end)) = self.sacked.containing(self.next).filter(|_| self.next < self.sent) {
            self.next = end;
        }
        // RFC 3042: a new segment may leave for each of the first two duplicates.
        let extra = match self.repair {
            Repair::Nothing => u64::from(self.dup_acks.min(DUP_THRESHOLD - 1)) * self.window.mss,
            _ => 0,
        };
        // Bytes that the peer has acknowledged selectively are no longer in flight.
        let arrived = self.sacked.total() - self.sacked.beyond(self.next).1;
        let may = (self.una + self.window.cwnd + extra + arrived).min(self.edge);
        let piece = self.piece(self.next, may.max(self.next).min(self.end()))?;
        let is_cut = u64::from(piece.len) < self.window.mss.min(self.written.saturating_sub(self.next));
        // A segment that the window cuts short waits for a larger window while data is in flight
        // (RFC 1122 section 4.2.3.4).
        if is_cut && self.flight() > 0 && piece.seq == self.sent {
            return None;
        }
        self.next = piece.seq + u64::from(piece.len) + u64::from(piece.fin);
        Some(self.note_sent(now, piece))
    }

    /// The next range in a recovery with selective acknowledgements.
    ///
    /// Source: RFC 6675 section 5 step C and section 4, NextSeg.
    fn poll_selective(&mut self, now: Instant) -> Option<Piece> {
        let &Repair::Fast { rescued, end, .. } = &self.repair else { return None };
        self.review_resent();
        let pipe = self.pipe();
        if pipe > 0 && self.window.cwnd < pipe + self.window.mss {
            return None;
        }
        // NextSeg rules of RFC 6675: lost data, new data, data that may be lost, the last segment.
        let piece = if let Some((start, end)) = self.hole(true) {
            self.piece(start, end)?
        } else if let Some(new) = self.piece(self.sent, self.edge.min(self.end()).max(self.sent)) {
            new
        } else if let Some((start, end)) = self.hole(false) {
            self.piece(start, end)?
        } else if !rescued
            && self.resent.last().is_none_or(|resent| resent.end < end)
            && self.sent > self.sacked.end().unwrap_or(self.una)
        {
            let last = self.sent.saturating_sub(self.window.mss).max(self.una);
            if let Repair::Fast { rescued, .. } = &mut self.repair {
                *rescued = true;
            }
            let piece = self.piece(last, self.sent)?;
            return Some(self.note_sent(now, piece));
        } else {
            return None;
        };
        if piece.seq == self.sent {
            self.next = piece.seq + u64::from(piece.len) + u64::from(piece.fin);
        } else {
            self.note_resent(&piece);
        }
        Some(self.note_sent(now, piece))
    }

    /// Bytes in flight according to loss detection by time.
    ///
    /// Source: RFC 6675 section 4, SetPipe.
    fn pipe_by_time(&self) -> u64 {
        let lost = self.rack.as_ref().map_or(0, |rack| rack.lost_bytes());
        self.flight() - self.sacked.total() - lost
    }

    /// The next range with loss detection by time: lost data, then new data.
    ///
    /// Source: RFC 8985 sections 6.2 and 7.3; bytes in flight are RFC 6675's pipe.
    fn poll_by_time(&mut self, now: Instant) -> Option<Piece> {
        if self.slow_start_restart && self.flight() == 0 {
            self.note_idle(now);
        }
        let must_probe = self.rack.as_mut()?.take_probe();
        let rack = self.rack.as_ref()?;
        let (new_end, mss) = (self.edge.min(self.end()).max(self.sent), self.window.mss);
        if must_probe {
            let again = || rack.last().and_then(|(start, end)| self.piece(start, end));
            let piece = self.piece(self.sent, new_end).or_else(again)?;
            let piece = self.note_sent_by_time(now, piece);
            if let Some(rack) = &mut self.rack {
                rack.note_probe(self.sent, piece.is_retransmission);
            }
            return Some(piece);
        }
        let pipe = self.pipe_by_time();
        if let Some((start, end)) = rack.first_lost() {
            let may = std::mem::take(&mut self.again) || pipe == 0 || pipe + mss <= self.window.cwnd;
            let piece = self.piece(start, end).filter(|_| may)?;
            return Some(self.note_sent_by_time(now, piece));
        }
        self.again = false;
        let may = self.sent + self.window.cwnd.saturating_sub(pipe);
        let piece = self.piece(self.sent, may.min(new_end))?;
        let is_cut = u64::from(piece.len) < mss.min(self.written.saturating_sub(self.sent));
        // A segment cut short by the window waits, as without RACK (RFC 1122 section 4.2.3.4).
        if is_cut && self.flight() > 0 {
            return None;
        }
        let piece = self.note_sent_by_time(now, piece);
        self.mind_loss_probe(now);
        Some(piece)
    }

    fn note_sent_by_time(&mut self, now: Instant, piece: Piece) -> Piece {
        let bytes = u64::from(piece.len) + u64::from(piece.fin);
        let (pipe, srtt) = (self.pipe_by_time() + bytes, self.rtt.srtt());
        let model = self.control.model().map(|model| model.handle_sent(now, bytes, pipe, srtt));
        if let Some(rack) = &mut self.rack {
            rack.note_sent(now, (piece.seq, piece.seq + bytes), piece.is_retransmission, model);
        }
        let piece = self.note_sent(now, piece);
        self.next = self.sent;
        piece
    }

    /// A segment from `seq` up to `end` or the maximum segment size; `None` if it would be empty.
    fn piece(&self, seq: u64, end: u64) -> Option<Piece> {
        let len = (end.min(self.written).saturating_sub(seq)).min(self.window.mss);
        let fin = self.closed && seq + len == self.written && end > self.written;
        let is_retransmission = seq < self.sent;
        (len > 0 || fin).then_some(Piece { seq, len: len as u32, fin, is_retransmission })
    }

    fn note_sent(&mut self, now: Instant, piece: Piece) -> Piece {
        self.sent = self.sent.max(piece.seq + u64::from(piece.len) + u64::from(piece.fin));
        self.next = self.next.max(self.una);
        self.last_sent_at = Some(now);
        // RFC 6298 section 5.1.
        self.timer.get_or_insert_with(|| now + self.rtt.rto());
        piece
    }

    fn note_idle(&mut self, now: Instant) {
        let idle = self.last_sent_at.map(|t| now.saturating_since(t));
        if idle.is_some_and(|idle| idle > self.rtt.rto()) && self.next < self.end() {
            self.control.handle_idle(&mut self.window, self.initial_window);
            self.last_sent_at = Some(now);
        }
    }

    /// Sets the timer for a window probe if the peer's closed window blocks the stream. Must be
    /// called when nothing more can be sent.
    pub(crate) fn mind_probe(&mut self, now: Instant) {
        let held_up = self.flight() == 0 && self.next < self.end() && self.edge <= self.next;
        if held_up && self.timer.is_none() {
            self.timer = Some(now + self.rtt.rto());
        }
    }

    /// Handles an expired timer. Returns false if the connection must be given up.
    ///
    /// Source: RFC 8985 section 8 for the effects of loss detection and probes on the
    /// retransmission timer.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.rack.as_ref().is_some_and(|rack| rack.must_detect(now)) {
            self.detect(now);
        }
        if self.rack.as_mut().is_some_and(|rack| rack.is_probe_due(now)) {
            self.timer = Some(now + self.rtt.rto());
        }
        self.timer.is_none_or(|at| at > now) || self.handle_rto(now)
    }

    /// Handles an expired retransmission timer. Returns false if the connection must be given up.
    fn handle_rto(&mut self, now: Instant) -> bool {
        self.rtt.back_off();
        self.timer = Some(now + self.rtt.rto());
        if self.flight() == 0 && self.una == self.sent {
            // Window probes continue as long as the peer answers them. An unreachable peer is
            // detected by its silence to data.
            self.probe = self.next < self.end();
            if !self.probe {
                self.timer = None;
            }
            return true;
        }
        self.timeouts += 1;
        self.first_timeout_cwnd.get_or_insert(self.window.cwnd);
        self.timeouts_total = self.timeouts_total.saturating_add(1);
        if self.timeouts > self.timeouts_max {
            return false;
        }
        let flight = (self.sent - self.una).saturating_sub(self.sacked.total());
        self.control.handle_timeout(&mut self.window, flight, self.timeouts == 1);
        self.recover = Some(self.sent);
        self.repair = Repair::Timeout { end: self.sent };
        (self.next, self.dup_acks, self.again) = (self.una, 0, false);
        if let Some(rack) = &mut self.rack {
            let (sacked, srtt) = (&self.sacked, self.rtt.srtt());
            let is_tail = self.sent == self.written + u64::from(self.closed);
            let view = SenderView { sacked, srtt, is_repairing: true, dup_bytes: 0, is_tail };
            rack.handle_timeout(now, self.una, &view);
            (self.next, self.again) = (self.sent, true);
        }
        self.tell_lost(now);
        true
    }

    /// Whether to announce the reduced window (CWR). Returns true once per reduction.
    pub(crate) fn take_cwr(&mut self) -> bool {
        std::mem::take(&mut self.say_cwr)
    }
}

/// The selective blocks of a segment's acknowledgement that lie beyond `una`.
fn news_of(segment: &Segment, una: u64, sent: u64) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
    segment.sack.iter().filter(move |(start, end)| *start > una && *end <= sent)
}

#[cfg(test)]
mod tests;
