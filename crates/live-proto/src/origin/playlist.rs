//! The media playlist of a window.
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 4.4.3.7 (part target), 4.4.3.8 (hold-backs and
//! skipping), 6.2.2 (live playlists) and 6.2.6 (hints). Read [`playlist`].

use super::names::Name;
use super::window::{StoredPart, StoredSegment, Window};
use anabranch_media::hls::{
    HintKind, MediaPlaylist, OpenSegment, Part, PreloadHint, Resource, Segment, SegmentHead, ServerControl,
};
use anabranch_units::{ByteCount, Duration};
use std::sync::Arc;

/// Target durations at the end of the playlist in which parts are listed (section 6.2.2).
const PART_TARGETS_LISTED: u64 = 3;
/// Target durations after which segments may be skipped (section 4.4.3.8: at least six).
const SKIP_TARGETS: u64 = 6;
/// Hold-backs, in part targets and in target durations (section 4.4.3.8: at least three).
const HOLD_BACK_TARGETS: u64 = 3;

/// State of a rendition that its playlist needs besides the window.
#[derive(Clone, Debug)]
pub(super) struct RenditionState {
    /// Lower bound of the target duration.
    pub segment_target: Duration,
    /// Part target. `None` if parts and blocking reload are not offered.
    pub part_target: Option<Duration>,
    /// Name of the part expected next.
    pub hint: Option<Name>,
    pub is_ended: bool,
}

/// The target duration, a whole number of seconds: the longest segment so far, at least the
/// setting.
pub(super) fn target_duration(window: &Window, segment_target: Duration) -> Duration {
    let longest = window.longest().max(segment_target);
    // Section 4.4.3.1: durations are rounded to the nearest second before they are compared.
    let nearest_s = (longest.as_ns() + 500_000_000) / 1_000_000_000;
    Duration::from_secs(nearest_s.max(1))
}

/// The whole playlist. `None` for a window without a segment or part.
pub(super) fn playlist(window: &Window, shown: &RenditionState) -> Option<MediaPlaylist> {
    let target_duration = target_duration(window, shown.segment_target);
    let mut parts_from = Duration::ZERO;
    let listed_parts_age = Duration::from_ps(target_duration.as_ps().saturating_mul(PART_TARGETS_LISTED));
    let mut segments = Vec::new();
    let mut open = None;
    for stored in window.listed().rev() {
        let are_parts_listed =
            shown.part_target.is_some() && stored.has_parts && parts_from < listed_parts_age;
        let parts = if are_parts_listed { parts(stored) } else { Vec::new() };
        if stored.is_whole {
            parts_from += stored.duration();
            let duration = if stored.is_gap { shown.segment_target } else { stored.duration() };
            let resource = Resource::whole(Name::Segment(stored.number).to_string());
            segments.push(Segment { head: head(stored), resource, duration, is_gap: stored.is_gap, parts });
        } else if !parts.is_empty() {
            open = Some(OpenSegment { head: head(stored), parts });
        }
    }
    segments.reverse();
    if segments.iter().all(|segment| segment.is_gap) && open.is_none() {
        return None;
    }
    let times = |duration: Duration, count: u64| Duration::from_ps(duration.as_ps().saturating_mul(count));
    let skip = times(target_duration, SKIP_TARGETS);
    let hints = shown.hint.filter(|_| shown.part_target.is_some() && !shown.is_ended).map(|name| {
        PreloadHint { kind: HintKind::Part, uri: name.to_string(), start: ByteCount::ZERO, length: None }
    });
    let playlist = MediaPlaylist {
        target_duration,
        media_sequence: window.listed().next().map_or(0, |first| first.number),
        discontinuity_sequence: window.discontinuities_before(),
        has_independent_segments: false,
        part_target: shown.part_target,
        server_control: ServerControl {
            can_block_reload: shown.part_target.is_some(),
            can_skip_until: None,
            hold_back: Some(times(target_duration, HOLD_BACK_TARGETS)),
            part_hold_back: shown.part_target.map(|part| times(part, HOLD_BACK_TARGETS)),
        },
        skipped_segments: 0,
        segments,
        open,
        preload_hints: hints.into_iter().collect(),
        rendition_reports: Vec::new(),
        is_ended: shown.is_ended,
    };
    let can_skip_until = (playlist.duration() > skip && !shown.is_ended).then_some(skip);
    Some(MediaPlaylist {
        server_control: ServerControl { can_skip_until, ..playlist.server_control.clone() },
        ..playlist
    })
}

fn head(stored: &StoredSegment) -> SegmentHead {
    let map = stored.init.as_ref().map(|init| Arc::new(Resource::whole(init.name.to_string())));
    SegmentHead { map, date: stored.date, is_discontinuous: stored.is_discontinuous }
}

fn parts(stored: &StoredSegment) -> Vec<Part> {
    let whole = |(index, part): (usize, &StoredPart)| {
        Some(Part {
            resource: Resource::whole(Name::Part(stored.number, index as u64).to_string()),
            duration: part.duration?,
            is_independent: part.is_independent,
            is_gap: false,
        })
    };
    stored.parts.iter().enumerate().filter_map(whole).collect()
}
