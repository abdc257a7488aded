//! Random datagrams at random times to a host of `spray`: never a panic, and no more held bytes
//! than the limit.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_spray_proto::exercise::exercise(bytes);
});
