//! Random text as a manifest of `gather get`, and as the hashes that `gather serve` keeps: never a
//! panic, and the parts of an object add up to the object.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::manifest(bytes);
});
