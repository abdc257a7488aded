//! Measurements of a player.

use super::PlayFailure;
use anabranch_units::{BitRate, ByteCount, Duration, Histogram};

/// Durations from the player's first question, to DNS or to an edge, until the events of its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinTimes {
    /// The first answer of DNS with an address.
    pub resolved: Option<Duration>,
    /// Join time (§4.7.2): the first byte of the first segment or part.
    pub first_byte: Option<Duration>,
    /// The last byte of the first segment or part.
    pub first_object: Option<Duration>,
    /// Begin of playback.
    pub playback: Option<Duration>,
}

/// Counts of a player.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PlayCounts {
    /// Answers with an HTTP status other than 200 and 206.
    pub refused: u64,
    /// Requests that broke, were late or had a body that cannot be read.
    pub failed: u64,
    /// Changes of the edge.
    pub edge_changes: u64,
    /// Changes to a lower bitrate.
    pub downgrades: u64,
    /// Jumps past media that was no longer, or not yet, to be had.
    pub skips: u64,
    /// Segments and parts received whole.
    pub objects: u64,
}

/// Signed durations from the date of a part's last frame to the arrival of its last byte.
///
/// A source that dates the first frame by its arrival makes ages too small, by the duration of its
/// encoder's fragments; then they can be negative.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    /// Sizes of negative ages.
    early: Histogram,
    late: Histogram,
}

impl Ages {
    /// Counts an age in microseconds.
    pub fn record(&mut self, age_us: i64) {
        let side = if age_us < 0 { &mut self.early } else { &mut self.late };
        side.record(age_us.unsigned_abs().saturating_mul(1_000));
    }

    /// Counts what `other` has counted as well.
    pub fn merge(&mut self, other: &Self) {
        self.early.merge(&other.early);
        self.late.merge(&other.late);
    }

    /// Number of ages.
    pub fn total(&self) -> u64 {
        self.early.total() + self.late.total()
    }

    /// The age, in microseconds, that a share of all ages are at or below, to within 3 %. `None`
    /// without ages.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let (early, total) = (self.early.total(), self.total());
        if total == 0 {
            return None;
        }
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total);
        // Half a rank less keeps rounding from reaching the next one.
        let nth = |counted: &Histogram, rank: u64| {
            counted.quantile_us((rank as f64 - 0.5) / counted.total() as f64)
        };
        // The largest sizes are the lowest ages.
        Some(if rank <= early { -nth(&self.early, early - rank + 1) } else { nth(&self.late, rank - early) })
    }
}

/// Measurements of one player.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// Time since the player was opened.
    pub open: Duration,
    /// Start of the player.
    pub join: JoinTimes,
    /// Counts.
    pub counts: PlayCounts,
    /// Stalls since playback began.
    pub stalls: u64,
    /// Total time of the stalls.
    pub stalled: Duration,
    /// Bytes of segments and parts.
    pub bytes: ByteCount,
    /// Declared bitrate of the rendition. `None` without a multivariant playlist.
    pub bitrate: Option<BitRate>,
    /// Live latency: wall clock less the date of the frame shown, at each arrival.
    pub latency: Histogram,
    /// Ages at arrival of the segments and parts that were made after the player joined.
    pub ages: Ages,
    /// Longest time between two arrivals of bytes of segments or parts.
    pub gap_max: Duration,
    /// The same of those times that contain a failed request. Zero without one.
    pub recovery_max: Duration,
    /// The last failure, with its URL.
    pub last_failure: Option<(String, PlayFailure)>,
}

impl Measurements {
    /// Mean rate of video since opening. `None` at the moment of opening.
    pub fn rate(&self) -> Option<BitRate> {
        BitRate::average(self.bytes, self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_of_signed_ages_keep_their_order(ages in proptest::collection::vec(-1_000_000i64..1_000_000, 1..100), share in 0.0f64..1.0) {
            let mut counted = Ages::default();
            ages.iter().for_each(|age| counted.record(*age));
            let mut sorted = ages;
            sorted.sort_unstable();
            let rank = ((sorted.len() as f64 * share).ceil() as usize).max(1);
            let (exact, found) = (sorted[rank - 1] as f64, counted.quantile_us(share).expect("ages"));
            prop_assert!((exact - found).abs() <= exact.abs() / 31.0 + 0.001, "{} for {}", found, exact);
        }
    }
}
