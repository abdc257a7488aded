//! Writer of playlists.
//!
//! Source: draft-pantos-hls-rfc8216bis, section 4.4. Leaves out: line breaks and quotation marks in
//! URIs and names, which the standard cannot express and which are not written. Read
//! [`MediaPlaylist::write`].

use super::{ByteRange, HintKind, MediaPlaylist, Part, PreloadHint, SegmentHead};
use anabranch_units::Duration;
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// A duration in seconds with at most six decimals, rounded to the nearest microsecond.
///
/// ```
/// use anabranch_media::hls::seconds;
/// use anabranch_units::Duration;
/// assert_eq!(seconds(Duration::from_us(200_000)).to_string(), "0.2");
/// assert_eq!(seconds(Duration::from_secs(2)).to_string(), "2.0");
/// ```
pub fn seconds(duration: Duration) -> impl fmt::Display {
    Seconds(duration)
}

/// Text form of a duration, in seconds.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_ps().saturating_add(500_000) / 1_000_000;
        let decimals = format!("{:06}", us % 1_000_000);
        let kept = decimals.trim_end_matches('0');
        write!(f, "{}.{}", us / 1_000_000, if kept.is_empty() { "0" } else { kept })
    }
}

/// Text that is written inside quotation marks.
pub(super) struct QuotedText<'a>(pub &'a str);

impl fmt::Display for QuotedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        self.0.chars().filter(|c| !matches!(c, '"' | '\n' | '\r')).try_for_each(|c| f.write_char(c))?;
        f.write_char('"')
    }
}

/// Text form of a range: `LENGTH@OFFSET`.
struct Range(ByteRange);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.0.length.as_u64(), self.0.offset.as_u64())
    }
}

impl MediaPlaylist {
    /// Writes the playlist as text.
    ///
    /// Units: durations have six decimals; the target duration is rounded up to whole seconds.
    pub fn write(&self) -> String {
        let mut text = String::with_capacity(256 + 96 * self.segments.len());
        self.write_to(&mut text).expect("writing to a string cannot fail");
        text
    }

    fn write_to(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "#EXTM3U\n#EXT-X-VERSION:{}", if self.skipped_segments > 0 { 9 } else { 7 })?;
        let target_s = self.target_duration.as_ps().div_ceil(Duration::from_secs(1).as_ps());
        writeln!(text, "#EXT-X-TARGETDURATION:{target_s}")?;
        self.write_control(text)?;
        writeln!(text, "#EXT-X-MEDIA-SEQUENCE:{}", self.media_sequence)?;
        if self.discontinuity_sequence > 0 {
            writeln!(text, "#EXT-X-DISCONTINUITY-SEQUENCE:{}", self.discontinuity_sequence)?;
        }
        if self.has_independent_segments {
            writeln!(text, "#EXT-X-INDEPENDENT-SEGMENTS")?;
        }
        if self.skipped_segments > 0 {
            writeln!(text, "#EXT-X-SKIP:SKIPPED-SEGMENTS={}", self.skipped_segments)?;
        }
        let mut map = None;
        for segment in &self.segments {
            write_head(text, &segment.head, &mut map)?;
            segment.parts.iter().try_for_each(|part| write_part(text, part))?;
            if segment.is_gap {
                writeln!(text, "#EXT-X-GAP")?;
            }
            writeln!(text, "#EXTINF:{},", Seconds(segment.duration))?;
            if let Some(range) = segment.resource.range {
                writeln!(text, "#EXT-X-BYTERANGE:{}", Range(range))?;
            }
            let is_plain = |c: &char| !matches!(c, '\n' | '\r');
            text.extend(segment.resource.uri.chars().filter(is_plain));
            text.push('\n');
        }
        if let Some(open) = &self.open {
            write_head(text, &open.head, &mut map)?;
            open.parts.iter().try_for_each(|part| write_part(text, part))?;
        }
        self.preload_hints.iter().try_for_each(|hint| write_hint(text, hint))?;
        for report in &self.rendition_reports {
            write!(text, "#EXT-X-RENDITION-REPORT:URI={}", QuotedText(&report.uri))?;
            if let Some(msn) = report.last_msn {
                write!(text, ",LAST-MSN={msn}")?;
            }
            if let Some(part) = report.last_part {
                write!(text, ",LAST-PART={part}")?;
            }
            text.push('\n');
        }
        if self.is_ended {
            writeln!(text, "#EXT-X-ENDLIST")?;
        }
        Ok(())
    }

    /// Writes EXT-X-SERVER-CONTROL and EXT-X-PART-INF.
    fn write_control(&self, text: &mut String) -> fmt::Result {
        let control = &self.server_control;
        let duration = |name: &str, duration: Option<Duration>| {
            duration.map(|duration| format!("{name}={}", Seconds(duration)))
        };
        let attributes: Vec<String> = [
            control.can_block_reload.then(|| "CAN-BLOCK-RELOAD=YES".to_owned()),
            duration("CAN-SKIP-UNTIL", control.can_skip_until),
            duration("HOLD-BACK", control.hold_back),
            duration("PART-HOLD-BACK", control.part_hold_back),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !attributes.is_empty() {
            writeln!(text, "#EXT-X-SERVER-CONTROL:{}", attributes.join(","))?;
        }
        if let Some(target) = self.part_target {
            writeln!(text, "#EXT-X-PART-INF:PART-TARGET={}", Seconds(target))?;
        }
        Ok(())
    }
}

/// Writes the attributes that precede a segment. The map is written only where it changes.
fn write_head(text: &mut String, head: &SegmentHead, map: &mut Option<Arc<super::Resource>>) -> fmt::Result {
    if head.is_discontinuous {
        writeln!(text, "#EXT-X-DISCONTINUITY")?;
    }
    if let Some(own) = &head.map
        && map.as_ref() != Some(own)
    {
        write!(text, "#EXT-X-MAP:URI={}", QuotedText(&own.uri))?;
        if let Some(range) = own.range {
            write!(text, ",BYTERANGE=\"{}\"", Range(range))?;
        }
        text.push('\n');
        *map = Some(Arc::clone(own));
    }
    if let Some(date) = head.date {
        writeln!(text, "#EXT-X-PROGRAM-DATE-TIME:{date}")?;
    }
    Ok(())
}

/// Writes EXT-X-PART.
fn write_part(text: &mut String, part: &Part) -> fmt::Result {
    write!(text, "#EXT-X-PART:DURATION={},URI={}", Seconds(part.duration), QuotedText(&part.resource.uri))?;
    if let Some(range) = part.resource.range {
        write!(text, ",BYTERANGE=\"{}\"", Range(range))?;
    }
    if part.is_independent {
        write!(text, ",INDEPENDENT=YES")?;
    }
    if part.is_gap {
        write!(text, ",GAP=YES")?;
    }
    text.push('\n');
    Ok(())
}

/// Writes EXT-X-PRELOAD-HINT.
fn write_hint(text: &mut String, hint: &PreloadHint) -> fmt::Result {
    let kind = match hint.kind {
        HintKind::Part => "PART",
        HintKind::Map => "MAP",
    };
    write!(text, "#EXT-X-PRELOAD-HINT:TYPE={kind},URI={}", QuotedText(&hint.uri))?;
    if hint.start.as_u64() > 0 {
        write!(text, ",BYTERANGE-START={}", hint.start.as_u64())?;
    }
    if let Some(length) = hint.length {
        write!(text, ",BYTERANGE-LENGTH={}", length.as_u64())?;
    }
    text.push('\n');
    Ok(())
}
