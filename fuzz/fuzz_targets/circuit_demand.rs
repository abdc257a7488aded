//! Random bytes as a table of demand between racks: no panic, and plans that a switch can run.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_circuit_proto::exercise::exercise_demand(bytes);
});
