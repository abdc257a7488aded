//! Random lines as the reports of two agents: never a panic, and no link gets a rate above its
//! capacity.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_reports(bytes);
});
