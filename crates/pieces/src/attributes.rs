//! Attributes of a file that are transferred with its bytes.

use serde::{Deserialize, Serialize};

/// Attributes of a file that are transferred with its bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Permission bits: the nine lowest bits of a Unix mode. Other bits are ignored.
    pub mode: u32,
    /// Time of the last modification, in nanoseconds since the beginning of 1970.
    pub modified_ns: i64,
}

impl Attributes {
    /// Returns `mode` without the permissions of group and others that `source` does not grant.
    pub const fn narrowed(mode: u32, source: u32) -> u32 {
        mode & (source | !0o077)
    }
}
