//! Messages between agents of `spray`: never a panic, and a message read equals the one written.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_spray_proto::control::exercise(bytes);
});
