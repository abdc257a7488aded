//! The progress of a flow that has a rate: whether any of its bytes arrive, and whether as fast as its limit.
//!
//! Both are judged over a while, which begins a while after a rate was raised: reports of agents are some tenths of a second old,
//! and bytes that a kernel has already handed to a link at a lower rate go first. Leaves out: consequences of the verdict. Read
//! [`Progress::look`].

use super::RATE_MIN;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};

/// A flow of which nothing has arrived for so long is idle, and for as long again as the most that a kernel sends at once
/// (64 KiB) takes at its rate. Over as long it is judged whether it is slow.
pub const IDLE_AFTER: Duration = Duration::from_ms(500);
/// The most that a kernel hands to a link at once (what one segmentation offload may carry).
pub(super) const BURST: ByteCount = ByteCount::new(64 * 1024);
/// Flows are looked at in such steps, many at a time.
pub(super) const LOOK_STEP: Duration = Duration::from_ms(50);
/// What a rate has to grow by for what was before it not to count.
const RAISE: f64 = 1.25;
/// For so long after something has arrived, raises may have what was before them not count.
const GRACE: Duration = Duration::from_secs(2);

/// What was found.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing arrives.
    Idle,
    /// So much does, in bits a second, and that is this part of what might have.
    Moves { bps: f64, part: f64 },
}

/// How a flow gets on.
#[derive(Copy, Clone, Debug)]
pub(super) struct Progress {
    moved: ByteCount,
    moved_at: Instant,
    /// Nothing had to arrive before.
    raised_at: Instant,
    rate_bps: f64,
    /// What is judged: from when on, what had been moved by then, and what might have been since, up to the last change of the
    /// rate.
    began: Instant,
    moved_before: ByteCount,
    allowed_bits: f64,
    rate_at: Instant,
    /// Whether its rate has been raised a while before that is judged.
    is_settled: bool,
}

impl Progress {
    /// Of a flow that has moved so much and has no rate yet.
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

    /// So much has arrived, in all.
    pub fn on_moved(&mut self, now: Instant, moved: ByteCount) {
        if moved > self.moved {
            (self.moved, self.moved_at) = (moved, now);
        }
    }

    /// It may go at another rate from now on.
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

    /// How long none of it may arrive without its being idle.
    fn idle_after(&self) -> Duration {
        let rate = BitRate::bps(self.rate_bps as u64).max(RATE_MIN);
        IDLE_AFTER + rate.transmit_time(BURST)
    }

    fn idle_at(&self) -> Instant {
        self.moved_at.max(self.raised_at) + self.idle_after()
    }

    /// When to look.
    pub fn look_at(&self) -> Instant {
        let at = self.idle_at().min(self.began + self.idle_after());
        let step = u128::from(LOOK_STEP.as_ps());
        Instant::from_ps(at.as_ps().div_ceil(step).saturating_mul(step))
    }

    /// Looks; says nothing where it is too early to tell.
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
        // What goes before it at the old rate takes some time, and so does a sender that speeds up.
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
    fn what_has_arrived_is_compared_with_what_might_have() {
        let mut progress = going();
        // 64 KiB take 52 ms.
        assert_eq!(progress.look_at(), at(600));
        // How it begins is not judged.
        progress.on_moved(at(500), ByteCount::new(1));
        assert_eq!(progress.look(at(550)), None);
        assert_eq!(progress.look(at(600)), None);
        progress.on_moved(at(700), ByteCount::new(100_001));
        progress.set_rate(at(900), RATE_BPS / 2.0);
        progress.on_moved(at(1_190), ByteCount::new(300_001));
        // 3 Mbit of the first 300 ms, 1.525 of the second.
        let Some(Verdict::Moves { bps, part }) = progress.look(at(1_205)) else { panic!("too early") };
        assert!((bps / 2.4e6 * 0.605 - 1.0).abs() < 1e-9, "{bps}");
        assert!((part - 2.4 / 4.525).abs() < 1e-9, "{part}");
        // From now on anew.
        progress.on_moved(at(1_800), ByteCount::new(362_501));
        let Some(Verdict::Moves { part, .. }) = progress.look(at(1_811)) else { panic!("too early") };
        assert!((part - 0.5 / 3.03).abs() < 1e-9, "{part}");
    }

    #[test]
    fn a_raise_begins_anew_and_a_lowering_does_not() {
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
    fn raises_do_not_keep_one_from_being_idle_for_ever() {
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
