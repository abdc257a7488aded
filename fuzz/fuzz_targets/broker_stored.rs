//! Random bytes as what a store says, a file or etcd: never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker::exercise::exercise_stored(bytes);
});
