//! Types of the coordinator other than reports and limits: settings, hosts, refusals, and views of
//! active flows and coflows.
//!
//! Leaves out: decisions (`coordinator`); reports and limits themselves ([`crate::control`]).

use super::RATE_MIN;
use crate::control::FlowKey;
use anabranch_units::{BitRate, ByteCount, Instant};
use std::fmt;
use std::net::IpAddr;

/// Maximum number of characters in a host's or a coflow's name.
pub const NAME_MAX: usize = 128;
/// Maximum number of hosts. Above it a disconnected host is forgotten.
pub const HOSTS_MAX: usize = 4_096;
/// Maximum number of uplinks.
pub const UPLINKS_MAX: usize = 4_096;
/// Maximum number of uplinks of one host.
pub const HOST_UPLINKS_MAX: usize = 8;
/// Maximum number of addresses of a host.
pub const ADDRESSES_MAX: usize = 64;
/// Maximum number of flows of a host.
pub const HOST_FLOWS_MAX: usize = 65_536;
/// Maximum number of coflows of a host's flows. The cost of a decision grows with the square of
/// this number.
pub const HOST_COFLOWS_MAX: usize = 1_024;

/// Classification of flows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ClassSettings {
    /// Size below which flows have no limit, and coflows do not wait for them (section 4.4: 50 kB).
    pub mice_below: ByteCount,
}

impl Default for ClassSettings {
    fn default() -> Self {
        Self { mice_below: ByteCount::new(50_000) }
    }
}

/// A host as described by its joining agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Addresses at which the host receives flows.
    pub addresses: Vec<IpAddr>,
    /// Goodput of the host's link in each direction.
    pub rate: BitRate,
    /// Uplinks that the host shares with other hosts, each once, in any order.
    pub uplinks: Vec<Uplink>,
}

/// A link that several hosts share for their traffic to and from all other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Name of the uplink, the same for all hosts behind it.
    pub name: String,
    /// Goodput of the uplink in each direction, the same for all hosts behind it.
    pub rate: BitRate,
}

/// Reason for refusing an agent's request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportError {
    /// A name that is empty, too long, or contains unprintable characters.
    Name(String),
    /// No agent of this host has joined with this session, or a later agent has replaced it.
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
    /// An address that does not name a single host.
    Address(IpAddr),
    /// An address of another connected host.
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// Name of the other host.
        other: String,
    },
    /// More uplinks than [`UPLINKS_MAX`].
    TooManyUplinks,
    /// More uplinks of a host than [`HOST_UPLINKS_MAX`].
    TooManyHostUplinks(usize),
    /// An uplink that is listed twice.
    UplinkTwice(String),
    /// An uplink for which another connected host states a different rate.
    UplinkRate {
        /// Name of the uplink.
        name: String,
        /// Rate that this host states.
        said: BitRate,
        /// Name of the other host.
        other: String,
        /// Rate that the other host states.
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
pub struct EndedCoflow {
    /// Name of the coflow.
    pub name: String,
    /// Start time of the coflow's first flow.
    pub since: Instant,
    /// Time at which the coflow's last flow had ended.
    pub at: Instant,
    /// Number of the coflow's flows, without mice.
    pub flows: u64,
    /// Bytes that the coflow's flows moved, as last reported.
    pub bytes: ByteCount,
}

/// An active coflow.
#[derive(Clone, Debug, PartialEq)]
pub struct CoflowView {
    /// Name of the coflow.
    pub name: String,
    /// Start time of the coflow's first flow.
    pub since: Instant,
    /// Flows of the coflow without mice, in the order of their hosts.
    pub flows: Vec<FlowView>,
}

/// A host that has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView<'a> {
    /// Name of the host.
    pub name: &'a str,
    /// True if the host's agent is connected.
    pub is_up: bool,
    /// Number of times that an agent of the host has joined.
    pub joins: u64,
    /// Goodput of the host's link in each direction.
    pub rate: BitRate,
    /// Names and rates of the host's uplinks.
    pub uplinks: Vec<(&'a str, BitRate)>,
}

/// An active flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowView {
    /// Name of the sending host.
    pub host: String,
    /// Addresses and ports of the flow.
    pub flow: FlowKey,
    /// Known number of bytes left to send.
    pub remaining: ByteCount,
    /// Rate limit; `None` while the flow is idle and has no limit.
    pub rate: Option<BitRate>,
}

/// Checks the name of a host or a coflow.
///
/// Errors: [`ReportError::Name`].
pub fn check_name(name: &str) -> Result<(), ReportError> {
    let is_one = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_one { Ok(()) } else { Err(ReportError::Name(name.to_owned())) }
}

/// Checks that an address names a single host rather than a group.
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
