//! Random bytes as a topology's GML text: never a panic, and a topology that is read survives being
//! written.

#![no_main]

use anabranch_graph::file::{Format, exercise};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise(Format::Gml, bytes);
});
