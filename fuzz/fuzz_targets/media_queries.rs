//! Random bytes as a player's query: no panic, and the reload URI keeps the viewer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_media::exercise::exercise_queries(bytes);
});
