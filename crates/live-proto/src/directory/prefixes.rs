//! Address prefixes and their groups, and the largest block around an address with a single group.
//!
//! Prefixes may overlap. The longest prefix that contains an address decides (RFC 4632, section
//! 5.1). The table holds the resulting disjoint ranges. Leaves out: IPv4-mapped IPv6 addresses,
//! which are treated as IPv6. Read [`AddressPrefix`] and [`GroupTable::lookup`].

use crate::control::messages::GroupId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address prefix, such as `192.0.2.0/24`. All bits beyond its length are zero.
///
/// ```
/// use anabranch_live_proto::directory::AddressPrefix;
/// let prefix: AddressPrefix = "192.0.2.0/24".parse()?;
/// assert!(prefix.contains([192, 0, 2, 9].into()) && !prefix.contains([192, 0, 3, 9].into()));
/// assert!("192.0.2.1/24".parse::<AddressPrefix>().is_err());
/// # Ok::<(), anabranch_live_proto::directory::PrefixError>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressPrefix {
    address: IpAddr,
    length: u8,
}

/// A text that is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixError(String);

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = anabranch_units::text::brief(&self.0, 64);
        write!(f, "prefix `{text}`: must be an address and a length, without further bits, as 192.0.2.0/24")
    }
}

impl std::error::Error for PrefixError {}

/// Number of bits of an address.
pub(super) const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Last address, as a number, of the block of prefix length `length` around `bits`.
const fn block_last(bits: u128, length: u8, width: u8) -> u128 {
    match width - length {
        128.. => u128::MAX,
        free => bits | ((1 << free) - 1),
    }
}

impl AddressPrefix {
    /// The prefix of this length around `address`. `None` if the length exceeds the address width.
    pub fn around(address: IpAddr, length: u8) -> Option<Self> {
        let free = width(address).checked_sub(length)?;
        let masked = if free >= 128 { 0 } else { bits(address) >> free << free };
        let address = match address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(masked as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(masked)),
        };
        Some(Self { address, length })
    }

    /// First address of the prefix.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Length of the prefix in bits.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// Whether `address` is in the prefix.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && Self::around(address, self.length) == Some(self)
    }

    const fn last(self) -> u128 {
        let bits = match self.address {
            IpAddr::V4(address) => address.to_bits() as u128,
            IpAddr::V6(address) => address.to_bits(),
        };
        block_last(bits, self.length, width(self.address))
    }
}

impl FromStr for AddressPrefix {
    type Err = PrefixError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (address, length) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            Self::around(address, length.parse().ok()?).filter(|prefix| prefix.address == address)
        };
        read().ok_or_else(|| PrefixError(text.to_owned()))
    }
}

impl TryFrom<String> for AddressPrefix {
    type Error = PrefixError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AddressPrefix> for String {
    fn from(prefix: AddressPrefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// The group of every address, as disjoint ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupTable {
    ipv4: Ranges,
    ipv6: Ranges,
}

/// Ranges of one address family, by first address. The first range starts at 0. Adjacent ranges
/// have different groups.
type Ranges = Vec<(u128, Option<GroupId>)>;

impl GroupTable {
    /// Creates the table from prefixes. Addresses outside all prefixes get `default`.
    ///
    /// Errors: a prefix that is listed twice.
    pub(super) fn new(
        mut prefixes: Vec<(AddressPrefix, GroupId)>,
        default: Option<GroupId>,
    ) -> Result<Self, AddressPrefix> {
        prefixes.sort_unstable_by_key(|(prefix, _)| *prefix);
        if let Some(twice) = prefixes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(twice[0].0);
        }
        let (ipv4, ipv6) =
            prefixes.split_at(prefixes.partition_point(|(prefix, _)| prefix.address.is_ipv4()));
        Ok(Self { ipv4: ranges(ipv4, u32::MAX.into(), default), ipv6: ranges(ipv6, u128::MAX, default) })
    }

    /// The group of an address, and the length of the shortest prefix around the address in which
    /// all addresses have this group.
    ///
    /// Cost: a binary search.
    pub(super) fn lookup(&self, address: IpAddr) -> (Option<GroupId>, u8) {
        let ranges = if address.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        let (bits, width) = (bits(address), width(address));
        let after = ranges.partition_point(|(first, _)| *first <= bits);
        let (first, group) = ranges[after - 1];
        let before = first.checked_sub(1);
        let beyond = ranges.get(after).map(|(first, _)| *first);
        // A block excludes an outside address once it is longer than the prefix that the two share.
        let common = |other: u128| ((bits ^ other).leading_zeros() as u8) - (128 - width);
        let scope = before.into_iter().chain(beyond).map(|other| common(other) + 1).max();
        (group, scope.unwrap_or(0))
    }
}

/// Converts nested prefixes to disjoint ranges. Prefixes are sorted by address, then by length.
fn ranges(prefixes: &[(AddressPrefix, GroupId)], last: u128, default: Option<GroupId>) -> Ranges {
    let mut ranges = vec![(0, default)];
    let mut open: Vec<(u128, GroupId)> = Vec::new();
    for (prefix, group) in prefixes {
        let first = bits(prefix.address);
        close(&mut ranges, &mut open, first, default);
        begin(&mut ranges, first, Some(*group));
        open.push((prefix.last(), *group));
    }
    close(&mut ranges, &mut open, last, default);
    ranges
}

/// Closes the open prefixes that end before `first`.
fn close(ranges: &mut Ranges, open: &mut Vec<(u128, GroupId)>, first: u128, default: Option<GroupId>) {
    while let Some((last, _)) = open.pop_if(|(last, _)| *last < first) {
        begin(ranges, last + 1, open.last().map(|(_, group)| *group).or(default));
    }
}

/// Begins a range, or extends the range before it if the groups are equal.
fn begin(ranges: &mut Ranges, first: u128, group: Option<GroupId>) {
    ranges.pop_if(|(begun, _)| *begun == first);
    if ranges.last().is_none_or(|(_, before)| *before != group) {
        ranges.push((first, group));
    }
}
