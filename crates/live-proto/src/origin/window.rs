//! The live window: the newest segments of one rendition, with their bytes.
//!
//! Leaves out: requests. Read [`Window`].

use super::names::Name;
use anabranch_media::cmaf::CodecInfo;
use anabranch_media::hls::DateTime;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of segments that a live window holds.
pub const WINDOW_SEGMENTS_MAX: usize = 1_024;
/// Maximum number of parts of one segment. Further parts are joined to the last part.
pub const PARTS_PER_SEGMENT_MAX: usize = 1_024;

/// Longest duration of a segment: twice the longest target, and a reserve. A longer segment becomes
/// a gap, because players would stay behind the live edge by its duration.
pub const SEGMENT_DURATION_MAX: Duration = Duration::from_secs(150);

/// Last numbers of a source, from which its replacement continues.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// Number of the newest segment.
    pub newest: u64,
    /// Number of discontinuities up to that segment.
    pub discontinuities: u64,
}

/// An initialisation section.
#[derive(Debug)]
pub(super) struct StoredInit {
    /// Name in playlists, derived from the bytes alone.
    pub name: Name,
    pub bytes: Arc<[u8]>,
    pub codecs: CodecInfo,
}

/// A part of a segment.
#[derive(Debug)]
pub(super) struct StoredPart {
    /// Bytes of the part, in pieces as received.
    pub pieces: Vec<Arc<[u8]>>,
    pub size_bytes: u64,
    /// Duration of the part. `None` until the part is complete.
    pub duration: Option<Duration>,
    pub is_independent: bool,
    /// When the last piece arrived.
    pub changed_at: Instant,
}

/// A segment of the live window.
#[derive(Debug)]
pub(super) struct StoredSegment {
    pub number: u64,
    /// Initialisation section. `None` for a gap before the first initialisation section.
    pub init: Option<Arc<StoredInit>>,
    pub date: Option<DateTime>,
    pub is_discontinuous: bool,
    pub is_gap: bool,
    pub is_whole: bool,
    /// Whether playlists may list the segment's parts.
    pub has_parts: bool,
    pub parts: Vec<StoredPart>,
    /// When the segment began.
    pub begun_at: Instant,
}

impl StoredSegment {
    pub fn size_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.size_bytes).sum()
    }
    pub fn duration(&self) -> Duration {
        self.parts.iter().filter_map(|part| part.duration).fold(Duration::ZERO, |sum, part| sum + part)
    }
    /// Number of complete parts.
    pub fn whole_parts(&self) -> usize {
        self.parts.iter().filter(|part| part.duration.is_some()).count()
    }
    /// When the last byte arrived.
    pub fn changed_at(&self) -> Instant {
        self.parts.last().map_or(self.begun_at, |part| part.changed_at)
    }
}

/// Attributes of a new segment.
#[derive(Debug)]
pub(super) struct NewSegment {
    pub number: u64,
    pub date: Option<DateTime>,
    pub is_discontinuous: bool,
    /// Whether playlists may list the segment's parts.
    pub has_parts: bool,
}

/// The newest segments of one rendition.
#[derive(Debug)]
pub(super) struct Window {
    /// Segments with consecutive numbers. Only the last segment can be open.
    segments: VecDeque<StoredSegment>,
    /// Number of segments that playlists list.
    listed: usize,
    bytes_max: u64,
    bytes: u64,
    /// Initialisation section of the next segment.
    init: Option<Arc<StoredInit>>,
    /// Number of discontinuities before the first listed segment.
    discontinuities_before: u64,
    /// Number of the first listed segment. It never decreases.
    first_listed: u64,
    /// Duration of the longest segment so far.
    longest: Duration,
    /// Number of changes so far that are visible in playlists.
    revision: u64,
}

impl Window {
    pub fn new(listed: usize, bytes_max: ByteCount) -> Self {
        Self {
            segments: VecDeque::new(),
            listed,
            bytes_max: bytes_max.as_u64(),
            bytes: 0,
            init: None,
            discontinuities_before: 0,
            first_listed: 0,
            longest: Duration::ZERO,
            revision: 0,
        }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }
    pub fn longest(&self) -> Duration {
        self.longest
    }
    pub fn discontinuities_before(&self) -> u64 {
        self.discontinuities_before
    }
    pub fn bytes(&self) -> ByteCount {
        ByteCount::new(self.bytes)
    }

    /// Continues the numbers of a predecessor.
    pub fn continue_after(&mut self, predecessor: Predecessor) {
        self.discontinuities_before = predecessor.discontinuities;
    }

    /// Numbers from which another source can continue. `None` before the first segment.
    pub fn predecessor(&self) -> Option<Predecessor> {
        let marked = self.listed().filter(|segment| segment.is_discontinuous).count() as u64;
        let discontinuities = self.discontinuities_before + marked;
        Some(Predecessor { newest: self.newest()?, discontinuities })
    }

    /// The open segment.
    pub fn open(&self) -> Option<&StoredSegment> {
        self.segments.back().filter(|segment| !segment.is_whole)
    }

    /// Number of the newest segment, open or complete.
    pub fn newest(&self) -> Option<u64> {
        self.segments.back().map(|segment| segment.number)
    }

    /// Number of the newest complete segment.
    pub fn newest_whole(&self) -> Option<u64> {
        self.segments.iter().rev().find(|segment| segment.is_whole).map(|segment| segment.number)
    }

    /// Segments that playlists list, including the open segment.
    pub fn listed(&self) -> impl DoubleEndedIterator<Item = &StoredSegment> {
        let first = self.first_listed;
        self.segments.iter().filter(move |segment| segment.number >= first)
    }

    pub fn segment(&self, number: u64) -> Option<&StoredSegment> {
        let first = self.segments.front()?.number;
        self.segments.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// Highest bit rate, rounded up, of contiguous complete segments that include the newest one
    /// and last 0.5 to 1.5 times `target` together. `None` if no run of segments does, for example
    /// after a gap.
    ///
    /// Source: RFC 8216, section 4.1 (peak segment bit rate).
    pub fn newest_peak(&self, target: Duration) -> Option<BitRate> {
        let newest = self.segments.iter().rev().skip_while(|segment| !segment.is_whole);
        let (mut bytes, mut duration, mut peak) = (0, Duration::ZERO, None);
        for segment in newest.take_while(|segment| segment.is_whole && !segment.is_gap) {
            bytes += segment.size_bytes();
            duration += segment.duration();
            if duration.as_ps() / 3 > target.as_ps() / 2 {
                break;
            }
            if duration > Duration::ZERO && duration.as_ps() >= target.as_ps() / 2 {
                let bits = u128::from(bytes) * 8;
                let bps = (bits * 1_000_000_000_000).div_ceil(u128::from(duration.as_ps()));
                peak = peak.max(u64::try_from(bps).ok());
            }
        }
        peak.map(BitRate::bps)
    }

    pub fn init(&self, name: &Name) -> Option<&Arc<StoredInit>> {
        let of_segments = self.segments.iter().rev().filter_map(|segment| segment.init.as_ref());
        self.init.iter().chain(of_segments).find(|init| init.name == *name)
    }

    /// Codecs of the newest segments. `None` before the first initialisation section.
    pub fn codecs(&self) -> Option<&CodecInfo> {
        self.init.as_ref().map(|init| &init.codecs)
    }

    /// Stores the initialisation section of the following segments.
    pub fn begin_init(&mut self, bytes: Vec<u8>) {
        let (name, codecs) = (Name::of_init(&bytes), CodecInfo::of_init(&bytes));
        self.init = Some(Arc::new(StoredInit { name, bytes: bytes.into(), codecs }));
    }

    /// Begins a segment, and ends an open one. Skipped numbers become gaps, or empty the window if
    /// they are at least as many as a playlist lists.
    ///
    /// A number that is not above the newest one is ignored. Returns whether the segment has begun.
    pub fn begin_segment(&mut self, now: Instant, new: NewSegment) -> bool {
        let next = self.newest().map(|newest| newest + 1);
        if next.is_some_and(|next| new.number < next) || new.number == u64::MAX {
            return false;
        }
        self.end_segment();
        let missing = next.map_or(0, |next| new.number - next);
        if missing >= self.listed as u64 {
            while !self.segments.is_empty() {
                self.drop_first();
            }
        } else {
            let date = None;
            for number in new.number - missing..new.number {
                self.push(now, NewSegment { number, date, is_discontinuous: false, has_parts: false }, true);
            }
        }
        self.push(now, new, false);
        true
    }

    fn push(&mut self, now: Instant, new: NewSegment, is_gap: bool) {
        self.segments.push_back(StoredSegment {
            number: new.number,
            init: self.init.clone(),
            date: new.date,
            is_discontinuous: new.is_discontinuous,
            is_gap,
            is_whole: is_gap,
            has_parts: new.has_parts,
            parts: Vec::new(),
            begun_at: now,
        });
        self.revision += 1;
        self.trim();
    }

    /// Adds bytes to the open part of the open segment.
    pub fn push_bytes(&mut self, now: Instant, bytes: Arc<[u8]>) {
        let Some(segment) = self.segments.back_mut().filter(|segment| !segment.is_whole) else { return };
        let is_full = segment.parts.len() >= PARTS_PER_SEGMENT_MAX;
        if segment.parts.last().is_none_or(|part| part.duration.is_some() && !is_full) {
            segment.parts.push(StoredPart {
                pieces: Vec::new(),
                size_bytes: 0,
                duration: None,
                is_independent: false,
                changed_at: now,
            });
        }
        if let Some(part) = segment.parts.last_mut() {
            part.size_bytes += bytes.len() as u64;
            part.changed_at = now;
            self.bytes += bytes.len() as u64;
            part.pieces.push(bytes);
        }
        self.trim();
    }

    /// Completes the open part.
    pub fn end_part(&mut self, now: Instant, duration: Duration, is_independent: bool) {
        let Some(segment) = self.segments.back_mut().filter(|segment| !segment.is_whole) else { return };
        if let Some(part) = segment.parts.last_mut() {
            // A full segment joins further parts to its last part, which then has a duration
            // already.
            part.duration = Some(part.duration.map_or(duration, |own| own + duration));
            part.is_independent |= is_independent;
            part.changed_at = now;
            self.revision += 1;
        }
    }

    /// Ends the open segment. A segment without a complete part, or longer than
    /// [`SEGMENT_DURATION_MAX`], becomes a gap.
    pub fn end_segment(&mut self) {
        let Some(segment) = self.segments.back_mut().filter(|segment| !segment.is_whole) else { return };
        let is_too_long = segment.duration() > SEGMENT_DURATION_MAX;
        let kept = if is_too_long { 0 } else { segment.whole_parts() };
        let dropped: u64 = segment.parts.drain(kept..).map(|part| part.size_bytes).sum();
        self.bytes -= dropped;
        segment.is_whole = true;
        segment.is_gap |= kept == 0;
        self.longest = self.longest.max(segment.duration());
        self.revision += 1;
        self.trim();
    }

    /// Drops segments beyond the limits. After a segment leaves the playlist it stays for as many
    /// segments again, unless memory is short.
    fn trim(&mut self) {
        let end = self.newest().map_or(0, |newest| newest + 1);
        let open = u64::from(self.open().is_some());
        let first_listed = end.saturating_sub(self.listed as u64 + open).max(self.first_listed);
        while self.segments.len() > 1
            && (self.bytes > self.bytes_max || self.segments.len() > 2 * self.listed + 1)
        {
            self.drop_first();
        }
        let first_held = self.segments.front().map_or(0, |segment| segment.number);
        let first_listed = first_listed.max(first_held);
        if first_listed > self.first_listed {
            let unlisted = self.segments.iter().filter(|segment| {
                (self.first_listed..first_listed).contains(&segment.number) && segment.is_discontinuous
            });
            self.discontinuities_before += unlisted.count() as u64;
            self.first_listed = first_listed;
        }
    }

    fn drop_first(&mut self) {
        let Some(segment) = self.segments.pop_front() else { return };
        self.bytes -= segment.size_bytes();
        if segment.number >= self.first_listed {
            self.discontinuities_before += u64::from(segment.is_discontinuous);
            self.first_listed = segment.number + 1;
        }
    }

    /// Whether the open segment alone exceeds the window's bytes.
    pub fn is_overfull(&self) -> bool {
        self.bytes > self.bytes_max
    }
}
