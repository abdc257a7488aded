//! How an agent is set up. Read [`AgentConfig`] first.

use anabranch_spray_proto::Config;
#[cfg(doc)]
use anabranch_spray_proto::PEER_MEMORY_MAX;
use anabranch_spray_proto::ways::WAYS_MAX;
use anabranch_units::{BitRate, ByteCount, Duration};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

/// The port on which agents listen: TCP for what they say to each other, UDP for packets.
pub const PORT: u16 = 7_200;
/// The most peers of an agent.
pub const PEERS_MAX: usize = 1_024;
/// The most bytes that an agent holds for all peers together: the whole budget of sixteen peers
/// ([`PEER_MEMORY_MAX`]). Beyond it the peer that holds the most gives up half.
pub const MEMORY_MAX: ByteCount = ByteCount::mib(256);

/// A host to which TCP goes over every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name, as its certificate has it.
    pub name: String,
    /// Its address, or a name that has one.
    pub host: String,
    /// Where its agent listens.
    pub port: u16,
}

/// Text that is no peer.
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

    /// `HOST`, `HOST:PORT` or `NAME=HOST[:PORT]`; an IPv6 address with a port stands in brackets. Without a name it is the host's.
    fn from_str(text: &str) -> Result<Self, PeerError> {
        let bad = |what| PeerError { text: text.to_owned(), what };
        let (name, place) = text.split_once('=').map_or((None, text), |(name, place)| (Some(name), place));
        let (host, port) = if place.parse::<IpAddr>().is_ok() {
            (place, None)
        } else if let Some(rest) = place.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(|| bad("a bracket is not closed"))?;
            host.parse::<IpAddr>().map_err(|_| bad("no address stands in brackets"))?;
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

/// How an agent is set up.
#[derive(Debug)]
pub struct AgentConfig {
    /// The host's name, as its certificate has it.
    pub name: String,
    /// The hosts to which TCP goes over every path. Each has to name this one, too.
    pub peers: Vec<Peer>,
    /// Where to listen: TCP for what agents say to each other, UDP for packets. `None`: [`PORT`] on all addresses.
    pub listen: Option<SocketAddr>,
    /// From how many UDP ports packets leave. One is no choice of ways.
    pub ways: u16,
    /// A flow that has sent so much is long.
    pub long: ByteCount,
    /// The longest that a packet is waited for which others have overtaken.
    pub hold_max: Duration,
    /// The rate of the narrowest link on the way, with which the size of units is reckoned.
    pub rate: BitRate,
    /// The TUN device's name.
    pub device: String,
    /// The number of the routing table that the agent has for itself. Rules have this priority, and those next to it.
    pub table: u32,
    /// The Unix socket that tells how the agent fares ([`crate::status`]); `None` for none.
    pub socket: Option<PathBuf>,
    /// The program that is started as the agent's guard: one that calls [`crate::guard::watch`] with the same table. `None`: if this
    /// agent stands still, TCP to its peers does too, and if it is killed, its rules stay until the next agent.
    pub guard: Option<Command>,
    /// Datagrams that one key seals at the most: for tests, as ciphers have limits of their own.
    pub key_packets: Option<u64>,
}

impl AgentConfig {
    /// An agent without peers, with every setting at its default.
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

    /// Whether an agent can have these settings.
    ///
    /// Errors: the first one that it cannot have, in a line.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.peers.is_empty() {
            return Err("no peers: name at least one other host".into());
        }
        if self.peers.len() > PEERS_MAX {
            return Err(format!("{} peers: an agent has at most {PEERS_MAX}", self.peers.len()));
        }
        if let Some(own) = self.peers.iter().find(|peer| peer.name == self.name) {
            return Err(format!("peer `{}`: is this host itself: name others", own.name));
        }
        if let Some(listen) = self.listen.filter(|listen| listen.ip().is_loopback()) {
            return Err(format!(
                "listen {listen}: no other host reaches it: choose an address that peers reach"
            ));
        }
        if !(1..=WAYS_MAX).contains(&self.ways) {
            return Err(format!("{} ways: must be 1 to {WAYS_MAX}", self.ways));
        }
        // What tables the system has stands at both ends, and the main table's rule at 32766.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_host_with_a_name_and_a_port() {
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
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let good = || AgentConfig { peers: vec!["b".parse().expect("good")], ..AgentConfig::new("a") };
        assert_eq!(good().check(), Ok(()));
        let bad = |change: fn(&mut AgentConfig)| {
            let mut config = good();
            change(&mut config);
            config.check().expect_err("it cannot be")
        };
        assert!(bad(|config| config.peers.clear()).contains("no peers"));
        assert!(bad(|config| config.name = "b".into()).contains("this host itself"));
        assert!(bad(|config| config.listen = Some(([127, 0, 0, 1], 7_200).into())).contains("no other host"));
        assert!(bad(|config| config.ways = 0).contains("1 to 128"));
        assert!(bad(|config| config.ways = 129).contains("1 to 128"));
        assert!(bad(|config| config.table = 254).contains("table 254"));
        assert!(bad(|config| config.device = "a/b".into()).contains("device"));
        assert!(bad(|config| config.device = "a123456789012345".into()).contains("device"));
    }
}
