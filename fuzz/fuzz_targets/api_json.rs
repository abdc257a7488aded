//! Random bytes as the body of a request to the controller: never a panic, neither in the parser
//! nor in the coordinator that gets the request.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate::exercise(bytes);
});
