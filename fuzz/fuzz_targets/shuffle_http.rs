//! Random requests to the coordinator: never a panic, links carry what is decided, and no agent speaks for another.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle::exercise(bytes);
});
