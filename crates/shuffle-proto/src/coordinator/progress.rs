//! Progress of a flow with a rate: whether its bytes arrive, and whether they arrive as fast as its
//! limit allows.
//!
//! Both are judged over an interval that starts some time after a raise. Agents' reports are some
//! tenths of a second old, and bytes already queued at the lower rate are sent first. Leaves out:
//! consequences of the verdict. Read [`Progress::look`].

use super::RATE_MIN;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};

/// Minimum time without arrivals after which a flow is idle. The time of the kernel's largest burst
/// (64 KiB) at the flow's rate is added. Also the interval over which slowness is judged.
pub const IDLE_AFTER: Duration = Duration::from_ms(500);
/// Maximum burst that a kernel hands to a link at once (one segmentation offload).
pub(super) const BURST: ByteCount = ByteCount::new(64 * 1024);
/// Granularity of checks, so that many flows are checked together.
pub(super) const LOOK_STEP: Duration = Duration::from_ms(50);
/// Minimum factor of a rate increase that restarts the judged interval.
const RAISE: f64 = 1.25;
/// Time after the last arrival within which a rate increase restarts the interval.
const GRACE: Duration = Duration::from_secs(2);

/// Result of a check.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// No bytes arrive.
    Idle,
    /// Bytes arrive at `bps` bits per second. `part` is the share of the permitted bits that
    /// arrived.
    Moves { bps: f64, part: f64 },
}

/// Progress of one flow.
#[derive(Copy, Clone, Debug)]
pub(super) struct Progress {
    moved: ByteCount,
    moved_at: Instant,
    /// Time of the last restart. A flow is idle only after enough time since this restart.
    raised_at: Instant,
    rate_bps: f64,
    /// Judged interval: its start, the bytes moved before the start, and the bits permitted from
    /// the start to the last change of rate.
    began: Instant,
    moved_before: ByteCount,
    allowed_bits: f64,
    rate_at: Instant,
    /// True if an interval has passed since the last raise, so that the current interval counts.
    is_settled: bool,
}

impl Progress {
    /// Creates the progress of a flow that has moved `moved` bytes and has no rate yet.
    pub const fn new(now: Instant, moved: ByteCount) -> Self {
        Self {
            moved,
            moved_at: now,
            raised_at: now,
            rate_bps: 0.0,
            began: now,
            moved_before: moved,
            allowed_bits: 0.0,
            rate_at: now,
            is_settled: false,
        }
    }

    /// Records the total number of bytes delivered.
    pub fn on_moved(&mut self, now: Instant, moved: ByteCount) {
        if moved > self.moved {
            (self.moved, self.moved_at) = (moved, now);
        }
    }

    /// Sets the current rate.
    pub fn set_rate(&mut self, now: Instant, rate_bps: f64) {
        let is_raised = rate_bps > RAISE * self.rate_bps && now <= self.moved_at + GRACE;
        self.allowed_bits += self.rate_bps * now.saturating_since(self.rate_at).as_secs_f64();
        (self.rate_bps, self.rate_at) = (rate_bps, now);
        if is_raised {
            (self.raised_at, self.is_settled) = (now, false);
            self.begin(now);
        }
    }

    const fn begin(&mut self, now: Instant) {
        (self.began, self.moved_before, self.allowed_bits, self.rate_at) = (now, self.moved, 0.0, now);
    }

    /// Time without arrivals after which the flow is idle.
    fn idle_after(&self) -> Duration {
        let rate = BitRate::bps(self.rate_bps as u64).max(RATE_MIN);
        IDLE_AFTER + rate.transmit_time(BURST)
    }

    fn idle_at(&self) -> Instant {
        self.moved_at.max(self.raised_at) + self.idle_after()
    }

    /// Time of the next check.
    pub fn look_at(&self) -> Instant {
        let at = self.idle_at().min(self.began + self.idle_after());
        let step = u128::from(LOOK_STEP.as_ps());
        Instant::from_ps(at.as_ps().div_ceil(step).saturating_mul(step))
    }

    /// Checks the flow. Returns `None` if it is too early for a verdict.
    pub fn look(&mut self, now: Instant) -> Option<Verdict> {
        if now >= self.idle_at() {
            return Some(Verdict::Idle);
        }
        if now < self.began + self.idle_after() {
            return None;
        }
        self.set_rate(now, self.rate_bps);
        let bits = 8.0 * (self.moved.as_u64() - self.moved_before.as_u64()) as f64;
        let bps = bits / now.saturating_since(self.began).as_secs_f64();
        let part = bits / self.allowed_bits.max(1.0);
        self.begin(now);
        // The first interval after a raise does not count: it contains bytes sent at the old rate,
        // and the sender may still be accelerating.
        std::mem::replace(&mut self.is_settled, true).then_some(Verdict::Moves { bps, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE_BPS: f64 = 10e6;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }
    fn going() -> Progress {
        let mut progress = Progress::new(at(0), ByteCount::ZERO);
        progress.set_rate(at(0), RATE_BPS);
        progress
    }

    #[test]
    fn progress_is_the_share_of_permitted_bits() {
        let mut progress = going();
        // 64 KiB take 52 ms.
        assert_eq!(progress.look_at(), at(600));
        // The first interval is not judged.
        progress.on_moved(at(500), ByteCount::new(1));
        assert_eq!(progress.look(at(550)), None);
        assert_eq!(progress.look(at(600)), None);
        progress.on_moved(at(700), ByteCount::new(100_001));
        progress.set_rate(at(900), RATE_BPS / 2.0);
        progress.on_moved(at(1_190), ByteCount::new(300_001));
        // 3 Mbit are permitted in the first 300 ms, and 1.525 Mbit in the next 305 ms.
        let Some(Verdict::Moves { bps, part }) = progress.look(at(1_205)) else { panic!("too early") };
        assert!((bps / 2.4e6 * 0.605 - 1.0).abs() < 1e-9, "{bps}");
        assert!((part - 2.4 / 4.525).abs() < 1e-9, "{part}");
        // A new interval begins.
        progress.on_moved(at(1_800), ByteCount::new(362_501));
        let Some(Verdict::Moves { part, .. }) = progress.look(at(1_811)) else { panic!("too early") };
        assert!((part - 0.5 / 3.03).abs() < 1e-9, "{part}");
    }

    #[test]
    fn raised_rate_restarts_the_interval_lowered_does_not() {
        let mut progress = going();
        progress.on_moved(at(10), ByteCount::new(1));
        progress.set_rate(at(400), 1.2 * RATE_BPS);
        assert_eq!(progress.look_at(), at(550));
        progress.set_rate(at(400), 2.0 * RATE_BPS);
        assert_eq!(progress.look_at(), at(950));
        progress.set_rate(at(400), RATE_BPS);
        assert_eq!(progress.look_at(), at(1_000));
    }

    #[test]
    fn repeated_raises_do_not_prevent_idleness() {
        let (mut progress, mut ms) = (going(), 0);
        while progress.look(at(ms)) != Some(Verdict::Idle) {
            ms += 100;
            assert!(ms < 4_000, "it counts as moving");
            let is_low = ms % 200 == 0;
            progress.set_rate(at(ms), if is_low { RATE_BPS / 10.0 } else { RATE_BPS });
        }
        assert!(ms > 1_900, "{ms}");
    }
}
