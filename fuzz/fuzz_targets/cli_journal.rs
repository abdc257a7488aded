//! Random bytes as the journal of a file that arrives: never a panic, and nothing is believed that is not there.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::journal(bytes);
});
