//! Random bytes as a run's description: never a panic, and a written description reads back as the
//! same.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_record::exercise(bytes);
});
