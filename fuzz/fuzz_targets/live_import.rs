//! Random playlists and media of an origin: no panic, and numbers never fall.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live_proto::origin::exercise::exercise_import(bytes);
});
