//! What a flow is called, and what tells a connection from others with its addresses.
//!
//! Read [`Flow`] and [`Connection`]; what may be asked for them is `limit.rs`.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A TCP connection of this host, by its 5-tuple (the protocol is always TCP), as this end sees it.
///
/// Addresses are canonical, so that one flow has one name: an IPv4 address mapped into IPv6 is the IPv4 address, and an
/// IPv6 address has a scope only if it is link-local.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    local: SocketAddr,
    remote: SocketAddr,
}

impl Flow {
    /// The flow between these two ends; `local` is this host's.
    ///
    /// Source: RFC 4291, section 2.5.5.2 (mapped addresses); RFC 4007, section 6 (scopes).
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { local: canonical(local), remote: canonical(remote) }
    }

    /// This host's end.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// The other end.
    pub const fn remote(&self) -> SocketAddr {
        self.remote
    }
}

/// A flow's connection. Others may have the same addresses and ports before it and after it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its addresses and ports.
    pub flow: Flow,
    /// What tells its socket from every other socket of this boot ([`crate::FlowState::cookie`]). `None` is the connection that has
    /// these addresses, now or later.
    pub cookie: Option<u64>,
}

impl Connection {
    /// Whether it may be the one whose socket has this cookie.
    pub(crate) fn may_be(self, cookie: Option<u64>) -> bool {
        self.cookie.zip(cookie).is_none_or(|(own, other)| own == other)
    }
}

impl From<Flow> for Connection {
    fn from(flow: Flow) -> Self {
        Self { flow, cookie: None }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    match (address.ip().to_canonical(), address) {
        (IpAddr::V4(ip), _) => SocketAddrV4::new(ip, address.port()).into(),
        (IpAddr::V6(ip), SocketAddr::V6(v6)) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, address.port(), 0, v6.scope_id()).into()
        }
        (IpAddr::V6(ip), _) => SocketAddrV6::new(ip, address.port(), 0, 0).into(),
    }
}

impl std::fmt::Display for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {}", self.local, self.remote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_is_the_address_that_it_maps() {
        let mapped = Flow::new(
            "[::ffff:10.0.0.1]:80".parse().expect("good"),
            "[::ffff:10.0.0.2]:9".parse().expect("good"),
        );
        let plain = Flow::new("10.0.0.1:80".parse().expect("good"), "10.0.0.2:9".parse().expect("good"));
        assert_eq!(mapped, plain);
        assert_eq!(mapped.to_string(), "10.0.0.1:80 -> 10.0.0.2:9");
    }

    #[test]
    fn only_link_local_addresses_have_scopes() {
        let with =
            |ip: &str, scope| SocketAddr::from(SocketAddrV6::new(ip.parse().expect("good"), 80, 7, scope));
        assert_eq!(
            Flow::new(with("2001:db8::1", 3), with("2001:db8::2", 3)),
            Flow::new(with("2001:db8::1", 0), with("2001:db8::2", 0))
        );
        assert_ne!(
            Flow::new(with("fe80::1", 3), with("fe80::2", 3)),
            Flow::new(with("fe80::1", 4), with("fe80::2", 4))
        );
    }
}
