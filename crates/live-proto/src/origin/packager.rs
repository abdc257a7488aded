//! The packager: converts a stream of fragmented MP4 into a rendition.
//!
//! Read [`Packager`].

use super::names::Name;
use super::rendition::{Rendition, RenditionConfig, RenditionError};
use super::window::{NewSegment, Predecessor};
use anabranch_media::cmaf::{
    Cut, CutConfig, CutError, Cutter, Item, MediaTime, StreamError, StreamReader, Timeline,
};
use anabranch_media::hls::DateTime;
use anabranch_units::{Duration, Instant};
use std::fmt;

/// Number of consecutive bursty segments after which low latency is no longer offered.
const BURSTS_MAX: u32 = 3;
/// Duration of a segment's media from which its pace is judged.
const PACE_FROM: Duration = Duration::from_ms(500);

/// Settings of a packager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackagerConfig {
    /// Settings of the rendition. The segment target of `cut` overrides the rendition's.
    pub rendition: RenditionConfig,
    /// Where segments and parts are cut.
    pub cut: CutConfig,
    /// Base of the dates of segments: the date of the epoch with [`Timeline::Shared`], or of
    /// [`Instant::ZERO`] with [`Timeline::Own`]. `None` for playlists without dates.
    pub date: Option<DateTime>,
    /// Last segment number and discontinuity count of the previous source. With [`Timeline::Own`],
    /// the new source continues after them and marks a discontinuity. [`Timeline::Shared`] ignores
    /// them, because the media's time determines the segment numbers.
    pub predecessor: Option<Predecessor>,
}

/// Reason why settings or bytes are refused. After a stream error its connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PackageError {
    /// A setting of the rendition is out of range.
    Rendition(RenditionError),
    /// A setting of the cutter is out of range, or the cutter refuses a sample.
    Cut(CutError),
    /// The bytes are not a valid stream.
    Stream(StreamError),
    /// The window cannot hold one segment.
    SegmentTooLarge {
        /// Size of the open segment in bytes.
        bytes: u64,
    },
}

impl fmt::Display for PackageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rendition(error) => error.fmt(f),
            Self::Cut(error) => error.fmt(f),
            Self::Stream(error) => error.fmt(f),
            Self::SegmentTooLarge { bytes } => {
                write!(
                    f,
                    "segment of {bytes} bytes: must fit the window; lower the bitrate or enlarge the window"
                )
            }
        }
    }
}

impl std::error::Error for PackageError {}

/// Packager of one rendition.
#[derive(Debug)]
pub struct Packager {
    config: PackagerConfig,
    rendition: Rendition,
    reader: StreamReader,
    cutter: Cutter,
    /// Arrival time and media time of the first sample, the base of dates with [`Timeline::Own`].
    date_base: Option<(DateTime, MediaTime)>,
    /// Number of consecutive bursty segments.
    bursts: u32,
    /// Whether the window has accepted the current segment of the cutter.
    has_segment: bool,
}

impl Packager {
    /// Creates a packager without media.
    ///
    /// Errors: [`PackageError`] for a setting out of its range.
    pub fn new(config: PackagerConfig) -> Result<Self, PackageError> {
        let segment_target = config.cut.segment_target;
        let rendition = RenditionConfig { segment_target, ..config.rendition.clone() };
        let mut rendition = Rendition::new(rendition).map_err(PackageError::Rendition)?;
        let mut cut = config.cut;
        let predecessor = config.predecessor.filter(|_| matches!(cut.timeline, Timeline::Own { .. }));
        if let Some(predecessor) = predecessor {
            rendition.continue_after(predecessor);
            cut.timeline = Timeline::Own { first: predecessor.newest.saturating_add(1) };
        }
        let mut cutter = Cutter::new(cut).map_err(PackageError::Cut)?;
        if predecessor.is_some() {
            cutter.mark_discontinuity();
        }
        Ok(Self {
            rendition,
            reader: StreamReader::default(),
            cutter,
            date_base: None,
            bursts: 0,
            has_segment: false,
            config,
        })
    }

    /// The rendition, for requests and answers.
    pub fn rendition(&mut self) -> &mut Rendition {
        &mut self.rendition
    }

    /// Begins a new body: a segment file, or the stream of an encoder that has restarted. An
    /// unfinished fragment of the previous body is dropped.
    pub fn handle_body(&mut self) {
        self.reader.restart();
    }

    /// Takes the next bytes of the body.
    ///
    /// Errors: [`PackageError`]; segments cut before the error stay in the window. Uncut samples
    /// are dropped if the cutter or the window refuses them, and the next segment is then
    /// discontinuous.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> Result<(), PackageError> {
        let read = self.reader.handle_bytes(bytes).map_err(PackageError::Stream);
        let cut = self.cut_items(now);
        if cut.is_err() {
            self.cutter.abandon();
            self.take_cuts(now);
        }
        cut.and(read)
    }

    /// Cuts the samples that the reader has parsed.
    fn cut_items(&mut self, now: Instant) -> Result<(), PackageError> {
        while let Some(item) = self.reader.poll_item() {
            match item {
                Item::Init(init) => self.cutter.handle_init(init),
                Item::Sample(sample) => self.cutter.handle_sample(sample).map_err(PackageError::Cut)?,
            }
            self.take_cuts(now);
            if self.rendition.window().is_overfull() {
                let bytes = self.rendition.window().bytes().as_u64();
                return Err(PackageError::SegmentTooLarge { bytes });
            }
        }
        Ok(())
    }

    /// Ends the stream permanently, so that playlists end.
    pub fn handle_end(&mut self, now: Instant) {
        self.cutter.end_segment();
        self.take_cuts(now);
        self.rendition.end(now);
    }

    /// Moves the cutter's output into the window.
    fn take_cuts(&mut self, now: Instant) {
        while let Some(cut) = self.cutter.poll_cut() {
            match cut {
                Cut::Init(bytes) => self.rendition.begin_init(bytes),
                Cut::Segment { number, begin, is_discontinuous, .. } => {
                    let date = self.date(now, begin, is_discontinuous);
                    self.has_segment = self
                        .rendition
                        .begin_segment(now, NewSegment { number, date, is_discontinuous, has_parts: true });
                }
                Cut::Fragment(bytes) if self.has_segment => self.rendition.push_bytes(now, bytes),
                Cut::PartEnd { duration, is_independent } if self.has_segment => {
                    self.rendition.end_part(now, duration, is_independent);
                    self.judge_pace(false);
                    self.hint_next();
                    self.rendition.advance_all(now);
                }
                Cut::SegmentEnd if self.has_segment => {
                    self.judge_pace(true);
                    self.rendition.end_segment(now);
                }
                Cut::Fragment(_) | Cut::PartEnd { .. } | Cut::SegmentEnd => {}
            }
        }
    }

    /// Date of a segment that begins at this media time.
    fn date(&mut self, now: Instant, begin: MediaTime, is_discontinuous: bool) -> Option<DateTime> {
        let zero = self.config.date?;
        let later =
            |date: DateTime, by_ns: u64| DateTime::from_unix_ms(date.as_unix_ms() + by_ns / 1_000_000);
        let (base, since) = match self.config.cut.timeline {
            Timeline::Shared { epoch } => (zero, epoch),
            Timeline::Own { .. } => {
                if is_discontinuous {
                    self.date_base = None;
                }
                let arrival = later(zero, now.as_ns())?;
                *self.date_base.get_or_insert((arrival, begin))
            }
        };
        later(base, begin.as_ns().saturating_sub(since.as_ns()))
    }

    /// Offers low latency while parts arrive at the pace of the media: a segment must take at least
    /// half of its duration to arrive.
    fn judge_pace(&mut self, is_segment_end: bool) {
        let Some(open) = self.rendition.window().open() else { return };
        let media = open.duration();
        let took = open.changed_at().saturating_since(open.begun_at);
        if media < PACE_FROM {
            return;
        }
        if took.as_ps() >= media.as_ps() / 2 {
            self.bursts = 0;
            self.rendition.offer_parts(self.cutter.part_target());
        } else if is_segment_end {
            self.bursts += 1;
            if self.bursts >= BURSTS_MAX {
                self.rendition.offer_parts(None);
            }
        }
    }

    /// Sets the hint at the part expected next.
    fn hint_next(&mut self) {
        let hint = self.rendition.window().open().and_then(|open| {
            let expected = self.cutter.expected_number()?;
            let part = if expected > open.number { 0 } else { open.parts.len() as u64 };
            Some(Name::Part(expected.max(open.number), part))
        });
        self.rendition.hint(hint);
    }
}
