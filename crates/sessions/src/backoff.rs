//! Pauses between failed attempts: each pause is twice as long as the previous pause, up to a
//! limit.

use anabranch_units::Duration;

/// Exponential back-off without jitter.
///
/// ```
/// use anabranch_sessions::Backoff;
/// use anabranch_units::Duration;
///
/// let mut backoff = Backoff::new(Duration::from_ms(100), Duration::from_ms(250));
/// assert_eq!([(); 3].map(|()| backoff.next_pause().as_us()), [100_000, 200_000, 250_000]);
/// backoff.reset();
/// assert_eq!(backoff.next_pause(), Duration::from_ms(100));
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates pauses from `min` to `max`.
    ///
    /// Panics: if `min` is longer than `max`, which a constant of the caller rules out.
    pub const fn new(min: Duration, max: Duration) -> Self {
        assert!(min.as_ps() <= max.as_ps(), "the shortest pause is at most the longest");
        Self { min, max, next: min }
    }

    /// The pause before the next attempt. The pause after it is twice as long, at most the limit.
    pub const fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        let doubled = pause.as_ps().saturating_mul(2);
        self.next = if doubled < self.max.as_ps() { Duration::from_ps(doubled) } else { self.max };
        pause
    }

    /// Resets to the shortest pause, after an attempt has succeeded.
    pub const fn reset(&mut self) {
        self.next = self.min;
    }
}
