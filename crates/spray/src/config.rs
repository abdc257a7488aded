//! Configuration of an agent. Read [`AgentConfig`] first.

use anabranch_net::address::zone;
use anabranch_spray_proto::Config;
#[cfg(doc)]
use anabranch_spray_proto::PEER_MEMORY_MAX;
use anabranch_spray_proto::ways::WAYS_MAX;
use anabranch_units::{BitRate, ByteCount, Duration};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

/// Port of agents: TCP for control, UDP for packets.
pub const PORT: u16 = 7_200;
/// Maximum number of peers of an agent.
pub const PEERS_MAX: usize = 1_024;
/// Maximum bytes held for all peers together: the full budget of sixteen peers
/// ([`PEER_MEMORY_MAX`]). Above it the peer with the most bytes gives up half of them.
pub const MEMORY_MAX: ByteCount = ByteCount::mib(256);

/// A peer: a host to which this host's TCP is spread over every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the peer, as in its certificate.
    pub name: String,
    /// Address of the peer, or a name that resolves to one.
    pub host: String,
    /// Port of the peer's agent.
    pub port: u16,
}

/// Error of parsing a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerError {
    text: String,
    what: &'static str,
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}: write HOST, HOST:PORT or NAME=HOST:PORT, as b=10.0.0.2", self.text, self.what)
    }
}
impl std::error::Error for PeerError {}

impl FromStr for Peer {
    type Err = PeerError;

    /// Parses `HOST`, `HOST:PORT` or `NAME=HOST[:PORT]`. An IPv6 address with a port needs
    /// brackets. `NAME` defaults to `HOST`.
    fn from_str(text: &str) -> Result<Self, PeerError> {
        let bad = |what| PeerError { text: text.to_owned(), what };
        let (name, place) = text.split_once('=').map_or((None, text), |(name, place)| (Some(name), place));
        let (host, port) = if place.parse::<IpAddr>().is_ok() || zone(place).is_some() {
            (place, None)
        } else if let Some(rest) = place.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(|| bad("a bracket is not closed"))?;
            if host.parse::<IpAddr>().is_err() && zone(host).is_none() {
                return Err(bad("no address stands in brackets"));
            }
            match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':').ok_or_else(|| bad("no port stands behind `]`"))?)),
            }
        } else {
            place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port)))
        };
        let port = match port {
            None => PORT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| bad("a port is a number from 1 to 65535"))?,
        };
        if zone(host).is_some() {
            return Err(bad("an address with a zone has no route, which the agent needs"));
        }
        let name = name.unwrap_or(host);
        if host.is_empty() || name.is_empty() {
            return Err(bad("a name is missing"));
        }
        Ok(Self { name: name.to_owned(), host: host.to_owned(), port })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Configuration of an agent.
#[derive(Debug)]
pub struct AgentConfig {
    /// Name of the host, as in its certificate.
    pub name: String,
    /// Hosts to which TCP is spread over every path. Each of them must list this host as a peer,
    /// too.
    pub peers: Vec<Peer>,
    /// Address to listen on: TCP for control, UDP for packets. `None`: [`PORT`] on all addresses.
    pub listen: Option<SocketAddr>,
    /// Number of UDP source ports; each port may select another path. With one port there is no
    /// choice of paths.
    pub ways: u16,
    /// Bytes sent from which a flow counts as long.
    pub long: ByteCount,
    /// Maximum time to wait for a packet that later packets have overtaken.
    pub hold_max: Duration,
    /// Rate of the narrowest link on the path, from which the size of units is computed.
    pub rate: BitRate,
    /// Name of the TUN device.
    pub device: String,
    /// Number of the agent's own routing table. The agent's rules have this priority and the
    /// following priorities.
    pub table: u32,
    /// Unix socket that answers with the agent's status ([`crate::status`]). `None` for no socket.
    pub socket: Option<PathBuf>,
    /// Command that starts the agent's guard; it must call [`crate::guard::watch`] with the same
    /// table. With `None`, TCP to peers stalls while the agent is stopped, and a killed agent's
    /// rules stay until the next agent.
    pub guard: Option<Command>,
    /// Maximum datagrams sealed with one key, for tests. `None` for the cipher's limit.
    pub key_packets: Option<u64>,
}

impl AgentConfig {
    /// Creates a configuration without peers, with every setting at its default.
    pub fn new(name: impl Into<String>) -> Self {
        let machine = Config::of_agent();
        Self {
            name: name.into(),
            peers: Vec::new(),
            listen: None,
            ways: 64,
            long: machine.long,
            hold_max: machine.hold_max,
            rate: machine.rate,
            device: "spray0".into(),
            table: 7_200,
            socket: None,
            guard: None,
            key_packets: None,
        }
    }

    /// Validates the settings.
    ///
    /// Errors: the first invalid setting, in one line.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_peers(&self.name, &self.peers)?;
        if let Some(listen) = self.listen.filter(|listen| listen.ip().is_loopback()) {
            return Err(format!(
                "listen {listen}: no other host reaches it: choose an address that peers reach"
            ));
        }
        if !(1..=WAYS_MAX).contains(&self.ways) {
            return Err(format!("{} ways: must be 1 to {WAYS_MAX}", self.ways));
        }
        // The system's tables are at both ends of the range, and the main table's rule has priority
        // 32766.
        if !(2..32_000).contains(&self.table) || (253..=255).contains(&self.table) {
            return Err(format!("table {}: must be 2 to 31999, and none of 253 to 255", self.table));
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte == b'.';
        if !(1..=15).contains(&self.device.len()) || !self.device.bytes().all(is_name) {
            return Err(format!(
                "device `{}`: must be 1 to 15 letters, digits, `-`, `_` and `.`",
                self.device
            ));
        }
        Ok(())
    }
}

/// Checks that an agent of this name may have these peers.
///
/// Errors: the first invalid or repeated peer, in one line.
pub(crate) fn check_peers(own: &str, peers: &[Peer]) -> Result<(), String> {
    if peers.is_empty() {
        return Err("no peers: name at least one other host".into());
    }
    if peers.len() > PEERS_MAX {
        return Err(format!(
            "{} peers: an agent has at most {PEERS_MAX}: name only hosts that this one sends to",
            peers.len()
        ));
    }
    let mut known: BTreeMap<IpAddr, &Peer> = BTreeMap::new();
    for peer in peers {
        if peer.name == own {
            return Err(format!("peer `{own}`: is this host itself: name others"));
        }
        let Ok(address) = peer.host.parse::<IpAddr>() else { continue };
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Err(format!("peer `{}`: {address} is no other host's address", peer.name));
        }
        if let Some(other) = known.insert(address, peer) {
            return Err(format!(
                "peers `{}` and `{}`: both are {address}: name each once",
                other.name, peer.name
            ));
        }
    }
    Ok(())
}

/// Maximum bytes of a file of peers.
pub const PEERS_BYTES_MAX: usize = 1 << 20;

/// Reads the peers in a file with one peer on each line, in the form of [`Peer`]. Ignores blank
/// lines, text after `#`, and lines of the host `own`, so that all hosts may use the same file. A
/// peer that is listed twice counts once.
///
/// Errors: the first line that is not a peer, with its number; a text that is too long.
///
/// ```
/// use anabranch_spray::read_peers;
/// let text = "# rack 7\na=10.0.0.1\nb=10.0.0.2:7300  # new\n";
/// let peers = read_peers("peers", text, "a").expect("good lines");
/// assert_eq!((peers.len(), &*peers[0].name, peers[0].port), (1, "b", 7300));
/// let said = read_peers("peers", "a\nb=\n", "a").expect_err("no host");
/// assert!(said.starts_with("peers:2: `b=`: a name is missing"), "{said}");
/// ```
pub fn read_peers(origin: &str, text: &str, own: &str) -> Result<Vec<Peer>, String> {
    if text.len() > PEERS_BYTES_MAX {
        return Err(format!(
            "{origin}: {} bytes: a file of peers has at most {PEERS_BYTES_MAX}: leave hosts out",
            text.len()
        ));
    }
    let mut peers: Vec<Peer> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let peer: Peer = line.parse().map_err(|error| format!("{origin}:{}: {error}", number + 1))?;
        if peer.name != own && !peers.contains(&peer) {
            peers.push(peer);
        }
        if peers.len() > PEERS_MAX {
            return Err(format!(
                "{origin}: more than {PEERS_MAX} peers: name only hosts that this one sends to"
            ));
        }
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_text_gives_name_host_and_port() {
        let parsed = |text: &str| text.parse::<Peer>().map(|peer| (peer.name, peer.host, peer.port));
        let peer = |name: &str, host: &str, port| Ok((name.to_owned(), host.to_owned(), port));
        assert_eq!(parsed("node-b"), peer("node-b", "node-b", 7_200));
        assert_eq!(parsed("node-b:99"), peer("node-b", "node-b", 99));
        assert_eq!(parsed("b=10.0.0.2"), peer("b", "10.0.0.2", 7_200));
        assert_eq!(parsed("b=fd00::2"), peer("b", "fd00::2", 7_200));
        assert_eq!(parsed("b=[fd00::2]:7"), peer("b", "fd00::2", 7));
        for bad in
            ["", "b=", "=10.0.0.2", "b=10.0.0.2:0", "b=10.0.0.2:x", "b=[fd00::2", "b=[x]:7", "b=[::1]7"]
        {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        for zoned in ["fe80::1%eth0", "b=fe80::1%eth0", "b=[fe80::1%eth0]:7"] {
            let error = parsed(zoned).expect_err("no route").to_string();
            assert!(error.contains("an address with a zone has no route"), "{error}");
        }
    }

    #[test]
    fn invalid_settings_are_refused() {
        let good = || AgentConfig { peers: vec!["b".parse().expect("good")], ..AgentConfig::new("a") };
        assert_eq!(good().check(), Ok(()));
        let bad = |change: fn(&mut AgentConfig)| {
            let mut config = good();
            change(&mut config);
            config.check().expect_err("it cannot be")
        };
        assert!(bad(|config| config.peers.clear()).contains("no peers"));
        assert!(bad(|config| config.name = "b".into()).contains("this host itself"));
        let twice = |config: &mut AgentConfig| {
            config.peers = ["c=10.0.0.2", "d=10.0.0.2"].map(|text| text.parse().expect("good")).into();
        };
        assert!(bad(twice).contains("both are 10.0.0.2"));
        assert!(bad(|config| config.peers[0].host = "::1".into()).contains("no other host's address"));
        assert!(bad(|config| config.listen = Some(([127, 0, 0, 1], 7_200).into())).contains("no other host"));
        assert!(bad(|config| config.ways = 0).contains("1 to 128"));
        assert!(bad(|config| config.ways = 129).contains("1 to 128"));
        assert!(bad(|config| config.table = 254).contains("table 254"));
        assert!(bad(|config| config.device = "a/b".into()).contains("device"));
        assert!(bad(|config| config.device = "a123456789012345".into()).contains("device"));
    }
}
