//! Random damage to the index of a directory: never a panic, a failed scan or a wrong hash.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::index(bytes);
});
