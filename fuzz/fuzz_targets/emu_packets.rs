//! Random bytes as a packet from an emulated site: never a panic, and the packet enters the fabric
//! at an element of that site.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_emu::exercise(bytes);
});
