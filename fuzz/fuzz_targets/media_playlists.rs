//! Random bytes as a playlist: no panic, and a written playlist reads back as the same.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_media::exercise::exercise_playlists(bytes);
});
