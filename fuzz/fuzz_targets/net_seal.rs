//! Random bytes as a sealed datagram: never a panic, a refused datagram changes no state, and an
//! accepted datagram is not accepted again.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_net::seal::exercise(bytes);
});
