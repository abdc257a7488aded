//! Random bytes as a proxy's headers about its client: no panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_http::exercise::exercise_proxies(bytes);
});
