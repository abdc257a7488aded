//! Streams of fragmented MP4 (CMAF): samples are read, and cut into segments and parts.
//!
//! [`StreamReader`] takes the bytes of an encoder and returns the initialisation section and the
//! samples, each as soon as its last byte has arrived. [`Cutter`] writes the samples as new
//! fragments, whose borders depend on media time only. So two copies of a stream give the same
//! segments and parts, even if they are fragmented differently.
//!
//! Copies are cut alike only if the encoder gives both copies the same decode times and key frames,
//! at a constant frame rate. ffmpeg 5.1 needs `-movflags +delay_moov` for streams with audio, or
//! times shift after the first fragment. For streams with audio, its `+frag_every_frame` writes
//! wrong times for every third frame of video, so `-frag_duration` must be used instead.
//!
//! Source: ISO/IEC 14496-12 (boxes), sections 8.8 (movie fragments) and 8.16 (segments); ISO/IEC
//! 23000-19 (CMAF), section 7.3. Leaves out: encrypted samples, which are refused; events (`emsg`),
//! producer times (`prft`) and indices (`sidx`), which are skipped. Read [`StreamReader`] and
//! [`Cutter`] first.

mod boxes;
mod codecs;
mod cutter;
mod pattern;
mod reader;
#[cfg(test)]
mod tests;
mod write;

pub use codecs::CodecInfo;
pub use cutter::{
    Cut, CutConfig, CutError, Cutter, FRAGMENTS_PER_PART_MAX, SAMPLE_TIME_MAX, Timeline, WAITING_BYTES_MAX,
};
pub use pattern::TestPattern;
pub use reader::{Item, StreamReader};

use anabranch_units::Duration;
use std::fmt;

/// Largest initialisation section (`ftyp` and `moov`).
pub const INIT_BYTES_MAX: usize = 1 << 20;
/// Largest description of a fragment (`moof`).
pub const MOOF_BYTES_MAX: usize = 1 << 20;
/// Largest sample.
pub const SAMPLE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of samples of a fragment.
pub const SAMPLES_MAX: usize = 20_000;
/// Maximum number of samples of a fragment that have no data, such as empty subtitles. Empty
/// samples use no bytes of the stream, so this limit bounds the queue of the reader.
pub const EMPTY_SAMPLES_MAX: usize = 100;
/// Maximum number of tracks of a stream.
pub const TRACKS_MAX: usize = 8;

/// A point on the media timeline, which the encoder sets.
///
/// Units: nanoseconds since the beginning of the encoder's timeline, rounded down.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MediaTime(u64);

impl MediaTime {
    /// The point `ns` nanoseconds after the beginning of the timeline.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }
    /// Nanoseconds since the beginning of the timeline.
    pub const fn as_ns(self) -> u64 {
        self.0
    }
    /// The time from `earlier` to `self`; zero if `earlier` is later. At most 213 days.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_ps(self.0.saturating_sub(earlier.0).saturating_mul(1_000))
    }
}

/// Kind of a track.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TrackKind {
    /// Video.
    Video,
    /// Audio.
    Audio,
    /// Any other kind.
    Other,
}

/// A track of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Number of the track in the boxes (`tkhd`).
    pub id: u32,
    /// Ticks per second (`mdhd`), at least 1.
    pub timescale: u32,
    /// Kind of the track (`hdlr`).
    pub kind: TrackKind,
    /// Defaults of the track's samples (`trex`).
    pub defaults: SampleDefaults,
}

impl Track {
    /// Converts `ticks` to media time. Returns `None` beyond 584 years.
    pub fn time(&self, ticks: u64) -> Option<MediaTime> {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.timescale);
        u64::try_from(ns).ok().map(MediaTime)
    }
}

/// Values of samples that have no explicit values.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleDefaults {
    /// Duration in ticks.
    pub duration_ticks: u32,
    /// Size in bytes.
    pub size_bytes: u32,
    /// Flags (ISO/IEC 14496-12, section 8.8.3.1).
    pub flags: u32,
}

/// Initialisation section of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitSection {
    /// The boxes `ftyp` and `moov`, unchanged.
    pub bytes: Vec<u8>,
    /// The tracks, in the order of the boxes.
    pub tracks: Vec<Track>,
}

/// A coded frame of video or audio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index of the sample's track in [`InitSection::tracks`].
    pub track: usize,
    /// Decode time in ticks of the track.
    pub decode_ticks: u64,
    /// Duration in ticks of the track.
    pub duration_ticks: u32,
    /// Presentation time minus decode time, in ticks.
    pub composition_ticks: i32,
    /// Flags (ISO/IEC 14496-12, section 8.8.3.1).
    pub flags: u32,
    /// Coded bytes of the frame.
    pub data: Vec<u8>,
}

impl Sample {
    /// Whether decoding can begin with this sample.
    pub fn is_sync(&self) -> bool {
        self.flags & FLAG_NON_SYNC == 0
    }
}

/// Flag of a sample whose decoding needs earlier samples (`sample_is_non_sync_sample`).
const FLAG_NON_SYNC: u32 = 0x1_0000;

/// Reason why a stream is refused. The reader refuses all later bytes of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// A box is larger than its limit.
    BoxTooLarge {
        /// Type of the box.
        kind: [u8; 4],
        /// Size of the box in bytes.
        got: u64,
        /// Limit in bytes.
        max: usize,
    },
    /// A box is shorter than its contents.
    Truncated {
        /// Type of the box, or of its parent.
        kind: [u8; 4],
    },
    /// A box has no explicit size, or its size does not include the header.
    BadSize {
        /// Type of the box.
        kind: [u8; 4],
    },
    /// A required box is missing.
    Missing {
        /// Type of the box.
        kind: [u8; 4],
    },
    /// A fragment arrived before the initialisation section, or names a track that does not exist.
    UnknownTrack {
        /// Number of the track.
        id: u32,
    },
    /// The stream has more entries of one kind than the limit.
    TooMany {
        /// Kind of the entries.
        what: &'static str,
        /// Maximum number of entries allowed.
        max: usize,
    },
    /// A value is out of its range.
    OutOfRange {
        /// Name of the value.
        what: &'static str,
    },
    /// The data of a fragment lie outside the `mdat` that follows it, or overlap.
    DataOutside,
    /// The stream uses a feature that cannot be cut.
    Unsupported {
        /// Name of the feature, and a remedy.
        what: &'static str,
    },
}

/// Type of a box as text.
struct Kind([u8; 4]);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BoxTooLarge { kind, got, max } => {
                write!(
                    f,
                    "box {} of {got} bytes: must be at most {max} bytes; use shorter fragments",
                    Kind(*kind)
                )
            }
            Self::Truncated { kind } => write!(f, "box {}: its contents end early", Kind(*kind)),
            Self::BadSize { kind } => {
                write!(f, "box {}: the size must be given and include the header", Kind(*kind))
            }
            Self::Missing { kind } => write!(f, "stream without box {}: must be fragmented MP4", Kind(*kind)),
            Self::UnknownTrack { id } => {
                write!(f, "fragment of track {id}: the track must be in the initialisation section before it")
            }
            Self::TooMany { what, max } => write!(f, "more than {max} {what}: must be at most {max}"),
            Self::OutOfRange { what } => write!(f, "{what}: the value is out of range"),
            Self::DataOutside => {
                write!(f, "fragment with data outside its mdat: each moof must be followed by its mdat")
            }
            Self::Unsupported { what } => write!(f, "stream with {what}"),
        }
    }
}

impl std::error::Error for StreamError {}
