//! Random bytes as the body of a request to the controller: never a panic, also in the coordinator that takes it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate::exercise(bytes);
});
