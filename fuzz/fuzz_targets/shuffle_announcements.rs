//! Random lines as a program's announcements to an agent: never a panic, and refusals are one line.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_shuffle_proto::exercise::exercise_announcements(bytes);
});
