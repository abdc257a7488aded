//! Parser of media playlists.
//!
//! Source: draft-pantos-hls-rfc8216bis, section 4.4. Read [`MediaPlaylist::read`].

use super::{
    ByteRange, DURATION_MAX, HintKind, LINES_MAX, MediaPlaylist, OpenSegment, PARTS_MAX, PLAYLIST_BYTES_MAX,
    Part, PlaylistError, PreloadHint, RenditionReport, Resource, SEGMENTS_MAX, Segment, SegmentHead,
    TEXT_BYTES_MAX, VARIANTS_MAX, read_date_time,
};
use anabranch_units::{ByteCount, Duration};
use m3u8_parser::m3u8::playlist::Playlist;
use m3u8_parser::m3u8::tags::{self, Tag};
use std::sync::Arc;

/// The tags of a playlist, after a check of its limits.
pub(super) fn read_tags(bytes: &[u8]) -> Result<Vec<Tag>, PlaylistError> {
    if bytes.len() > PLAYLIST_BYTES_MAX {
        return Err(PlaylistError::TooLong { got: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|_| PlaylistError::NotText)?;
    if text.lines().count() > LINES_MAX {
        return Err(PlaylistError::TooMany { what: "lines", max: LINES_MAX });
    }
    let is_playlist = |line: &str| line.trim_start_matches('\u{feff}').trim_end() == "#EXTM3U";
    if !text.lines().next().is_some_and(is_playlist) {
        return Err(PlaylistError::NotAPlaylist);
    }
    let playlist: Playlist = text.parse().map_err(|error: m3u8_parser::m3u8::error::ParseError| {
        let what = error.syntax().map_or_else(|| error.to_string(), ToString::to_string);
        let what = what.chars().take(200).collect();
        PlaylistError::Syntax { line: error.line().unwrap_or(1), what }
    })?;
    Ok(playlist.tags)
}

/// Converts seconds to a duration, to a microsecond.
pub(super) fn duration(what: &'static str, seconds: f64) -> Result<Duration, PlaylistError> {
    let max = DURATION_MAX.as_secs_f64();
    if (0.0..=max).contains(&seconds) {
        return Ok(Duration::from_us((seconds * 1e6).round() as u64));
    }
    Err(PlaylistError::OutOfRange { what, got: format!("{seconds} s"), allowed: "from 0 s to 1 h" })
}

/// Checks the length and characters of a URI or name.
pub(super) fn text(what: &'static str, text: String) -> Result<String, PlaylistError> {
    let is_allowed = (1..=TEXT_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control);
    if is_allowed {
        return Ok(text);
    }
    let got = format!("of {} bytes", text.len());
    Err(PlaylistError::OutOfRange { what, got, allowed: "1 to 2048 bytes without control characters" })
}

/// Parser of a media playlist, with the state between two tags.
#[derive(Default)]
struct Reader {
    playlist: MediaPlaylist,
    /// Attributes of the next segment.
    head: SegmentHead,
    parts: Vec<Part>,
    range: Option<tags::ByteRange>,
    is_gap: bool,
    /// Resource and end of the last range of a segment, and of a part.
    last_segment_range: Option<(String, ByteCount)>,
    last_part_range: Option<(String, ByteCount)>,
    parts_total: usize,
    has_target_duration: bool,
}

impl MediaPlaylist {
    /// Reads a media playlist.
    ///
    /// Errors: [`PlaylistError`] for text that does not follow the standard, exceeds a limit of
    /// this module, or uses encryption, variables or I-frame playlists.
    ///
    /// ```
    /// use anabranch_media::hls::MediaPlaylist;
    /// let text = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\na.mp4\n";
    /// let playlist = MediaPlaylist::read(text.as_bytes()).expect("a playlist");
    /// assert_eq!(playlist.segments[0].resource.uri, "a.mp4");
    /// ```
    pub fn read(bytes: &[u8]) -> Result<Self, PlaylistError> {
        let mut reader = Reader::default();
        for tag in read_tags(bytes)? {
            reader.read_tag(tag)?;
        }
        if !reader.has_target_duration {
            return Err(PlaylistError::Missing { tag: "EXT-X-TARGETDURATION" });
        }
        let mut playlist = reader.playlist;
        if !reader.parts.is_empty() {
            playlist.open = Some(OpenSegment { head: reader.head, parts: reader.parts });
        }
        if playlist.part_target.is_none() && reader.parts_total > 0 {
            return Err(PlaylistError::Missing { tag: "EXT-X-PART-INF" });
        }
        let last = playlist.media_sequence.checked_add(playlist.skipped_segments);
        if last.is_none_or(|last| last > u64::MAX / 2) {
            let got = playlist.media_sequence.to_string();
            return Err(PlaylistError::OutOfRange {
                what: "EXT-X-MEDIA-SEQUENCE",
                got,
                allowed: "below 2^63",
            });
        }
        Ok(playlist)
    }
}

impl Reader {
    fn read_tag(&mut self, tag: Tag) -> Result<(), PlaylistError> {
        let playlist = &mut self.playlist;
        match tag {
            Tag::ExtXTargetDuration(seconds) => {
                playlist.target_duration = duration("EXT-X-TARGETDURATION", seconds as f64)?;
                self.has_target_duration = true;
            }
            Tag::ExtXMediaSequence(number) => playlist.media_sequence = number,
            Tag::ExtXDiscontinuitySequence(number) => playlist.discontinuity_sequence = number.into(),
            Tag::ExtXIndependentSegments => playlist.has_independent_segments = true,
            Tag::ExtXPartInf { part_target_duration } => {
                playlist.part_target = Some(duration("PART-TARGET", part_target_duration)?);
            }
            Tag::ExtXServerControl {
                can_skip_until, hold_back, part_hold_back, can_block_reload, ..
            } => {
                let optional =
                    |what, value: Option<f64>| value.map(|value| duration(what, value)).transpose();
                let control = &mut playlist.server_control;
                control.can_block_reload = can_block_reload.unwrap_or(false);
                control.can_skip_until = optional("CAN-SKIP-UNTIL", can_skip_until)?;
                control.hold_back = optional("HOLD-BACK", hold_back)?;
                control.part_hold_back = optional("PART-HOLD-BACK", part_hold_back)?;
            }
            Tag::ExtXSkip { skipped_segments, .. } => {
                let count = u64::from(skipped_segments);
                if count > SEGMENTS_MAX as u64 {
                    return Err(PlaylistError::TooMany { what: "skipped segments", max: SEGMENTS_MAX });
                }
                playlist.skipped_segments = count;
            }
            Tag::ExtXEndList => playlist.is_ended = true,
            Tag::ExtXDiscontinuity => self.head.is_discontinuous = true,
            Tag::ExtXGap => self.is_gap = true,
            Tag::ExtXByteRange(range) => self.range = Some(range),
            Tag::ExtXProgramDateTime(text) => {
                let date = read_date_time(&text).ok_or_else(|| PlaylistError::OutOfRange {
                    what: "EXT-X-PROGRAM-DATE-TIME",
                    got: text.chars().take(64).collect(),
                    allowed: "a date with an offset from UTC, from 1970 to 9999",
                })?;
                self.head.date = Some(date);
            }
            Tag::ExtXMap(map) => {
                let uri = text("EXT-X-MAP", map.uri)?;
                let range = resolve_range(map.byterange, &uri, &mut None)?;
                self.head.map = Some(Arc::new(Resource { uri, range }));
            }
            Tag::ExtXPart { uri, duration: length, independent, byterange, gap } => {
                self.read_part(uri, length, byterange, (independent == Some(true), gap == Some(true)))?;
            }
            Tag::ExtInf { uri, duration, .. } => self.read_segment(uri, duration)?,
            Tag::ExtXPreloadHint { type_, uri, byterange_start, byterange_length } => {
                let kind = match &*type_ {
                    "PART" => HintKind::Part,
                    "MAP" => HintKind::Map,
                    _ => return Ok(()),
                };
                if playlist.preload_hints.iter().any(|hint| hint.kind == kind) {
                    return Err(PlaylistError::TooMany { what: "preload hints of a type", max: 1 });
                }
                playlist.preload_hints.push(PreloadHint {
                    kind,
                    uri: text("URI of EXT-X-PRELOAD-HINT", uri)?,
                    start: ByteCount::new(byterange_start.unwrap_or(0)),
                    length: byterange_length.map(ByteCount::new),
                });
            }
            Tag::ExtXRenditionReport { uri, last_msn, last_part } => {
                if playlist.rendition_reports.len() == VARIANTS_MAX {
                    return Err(PlaylistError::TooMany { what: "rendition reports", max: VARIANTS_MAX });
                }
                let uri = text("URI of EXT-X-RENDITION-REPORT", uri)?;
                playlist.rendition_reports.push(RenditionReport { uri, last_msn, last_part });
            }
            Tag::ExtXKey(key) if key.method != "NONE" => {
                return Err(PlaylistError::Unsupported { what: "encrypted segments (EXT-X-KEY)" });
            }
            Tag::ExtXDefine(_) => {
                return Err(PlaylistError::Unsupported { what: "variables (EXT-X-DEFINE)" });
            }
            Tag::ExtXIFramesOnly => {
                return Err(PlaylistError::Unsupported { what: "I-frames only (EXT-X-I-FRAMES-ONLY)" });
            }
            Tag::ExtXStreamInf { .. } | Tag::ExtXMedia { .. } | Tag::ExtXIFrameStreamInf { .. } => {
                return Err(PlaylistError::Unsupported {
                    what: "variants; give the playlist of one rendition",
                });
            }
            Tag::Uri(_) => return Err(PlaylistError::Missing { tag: "EXTINF" }),
            _ => {}
        }
        Ok(())
    }

    fn read_part(
        &mut self,
        uri: String,
        length: f64,
        range: Option<tags::ByteRange>,
        (is_independent, is_gap): (bool, bool),
    ) -> Result<(), PlaylistError> {
        self.parts_total += 1;
        if self.parts_total > PARTS_MAX {
            return Err(PlaylistError::TooMany { what: "parts", max: PARTS_MAX });
        }
        let uri = text("URI of EXT-X-PART", uri)?;
        let range = resolve_range(range, &uri, &mut self.last_part_range)?;
        let duration = duration("DURATION of EXT-X-PART", length)?;
        self.parts.push(Part { resource: Resource { uri, range }, duration, is_independent, is_gap });
        Ok(())
    }

    fn read_segment(&mut self, uri: String, length: f64) -> Result<(), PlaylistError> {
        if self.playlist.segments.len() == SEGMENTS_MAX {
            return Err(PlaylistError::TooMany { what: "segments", max: SEGMENTS_MAX });
        }
        let uri = text("URI of a segment", uri)?;
        let range = resolve_range(self.range.take(), &uri, &mut self.last_segment_range)?;
        let map = self.head.map.clone();
        let next_head = SegmentHead { map, ..SegmentHead::default() };
        self.playlist.segments.push(Segment {
            head: std::mem::replace(&mut self.head, next_head),
            resource: Resource { uri, range },
            duration: duration("EXTINF", length)?,
            is_gap: std::mem::take(&mut self.is_gap),
            parts: std::mem::take(&mut self.parts),
        });
        Ok(())
    }
}

/// The range of a resource. A range without an offset begins at the end of `last`, if `last` is in
/// the same resource.
fn resolve_range(
    range: Option<tags::ByteRange>,
    uri: &str,
    last: &mut Option<(String, ByteCount)>,
) -> Result<Option<ByteRange>, PlaylistError> {
    let Some(range) = range else {
        *last = None;
        return Ok(None);
    };
    let following = || last.as_ref().filter(|(of, _)| of == uri).map(|(_, end)| end.as_u64());
    let offset = range.offset.or_else(following).unwrap_or(0);
    if offset.checked_add(range.length).is_none() {
        let got = format!("{}@{offset}", range.length);
        return Err(PlaylistError::OutOfRange { what: "BYTERANGE", got, allowed: "an end below 2^64" });
    }
    let range = ByteRange { offset: ByteCount::new(offset), length: ByteCount::new(range.length) };
    *last = Some((uri.to_owned(), range.end()));
    Ok(Some(range))
}
