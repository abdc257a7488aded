//! Random bytes as a list of failures: no panic, and plans of the survivors above their bound.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_circuit_proto::exercise::exercise_failures(bytes);
});
