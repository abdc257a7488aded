//! Random bytes as a coordinator's file of hosts: never a panic, and all hosts of a valid file can
//! join.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_hosts(bytes);
});
