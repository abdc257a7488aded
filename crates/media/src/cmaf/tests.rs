//! Tests with recorded and random fragments: complete, split and damaged.

use super::*;
use proptest::prelude::*;

/// Fragments of 40 ms, written by ffmpeg 5.1: H.264 with 25 frames and one key frame a second, and
/// AAC.
pub(super) const FRAMES: &[u8] = include_bytes!("../../tests/cmaf/frames.mp4");
/// The same samples in fragments of 120 ms.
const FRAGMENTS_120MS: &[u8] = include_bytes!("../../tests/cmaf/fragments_120ms.mp4");
/// The video track only, one fragment for each key frame.
const VIDEO_GOP: &[u8] = include_bytes!("../../tests/cmaf/video_gop.mp4");

fn config(timeline: Timeline) -> CutConfig {
    CutConfig {
        segment_target: Duration::from_secs(2),
        part_target: Duration::from_ms(200),
        fragments_per_part: 2,
        timeline,
    }
}

const OWN: Timeline = Timeline::Own { first: 7 };
const SHARED: Timeline = Timeline::Shared { epoch: MediaTime::from_ns(0) };

/// The items of a stream that is read in chunks of `piece` bytes.
fn items(bytes: &[u8], piece: usize) -> Vec<Item> {
    let mut reader = StreamReader::default();
    let mut items = Vec::new();
    for piece in bytes.chunks(piece) {
        reader.handle_bytes(piece).expect("ffmpeg writes valid boxes");
        items.extend(std::iter::from_fn(|| reader.poll_item()));
    }
    items
}

fn cut(items: impl IntoIterator<Item = Item>, config: CutConfig) -> Vec<Cut> {
    let mut cutter = Cutter::new(config).expect("the settings are in range");
    for item in items {
        match item {
            Item::Init(init) => cutter.handle_init(init),
            Item::Sample(sample) => cutter.handle_sample(sample).expect("the samples are in range"),
        }
    }
    cutter.end_segment();
    std::iter::from_fn(|| cutter.poll_cut()).collect()
}

/// The bytes of all cuts, concatenated.
fn joined(cuts: &[Cut]) -> Vec<u8> {
    let bytes = |cut: &Cut| match cut {
        Cut::Init(bytes) | Cut::Fragment(bytes) => bytes.clone(),
        _ => Vec::new(),
    };
    cuts.iter().flat_map(bytes).collect()
}

/// The samples of a track, in order.
fn samples(items: &[Item], track: usize) -> Vec<Sample> {
    let of = |item: &Item| match item {
        Item::Sample(sample) if sample.track == track => Some(sample.clone()),
        _ => None,
    };
    items.iter().filter_map(of).collect()
}

/// The cuts from the beginning of segment `number`.
fn from_segment(cuts: &[Cut], number: u64) -> &[Cut] {
    let begins = |cut: &Cut| matches!(cut, Cut::Segment { number: own, .. } if *own == number);
    &cuts[cuts.iter().position(begins).expect("the segment was cut")..]
}

#[test]
fn ffmpeg_stream_is_read() {
    let items = items(FRAMES, 1_000);
    let Some(Item::Init(init)) = items.first() else { panic!("ffmpeg begins with ftyp and moov") };
    let kinds: Vec<_> = init.tracks.iter().map(|track| (track.kind, track.timescale)).collect();
    assert_eq!(kinds, [(TrackKind::Video, 12_800), (TrackKind::Audio, 16_000)]);
    let video = samples(&items, 0);
    assert_eq!(video.len(), 175, "7 s of 25 frames");
    let keys: Vec<u64> =
        video.iter().filter(|sample| sample.is_sync()).map(|sample| sample.decode_ticks / 12_800).collect();
    assert_eq!(keys, [0, 1, 2, 3, 4, 5, 6]);
    assert!(samples(&items, 1).iter().all(Sample::is_sync));
}

#[test]
fn chunks_of_any_size_yield_the_same_items() {
    let whole = items(FRAGMENTS_120MS, usize::MAX);
    for piece in [1, 7, 1_500] {
        assert!(items(FRAGMENTS_120MS, piece) == whole, "pieces of {piece} bytes");
    }
}

#[test]
fn segmented_stream_keeps_samples_of_all_tracks() {
    let original = items(FRAMES, usize::MAX);
    let cuts = cut(original.clone(), config(OWN));
    let reread = items(&joined(&cuts), usize::MAX);
    for track in 0..2 {
        let (all, again) = (samples(&original, track), samples(&reread, track));
        assert!(all.starts_with(&again));
        // Audio after the last frame of video belongs to no part.
        assert!(all.len() - again.len() <= track, "{} of {}", again.len(), all.len());
    }
}

#[test]
fn segments_begin_with_key_frames_and_parts_meet_targets() {
    let cuts = cut(items(FRAMES, usize::MAX), config(OWN));
    let segments: Vec<_> = cuts
        .iter()
        .filter_map(|cut| match cut {
            Cut::Segment { number, begin, is_independent, is_discontinuous } => {
                Some((*number, begin.as_ns() / 1_000_000_000, *is_independent, *is_discontinuous))
            }
            _ => None,
        })
        .collect();
    let expected = [(7, 0, true, false), (8, 2, true, false), (9, 4, true, false), (10, 6, true, false)];
    assert_eq!(segments, expected);
    let parts = cuts.iter().filter_map(|cut| match cut {
        Cut::PartEnd { duration, is_independent } => Some((duration.as_us(), *is_independent)),
        _ => None,
    });
    let parts: Vec<_> = parts.collect();
    assert_eq!(parts.len(), 35);
    assert!(parts.iter().all(|(us, _)| *us == 200_000), "{parts:?}");
    assert_eq!(parts.iter().filter(|(_, is_independent)| *is_independent).count(), 7);
    let fragments = cuts.iter().filter(|cut| matches!(cut, Cut::Fragment(_))).count();
    assert_eq!(fragments, 70, "two fragments of a part");
}

#[test]
fn copies_fragmented_differently_are_cut_alike() {
    let first = cut(items(FRAMES, usize::MAX), config(SHARED));
    let second = cut(items(FRAGMENTS_120MS, 999), config(SHARED));
    // The last part ends with the last audio sample of each copy.
    let whole = |cuts: &[Cut]| from_segment(cuts, 0).len() - 3;
    assert!(first[..=whole(&first)] == second[..=whole(&second)]);
}

#[test]
fn copy_joined_late_is_cut_alike() {
    let running = cut(items(FRAMES, usize::MAX), config(SHARED));
    let all = items(FRAGMENTS_120MS, usize::MAX);
    for skipped in [1, 30, 60] {
        let late = all.iter().take(1).chain(all.iter().skip(1 + skipped)).cloned();
        let late = cut(late, config(SHARED));
        let Some(Cut::Segment { number, .. }) = late.get(1) else {
            panic!("an init section, then a segment")
        };
        assert_eq!(*number, 1, "the cell seen in part is left out");
        let (expected, got) = (from_segment(&running, 1), from_segment(&late, 1));
        let whole = expected.len() - 4;
        assert!(expected[..whole] == got[..whole]);
    }
}

#[test]
fn shared_timeline_numbers_segments_from_the_epoch() {
    let epoch = MediaTime::from_ns(1_000_000_000);
    let cuts = cut(items(FRAMES, usize::MAX), config(Timeline::Shared { epoch }));
    let begins: Vec<_> = cuts
        .iter()
        .filter_map(|cut| match cut {
            Cut::Segment { number, begin, .. } => Some((*number, begin.as_ns() / 1_000_000)),
            _ => None,
        })
        .collect();
    assert_eq!(begins, [(0, 1_000), (1, 3_000), (2, 5_000)]);
}

#[test]
fn own_timeline_continues_after_a_restart() {
    let once = items(FRAMES, usize::MAX);
    let twice = once.iter().chain(&once).cloned();
    let cuts = cut(twice.clone(), config(OWN));
    let segments: Vec<_> = cuts
        .iter()
        .filter_map(|cut| match cut {
            Cut::Segment { number, is_discontinuous, .. } => Some((*number, *is_discontinuous)),
            _ => None,
        })
        .collect();
    let expected: Vec<_> = (7..15).map(|number| (number, number == 11)).collect();
    assert_eq!(segments, expected);
    // A shared timeline drops media that step back in time.
    let shared = cut(twice, config(SHARED));
    assert_eq!(shared.iter().filter(|cut| matches!(cut, Cut::Segment { .. })).count(), 4);
}

#[test]
fn timeline_slot_without_key_frame_keeps_its_segment_number() {
    let mut stream = items(FRAMES, usize::MAX);
    for item in &mut stream {
        if let Item::Sample(sample) = item
            && sample.track == 0
            && (1..76_000).contains(&sample.decode_ticks)
        {
            sample.flags |= FLAG_NON_SYNC;
        }
    }
    let cuts = cut(stream, config(OWN));
    let segments: Vec<_> = cuts
        .iter()
        .filter_map(|cut| match cut {
            Cut::Segment { number, begin, is_independent, .. } => {
                Some((*number, begin.as_ns() / 1_000_000, *is_independent))
            }
            _ => None,
        })
        .collect();
    // Segments 8 and 9 each begin one part, 200 ms, before the end of their cell.
    assert_eq!(segments, [(7, 0, true), (8, 3_800, false), (9, 5_800, false), (10, 6_000, true)]);
}

/// #50: ffmpeg's first frame lasts 23 ms longer beside AAC. Parts of 160 ms left a short one at the
/// end of each segment, which hls.js skipped.
#[test]
fn longer_first_frame_does_not_shorten_parts() {
    const DELAY_TICKS: u64 = 297;
    let mut stream = items(VIDEO_GOP, usize::MAX);
    let samples = stream.iter_mut().filter_map(|item| match item {
        Item::Sample(sample) => Some(sample),
        Item::Init(_) => None,
    });
    for (number, sample) in samples.enumerate() {
        if number == 0 {
            sample.duration_ticks += DELAY_TICKS as u32;
        } else {
            sample.decode_ticks += DELAY_TICKS;
        }
    }
    let cuts = cut(stream, config(OWN));
    // The longer frame is in the first segment.
    let parts = from_segment(&cuts, 8).iter().filter_map(|cut| match cut {
        Cut::PartEnd { duration, .. } => Some(duration.as_us()),
        _ => None,
    });
    let parts: Vec<u64> = parts.collect();
    assert!(parts.len() > 20 && parts[..parts.len() - 1].iter().all(|us| *us == 200_000), "{parts:?}");
}

#[test]
fn part_at_24_frames_per_second_has_five_frames() {
    let mut stream = items(VIDEO_GOP, usize::MAX);
    for item in &mut stream {
        match item {
            Item::Init(init) => init.tracks[0].timescale = 12_288,
            Item::Sample(_) => {}
        }
    }
    let cuts = cut(stream, config(OWN));
    let longest = cuts.iter().filter_map(|cut| match cut {
        Cut::PartEnd { duration, .. } => Some(duration.as_us()),
        _ => None,
    });
    assert_eq!(longest.max(), Some(208_333));
}

#[test]
fn settings_out_of_range_are_refused() {
    let with = |change: &dyn Fn(&mut CutConfig)| {
        let mut config = config(OWN);
        change(&mut config);
        Cutter::new(config).map(|_| ())
    };
    assert_eq!(with(&|_| ()), Ok(()));
    assert!(with(&|config| config.segment_target = Duration::from_ms(99)).is_err());
    assert!(with(&|config| config.part_target = Duration::from_ms(49)).is_err());
    assert!(with(&|config| config.part_target = Duration::from_ms(2_001)).is_err());
    assert!(with(&|config| config.fragments_per_part = 17).is_err());
    assert!(with(&|config| config.fragments_per_part = 0).is_err());
}

/// A fragment whose samples have this size. The data are missing.
fn moof_of(sample_count: u32, sample_bytes: u32) -> Vec<u8> {
    let mut bytes = FRAMES[..moof_at()].to_vec();
    let mut moof = Vec::new();
    let boxed = |kind: &[u8; 4], contents: &[u8]| {
        let mut bytes = (contents.len() as u32 + 8).to_be_bytes().to_vec();
        bytes.extend_from_slice(kind);
        bytes.extend_from_slice(contents);
        bytes
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    moof.extend(boxed(b"tfhd", &words(&[0x2_0018, 1, 512, sample_bytes])));
    moof.extend(boxed(b"tfdt", &words(&[0, 0])));
    moof.extend(boxed(b"trun", &words(&[0, sample_count])));
    bytes.extend(boxed(b"moof", &boxed(b"traf", &moof)));
    bytes
}

/// Position of the first fragment, in bytes.
fn moof_at() -> usize {
    FRAMES.windows(4).position(|kind| kind == b"moof").expect("ffmpeg wrote fragments") - 4
}

#[test]
fn limits_of_fragments_hold_on_both_sides() {
    let read = |bytes: &[u8]| StreamReader::default().handle_bytes(bytes);
    let max = SAMPLES_MAX as u32;
    // Without an offset the data begin at the beginning of the `moof`, which is not allowed.
    for (bytes, what, max) in
        [(1, "samples of a fragment", max), (0, "empty samples of a fragment", EMPTY_SAMPLES_MAX as u32)]
    {
        let too_many = Err(StreamError::TooMany { what, max: max as usize });
        assert_eq!(read(&moof_of(max + 1, bytes)), too_many);
        assert_eq!(read(&moof_of(max, bytes)), Err(StreamError::DataOutside));
    }
    assert!(matches!(read(&moof_of(1, 17 << 20)), Err(StreamError::BoxTooLarge { .. })));
    assert_eq!(read(&moof_of(1, 16 << 20)), Err(StreamError::DataOutside));
    let large = |kind: &[u8; 4], size: u32| {
        let mut bytes = size.to_be_bytes().to_vec();
        bytes.extend_from_slice(kind);
        read(&bytes)
    };
    assert!(large(b"moov", INIT_BYTES_MAX as u32).is_ok());
    assert!(large(b"moov", INIT_BYTES_MAX as u32 + 1).is_err());
    assert!(large(b"emsg", u32::MAX).is_ok(), "it is skipped");
    assert!(large(b"mdat", 0).is_err());
    assert!(large(b"mdat", 7).is_err());
}

#[test]
fn reader_repeats_its_error_until_a_restart() {
    let mut reader = StreamReader::default();
    let error = reader
        .handle_bytes(&[0, 0, 0, 1])
        .and(reader.handle_bytes(&[b'm', b'o', b'o', b'v', 0, 0, 0, 0, 0, 0, 0, 1]));
    assert_eq!(error, Err(StreamError::BadSize { kind: *b"moov" }));
    assert_eq!(reader.handle_bytes(FRAMES), error);
    reader.restart();
    assert_eq!(reader.handle_bytes(FRAMES), Ok(()));
}

#[test]
fn sample_without_duration_cannot_grow_a_part_forever() {
    let mut cutter = Cutter::new(config(OWN)).expect("the settings are in range");
    let mut stream = items(VIDEO_GOP, usize::MAX).into_iter();
    if let Some(Item::Init(init)) = stream.next() {
        cutter.handle_init(init);
    }
    let still = Sample {
        track: 0,
        decode_ticks: 0,
        duration_ticks: 0,
        composition_ticks: 0,
        flags: 0,
        data: vec![0; 1 << 20],
    };
    let results: Vec<_> = (0..40).map(|_| cutter.handle_sample(still.clone()).is_ok()).collect();
    assert_eq!(results.iter().filter(|is_ok| **is_ok).count(), 32, "32 MiB");
}

/// A cutter of the video track, which has 12,800 ticks a second, and a sample of the track.
fn cutter_and_sample() -> (Cutter, Sample) {
    let mut cutter = Cutter::new(config(OWN)).expect("the settings are in range");
    let mut stream = items(VIDEO_GOP, usize::MAX).into_iter();
    let (Some(Item::Init(init)), Some(Item::Sample(sample))) = (stream.next(), stream.next()) else {
        panic!("ffmpeg begins with ftyp and moov")
    };
    cutter.handle_init(init);
    (cutter, sample)
}

#[test]
fn sample_longer_than_a_minute_is_refused() {
    let (mut cutter, sample) = cutter_and_sample();
    let minute = Sample { duration_ticks: 60 * 12_800, ..sample.clone() };
    assert_eq!(cutter.handle_sample(minute.clone()), Ok(()));
    for duration_ticks in [60 * 12_800 + 1, u32::MAX] {
        let (mut cutter, _) = cutter_and_sample();
        let refused = cutter.handle_sample(Sample { duration_ticks, ..sample.clone() });
        assert!(matches!(refused, Err(CutError::SampleTooLong { .. })), "{refused:?}");
    }
}

proptest! {
    #[test]
    fn damaged_streams_cause_no_panic(
        changes in proptest::collection::vec((0..12_000_usize, any::<u8>()), 1..20),
        length in 0..12_000_usize,
        piece in 1..3_000_usize,
    ) {
        let mut bytes = FRAGMENTS_120MS[..length].to_vec();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let mut reader = StreamReader::default();
        let mut cutter = Cutter::new(config(SHARED)).expect("the settings are in range");
        for piece in bytes.chunks(piece) {
            let _ = reader.handle_bytes(piece);
            while let Some(item) = reader.poll_item() {
                match item {
                    Item::Init(init) => cutter.handle_init(init),
                    Item::Sample(sample) => {
                        let _ = cutter.handle_sample(sample);
                    }
                }
            }
        }
        cutter.end_segment();
    }

    #[test]
    fn fragments_survive_a_round_trip(
        values in proptest::collection::vec((any::<u32>(), any::<i32>(), any::<u32>(), 0..50_usize), 1..30),
        decode_ticks in 0..u64::MAX / 2,
    ) {
        let mut at = decode_ticks;
        let samples: Vec<Sample> = values
            .into_iter()
            .map(|(duration_ticks, composition_ticks, flags, length)| {
                let decode_ticks = at;
                at += u64::from(duration_ticks);
                let data = vec![length as u8; length];
                Sample { track: 1, decode_ticks, duration_ticks, composition_ticks, flags, data }
            })
            .collect();
        let mut bytes = FRAMES[..moof_at()].to_vec();
        bytes.extend(write::fragment(3, &[(1, Vec::new()), (2, samples.clone())]));
        let read = items(&bytes, 13);
        prop_assert_eq!(self::samples(&read, 1), samples);
    }
}
