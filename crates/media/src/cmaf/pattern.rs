//! A test pattern: a stream of fragmented MP4 of any bitrate, made without an encoder.
//!
//! Its samples contain no pictures: packagers, relays and measuring players accept the stream,
//! decoders do not. Source: ISO/IEC 14496-12, sections 4.3 and 8. Read [`TestPattern`] first.

use super::write::{boxed, fragment, words};
use super::{FLAG_NON_SYNC, Sample};
use anabranch_units::{BitRate, Duration};

/// Ticks per second.
const TIMESCALE: u32 = 90_000;
/// Frames per second.
const FRAMES_PER_S: u32 = 25;
/// Number of the only track.
const TRACK: u32 = 1;
/// Size of a key frame, as a multiple of the size of other frames.
const KEY_FRAME_WEIGHT: u64 = 4;

/// Generator of a stream with one video track of 25 frames a second.
#[derive(Clone, Debug)]
pub struct TestPattern {
    bitrate: BitRate,
    frames_per_fragment: u32,
    frames_per_key: u32,
    /// Frames written so far.
    frames: u64,
    fragments: u32,
}

impl TestPattern {
    /// Creates a stream of this bitrate. `fragment` is the duration of a fragment and `key` the
    /// interval of key frames, both rounded to whole frames, at least one.
    pub fn new(bitrate: BitRate, fragment: Duration, key: Duration) -> Self {
        let frames = |time: Duration| {
            let frames = (time.as_ns() + 20_000_000) / 40_000_000;
            u32::try_from(frames.max(1)).unwrap_or(u32::MAX)
        };
        Self {
            bitrate,
            frames_per_fragment: frames(fragment),
            frames_per_key: frames(key),
            frames: 0,
            fragments: 0,
        }
    }

    /// The initialisation section.
    pub fn init(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        boxed(&mut bytes, b"ftyp", |bytes| bytes.extend_from_slice(b"isom\0\0\0\0isomiso6cmfc"));
        boxed(&mut bytes, b"moov", |bytes| {
            boxed(bytes, b"mvhd", |bytes| {
                words(bytes, &[0, 0, 0, TIMESCALE, 0, 0x1_0000, 0x0100_0000, 0, 0]);
                matrix(bytes);
                words(bytes, &[0, 0, 0, 0, 0, 0, TRACK + 1]);
            });
            boxed(bytes, b"trak", |bytes| {
                boxed(bytes, b"tkhd", |bytes| {
                    words(bytes, &[7, 0, 0, TRACK, 0, 0, 0, 0, 0, 0]);
                    matrix(bytes);
                    words(bytes, &[640 << 16, 360 << 16]);
                });
                boxed(bytes, b"mdia", media);
            });
            boxed(bytes, b"mvex", |bytes| {
                boxed(bytes, b"trex", |bytes| words(bytes, &[0, TRACK, 1, 0, 0, 0]));
            });
        });
        bytes
    }

    /// The next fragment.
    pub fn next_fragment(&mut self) -> Vec<u8> {
        let samples = (0..self.frames_per_fragment).map(|_| self.next_frame()).collect();
        self.fragments = self.fragments.wrapping_add(1);
        fragment(self.fragments, &[(TRACK, samples)])
    }

    /// Duration of a fragment.
    pub const fn fragment_time(&self) -> Duration {
        Duration::from_ms(40 * self.frames_per_fragment as u64)
    }

    fn next_frame(&mut self) -> Sample {
        let is_key = self.frames.is_multiple_of(u64::from(self.frames_per_key));
        let weight = |is_key| if is_key { KEY_FRAME_WEIGHT } else { 1 };
        let total = u64::from(self.frames_per_key) - 1 + KEY_FRAME_WEIGHT;
        let group_bytes = u128::from(self.bitrate.as_bps()) * u128::from(self.frames_per_key)
            / (8 * u128::from(FRAMES_PER_S));
        let size = group_bytes * u128::from(weight(is_key)) / u128::from(total);
        let ticks = u64::from(TIMESCALE / FRAMES_PER_S);
        let sample = Sample {
            track: 0,
            decode_ticks: self.frames * ticks,
            duration_ticks: TIMESCALE / FRAMES_PER_S,
            composition_ticks: 0,
            flags: if is_key { 0x0200_0000 } else { 0x0100_0000 | FLAG_NON_SYNC },
            data: vec![(self.frames % 251) as u8; usize::try_from(size).unwrap_or(usize::MAX)],
        };
        self.frames += 1;
        sample
    }
}

fn media(bytes: &mut Vec<u8>) {
    boxed(bytes, b"mdhd", |bytes| words(bytes, &[0, 0, 0, TIMESCALE, 0, 0x55C4_0000]));
    boxed(bytes, b"hdlr", |bytes| {
        words(bytes, &[0, 0]);
        bytes.extend_from_slice(b"vide");
        words(bytes, &[0, 0, 0]);
        bytes.extend_from_slice(b"pattern\0");
    });
    boxed(bytes, b"minf", |bytes| {
        boxed(bytes, b"vmhd", |bytes| words(bytes, &[1, 0, 0]));
        boxed(bytes, b"dinf", |bytes| {
            boxed(bytes, b"dref", |bytes| {
                words(bytes, &[0, 1]);
                boxed(bytes, b"url ", |bytes| words(bytes, &[1]));
            });
        });
        boxed(bytes, b"stbl", |bytes| {
            boxed(bytes, b"stsd", |bytes| {
                words(bytes, &[0, 1]);
                boxed(bytes, b"avc1", |bytes| bytes.extend_from_slice(&[0; 78]));
            });
            for kind in [b"stts", b"stsc", b"stco"] {
                boxed(bytes, kind, |bytes| words(bytes, &[0, 0]));
            }
            boxed(bytes, b"stsz", |bytes| words(bytes, &[0, 0, 0]));
        });
    });
}

/// Writes the unity matrix.
fn matrix(bytes: &mut Vec<u8>) {
    words(bytes, &[0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmaf::{Item, StreamReader};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn test_pattern_is_valid_and_has_its_bitrate(kbps in 50..20_000_u64, frames in 1..10_u64) {
            let (fragment, key) = (Duration::from_ms(40 * frames), Duration::from_secs(2));
            let mut pattern = TestPattern::new(BitRate::bps(kbps * 1_000), fragment, key);
            let mut reader = StreamReader::default();
            let mut bytes = pattern.init();
            let count = 50 * 4 / frames;
            (0..count).for_each(|_| bytes.extend(pattern.next_fragment()));
            let (mut media_bytes, mut keys, mut samples) = (0, 0, 0_u64);
            // The items are polled between chunks, which bounds the reader's queue.
            for piece in bytes.chunks(10_000) {
                reader.handle_bytes(piece).expect("a good stream");
                while let Some(item) = reader.poll_item() {
                    if let Item::Sample(sample) = item {
                        prop_assert_eq!(sample.decode_ticks, 3_600 * samples);
                        media_bytes += sample.data.len() as u64;
                        keys += u64::from(sample.is_sync());
                        samples += 1;
                    }
                }
            }
            prop_assert_eq!(samples, count * frames);
            prop_assert_eq!(keys, samples.div_ceil(50));
            let whole = samples / 50;
            // Complete groups of frames have the bitrate, minus the rounding of each frame.
            if samples.is_multiple_of(50) {
                let expected = kbps * 1_000 / 8 * 2 * whole;
                prop_assert!(media_bytes <= expected && expected - media_bytes <= samples + whole);
            }
        }
    }
}
