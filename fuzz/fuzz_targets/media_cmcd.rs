//! Random bytes as a player's report (CMCD): no panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_media::exercise::exercise_cmcd(bytes);
});
