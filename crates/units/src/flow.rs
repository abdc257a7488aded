//! The name of a TCP connection: its addresses and ports.
//!
//! Read [`FlowKey`].

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A TCP connection by its 5-tuple (the protocol is always TCP), in the view of the host at its
/// local end.
///
/// One connection has several representations: an IPv4 address may be mapped to IPv6, and an IPv6
/// address may have a meaningless scope. [`FlowKey::canonical`] is equal for all of them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowKey {
    /// Address and port at this host; in an announced flow, the sender's.
    pub local: SocketAddr,
    /// Address and port of the other end.
    pub remote: SocketAddr,
}

impl FlowKey {
    /// Creates the canonical key of the connection between these two ends.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { local: canonical(local), remote: canonical(remote) }
    }

    /// Returns the canonical representation: an IPv4-mapped IPv6 address becomes the IPv4 address,
    /// and an IPv6 address keeps a scope only if it is link-local.
    ///
    /// Source: RFC 4291, section 2.5.5.2 (mapped addresses); RFC 4007, section 6 (scopes).
    #[must_use]
    pub fn canonical(self) -> Self {
        Self::new(self.local, self.remote)
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

impl std::fmt::Display for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {}", self.local, self.remote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_address_equals_its_ipv4_address() {
        let mapped = FlowKey::new(
            "[::ffff:10.0.0.1]:80".parse().expect("good"),
            "[::ffff:10.0.0.2]:9".parse().expect("good"),
        );
        let plain = FlowKey::new("10.0.0.1:80".parse().expect("good"), "10.0.0.2:9".parse().expect("good"));
        assert_eq!(mapped, plain);
        assert_eq!(mapped.to_string(), "10.0.0.1:80 -> 10.0.0.2:9");
    }

    #[test]
    fn canonical_keeps_scopes_of_link_local_addresses_only() {
        let with =
            |ip: &str, scope| SocketAddr::from(SocketAddrV6::new(ip.parse().expect("good"), 80, 7, scope));
        assert_eq!(
            FlowKey::new(with("2001:db8::1", 3), with("2001:db8::2", 3)),
            FlowKey::new(with("2001:db8::1", 0), with("2001:db8::2", 0))
        );
        assert_ne!(
            FlowKey::new(with("fe80::1", 3), with("fe80::2", 3)),
            FlowKey::new(with("fe80::1", 4), with("fe80::2", 4))
        );
    }
}
