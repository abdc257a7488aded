//! Random bytes as an agent's answer to a program: never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_announce::exercise_reply(bytes);
});
