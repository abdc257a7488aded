//! Messages between agents of `spray`: never a panic, and a decoded message equals the encoded
//! message.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_spray_proto::control::exercise(bytes);
});
