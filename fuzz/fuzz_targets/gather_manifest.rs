//! Random text as a manifest of `gather get`, and as the hashes that `gather serve` keeps: never a panic, and no parts that do not
//! add up.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::manifest(bytes);
});
