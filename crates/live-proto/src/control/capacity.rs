//! The capacity of a link from a parent, measured from transfers.
//!
//! The receiving end watches transfers of objects that the parent has whole: their data is ready, so
//! only the way limits them. A transfer that is slower than [`SLOW_PERCENT`] of its stream's bitrate is
//! slow. A window in which a transfer is slow nearly all the time was limited by the link, and all bytes
//! that arrived in it show the link's rate. The estimate is the highest rate of the last limited windows
//! (3 s), and never above the declared capacity. A link that the streams do not fill has no slow
//! transfer, so its estimate does not fall. The estimate rises with any faster window, and by trials: a
//! link that is no longer full cannot show that it is wider again.
//!
//! Source: a maximum filter over windows that the application does not limit is BBR's (Cardwell et al.,
//! 2016); the thesis leaves the estimate out (§4.4.1). An object that the source has whole can still
//! be on its way to the parent: the parent says whether a link to it limits its own transfers, and
//! windows in which it says so do not count. Read [`CapacityEstimator`].

use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Most transfers of one parent that are watched; further ones count by their bytes alone.
pub const TRANSFERS_MAX: usize = 4_096;
/// Rate of a transfer, in percent of its stream's bitrate, below which the transfer is slow. A viewer
/// needs 100 %.
pub const SLOW_PERCENT: u64 = 105;
/// Age up to which a transfer is not slow: several round trips.
const GRACE: Duration = Duration::from_ms(150);
/// Time between two looks at the transfers.
const TICK: Duration = Duration::from_ms(100);
/// Lateness of a look from which its window does not count.
const HELD_UP: Duration = Duration::from_ms(300);
/// Looks in a window.
const WINDOW_TICKS: u32 = 10;
/// Looks of a window, at least, at which a transfer is slow if the link limited the window.
const SLOW_TICKS: u32 = 8;
/// Time after a slow transfer for which the link counts as limiting.
const LIMITING_MEMORY: Duration = Duration::from_secs(1);
/// Time for which the rate of a limited window counts.
const MEMORY: Duration = Duration::from_secs(3);
/// Time without a limited window after which a higher estimate is tried; doubled after each trial that
/// fails.
const TRIAL_AFTER: Duration = Duration::from_secs(10);
/// Longest time until a trial: four doublings.
const TRIAL_AFTER_MAX: Duration = Duration::from_ps(16 * TRIAL_AFTER.as_ps());
/// Time between two steps of a trial, each by a quarter.
const TRIAL_STEP: Duration = Duration::from_secs(5);
/// A trial begins at the declared capacity over this number, at least.
const TRIAL_LEAST: u64 = 16;

/// A transfer of data that is ready.
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

/// The present window.
#[derive(Copy, Clone, Debug, Default)]
struct Window {
    /// `None` before the first look.
    since: Option<Instant>,
    bytes: u64,
    ticks: u32,
    slow_ticks: u32,
    /// Whether a slow transfer has ended since the last look.
    has_slow_end: bool,
    /// Whether another transfer has.
    has_fast_end: bool,
    /// Whether the parent was limited by a link to it at a look.
    is_parents: bool,
}

/// The estimate of one link. Contract: a driver reports transfers and calls
/// [`CapacityEstimator::handle_timeout`] when [`CapacityEstimator::poll_timeout`] is due.
#[derive(Clone, Debug)]
pub struct CapacityEstimator {
    declared: BitRate,
    transfers: BTreeMap<u64, Transfer>,
    window: Window,
    /// Whether a transfer was slow at the last look.
    is_slow: bool,
    /// The last look at which a transfer was slow.
    slow_at: Option<Instant>,
    /// Whether the parent is limited by a link to it.
    is_parent_limited: bool,
    /// End and rate of windows that the link limited, the oldest first.
    limited: VecDeque<(Instant, BitRate)>,
    estimate: Option<BitRate>,
    /// When the transfers are looked at; `None` without any.
    tick_at: Option<Instant>,
    /// When a higher estimate is tried; `None` at the declared capacity.
    trial_at: Option<Instant>,
    trial_after: Duration,
    is_tried: bool,
}

impl CapacityEstimator {
    /// A link of this declared capacity, without a measurement.
    pub const fn new(declared: BitRate) -> Self {
        Self {
            declared,
            transfers: BTreeMap::new(),
            window: Window {
                since: None,
                bytes: 0,
                ticks: 0,
                slow_ticks: 0,
                has_slow_end: false,
                has_fast_end: false,
                is_parents: false,
            },
            is_slow: false,
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

    /// Whether the link has limited transfers within the last second: true before a window shows
    /// it, so that the nodes below hear of it in time.
    pub fn is_limiting(&self, now: Instant) -> bool {
        self.slow_at.is_some_and(|at| now <= at + LIMITING_MEMORY)
    }

    /// The parent says whether a link to it limits its own transfers.
    pub const fn handle_parent_limited(&mut self, is_limited: bool) {
        self.is_parent_limited = is_limited;
    }

    /// The operator declares another capacity. Measurements of another link's width are void.
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

    /// A transfer begins, of an object of a stream of `bitrate` that the parent has whole.
    pub fn handle_start(&mut self, now: Instant, transfer: u64, bitrate: BitRate) {
        if self.transfers.len() < TRANSFERS_MAX {
            self.transfers.insert(transfer, Transfer { bitrate, since: now, bytes: 0 });
            self.tick_at.get_or_insert(now + TICK);
        }
    }

    /// Bytes have arrived from the parent, of a transfer that was started or of another one.
    pub fn handle_bytes(&mut self, transfer: u64, size: ByteCount) {
        self.window.bytes = self.window.bytes.saturating_add(size.as_u64());
        if let Some(transfer) = self.transfers.get_mut(&transfer) {
            transfer.bytes = transfer.bytes.saturating_add(size.as_u64());
        }
    }

    /// A transfer is over: whole, or given up.
    pub fn handle_end(&mut self, now: Instant, transfer: u64) {
        let Some(ended) = self.transfers.remove(&transfer) else { return };
        let end =
            if ended.is_slow(now) { &mut self.window.has_slow_end } else { &mut self.window.has_fast_end };
        *end = true;
    }

    /// When [`CapacityEstimator::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.tick_at.into_iter().chain(self.trial_at).min()
    }

    /// Does the work that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(at) = self.tick_at.filter(|at| *at <= now) {
            self.tick_at = Some(now + TICK);
            if now > at + HELD_UP {
                // This process was itself held up: the window shows nothing.
                self.window = Window::default();
            } else {
                self.tick(now);
            }
        }
        if self.trial_at.is_some_and(|at| at <= now) {
            self.try_more(now);
        }
    }

    /// Whether a transfer is slow. Transfers too young to tell continue the state before.
    fn look(&mut self, now: Instant) -> bool {
        let ended_slow = std::mem::take(&mut self.window.has_slow_end);
        let ended_fast = std::mem::take(&mut self.window.has_fast_end);
        let mut transfers = self.transfers.values();
        if ended_slow || transfers.clone().any(|transfer| transfer.is_slow(now)) {
            return true;
        }
        let is_young = |transfer: &Transfer| now.saturating_since(transfer.since) <= GRACE;
        self.is_slow && !ended_fast && !self.transfers.is_empty() && transfers.all(is_young)
    }

    fn tick(&mut self, now: Instant) {
        self.is_slow = self.look(now);
        if self.is_slow {
            self.slow_at = Some(now);
        }
        let Some(since) = self.window.since else {
            self.window = Window { since: Some(now), ..Window::default() };
            return;
        };
        self.window.is_parents |= self.is_parent_limited;
        self.window.ticks += 1;
        self.window.slow_ticks += u32::from(self.is_slow);
        if self.window.ticks < WINDOW_TICKS {
            return;
        }
        let Window { bytes, slow_ticks, is_parents, .. } =
            std::mem::replace(&mut self.window, Window { since: Some(now), ..Window::default() });
        let rate = BitRate::average(ByteCount::new(bytes), now.saturating_since(since));
        let rate = rate.unwrap_or(BitRate::bps(0));
        let rate = rate.min(self.declared);
        // Silence is the neighbours' to notice: it has no rate.
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
