//! Reading of text files that users write: topologies, scenarios, traces, settings.
//!
//! Leaves out: the files' formats. Read [`read`].

use anabranch_units::text::decode;
use std::io;
use std::path::Path;

/// Reads the text of a file. Byte order marks and line ends of other systems are accepted
/// ([`decode`]).
///
/// Errors: an error of the operating system; bytes that are not valid text, with the remedy.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    decode(std::fs::read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
