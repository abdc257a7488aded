//! Random bytes as a file that a scenario names (a trace, sizes, a topology): never a panic,
//! neither in the parser nor in later look-ups.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_sim::exercise::exercise_files(bytes);
});
