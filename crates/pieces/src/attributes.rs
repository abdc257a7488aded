//! Attributes of a file that travel with its bytes.

use serde::{Deserialize, Serialize};

/// What of a file, besides its bytes, travels with it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Who may read, write and run it: the nine lowest bits of a mode. Others are not looked at.
    pub mode: u32,
    /// When it was last written to, in nanoseconds since the beginning of 1970.
    pub modified_ns: i64,
}

impl Attributes {
    /// What is left of `mode` where others than a file's owner may do no more with it than `source` says.
    pub const fn narrowed(mode: u32, source: u32) -> u32 {
        mode & (source | !0o077)
    }
}
