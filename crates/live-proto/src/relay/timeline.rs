//! Compares the playlists of two sources to find whether they share a timeline.
//!
//! Source: draft-pantos-hls-rfc8216bis, section 6.2.4 (variants must have matching timelines).
//! Leaves out: the bytes of media, which the relay compares where two legs overlap. Read
//! [`share_timeline`].

use anabranch_media::hls::MediaPlaylist;

/// Whether segments with equal numbers are the same media: equal initialisation section, duration
/// and date. Playlists without a common number do not share a timeline, because windows of one
/// timeline overlap.
///
/// Returns `None` if either playlist has no complete segment, so that the answer is unknown.
/// Returns `None` if one of them has no whole segment, so that nothing is known.
pub fn share_timeline(one: &MediaPlaylist, other: &MediaPlaylist) -> Option<bool> {
    let first = |playlist: &MediaPlaylist| playlist.media_sequence.saturating_add(playlist.skipped_segments);
    if one.segments.is_empty() || other.segments.is_empty() {
        return None;
    }
    let begin = first(one).max(first(other));
    let from = |playlist: &MediaPlaylist| usize::try_from(begin - first(playlist)).unwrap_or(usize::MAX);
    let mut common =
        one.segments.iter().skip(from(one)).zip(other.segments.iter().skip(from(other))).peekable();
    if common.peek().is_none() {
        return Some(false);
    }
    Some(common.filter(|(one, other)| !one.is_gap && !other.is_gap).all(|(one, other)| {
        let (ours, theirs) = (&one.head, &other.head);
        let is_same_init = ours.map.as_ref().zip(theirs.map.as_ref()).is_none_or(|(a, b)| a.uri == b.uri);
        is_same_init && one.duration == other.duration && ours.date == theirs.date
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_media::hls::{DateTime, Resource, Segment, SegmentHead};
    use anabranch_units::Duration;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// A window of a timeline whose segment 0 begins at the date `zero_ms`.
    fn window(zero_ms: u64, first: u64, count: u64) -> MediaPlaylist {
        let segment = |number: u64| Segment {
            head: SegmentHead {
                map: Some(Arc::new(Resource::whole("init-1.mp4"))),
                date: DateTime::from_unix_ms(zero_ms + number * 2_000),
                is_discontinuous: false,
            },
            resource: Resource::whole(format!("{number}.m4s")),
            duration: Duration::from_secs(2),
            is_gap: false,
            parts: Vec::new(),
        };
        let segments = (first..first + count).map(segment).collect();
        MediaPlaylist { media_sequence: first, segments, ..MediaPlaylist::default() }
    }

    #[test]
    fn other_initialisation_section_is_another_timeline() {
        let mut other = window(0, 10, 7);
        assert_eq!(share_timeline(&window(0, 10, 7), &other), Some(true));
        for segment in &mut other.segments {
            segment.head.map = Some(Arc::new(Resource::whole("init-2.mp4")));
        }
        assert_eq!(share_timeline(&window(0, 10, 7), &other), Some(false));
        assert_eq!(share_timeline(&window(0, 10, 7), &MediaPlaylist::default()), None);
    }

    proptest! {
        #[test]
        fn windows_of_one_timeline_agree(first in 0u64..1_000, lag in 0u64..6, gap in 0usize..7) {
            let (one, mut other) = (window(5, first + lag, 7), window(5, first, 7));
            other.segments[gap].is_gap = true;
            other.segments[gap].duration = Duration::from_secs(1);
            prop_assert_eq!(share_timeline(&one, &other), Some(true));
            prop_assert_eq!(share_timeline(&other, &one), Some(true));
        }

        #[test]
        fn shifted_timelines_disagree(first in 0u64..1_000, shift_ms in 1u64..100_000, lag in 0u64..20) {
            let (one, other) = (window(0, first + lag, 7), window(shift_ms, first, 7));
            prop_assert_eq!(share_timeline(&one, &other), Some(false));
        }
    }
}
