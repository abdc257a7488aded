//! Random bytes as a manifest's node: never a panic, and a decoded node encodes to the same bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_sets::exercise(bytes);
});
