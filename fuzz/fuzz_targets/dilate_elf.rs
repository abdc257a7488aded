//! Random bytes as a program's file: never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_dilate::exercise_elf(bytes);
});
