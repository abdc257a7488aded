//! Random bytes as limits from a coordinator: never a panic in the agent that applies them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle::exercise_limits(bytes);
});
