//! Random bytes as a controller's command or a site's report: never a panic, neither in the parser
//! nor in the state machine.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate_proto::exercise::control(bytes);
});
