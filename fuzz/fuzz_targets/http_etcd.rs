//! Random bytes as an answer of etcd: no panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_http::exercise::exercise_etcd(bytes);
});
