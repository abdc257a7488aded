//! Samples of all viewers while they begin one after another (Figure 4.16).
//!
//! Leaves out: the viewers ([`anabranch_live::players`]). Read [`Sample`] first.

use anabranch_live::players::{PlayerReport, Progress};
use anabranch_units::Duration as Span;
use std::sync::Arc;
use std::time::Duration;

/// Service of all viewers at one time.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Sample {
    /// Time since the first viewer's start.
    pub at_s: f64,
    /// Viewers that have begun.
    pub viewers: usize,
    /// Viewers that have received video.
    pub viewers_joined: usize,
    /// Mean bitrate of the renditions that viewers watch; a viewer without video counts as 0.
    pub watched_kbps: f64, // tidy-allow: quantity (a row for figures)
    /// Mean rate of video received since the last sample.
    pub received_kbps: f64, // tidy-allow: quantity (a row for figures)
    /// Share of the time since the last sample for which viewers with video have stalled.
    pub stalled_share: f64,
    /// Median join time of the viewers that have begun since the last sample. `None` if no viewer
    /// has begun.
    pub new_join_ms_p50: Option<f64>, // tidy-allow: quantity (a row for figures)
    /// Longest of these join times.
    pub new_join_ms_max: Option<f64>, // tidy-allow: quantity (a row for figures)
    /// Viewers that have begun since the last sample and never receive video.
    pub new_without_video: usize,
}

/// Sums over all viewers at one time.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct ViewerSums {
    at: Duration,
    viewers: usize,
    joined: usize,
    watched_bps: u64,
    video_bytes: u64,
    stalled: Span,
}

/// Sums over the viewers of all places, at a time since the first viewer's start.
pub(super) fn at(at: Duration, places: &[Arc<Progress>]) -> ViewerSums {
    ViewerSums {
        at,
        viewers: places.iter().map(|place| place.started()).sum(),
        joined: places.iter().map(|place| place.joined()).sum(),
        watched_bps: places.iter().map(|place| place.watched_bps()).sum(),
        video_bytes: places.iter().map(|place| place.video_bytes()).sum(),
        stalled: places.iter().map(|place| place.stalled()).fold(Span::ZERO, |sum, one| sum + one),
    }
}

/// Returns a sample for each of the sums. `reports` are in the order in which viewers begin.
pub(super) fn samples(sums: &[ViewerSums], reports: &[PlayerReport]) -> Vec<Sample> {
    let before = std::iter::once(ViewerSums::default()).chain(sums.iter().copied());
    before.zip(sums).map(|(before, now)| sample(&before, now, reports)).collect()
}

fn sample(before: &ViewerSums, now: &ViewerSums, reports: &[PlayerReport]) -> Sample {
    let time_s = (now.at - before.at).as_secs_f64();
    let viewers = now.viewers.max(1) as f64;
    let new = reports.get(before.viewers..now.viewers).unwrap_or_default();
    let joins = new.iter().map(|report| report.measurements.join.first_byte);
    let mut joined: Vec<f64> = joins.flatten().map(|time| time.as_secs_f64() * 1e3).collect();
    joined.sort_by(f64::total_cmp);
    let video_bits = (now.video_bytes - before.video_bytes) as f64 * 8.0;
    let stalled_s = now.stalled.as_secs_f64() - before.stalled.as_secs_f64();
    Sample {
        at_s: now.at.as_secs_f64(),
        viewers: now.viewers,
        viewers_joined: now.joined,
        watched_kbps: now.watched_bps as f64 / viewers / 1e3,
        received_kbps: video_bits / time_s / viewers / 1e3,
        stalled_share: stalled_s / time_s / now.joined.max(1) as f64,
        new_join_ms_p50: joined.get(joined.len().saturating_sub(1) / 2).copied(),
        new_join_ms_max: joined.last().copied(),
        new_without_video: new.len() - joined.len(),
    }
}
