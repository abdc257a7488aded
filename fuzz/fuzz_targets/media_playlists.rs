//! Random bytes as a playlist: no panic, and what is written reads back.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_media::exercise::exercise_playlists(bytes);
});
