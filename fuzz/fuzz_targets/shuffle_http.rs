//! Random requests to the coordinator: never a panic, links carry the decided rates, and no agent
//! acts for another agent.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle::exercise(bytes);
});
