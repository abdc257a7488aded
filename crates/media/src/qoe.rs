//! Quality of experience of many players, as the columns of a result row.
//!
//! Leaves out: the rest of the row, which the run writes; the statistics of one player (`player`).
//! Read [`Experience`].

use crate::player::PlaybackStats;
use anabranch_units::Duration;
use anabranch_units::stats::percentile;

/// Quality of experience of players over the measured time.
#[derive(Clone, Debug, PartialEq)]
pub struct Experience {
    /// Mean bitrate of all segments, summed over the players. `None` for a measured time of zero.
    pub goodput_mbps: Option<f64>,
    /// Further columns of the row: name and value.
    pub columns: Vec<(&'static str, f64)>,
}

impl Experience {
    /// Sums `stats`, which has one entry for each player, over the `measured` time after the
    /// warm-up. `before` has the statistics of the same players at the end of the warm-up; a player
    /// without an entry in `before` starts at zero. `segment_bytes` is the size of each segment.
    ///
    /// Units: startup delays (`begun_ms_*`) count from each player's opening, in ms, the warm-up
    /// included. `stalled_share` is the stalled part of the measured time of all players, from 0 to
    /// 1. All other columns are counts.
    pub fn new(
        stats: &[PlaybackStats],
        before: &[PlaybackStats],
        measured: Duration,
        segment_bytes: u64,
    ) -> Self {
        let none = PlaybackStats::default();
        let since = |at: usize| before.get(at).unwrap_or(&none);
        let sum = |of: &dyn Fn(&PlaybackStats) -> u64| {
            let all = stats.iter().enumerate();
            all.map(|(at, stats)| of(stats).saturating_sub(of(since(at)))).sum::<u64>() as f64
        };
        let stalled_s = sum(&|stats| stats.stalled.as_us()) / 1e6;
        let measured_s = measured.as_secs_f64();
        let watched_s = measured_s * stats.len() as f64;
        let mut begun_ms: Vec<f64> = stats
            .iter()
            .filter_map(|stats| stats.began_after)
            .map(|after| after.as_secs_f64() * 1e3)
            .collect();
        begun_ms.sort_by(f64::total_cmp);
        let segments = sum(&|stats| stats.segments);
        let columns = [
            ("players_begun", Some(begun_ms.len() as f64)),
            ("begun_ms_p50", percentile(&begun_ms, 0.5)),
            ("begun_ms_p99", percentile(&begun_ms, 0.99)),
            ("stalled_share", Some(if watched_s > 0.0 { stalled_s / watched_s } else { 0.0 })),
            ("stalls", Some(sum(&|stats| stats.stalls))),
            ("segments", Some(segments)),
            ("moves", Some(sum(&|stats| stats.moves))),
            ("failures", Some(sum(&|stats| stats.failures))),
            ("answers", Some(sum(&|stats| stats.answers))),
            ("unanswered", Some(sum(&|stats| stats.unanswered))),
        ];
        Self {
            goodput_mbps: (measured_s > 0.0).then(|| 8e-6 * segments * segment_bytes as f64 / measured_s),
            columns: columns.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_exclude_the_warm_up() {
        let stats = |segments, stalled_s| PlaybackStats {
            segments,
            stalls: 1,
            stalled: Duration::from_secs(stalled_s),
            began_after: Some(Duration::from_ms(1_500)),
            ..PlaybackStats::default()
        };
        let now = [stats(30, 4), stats(20, 0)];
        let experience = Experience::new(&now, &[stats(10, 2)], Duration::from_secs(10), 1_000_000);
        assert_eq!(experience.goodput_mbps, Some(32.0), "40 segments of 8 Mbit in 10 s");
        let column =
            |name: &str| experience.columns.iter().find(|(of, _)| *of == name).map(|(_, value)| *value);
        assert_eq!((column("stalled_share"), column("stalls")), (Some(0.1), Some(1.0)));
        assert_eq!((column("players_begun"), column("begun_ms_p99")), (Some(2.0), Some(1_500.0)));
        let none = Experience::new(&[], &[], Duration::ZERO, 1);
        assert_eq!((none.goodput_mbps, none.columns.len()), (None, 8));
    }
}
