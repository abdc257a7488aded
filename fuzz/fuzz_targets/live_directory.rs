//! Random directories: no panic, answers hold in their whole scope, and the text form loses
//! nothing.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live_proto::directory::exercise::exercise(bytes);
});
