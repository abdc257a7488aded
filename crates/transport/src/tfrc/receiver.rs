//! The receiving half of TFRC: arrivals, losses, and the times of reports.
//!
//! Source: RFC 5348 sections 5 and 6.

use super::{LossIntervals, SlowStart, TcpTimeout, loss_rate_for};
use anabranch_units::{Duration, Instant};

/// Number of later packets after whose arrival a missing packet counts as lost (section 5.1,
/// NDUPACK).
const LATE: usize = 3;

/// The header fields of an arriving packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Sequence number, from 0.
    pub sequence: u64,
    /// Number of bytes that count for the receive rate.
    pub bytes: u32,
    /// Time at which the packet was sent, by the sender's clock.
    pub sent_at: Instant,
    /// The sender's estimate of the round-trip time; `None` before the first estimate.
    pub rtt: Option<Duration>,
}

/// A report to the sender.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Report {
    /// Time at which the last received packet was sent, by the sender's clock (t_recvdata).
    pub sent_at: Instant,
    /// Time since that packet's arrival (t_delay).
    pub delay: Duration,
    /// Receive rate in bytes per second since the last report (X_recv).
    pub received_bytes_per_s: f64,
    /// The loss event rate (p).
    pub loss_rate: f64,
}

/// The receiver of one stream.
#[derive(Clone, Debug)]
pub struct Receiver {
    timeout: TcpTimeout,
    size: f64,
    /// Number of reports per round trip until the first loss.
    eager_reports: u64,
    intervals: LossIntervals,
    /// One more than the highest sequence number received.
    next: u64,
    /// Missing numbers below `next` that do not count as lost yet, each with the number of later
    /// packets.
    gaps: Vec<(u64, usize)>,
    /// Arrival time and number of the last packet in order. The arrival times of lost packets are
    /// estimated from it.
    last: Option<(Instant, u64)>,
    /// Start of the last loss event.
    event_at: Option<Instant>,
    /// Length of the last loss event in round trips. In [`SlowStart::Eager`] the first event has a
    /// length of 2, because packets of that time left before the sender could learn of the loss (as
    /// in TCP's fast recovery, RFC 6582).
    event_rtts: u64,
    rtt: Option<Duration>,
    bytes: u64,
    since: Option<Instant>,
    /// Highest receive rate measured over a round trip or more, in bytes per second.
    best_bytes_per_s: f64,
    /// Bytes received in the current round trip that were already reported, and the start of that
    /// round trip.
    round: (u64, Option<Instant>),
    newest: Option<(Instant, Instant)>,
    report_at: Option<Instant>,
    must_report: bool,
    told_rate: f64,
}

/// Number of reports per round trip in [`SlowStart::Eager`].
const EAGER_REPORTS: u64 = 4;
/// Maximum number of recorded gaps. Beyond it the oldest missing packets count as lost at once.
const GAPS_MAX: usize = 1_024;

impl Receiver {
    /// Creates a receiver of packets of about `size` bytes, with the sender's rules for TCP's
    /// timeout and for slow start.
    pub fn new(size: u32, timeout: TcpTimeout, slow_start: SlowStart) -> Self {
        Self {
            timeout,
            eager_reports: if slow_start == SlowStart::Eager { EAGER_REPORTS } else { 1 },
            size: f64::from(size.max(1)),
            intervals: LossIntervals::default(),
            next: 0,
            gaps: Vec::new(),
            last: None,
            event_at: None,
            event_rtts: 1,
            rtt: None,
            bytes: 0,
            since: None,
            best_bytes_per_s: 0.0,
            round: (0, None),
            newest: None,
            report_at: None,
            must_report: false,
            told_rate: 0.0,
        }
    }

    /// Length of the interval before the first loss, in packets.
    #[cfg(test)]
    pub(super) fn first_interval(&self) -> f64 {
        self.intervals.oldest()
    }
    /// The loss event rate so far.
    pub fn loss_rate(&self) -> f64 {
        self.intervals.rate(self.next)
    }
    /// Time of the next report.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.report_at
    }

    /// Handles a packet that arrived at `now`. Old and repeated numbers count as bytes only.
    pub fn handle_packet(&mut self, now: Instant, arrival: &Arrival) {
        self.rtt = arrival.rtt.or(self.rtt);
        self.bytes += u64::from(arrival.bytes);
        self.newest = Some((now, arrival.sent_at));
        self.since.get_or_insert(now);
        self.round.1.get_or_insert(now);
        // Section 6.3: the first packet is reported at once. Section 6.2: so is each packet, if
        // less than one packet arrives per round trip.
        self.must_report |= self.report_at.is_none();
        if arrival.sequence < self.next {
            self.gaps.retain(|(gap, _)| *gap != arrival.sequence);
            return;
        }
        for (_, higher) in &mut self.gaps {
            *higher += 1;
        }
        let skipped = arrival.sequence - self.next;
        // Missing packets beyond the maximum belong to one loss event, which begins with the first
        // of them.
        let kept = skipped.min(GAPS_MAX as u64);
        self.gaps.extend((self.next..self.next + kept).map(|gap| (gap, 1)));
        let before = self.last.replace((now, arrival.sequence));
        self.next = arrival.sequence + 1;
        while let Some(&(gap, higher)) = self.gaps.first()
            && (higher >= LATE || self.gaps.len() > GAPS_MAX)
        {
            self.gaps.remove(0);
            self.lose(now, gap, before);
        }
    }

    /// Records the loss of packet `sequence`.
    fn lose(&mut self, now: Instant, sequence: u64, before: Option<(Instant, u64)>) {
        // Section 5.2: the lost packet would have arrived between its neighbours. The last arrival
        // before `now` is a close estimate, because a loss is detected three packets later.
        let at = before.map_or(now, |(at, _)| at);
        let rtt = self.rtt.unwrap_or(Duration::ZERO);
        if self.event_at.is_some_and(|event| at < event + rtt * self.event_rtts) {
            return;
        }
        self.event_rtts = if self.event_at.is_none() && self.eager_reports > 1 { 2 } else { 1 };
        self.event_at = Some(at);
        let (size, rtt_s) = (self.size, rtt.as_secs_f64().max(1e-9));
        let measured = self.rate_until(now, rtt).max(self.best_bytes_per_s);
        let rto_s = self.timeout.seconds(rtt_s);
        let first = || 1.0 / loss_rate_for(measured.max(size), size, rtt_s, rto_s);
        self.intervals.begin(sequence, first);
        // Section 6.2 step 3: a new loss event is reported at once.
        self.must_report |= self.loss_rate() > self.told_rate;
    }

    /// Receive rate in bytes per second since the last report, computed over at least the time
    /// `least`.
    fn rate_until(&self, now: Instant, least: Duration) -> f64 {
        let time = self.since.map_or(Duration::ZERO, |since| now.saturating_since(since)).max(least);
        if time == Duration::ZERO { 0.0 } else { self.bytes as f64 / time.as_secs_f64() }
    }

    /// The report due at `now`, if any. Reports are due once per round trip while data arrives, and
    /// at once for a new loss event.
    pub fn poll_report(&mut self, now: Instant) -> Option<Report> {
        let is_due = self.must_report || self.report_at.is_some_and(|at| at <= now);
        let (arrived_at, sent_at) = self.newest.filter(|_| is_due)?;
        self.must_report = false;
        let rtt = self.rtt.unwrap_or(Duration::ZERO);
        // Section 6.2 step 1: without new data there is no report.
        if self.bytes == 0 {
            self.report_at = None;
            return None;
        }
        let every =
            if self.loss_rate() > 0.0 { rtt } else { Duration::from_ps(rtt.as_ps() / self.eager_reports) };
        let received_bytes_per_s = self.rate_until(now, every);
        // Over less than a round trip, two packets may seem to arrive at any rate.
        let (bytes, since) = (self.round.0 + self.bytes, self.round.1.unwrap_or(now));
        let round = now.saturating_since(since);
        if rtt > Duration::ZERO && (round >= rtt || every == rtt) {
            self.best_bytes_per_s = self.best_bytes_per_s.max(bytes as f64 / round.max(rtt).as_secs_f64());
            self.round = (0, Some(now));
        } else {
            self.round = (bytes, Some(since));
        }
        (self.bytes, self.since) = (0, Some(now));
        self.told_rate = self.loss_rate();
        self.report_at = (rtt > Duration::ZERO).then(|| now + every);
        Some(Report {
            sent_at,
            delay: now.saturating_since(arrived_at),
            received_bytes_per_s,
            loss_rate: self.told_rate,
        })
    }
}
