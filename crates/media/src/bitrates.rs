//! Bitrate ladders and the sizes of segments.
//!
//! Source: RFC 8216, section 2 (a variant is one bitrate of a presentation). Leaves out: a player's
//! choice of a rung. Read [`Rung`] and [`segment_bytes`].

use anabranch_units::{BitRate, Duration, RandomStream};

/// A rung of a bitrate ladder.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Bitrate of the variant.
    pub bitrate: BitRate,
    /// Weight: number of viewers that watch the rung; their share is relative to the sum of the
    /// ladder.
    pub viewers: u64,
}

/// Draws the bitrate of one viewer. Consumes one number of `random`.
///
/// Panics: a ladder without viewers.
pub fn draw_bitrate(ladder: &[Rung], random: &mut RandomStream) -> BitRate {
    let mut at = random.below(ladder.iter().map(|rung| rung.viewers).sum());
    let rung = ladder.iter().find(|rung| {
        let is_it = at < rung.viewers;
        at = at.saturating_sub(rung.viewers);
        is_it
    });
    rung.expect("the draw is below the sum of the weights").bitrate
}

/// Bytes of a segment with the playing time `time`, rounded down, at most `u64::MAX`.
///
/// ```
/// use anabranch_media::bitrates::segment_bytes;
/// use anabranch_units::{BitRate, Duration};
/// assert_eq!(segment_bytes(BitRate::mbps(3), Duration::from_secs(2)), 750_000);
/// ```
pub fn segment_bytes(bitrate: BitRate, time: Duration) -> u64 {
    let bytes = u128::from(bitrate.as_bps()) * u128::from(time.as_ps()) / 8_000_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;

    #[test]
    fn bitrates_are_drawn_by_weight() {
        let ladder =
            [(1, 3), (2, 0), (4, 1)].map(|(mbps, viewers)| Rung { bitrate: BitRate::mbps(mbps), viewers });
        let mut random = Seed::new(1).stream("ladder", 0);
        let draws: Vec<u64> =
            (0..4_000).map(|_| draw_bitrate(&ladder, &mut random).as_bps() / 1_000_000).collect();
        let count = |mbps| draws.iter().filter(|draw| **draw == mbps).count();
        assert_eq!((count(2), count(1) + count(4)), (0, 4_000));
        assert!((900..1_100).contains(&count(4)), "{}", count(4));
    }
}
