//! Random messages at random times to a client and to a server: never a panic, and no more memory
//! than configured.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_gather_proto::exercise::exercise_client(bytes);
    anabranch_gather_proto::exercise::exercise_server(bytes);
});
