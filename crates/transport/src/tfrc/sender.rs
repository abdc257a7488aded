//! The sending half of TFRC: the rate that follows from the receiver's reports.
//!
//! Source: RFC 5348 section 4.

use super::{Report, SlowStart, TcpTimeout, throughput_bytes_per_s};
use anabranch_units::{Duration, Instant};

/// Maximum interval between two packets in the RFC, in seconds (section 3.1: t_mbi).
pub const GAP_MAX_S: f64 = 64.0;
/// Weight of the old value in the moving averages of the round trip and of its square root
/// (sections 4.3 and 4.5).
const KEPT: f64 = 0.9;

/// Maximum rate in [`SlowStart::Eager`] as a multiple of the receive rate, while a queue builds up.
const QUEUED_GROWTH: f64 = 1.0 + 1.0 / 16.0;

/// Settings of a sender.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct SenderConfig {
    /// Packet length in bytes (s).
    pub size: u32,
    /// TCP's timeout in the throughput equation; see [`TcpTimeout`].
    pub timeout: TcpTimeout,
    /// Initial rate in bytes per second; 0 means one packet per second, as in section 4.2.
    pub initial_bytes_per_s: f64,
    /// Whether the rate falls when round trips grow longer (section 4.5).
    pub reduces_oscillation: bool,
    /// Maximum interval between two packets in seconds: [`GAP_MAX_S`] in the RFC.
    pub gap_max_s: f64,
    /// Minimum time of the no-feedback timer in seconds: 0 in the RFC, whose receivers report once
    /// per round trip, however short the round trip.
    pub timer_min_s: f64,
    /// Growth of the rate until the first loss.
    pub slow_start: SlowStart,
}

/// The sender of one stream.
#[derive(Clone, Debug)]
pub struct Sender {
    config: SenderConfig,
    size: f64,
    /// Allowed rate (X) in bytes per second.
    rate_bytes_per_s: f64,
    rtt_s: Option<f64>,
    /// Minimum round-trip time.
    rtt_min_s: f64,
    /// Last round-trip time.
    rtt_last_s: f64,
    root_mean: f64,
    root_last: f64,
    loss_rate: f64,
    /// Rate that the equation allows (X_Bps), once a loss has occurred.
    equation_bytes_per_s: f64,
    /// Recent receive rates with their times (X_recv_set); infinite before the first report.
    received: Vec<(Instant, f64)>,
    doubled_at: Option<Instant>,
    timer: Instant,
}

impl Sender {
    /// Creates a sender that begins at `now`.
    pub fn new(now: Instant, config: SenderConfig) -> Self {
        let size = f64::from(config.size.max(1));
        let rate_bytes_per_s =
            if config.initial_bytes_per_s > 0.0 { config.initial_bytes_per_s } else { size };
        Self {
            config,
            size,
            rate_bytes_per_s,
            rtt_s: None,
            rtt_min_s: f64::INFINITY,
            rtt_last_s: 0.0,
            root_mean: 0.0,
            root_last: 0.0,
            loss_rate: 0.0,
            equation_bytes_per_s: f64::INFINITY,
            received: vec![(now, f64::INFINITY)],
            doubled_at: None,
            // Section 4.2: the first timer expires after two seconds.
            timer: now + Duration::from_secs(2),
        }
    }

    /// Current rate in bytes per second.
    pub fn rate_bytes_per_s(&self) -> f64 {
        if !self.config.reduces_oscillation || self.root_last <= 0.0 {
            return self.rate_bytes_per_s;
        }
        (self.rate_bytes_per_s * self.root_mean / self.root_last).max(self.least_bytes_per_s())
    }
    /// Interval between two packets.
    pub fn gap(&self) -> Duration {
        Duration::from_ps((self.size / self.rate_bytes_per_s() * 1e12) as u64)
    }
    /// Smoothed round-trip time; `None` before the first report.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt_s.map(|rtt| Duration::from_ps((rtt * 1e12) as u64))
    }
    /// Loss event rate of the last report.
    pub const fn loss_rate(&self) -> f64 {
        self.loss_rate
    }
    /// Expiration of the no-feedback timer.
    pub const fn timer(&self) -> Instant {
        self.timer
    }

    fn least_bytes_per_s(&self) -> f64 {
        self.size / self.config.gap_max_s
    }
    /// TCP's rate in its first round trip (section 4.2: W_init / R; RFC 3390), in bytes per second.
    fn initial_bytes_per_s(&self, rtt_s: f64) -> f64 {
        (4.0 * self.size).min((2.0 * self.size).max(4_380.0)) / rtt_s
    }
    fn received_max(&self) -> f64 {
        self.received.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    /// Handles a report that arrived at `now`. `is_limited` is whether the sender has sent less
    /// than allowed since the last report.
    ///
    /// Source: section 4.3.
    pub fn handle_report(&mut self, now: Instant, report: &Report, is_limited: bool) {
        // The peer may report any delay, so the sample has a minimum.
        let sample = now.saturating_since(report.sent_at).as_ps().saturating_sub(report.delay.as_ps());
        let sample = Duration::from_ps(sample).as_secs_f64().max(1e-9);
        let is_first = self.rtt_s.is_none();
        let rtt_s = self.rtt_s.map_or(sample, |rtt| KEPT * rtt + (1.0 - KEPT) * sample);
        self.rtt_s = Some(rtt_s);
        (self.rtt_last_s, self.rtt_min_s) = (sample, self.rtt_min_s.min(sample));
        self.root_last = sample.sqrt();
        self.root_mean =
            if is_first { self.root_last } else { KEPT * self.root_mean + (1.0 - KEPT) * self.root_last };
        let has_new_loss = report.loss_rate > self.loss_rate;
        self.loss_rate = report.loss_rate;
        let limit = if is_limited && has_new_loss {
            self.received.iter_mut().for_each(|(_, rate)| *rate /= 2.0);
            self.keep_only_best(now, 0.85 * report.received_bytes_per_s);
            self.received_max()
        } else if is_limited {
            self.keep_only_best(now, report.received_bytes_per_s);
            2.0 * self.received_max()
        } else {
            self.received.push((now, report.received_bytes_per_s));
            let old = Duration::from_ps((2.0 * rtt_s * 1e12) as u64);
            self.received.retain(|(at, rate)| rate.is_finite() && *at + old >= now);
            2.0 * self.received_max()
        };
        if is_first {
            // Section 4.2: the first report gives the round trip, and therefore the rate of TCP's
            // first window.
            self.rate_bytes_per_s = self.rate_bytes_per_s.max(self.initial_bytes_per_s(rtt_s));
            self.doubled_at = Some(now);
        }
        self.set_rate(now, limit, is_first);
        self.set_timer(now);
    }

    fn keep_only_best(&mut self, now: Instant, rate: f64) {
        let best =
            self.received.iter().map(|(_, rate)| *rate).filter(|rate| rate.is_finite()).fold(rate, f64::max);
        self.received = vec![(now, best)];
    }

    /// Source: section 4.3, step 4.
    fn set_rate(&mut self, now: Instant, limit: f64, is_first: bool) {
        let rtt_s = self.rtt_s.unwrap_or(1.0);
        if self.loss_rate > 0.0 {
            let rto_s = self.config.timeout.seconds(rtt_s);
            self.equation_bytes_per_s = throughput_bytes_per_s(self.size, rtt_s, rto_s, self.loss_rate);
            self.rate_bytes_per_s = self.equation_bytes_per_s.min(limit).max(self.least_bytes_per_s());
        } else if self.config.slow_start == SlowStart::Eager {
            if !is_first {
                let limit = if self.is_queued() { limit / 2.0 * QUEUED_GROWTH } else { limit };
                self.rate_bytes_per_s =
                    limit.min(2.0 * self.rate_bytes_per_s).max(self.initial_bytes_per_s(rtt_s));
            }
        } else if !is_first
            && self.doubled_at.is_none_or(|at| now.saturating_since(at).as_secs_f64() >= rtt_s)
        {
            self.rate_bytes_per_s =
                (2.0 * self.rate_bytes_per_s).min(limit).max(self.initial_bytes_per_s(rtt_s));
            self.doubled_at = Some(now);
        }
    }

    /// Whether round trips have grown so much that a queue is building up (RFC 9406 section 4.2).
    fn is_queued(&self) -> bool {
        self.rtt_last_s > self.rtt_min_s + (self.rtt_min_s / 8.0).clamp(0.004, 0.016)
    }

    fn set_timer(&mut self, now: Instant) {
        let rtt_s = self.rtt_s.unwrap_or(2.0 / 4.0);
        let seconds = (4.0 * rtt_s).max(2.0 * self.size / self.rate_bytes_per_s).max(self.config.timer_min_s);
        self.timer = now + Duration::from_ps((seconds * 1e12) as u64);
    }

    /// Handles the no-feedback timer. `was_idle` is whether no packet was sent since the timer was
    /// set.
    ///
    /// Source: section 4.4.
    pub fn handle_timeout(&mut self, now: Instant, was_idle: bool) {
        let least = self.least_bytes_per_s();
        let received = self.received_max();
        let recover = self.rtt_s.map(|rtt| self.initial_bytes_per_s(rtt));
        let keeps = was_idle
            && recover.is_some_and(|recover| {
                if self.loss_rate > 0.0 { received < recover } else { self.rate_bytes_per_s < 2.0 * recover }
            });
        if keeps {
            // If the rate of an idle sender is low, the rate is not reduced further.
        } else if recover.is_none() || self.loss_rate <= 0.0 {
            self.rate_bytes_per_s = (self.rate_bytes_per_s / 2.0).max(least);
        } else {
            let limit = if self.equation_bytes_per_s > 2.0 * received {
                received
            } else {
                self.equation_bytes_per_s / 2.0
            };
            let limit = limit.max(least);
            self.received = vec![(now, limit / 2.0)];
            self.set_rate(now, limit, false);
        }
        self.set_timer(now);
    }
}
