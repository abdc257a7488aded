//! Random control messages to a node and to a controller: no panic, and no link above its capacity.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_live_proto::control::exercise::exercise(bytes);
});
