//! Permitted addresses of a site, if the topology gives them.
//!
//! Leaves out: name resolution. Read [`Hosts`] first.

use std::net::IpAddr;

/// A single host by its name, or a network of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// The host's name: letters, digits, `-` and `.`.
    Name(String),
    /// Addresses that share the first `prefix` bits with `base`.
    Network {
        /// An address of the network.
        base: IpAddr,
        /// Length of the prefix in bits, at most 32 (IPv4) or 128 (IPv6).
        prefix: u8,
    },
}

fn bits(address: IpAddr) -> (u128, u8) {
    match address.to_canonical() {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl Hosts {
    /// Returns true if `host`, a name or an address without port or brackets, is permitted.
    pub fn allows(&self, host: &str) -> bool {
        match self {
            Self::Name(name) => name.eq_ignore_ascii_case(host),
            Self::Network { base, prefix } => host.parse().is_ok_and(|address: IpAddr| {
                let ((a, length), (b, others)) = (bits(*base), bits(address));
                let mask = u128::MAX.checked_shl(128 - u32::from(*prefix)).unwrap_or(0);
                length == others && (a ^ b) & mask == 0
            }),
        }
    }
}

impl std::fmt::Display for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Network { base, prefix } => write!(f, "{base}/{prefix}"),
        }
    }
}

impl std::str::FromStr for Hosts {
    type Err = ();
    /// Parses `10.0.0.0/8`, `2001:db8::/32`, an address, or a name.
    ///
    /// Errors: any other text.
    fn from_str(text: &str) -> Result<Self, ()> {
        if let Some((base, prefix)) = text.split_once('/') {
            let base: IpAddr = base.parse().map_err(|_| ())?;
            let prefix = prefix.parse().map_err(|_| ())?;
            // An IPv4 address mapped to IPv6 is refused, because its prefix length would be
            // ambiguous.
            let plain = base.to_canonical() == base;
            return if plain && prefix <= bits(base).1 {
                Ok(Self::Network { base, prefix })
            } else {
                Err(())
            };
        }
        if let Ok(base) = text.parse::<IpAddr>() {
            let base = base.to_canonical();
            return Ok(Self::Network { base, prefix: bits(base).1 });
        }
        let label = |l: &str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let name = text.len() <= 253 && text.split('.').all(label);
        if name { Ok(Self::Name(text.to_owned())) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_allows_its_addresses_and_name_only_itself() {
        for (hosts, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.1.1.1", "::10.1.1.1"),
            ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
            ("10.0.0.1/31", "10.0.0.0", "10.0.0.2"),
            ("0.0.0.0/0", "255.1.2.3", "::1"),
            ("::/0", "::1", "1.2.3.4"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("relay.example", "Relay.Example", "relay.example.org"),
            ("relay.example", "relay.example", "10.0.0.1"),
        ] {
            let read: Hosts = hosts.parse().expect(hosts);
            assert!(read.allows(inside), "{inside} in {hosts}");
            assert!(!read.allows(outside), "{outside} in {hosts}");
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        for bad in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/-1",
            "10.0.0/8",
            "a b",
            "host:7",
            "a..b",
            "::ffff:1.2.3.4/97",
        ] {
            assert_eq!(bad.parse::<Hosts>(), Err(()), "{bad}");
        }
    }
}
