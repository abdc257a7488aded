//! Where viewers are: cities and internet providers by address, from one's own table.
//!
//! CSV with the columns `prefix`, `location` and `isp`; the longest prefix that holds an address counts. Read [`Places`] first.

use crate::mistake::Mistake;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::IpAddr;

/// The most prefixes.
pub const PREFIXES_MAX: usize = 4_000_000;

/// A prefix's length and its bits, with IPv4 in IPv6's form.
type Prefix = (u8, u128);

/// A table of prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    by_prefix: BTreeMap<Prefix, (String, String)>,
    /// The lengths that there are.
    lengths: BTreeSet<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
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

/// An address and a length: `192.0.2.0/24`.
fn prefix(text: &str) -> Option<Prefix> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let (most, before) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
    let length: u8 = length.parse().ok().filter(|length| *length <= most)?;
    let (length, bits) = (length + before, bits(address));
    (masked(bits, length) == bits).then_some((length, bits))
}

impl Places {
    /// Reads a table.
    ///
    /// Errors: the first line that is none, and why.
    pub fn read(input: impl Read) -> Result<Self, Mistake> {
        let mut places = Self::default();
        let mut reader = csv::Reader::from_reader(input);
        for (number, line) in (2u64..).zip(reader.deserialize::<Line>()) {
            let wrong = |what: String| Mistake(format!("line {number}: {what}"));
            let line = line.map_err(|error| wrong(error.to_string()))?;
            let found = prefix(&line.prefix).ok_or_else(|| {
                wrong(format!("prefix `{}`: must be an address and a length, as 192.0.2.0/24", line.prefix))
            })?;
            if places.by_prefix.len() >= PREFIXES_MAX {
                return Err(wrong(format!("there may be {PREFIXES_MAX} prefixes")));
            }
            places.lengths.insert(found.0);
            if places.by_prefix.insert(found, (line.location, line.isp)).is_some() {
                return Err(wrong(format!("prefix {}: is there twice", line.prefix)));
            }
        }
        Ok(places)
    }

    /// Where an address is: its city and its provider.
    pub fn of(&self, address: IpAddr) -> Option<(&str, &str)> {
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
    fn the_longest_prefix_counts() {
        let text = "prefix,location,isp\n10.0.0.0/8,berlin,x\n10.1.0.0/16,paris,y\n2001:db8::/32,rome,z\n0.0.0.0/0,earth,any\n";
        let places = Places::read(text.as_bytes()).expect("it is one");
        let of = |address: &str| places.of(address.parse().expect("an address"));
        assert_eq!(of("10.1.2.3"), Some(("paris", "y")));
        assert_eq!(of("::ffff:10.2.2.3"), Some(("berlin", "x")));
        assert_eq!(of("192.0.2.1"), Some(("earth", "any")));
        assert_eq!(of("2001:db8::1"), Some(("rome", "z")));
        assert_eq!(of("2001:db9::1"), None);
    }

    #[test]
    fn mistakes_are_said_with_their_lines() {
        let said = |text: &str| Places::read(text.as_bytes()).expect_err("it is wrong").to_string();
        assert_eq!(
            said("prefix,location,isp\n10.0.0.0/8,a,b\n10.0.0.1/8,a,b\n"),
            "line 3: prefix `10.0.0.1/8`: must be an address and a length, as 192.0.2.0/24"
        );
        assert_eq!(said("prefix,location,isp\n::/0,a,b\n::/0,a,b\n"), "line 3: prefix ::/0: is there twice");
        assert!(
            said("prefix,location\n::/0,a\n").starts_with("line 2: "),
            "{}",
            said("prefix,location\n::/0,a\n")
        );
    }
}
