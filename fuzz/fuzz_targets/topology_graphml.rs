//! Random bytes as a topology's GraphML text: never a panic, and a topology that was read is
//! written back as the same.

#![no_main]

use anabranch_graph::file::{Format, exercise};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise(Format::GraphMl, bytes);
});
