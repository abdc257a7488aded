//! Random bytes as what a proxy says of its client: no panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_http::exercise::exercise_proxies(bytes);
});
