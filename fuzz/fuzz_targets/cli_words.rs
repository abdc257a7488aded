//! Random text as `--at`, `--loss`, `--hop` and a target of `gather get`: never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::words(bytes);
});
