//! Addresses of IP and port as people write them, IPv6 zones included: `[fe80::1%eth0]:7171`.
//!
//! A zone is one of this machine's interfaces, by name or number. Source: RFC 4007, section 11.
//! Leaves out: URLs, whose zones RFC 6874 spells otherwise; limits on lookups of names that other
//! parties choose ([`crate::resolve`]). Read [`parse`] and [`lookup`] first.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

/// Parses an IP address with a port; an IPv6 address has brackets.
///
/// `None` for other texts, and for a zone that this machine lacks.
///
/// ```
/// use anabranch_net::address::parse;
/// assert_eq!(parse("[::1]:7171"), Some(([0, 0, 0, 0, 0, 0, 0, 1], 7171).into()));
/// assert!(parse("[fe80::1%lo]:7171").is_some() && parse("fe80::1%lo").is_none());
/// ```
pub fn parse(text: &str) -> Option<SocketAddr> {
    text.parse().ok().or_else(|| bracketed(text).and_then(|(host, port)| with_port(host, port)))
}

/// Parses an IP address without a port, and adds `port`. Returns `None` for the same texts as
/// [`parse`].
pub fn with_port(host: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Some((ip, port).into());
    }
    zone(host)?;
    // The system's lookup resolves the zone. It queries no name server, because the host begins
    // with an IP address.
    (host, port).to_socket_addrs().ok()?.next()
}

/// Zone of an IPv6 address without brackets and port. `None` for other texts.
pub fn zone(host: &str) -> Option<&str> {
    let (ip, zone) = host.split_once('%')?;
    (ip.parse::<Ipv6Addr>().is_ok() && !zone.is_empty()).then_some(zone)
}

/// Looks up the addresses of `HOST:PORT`.
///
/// Errors: the system's.
pub async fn lookup(address: &str) -> io::Result<Vec<SocketAddr>> {
    // The system takes a zone only without brackets.
    let found = match bracketed(address).filter(|(host, _)| zone(host).is_some()) {
        Some(place) => tokio::net::lookup_host(place).await?.collect(),
        None => tokio::net::lookup_host(address).await?.collect(),
    };
    Ok(found)
}

/// Splits `[HOST]:PORT`.
fn bracketed(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.strip_prefix('[')?.split_once("]:")?;
    Some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(address: SocketAddr) -> u32 {
        match address {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => panic!("{address} is no IPv6 address"),
        }
    }

    /// #52: an address with a named zone was refused as a host that does not exist.
    #[tokio::test]
    async fn address_zone_may_be_an_interface_name_or_number() {
        let lo = scope(parse("[fe80::1%lo]:7171").expect("every machine has lo"));
        assert!(lo > 0);
        assert_eq!(parse(&format!("[fe80::1%{lo}]:7171")), parse("[fe80::1%lo]:7171"));
        assert_eq!(with_port("fe80::1%lo", 9).map(scope), Some(lo));
        let found = lookup("[fe80::1%lo]:7171").await.expect("no name server is asked");
        assert_eq!(found, [parse("[fe80::1%lo]:7171").expect("as above")]);
    }

    #[tokio::test]
    async fn addresses_without_zone_parse_as_usual() {
        assert_eq!(parse("127.0.0.1:7171"), Some(([127, 0, 0, 1], 7171).into()));
        assert_eq!(with_port("::1", 7), parse("[::1]:7"));
        assert_eq!(lookup("[::1]:7").await.expect("an address"), [parse("[::1]:7").expect("an address")]);
        for bad in
            ["[fe80::1%nowhere9]:1", "[127.0.0.1%lo]:1", "[localhost%lo]:1", "[fe80::1%]:1", "fe80::1%lo:1"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert!(lookup("[fe80::1%nowhere9]:1").await.is_err());
        assert_eq!((zone("fe80::1%eth0"), zone("host%eth0"), zone("fe80::1")), (Some("eth0"), None, None));
    }
}
