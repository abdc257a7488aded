//! Random requests to the controller, of sites and an operator: never a panic, and never its own fault (500).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate::exercise_http(bytes);
});
