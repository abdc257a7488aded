//! Random messages to the name server: no panic, and answers are valid messages within their length
//! limits.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live::dns::exercise(bytes);
});
