//! Random bytes as a trace of the coflow benchmark: never a panic, and small traces run to their
//! end.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_trace(bytes);
});
