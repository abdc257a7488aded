//! Playlists of HTTP Live Streaming (HLS), including the tags of Low-Latency HLS.
//!
//! A media playlist lists the segments of one rendition. A low-latency playlist also lists the
//! parts of the newest segments, and announces the next part in a preload hint. A multivariant
//! playlist lists the renditions.
//!
//! Source: Pantos, *HTTP Live Streaming 2nd Edition*, draft-pantos-hls-rfc8216bis, sections 4 and
//! 6.2.5. The crate `m3u8-parser` reads the tags; this module checks limits and numbers, and
//! interprets the tags. Leaves out: encrypted segments, variables and playlists of I-frames, which
//! are refused; date ranges, which are ignored. Read [`MediaPlaylist`] and [`DeliveryDirectives`]
//! first.

mod date;
mod directives;
mod multivariant;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use date::{DateTime, read_date_time};
pub use directives::{DeliveryDirectives, DirectivesError, Skip};
pub use multivariant::{MultivariantPlaylist, Rendition, RenditionKind, Steering, Variant};
pub use write::seconds;

use anabranch_units::{ByteCount, Duration};
use std::fmt;
use std::sync::Arc;

/// Longest playlist that is read.
pub const PLAYLIST_BYTES_MAX: usize = 1 << 20;
/// Maximum number of lines of a playlist. A tag takes 256 bytes of memory, so this limit bounds
/// memory.
pub const LINES_MAX: usize = 32_768;
/// Maximum number of segments of a playlist.
pub const SEGMENTS_MAX: usize = 8_192;
/// Maximum number of parts of a playlist, summed over all segments.
pub const PARTS_MAX: usize = 8_192;
/// Maximum number of variants of a multivariant playlist, of its renditions, and of rendition
/// reports.
pub const VARIANTS_MAX: usize = 256;
/// Longest URI, name or codec string.
pub const TEXT_BYTES_MAX: usize = 2_048;
/// Longest duration of a segment or part.
pub const DURATION_MAX: Duration = Duration::from_secs(3_600);

/// Range of the bytes of a resource.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Number of bytes before the range.
    pub offset: ByteCount,
    /// Number of bytes of the range.
    pub length: ByteCount,
}

impl ByteRange {
    /// Number of bytes before the end of the range.
    pub fn end(self) -> ByteCount {
        ByteCount::new(self.offset.as_u64().saturating_add(self.length.as_u64()))
    }
}

/// A resource, or a range of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// URI, absolute or relative to the URI of the playlist.
    pub uri: String,
    /// Range of bytes. `None` for the complete resource.
    pub range: Option<ByteRange>,
}

impl Resource {
    /// The complete resource at `uri`.
    pub fn whole(uri: impl Into<String>) -> Self {
        Self { uri: uri.into(), range: None }
    }
}

/// Part of a segment (EXT-X-PART).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Location of the part's bytes.
    pub resource: Resource,
    /// Duration of the part's media.
    pub duration: Duration,
    /// Whether the part contains a key frame (INDEPENDENT).
    pub is_independent: bool,
    /// Whether the part is missing (GAP).
    pub is_gap: bool,
}

/// Attributes that precede a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentHead {
    /// Initialisation section of the segment (EXT-X-MAP).
    pub map: Option<Arc<Resource>>,
    /// Date of the segment's first frame.
    pub date: Option<DateTime>,
    /// Whether encoding or time stamps change before the segment (EXT-X-DISCONTINUITY).
    pub is_discontinuous: bool,
}

/// A complete segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Attributes that precede the segment.
    pub head: SegmentHead,
    /// Location of the segment's bytes.
    pub resource: Resource,
    /// Duration of the segment's media (EXTINF).
    pub duration: Duration,
    /// Whether the segment is missing (EXT-X-GAP).
    pub is_gap: bool,
    /// Parts of the segment, if the playlist lists them.
    pub parts: Vec<Part>,
}

/// Parts of the segment that is not yet complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSegment {
    /// Attributes that precede the segment.
    pub head: SegmentHead,
    /// Parts that the segment has so far.
    pub parts: Vec<Part>,
}

/// Features of a server (EXT-X-SERVER-CONTROL).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerControl {
    /// Whether playlist requests may wait for a segment or part (CAN-BLOCK-RELOAD).
    pub can_block_reload: bool,
    /// Age from which delta updates skip segments (CAN-SKIP-UNTIL). `None` if the server offers no
    /// delta updates.
    pub can_skip_until: Option<Duration>,
    /// Recommended distance of playback from the live edge, in playing time (HOLD-BACK).
    pub hold_back: Option<Duration>,
    /// Recommended distance of playback from the live edge for players of parts (PART-HOLD-BACK).
    pub part_hold_back: Option<Duration>,
}

/// Kind of resource that a preload hint announces.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HintKind {
    /// A part.
    Part,
    /// An initialisation section.
    Map,
}

/// The next resource of a rendition (EXT-X-PRELOAD-HINT).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreloadHint {
    /// Kind of the resource.
    pub kind: HintKind,
    /// URI of the resource.
    pub uri: String,
    /// Number of bytes before the hinted bytes in the resource.
    pub start: ByteCount,
    /// Number of hinted bytes. `None` up to the end of the resource.
    pub length: Option<ByteCount>,
}

/// Newest segment and part of another rendition (EXT-X-RENDITION-REPORT).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenditionReport {
    /// URI of the rendition's playlist.
    pub uri: String,
    /// Number of the rendition's newest segment, complete or not.
    pub last_msn: Option<u64>,
    /// Number of the rendition's newest part, in segment `last_msn`.
    pub last_part: Option<u64>,
}

/// Playlist of one rendition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaPlaylist {
    /// Upper bound of the segments' durations, in whole seconds.
    pub target_duration: Duration,
    /// Number of the first segment, including skipped segments.
    pub media_sequence: u64,
    /// Number of discontinuities before the first segment.
    pub discontinuity_sequence: u64,
    /// Whether each segment begins with a key frame.
    pub has_independent_segments: bool,
    /// Upper bound of the parts' durations (EXT-X-PART-INF). `None` without parts.
    pub part_target: Option<Duration>,
    /// Abilities of the server.
    pub server_control: ServerControl,
    /// Number of segments that a delta update skips at the beginning (EXT-X-SKIP).
    pub skipped_segments: u64,
    /// Complete segments, the oldest first.
    pub segments: Vec<Segment>,
    /// The segment that is not yet complete. `None` if the playlist lists no part of it.
    pub open: Option<OpenSegment>,
    /// The resources that preload hints announce.
    pub preload_hints: Vec<PreloadHint>,
    /// Reports on the newest segments of other renditions.
    pub rendition_reports: Vec<RenditionReport>,
    /// Whether the playlist is complete (EXT-X-ENDLIST).
    pub is_ended: bool,
}

/// Reason why a playlist is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaylistError {
    /// The playlist is longer than [`PLAYLIST_BYTES_MAX`].
    TooLong {
        /// Length of the playlist in bytes.
        got: usize,
    },
    /// The playlist has more entries of one kind than the limit.
    TooMany {
        /// Kind of the entries.
        what: &'static str,
        /// Maximum number of entries allowed.
        max: usize,
    },
    /// The bytes are not UTF-8 text.
    NotText,
    /// The first line is not `#EXTM3U`.
    NotAPlaylist,
    /// A line does not follow the standard.
    Syntax {
        /// Line number, from 1.
        line: usize,
        /// Description of the mistake.
        what: String,
    },
    /// A value is out of its range.
    OutOfRange {
        /// Name of the value.
        what: &'static str,
        /// Value in the playlist.
        got: String,
        /// Allowed range.
        allowed: &'static str,
    },
    /// A required tag is missing.
    Missing {
        /// Name of the tag.
        tag: &'static str,
    },
    /// The playlist uses a feature that relays do not carry.
    Unsupported {
        /// Name of the feature.
        what: &'static str,
    },
    /// A delta update skips segments that the base playlist lacks.
    DeltaWithoutBase {
        /// Number of the first segment that the base playlist lacks.
        needed: u64,
    },
}

impl fmt::Display for PlaylistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { got } => {
                write!(
                    f,
                    "playlist of {got} bytes: must be at most {PLAYLIST_BYTES_MAX} bytes; shorten its window"
                )
            }
            Self::TooMany { what, max } => {
                write!(f, "playlist with more than {max} {what}: must be at most {max}; shorten its window")
            }
            Self::NotText => write!(f, "playlist: must be UTF-8 text"),
            Self::NotAPlaylist => write!(f, "playlist: must begin with #EXTM3U"),
            Self::Syntax { line, what } => write!(f, "playlist line {line}: {what}"),
            Self::OutOfRange { what, got, allowed } => write!(f, "playlist: {what} {got}: must be {allowed}"),
            Self::Missing { tag } => write!(f, "playlist without {tag}: the tag is required"),
            Self::Unsupported { what } => {
                write!(f, "playlist with {what}: not supported; publish the stream without")
            }
            Self::DeltaWithoutBase { needed } => {
                write!(f, "delta update without segment {needed} at hand: ask for the whole playlist")
            }
        }
    }
}

impl std::error::Error for PlaylistError {}

impl MediaPlaylist {
    /// Number of the segment after the last complete segment.
    pub fn next_msn(&self) -> u64 {
        self.media_sequence.saturating_add(self.skipped_segments).saturating_add(self.segments.len() as u64)
    }

    /// Total duration of the complete segments that are listed.
    pub fn duration(&self) -> Duration {
        self.segments.iter().fold(Duration::ZERO, |sum, segment| sum + segment.duration)
    }

    /// The delta update of this playlist, which skips segments older than `can_skip_until`. Returns
    /// `None` if no segment is that old, or if the server offers no delta updates.
    ///
    /// Source: draft-pantos-hls-rfc8216bis, section 6.2.5.1. The age of a segment is the duration
    /// of the media from its end to the end of the playlist, open parts included.
    pub fn delta(&self) -> Option<Self> {
        let until = self.server_control.can_skip_until?;
        let open = self.open.iter().flat_map(|open| &open.parts);
        let mut age = open.fold(Duration::ZERO, |sum, part| sum + part.duration);
        let mut kept = 0;
        for segment in self.segments.iter().rev() {
            if age >= until {
                break;
            }
            age += segment.duration;
            kept += 1;
        }
        let skipped = self.segments.len() - kept;
        (skipped > 0).then(|| Self {
            skipped_segments: self.skipped_segments + skipped as u64,
            segments: self.segments[skipped..].to_vec(),
            ..self.clone()
        })
    }

    /// The complete playlist of a delta update. The skipped segments are copied from `base`.
    ///
    /// Errors: [`PlaylistError::DeltaWithoutBase`] if `base` lacks a skipped segment.
    pub fn resolve(mut self, base: &Self) -> Result<Self, PlaylistError> {
        if self.skipped_segments == 0 {
            return Ok(self);
        }
        let (first, end) = (self.media_sequence, self.media_sequence.saturating_add(self.skipped_segments));
        let base_first = base.media_sequence.saturating_add(base.skipped_segments);
        let needed = if first < base_first { first } else { base.next_msn() };
        if first < base_first || end > base.next_msn() {
            return Err(PlaylistError::DeltaWithoutBase { needed });
        }
        let skipped = &base.segments[(first - base_first) as usize..(end - base_first) as usize];
        // The map of the last skipped segment also applies to the segments after it.
        let map = skipped.last().and_then(|segment| segment.head.map.clone());
        for segment in &mut self.segments {
            if segment.head.map.is_some() {
                break;
            }
            segment.head.map.clone_from(&map);
        }
        if let Some(open) = &mut self.open
            && open.head.map.is_none()
        {
            open.head.map = self.segments.last().map_or(map, |segment| segment.head.map.clone());
        }
        self.segments.splice(0..0, skipped.iter().cloned());
        self.skipped_segments = 0;
        Ok(self)
    }
}
