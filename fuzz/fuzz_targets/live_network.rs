//! Random networks and changes of a network: no panic, errors of one line, lossless text forms.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live::description::exercise::exercise(bytes);
});
