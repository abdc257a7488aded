//! Estimator of the capacity of a link from a parent, based on transfers.
//!
//! The receiving end observes transfers of objects that the parent holds completely. Their data is
//! ready, so only the path limits them. A transfer below [`SLOW_PERCENT`] of its stream's bitrate
//! is slow. The link has limited a window in which a transfer was slow nearly all the time, so the
//! bytes received in this window show the link's rate. The estimate is the highest rate of the
//! limited windows in the last 3 s, at most the declared capacity. A link that its streams do not
//! fill has no slow transfers, so its estimate does not fall. The estimate rises after any faster
//! window, and by trials, because a link that is not full cannot show that its capacity has
//! returned.
//!
//! Source: BBR (Cardwell et al., 2016) uses a maximum filter over windows that the application does
//! not limit; the thesis leaves the estimate out (§4.4.1). An object that the source holds
//! completely can still be arriving at the parent. So the parent reports whether a link to it
//! limits its own transfers, and windows with this report are not used. Read
//! [`CapacityEstimator`].

use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of transfers of one parent that are observed. Of further transfers, only the
/// bytes are counted.
pub const TRANSFERS_MAX: usize = 4_096;
/// Rate of a transfer, in percent of its stream's bitrate, below which the transfer is slow. The
/// margin above 100 % is for playback, which needs the whole bitrate.
pub const SLOW_PERCENT: u64 = 105;
/// Age up to which a transfer never counts as slow: several round trips.
const GRACE: Duration = Duration::from_ms(150);
/// Interval of the checks of all transfers.
const TICK: Duration = Duration::from_ms(100);
/// Delay of a check above which its window is discarded.
const HELD_UP: Duration = Duration::from_ms(300);
/// Number of checks in a window.
const WINDOW_TICKS: u32 = 10;
/// Number of checks with a slow transfer from which a window counts as limited by the link.
const SLOW_TICKS: u32 = 8;
/// Time after a slow transfer during which the link counts as limiting.
const LIMITING_MEMORY: Duration = Duration::from_secs(1);
/// Time for which the rate of a limited window is used.
const MEMORY: Duration = Duration::from_secs(3);
/// Time without a limited window after which a higher estimate is tried. Doubled after each failed
/// trial.
const TRIAL_AFTER: Duration = Duration::from_secs(10);
/// Longest time before a trial: four doublings.
const TRIAL_AFTER_MAX: Duration = Duration::from_ps(16 * TRIAL_AFTER.as_ps());
/// Interval between two steps of a trial. Each step raises the estimate by a quarter.
const TRIAL_STEP: Duration = Duration::from_secs(5);
/// Divisor of the declared capacity for the lowest estimate that a trial sets.
const TRIAL_LEAST: u64 = 16;

/// A transfer whose data is ready at the parent.
#[derive(Copy, Clone, Debug)]
struct Transfer {
    bitrate: BitRate,
    since: Instant,
    bytes: u64,
}

impl Transfer {
    fn is_slow(&self, now: Instant) -> bool {
        let time = now.saturating_since(self.since);
        let rate = BitRate::average(ByteCount::new(self.bytes), time);
        let needed = self.bitrate.as_bps().saturating_mul(SLOW_PERCENT) / 100;
        time > GRACE && rate.is_some_and(|rate| rate.as_bps() < needed)
    }
}

/// The current measurement window of a link.
#[derive(Copy, Clone, Debug, Default)]
struct Window {
    /// Start of the measurement window. `None` before the first check.
    since: Option<Instant>,
    bytes: u64,
    ticks: u32,
    slow_ticks: u32,
    /// Lowest bitrate of the slow transfers that have ended since the last check.
    slow_end: Option<BitRate>,
    /// Highest bitrate of the other transfers that have ended since the last check.
    fast_end: Option<BitRate>,
    /// Whether a link to the parent limited the parent at any check in the window.
    is_parents: bool,
}

/// The capacity estimator of one link. Contract: a driver reports transfers and calls
/// [`CapacityEstimator::handle_timeout`] when [`CapacityEstimator::poll_timeout`] is due.
#[derive(Clone, Debug)]
pub struct CapacityEstimator {
    declared: BitRate,
    transfers: BTreeMap<u64, Transfer>,
    window: Window,
    /// The last observation of a slow transfer: its time, and the transfer's bitrate. `None` after
    /// a check at which no transfer counted as slow.
    slow: Option<(Instant, BitRate)>,
    /// Time of the last check with a slow transfer.
    slow_at: Option<Instant>,
    /// Whether a link to the parent limits the parent.
    is_parent_limited: bool,
    /// End and rate of recent windows that the link limited, the oldest first.
    limited: VecDeque<(Instant, BitRate)>,
    estimate: Option<BitRate>,
    /// Time of the next check; `None` without transfers.
    tick_at: Option<Instant>,
    /// Time of the next trial of a higher estimate; `None` at the declared capacity.
    trial_at: Option<Instant>,
    trial_after: Duration,
    is_tried: bool,
}

impl CapacityEstimator {
    /// Creates the estimator of a link with this declared capacity, without a measurement.
    pub const fn new(declared: BitRate) -> Self {
        Self {
            declared,
            transfers: BTreeMap::new(),
            window: Window {
                since: None,
                bytes: 0,
                ticks: 0,
                slow_ticks: 0,
                slow_end: None,
                fast_end: None,
                is_parents: false,
            },
            slow: None,
            slow_at: None,
            is_parent_limited: false,
            limited: VecDeque::new(),
            estimate: None,
            tick_at: None,
            trial_at: None,
            trial_after: TRIAL_AFTER,
            is_tried: false,
        }
    }

    /// The estimate, at most the declared capacity. `None` before the link first limited a window.
    pub const fn estimate(&self) -> Option<BitRate> {
        self.estimate
    }

    /// Whether the link has limited transfers within the last second. This is true before a window
    /// ends, so that nodes below are notified early.
    pub fn is_limiting(&self, now: Instant) -> bool {
        self.slow_at.is_some_and(|at| now <= at + LIMITING_MEMORY)
    }

    /// Records the parent's report whether a link to the parent limits its transfers.
    pub const fn handle_parent_limited(&mut self, is_limited: bool) {
        self.is_parent_limited = is_limited;
    }

    /// Sets another declared capacity. Measurements are discarded, because they may be of another
    /// link.
    pub fn redeclare(&mut self, declared: BitRate) {
        if declared != self.declared {
            *self = Self {
                transfers: std::mem::take(&mut self.transfers),
                tick_at: self.tick_at,
                is_parent_limited: self.is_parent_limited,
                ..Self::new(declared)
            };
        }
    }

    /// Records the start of a transfer from a stream of `bitrate`. The parent holds the whole
    /// object.
    pub fn handle_start(&mut self, now: Instant, transfer: u64, bitrate: BitRate) {
        if self.transfers.len() < TRANSFERS_MAX {
            self.transfers.insert(transfer, Transfer { bitrate, since: now, bytes: 0 });
            self.tick_at.get_or_insert(now + TICK);
        }
    }

    /// Records bytes that arrive from the parent, whether or not their transfer is observed.
    pub fn handle_bytes(&mut self, transfer: u64, size: ByteCount) {
        self.window.bytes = self.window.bytes.saturating_add(size.as_u64());
        if let Some(transfer) = self.transfers.get_mut(&transfer) {
            transfer.bytes = transfer.bytes.saturating_add(size.as_u64());
        }
    }

    /// Records the end of a transfer, complete or aborted.
    pub fn handle_end(&mut self, now: Instant, transfer: u64) {
        let Some(ended) = self.transfers.remove(&transfer) else { return };
        let Window { slow_end, fast_end, .. } = &mut self.window;
        if ended.is_slow(now) {
            *slow_end = Some(slow_end.map_or(ended.bitrate, |before| before.min(ended.bitrate)));
        } else {
            *fast_end = (*fast_end).max(Some(ended.bitrate));
        }
    }

    /// When [`CapacityEstimator::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.tick_at.into_iter().chain(self.trial_at).min()
    }

    /// Performs all actions that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(at) = self.tick_at.filter(|at| *at <= now) {
            self.tick_at = Some(now + TICK);
            if now > at + HELD_UP {
                // This process was itself delayed, so the window is not valid.
                self.window = Window::default();
            } else {
                self.tick(now);
            }
        }
        if self.trial_at.is_some_and(|at| at <= now) {
            self.try_more(now);
        }
    }

    /// Looks for a slow transfer. Without one, the last observation is kept for twice [`GRACE`],
    /// unless a transfer of at least its bitrate was fast: a full link that is shared equally
    /// serves streams of low bitrates fast.
    fn look(&mut self, now: Instant) -> Option<(Instant, BitRate)> {
        let slow_end = std::mem::take(&mut self.window.slow_end);
        let fast_end = std::mem::take(&mut self.window.fast_end);
        let slow = self.transfers.values().filter(|transfer| transfer.is_slow(now));
        if let Some(bitrate) = slow.map(|transfer| transfer.bitrate).chain(slow_end).min() {
            return Some((now, bitrate));
        }
        let (at, bitrate) = self.slow?;
        let is_fast =
            |transfer: &Transfer| now.saturating_since(transfer.since) > GRACE && transfer.bitrate >= bitrate;
        let is_contradicted = fast_end >= Some(bitrate) || self.transfers.values().any(is_fast);
        let is_kept = now <= at + GRACE * 2 && !self.transfers.is_empty() && !is_contradicted;
        is_kept.then_some((at, bitrate))
    }

    fn tick(&mut self, now: Instant) {
        self.slow = self.look(now);
        if self.slow.is_some() {
            self.slow_at = Some(now);
        }
        let Some(since) = self.window.since else {
            self.window = Window { since: Some(now), ..Window::default() };
            return;
        };
        self.window.is_parents |= self.is_parent_limited;
        self.window.ticks += 1;
        self.window.slow_ticks += u32::from(self.slow.is_some());
        if self.window.ticks < WINDOW_TICKS {
            return;
        }
        let Window { bytes, slow_ticks, is_parents, .. } =
            std::mem::replace(&mut self.window, Window { since: Some(now), ..Window::default() });
        let rate = BitRate::average(ByteCount::new(bytes), now.saturating_since(since));
        let rate = rate.unwrap_or(BitRate::bps(0));
        let rate = rate.min(self.declared);
        // A window without bytes has no rate. The neighbours detect silence.
        if slow_ticks >= SLOW_TICKS && bytes > 0 && !is_parents {
            self.take_limited(now, rate);
        } else if let Some(estimate) = self.estimate {
            self.estimate = Some(estimate.max(rate));
        }
        if self.transfers.is_empty() && bytes == 0 {
            (self.tick_at, self.window) = (None, Window::default());
        }
    }

    fn take_limited(&mut self, now: Instant, rate: BitRate) {
        self.limited.push_back((now, rate));
        while self.limited.front().is_some_and(|(at, _)| now > *at + MEMORY) {
            self.limited.pop_front();
        }
        self.estimate = self.limited.iter().map(|(_, rate)| *rate).max();
        if std::mem::take(&mut self.is_tried) {
            self.trial_after = (self.trial_after * 2).min(TRIAL_AFTER_MAX);
        }
        self.trial_at = (self.estimate < Some(self.declared)).then(|| now + self.trial_after);
    }

    fn try_more(&mut self, now: Instant) {
        let before = self.estimate.unwrap_or(self.declared).as_bps();
        let more = before.saturating_add(before / 4).max(self.declared.as_bps() / TRIAL_LEAST);
        let more = BitRate::bps(more).min(self.declared);
        (self.estimate, self.is_tried) = (Some(more), true);
        self.trial_at = (more < self.declared).then(|| now + TRIAL_STEP);
    }
}

#[cfg(test)]
mod tests;
