//! Random bytes as a controller's reply or stream of events: never a panic in its client.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate::exercise_replies(bytes);
});
