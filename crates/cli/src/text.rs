//! Files of text that people write: topologies, scenarios, traces, settings.
//!
//! Leaves out: what may stand in them. Read [`read`].

use anabranch_units::text::decode;
use std::io;
use std::path::Path;

/// The text of a file, whatever system saved it ([`decode`]).
///
/// Errors: the system's; bytes that are no text, with the remedy.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    decode(std::fs::read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
