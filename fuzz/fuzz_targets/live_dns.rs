//! Random messages to the name server: no panic, answers in their limits that can be read.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live::dns::exercise(bytes);
});
