//! Random bytes as a controller's command or a site's report: never a panic, also in the machine that a program asks for.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate_proto::exercise::control(bytes);
});
