//! Trains in the start: what a far path carries, shown by how fast a few packets come that left together, so that the start need not
//! look for it by doubling, which takes three fourths of the time of 64 MiB over 1 Gbit/s and 250 ms.
//!
//! The first flight, and the head of each round trip after it until the rate shows, leave as a train: at a high rate ([`Train`]). A train
//! that comes more slowly than it left shows what the path carries for now, which is its bottleneck's rate or less; one that comes as fast
//! shows that the path carries as much at the least. Up to this sender's part of that the window grows eightfold in a round trip, and not
//! twofold: by eight bytes for each that comes, so that a path that carries a train and not what follows it slows the growth itself. Where
//! a tenth is lost it ends, and the start goes on as the draft has it, from what has arrived.
//!
//! A shaper that lets some dozens of packets pass at once shows its link's rate and not its own. It gets eight times the first flight then,
//! once, and drops most of it; the start of the draft sends the same path 2.77 times its rate, for a round trip, too.
//!
//! Source: rates by the dispersion of trains are of Dovrolis and others, *What Do Packet Dispersion Techniques Measure?* (2001); to start
//! by them, of Konda and Kaur, *RAPID: Shrinking the Congestion-control Timescale* (2009). Differs: the draft has no such thing, and
//! RAPID sends nothing but trains.
//!
//! Leaves out: which window and pacing follow (`bbr`), and a first flight that is too long for its path (`first_flight`). Read [`Trains`] first.

use super::Config;
use super::delivery::Sample;
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;

/// So many packets show a rate, and more show it better; in less than such a time nothing is measured exactly.
const SHOWN_PACKETS: u64 = 8;
pub(super) const SHOWN_MOST: u64 = 64;
const SHOWN_MIN: Duration = Duration::from_ms(1);
/// What takes so many times as long to come as it took to leave has met its bottleneck.
const STRETCHED: f64 = 1.5;
/// A train is such a part of the window, and so many packets at the most.
const TRAIN_PART: u64 = 4;
const TRAIN_MOST: u64 = 64;
/// How many bytes leave for each that has come.
const GROWTH: u64 = 8;
/// Where so much of all was lost, and so many packets, the path carries less than it showed.
const LOST_SHARE: f64 = 0.1;
const LOST_PACKETS: u64 = 16;

/// How the start looks for what a path carries: see the module's head.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Train {
    /// Bytes a second at which a train leaves.
    pub bytes_per_s: f64,
    /// Paths of shorter round trips begin without, as do those with first flights that are too short to show anything.
    pub rtt_min: Duration,
}

/// An acknowledgement: when the packet left that was sent last of those that had come, when that was heard of or would have been without the
/// time for which the receiver waited, and bytes that had come by then.
#[derive(Copy, Clone, Debug)]
pub(super) struct Came {
    left_at: Instant,
    came_at: Instant,
    delivered: u64,
}

/// What trains have shown. It does nothing where there is no [`Train`] or no far path, and once it has ended.
#[derive(Clone, Debug)]
pub(super) struct Trains {
    config: Option<Train>,
    /// This sender's part of what shows, where others of its party send over the path.
    part: f64,
    packet_bytes: u64,
    /// Bytes of the present train that have not left.
    left: u64,
    pub(super) came: VecDeque<Came>,
    /// What the path carries at the least, and what it carries once that has shown, in bytes a second.
    least: f64,
    shown: Option<f64>,
}

impl Trains {
    /// A path of which nothing is known but what `config` says.
    pub(super) fn new(config: &Config) -> Self {
        let (packet_bytes, window) = (config.packet_bytes, config.initial_window_bytes);
        let part = 1.0 / f64::from(config.senders.max(1));
        let is_far = |train: &Train| config.initial_rtt.is_some_and(|rtt| rtt >= train.rtt_min);
        let config = config.train.filter(|train| window > SHOWN_PACKETS * packet_bytes && is_far(train));
        let left = if config.is_some() { window.min(TRAIN_MOST * packet_bytes) } else { 0 };
        Self { config, part, packet_bytes, left, came: VecDeque::new(), least: 0.0, shown: None }
    }

    /// Whether the rate is looked for so.
    pub(super) const fn is_on(&self) -> bool {
        self.config.is_some()
    }

    /// At which rate what leaves now is to leave, in bytes a second, if it is of a train.
    pub(super) const fn leaves_at(&self) -> Option<f64> {
        match self.config {
            Some(train) if self.left > 0 => Some(train.bytes_per_s),
            _ => None,
        }
    }

    /// Bytes leave.
    pub(super) const fn handle_sent(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// There is nothing to be sent: what leaves later is no train.
    pub(super) const fn handle_idle(&mut self) {
        self.left = 0;
    }

    /// A round trip begins with such a window: by a train, as long as no rate has shown.
    pub(super) fn handle_round(&mut self, window: u64) {
        if self.is_on() && self.shown.is_none() {
            self.left = (window / TRAIN_PART).min(TRAIN_MOST * self.packet_bytes);
        }
    }

    /// Packets have come, `delivered` bytes so far.
    pub(super) fn handle_ack(&mut self, sample: &Sample, delivered: u64) {
        let (true, Some(newest), Some(rtt)) = (self.is_on(), sample.newest, sample.rtt) else { return };
        if sample.newly_delivered == 0 {
            return;
        }
        let now = Came { left_at: newest.at, came_at: newest.at + rtt, delivered };
        let since = |old: &Came| now.delivered.saturating_sub(old.delivered);
        while self.came.get(1).is_some_and(|old| since(old) >= SHOWN_MOST * self.packet_bytes) {
            self.came.pop_front();
        }
        let mut shown = None;
        for old in self.came.iter().take_while(|old| since(old) >= SHOWN_PACKETS * self.packet_bytes) {
            let took = now.came_at.saturating_since(old.came_at);
            let leaving = now.left_at.saturating_since(old.left_at);
            let rate = since(old) as f64 / took.max(SHOWN_MIN).as_secs_f64();
            if took >= SHOWN_MIN && took.as_secs_f64() > STRETCHED * leaving.as_secs_f64() {
                // The longest stretch shows it best.
                shown = shown.or(Some(rate));
            } else {
                self.least = self.least.max(rate);
            }
        }
        self.shown = shown.or(self.shown);
        self.came.push_back(now);
    }

    /// Bytes a second that this sender may go on with: its part of what has shown, if something has.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        let shown = self.shown.unwrap_or(self.least);
        (self.is_on() && shown > 0.0).then_some(self.part * shown)
    }

    /// The window of `window` bytes that `newly_delivered` bytes make where so many fit.
    pub(super) fn grown(window: u64, newly_delivered: u64, most: u64) -> u64 {
        (window + (GROWTH - 1) * newly_delivered).min(most).max(window)
    }

    /// Ends where too much was lost of what was sent so far, or where the path is not as far as it seemed. True where it just has.
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

    /// The start is over.
    pub(super) fn end(&mut self) {
        (self.config, self.left, self.came) = (None, 0, VecDeque::new());
    }
}
