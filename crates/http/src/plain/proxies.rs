//! Addresses of clients behind proxies.
//!
//! A connection from a trusted proxy carries requests of other clients. The clients' addresses are
//! in the headers `Forwarded` (RFC 7239), `X-Forwarded-For` and `X-Real-IP`, or in the PROXY
//! protocol at the start of the connection (HAProxy's `proxy-protocol.txt`, versions 1 and 2). A
//! client can write these headers, too. So a list is read from its end, which the nearest proxy has
//! written, and entries of further trusted proxies are skipped. Headers that contradict each other
//! are ignored. Leaves out: additional fields of the PROXY protocol (TLVs). Read [`Proxies`] first.

use axum::http::{HeaderMap, header};
use ipnet::IpNet;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// First bytes of a header of version 2 of the PROXY protocol.
const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Maximum bytes of a header of version 1, including its end of line.
const V1_BYTES_MAX: usize = 107;
/// Maximum bytes of a version 2 header after its first 16 bytes: addresses, names, certificates.
const V2_BYTES_MAX: usize = 4 << 10;
/// Maximum number of prefixes of proxies: a content delivery network has some dozens.
const PREFIXES_MAX: usize = 1_024;

/// Proxies that are trusted to name a client's address. None by default.
///
/// ```
/// # use anabranch_http::plain::Proxies;
/// use axum::http::HeaderMap;
/// use std::net::IpAddr;
/// let proxies: Proxies = "10.0.0.0/8,2001:db8::1".parse()?;
/// let headers = HeaderMap::from_iter([("x-forwarded-for".parse()?, "203.0.113.9, 10.0.0.7".parse()?)]);
/// assert_eq!(proxies.client([10, 0, 0, 1].into(), &headers), IpAddr::from([203, 0, 113, 9]));
/// assert_eq!(proxies.client([192, 0, 2, 1].into(), &headers), IpAddr::from([192, 0, 2, 1]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    prefixes: Arc<[IpNet]>,
    has_proxy_protocol: bool,
}

/// Reason why text is no list of proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxiesError {
    /// An entry is not an IP prefix.
    BadPrefix(String),
    /// There are more than `PREFIXES_MAX` prefixes.
    TooMany(usize),
}

impl std::fmt::Display for ProxiesError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BadPrefix(text) => {
                let text = anabranch_units::text::brief(text, 64);
                write!(f, "`{text}`: write addresses or prefixes, as 10.0.0.0/8,2001:db8::1, or none")
            }
            Self::TooMany(count) => write!(f, "{count} prefixes: at most {PREFIXES_MAX}"),
        }
    }
}
impl std::error::Error for ProxiesError {}

impl FromStr for Proxies {
    type Err = ProxiesError;

    /// Reads addresses and prefixes, separated by commas. The word `none` stands for no proxy.
    fn from_str(text: &str) -> Result<Self, ProxiesError> {
        if text.trim() == "none" {
            return Ok(Self::default());
        }
        let prefix = |text: &str| {
            let bad = || ProxiesError::BadPrefix(text.to_owned());
            let address = text.parse::<IpAddr>().map(IpNet::from);
            let prefix = address.or_else(|_| text.parse::<IpNet>().map_err(|_| bad()))?;
            if prefix.trunc() == prefix { Ok(prefix) } else { Err(bad()) }
        };
        let prefixes = text.split(',').map(|text| prefix(text.trim())).collect::<Result<Vec<_>, _>>()?;
        if prefixes.len() > PREFIXES_MAX {
            return Err(ProxiesError::TooMany(prefixes.len()));
        }
        Ok(Self { prefixes: prefixes.into(), has_proxy_protocol: false })
    }
}

impl Proxies {
    /// The loopback addresses of this machine.
    pub fn loopback() -> Self {
        "127.0.0.0/8,::1".parse().expect("two prefixes")
    }

    /// Sets whether connections from proxies begin with the PROXY protocol.
    pub fn with_proxy_protocol(self, has_proxy_protocol: bool) -> Self {
        Self { has_proxy_protocol, ..self }
    }

    /// Returns true if `address` is a proxy's.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.prefixes.iter().any(|prefix| prefix.contains(&address))
    }

    /// Returns true if a connection from `address` begins with the PROXY protocol.
    pub(super) fn speaks_first(&self, address: IpAddr) -> bool {
        self.has_proxy_protocol && self.contains(address)
    }

    /// Address of the client whose request came from `from`: `from` itself, unless `from` is a
    /// proxy that names another address.
    pub fn client(&self, from: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.contains(from) {
            return from;
        }
        let real = lines(headers, "x-real-ip").map(node).collect();
        let forwarded_for = lines(headers, "x-forwarded-for").flat_map(|line| line.split(',').map(node));
        let forwarded = lines(headers, header::FORWARDED.as_str()).flat_map(forwarded);
        let mut named = [forwarded.collect(), forwarded_for.collect(), real]
            .into_iter()
            .filter_map(|nodes: Vec<Option<IpAddr>>| self.nearest_client(&nodes));
        let Some(client) = named.next() else { return from };
        if named.all(|other| other == client) { client } else { from }
    }

    /// Returns the last of `nodes` that is not a proxy. `None` if all are proxies, or if an
    /// unreadable entry follows that node.
    fn nearest_client(&self, nodes: &[Option<IpAddr>]) -> Option<IpAddr> {
        nodes.iter().rev().find(|node| node.is_none_or(|address| !self.contains(address))).copied().flatten()
    }
}

/// Values of a header, in order of arrival. A value that is not text is empty.
fn lines<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default())
}

/// Parses an address, with or without a port; an IPv6 address may be in brackets. `None` for other
/// text, such as `unknown`.
fn node(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let address = if let Some(text) = text.strip_prefix('[') {
        let (address, port) = text.split_once(']')?;
        let address = (port.is_empty() || port.starts_with(':')).then_some(address)?;
        IpAddr::V6(address.parse().ok()?)
    } else {
        let whole = text.parse().ok();
        whole.or_else(|| Some(IpAddr::V4(text.split_once(':')?.0.parse().ok()?)))?
    };
    Some(address.to_canonical())
}

/// Addresses in a value of `Forwarded`, one for each element; `None` for an unreadable element.
fn forwarded(value: &str) -> impl Iterator<Item = Option<IpAddr>> {
    unquoted(value, ',').map(|element| {
        unquoted(element, ';').find_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            name.trim().eq_ignore_ascii_case("for").then(|| node(value)).flatten()
        })
    })
}

/// Splits `text` at separators outside quotation marks.
fn unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c: char| {
        let was_escaped = is_escaped;
        is_escaped = is_quoted && c == '\\' && !was_escaped;
        is_quoted ^= c == '"' && !was_escaped;
        c == separator && !is_quoted
    })
}

fn bad(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("header of the PROXY protocol: {reason}"))
}

/// Reads exactly the PROXY protocol's header. Returns the client's address; `None` if the
/// connection is the proxy's own, or if the header has no IP address.
///
/// Errors: a stream that does not begin with a valid header (`InvalidData`); the stream's own.
pub(crate) async fn read_header(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    // A header of either version is at least this long.
    let mut begin = [0; V2_SIGNATURE.len()];
    stream.read_exact(&mut begin).await?;
    if begin == V2_SIGNATURE {
        let mut rest = [0; 4];
        stream.read_exact(&mut rest).await?;
        let [version_and_command, family, length @ ..] = rest;
        let length = usize::from(u16::from_be_bytes(length));
        if length > V2_BYTES_MAX {
            return Err(bad(&format!("{length} bytes of addresses: at most {V2_BYTES_MAX}")));
        }
        let mut addresses = vec![0; length];
        stream.read_exact(&mut addresses).await?;
        return v2(version_and_command, family, &addresses);
    }
    if !begin.starts_with(b"PROXY ") {
        return Err(bad("is not there: configure the proxy to send it, or serve without --proxy-protocol"));
    }
    let mut line = begin.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() >= V1_BYTES_MAX {
            return Err(bad(&format!("no end of line within {V1_BYTES_MAX} bytes")));
        }
        line.push(stream.read_u8().await?);
    }
    v1(std::str::from_utf8(&line).unwrap_or_default())
}

/// Reads a header of version 1 (section 2.1).
fn v1(line: &str) -> io::Result<Option<IpAddr>> {
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let address = match words[..] {
        ["PROXY", "UNKNOWN", ..] => return Ok(None),
        ["PROXY", "TCP4", source, _, _, _] => source.parse().ok().map(IpAddr::V4),
        ["PROXY", "TCP6", source, _, _, _] => source.parse().ok().map(IpAddr::V6),
        _ => None,
    };
    let address = address.ok_or_else(|| bad("version 1 without addresses of TCP4 or TCP6"))?;
    Ok(Some(address.to_canonical()))
}

/// Reads a header of version 2 (section 2.2).
fn v2(version_and_command: u8, family: u8, addresses: &[u8]) -> io::Result<Option<IpAddr>> {
    let short = || bad("version 2 with fewer bytes than its addresses have");
    match (version_and_command, family >> 4) {
        // The connection is the proxy's own, for a health check.
        (0x20, _) => Ok(None),
        (0x21, 1) => {
            let address = addresses.first_chunk::<12>().and_then(|bytes| bytes.first_chunk::<4>());
            Ok(Some(IpAddr::from(*address.ok_or_else(short)?)))
        }
        (0x21, 2) => {
            let address = addresses.first_chunk::<36>().and_then(|bytes| bytes.first_chunk::<16>());
            Ok(Some(IpAddr::from(*address.ok_or_else(short)?).to_canonical()))
        }
        // Unix sockets, and unknown address families.
        (0x21, _) => Ok(None),
        _ => Err(bad("version 2 with another version or command")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};
    use futures_util::FutureExt as _;

    const PROXY: [u8; 4] = [10, 0, 0, 1];

    fn named((name, value): (&'static str, &'static str)) -> (HeaderName, HeaderValue) {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    }

    fn client(from: [u8; 4], asked: &[(&'static str, &'static str)]) -> String {
        let proxies: Proxies = "10.0.0.0/8, 2001:db8:ff::/48".parse().expect("prefixes");
        let headers = asked.iter().copied().map(named).collect();
        proxies.client(from.into(), &headers).to_string()
    }

    /// #52: behind the proxy that the documents recommend, all viewers had the proxy's address.
    #[test]
    fn client_address_is_read_from_each_proxy_header() {
        for (name, value) in [
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-for", "203.0.113.9:4711"),
            ("x-forwarded-for", "198.51.100.1, 203.0.113.9"),
            ("x-forwarded-for", "203.0.113.9, 10.0.0.2, 2001:db8:ff::3"),
            ("x-forwarded-for", "::ffff:203.0.113.9"),
            ("x-real-ip", "203.0.113.9"),
            ("forwarded", "for=203.0.113.9;proto=https;by=10.0.0.1"),
            ("forwarded", "for=unknown, proto=https;For=\"203.0.113.9:4711\""),
            ("forwarded", "for=\"198.51.100.1\";host=\"a,b;for=x\\\"\", for=203.0.113.9, for=10.1.1.1"),
        ] {
            assert_eq!(client(PROXY, &[(name, value)]), "203.0.113.9", "{name}: {value}");
        }
        for (name, value) in [
            ("x-forwarded-for", "2001:db8::9"),
            ("x-forwarded-for", "[2001:db8::9]:443"),
            ("x-real-ip", "[2001:db8::9]"),
            ("forwarded", "for=\"[2001:db8::9]:443\""),
        ] {
            assert_eq!(client(PROXY, &[(name, value)]), "2001:db8::9", "{name}: {value}");
        }
    }

    #[test]
    fn repeated_headers_are_read_as_one_list() {
        let lines = [("x-forwarded-for", "198.51.100.1"), ("x-forwarded-for", "203.0.113.9")];
        let mut map = HeaderMap::new();
        for (name, value) in lines.map(named) {
            map.append(name, value);
        }
        assert_eq!(Proxies::loopback().client([127, 0, 0, 1].into(), &map), IpAddr::from([203, 0, 113, 9]));
    }

    #[test]
    fn client_cannot_choose_its_address_by_headers() {
        let forged = ("x-forwarded-for", "203.0.113.9");
        assert_eq!(client([192, 0, 2, 1], &[forged]), "192.0.2.1", "it is no proxy");
        // The proxy sets one header, and forwards the client's forged header unchanged.
        assert_eq!(client(PROXY, &[("x-real-ip", "192.0.2.1"), forged]), "10.0.0.1");
        assert_eq!(client(PROXY, &[("x-real-ip", "203.0.113.9"), forged]), "203.0.113.9");
        assert_eq!(
            client(PROXY, &[("x-real-ip", "10.0.0.7"), forged]),
            "203.0.113.9",
            "a proxy is no client"
        );
        for unreadable in ["203.0.113.9, unknown", "203.0.113.9, _hidden", "203.0.113.9,", "", "10.0.0.2"] {
            assert_eq!(client(PROXY, &[("x-forwarded-for", unreadable)]), "10.0.0.1", "{unreadable}");
        }
    }

    #[test]
    fn invalid_proxy_prefixes_are_refused() {
        for bad in ["", "10.0.0.1/8", "10.0.0.0/33", "proxy.example", "10.0.0.0/8,,"] {
            assert!(bad.parse::<Proxies>().is_err(), "{bad}");
        }
        assert_eq!("none".parse(), Ok(Proxies::default()));
        let many = vec!["10.0.0.1"; PREFIXES_MAX + 1].join(",");
        assert_eq!(many.parse::<Proxies>(), Err(ProxiesError::TooMany(PREFIXES_MAX + 1)));
    }

    fn read(mut bytes: &[u8]) -> Result<(Option<String>, usize), io::ErrorKind> {
        let read = read_header(&mut bytes).now_or_never().expect("no byte is waited for");
        Ok((read.map_err(|error| error.kind())?.map(|address| address.to_string()), bytes.len()))
    }

    fn v2_header(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).expect("short").to_be_bytes();
        [&V2_SIGNATURE[..], &[command, family], &length, addresses, b"GET /"].concat()
    }

    #[test]
    fn proxy_protocol_header_yields_the_client_address() {
        let four = Some("203.0.113.9".to_owned());
        assert_eq!(read(b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\nGET /"), Ok((four.clone(), 5)));
        let six = Some("2001:db8::9".to_owned());
        assert_eq!(read(b"PROXY TCP6 2001:db8::9 2001:db8::1 4711 443\r\n"), Ok((six.clone(), 0)));
        assert_eq!(read(b"PROXY UNKNOWN\r\nGET /"), Ok((None, 5)));
        let with_tlv = [203, 0, 113, 9, 10, 0, 0, 1, 0, 1, 0, 2, 3, 0, 1, 9];
        assert_eq!(read(&v2_header(0x21, 0x11, &with_tlv)), Ok((four, 5)));
        let mut addresses = [0; 36];
        addresses[..16].copy_from_slice(&"2001:db8::9".parse::<std::net::Ipv6Addr>().expect("one").octets());
        assert_eq!(read(&v2_header(0x21, 0x21, &addresses)), Ok((six, 5)));
        assert_eq!(read(&v2_header(0x20, 0, &[])), Ok((None, 5)), "the proxy's own");
        assert_eq!(read(&v2_header(0x21, 0x31, &[0; 216])), Ok((None, 5)), "a Unix socket");
    }

    #[test]
    fn invalid_proxy_protocol_headers_are_refused() {
        let long = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
        for bad in [
            b"GET / HTTP/1.1\r\n\r\n".as_slice(),
            b"PROXY TCP4 nowhere 10.0.0.1 1 2\r\n",
            b"PROXY TCP4 2001:db8::9 2001:db8::1 1 2\r\n",
            b"PROXY TCP4 203.0.113.9\r\n",
            &long[..],
            &v2_header(0x21, 0x11, &[1; 11]),
            &v2_header(0x31, 0x11, &[1; 12]),
            &v2_header(0x21, 0x11, &[1; V2_BYTES_MAX + 1]),
        ] {
            assert_eq!(read(bad), Err(io::ErrorKind::InvalidData), "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(read(b"PROXY TCP4"), Err(io::ErrorKind::UnexpectedEof));
    }
}
