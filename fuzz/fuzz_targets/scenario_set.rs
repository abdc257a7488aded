//! Random overrides of a scenario, as `--set` has them: never a panic, and a refusal of one short line.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_sim::exercise::exercise_sets(bytes);
});
