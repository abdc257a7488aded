//! Random bytes as a peer's certificate in DER, as TLS provides it: never a panic, and times that
//! were read are written back as the same.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_net::certificate::exercise(bytes);
});
