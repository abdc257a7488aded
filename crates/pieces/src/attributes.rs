//! Attributes of a file that travel with its bytes.

use serde::{Deserialize, Serialize};

/// Attributes of a file, which travel with its bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Rights to read, write and run it: the nine lowest bits of a mode. Other bits are not looked at.
    pub mode: u32,
    /// When it was last written to, in nanoseconds since the beginning of 1970.
    pub modified_ns: i64,
}

impl Attributes {
    /// `mode`, with no more rights for others than a file's owner than `source` gives them.
    pub const fn narrowed(mode: u32, source: u32) -> u32 {
        mode & (source | !0o077)
    }
}
