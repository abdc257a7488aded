//! Random text as a size, a rate, a time, and as a name that nothing has: never a panic, and what is shown reads back.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_units::exercise(bytes);
});
