//! Random bytes as a table of address prefixes: no panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_media::exercise::exercise_prefixes(bytes);
});
