//! Topologies by name or file, with a default link rate: `--topology b4`.

use crate::exit::OrUsage as _;
use anabranch_graph::Topology;
use anabranch_graph::file::{Defaults, LoadError, load_with_warnings};
use anabranch_net::address;
use anabranch_units::text::printable;
use anabranch_units::{BitRate, SiteId};
use std::net::SocketAddr;

/// The network.
#[derive(clap::Args, Clone, Debug)]
pub struct TopologyArgs {
    /// The network: a built-in one (`anabranch topologies` lists them), or a .toml, .graphml, .gml
    /// or .xml file.
    #[arg(long, short, value_name = "NAME|FILE")]
    pub topology: String,
    /// Rate of links without one in the topology.
    #[arg(long, value_name = "RATE", default_value = "1 Gbit/s")]
    pub rate: BitRate,
}

impl TopologyArgs {
    /// Loads a topology whose sites can all run a relay.
    ///
    /// Errors: an unknown name, an unreadable or invalid file, with the line; as [`check_relays`].
    pub fn load(&self) -> anyhow::Result<Topology> {
        let topology = self.load_any()?;
        check_relays(&topology).map_err(|why| anyhow::anyhow!("{}: {why}", self.topology)).or_usage()?;
        Ok(topology)
    }

    /// Loads a topology for any purpose.
    ///
    /// Errors: an unknown name, an unreadable or invalid file, with the line.
    pub fn load_any(&self) -> anyhow::Result<Topology> {
        load(&self.topology, self.rate).or_usage()
    }
}

/// Loads the topology of this name or file. Warns of parts of the file that are ignored.
///
/// Errors: an unknown name, an unreadable or wrong file, with the line.
pub fn load(name: &str, rate: BitRate) -> Result<Topology, LoadError> {
    let loaded = load_with_warnings(name, &Defaults::new(rate), |path| crate::text::read(path))?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{}", printable(warning)));
    Ok(loaded.topology)
}

/// Checks that a relay can run at each site.
///
/// Errors: a switch. No relay can run there, so a transfer over the switch would wait for ever.
pub fn check_relays(topology: &Topology) -> Result<(), String> {
    topology.sites().iter().find(|site| site.is_switch).map_or(Ok(()), |switch| {
        Err(format!(
            "site `{}` is a switch, where no relay runs: `replicate` needs a relay at every site; leave the switch out and \
             join the sites around it by cables",
            printable(&switch.name)
        ))
    })
}

/// Parses an address to listen on.
///
/// Errors: anything but an IP address and a port, with a hint in one line.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    socket_address(text)
        .map_err(|error| format!("{error}; 0.0.0.0:7171 stands for all of this machine's addresses"))
}

/// Parses an IP address with a port. An IPv6 address may have a zone, as `[fe80::1%eth0]:7171`.
///
/// Errors: any other text, or a zone that this machine lacks, in a line that says what to write.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    address::parse(text).ok_or_else(|| {
        let host = text.strip_prefix('[').and_then(|rest| rest.split(']').next()).unwrap_or(text);
        let what = match address::zone(host) {
            Some(zone) if address::with_port(host, 0).is_none() => {
                format!("this machine has no interface `{zone}`: ")
            }
            _ => String::new(),
        };
        format!("`{text}`: {what}write IP:PORT, as 127.0.0.1:7171")
    })
}

/// As [`listen_address`], but an address without a port has this port.
///
/// Errors: any other text, in a line that says what to write.
pub fn listen_address_or<const PORT: u16>(text: &str) -> Result<SocketAddr, String> {
    // An IPv6 address with a port is in brackets, so an address without brackets has no port.
    let alone = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    address::with_port(alone, PORT).map_or_else(|| listen_address(text), Ok)
}

/// Finds a site by name; blanks around the name, as in `tokyo, lima`, are ignored.
///
/// Errors: a name that is not in the topology.
pub fn site(topology: &Topology, name: &str) -> anyhow::Result<SiteId> {
    topology.find_site(name.trim()).or_usage()
}

/// Finds the sites in a list such as `3,6,12` or `seattle,chicago`.
///
/// Errors: a name that is not in the topology.
pub fn sites(topology: &Topology, names: &[String]) -> anyhow::Result<Vec<SiteId>> {
    names.iter().map(|n| site(topology, n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #17: keys were made for a switch, and plans used it, although no relay can run there.
    #[test]
    fn relays_refuse_a_network_with_a_switch() {
        let mut topology = Topology::new("a test");
        topology.add_site("paris", None).expect("a new name");
        assert_eq!(check_relays(&topology), Ok(()));
        topology.add_switch("exchange").expect("a new name");
        let why = check_relays(&topology).expect_err("a switch");
        assert!(why.contains("`exchange` is a switch") && why.contains("leave the switch out"), "{why}");
    }

    /// #52: hosts are configured by address alone; a port is written only if it differs from the
    /// default.
    #[test]
    fn address_alone_listens_on_the_default_port() {
        for (text, shown) in [
            ("10.0.0.1", "10.0.0.1:7172"),
            ("::1", "[::1]:7172"),
            ("[::]", "[::]:7172"),
            ("[::1]:9", "[::1]:9"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            // The interface number of lo.
            ("fe80::1%lo", "[fe80::1%1]:7172"),
            ("[fe80::1%lo]", "[fe80::1%1]:7172"),
            ("[fe80::1%lo]:9", "[fe80::1%1]:9"),
        ] {
            assert_eq!(listen_address_or::<7172>(text).map(|at| at.to_string()), Ok(shown.to_owned()));
        }
        for bad in ["7172", "localhost", "[10.0.0.1", ""] {
            assert!(listen_address_or::<7172>(bad).expect_err("no address").contains("write IP:PORT"));
        }
    }

    /// #52: for an interface that does not exist, the error was "invalid socket address syntax".
    #[test]
    fn missing_interface_is_named() {
        for text in ["fe80::1%eth99", "[fe80::1%eth99]", "[fe80::1%eth99]:7171"] {
            let why = listen_address_or::<7172>(text).expect_err("no such interface");
            assert!(why.contains("this machine has no interface `eth99`: write IP:PORT"), "{why}");
        }
    }

    /// #17: `--listen 7171` was refused with "invalid socket address syntax".
    #[test]
    fn invalid_listening_address_is_refused_in_one_line() {
        for good in ["127.0.0.1:0", "0.0.0.0:7171", "[::]:7171"] {
            assert_eq!(listen_address(good).map(|a| a.to_string()), Ok(good.to_owned()));
        }
        for bad in ["7171", "0.0.0.0", "localhost:7171", "127.0.0.1:70000", ""] {
            let why = listen_address(bad).expect_err("not an address");
            assert!(
                why.contains(&format!("`{bad}`")) && why.contains("write IP:PORT") && !why.contains('\n'),
                "{why}"
            );
        }
    }
}
