//! Random requests to the controller: no panic, no internal error, and the network stays valid.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live::controller::exercise::exercise(bytes);
});
