//! Playout buffer of a player: media that is loaded and not yet played, and the stalls.
//!
//! Leaves out: the choice of the media to load, and the time of loading. Read [`Playout`].

use anabranch_units::{Duration, Instant};

/// A buffer that media fills and playback empties.
///
/// Invariant: until the end of the media, all time since playback began is played or stalled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Playout {
    opened_at: Instant,
    /// Media in the buffer at `updated_at`.
    level: Duration,
    updated_at: Instant,
    /// Whether media has been playing since `updated_at`; otherwise playback has not begun or
    /// stalls.
    is_playing: bool,
    /// Whether no media follows.
    has_ended: bool,
    began_after: Option<Duration>,
    stalls: u64,
    stalled: Duration,
}

impl Playout {
    /// Creates the empty buffer of a player that is opened at `now`.
    pub const fn new(now: Instant) -> Self {
        Self {
            opened_at: now,
            level: Duration::ZERO,
            updated_at: now,
            is_playing: false,
            has_ended: false,
            began_after: None,
            stalls: 0,
            stalled: Duration::ZERO,
        }
    }

    /// Advances playback or the stall to `now`.
    pub fn advance(&mut self, now: Instant) {
        let passed = now.saturating_since(self.updated_at);
        self.updated_at = self.updated_at.max(now);
        if self.is_playing {
            let played = passed.min(self.level);
            self.level = self.level - played;
            if passed > played {
                self.is_playing = false;
                self.stalls += u64::from(!self.has_ended);
                self.stalled += if self.has_ended { Duration::ZERO } else { passed - played };
            }
        } else if self.began_after.is_some() && !self.has_ended {
            self.stalled += passed;
        }
    }

    /// Adds `media` at `now`. Playback begins, or resumes, once the level reaches `needed`.
    pub fn add(&mut self, now: Instant, media: Duration, needed: Duration) {
        self.advance(now);
        self.has_ended = false;
        self.level += media;
        if !self.is_playing && self.level >= needed {
            self.is_playing = true;
            self.began_after.get_or_insert(now.saturating_since(self.opened_at));
        }
    }

    /// Records at `now` that no media follows, so an empty buffer is no stall.
    pub fn end(&mut self, now: Instant) {
        self.advance(now);
        self.has_ended = true;
    }

    /// Media in the buffer at the last update.
    pub const fn level(&self) -> Duration {
        self.level
    }
    /// Time of the last update.
    pub const fn updated_at(&self) -> Instant {
        self.updated_at
    }
    /// Whether media was playing at the last update.
    pub const fn is_playing(&self) -> bool {
        self.is_playing
    }
    /// Startup delay: time from opening to the first frame. `None` before playback has begun.
    pub const fn began_after(&self) -> Option<Duration> {
        self.began_after
    }
    /// Stalls since playback began.
    pub const fn stalls(&self) -> u64 {
        self.stalls
    }
    /// Total time of the stalls.
    pub const fn stalled(&self) -> Duration {
        self.stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn time_since_startup_is_played_or_stalled(adds in proptest::collection::vec((0u64..3_000, 0u64..3_000), 1..40)) {
            let mut playout = Playout::new(Instant::ZERO);
            let (mut now, mut loaded) = (Instant::ZERO, Duration::ZERO);
            for (pause_ms, media_ms) in adds {
                now += Duration::from_ms(pause_ms);
                let media = Duration::from_ms(media_ms);
                playout.add(now, media, Duration::from_ms(500));
                loaded += media;
            }
            match playout.began_after() {
                Some(began) => {
                    let spent = loaded - playout.level() + playout.stalled();
                    prop_assert_eq!(spent, now.saturating_since(Instant::ZERO) - began);
                }
                None => prop_assert_eq!(playout.level(), loaded),
            }
        }
    }

    #[test]
    fn late_media_cause_one_stall() {
        let at = |ms| Instant::ZERO + Duration::from_ms(ms);
        let second = Duration::from_secs(1);
        let mut playout = Playout::new(at(0));
        playout.add(at(100), second, second);
        playout.advance(at(1_200));
        playout.add(at(1_400), second, second);
        assert_eq!((playout.stalls(), playout.stalled()), (1, Duration::from_ms(300)));
        assert_eq!(playout.began_after(), Some(Duration::from_ms(100)));
    }
    #[test]
    fn end_of_media_causes_no_stall() {
        let at = |ms| Instant::ZERO + Duration::from_ms(ms);
        let second = Duration::from_secs(1);
        let mut playout = Playout::new(at(0));
        playout.add(at(0), second, second);
        playout.end(at(500));
        playout.advance(at(5_000));
        assert_eq!((playout.stalls(), playout.is_playing()), (0, false));
        playout.add(at(5_000), second, second);
        playout.advance(at(7_000));
        assert_eq!((playout.stalls(), playout.stalled()), (1, second));
    }
}
