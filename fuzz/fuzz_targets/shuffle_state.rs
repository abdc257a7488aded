//! Random bytes as an agent's state file: never a panic, and what is written is read again.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_state(bytes);
});
