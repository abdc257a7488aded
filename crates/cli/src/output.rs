//! Standard output and error of all verbs.
//!
//! Each call writes whole lines at once, so that lines of two programs on one terminal do not mix.
//! A reader that has ended (`anabranch … --json | head -n 1`) is no failure: later lines are
//! dropped, and the exit code is the verb's. Any other failure, such as a full disk, ends
//! [`main`](crate::main) with [`FAILED`](crate::exit::FAILED).
//!
//! The macros are `outln!`, `out!` and `errln!`; clippy refuses `println!` and `eprintln!` in this
//! room.

use std::io::{Error, ErrorKind, Write as _};
use std::sync::OnceLock;

/// Writes a line to standard output, as [`println!`] does.
macro_rules! outln {
    ($($arguments:tt)*) => {
        $crate::output::write(&(format!($($arguments)*) + "\n"))
    };
}

/// Writes text to standard output, as [`print!`] does.
macro_rules! out {
    ($($arguments:tt)*) => {
        $crate::output::write(&format!($($arguments)*))
    };
}

/// Writes a line to standard error, as [`eprintln!`] does.
macro_rules! errln {
    ($($arguments:tt)*) => {
        $crate::output::write_error(&(format!($($arguments)*) + "\n"))
    };
}

/// The first failure of standard output.
static FAILURE: OnceLock<Error> = OnceLock::new();

/// Returns true if a write to standard output has failed; a verb with more to print may end.
pub fn is_closed() -> bool {
    FAILURE.get().is_some()
}

/// Writes `text` to standard output until a write fails.
pub fn write(text: &str) {
    if !is_closed() {
        note(std::io::stdout().lock().write_all(text.as_bytes()));
    }
}

/// Writes `text` to standard error. A failure is ignored, because it cannot be reported anywhere.
pub fn write_error(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Flushes standard output.
///
/// Errors: the first failure of standard output, unless its reader has ended.
pub fn finish() -> Result<(), &'static Error> {
    note(std::io::stdout().flush());
    match FAILURE.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

fn note(written: std::io::Result<()>) {
    if let Err(error) = written {
        let _ = FAILURE.set(error);
    }
}
