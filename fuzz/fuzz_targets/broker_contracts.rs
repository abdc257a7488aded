//! Random bytes as a file of contracts: never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker::exercise::exercise_contracts(bytes);
});
