//! Random bytes as requests to a broker: never a panic, and no party acts for another network.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker::exercise::exercise_requests(bytes);
});
