//! Links, addresses, routes and rules of a network namespace, over rtnetlink(7).
//!
//! The kernel filters lists, so a host with many routes costs no more than a host with few. Source:
//! rtnetlink(7); the kernel's include/uapi/linux/{if_link,if_addr,rtnetlink,fib_rules}.h. Leaves
//! out: traffic control (`pace`), neighbours, routes with several next hops. Read [`Rtnetlink`],
//! [`Link`], [`Route`] and [`Rule`].

mod links;
mod routes;
mod rules;

use std::net::IpAddr;

use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::netlink::{Netlink, NetlinkError, Result};

pub use netlink_packet_route::IpProtocol;

pub use links::{Address, LOOPBACK, Link, LinkChange};
pub use routes::Route;
pub use rules::{Rule, RuleAction};

/// An rtnetlink socket.
#[derive(Debug)]
pub struct Rtnetlink {
    netlink: Netlink,
}

impl Rtnetlink {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// Errors: the system's.
    pub fn open() -> Result<Self> {
        let netlink = Netlink::open(None)?;
        // Older kernels ignore the filter and list further entries, which the readers skip.
        let _ = netlink.filter_dumps();
        Ok(Self { netlink })
    }
}

/// A range of addresses with the same first bits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    /// An address of the range.
    pub address: IpAddr,
    /// Number of equal first bits.
    pub bits: u8,
}

impl Prefix {
    /// The range that contains only `address`.
    pub const fn host(address: IpAddr) -> Self {
        Self { address, bits: bits(address) }
    }

    /// Returns true if the range has one address.
    pub const fn is_host(self) -> bool {
        self.bits == bits(self.address)
    }
}

const fn bits(address: IpAddr) -> u8 {
    if address.is_ipv6() { 128 } else { 32 }
}

const fn family(is_ipv6: bool) -> AddressFamily {
    if is_ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn is(error: &NetlinkError, errno: i32) -> bool {
    matches!(error, NetlinkError::Refused { .. }) && error.raw_os_error() == Some(errno)
}

/// Exercise for the fuzz target: reads a message of any kind.
pub(crate) fn exercise(message: &Message) {
    match message {
        Message::NewLink(link) => drop(Link::read(link)),
        Message::NewAddress(address) => drop(Address::read(address)),
        Message::NewRoute(route) => drop(Route::read(route)),
        Message::NewRule(rule) => drop(Rule::read(rule)),
        _ => {}
    }
}
