//! Positions in the media of a playlist: where loading starts, and which item is next.
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 4.4.3.8 (hold-backs) and 6.3.3. Read [`Listing`].

use super::PlayerKind;
use anabranch_media::hls::{DeliveryDirectives, HintKind, MediaPlaylist, PreloadHint, Resource};
use anabranch_units::Duration;
use std::sync::Arc;

/// Default distance from the live edge at which playback starts, in target durations of segments or
/// parts.
const HOLD_BACK_TARGETS: u64 = 3;
/// Maximum number of segments by which a playlist may be behind the player. If it is farther
/// behind, its segment numbers count as restarted.
const BEHIND_SEGMENTS_MAX: u64 = 3;

/// Position of a segment or part.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// Number of the segment.
    pub msn: u64,
    /// Number of the part; 0 for a whole segment.
    pub part: u64,
}

/// A listed segment or part.
#[derive(Copy, Clone, Debug)]
pub(super) struct Item<'a> {
    pub resource: &'a Resource,
    pub map: Option<&'a Arc<Resource>>,
    pub duration: Duration,
    /// Date of the item's end, in microseconds since 1970.
    pub end_us: Option<u64>,
    pub is_gap: bool,
    /// Position after the item.
    pub next: Position,
}

/// Result of looking up a position in a playlist.
#[derive(Debug)]
pub(super) enum ListingMatch<'a> {
    Item(Item<'a>),
    /// The position is a part that the playlist announces by a hint.
    Hint(&'a PreloadHint),
    /// The position is past its segment's last part. It equals this position in the next segment.
    Moved(Position),
    /// The position is not yet listed.
    Later,
    /// The position is too old, or the numbers have restarted.
    Lost,
}

/// A media playlist with the dates of its segments.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    playlist: MediaPlaylist,
    /// Date at which each segment begins, in microseconds since 1970. The open segment is the last.
    dates_us: Vec<Option<u64>>,
    /// Whether the player loads parts instead of segments.
    is_low_latency: bool,
}

impl Listing {
    pub(super) fn new(playlist: MediaPlaylist, kind: PlayerKind) -> Self {
        let mut dates_us = Vec::with_capacity(playlist.segments.len() + 1);
        let mut next = None;
        for segment in &playlist.segments {
            let continued = next.filter(|_| !segment.head.is_discontinuous);
            let begin = segment.head.date.map(|date| date.as_unix_ms() * 1_000).or(continued);
            dates_us.push(begin);
            next = begin.map(|begin| begin.saturating_add(segment.duration.as_us()));
        }
        let open = playlist.open.as_ref().map(|open| &open.head);
        let continued = next.filter(|_| open.is_none_or(|head| !head.is_discontinuous));
        dates_us.push(open.and_then(|head| head.date).map(|date| date.as_unix_ms() * 1_000).or(continued));
        let has_parts = playlist.open.is_some()
            || !playlist.preload_hints.is_empty()
            || playlist.segments.iter().any(|segment| !segment.parts.is_empty());
        let is_low_latency = kind == PlayerKind::Buffering
            && has_parts
            && playlist.part_target.is_some()
            && playlist.server_control.can_block_reload;
        Self { playlist, dates_us, is_low_latency }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.playlist.is_ended
    }
    pub(super) fn is_low_latency(&self) -> bool {
        self.is_low_latency
    }
    /// Target duration of a part if the player loads parts, else of a segment.
    pub(super) fn target(&self) -> Duration {
        let part = self.playlist.part_target.filter(|_| self.is_low_latency);
        part.unwrap_or(self.playlist.target_duration)
    }

    fn first_msn(&self) -> u64 {
        self.playlist.media_sequence.saturating_add(self.playlist.skipped_segments)
    }

    /// First position after the listed positions.
    pub(super) fn end(&self) -> Position {
        let open = self.playlist.open.as_ref().filter(|_| self.is_low_latency);
        Position { msn: self.playlist.next_msn(), part: open.map_or(0, |open| open.parts.len() as u64) }
    }

    /// Directives of a request that blocks until the playlist has news. `None` if the server does
    /// not offer blocking.
    pub(super) fn blocking(&self) -> Option<DeliveryDirectives> {
        let end = self.end();
        self.playlist.server_control.can_block_reload.then(|| DeliveryDirectives {
            msn: Some(end.msn),
            part: self.is_low_latency.then_some(end.part),
            skip: None,
        })
    }

    /// The newest complete segment, or the next segment if none is listed.
    pub(super) fn newest(&self) -> Position {
        let whole = self.playlist.segments.len().min(1) as u64;
        Position { msn: self.playlist.next_msn() - whole, part: 0 }
    }

    /// Positions at which to start loading and playing. Playback starts at the hold-back from the
    /// live edge, and loading at the key frame at or before that position.
    pub(super) fn start(&self) -> (Position, Position) {
        let control = &self.playlist.server_control;
        let hold_back = if self.is_low_latency { control.part_hold_back } else { control.hold_back };
        let targets = || Duration::from_ps(self.target().as_ps().saturating_mul(HOLD_BACK_TARGETS));
        let hold_back = hold_back.unwrap_or_else(targets);
        let items = self.items();
        let mut play = self.end();
        let mut load = play;
        let mut distance = Duration::ZERO;
        for (position, duration, is_independent) in items.into_iter().rev() {
            if distance < hold_back {
                distance += duration;
                play = position;
            }
            load = position;
            if distance >= hold_back && is_independent {
                break;
            }
        }
        (load, play)
    }

    /// All listed positions, with their durations and whether they begin with a key frame.
    fn items(&self) -> Vec<(Position, Duration, bool)> {
        let mut items = Vec::new();
        for (msn, segment) in (self.first_msn()..).zip(&self.playlist.segments) {
            if !self.is_low_latency || segment.parts.is_empty() {
                items.push((Position { msn, part: 0 }, segment.duration, true));
            } else {
                for (part, listed) in (0..).zip(&segment.parts) {
                    let is_independent = listed.is_independent || part == 0;
                    items.push((Position { msn, part }, listed.duration, is_independent));
                }
            }
        }
        let open = self.playlist.open.iter().filter(|_| self.is_low_latency).flat_map(|open| &open.parts);
        let msn = self.playlist.next_msn();
        for (part, listed) in (0..).zip(open) {
            items.push((Position { msn, part }, listed.duration, listed.is_independent || part == 0));
        }
        items
    }

    /// Looks up the position `at`.
    pub(super) fn find(&self, at: Position) -> ListingMatch<'_> {
        let Some(index) = at.msn.checked_sub(self.first_msn()) else { return ListingMatch::Lost };
        let count = self.playlist.segments.len() as u64;
        if index > count {
            return if index > count + BEHIND_SEGMENTS_MAX {
                ListingMatch::Lost
            } else {
                ListingMatch::Later
            };
        }
        let begin_us = self.dates_us[index as usize];
        let (head, parts) = match self.playlist.segments.get(index as usize) {
            Some(segment) if !self.is_low_latency || segment.parts.is_empty() => {
                if at.part > 0 {
                    return ListingMatch::Lost;
                }
                return ListingMatch::Item(Item {
                    resource: &segment.resource,
                    map: segment.head.map.as_ref(),
                    duration: segment.duration,
                    end_us: begin_us.map(|begin| begin.saturating_add(segment.duration.as_us())),
                    is_gap: segment.is_gap,
                    next: Position { msn: at.msn + 1, part: 0 },
                });
            }
            Some(segment) => (Some(&segment.head), &segment.parts[..]),
            None => match self.playlist.open.as_ref().filter(|_| self.is_low_latency) {
                Some(open) => (Some(&open.head), &open.parts[..]),
                None => (None, &[][..]),
            },
        };
        let listed = parts.get(usize::try_from(at.part).unwrap_or(usize::MAX));
        match (listed, head) {
            (Some(part), Some(head)) => {
                let through = &parts[..=at.part as usize];
                let length_us = through.iter().fold(0u64, |sum, part| sum + part.duration.as_us());
                ListingMatch::Item(Item {
                    resource: &part.resource,
                    map: head.map.as_ref(),
                    duration: part.duration,
                    end_us: begin_us.map(|begin| begin.saturating_add(length_us)),
                    is_gap: part.is_gap,
                    next: Position { msn: at.msn, part: at.part + 1 },
                })
            }
            _ if index < count => ListingMatch::Moved(Position { msn: at.msn + 1, part: 0 }),
            _ => self.hint(at).map_or(ListingMatch::Later, ListingMatch::Hint),
        }
    }

    /// The announced part, if `at` is the position after the listed positions.
    fn hint(&self, at: Position) -> Option<&PreloadHint> {
        let mut hints = self.playlist.preload_hints.iter();
        hints.find(|hint| self.is_low_latency && hint.kind == HintKind::Part && at == self.end())
    }
}
