//! Random requests of sites and of an operator to the controller: never a panic, and never an
//! internal error (500).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate::exercise_http(bytes);
});
