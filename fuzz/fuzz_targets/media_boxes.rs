//! Random bytes as a stream of fragmented MP4: no panic, and the segments that the cutter makes can
//! be read.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_media::exercise::exercise_boxes(bytes);
});
