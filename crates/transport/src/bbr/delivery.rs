//! Measurements: the delivery rate (section 4.1), round trips counted by packets (5.5.1), the
//! minimum round-trip time (5.5.7), and the aggregation of acknowledgements (5.5.9).
//!
//! Leaves out: conclusions from the measurements (`phases`, `congestion`).

use anabranch_units::{Duration, Instant};

/// Time for which a minimum round-trip time is valid (MinRTTFilterLen).
const MIN_RTT_FOR: Duration = Duration::from_secs(10);
/// Age of the minimum round-trip time at which it is measured again (ProbeRTTInterval).
const PROBE_RTT_EVERY: Duration = Duration::from_secs(5);
/// Divisor of the minimum round-trip time. A round trip that exceeds the minimum by at most this
/// part confirms the minimum.
const CONFIRMED_PART: u64 = 32;
/// Number of round trips over which the maximum aggregation (ExtraAckedFilterLen), and the first
/// version's maximum rate, are kept.
pub(super) const MAX_ROUNDS: u64 = 10;

/// Record of a sent packet, with the sender's state when the packet left (section 4.1.2.1.2,
/// per-packet state).
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct SendRecord {
    /// Time at which the packet left.
    pub at: Instant,
    /// Number of the packet among all packets sent.
    number: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Bytes in flight, this packet included (P.tx_in_flight).
    pub(super) inflight: u64,
    /// Bytes lost before the packet left.
    pub(super) lost: u64,
    pub(super) is_app_limited: bool,
    /// Whether an external rate limited the sender, and not a lack of data.
    is_held: bool,
    pub(super) pressure: Pressure,
}

/// Sending rate relative to the arriving rate at the time when a packet left.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Pressure {
    /// The sending rate was lower.
    Below,
    /// The rates were equal, or both were growing.
    #[default]
    Even,
    /// The sending rate was higher.
    Above,
}

/// Measurement by one acknowledgement (section 4.1.2.1.3, RS).
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Delivery rate in bytes per second; 0 if unknown.
    pub(super) rate: f64,
    pub(super) rtt: Option<Duration>,
    /// Bytes delivered since the newest packet left.
    pub(super) delivered: u64,
    /// Bytes delivered before the newest packet left.
    pub(super) prior_delivered: u64,
    /// Bytes delivered by this acknowledgement.
    pub(super) newly_delivered: u64,
    pub(super) is_app_limited: bool,
    pub(super) is_held: bool,
    /// Record of the last sent packet among those acknowledged; `None` if nothing was delivered.
    pub(super) newest: Option<SendRecord>,
}

/// State of the delivery measurement.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    sent: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Value of `delivered` at which the last packet of an application-limited period has arrived.
    app_limited_until: Option<u64>,
    /// Whether an external rate limited that period, and not a lack of data.
    is_held: bool,
    rtt_least: Option<Duration>,
    newest: Option<SendRecord>,
    newly_delivered: u64,
}

impl Delivery {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            sent: 0,
            delivered: 0,
            delivered_at: now,
            first_sent_at: now,
            app_limited_until: None,
            is_held: false,
            rtt_least: None,
            newest: None,
            newly_delivered: 0,
        }
    }

    /// Bytes delivered so far.
    pub(super) const fn delivered(&self) -> u64 {
        self.delivered
    }
    pub(super) const fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }
    /// Whether an external rate limits the sender at present.
    pub(super) const fn is_held(&self) -> bool {
        self.app_limited_until.is_some() && self.is_held
    }
    pub(super) fn mark_app_limited(&mut self, inflight: u64, is_held: bool) {
        self.app_limited_until = Some(self.delivered + inflight);
        self.is_held = is_held;
    }
    /// Handles a packet that leaves with no other packet in flight.
    pub(super) const fn handle_idle(&mut self, now: Instant) {
        (self.first_sent_at, self.delivered_at) = (now, now);
    }

    pub(super) const fn sent(
        &mut self,
        now: Instant,
        bytes: u64,
        inflight: u64,
        lost: u64,
        pressure: Pressure,
    ) -> SendRecord {
        self.sent += bytes;
        SendRecord {
            at: now,
            number: self.sent,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            inflight,
            lost,
            is_app_limited: self.app_limited_until.is_some(),
            is_held: self.is_held(),
            pressure,
        }
    }

    pub(super) const fn handle_late(&mut self, now: Instant, bytes: u64) {
        self.delivered += bytes;
        self.newly_delivered += bytes;
        self.delivered_at = now;
    }

    pub(super) fn handle_delivered(&mut self, now: Instant, bytes: u64, sent: &SendRecord) {
        self.handle_late(now, bytes);
        if self.newest.is_none_or(|newest| (newest.at, newest.number) < (sent.at, sent.number)) {
            self.newest = Some(*sent);
        }
    }

    /// Takes the measurement of one acknowledgement.
    ///
    /// Source: section 4.1.2.3, GenerateRateSample.
    pub(super) fn take_sample(&mut self, rtt: Option<Duration>) -> Sample {
        if self.app_limited_until.is_some_and(|until| self.delivered > until) {
            self.app_limited_until = None;
        }
        let newly_delivered = std::mem::take(&mut self.newly_delivered);
        let Some(newest) = self.newest.take() else {
            return Sample { rtt, newly_delivered, ..Sample::default() };
        };
        self.rtt_least = [self.rtt_least, rtt].into_iter().flatten().min();
        let send_elapsed = newest.at.saturating_since(newest.first_sent_at);
        let ack_elapsed = self.delivered_at.saturating_since(newest.delivered_at);
        if newest.at >= self.first_sent_at {
            self.first_sent_at = newest.at;
        }
        let interval = send_elapsed.max(ack_elapsed);
        let delivered = self.delivered - newest.delivered;
        let is_reliable = interval > Duration::ZERO && self.rtt_least.is_none_or(|least| interval >= least);
        Sample {
            rate: if is_reliable { delivered as f64 / interval.as_secs_f64() } else { 0.0 },
            rtt,
            delivered,
            prior_delivered: newest.delivered,
            newly_delivered,
            is_app_limited: newest.is_app_limited,
            is_held: newest.is_held,
            newest: Some(newest),
        }
    }
}

/// Round trips counted by packets. A round trip ends when a packet arrives that left after its
/// beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    pub(super) count: u64,
    /// Whether the last acknowledgement began a round trip.
    pub(super) start: bool,
    next_delivered: u64,
    /// Whether the window limited the sender in this round trip.
    pub(super) is_window_limited: bool,
    /// Whether the window limited the sender in the previous round trip.
    was_window_limited: bool,
}

impl Rounds {
    pub(super) const fn begin(&mut self, delivered: u64) {
        self.next_delivered = delivered;
    }
    /// C.is_cwnd_limited, for this round trip or the previous one.
    pub(super) const fn has_filled_window(&self) -> bool {
        self.is_window_limited || self.was_window_limited
    }
    pub(super) fn update(&mut self, sample: &Sample, delivered: u64) -> bool {
        self.start = sample.newest.is_some() && sample.prior_delivered >= self.next_delivered;
        if self.start {
            self.begin(delivered);
            self.count += 1;
            self.was_window_limited = std::mem::take(&mut self.is_window_limited);
        }
        self.start
    }
}

/// Maximum of the values recorded in the last [`MAX_ROUNDS`] round trips.
#[derive(Clone, Debug)]
pub(super) struct RoundMax<T>([(u64, T); MAX_ROUNDS as usize]);

impl<T: Copy + Default> Default for RoundMax<T> {
    fn default() -> Self {
        Self([(0, T::default()); MAX_ROUNDS as usize])
    }
}

impl<T: Copy + Default + PartialOrd> RoundMax<T> {
    /// Records a value for round trip `round`.
    pub(super) fn note(&mut self, round: u64, value: T) {
        let slot = &mut self.0[(round % MAX_ROUNDS) as usize];
        if slot.0 != round || slot.1 < value {
            *slot = (round, value);
        }
    }
    /// Maximum of the values recorded since round trip `oldest` began.
    pub(super) fn most_since(&self, oldest: u64) -> T {
        let noted = self.0.iter().filter(|(of, _)| *of >= oldest).map(|(_, value)| *value);
        noted.fold(T::default(), |most, value| if value > most { value } else { most })
    }
}

/// Maximum number of bytes acknowledged together in excess of the path's rate. Windows must be
/// larger by this number.
#[derive(Clone, Debug)]
pub(super) struct Aggregation {
    since: Instant,
    delivered: u64,
    most: RoundMax<u64>,
    extra: u64,
}

impl Aggregation {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, delivered: 0, most: RoundMax::default(), extra: 0 }
    }
    /// Current excess in bytes (BBR.extra_acked).
    pub(super) const fn extra(&self) -> u64 {
        self.extra
    }
    pub(super) const fn restart(&mut self, now: Instant) {
        (self.since, self.delivered) = (now, 0);
    }

    /// Source: section 5.5.9, UpdateACKAggregation.
    pub(super) fn update(
        &mut self,
        now: Instant,
        sample: &Sample,
        rate: f64,
        window: u64,
        round: u64,
        is_full: bool,
    ) {
        let mut expected = rate * now.saturating_since(self.since).as_secs_f64();
        if self.delivered as f64 <= expected {
            self.restart(now);
            expected = 0.0;
        }
        self.delivered += sample.newly_delivered;
        let extra = ((self.delivered as f64 - expected).max(0.0) as u64).min(window);
        self.most.note(round, extra);
        // In Startup only the maximum of one round trip is kept.
        let oldest = round.saturating_sub(if is_full { MAX_ROUNDS - 1 } else { 0 });
        self.extra = self.most.most_since(oldest);
    }
}

/// Minimum round-trip time, and whether it must be measured again.
#[derive(Clone, Debug)]
pub(super) struct MinRtt {
    least: Option<Duration>,
    at: Instant,
    /// Minimum since the last probe for the round-trip time.
    recent: Option<Duration>,
    recent_at: Instant,
    pub(super) is_expired: bool,
}

impl MinRtt {
    pub(super) const fn new(now: Instant, rtt: Option<Duration>) -> Self {
        Self { least: rtt, at: now, recent: None, recent_at: now, is_expired: false }
    }
    pub(super) const fn least(&self) -> Option<Duration> {
        self.least
    }
    /// Records the end of a probe for the round-trip time.
    pub(super) const fn note_probed(&mut self, now: Instant) {
        self.recent_at = now;
    }

    /// Source: section 5.3.4.3, UpdateMinRTT.
    ///
    /// Differs: a round trip hardly longer than the minimum confirms the minimum, so a flow that
    /// drains its queue now and then need not stop to measure. The draft requires a shorter round
    /// trip. Linux also accepts an equal one.
    pub(super) fn update(&mut self, now: Instant, rtt: Option<Duration>) {
        self.is_expired = now > self.recent_at + PROBE_RTT_EVERY;
        if let Some(rtt) = rtt {
            let confirmed = |least: Duration| least + Duration::from_ps(least.as_ps() / CONFIRMED_PART);
            if self.is_expired || self.recent.is_none_or(|recent| rtt < recent) {
                (self.recent, self.recent_at) = (Some(rtt), now);
            } else if self.least.is_some_and(|least| rtt <= confirmed(least)) {
                (self.recent_at, self.at) = (now, now);
            }
        }
        let Some(recent) = self.recent else { return };
        if self.least.is_none_or(|least| recent < least) || now > self.at + MIN_RTT_FOR {
            (self.least, self.at) = (Some(recent), self.recent_at);
        }
    }
}
