//! Random bytes as a peer's certificate in DER, as TLS hands it over: never a panic, and moments are written as they are read.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_net::certificate::exercise(bytes);
});
