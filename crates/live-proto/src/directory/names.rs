//! DNS names for the streams of a directory.
//!
//! | name | addresses |
//! | --- | --- |
//! | `RENDITION.CHANNEL.ZONE` | the edge for this object |
//! | `CHANNEL.ZONE` | the edge for the channel's rendition with the lowest bitrate |
//! | `ns.ZONE` | the name server, which also is the zone's NS record |
//!
//! Names consist of the labels in the directory, in any case. Leaves out: the format of messages.
//! Read [`Zone`].

use super::{Directory, LABEL_BYTES_MAX, is_label};
use crate::Object;
use std::fmt;
use std::net::IpAddr;

/// Longest name of a zone, in characters. With two labels before it, a name has at most 253.
pub const ZONE_BYTES_MAX: usize = 253 - 2 * (LABEL_BYTES_MAX + 1);
/// Label of the zone's name server. A channel with this name has no record.
pub const NAME_SERVER_LABEL: &str = "ns";

/// A DNS zone whose names are the streams of a directory.
///
/// ```
/// use anabranch_live_proto::directory::names::Zone;
/// let zone = Zone::new("Live.example", vec![])?;
/// assert_eq!(zone.to_string(), "live.example");
/// assert!(Zone::new("live..example", vec![]).is_err());
/// # Ok::<(), anabranch_live_proto::directory::names::ZoneError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Labels in lower case, the top-level label last.
    labels: Vec<String>,
    /// Addresses of the zone's name server.
    servers: Vec<IpAddr>,
}

/// A text that is not a valid zone name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneError(String);

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = anabranch_units::text::brief(&self.0, ZONE_BYTES_MAX);
        write!(
            f,
            "zone `{name}`: must be a domain name of at most {ZONE_BYTES_MAX} characters, as live.example"
        )
    }
}

impl std::error::Error for ZoneError {}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.labels.join("."))
    }
}

/// Type of the requested records.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Name servers.
    Ns,
    /// Start of authority.
    Soa,
    /// Any other type.
    Other,
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Result of the query.
    pub outcome: Outcome,
    /// Length of the shortest prefix around the viewer's address in which all addresses get this
    /// answer; 0 if the answer does not depend on the address.
    pub scope: u8,
}

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Addresses, at least one.
    Addresses(Vec<IpAddr>),
    /// The zone's name server.
    NameServer,
    /// The zone's start of authority.
    Authority,
    /// The name exists but has no record of this type.
    NoData,
    /// The name does not exist.
    NoName,
    /// The name is outside the zone.
    Refused,
    /// No edge is open.
    Unavailable,
}

/// Meaning of a name in the zone.
enum ZoneName {
    Apex,
    Server,
    Stream(Object),
}

impl Zone {
    /// Creates the zone with this name. Its name server has the addresses `servers`.
    ///
    /// Errors: a name that is not a valid domain name, or longer than [`ZONE_BYTES_MAX`].
    pub fn new(name: &str, servers: Vec<IpAddr>) -> Result<Self, ZoneError> {
        let text = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let labels: Vec<String> = text.split('.').map(str::to_owned).collect();
        let is_name = text.len() <= ZONE_BYTES_MAX && labels.iter().all(|label| is_label(label));
        if is_name { Ok(Self { labels, servers }) } else { Err(ZoneError(name.to_owned())) }
    }

    /// Labels in lower case, the top-level label last.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Answers a query for records of `kind` from a viewer at this address. The queried name is
    /// given by its labels, the top-level label last.
    pub fn resolve<'a>(
        &self,
        directory: &Directory,
        labels: impl IntoIterator<Item = &'a [u8]>,
        kind: RecordKind,
        viewer: IpAddr,
    ) -> Resolution {
        let for_all = |outcome| Resolution { outcome, scope: 0 };
        let labels: Vec<&[u8]> = labels.into_iter().collect();
        let Some(names) = self.below(&labels) else { return for_all(Outcome::Refused) };
        let Some(meaning) = meaning(directory, names) else { return for_all(Outcome::NoName) };
        match (meaning, kind) {
            (ZoneName::Apex, RecordKind::Ns) => for_all(Outcome::NameServer),
            (ZoneName::Apex, RecordKind::Soa) => for_all(Outcome::Authority),
            (ZoneName::Server, RecordKind::A | RecordKind::Aaaa) => for_all(of_kind(&self.servers, kind)),
            (ZoneName::Stream(object), RecordKind::A | RecordKind::Aaaa) => {
                let (group, scope) = directory.group_of(viewer);
                let edge = directory.serving_edges(group, object).next();
                let addresses = edge.and_then(|edge| directory.edge(edge)).map(|edge| &edge.addresses);
                let outcome = addresses.map_or(Outcome::Unavailable, |all| of_kind(all, kind));
                Resolution { outcome, scope }
            }
            _ => for_all(Outcome::NoData),
        }
    }

    /// Labels before the zone's name. `None` if the name is outside the zone.
    fn below<'a, 'b>(&self, labels: &'b [&'a [u8]]) -> Option<&'b [&'a [u8]]> {
        let (below, zone) = labels.split_at(labels.len().checked_sub(self.labels.len())?);
        let is_own = |(asked, own): (&&[u8], &String)| asked.eq_ignore_ascii_case(own.as_bytes());
        zone.iter().zip(&self.labels).all(is_own).then_some(below)
    }
}

fn meaning(directory: &Directory, names: &[&[u8]]) -> Option<ZoneName> {
    let text = |label: &[u8]| Some(std::str::from_utf8(label).ok()?.to_ascii_lowercase());
    match names {
        [] => Some(ZoneName::Apex),
        [channel] => match text(channel)? {
            name if name == NAME_SERVER_LABEL => Some(ZoneName::Server),
            name => directory.lowest(&name).map(ZoneName::Stream),
        },
        [rendition, channel] => directory.find(&text(channel)?, &text(rendition)?).map(ZoneName::Stream),
        _ => None,
    }
}

/// The addresses whose family matches the record type.
fn of_kind(addresses: &[IpAddr], kind: RecordKind) -> Outcome {
    let is_of_kind = |address: &IpAddr| address.is_ipv4() == (kind == RecordKind::A);
    let found: Vec<IpAddr> = addresses.iter().copied().filter(is_of_kind).collect();
    if found.is_empty() { Outcome::NoData } else { Outcome::Addresses(found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::exercise::sample;

    fn resolve(name: &str, kind: RecordKind, viewer: &str) -> (Outcome, u8) {
        let directory = Directory::new(sample()).expect("no defect");
        let zone = Zone::new("live.example", vec![[192, 0, 2, 53].into()]).expect("a name");
        let viewer = viewer.parse().expect("an address");
        let found = zone.resolve(&directory, name.split('.').map(str::as_bytes), kind, viewer);
        (found.outcome, found.scope)
    }

    fn addresses(text: &[&str]) -> Outcome {
        Outcome::Addresses(text.iter().map(|text| text.parse().expect("an address")).collect())
    }

    #[test]
    fn names_resolve_to_the_groups_edge() {
        let paris = resolve("low.news.live.example", RecordKind::A, "10.1.2.3");
        assert_eq!(paris, (addresses(&["198.51.100.1"]), 16));
        let lyon = resolve("LOW.News.LIVE.example", RecordKind::Aaaa, "10.2.2.3");
        assert_eq!(lyon, (addresses(&["2001:db8::2"]), 15));
        let lowest = resolve("news.live.example", RecordKind::A, "10.2.2.3");
        assert_eq!(lowest, (addresses(&["198.51.100.2"]), 15));
        let no_ipv6 = resolve("low.news.live.example", RecordKind::Aaaa, "10.1.2.3");
        assert_eq!(no_ipv6, (Outcome::NoData, 16), "the edge of paris has no IPv6 address");
    }

    #[test]
    fn zone_and_unknown_names_get_standard_dns_outcomes() {
        let cases = [
            ("live.example", RecordKind::Soa, Outcome::Authority),
            ("live.example", RecordKind::Ns, Outcome::NameServer),
            ("live.example", RecordKind::A, Outcome::NoData),
            ("ns.live.example", RecordKind::A, addresses(&["192.0.2.53"])),
            ("ns.live.example", RecordKind::Aaaa, Outcome::NoData),
            ("news.live.example", RecordKind::Other, Outcome::NoData),
            ("mid.news.live.example", RecordKind::A, Outcome::NoName),
            ("x.low.news.live.example", RecordKind::A, Outcome::NoName),
            ("n\u{fc}ws.live.example", RecordKind::A, Outcome::NoName),
            ("example", RecordKind::A, Outcome::Refused),
            ("live.example.org", RecordKind::Soa, Outcome::Refused),
        ];
        for (name, kind, outcome) in cases {
            assert_eq!(resolve(name, kind, "10.1.2.3"), (outcome, 0), "{name}");
        }
    }

    #[test]
    fn names_without_an_open_edge_are_unavailable() {
        let mut contents = sample();
        for edge in &mut contents.edges {
            edge.is_open = false;
        }
        let directory = Directory::new(contents).expect("no defect");
        let zone = Zone::new("live.example.", vec![]).expect("a name");
        let labels = [&b"news"[..], b"live", b"example"];
        let found = zone.resolve(&directory, labels, RecordKind::A, [10, 1, 0, 1].into());
        assert_eq!(found.outcome, Outcome::Unavailable);
    }

    #[test]
    fn longest_names_fit_a_message() {
        let label = "a".repeat(LABEL_BYTES_MAX);
        let zone = format!("{label}.{}", "b".repeat(ZONE_BYTES_MAX - LABEL_BYTES_MAX - 1));
        assert!(Zone::new(&zone, vec![]).is_ok());
        assert!(Zone::new(&format!("{zone}b"), vec![]).is_err());
    }
}
