//! What agents of `spray` say to each other: never a panic, and what is read is what was written.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_spray_proto::control::exercise(bytes);
});
