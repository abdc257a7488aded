//! The cutter: takes samples, and writes fragments of segments and parts.
//!
//! The first video track decides where to cut; without video, the first track. Time is divided into
//! cells as long as the target of a segment. A segment begins at the first key frame of each cell,
//! and has the cell's number. If no key frame arrives until shortly before a cell's end, its
//! segment begins without a key frame, so that numbers have no gaps. A part ends once its duration
//! reaches the target. Samples of other tracks belong to the part in which their decode time lies.
//! These rules use decode times only, so all copies of a stream are cut alike.
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 3 and 4.4.4.9 (parts: at least 85 % of the target,
//! except for the last part of a segment). Read [`Cutter`].

use super::write::fragment;
use super::{InitSection, MediaTime, SAMPLES_MAX, Sample, Track, TrackKind};
use anabranch_units::Duration;
use std::collections::VecDeque;
use std::fmt;

/// Maximum number of bytes of samples that are queued for cutting.
pub const WAITING_BYTES_MAX: usize = 32 << 20;
/// Maximum number of fragments of a part.
pub const FRAGMENTS_PER_PART_MAX: u32 = 16;
/// Longest duration of a sample: the longest target of a segment.
pub const SAMPLE_TIME_MAX: Duration = Duration::from_secs(60);
/// Time that other tracks may lag behind the deciding track before a part ends without them.
const TRACK_LAG_MAX: Duration = Duration::from_secs(1);

/// Rule by which segments are numbered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Timeline {
    /// The first segment has a given number, at any media time. A restart of the encoder continues
    /// with the next number.
    Own {
        /// Number of the first segment.
        first: u64,
    },
    /// The number of a segment is its time since the epoch, divided by the target of a segment. Two
    /// sources with the same epoch give equal numbers. A first cell whose beginning the source has
    /// missed yields no segment.
    Shared {
        /// Media time at which segment 0 begins.
        epoch: MediaTime,
    },
}

/// Settings of a cutter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CutConfig {
    /// Target of a segment's duration. Must be at least the interval of key frames.
    pub segment_target: Duration,
    /// Target of a part's duration, rounded to whole frames.
    pub part_target: Duration,
    /// Number of fragments of a part. Each fragment is sent as soon as it is complete.
    pub fragments_per_part: u32,
    /// Rule by which segments are numbered.
    pub timeline: Timeline,
}

/// Output of the cutter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// An initialisation section, for the segments that follow.
    Init(Vec<u8>),
    /// A segment begins.
    Segment {
        /// Number of the segment.
        number: u64,
        /// Decode time of the segment's first sample.
        begin: MediaTime,
        /// Whether the segment begins with a key frame.
        is_independent: bool,
        /// Whether time stamps or tracks change before the segment.
        is_discontinuous: bool,
    },
    /// A fragment of the open part.
    Fragment(Vec<u8>),
    /// The open part is complete.
    PartEnd {
        /// Duration of the part.
        duration: Duration,
        /// Whether the part contains a key frame.
        is_independent: bool,
    },
    /// The open segment is complete.
    SegmentEnd,
}

/// Reason why settings or samples are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutError {
    /// The target of a segment is not from 100 ms to 60 s.
    SegmentTarget(Duration),
    /// The target of a part is below 50 ms, or above the target of a segment.
    PartTarget(Duration),
    /// The number of fragments of a part is not from 1 to [`FRAGMENTS_PER_PART_MAX`].
    FragmentsPerPart(u32),
    /// A sample arrived before the initialisation section.
    NoInit,
    /// A media time is beyond 584 years.
    TimeOutOfRange {
        /// Decode time in ticks.
        decode_ticks: u64,
    },
    /// A sample is longer than [`SAMPLE_TIME_MAX`].
    SampleTooLong {
        /// Duration of the sample, at most 213 days.
        duration: Duration,
    },
    /// More than [`WAITING_BYTES_MAX`] bytes or [`SAMPLES_MAX`] samples arrived before the end of a
    /// part.
    TooMuchWaiting {
        /// Queued bytes, the refused sample included.
        bytes: usize,
    },
}

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SegmentTarget(got) => write!(f, "segment target {got}: must be from 100 ms to 60 s"),
            Self::PartTarget(got) => {
                write!(f, "part target {got}: must be at least 50 ms and no longer than a segment")
            }
            Self::FragmentsPerPart(got) => {
                write!(f, "{got} fragments per part: must be from 1 to {FRAGMENTS_PER_PART_MAX}")
            }
            Self::NoInit => write!(f, "sample before the initialisation section: send ftyp and moov first"),
            Self::TimeOutOfRange { decode_ticks } => {
                write!(f, "decode time of {decode_ticks} ticks: must be below 584 years; restart the encoder")
            }
            Self::SampleTooLong { duration } => {
                write!(
                    f,
                    "sample of {duration}: must be at most {SAMPLE_TIME_MAX}; check the encoder's time stamps"
                )
            }
            Self::TooMuchWaiting { bytes } => write!(
                f,
                "part of more than {bytes} bytes: must be at most {WAITING_BYTES_MAX} bytes and {SAMPLES_MAX} samples"
            ),
        }
    }
}

impl std::error::Error for CutError {}

#[derive(Debug)]
struct OpenSegment {
    number: u64,
    /// Cell of the timeline in which the segment lies.
    cell: u64,
    part_begin: MediaTime,
    /// Fragments written of the open part.
    fragments: u32,
    /// Fragments written of the segment.
    fragments_total: u32,
    is_part_independent: bool,
    /// Samples of the deciding track in the open fragment.
    samples: Vec<Sample>,
}

/// End of a fragment, which is written once the other tracks have reached the end.
#[derive(Copy, Clone, Debug)]
struct FragmentEnd {
    at: MediaTime,
    ends_part: bool,
}

/// Durations that follow from a stream's first frames.
#[derive(Copy, Clone, Debug)]
struct FrameTiming {
    frame: Duration,
    part: Duration,
    /// Begin of the first frame, until the second one is measured.
    first_begin: Option<MediaTime>,
}

/// Cuts samples into segments and parts.
///
/// Memory: at most [`WAITING_BYTES_MAX`] of samples, and the cuts that have not been polled.
#[derive(Debug)]
pub struct Cutter {
    config: CutConfig,
    init: Option<InitSection>,
    /// Index of the deciding track.
    primary: usize,
    /// Queued samples of each track.
    waiting: Vec<VecDeque<Sample>>,
    /// End of the newest sample of each track.
    reached: Vec<MediaTime>,
    waiting_bytes: usize,
    open: Option<OpenSegment>,
    closing: Option<FragmentEnd>,
    /// Time at which cell 0 begins, and the number of its segment. `None` until the first key frame
    /// with [`Timeline::Own`].
    cell_zero: Option<(MediaTime, u64)>,
    /// Number after the number of the last segment.
    next_number: u64,
    /// First cell whose beginning the stream contains, with [`Timeline::Shared`].
    joined_cell: Option<u64>,
    /// Decode time of the last sample of each track.
    last_begins: Vec<Option<MediaTime>>,
    timing: Option<FrameTiming>,
    is_discontinuous: bool,
    samples_dropped: u64,
    cuts: VecDeque<Cut>,
}

impl Cutter {
    /// Creates a cutter.
    ///
    /// Errors: [`CutError`] for a setting out of its range.
    pub fn new(config: CutConfig) -> Result<Self, CutError> {
        if !(Duration::from_ms(100)..=Duration::from_secs(60)).contains(&config.segment_target) {
            return Err(CutError::SegmentTarget(config.segment_target));
        }
        if !(Duration::from_ms(50)..=config.segment_target).contains(&config.part_target) {
            return Err(CutError::PartTarget(config.part_target));
        }
        if !(1..=FRAGMENTS_PER_PART_MAX).contains(&config.fragments_per_part) {
            return Err(CutError::FragmentsPerPart(config.fragments_per_part));
        }
        let (cell_zero, first) = match config.timeline {
            Timeline::Own { first } => (None, first),
            Timeline::Shared { epoch } => (Some((epoch, 0)), 0),
        };
        Ok(Self {
            config,
            init: None,
            primary: 0,
            waiting: Vec::new(),
            reached: Vec::new(),
            waiting_bytes: 0,
            open: None,
            closing: None,
            cell_zero,
            next_number: first,
            joined_cell: None,
            last_begins: Vec::new(),
            timing: None,
            is_discontinuous: false,
            samples_dropped: 0,
            cuts: VecDeque::new(),
        })
    }

    /// Upper bound of the durations of parts. `None` before the first frame.
    pub fn part_target(&self) -> Option<Duration> {
        self.timing.map(|timing| timing.part)
    }

    /// Marks the next segment as discontinuous, for a stream that continues another stream.
    pub fn mark_discontinuity(&mut self) {
        self.is_discontinuous = true;
    }

    /// Number of dropped samples: samples before the first key frame, repeated samples, and samples
    /// of a shared timeline that step back in time.
    pub fn samples_dropped(&self) -> u64 {
        self.samples_dropped
    }

    /// Takes an initialisation section. A repeated section changes nothing; a different section
    /// ends the open segment.
    pub fn handle_init(&mut self, init: InitSection) {
        if self.init.as_ref().is_some_and(|own| own.bytes == init.bytes) {
            return;
        }
        self.end_segment();
        let video = init.tracks.iter().position(|track| track.kind == TrackKind::Video);
        self.primary = video.unwrap_or(0);
        self.waiting = init.tracks.iter().map(|_| VecDeque::new()).collect();
        self.reached = vec![MediaTime::default(); init.tracks.len()];
        self.waiting_bytes = 0;
        self.last_begins = vec![None; init.tracks.len()];
        self.timing = None;
        self.is_discontinuous |= self.init.is_some();
        self.cuts.push_back(Cut::Init(init.bytes.clone()));
        self.init = Some(init);
    }

    /// Takes a sample. Samples of a track arrive in the order of their decode times. A sample that
    /// steps back by at most a segment's target is a repetition, such as from a segment file that
    /// is uploaded twice, and is dropped. A larger step back is a restart of the encoder with
    /// [`Timeline::Own`]; with [`Timeline::Shared`] the sample is dropped.
    ///
    /// Errors: [`CutError`]; the sample is dropped.
    pub fn handle_sample(&mut self, sample: Sample) -> Result<(), CutError> {
        let (begin, end) = self.times(&sample)?;
        // An equal decode time is no repetition if the previous sample has no duration.
        let is_covered = begin < self.reached[sample.track];
        let is_back = |last: &MediaTime| begin < *last || begin == *last && is_covered;
        if let Some(last) = self.last_begins[sample.track].filter(is_back) {
            let is_repeated = last.saturating_since(begin) <= self.config.segment_target;
            if is_repeated || matches!(self.config.timeline, Timeline::Shared { .. }) {
                self.samples_dropped += 1;
                return Ok(());
            }
            self.end_segment();
            self.forget_samples();
        }
        self.last_begins[sample.track] = Some(begin);
        let waiting: usize = self.waiting.iter().map(VecDeque::len).sum();
        let in_fragment = self.open.as_ref().map_or(0, |open| open.samples.len());
        let bytes = self.waiting_bytes + sample.data.len();
        if bytes > WAITING_BYTES_MAX || waiting + in_fragment >= SAMPLES_MAX {
            return Err(CutError::TooMuchWaiting { bytes });
        }
        self.waiting_bytes = bytes;
        self.reached[sample.track] = self.reached[sample.track].max(end);
        self.waiting[sample.track].push_back(sample);
        while self.step() {}
        Ok(())
    }

    /// Ends the open segment after the samples that have arrived, for a stream that ends or
    /// restarts.
    pub fn end_segment(&mut self) {
        let Some(open) = &self.open else { return };
        if !open.samples.is_empty() {
            let at = self.closing.map_or(self.reached[self.primary], |closing| closing.at);
            self.close_fragment(FragmentEnd { at, ends_part: true });
        } else if open.fragments > 0 {
            self.end_part(self.reached[self.primary]);
        }
        self.closing = None;
        self.cuts.push_back(Cut::SegmentEnd);
        self.open = None;
        if let Timeline::Own { .. } = self.config.timeline {
            self.cell_zero = None;
        }
    }

    /// Drops the queued samples and ends the open segment, for a stream that was refused. The next
    /// segment is discontinuous.
    pub fn abandon(&mut self) {
        // The open part ends at the end of its last fragment.
        let first_dropped = self.open.as_ref().and_then(|open| {
            let sample = open.samples.first().or_else(|| self.waiting[self.primary].front())?;
            Some(self.times(sample).ok()?.0)
        });
        if let Some(begin) = first_dropped {
            self.reached[self.primary] = begin;
        }
        if let Some(open) = &mut self.open {
            open.samples.clear();
        }
        self.closing = None;
        self.end_segment();
        self.forget_samples();
    }

    /// Drops the queued samples. The next segment is discontinuous.
    fn forget_samples(&mut self) {
        self.waiting.iter_mut().for_each(VecDeque::clear);
        self.waiting_bytes = 0;
        self.reached.fill(MediaTime::default());
        self.last_begins.fill(None);
        self.is_discontinuous = true;
    }

    /// Returns the next cut.
    pub fn poll_cut(&mut self) -> Option<Cut> {
        self.cuts.pop_front()
    }

    /// Number of the segment that is likely to contain the next part: the open segment's number
    /// until the end of its cell, then the next number.
    pub fn expected_number(&self) -> Option<u64> {
        let open = self.open.as_ref()?;
        let ((epoch, _), FrameTiming { frame, .. }) = (self.cell_zero?, self.timing?);
        let cell = self.cell_of(add(open.part_begin, half(frame)), epoch);
        Some(if cell > open.cell { open.number + 1 } else { open.number })
    }

    /// Begin and end of a sample.
    fn times(&self, sample: &Sample) -> Result<(MediaTime, MediaTime), CutError> {
        let track = self.track(sample.track).ok_or(CutError::NoInit)?;
        let out = CutError::TimeOutOfRange { decode_ticks: sample.decode_ticks };
        let end = sample.decode_ticks.checked_add(sample.duration_ticks.into());
        let begin = track.time(sample.decode_ticks).ok_or(out.clone())?;
        let end = end.and_then(|end| track.time(end)).ok_or(out)?;
        let duration = end.saturating_since(begin);
        if duration > SAMPLE_TIME_MAX {
            return Err(CutError::SampleTooLong { duration });
        }
        Ok((begin, end))
    }

    fn track(&self, index: usize) -> Option<&Track> {
        self.init.as_ref()?.tracks.get(index)
    }

    fn cell_of(&self, time: MediaTime, epoch: MediaTime) -> u64 {
        time.as_ns().saturating_sub(epoch.as_ns()) / self.config.segment_target.as_ns()
    }

    /// Processes one sample of the deciding track, or one end of a fragment. Returns `false` if
    /// more samples are needed.
    fn step(&mut self) -> bool {
        if let Some(closing) = self.closing {
            if !self.others_reached(closing.at) {
                return false;
            }
            self.closing = None;
            self.close_fragment(closing);
            return true;
        }
        let Some(sample) = self.waiting[self.primary].front() else { return false };
        let Ok((begin, end)) = self.times(sample) else { return false };
        let is_sync = sample.is_sync();
        self.measure_frame(begin, end);
        if let Some(cell) = self.begins_segment(begin, is_sync) {
            let open = self.open.as_ref();
            if open.is_some_and(|open| !open.samples.is_empty() || open.fragments > 0) {
                let has_samples = open.is_some_and(|open| !open.samples.is_empty());
                if has_samples {
                    self.closing = Some(FragmentEnd { at: begin, ends_part: true });
                    return true;
                }
                self.end_part(begin);
            }
            self.begin_segment(cell, begin, is_sync);
        }
        let Some(sample) = self.waiting[self.primary].pop_front() else { return false };
        let Some(open) = &mut self.open else {
            self.waiting_bytes -= sample.data.len();
            self.samples_dropped += 1;
            return true;
        };
        open.is_part_independent |= is_sync;
        open.samples.push(sample);
        let FrameTiming { frame, part, .. } = self.timing.expect("the frame was measured above");
        let reached = add(end, half(frame)).saturating_since(open.part_begin);
        let share = u64::from(open.fragments + 1);
        let of = u64::from(self.config.fragments_per_part);
        if reached >= part {
            self.closing = Some(FragmentEnd { at: end, ends_part: true });
        } else if reached.as_ns() >= part.as_ns() / of * share {
            self.closing = Some(FragmentEnd { at: end, ends_part: false });
        }
        true
    }

    /// Derives the duration of a part from the shorter one of the first two frames: the number of
    /// whole frames nearest to the target. ffmpeg lengthens the first frame of a stream by the
    /// delay of its audio encoder.
    fn measure_frame(&mut self, begin: MediaTime, end: MediaTime) {
        let target = self.config.part_target;
        let frame = end.saturating_since(begin);
        if let Some(timing) = &mut self.timing {
            let is_second = timing.first_begin.is_some_and(|first| first != begin);
            if !is_second {
                return;
            }
            timing.first_begin = None;
            if timing.frame <= frame.min(target) {
                return;
            }
        }
        let first_begin = self.timing.is_none().then_some(begin);
        let frames = (target.as_ns() + frame.as_ns() / 2).checked_div(frame.as_ns()).unwrap_or(0).max(1);
        let part = if frame == Duration::ZERO || frame > target {
            target
        } else {
            // Rounded up to a microsecond, the resolution of playlists.
            Duration::from_us((frame.as_ns() * frames).div_ceil(1_000))
        };
        self.timing = Some(FrameTiming { frame: frame.min(target), part, first_begin });
    }

    /// The cell whose segment begins with this sample. `None` if the sample begins no segment.
    fn begins_segment(&mut self, begin: MediaTime, is_sync: bool) -> Option<u64> {
        let Some(open) = &self.open else {
            let Some((epoch, _)) = self.cell_zero else {
                return is_sync.then_some(0);
            };
            if begin < epoch {
                return None;
            }
            let cell = self.cell_of(begin, epoch);
            let into_cell = (begin.as_ns() - epoch.as_ns()) % self.config.segment_target.as_ns();
            let FrameTiming { frame, .. } = self.timing?;
            // If no frame fits before the stream's first sample, it is also the first sample of its
            // cell.
            let is_begin_seen = into_cell < frame.as_ns();
            let joined = *self.joined_cell.get_or_insert(if is_begin_seen { cell } else { cell + 1 });
            let is_new = cell >= self.next_number;
            return (is_sync && cell >= joined && is_new).then_some(cell);
        };
        let (epoch, _) = self.cell_zero?;
        let cell = self.cell_of(begin, epoch);
        if cell <= open.cell {
            return None;
        }
        let cell_end = self.config.segment_target.as_ns().saturating_mul(open.cell.saturating_add(2));
        let into_timeline = begin.as_ns().saturating_sub(epoch.as_ns());
        let is_overdue = into_timeline >= cell_end.saturating_sub(self.config.part_target.as_ns());
        (is_sync || is_overdue).then_some(cell)
    }

    /// Ends the open segment, whose parts are complete, and begins the segment of `cell`.
    fn begin_segment(&mut self, cell: u64, begin: MediaTime, is_independent: bool) {
        if self.open.take().is_some() {
            self.cuts.push_back(Cut::SegmentEnd);
        }
        let (_, base) = *self.cell_zero.get_or_insert((begin, self.next_number));
        let number = base.saturating_add(cell);
        self.next_number = number.saturating_add(1);
        // Samples from before this segment belong to a segment whose beginning was missed.
        for track in 0..self.waiting.len() {
            while self.waiting[track]
                .front()
                .is_some_and(|sample| track != self.primary && self.is_before(sample, begin))
            {
                self.drop_front(track);
            }
        }
        let is_discontinuous = std::mem::take(&mut self.is_discontinuous);
        self.cuts.push_back(Cut::Segment { number, begin, is_independent, is_discontinuous });
        self.open = Some(OpenSegment {
            number,
            cell,
            part_begin: begin,
            fragments: 0,
            fragments_total: 0,
            is_part_independent: false,
            samples: Vec::new(),
        });
    }

    fn drop_front(&mut self, track: usize) {
        if let Some(sample) = self.waiting[track].pop_front() {
            self.waiting_bytes -= sample.data.len();
            self.samples_dropped += 1;
        }
    }

    fn is_before(&self, sample: &Sample, time: MediaTime) -> bool {
        self.times(sample).is_ok_and(|(begin, _)| begin < time)
    }

    /// Whether all tracks have reached this time, or lag by more than [`TRACK_LAG_MAX`].
    fn others_reached(&self, at: MediaTime) -> bool {
        let newest = self.reached[self.primary];
        self.reached.iter().all(|reached| *reached >= at || newest.saturating_since(*reached) > TRACK_LAG_MAX)
    }

    /// Writes the open fragment.
    fn close_fragment(&mut self, closing: FragmentEnd) {
        let Some(mut open) = self.open.take() else { return };
        let ids: Vec<u32> = self.init.iter().flat_map(|init| &init.tracks).map(|track| track.id).collect();
        let mut own = std::mem::take(&mut open.samples);
        let mut tracks = Vec::with_capacity(ids.len());
        for (index, id) in ids.into_iter().enumerate() {
            let mut samples = Vec::new();
            if index == self.primary {
                samples = std::mem::take(&mut own);
            } else {
                while self.waiting[index].front().is_some_and(|sample| self.is_before(sample, closing.at)) {
                    samples.extend(self.waiting[index].pop_front());
                }
            }
            self.waiting_bytes -= samples.iter().map(|sample| sample.data.len()).sum::<usize>();
            tracks.push((id, samples));
        }
        // The number depends on the position in the segment only, so that copies are equal.
        let sequence = (open.number as u32).wrapping_mul(1 << 12).wrapping_add(open.fragments_total).max(1);
        self.cuts.push_back(Cut::Fragment(fragment(sequence, &tracks)));
        open.fragments += 1;
        open.fragments_total += 1;
        self.open = Some(open);
        if closing.ends_part {
            self.end_part(closing.at);
        }
    }

    /// Ends the open part.
    fn end_part(&mut self, at: MediaTime) {
        let Some(open) = &mut self.open else { return };
        if open.fragments == 0 {
            return;
        }
        let duration = at.saturating_since(open.part_begin);
        let is_independent = std::mem::take(&mut open.is_part_independent);
        open.part_begin = at;
        open.fragments = 0;
        self.cuts.push_back(Cut::PartEnd { duration, is_independent });
    }
}

fn add(time: MediaTime, duration: Duration) -> MediaTime {
    MediaTime::from_ns(time.as_ns().saturating_add(duration.as_ns()))
}

fn half(duration: Duration) -> Duration {
    Duration::from_ps(duration.as_ps() / 2)
}
