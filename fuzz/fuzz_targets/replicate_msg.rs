//! Random bytes as a peer's messages on a data connection: never a panic, and a decoded message
//! encodes to the same bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate_proto::msg::exercise(bytes);
});
