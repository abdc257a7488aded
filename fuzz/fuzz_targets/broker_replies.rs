//! Random bytes as a broker's replies to an agent: never a panic in the agent.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker::exercise::exercise_replies(bytes);
});
