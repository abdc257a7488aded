//! Players' quality of experience in a workload's row, the same under either clock.
//!
//! Leaves out: the columns (`media::qoe`). Read [`report_players`].

use anabranch_media::player::PlaybackStats;
use anabranch_media::qoe::Experience;
use anabranch_sim::WorkloadRow;
use anabranch_units::Duration;

pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Fills `row` with the players' experience in the `measured` time since the warm-up; see
/// [`Experience::new`].
pub fn report_players(
    stats: &[PlaybackStats],
    before: &[PlaybackStats],
    (measured, segment_bytes): (Duration, u64),
    row: &mut WorkloadRow,
) {
    let experience = Experience::new(stats, before, measured, segment_bytes);
    row.goodput_mbps = experience.goodput_mbps;
    row.more.extend(experience.columns);
}
