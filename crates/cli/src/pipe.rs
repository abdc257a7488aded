//! Stdout, whose reader may go away: `anabranch … --json | head` ends without a word.
//!
//! Read [`Pipe`] first.

use std::io::Write as _;

/// Stdout, until its reader has gone.
#[derive(Default)]
pub(crate) struct Pipe {
    /// Nobody reads any more.
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
