//! Random bytes as a file of keys, and as a name in a certificate: never a panic, and names that
//! were read are written back as the same.

#![no_main]

// The corpus holds certificates of this system.
use anabranch_replicate as _;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_net::keys::exercise(bytes);
});
