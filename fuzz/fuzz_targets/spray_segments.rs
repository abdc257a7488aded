//! Packets and parities of a `spray` peer, mended, read and marked: never a panic, and a mark
//! changes nothing else.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_spray_proto::exercise::exercise_segments(bytes);
});
