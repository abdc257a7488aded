//! Random bytes as a datagram of the kernel over netlink: never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_linux::exercise_netlink(bytes);
});
