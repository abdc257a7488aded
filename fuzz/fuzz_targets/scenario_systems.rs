//! Random bytes as a scenario with systems' workloads: never a panic up to where a run could begin.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::systems(bytes);
});
