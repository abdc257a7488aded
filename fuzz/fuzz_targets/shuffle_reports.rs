//! Random lines as what two agents report: never a panic, and no link gets more than it has.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_reports(bytes);
});
