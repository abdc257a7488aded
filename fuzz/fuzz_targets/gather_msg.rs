//! Random bytes as a datagram and as a control message: never a panic, and a decoded message
//! encodes to the same bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_gather_proto::msg::exercise(bytes);
});
