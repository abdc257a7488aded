//! Loss detection by time (RFC 8985): RACK detects lost segments, and TLP probes for the loss of a
//! flight's last segments.
//!
//! RACK records the time at which each segment leaves. A segment counts as lost if it left before
//! the last sent of the arrived segments, and a round trip plus the reordering window have passed
//! without its acknowledgement. Retransmissions are detected as lost in the same way. TLP sends one
//! more segment after two round trips without acknowledgement, so that the loss of the last
//! segments is detected long before the timeout.
//!
//! Invariant: each sent position is acknowledged, cumulatively or selectively, or lies in exactly
//! one entry of `first` or `again`, or in `lost`.
//!
//! Differs: the minimum round trip covers the whole connection, where section 6.2 step 1 uses some
//! minutes. The reordering window is not adapted by DSACK (step 4); DSACK only ends a probe's
//! episode. The reordering timer is set for the first segment to be due, where step 5 uses the
//! last. If a segment that was found lost arrives before its retransmission, the arrival does not
//! count as reordering (step 3).
//!
//! Leaves out: the effect of a loss on the window, and the choice of segments to send (`send`). The
//! path model (`bbr`) has a record of each segment, which is kept here and returned when the
//! segment is acknowledged or lost. Read [`Rack`] first.

use crate::bbr;
use crate::ranges::Ranges;
use crate::segment::Segment;
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;

/// Probe timeout while no round-trip time is known (section 7.2).
const PTO_INITIAL: Duration = Duration::from_secs(1);

/// A segment in flight.
#[derive(Copy, Clone, Debug, PartialEq)]
struct SentSegment {
    start: u64,
    end: u64,
    at: Instant,
    /// Number of the segment among all sent segments.
    number: u64,
}

impl SentSegment {
    /// Order of segments by the time they left (section 6.2 step 2, RACK_sent_after).
    const fn order(&self) -> (Instant, u64) {
        (self.at, self.end)
    }
}

/// A loss probe that is neither acknowledged nor superseded.
#[derive(Copy, Clone, Debug)]
struct Probe {
    /// Position after all bytes sent, the probe included.
    end: u64,
    is_retransmission: bool,
}

/// The path model's records of segments, by segment number. They are stored separately because most
/// connections have no model.
#[derive(Clone, Debug, Default)]
struct SendRecords {
    /// Segment number of the first record.
    first: u64,
    sent: VecDeque<bbr::SendRecord>,
}

impl SendRecords {
    fn get(&self, number: u64) -> Option<bbr::SendRecord> {
        self.sent.get(usize::try_from(number - self.first).ok()?).copied()
    }
    fn forget_below(&mut self, number: u64) {
        self.sent.drain(..(number - self.first) as usize);
        self.first = number;
    }
}

/// Positions that were found lost.
#[derive(Clone, Debug, Default)]
struct LostRanges {
    /// Positions that were found lost and not retransmitted yet.
    ranges: Ranges,
    /// Lost segments not yet reported to the path model.
    found: Vec<LostSegment>,
    /// Position after the last segment found lost.
    end: Option<u64>,
}

/// A segment that was found lost, as reported to the path model.
#[derive(Copy, Clone, Debug)]
pub(crate) struct LostSegment {
    pub(crate) sent: bbr::SendRecord,
    pub(crate) bytes: u64,
    /// Whether the previous segment was not lost.
    pub(crate) begins_run: bool,
}

impl LostRanges {
    fn mark(&mut self, segment: &SentSegment, sacked: &Ranges, known: &SendRecords) {
        let mut bytes = 0;
        for (start, end) in sacked.gaps(segment.start, segment.end) {
            self.ranges.insert(start, end);
            bytes += end - start;
        }
        if let Some(sent) = known.get(segment.number) {
            self.found.push(LostSegment { sent, bytes, begins_run: self.end != Some(segment.start) });
        }
        self.end = Some(segment.end);
    }
}

/// Loss detection state of a sender.
#[derive(Clone, Debug)]
pub(crate) struct Rack {
    /// Segments sent once, ascending in position and time. Some of them may be selectively
    /// acknowledged.
    first: VecDeque<SentSegment>,
    /// Retransmitted segments, in the order of their retransmission.
    again: Vec<SentSegment>,
    /// Number of segments sent so far.
    count: u64,
    known: SendRecords,
    lost: LostRanges,
    /// Last sent segment among the segments that arrived (RACK.xmit_ts, RACK.end_seq).
    newest: Option<(Instant, u64)>,
    /// Round-trip time of that segment (RACK.rtt).
    rtt: Duration,
    rtt_min: Option<Duration>,
    /// Highest position that arrived (RACK.fack).
    highest: u64,
    reordering_seen: bool,
    reorder_at: Option<Instant>,
    probe_at: Option<Instant>,
    /// Whether a probe is due (section 7.3).
    must_probe: bool,
    probe: Option<Probe>,
    /// Whether a round trip was measured since the last probe.
    is_sampled: bool,
    /// Maximum delay of the peer's acknowledgements (TLP.max_ack_delay).
    ack_delay_max: Duration,
    /// Width of the reordering window in quarters of the minimum round trip (RACK.reo_wnd_mult).
    reo_wnd_mult: u32,
    /// Round-trip time of the newest segment in the last acknowledgement.
    sample: Option<Duration>,
}

/// The sender's state that loss detection needs, apart from segments.
#[derive(Copy, Clone, Debug)]
pub(crate) struct SenderView<'a> {
    pub(crate) sacked: &'a Ranges,
    pub(crate) srtt: Option<Duration>,
    /// Whether a recovery is under way.
    pub(crate) is_repairing: bool,
    /// Number of bytes beyond a gap that counts as DupThresh segments.
    pub(crate) dup_bytes: u64,
    /// Whether everything written has been sent.
    pub(crate) is_tail: bool,
}

impl Rack {
    pub(crate) fn new(ack_delay_max: Duration, reo_wnd_mult: u32) -> Self {
        Self {
            first: VecDeque::new(),
            again: Vec::new(),
            count: 0,
            known: SendRecords::default(),
            lost: LostRanges::default(),
            newest: None,
            rtt: Duration::ZERO,
            rtt_min: None,
            highest: 0,
            reordering_seen: false,
            reorder_at: None,
            probe_at: None,
            must_probe: false,
            probe: None,
            is_sampled: true,
            ack_delay_max,
            reo_wnd_mult,
            sample: None,
        }
    }

    /// Whether the module's invariant holds.
    #[cfg(test)]
    pub(crate) fn is_whole(&self, una: u64, sent: u64, sacked: &Ranges) -> bool {
        let mut all = sacked.clone();
        let mut bytes = sacked.total() + self.lost.ranges.total();
        for entry in self.first.iter().chain(&self.again) {
            bytes += sacked.gaps(entry.start, entry.end).map(|(s, e)| e - s).sum::<u64>();
            all.insert(entry.start, entry.end);
        }
        self.lost.ranges.iter().for_each(|(start, end)| all.insert(start, end));
        all.forget_below(una);
        bytes == sent - una && all.total() == sent - una
    }
    /// Number of bytes that were found lost and not retransmitted yet.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.lost.ranges.total()
    }
    /// The first range that must be retransmitted.
    pub(crate) fn first_lost(&self) -> Option<(u64, u64)> {
        self.lost.ranges.first()
    }
    /// Round-trip time of the newest segment in the last acknowledgement: the last sent of the
    /// segments that it newly acknowledged.
    pub(crate) const fn sample(&self) -> Option<Duration> {
        self.sample
    }
    /// Removes and returns the lost segments that were not yet reported to the path model.
    pub(crate) fn take_found(&mut self) -> impl Iterator<Item = LostSegment> + '_ {
        self.lost.found.drain(..)
    }
    /// Time of the next check for losses or of the next probe, whichever is first (section 8).
    pub(crate) fn timer(&self) -> Option<Instant> {
        Instant::earliest([self.reorder_at, self.probe_at])
    }

    /// Records that the range `start` to `end` leaves at `now`.
    ///
    /// Source: section 6.1.
    pub(crate) fn note_sent(
        &mut self,
        now: Instant,
        (start, end): (u64, u64),
        is_retransmission: bool,
        model: Option<bbr::SendRecord>,
    ) {
        let sent = SentSegment { start, end, at: now, number: self.count };
        self.count += 1;
        self.known.sent.extend(model);
        if !is_retransmission {
            return self.first.push_back(sent);
        }
        self.lost.ranges.remove(start, end);
        // A probe retransmits a segment that was not found lost.
        if self.first.back().is_some_and(|last| last.start == start) {
            self.first.pop_back();
        }
        self.again.retain(|old| old.start != start);
        self.again.push(sent);
    }

    /// The last segment of the stream sent so far. A probe retransmits this segment.
    pub(crate) fn last(&self) -> Option<(u64, u64)> {
        let last = self.first.back().into_iter().chain(&self.again).max_by_key(|sent| sent.end);
        last.map(|sent| (sent.start, sent.end))
    }

    /// Handles an acknowledgement, before `sacked` includes it. `blocks` are the new selective
    /// blocks. Returns the path model's record of the last sent segment among the newly
    /// acknowledged ones, if the record is kept.
    ///
    /// Source: section 6.2 steps 1 to 3.
    pub(crate) fn handle_ack(
        &mut self,
        now: Instant,
        ack: u64,
        echo: Option<Instant>,
        blocks: impl Iterator<Item = (u64, u64)> + Clone,
        sacked: &Ranges,
    ) -> Option<bbr::SendRecord> {
        let (mut newest, mut news): (Option<SentSegment>, Option<SentSegment>) = (None, None);
        let is_known = !self.known.sent.is_empty();
        while let Some(&sent) = self.first.front().filter(|sent| sent.end <= ack) {
            self.first.pop_front();
            self.reordering_seen |= sent.end < self.highest && !sacked.covers(sent.start, sent.end);
            if !sacked.covers(sent.start, sent.end) {
                news = Some(sent);
            }
            newest = Some(sent);
        }
        if let Some(sent) = self.first.front_mut() {
            sent.start = sent.start.max(ack);
        }
        for (start, end) in blocks.clone() {
            newest = newest.into_iter().chain(self.last_within(start, end)).max_by_key(SentSegment::order);
            for (from, to) in sacked.gaps(start, end) {
                let sent = self.first.get(self.first.partition_point(|sent| sent.end <= from));
                self.reordering_seen |= sent.is_some_and(|sent| sent.end <= end && sent.end < self.highest);
                news = news.into_iter().chain(self.last_within(from, to)).max_by_key(SentSegment::order);
            }
        }
        if let Some(sent) = newest {
            self.note_arrived(now, &sent);
        }
        let (mut again, lost) = (std::mem::take(&mut self.again), &mut self.lost);
        lost.ranges.forget_below(ack);
        blocks.clone().for_each(|(start, end)| lost.ranges.remove(start, end));
        let highest = blocks.clone().map(|(_, end)| end).chain([ack]).max().unwrap_or(ack);
        again.retain(|sent| {
            let has_arrived =
                sent.end <= ack || blocks.clone().any(|(start, end)| start <= sent.start && sent.end <= end);
            // The acknowledgement may be for the first copy (step 2). For a segment beyond a gap,
            // the echo belongs to an earlier segment.
            let is_its_own = (sent.end > ack || echo.is_some_and(|echo| echo >= sent.at))
                && self.rtt_min.is_none_or(|least| now.saturating_since(sent.at) >= least);
            if has_arrived && is_its_own {
                self.note_arrived(now, sent);
                news = news.into_iter().chain([*sent]).max_by_key(SentSegment::order);
            }
            !has_arrived
        });
        self.again = again;
        self.again.iter_mut().for_each(|sent| sent.start = sent.start.max(ack));
        self.highest = self.highest.max(highest);
        self.sample = news.map(|sent| now.saturating_since(sent.at));
        if !is_known {
            return None;
        }
        let news = news.and_then(|sent| self.known.get(sent.number));
        let oldest = self.first.front().into_iter().chain(self.again.first()).map(|sent| sent.number).min();
        self.known.forget_below(oldest.unwrap_or(self.count));
        news
    }

    /// The last segment within `start` to `end` among the segments sent once. It is also the last
    /// sent of these segments.
    fn last_within(&self, start: u64, end: u64) -> Option<SentSegment> {
        let behind = self.first.partition_point(|sent| sent.end <= end);
        behind.checked_sub(1).map(|last| self.first[last]).filter(|sent| sent.start >= start)
    }

    fn note_arrived(&mut self, now: Instant, sent: &SentSegment) {
        let rtt = now.saturating_since(sent.at);
        self.rtt_min = Some(self.rtt_min.map_or(rtt, |least| least.min(rtt)));
        self.is_sampled = true;
        if self.newest.is_none_or(|newest| sent.order() > newest) {
            (self.newest, self.rtt) = (Some(sent.order()), rtt);
        }
    }

    /// Width of the reordering window.
    ///
    /// Source: section 6.2 step 4. Differs: a multiplier above one is for flows over many paths.
    /// Reordering is then expected before it was seen, and a smoothed round trip does not limit the
    /// window, because the slowest path takes longer. Once all data is sent the window is half as
    /// wide: no other data is waiting then, and a spurious retransmission takes no capacity from
    /// new data.
    fn reorder_window(&self, view: &SenderView<'_>) -> Duration {
        let quarter = self.rtt_min.unwrap_or(Duration::ZERO).as_ps() / 4;
        let quarters = |count: u32| Duration::from_ps(quarter * u64::from(count));
        if self.reo_wnd_mult > 1 {
            return quarters(if view.is_tail { self.reo_wnd_mult / 2 } else { self.reo_wnd_mult });
        }
        if !self.reordering_seen && (view.is_repairing || view.sacked.total() >= view.dup_bytes) {
            return Duration::ZERO;
        }
        view.srtt.map_or(quarters(1), |srtt| srtt.min(quarters(1)))
    }

    /// Detects lost segments, and sets the reordering timer. Returns the number of newly lost
    /// bytes.
    ///
    /// Source: section 6.2 step 5. Cost: a check of each retransmitted segment. Segments sent once
    /// are checked once.
    pub(crate) fn detect(&mut self, now: Instant, view: &SenderView<'_>) -> u64 {
        self.reorder_at = None;
        let Some(newest) = self.newest else { return 0 };
        let late = self.rtt + self.reorder_window(view);
        let lost_before = self.lost.ranges.total();
        let (first, again, lost, known) = (&mut self.first, &mut self.again, &mut self.lost, &self.known);
        let mut wait: Option<Instant> = None;
        while let Some(sent) = first.front() {
            if !view.sacked.covers(sent.start, sent.end) {
                if sent.order() > newest {
                    break;
                }
                if sent.at + late > now {
                    wait = Some(sent.at + late);
                    break;
                }
                lost.mark(sent, view.sacked, known);
            }
            first.pop_front();
        }
        again.retain(|sent| {
            if view.sacked.covers(sent.start, sent.end) {
                return false;
            }
            let due = sent.at + late;
            let is_waiting = sent.order() > newest || due > now;
            if !is_waiting {
                lost.mark(sent, view.sacked, known);
            } else if sent.order() <= newest {
                wait = Some(wait.map_or(due, |at| at.min(due)));
            }
            is_waiting
        });
        self.reorder_at = wait;
        self.lost.ranges.total() - lost_before
    }

    /// Handles the retransmission timer: the first segment counts as lost, and so does each overdue
    /// segment.
    ///
    /// Source: section 6.3.
    pub(crate) fn handle_timeout(&mut self, now: Instant, una: u64, view: &SenderView<'_>) {
        let late = self.rtt + self.reorder_window(view);
        let is_lost = |sent: &SentSegment| sent.start <= una || sent.at + late <= now;
        while let Some(sent) = self.first.front().filter(|sent| is_lost(sent)) {
            self.lost.mark(sent, view.sacked, &self.known);
            self.first.pop_front();
        }
        let (lost, known) = (&mut self.lost, &self.known);
        self.again.retain(|sent| {
            let is_lost = is_lost(sent);
            if is_lost {
                lost.mark(sent, view.sacked, known);
            }
            !is_lost
        });
        self.reorder_at = None;
        self.forget_probe();
    }

    /// Whether the probe timer has expired. [`Self::take_probe`] then returns true.
    pub(crate) fn is_probe_due(&mut self, now: Instant) -> bool {
        self.must_probe |= self.probe_at.take_if(|at| *at <= now).is_some();
        self.must_probe
    }
    /// Whether a probe is due. Returns true once per probe.
    pub(crate) fn take_probe(&mut self) -> bool {
        std::mem::take(&mut self.must_probe)
    }
    /// Whether the reordering timer has expired, so that losses must be checked.
    pub(crate) fn must_detect(&self, now: Instant) -> bool {
        self.reorder_at.is_some_and(|at| at <= now)
    }

    /// Sets the probe timer, or stops the timer if no probe is needed.
    ///
    /// Source: section 7.2, TLP_calc_PTO. `rto_at` is the expiration of the retransmission timer.
    pub(crate) fn mind_probe(
        &mut self,
        now: Instant,
        is_due: bool,
        srtt: Option<Duration>,
        rto_at: Option<Instant>,
    ) {
        let is_one = self.first.len() + self.again.len() == 1;
        self.probe_at = (is_due && self.probe.is_none() && self.is_sampled).then(|| {
            let wait = match srtt {
                None => PTO_INITIAL,
                Some(srtt) if is_one => srtt + srtt + self.ack_delay_max,
                Some(srtt) => srtt + srtt,
            };
            rto_at.map_or(now + wait, |rto_at| rto_at.min(now + wait))
        });
    }

    /// Records that a probe left. `end` is the position after all bytes sent.
    ///
    /// Source: section 7.3.
    pub(crate) fn note_probe(&mut self, end: u64, is_retransmission: bool) {
        self.probe = Some(Probe { end, is_retransmission });
        (self.probe_at, self.is_sampled) = (None, false);
    }

    /// Ends a probe's episode because another recovery has begun (section 7.1).
    pub(crate) fn forget_probe(&mut self) {
        (self.probe, self.probe_at, self.must_probe) = (None, None, false);
    }

    /// Whether an acknowledgement shows that a probe has repaired a loss.
    ///
    /// Source: section 7.4.2.
    pub(crate) fn handle_probe_ack(&mut self, ack: u64, segment: &Segment, is_duplicate: bool) -> bool {
        let Some(probe) = self.probe.filter(|probe| ack >= probe.end) else { return false };
        // Both copies of the segment arrived, so nothing was lost.
        let was_there = segment.sack.iter().any(|(_, end)| end == probe.end)
            || is_duplicate && ack == probe.end && segment.sack.is_empty();
        if !probe.is_retransmission || was_there || ack > probe.end {
            self.probe = None;
        }
        probe.is_retransmission && !was_there && ack > probe.end
    }
}
