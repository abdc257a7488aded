//! The operator's hosts file: addresses, links and shared uplinks of hosts.
//!
//! A TOML file of `[[host]]` and `[[uplink]]` tables. With this file, hosts may only use the
//! listed addresses, and unlisted hosts may not join. Leaves out: reading files. Read [`Hosts`].

use crate::coordinator::{
    ADDRESSES_MAX, HOST_UPLINKS_MAX, HOSTS_MAX, RATE_MIN, UPLINKS_MAX, Uplink, check_address, check_name,
};
use anabranch_units::BitRate;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use toml::Spanned;

/// Maximum bytes of a file.
pub const FILE_BYTES_MAX: usize = 8 << 20;

/// Hosts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(BTreeMap<String, HostPosition>);

/// A host's addresses, link and uplinks in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPosition {
    /// Addresses of flows to the host. If empty, the source address of its agent.
    pub addresses: Vec<IpAddr>,
    /// Goodput of the host's link in each direction; `None` if the agent's value applies.
    pub link: Option<BitRate>,
    /// Uplinks that the host shares with other hosts.
    pub uplinks: Vec<Uplink>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    host: Vec<HostTable>,
    #[serde(default)]
    uplink: Vec<UplinkTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    name: Spanned<String>,
    addresses: Option<Spanned<Vec<IpAddr>>>,
    link: Option<Spanned<String>>,
    #[serde(default)]
    uplinks: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UplinkTable {
    name: Spanned<String>,
    rate: Spanned<String>,
}

/// Error in a hosts file, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostsError {
    /// The file is larger than [`FILE_BYTES_MAX`].
    TooLarge {
        /// Size of the file.
        bytes: usize,
    },
    /// Any other error.
    Wrong {
        /// Line, from 1.
        line: usize,
        /// Reason, in one line.
        reason: String,
    },
}

impl fmt::Display for HostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes } => write!(f, "{bytes} bytes of hosts: at most {FILE_BYTES_MAX}"),
            Self::Wrong { line, reason } => write!(f, "line {line}: {reason}"),
        }
    }
}

impl std::error::Error for HostsError {}

impl FromStr for Hosts {
    type Err = HostsError;
    fn from_str(text: &str) -> Result<Self, HostsError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(HostsError::TooLarge { bytes: text.len() });
        }
        let line = |at: usize| 1 + text.get(..at).map_or(0, |before| before.matches('\n').count());
        let wrong = |at: usize, reason: String| HostsError::Wrong { line: line(at), reason };
        let file: File = toml::from_str(text).map_err(|error| {
            let reason = error.message().lines().collect::<Vec<_>>().join(" ");
            wrong(error.span().map_or(0, |span| span.start), reason)
        })?;
        let rate = |text: &Spanned<String>| -> Result<BitRate, HostsError> {
            let at = text.span().start;
            let rate: BitRate = text.get_ref().parse().map_err(|error| wrong(at, format!("{error}")))?;
            let least = format!("rate {rate}: must be at least {RATE_MIN}");
            if rate < RATE_MIN { Err(wrong(at, least)) } else { Ok(rate) }
        };
        let name = |text: &Spanned<String>| -> Result<String, HostsError> {
            check_name(text.get_ref()).map_err(|error| wrong(text.span().start, error.to_string()))?;
            Ok(text.get_ref().clone())
        };
        let too_many =
            |what: &str, count: usize, most: usize| wrong(0, format!("{count} {what}: at most {most}"));
        if file.host.len() > HOSTS_MAX {
            return Err(too_many("hosts", file.host.len(), HOSTS_MAX));
        }
        if file.uplink.len() > UPLINKS_MAX {
            return Err(too_many("uplinks", file.uplink.len(), UPLINKS_MAX));
        }
        let mut uplinks = BTreeMap::new();
        for uplink in &file.uplink {
            if uplinks.insert(name(&uplink.name)?, rate(&uplink.rate)?).is_some() {
                let reason = format!("uplink {}: is there twice", uplink.name.get_ref());
                return Err(wrong(uplink.name.span().start, reason));
            }
        }
        let (mut hosts, mut by_address) = (BTreeMap::new(), BTreeMap::<IpAddr, String>::new());
        for table in &file.host {
            let (host, at) = (name(&table.name)?, table.name.span().start);
            let mut addresses: Vec<IpAddr> = Vec::new();
            if let Some(said) = &table.addresses {
                let at = said.span().start;
                if !(1..=ADDRESSES_MAX).contains(&said.get_ref().len()) {
                    let reason = format!(
                        "{} addresses: name 1 to {ADDRESSES_MAX}, or leave them out for the one from which its agent speaks",
                        said.get_ref().len()
                    );
                    return Err(wrong(at, reason));
                }
                for address in said.get_ref().iter().map(IpAddr::to_canonical) {
                    check_address(address).map_err(|error| wrong(at, error.to_string()))?;
                    if let Some(other) = by_address.insert(address, host.clone()) {
                        return Err(wrong(at, format!("address {address}: is host {other}'s already")));
                    }
                    addresses.push(address);
                }
            }
            if table.uplinks.len() > HOST_UPLINKS_MAX {
                let reason =
                    format!("{} uplinks: a host is behind at most {HOST_UPLINKS_MAX}", table.uplinks.len());
                return Err(wrong(at, reason));
            }
            let mut behind: Vec<Uplink> = Vec::new();
            for uplink in &table.uplinks {
                let (at, uplink) = (uplink.span().start, uplink.get_ref());
                let Some(rate) = uplinks.get(uplink).copied() else {
                    return Err(wrong(at, format!("uplink {uplink:?}: no [[uplink]] has this name")));
                };
                if behind.iter().any(|other| other.name == *uplink) {
                    return Err(wrong(at, format!("uplink {uplink}: a host is behind it once")));
                }
                behind.push(Uplink { name: uplink.clone(), rate });
            }
            let link = table.link.as_ref().map(rate).transpose()?;
            let placed = HostPosition { addresses, link, uplinks: behind };
            if hosts.insert(host.clone(), placed).is_some() {
                return Err(wrong(at, format!("host {host}: is there twice")));
            }
        }
        Ok(Self(hosts))
    }
}

impl Hosts {
    /// Returns the host of this name, if the file has it.
    pub fn place(&self, name: &str) -> Option<&HostPosition> {
        self.0.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[uplink]]\nname = 'rack-7'\nrate = '40 Gbit/s'\n\
        [[host]]\nname = 'h1'\naddresses = ['10.0.0.1', '::ffff:10.0.0.2']\nlink = '10 Gbit/s'\nuplinks = ['rack-7']\n\
        [[host]]\nname = 'h2'\naddresses = ['fd00::2']\n";

    #[test]
    fn hosts_file_gives_addresses_links_and_uplinks() {
        let hosts: Hosts = GOOD.parse().expect("good hosts");
        let h1 = hosts.place("h1").expect("it is there");
        assert_eq!(h1.addresses, ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().expect("good")));
        assert_eq!(h1.link, Some(BitRate::gbps(10)));
        assert_eq!(h1.uplinks, [Uplink { name: "rack-7".into(), rate: BitRate::gbps(40) }]);
        assert_eq!(hosts.place("h2").map(|h2| (h2.link, h2.uplinks.len())), Some((None, 0)));
        assert_eq!(hosts.place("h3"), None);
        // A host with only a name.
        let hosts: Hosts = "[[host]]\nname = 'h'".parse().expect("good hosts");
        assert_eq!(hosts.place("h"), Some(&HostPosition { addresses: vec![], link: None, uplinks: vec![] }));
    }

    #[test]
    fn errors_are_one_line_with_a_line_number() {
        let host = |more: &str| format!("[[host]]\nname = 'h'\naddresses = ['10.0.0.1']\n{more}");
        for (text, line, says) in [
            (host("port = 1"), 4, "unknown field"),
            (host("[[host]]\nname = 'h'\naddresses = ['10.0.0.2']"), 5, "twice"),
            (host("[[host]]\nname = 'i'\naddresses = ['10.0.0.1']"), 6, "is host h's already"),
            (host("uplinks = ['rack']"), 4, "no [[uplink]] has this name"),
            (host("link = '99 kbit/s'"), 4, "at least 100 kbit/s"),
            (host("link = 'fast'"), 4, ""),
            (host("[[uplink]]\nname = 'a b'\nrate = '1 Gbit/s'"), 5, "printable"),
            ("[[host]]\nname = 'h'\naddresses = []".into(), 3, "1 to 64"),
            ("[[host]]\nname = 'h'\naddresses = ['0.0.0.0']".into(), 3, "one host's"),
            ("[[host]]\nname = 'h'\naddresses = ['h.example']".into(), 3, ""),
            ("[[host]]\naddresses = ['10.0.0.1']".into(), 1, "missing field `name`"),
            ("host = 1".into(), 1, "invalid type"),
        ] {
            let error = text.parse::<Hosts>().expect_err(&text).to_string();
            assert!(error.starts_with(&format!("line {line}: ")) && error.contains(says), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let large = "#".repeat(FILE_BYTES_MAX + 1);
        assert!(matches!(large.parse::<Hosts>(), Err(HostsError::TooLarge { .. })));
    }

    #[test]
    fn maximum_counts_are_accepted_and_larger_refused() {
        let hosts = |count: usize| {
            let host =
                |n: usize| format!("[[host]]\nname='h{n}'\naddresses=['10.0.{}.{}']\n", n / 250, n % 250);
            (0..count).map(host).collect::<String>().parse::<Hosts>()
        };
        assert!(hosts(HOSTS_MAX).is_ok() && hosts(HOSTS_MAX + 1).is_err());
        let addresses = |count: usize| {
            let list: Vec<String> = (0..count).map(|n| format!("'10.0.0.{n}'")).collect();
            format!("[[host]]\nname='h'\naddresses=[{}]", list.join(",")).parse::<Hosts>()
        };
        assert!(addresses(ADDRESSES_MAX).is_ok() && addresses(ADDRESSES_MAX + 1).is_err());
    }
}
