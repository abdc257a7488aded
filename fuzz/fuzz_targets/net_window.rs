//! Datagrams sealed with random numbers, reordered, repeated and damaged: each genuine datagram is
//! opened once, and no other datagram is opened.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_net::seal::exercise_window(bytes);
});
