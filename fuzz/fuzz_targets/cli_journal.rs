//! Random bytes as the journal of a partial file: never a panic, and no range outside the file
//! counts as received.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::journal(bytes);
});
