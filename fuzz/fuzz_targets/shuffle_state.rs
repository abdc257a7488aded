//! Random bytes as an agent's state file: never a panic, and written records read back as the same.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_state(bytes);
});
