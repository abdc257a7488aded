//! Random bytes as a table of places: never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker::exercise::exercise_places(bytes);
});
