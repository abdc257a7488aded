//! Datagrams sealed with drawn numbers, out of order, repeated and damaged: each is opened once, and no other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_net::seal::exercise_window(bytes);
});
