//! Random bytes as a kernel's type information: never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_pace::exercise_btf(bytes);
});
