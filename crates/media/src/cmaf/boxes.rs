//! The boxes that a relay must interpret: tracks in `moov`, samples in `moof`.
//!
//! Source: ISO/IEC 14496-12, sections 8.3.2 (`tkhd`), 8.4 (`mdhd`, `hdlr`), 8.8 (`trex`, `tfhd`,
//! `trun`, `tfdt`). Leaves out: the interpretation of all other boxes. Read [`tracks`] and
//! [`samples`].

use super::{
    EMPTY_SAMPLES_MAX, SAMPLE_BYTES_MAX, SAMPLES_MAX, SampleDefaults, StreamError, TRACKS_MAX, Track,
    TrackKind,
};

/// Unread bytes of a box's contents.
#[derive(Copy, Clone)]
pub(super) struct Contents<'a> {
    kind: [u8; 4],
    bytes: &'a [u8],
}

impl<'a> Contents<'a> {
    pub(super) fn new(kind: [u8; 4], bytes: &'a [u8]) -> Self {
        Self { kind, bytes }
    }

    pub(super) fn kind(self) -> [u8; 4] {
        self.kind
    }

    pub(super) fn is(self, kind: [u8; 4]) -> bool {
        self.kind == kind
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], StreamError> {
        let (front, rest) =
            self.bytes.split_at_checked(count).ok_or(StreamError::Truncated { kind: self.kind })?;
        self.bytes = rest;
        Ok(front)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], StreamError> {
        Ok(self.take(N)?.try_into().expect("take returns as many bytes as it is asked for"))
    }

    pub(super) fn u32(&mut self) -> Result<u32, StreamError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A number of 64 bits in version 1, of 32 bits in version 0.
    fn sized(&mut self, version: u8) -> Result<u64, StreamError> {
        if version == 1 { self.array().map(u64::from_be_bytes) } else { self.u32().map(u64::from) }
    }

    /// Version and flags of a full box.
    fn version_and_flags(&mut self) -> Result<(u8, u32), StreamError> {
        let word = self.u32()?;
        Ok(((word >> 24) as u8, word & 0xFF_FFFF))
    }

    /// Reads the next box inside this box.
    pub(super) fn child(&mut self) -> Result<Option<Contents<'a>>, StreamError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let short = self.u32()?;
        let kind = self.array()?;
        let bad = StreamError::BadSize { kind };
        let length = match short {
            0 => self.bytes.len() as u64,
            1 => u64::from_be_bytes(self.array()?).checked_sub(16).ok_or(bad)?,
            _ => u64::from(short).checked_sub(8).ok_or(bad)?,
        };
        let length = usize::try_from(length).map_err(|_| StreamError::Truncated { kind })?;
        let bytes = self.take(length)?;
        Ok(Some(Contents { kind, bytes }))
    }

    /// The first box of type `kind` inside this box.
    pub(super) fn find(mut self, kind: [u8; 4]) -> Result<Contents<'a>, StreamError> {
        while let Some(child) = self.child()? {
            if child.kind == kind {
                return Ok(child);
            }
        }
        Err(StreamError::Missing { kind })
    }
}

/// The tracks of a `moov`.
pub(super) fn tracks(moov: Contents<'_>) -> Result<Vec<Track>, StreamError> {
    let mut tracks = Vec::new();
    let mut children = moov;
    while let Some(child) = children.child()? {
        if &child.kind == b"trak" {
            if tracks.len() == TRACKS_MAX {
                return Err(StreamError::TooMany { what: "tracks", max: TRACKS_MAX });
            }
            let track = track(child)?;
            if tracks.iter().any(|other: &Track| other.id == track.id) {
                return Err(StreamError::OutOfRange { what: "number of a track, which is there twice" });
            }
            tracks.push(track);
        }
    }
    if tracks.is_empty() {
        return Err(StreamError::Missing { kind: *b"trak" });
    }
    let mut extends = moov.find(*b"mvex")?;
    while let Some(mut trex) = extends.child()? {
        if &trex.kind != b"trex" {
            continue;
        }
        trex.version_and_flags()?;
        let id = trex.u32()?;
        trex.u32()?;
        let defaults =
            SampleDefaults { duration_ticks: trex.u32()?, size_bytes: trex.u32()?, flags: trex.u32()? };
        if let Some(track) = tracks.iter_mut().find(|track| track.id == id) {
            track.defaults = defaults;
        }
    }
    Ok(tracks)
}

fn track(trak: Contents<'_>) -> Result<Track, StreamError> {
    let mut tkhd = trak.find(*b"tkhd")?;
    let (version, _) = tkhd.version_and_flags()?;
    tkhd.sized(version)?;
    tkhd.sized(version)?;
    let id = tkhd.u32()?;
    let mdia = trak.find(*b"mdia")?;
    let mut mdhd = mdia.find(*b"mdhd")?;
    let (version, _) = mdhd.version_and_flags()?;
    mdhd.sized(version)?;
    mdhd.sized(version)?;
    let timescale = mdhd.u32()?;
    if timescale == 0 {
        return Err(StreamError::OutOfRange { what: "timescale 0 of a track" });
    }
    let mut hdlr = mdia.find(*b"hdlr")?;
    hdlr.take(8)?;
    let kind = match &hdlr.array()? {
        b"vide" => TrackKind::Video,
        b"soun" => TrackKind::Audio,
        _ => TrackKind::Other,
    };
    let mut stsd = mdia.find(*b"minf")?.find(*b"stbl")?.find(*b"stsd")?;
    stsd.take(8)?;
    while let Some(entry) = stsd.child()? {
        if matches!(&entry.kind, b"encv" | b"enca") {
            return Err(StreamError::Unsupported {
                what: "encrypted samples: publish the stream without encryption",
            });
        }
    }
    Ok(Track { id, timescale, kind, defaults: SampleDefaults::default() })
}

/// A sample whose data have not arrived yet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct SampleEntry {
    /// Number of bytes from the beginning of the `moof` to the data.
    pub offset: u64,
    pub size_bytes: u32,
    pub track: usize,
    pub decode_ticks: u64,
    pub duration_ticks: u32,
    pub composition_ticks: i32,
    pub flags: u32,
}

/// The samples of a `moof`, in the order of their data. `moof_bytes` includes the header of the
/// box.
pub(super) fn samples(
    mut moof: Contents<'_>,
    moof_bytes: u64,
    tracks: &[Track],
) -> Result<Vec<SampleEntry>, StreamError> {
    let mut samples = Vec::new();
    // End of the previous track fragment's data, where the data of the next fragment begin by
    // default.
    let mut end = 0;
    while let Some(child) = moof.child()? {
        if &child.kind == b"traf" {
            end = track_fragment(child, end, tracks, &mut samples)?;
        }
    }
    let empty = samples.iter().filter(|sample: &&SampleEntry| sample.size_bytes == 0).count();
    if empty > EMPTY_SAMPLES_MAX {
        return Err(StreamError::TooMany { what: "empty samples of a fragment", max: EMPTY_SAMPLES_MAX });
    }
    samples.sort_by_key(|sample: &SampleEntry| sample.offset);
    let mut free_from = moof_bytes;
    for sample in &samples {
        if sample.offset < free_from {
            return Err(StreamError::DataOutside);
        }
        free_from = sample.offset + u64::from(sample.size_bytes);
    }
    Ok(samples)
}

/// Reads a `traf`. Returns the end of its data.
fn track_fragment(
    traf: Contents<'_>,
    default_base: u64,
    tracks: &[Track],
    samples: &mut Vec<SampleEntry>,
) -> Result<u64, StreamError> {
    let mut tfhd = traf.find(*b"tfhd")?;
    let (_, flags) = tfhd.version_and_flags()?;
    let id = tfhd.u32()?;
    let (index, track) = tracks
        .iter()
        .enumerate()
        .find(|(_, track)| track.id == id)
        .ok_or(StreamError::UnknownTrack { id })?;
    if flags & 0x1 != 0 {
        let what = "offsets from the file's beginning: use -movflags +default_base_moof";
        return Err(StreamError::Unsupported { what });
    }
    if flags & 0x2 != 0 {
        tfhd.u32()?;
    }
    let mut defaults = track.defaults;
    for (flag, value) in
        [(0x8, &mut defaults.duration_ticks), (0x10, &mut defaults.size_bytes), (0x20, &mut defaults.flags)]
    {
        if flags & flag != 0 {
            *value = tfhd.u32()?;
        }
    }
    let base = if flags & 0x2_0000 != 0 { 0 } else { default_base };
    let mut tfdt = traf.find(*b"tfdt")?;
    let (version, _) = tfdt.version_and_flags()?;
    let mut position = Position { index, base, offset: base, decode_ticks: tfdt.sized(version)? };
    let mut children = traf;
    while let Some(child) = children.child()? {
        if &child.kind == b"trun" {
            run(child, defaults, &mut position, samples)?;
        }
    }
    Ok(position.offset)
}

/// Position of the next sample in a track fragment.
struct Position {
    index: usize,
    base: u64,
    offset: u64,
    decode_ticks: u64,
}

/// Reads a `trun`.
fn run(
    mut trun: Contents<'_>,
    defaults: SampleDefaults,
    position: &mut Position,
    samples: &mut Vec<SampleEntry>,
) -> Result<(), StreamError> {
    let (version, flags) = trun.version_and_flags()?;
    let has = |flag: u32| flags & flag != 0;
    let count = trun.u32()? as usize;
    if samples.len().saturating_add(count) > SAMPLES_MAX {
        return Err(StreamError::TooMany { what: "samples of a fragment", max: SAMPLES_MAX });
    }
    if has(0x1) {
        let offset = i32::from_be_bytes(trun.array()?);
        position.offset = position.base.checked_add_signed(offset.into()).ok_or(StreamError::DataOutside)?;
    }
    let mut first_flags = if has(0x4) { Some(trun.u32()?) } else { None };
    for _ in 0..count {
        let duration_ticks = if has(0x100) { trun.u32()? } else { defaults.duration_ticks };
        let size_bytes = if has(0x200) { trun.u32()? } else { defaults.size_bytes };
        let own_flags = if has(0x400) { trun.u32()? } else { defaults.flags };
        let composition = if has(0x800) { trun.u32()? } else { 0 };
        // Composition offsets of version 0 are unsigned.
        let composition_ticks = composition as i32;
        if version == 0 && composition_ticks < 0 {
            return Err(StreamError::OutOfRange { what: "composition offset" });
        }
        if size_bytes as usize > SAMPLE_BYTES_MAX {
            return Err(StreamError::BoxTooLarge {
                kind: *b"mdat",
                got: size_bytes.into(),
                max: SAMPLE_BYTES_MAX,
            });
        }
        samples.push(SampleEntry {
            offset: position.offset,
            size_bytes,
            track: position.index,
            decode_ticks: position.decode_ticks,
            duration_ticks,
            composition_ticks,
            flags: first_flags.take().unwrap_or(own_flags),
        });
        // At most 20,000 samples of 16 MiB: the sum stays far below 2^64.
        position.offset += u64::from(size_bytes);
        position.decode_ticks = position
            .decode_ticks
            .checked_add(duration_ticks.into())
            .ok_or(StreamError::OutOfRange { what: "decode time" })?;
    }
    Ok(())
}
