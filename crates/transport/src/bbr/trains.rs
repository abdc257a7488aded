//! Packet trains in the start: a few packets that leave together show a long path's rate by the
//! spacing of their arrivals. The start then need not find the rate by doubling, which takes three
//! fourths of the time of 64 MiB over 1 Gbit/s and 250 ms.
//!
//! The first flight, and the first packets of each later round trip until the rate is known, leave
//! as a train at a high rate ([`Train`]). A train that arrives more slowly than it left shows the
//! path's current rate, which is at most its bottleneck's rate. A train that arrives as fast as it
//! left shows that the path carries at least that rate. Up to this sender's part of that rate, the
//! window grows eightfold per round trip instead of twofold. It grows by eight bytes per byte that
//! arrives, so the growth slows by itself on a path that carries a train but not the packets after
//! it. When a tenth of the bytes is lost, trains end, and the start continues as in the draft, from
//! the delivered bytes.
//!
//! A traffic shaper that passes some dozens of packets at once shows its link's rate, not the rate
//! of the shaper. The sender then sends eight times the first flight once, and the shaper drops
//! most of it. The draft's start also sends 2.77 times the rate of that path, for one round trip.
//!
//! Source: the estimate of rates from the dispersion of trains is from Dovrolis and others, *What
//! Do Packet Dispersion Techniques Measure?* (2001). The start by trains is from Konda and Kaur,
//! *RAPID: Shrinking the Congestion-control Timescale* (2009). Differs: the draft has no trains,
//! and RAPID sends only trains.
//!
//! Leaves out: the resulting window and pacing (`bbr`), and a first flight that is too long for its
//! path (`first_flight`). Read [`Trains`] first.

use super::Config;
use super::delivery::Sample;
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;

/// Minimum and maximum number of packets, and minimum time, from which a rate is estimated. Shorter
/// times cannot be measured exactly.
const SHOWN_PACKETS: u64 = 8;
pub(super) const SHOWN_MOST: u64 = 64;
const SHOWN_MIN: Duration = Duration::from_ms(1);
/// A train that arrives this many times slower than it was sent has passed a bottleneck.
const STRETCHED: f64 = 1.5;
/// Divisor of the congestion window that gives a train's length.
const TRAIN_PART: u64 = 4;
/// Maximum length of a train in packets.
const TRAIN_MOST: u64 = 64;
/// Number of bytes that leave per byte that arrives.
const GROWTH: u64 = 8;
/// Loss rate above which the path carries less than trains showed, if also at least `LOST_PACKETS`
/// packets were lost.
const LOST_SHARE: f64 = 0.1;
const LOST_PACKETS: u64 = 16;

/// Parameters of trains; see the module documentation.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Train {
    /// Rate at which a train leaves, in bytes per second.
    pub bytes_per_s: f64,
    /// Minimum round-trip time in which trains are used. A first flight that is too short to show a
    /// rate is not sent as a train either.
    pub rtt_min: Duration,
}

/// An acknowledgement: the time at which its last sent packet left, the time of its arrival less
/// the receiver's delay, and the number of bytes delivered by then.
#[derive(Copy, Clone, Debug)]
pub(super) struct AckSample {
    left_at: Instant,
    came_at: Instant,
    delivered: u64,
}

/// Rates that trains have shown. Inactive without a [`Train`], on a short path, and after the end
/// of the trains.
#[derive(Clone, Debug)]
pub(super) struct Trains {
    config: Option<Train>,
    /// Part of the shown rate that this sender may use, if other senders of its party use the path.
    part: f64,
    packet_bytes: u64,
    /// Number of bytes of the current train that are not sent yet.
    left: u64,
    pub(super) came: VecDeque<AckSample>,
    /// Minimum rate of the path in bytes per second.
    least: f64,
    /// Rate of the path in bytes per second, once a train has shown it.
    shown: Option<f64>,
}

impl Trains {
    /// State without any measurement.
    pub(super) fn new(config: &Config) -> Self {
        let (packet_bytes, window) = (config.packet_bytes, config.initial_window_bytes);
        let part = 1.0 / f64::from(config.senders.max(1));
        let is_far = |train: &Train| config.initial_rtt.is_some_and(|rtt| rtt >= train.rtt_min);
        let config = config.train.filter(|train| window > SHOWN_PACKETS * packet_bytes && is_far(train));
        let left = if config.is_some() { window.min(TRAIN_MOST * packet_bytes) } else { 0 };
        Self { config, part, packet_bytes, left, came: VecDeque::new(), least: 0.0, shown: None }
    }

    /// Whether trains are in use.
    pub(super) const fn is_on(&self) -> bool {
        self.config.is_some()
    }

    /// Rate at which the packets of a train leave, in bytes per second; `None` outside a train.
    pub(super) const fn leaves_at(&self) -> Option<f64> {
        match self.config {
            Some(train) if self.left > 0 => Some(train.bytes_per_s),
            _ => None,
        }
    }

    /// Records `bytes` bytes as sent.
    pub(super) const fn handle_sent(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Ends the train because no data is left to send: later packets are not part of the train.
    pub(super) const fn handle_idle(&mut self) {
        self.left = 0;
    }

    /// Begins a round trip with this window. The round trip begins with a train, until the rate is
    /// known.
    pub(super) fn handle_round(&mut self, window: u64) {
        if self.is_on() && self.shown.is_none() {
            self.left = (window / TRAIN_PART).min(TRAIN_MOST * self.packet_bytes);
        }
    }

    /// Handles an acknowledgement, after which `delivered` bytes are delivered in total.
    pub(super) fn handle_ack(&mut self, sample: &Sample, delivered: u64) {
        let (true, Some(newest), Some(rtt)) = (self.is_on(), sample.newest, sample.rtt) else { return };
        if sample.newly_delivered == 0 {
            return;
        }
        let now = AckSample { left_at: newest.at, came_at: newest.at + rtt, delivered };
        let since = |old: &AckSample| now.delivered.saturating_sub(old.delivered);
        while self.came.get(1).is_some_and(|old| since(old) >= SHOWN_MOST * self.packet_bytes) {
            self.came.pop_front();
        }
        let mut shown = None;
        for old in self.came.iter().take_while(|old| since(old) >= SHOWN_PACKETS * self.packet_bytes) {
            let took = now.came_at.saturating_since(old.came_at);
            let leaving = now.left_at.saturating_since(old.left_at);
            let rate = since(old) as f64 / took.max(SHOWN_MIN).as_secs_f64();
            if took >= SHOWN_MIN && took.as_secs_f64() > STRETCHED * leaving.as_secs_f64() {
                // The longest measured interval is the best measurement.
                shown = shown.or(Some(rate));
            } else {
                self.least = self.least.max(rate);
            }
        }
        self.shown = shown.or(self.shown);
        self.came.push_back(now);
    }

    /// Rate at which this sender may continue, in bytes per second: its part of the shown rate.
    /// `None` if no rate was shown.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        let shown = self.shown.unwrap_or(self.least);
        (self.is_on() && shown > 0.0).then_some(self.part * shown)
    }

    /// Window after the delivery of `newly_delivered` bytes, at most `most`.
    pub(super) fn grown(window: u64, newly_delivered: u64, most: u64) -> u64 {
        (window + (GROWTH - 1) * newly_delivered).min(most).max(window)
    }

    /// Ends the trains after high losses, or if the path is shorter than estimated. Returns true if
    /// the trains ended in this call.
    pub(super) fn ends(&mut self, lost: u64, delivered: u64, rtt: Option<Duration>) -> bool {
        let Some(train) = self.config else { return false };
        let is_too_much = lost as f64 > LOST_SHARE * (lost + delivered) as f64;
        let is_near = rtt.is_some_and(|rtt| rtt < train.rtt_min);
        let ends = is_near || (is_too_much && lost >= LOST_PACKETS * self.packet_bytes);
        if ends {
            self.end();
        }
        ends
    }

    /// Ends the trains because the start has ended.
    pub(super) fn end(&mut self) {
        (self.config, self.left, self.came) = (None, 0, VecDeque::new());
    }
}
