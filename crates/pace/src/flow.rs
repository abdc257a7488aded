//! What a flow is called, and what may be asked for it.
//!
//! Read [`Flow`] and [`Limit`].

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use anabranch_units::BitRate;

use crate::PaceError;

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

/// How fast a flow may send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// At most this fast.
    ///
    /// Units: bits per second of what TCP sends; whether headers count depends on the [`crate::Mechanism`].
    Rate(BitRate),
    /// As before any limit of ours.
    None,
}

impl Limit {
    /// The least rate that can be set: at less, a full segment takes longer than the 1.5 s after which most people
    /// would call the flow stopped.
    pub const RATE_MIN: BitRate = BitRate::bps(8_000);

    /// What a kernel that counts in bytes takes for it; `None` for no limit.
    ///
    /// Units: bytes per second, rounded down.
    /// Errors: a rate below [`Limit::RATE_MIN`], or of which the mechanism cannot count as many bytes.
    pub(crate) fn bytes_per_second(self, max: u64) -> Result<Option<u64>, PaceError> {
        let Self::Rate(rate) = self else { return Ok(None) };
        let bytes = rate.as_bps() / 8;
        if rate < Self::RATE_MIN || bytes > max {
            return Err(PaceError::Rate {
                rate,
                min: Self::RATE_MIN,
                max: BitRate::bps(max.saturating_mul(8)),
            });
        }
        Ok(Some(bytes))
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

    #[test]
    fn rates_are_taken_at_both_bounds_and_refused_past_them() {
        let bytes = |bps| Limit::Rate(BitRate::bps(bps)).bytes_per_second(u64::from(u32::MAX) - 1).ok();
        assert_eq!(bytes(8_000), Some(Some(1_000)));
        assert_eq!(bytes(7_999), None);
        assert_eq!(bytes(8 * (u64::from(u32::MAX) - 1)), Some(Some(u64::from(u32::MAX) - 1)));
        assert_eq!(bytes(8 * u64::from(u32::MAX)), None);
        assert_eq!(Limit::None.bytes_per_second(0).ok(), Some(None));
    }
}
