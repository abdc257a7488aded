//! Random bytes as a player's question: never a panic, and what is reloaded says the same.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker_proto::exercise::exercise_questions(bytes);
});
