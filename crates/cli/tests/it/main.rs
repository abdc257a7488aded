//! The `anabranch` command as its users meet it: arguments in, output and exit code out.
//!
//! Where the machine allows no namespaces or TUN devices, or lacks a program that a test runs in a site, the test prints
//! why and counts what it skips.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: they use the clock, files and programs")]

mod chaos;
mod control;
mod doctor;
mod emulate;
mod failures;
mod files;
mod fill;
mod gather;
mod hostile;
mod keys;
mod logs;
mod net;
mod readme;
mod replay;
mod scarce;
mod shuffle;
mod silent;
mod simulate;
mod together;

use net::anabranch;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Prints why a test is left out, and how many were.
///
/// Panics: where `ANABRANCH_NO_SKIP` says that nothing may be left out.
pub fn skip(why: &str) {
    assert!(
        std::env::var_os("ANABRANCH_NO_SKIP").is_none(),
        "ANABRANCH_NO_SKIP is set, and this cannot run: {why}"
    );
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    eprintln!("skipped ({count} so far): {why}");
}

/// What `anabranch` answers to `args`.
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
