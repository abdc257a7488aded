//! Random bytes as a flow's confirmations, an emulated datagram, and a controller's topology: never
//! a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_cli::exercise::wire(bytes);
});
