//! Random datagrams at random times to a host of `spray`: never a panic, and no more held than may be.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_spray_proto::exercise::exercise(bytes);
});
