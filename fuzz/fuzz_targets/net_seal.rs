//! Random bytes as a sealed datagram: never a panic, refused without a trace, and a datagram that opens does not open twice.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_net::seal::exercise(bytes);
});
