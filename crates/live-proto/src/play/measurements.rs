//! Measurements of a player.

use super::PlayFailure;
use anabranch_units::{BitRate, ByteCount, Duration, Histogram};

/// Times from the player's first request, to DNS or to an edge, to the events of its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinTimes {
    /// First DNS answer with an address.
    pub resolved: Option<Duration>,
    /// Request for the first segment or part.
    pub requested: Option<Duration>,
    /// First byte of the first segment or part: the join time (§4.7.2).
    pub first_byte: Option<Duration>,
    /// Last byte of the first segment or part.
    pub first_object: Option<Duration>,
    /// Start of playback.
    pub playback: Option<Duration>,
}

/// Event counts of a player.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PlayCounts {
    /// Answers with an HTTP status other than 200 and 206.
    pub refused: u64,
    /// Requests that broke, were late, or had an unreadable body.
    pub failed: u64,
    /// Changes of the edge.
    pub edge_changes: u64,
    /// Changes to a lower bitrate.
    pub downgrades: u64,
    /// Jumps past media that were unavailable: too old, missing, or gaps.
    pub skips: u64,
    /// Segments and parts received completely.
    pub objects: u64,
}

/// Signed times from the date of a part's last frame to the arrival of its last byte.
///
/// If a source dates the first frame by its arrival, ages are too small by the duration of the
/// encoder's fragments, and can be negative.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    /// Absolute values of negative ages.
    early: Histogram,
    late: Histogram,
}

impl Ages {
    /// Counts an age in microseconds.
    pub fn record(&mut self, age_us: i64) {
        let side = if age_us < 0 { &mut self.early } else { &mut self.late };
        side.record(age_us.unsigned_abs().saturating_mul(1_000));
    }

    /// Adds the ages counted by `other`.
    pub fn merge(&mut self, other: &Self) {
        self.early.merge(&other.early);
        self.late.merge(&other.late);
    }

    /// Number of ages.
    pub fn total(&self) -> u64 {
        self.early.total() + self.late.total()
    }

    /// The age, in microseconds, that the given share of all ages does not exceed, to within 3 %.
    /// `None` without ages.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let (early, total) = (self.early.total(), self.total());
        if total == 0 {
            return None;
        }
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total);
        // Half a rank is subtracted so that rounding does not reach the next rank.
        let nth = |counted: &Histogram, rank: u64| {
            counted.quantile_us((rank as f64 - 0.5) / counted.total() as f64)
        };
        // The largest absolute values are the lowest ages.
        Some(if rank <= early { -nth(&self.early, early - rank + 1) } else { nth(&self.late, rank - early) })
    }
}

/// Measurements of one player.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// Time since the player was opened.
    pub open: Duration,
    /// Times of the events at the start of the player.
    pub join: JoinTimes,
    /// Counts of events.
    pub counts: PlayCounts,
    /// Number of stalls since playback began.
    pub stalls: u64,
    /// Total duration of all stalls.
    pub stalled: Duration,
    /// Bytes of segments and parts.
    pub bytes: ByteCount,
    /// Declared bitrate of the rendition. `None` without a multivariant playlist.
    pub bitrate: Option<BitRate>,
    /// Live latency, measured at each arrival: wall clock time minus the date of the displayed
    /// frame.
    pub latency: Histogram,
    /// Ages at arrival, for segments and parts made after the player joined.
    pub ages: Ages,
    /// Longest time between two arrivals of bytes of segments or parts.
    pub gap_max: Duration,
    /// Longest time between two arrivals in which a request failed. Zero if no request failed.
    pub recovery_max: Duration,
    /// The last failed request's URL, and its failure.
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
        fn quantiles_of_signed_ages_are_nearly_exact(ages in proptest::collection::vec(-1_000_000i64..1_000_000, 1..100), share in 0.0f64..1.0) {
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
