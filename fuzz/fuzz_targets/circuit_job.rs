//! Random bytes as a training job in TOML: no panic, and plans between their bound and staying.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_circuit_proto::exercise::exercise_job(bytes);
});
