//! Random overrides of a scenario, in the form of `--set`: never a panic, and a refusal is one
//! short line.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_sim::exercise::exercise_sets(bytes);
});
