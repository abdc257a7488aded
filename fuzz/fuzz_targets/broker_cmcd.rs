//! Random bytes as a player's report (CMCD): never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker::exercise::exercise_cmcd(bytes);
});
