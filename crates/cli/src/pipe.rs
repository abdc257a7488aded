//! Stdout with a reader that may close it: `anabranch … --json | head` ends silently.
//!
//! Read [`Pipe`] first.

use std::io::Write as _;

/// Stdout, until its reader closes it.
#[derive(Default)]
pub(crate) struct Pipe {
    /// True once the reader has closed the pipe.
    pub(crate) is_closed: bool,
}

impl Pipe {
    /// Prints each of `lines`.
    pub(crate) fn print(&mut self, lines: impl Iterator<Item = String>) {
        let mut out = std::io::stdout().lock();
        for line in lines {
            self.is_closed = self.is_closed || writeln!(out, "{line}").is_err();
        }
    }
}
