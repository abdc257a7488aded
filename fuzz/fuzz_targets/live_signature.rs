//! Random targets of requests to an edge with signed URLs: no panic, and a new signature for the
//! grant of an accepted target is accepted, too.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live::signing::exercise(bytes);
});
