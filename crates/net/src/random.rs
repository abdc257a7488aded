//! Unpredictable random numbers.

use std::fs::File;
use std::io::{self, Read as _};

/// Draws an unpredictable number, for instance for session identifiers.
///
/// Errors: the system provides no random numbers.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
