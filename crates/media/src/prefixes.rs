//! Locations of addresses: city and internet provider of each address prefix, from a table of the
//! operator.
//!
//! The table is CSV with the columns `prefix`, `location` and `isp`. The longest prefix that
//! contains an address decides (RFC 4632, section 5.1). Leaves out: the origin of the tables. Read
//! [`PrefixTable`] first.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::net::IpAddr;

/// Maximum number of prefixes of a table.
pub const PREFIXES_MAX: usize = 4_000_000;

/// Length and bits of a prefix, as IPv6; IPv4 is mapped to IPv6 (RFC 4291, section 2.5.5.2).
type Prefix = (u8, u128);

/// City and internet provider of addresses, by prefix.
///
/// ```
/// use anabranch_media::prefixes::PrefixTable;
/// let table = PrefixTable::read("prefix,location,isp\n10.0.0.0/8,berlin,x\n".as_bytes())?;
/// assert_eq!(table.lookup([10, 1, 2, 3].into()), Some(("berlin", "x")));
/// # Ok::<(), anabranch_media::prefixes::PrefixError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixTable {
    by_prefix: BTreeMap<Prefix, (String, String)>,
    /// Lengths of the prefixes in the table.
    lengths: BTreeSet<u8>,
}

/// Reason why a table of prefixes is refused. Field `line` is a line number; the heading has 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixError {
    /// A line does not have the columns of the table.
    BadLine {
        /// Number of the line.
        line: u64,
        /// Error message of the CSV reader.
        reason: String,
    },
    /// A prefix is not an address with a length, or has bits beyond its length.
    BadPrefix {
        /// Number of the line.
        line: u64,
        /// Text of the prefix.
        prefix: String,
    },
    /// Two lines have the same prefix.
    Twice {
        /// Number of the second line.
        line: u64,
        /// Text of the prefix.
        prefix: String,
    },
    /// The table has more than [`PREFIXES_MAX`] prefixes.
    TooMany {
        /// Number of the first line beyond the limit.
        line: u64,
    },
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadLine { line, reason } => write!(f, "line {line}: {reason}"),
            Self::BadPrefix { line, prefix } => {
                write!(f, "line {line}: prefix `{prefix}`: must be an address and a length, as 192.0.2.0/24")
            }
            Self::Twice { line, prefix } => write!(f, "line {line}: prefix {prefix}: is there twice"),
            Self::TooMany { line } => write!(f, "line {line}: there may be {PREFIXES_MAX} prefixes"),
        }
    }
}
impl std::error::Error for PrefixError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrefixLine {
    prefix: String,
    location: String,
    isp: String,
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn masked(bits: u128, length: u8) -> u128 {
    if length == 0 { 0 } else { bits & (u128::MAX << (128 - u32::from(length))) }
}

/// Reads an address and a length: `192.0.2.0/24`.
fn prefix(text: &str) -> Option<Prefix> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let (most, before) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
    let length: u8 = length.parse().ok().filter(|length| *length <= most)?;
    let (length, bits) = (length + before, bits(address));
    (masked(bits, length) == bits).then_some((length, bits))
}

impl PrefixTable {
    /// Reads a table in CSV.
    ///
    /// Errors: the first line with an error; a table that cannot be read.
    pub fn read(input: impl Read) -> Result<Self, PrefixError> {
        let mut table = Self::default();
        let mut reader = csv::Reader::from_reader(input);
        for (line, row) in (2u64..).zip(reader.deserialize::<PrefixLine>()) {
            let PrefixLine { prefix: text, location, isp } =
                row.map_err(|error| PrefixError::BadLine { line, reason: error.to_string() })?;
            let Some(found) = prefix(&text) else {
                return Err(PrefixError::BadPrefix { line, prefix: text });
            };
            if table.by_prefix.len() >= PREFIXES_MAX {
                return Err(PrefixError::TooMany { line });
            }
            table.lengths.insert(found.0);
            if table.by_prefix.insert(found, (location, isp)).is_some() {
                return Err(PrefixError::Twice { line, prefix: text });
            }
        }
        Ok(table)
    }

    /// Whether the table has no prefix.
    pub fn is_empty(&self) -> bool {
        self.by_prefix.is_empty()
    }

    /// City and provider of an address. A mapped IPv4 address counts as IPv4.
    ///
    /// Cost: one search of the table for each length of prefix in the table.
    pub fn lookup(&self, address: IpAddr) -> Option<(&str, &str)> {
        let bits = bits(address.to_canonical());
        let found = self
            .lengths
            .iter()
            .rev()
            .find_map(|length| self.by_prefix.get(&(*length, masked(bits, *length))));
        found.map(|(location, isp)| (&**location, &**isp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_matching_prefix_decides() {
        let text = "prefix,location,isp\n10.0.0.0/8,berlin,x\n10.1.0.0/16,paris,y\n2001:db8::/32,rome,z\n0.0.0.0/0,earth,any\n";
        let table = PrefixTable::read(text.as_bytes()).expect("it is one");
        let of = |address: &str| table.lookup(address.parse().expect("an address"));
        assert_eq!(of("10.1.2.3"), Some(("paris", "y")));
        assert_eq!(of("::ffff:10.2.2.3"), Some(("berlin", "x")));
        assert_eq!(of("192.0.2.1"), Some(("earth", "any")));
        assert_eq!(of("2001:db8::1"), Some(("rome", "z")));
        assert_eq!(of("2001:db9::1"), None);
    }

    #[test]
    fn table_errors_state_the_line_number() {
        let message = |text: &str| PrefixTable::read(text.as_bytes()).expect_err("it is wrong").to_string();
        assert_eq!(
            message("prefix,location,isp\n10.0.0.0/8,a,b\n10.0.0.1/8,a,b\n"),
            "line 3: prefix `10.0.0.1/8`: must be an address and a length, as 192.0.2.0/24"
        );
        assert_eq!(
            message("prefix,location,isp\n::/0,a,b\n::/0,a,b\n"),
            "line 3: prefix ::/0: is there twice"
        );
        let column = message("prefix,location\n::/0,a\n");
        assert!(column.starts_with("line 2: "), "{column}");
    }
}
