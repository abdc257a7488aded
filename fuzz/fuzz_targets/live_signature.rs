//! Random targets of requests to an edge with signed URLs: no panic, no signature that the edge would not make.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live::signing::exercise(bytes);
});
