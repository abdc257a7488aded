//! Random bytes as a training job in TOML: no panic, and a plan takes at least its bound, and at
//! most the time on the standing circuits.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_circuit_proto::exercise::exercise_job(bytes);
});
