//! Random bytes as an agent's file of rules: never a panic, and what rules call a coflow is a name.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_rules(bytes);
});
