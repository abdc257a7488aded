//! Messages of the coordinator beside reports and limits: settings, hosts, reasons of refusals, and views of flows and coflows
//! under way.
//!
//! Leaves out: decisions (`coordinator`); reports and limits themselves ([`crate::control`]).

use super::RATE_MIN;
use crate::control::FlowKey;
use anabranch_units::{BitRate, ByteCount, Instant};
use std::fmt;
use std::net::IpAddr;

/// The most characters that a host's or a coflow's name has.
pub const NAME_MAX: usize = 128;
/// The most hosts. Of more, one whose agent has gone is forgotten.
pub const HOSTS_MAX: usize = 4_096;
/// The most uplinks.
pub const UPLINKS_MAX: usize = 4_096;
/// The most uplinks that a host is behind.
pub const HOST_UPLINKS_MAX: usize = 8;
/// The most addresses of a host.
pub const ADDRESSES_MAX: usize = 64;
/// The most flows of a host.
pub const HOST_FLOWS_MAX: usize = 65_536;
/// The most coflows that flows of a host are of: what a decision takes grows with the square of their number.
pub const HOST_COFLOWS_MAX: usize = 1_024;

/// How flows are told apart.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Flows with less to move pass without a limit, and nobody waits for them (section 4.4: 50 kB).
    pub mice_below: ByteCount,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mice_below: ByteCount::new(50_000) }
    }
}

/// What an agent says of its host when it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The addresses that flows to it have.
    pub addresses: Vec<IpAddr>,
    /// What its link has for data, out and in.
    pub rate: BitRate,
    /// What it shares with other hosts on its way to all others; in any order, and each once.
    pub uplinks: Vec<Uplink>,
}

/// What carries all that some hosts send to others, and all that these send to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its name, the same for all hosts behind it.
    pub name: String,
    /// What it has for data, out and in; the same, too.
    pub rate: BitRate,
}

/// Why the coordinator does not take what an agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportError {
    /// A name that is empty, too long, or has other than printable characters.
    Name(String),
    /// No agent of this host has joined, or another one has since.
    NotJoined(String),
    /// More hosts than [`HOSTS_MAX`].
    TooManyHosts,
    /// More addresses than [`ADDRESSES_MAX`].
    TooManyAddresses(usize),
    /// More flows of a host than [`HOST_FLOWS_MAX`].
    TooManyFlows,
    /// More coflows of a host's flows than [`HOST_COFLOWS_MAX`].
    TooManyCoflows,
    /// A link slower than [`RATE_MIN`].
    SlowLink(BitRate),
    /// An address that no one host has.
    Address(IpAddr),
    /// An address that another host has that is there.
    AddressTaken {
        /// Which.
        address: IpAddr,
        /// Who has it.
        other: String,
    },
    /// More uplinks than [`UPLINKS_MAX`].
    TooManyUplinks,
    /// More uplinks of a host than [`HOST_UPLINKS_MAX`].
    TooManyHostUplinks(usize),
    /// An uplink that a host is behind twice.
    UplinkTwice(String),
    /// An uplink of which another host that is there says something else.
    UplinkRate {
        /// Its name.
        name: String,
        /// What this host says.
        said: BitRate,
        /// Who else is behind it.
        other: String,
        /// What that one says.
        known: BitRate,
    },
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                let shown: String = name.chars().take(NAME_MAX).collect();
                write!(f, "name {shown:?}: must be 1 to {NAME_MAX} printable characters without blanks")
            }
            Self::NotJoined(host) => {
                write!(f, "host {host}: has not joined, or another agent has: join again")
            }
            Self::TooManyHosts => write!(f, "more hosts than {HOSTS_MAX}"),
            Self::TooManyAddresses(count) => {
                write!(f, "{count} addresses: a host has at most {ADDRESSES_MAX}")
            }
            Self::TooManyFlows => write!(f, "more flows than {HOST_FLOWS_MAX} on one host: the others pass"),
            Self::TooManyCoflows => {
                write!(f, "flows of more than {HOST_COFLOWS_MAX} coflows on one host: the others pass")
            }
            Self::SlowLink(rate) => write!(f, "a link of {rate}: must have at least {RATE_MIN}"),
            Self::Address(address) => {
                write!(f, "address {address}: is no one host's: name a unicast address with --address")
            }
            Self::AddressTaken { address, other } => {
                write!(f, "address {address}: is host {other}'s: name the host's own with --address")
            }
            Self::TooManyUplinks => write!(f, "more uplinks than {UPLINKS_MAX}"),
            Self::TooManyHostUplinks(count) => {
                write!(f, "{count} uplinks: a host is behind at most {HOST_UPLINKS_MAX}")
            }
            Self::UplinkTwice(name) => write!(f, "uplink {name}: named twice: a host is behind it once"),
            Self::UplinkRate { name, said, other, known } => {
                write!(
                    f,
                    "uplink {name}: {said}, but {known} on host {other}: say the same on all hosts behind it"
                )
            }
        }
    }
}
impl std::error::Error for ReportError {}

/// A coflow whose last flow has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// When its first flow was there.
    pub since: Instant,
    /// When its last one had ended.
    pub at: Instant,
    /// Its flows that were no mice.
    pub flows: u64,
    /// What they had moved when that was last said.
    pub bytes: ByteCount,
}

/// A coflow that is under way.
#[derive(Clone, Debug, PartialEq)]
pub struct CoflowView {
    /// Its name.
    pub name: String,
    /// When its first flow was there.
    pub since: Instant,
    /// Its flows that are no mice, by host.
    pub flows: Vec<FlowView>,
}

/// A host that has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether its agent is there.
    pub is_up: bool,
    /// How often an agent of it has joined.
    pub joins: u64,
    /// What its link carries, out and in.
    pub rate: BitRate,
    /// Its uplinks' names and rates.
    pub uplinks: Vec<(&'a str, BitRate)>,
}

/// A flow that is under way.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowView {
    /// Who sends it.
    pub host: String,
    /// Which one it is.
    pub flow: FlowKey,
    /// What it has still to move, as far as is known.
    pub remaining: ByteCount,
    /// How fast it may be; `None` while it is idle, and passes without a limit.
    pub rate: Option<BitRate>,
}

/// Whether a host or a coflow may be called so.
///
/// Errors: [`ReportError::Name`].
pub fn check_name(name: &str) -> Result<(), ReportError> {
    let is_one = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_one { Ok(()) } else { Err(ReportError::Name(name.to_owned())) }
}

/// Whether a host may have this address: one that names a host, and no group of them.
///
/// Errors: [`ReportError::Address`].
pub fn check_address(address: IpAddr) -> Result<(), ReportError> {
    let ip = address.to_canonical();
    let is_all = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if ip.is_unspecified() || ip.is_multicast() || is_all {
        return Err(ReportError::Address(address));
    }
    Ok(())
}
