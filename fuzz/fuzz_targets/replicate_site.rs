//! Random packets, ends and confirmations to a site's state machine: never a panic, and no more
//! memory than its program permits.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_replicate_proto::exercise::exercise(bytes);
});
