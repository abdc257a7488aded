//! Random bytes as an agent's file of rules: never a panic, and rules assign only valid names of
//! coflows.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_rules(bytes);
});
