//! Random bytes as a scenario with systems' workloads: never a panic before the start of a run.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::systems(bytes);
});
