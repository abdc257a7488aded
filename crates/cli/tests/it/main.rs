//! The `anabranch` command as users see it: arguments, output and exit code.
//!
//! A test prints the reason and counts as skipped if the machine allows no namespaces or TUN
//! devices, or lacks a program that the test runs in a site.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: they use the clock, files and programs")]

mod broker;
mod capacities;
mod chaos;
mod circuit;
mod closed;
mod codes;
mod control;
mod datasets;
mod doctor;
mod emulate;
mod failures;
mod few_descriptors;
mod files;
mod fill;
mod gather;
mod hostile;
mod keys;
mod live_hostile;
mod logs;
mod metrics;
#[path = "../../../pace/tests/it/namespace.rs"]
mod namespace;
mod net;
mod players;
mod readme;
mod replay;
mod rogue;
mod shuffle;
mod silent;
mod simulate;
mod spray;
#[path = "../../../emu/tests/it/start.rs"]
mod start;
mod together;
mod units;
mod words;

use anabranch_testing::skip::skip;
use net::anabranch;
use std::process::Output;

/// Runs `anabranch` with `args`, and returns its output.
fn answer(args: &[&str]) -> Output {
    anabranch().args(args).output().expect("the command was built with the tests")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn has_program(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}
