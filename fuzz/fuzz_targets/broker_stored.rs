//! Random bytes as a stored decision: no panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker::exercise::exercise_stored(bytes);
});
