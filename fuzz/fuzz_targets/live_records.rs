//! Random bytes as a file of recorded requests: no panic, and each viewer arrives once.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live_proto::plan::exercise_records(bytes);
});
