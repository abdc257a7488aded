//! Random bytes as a scenario: never a panic, and a resolved scenario reads back as the same.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_sim::exercise::exercise_scenario(bytes);
});
