//! Random bytes as the journal of a file that arrives: never a panic, and no range counts that is not in the file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::journal(bytes);
});
