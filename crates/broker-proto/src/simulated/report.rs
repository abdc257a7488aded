//! What players came to, as a row: the same under either clock.
//!
//! Leaves out: what each of them came to (`player`). Read [`report_players`].

use anabranch_media::player::PlaybackStats;
use anabranch_sim::WorkloadRow;
use anabranch_sim::stats::percentile;
use anabranch_units::Duration;

pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Fills `row` in with what players have come to in the `measured` time since the warm-up, at whose end they had come to `before`, with segments of so
/// many bytes.
pub fn report_players(
    played: &[PlaybackStats],
    before: &[PlaybackStats],
    (measured, segment_bytes): (Duration, u64),
    row: &mut WorkloadRow,
) {
    let none = PlaybackStats::default();
    let since = |at: usize| before.get(at).unwrap_or(&none);
    let sum = |of: &dyn Fn(&PlaybackStats) -> u64| {
        let all = played.iter().enumerate();
        all.map(|(at, played)| of(played).saturating_sub(of(since(at)))).sum::<u64>() as f64
    };
    let stalled_s = sum(&|played| played.stalled.as_us()) / 1e6;
    let watched_s = measured.as_secs_f64() * played.len() as f64;
    let mut began_ms: Vec<f64> = played
        .iter()
        .filter_map(|played| played.began_after)
        .map(|after| after.as_secs_f64() * 1e3)
        .collect();
    began_ms.sort_by(f64::total_cmp);
    let segments = sum(&|played| played.segments);
    let measured_s = measured.as_secs_f64();
    row.goodput_mbps = (measured_s > 0.0).then(|| 8e-6 * segments * segment_bytes as f64 / measured_s);
    let mut more = |name, value: Option<f64>| value.map(|value| row.more.insert(name, value));
    more("players_begun", Some(began_ms.len() as f64));
    more("begun_ms_p50", percentile(&began_ms, 0.5));
    more("begun_ms_p99", percentile(&began_ms, 0.99));
    more("stalled_share", Some(if watched_s > 0.0 { stalled_s / watched_s } else { 0.0 }));
    more("stalls", Some(sum(&|played| played.stalls)));
    more("segments", Some(segments));
    more("moves", Some(sum(&|played| played.moves)));
    more("failures", Some(sum(&|played| played.failures)));
    more("answers", Some(sum(&|played| played.answers)));
    more("unanswered", Some(sum(&|played| played.unanswered)));
}
