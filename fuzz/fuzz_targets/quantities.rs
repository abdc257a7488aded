//! Random text as a size, a rate, a time, and as an unknown name: never a panic, and a printed
//! quantity reads back as the same.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_units::exercise(bytes);
});
