//! Random text as a size, a rate, a time, and as an unknown name: never a panic, and a quantity as shown reads back.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_units::exercise(bytes);
});
