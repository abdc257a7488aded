//! The contracts file: the networks, the contract with each, and their pathways in players'
//! manifests.
//!
//! Format: TOML with one `[[network]]` table for each network. Error messages name the line. Leaves
//! out: the broker's trust in networks (`broker-proto`). Read [`Contracts`] first.

use crate::file_error::FileError;
use anabranch_broker_proto::broker::Contract;
use anabranch_broker_proto::limits::{check_capacity, check_price};
use anabranch_broker_proto::steering::Catalogue;
use anabranch_media::steering::{Pathway, is_pathway_id};
use anabranch_units::{BitRate, PeerId};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::str::FromStr;
use toml::Spanned;

/// Maximum number of networks of a broker.
pub const NETWORKS_MAX: usize = 1_000;

/// All networks, in order of their numbers; the first network has number 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contracts {
    networks: Vec<ContractEntry>,
}

/// One network: its name, its contract and its pathway in manifests.
#[derive(Clone, Debug, PartialEq)]
struct ContractEntry {
    name: String,
    contract: Contract,
    pathway: Pathway,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    network: Vec<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    pathway: Option<String>,
    price: Option<Spanned<f64>>,
    price_max: Option<Spanned<f64>>,
    capacity: Option<Spanned<BitRate>>,
    clusters_max: Option<u32>,
    bids_max: Option<u64>,
    #[serde(default)]
    cluster: Vec<ClusterTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterTable {
    number: u32,
    host: String,
}

impl FromStr for Contracts {
    type Err = FileError;

    fn from_str(text: &str) -> Result<Self, FileError> {
        let file: File = toml::from_str(text).map_err(|error| FileError(FileError::of_toml(text, &error)))?;
        if file.network.is_empty() {
            return Err(FileError("no [[network]] table: there must be one for each network".to_owned()));
        }
        if file.network.len() > NETWORKS_MAX {
            return Err(FileError(format!("{} networks: at most {NETWORKS_MAX}", file.network.len())));
        }
        let mut contracts = Self::default();
        for table in file.network {
            let agreed = table.read(text)?;
            let same =
                |other: &&ContractEntry| other.name == agreed.name || other.pathway.id == agreed.pathway.id;
            if let Some(other) = contracts.networks.iter().find(same) {
                let (name, other) = (&agreed.name, &other.name);
                return Err(FileError(format!(
                    "network `{name}`: has the name or the pathway of network `{other}`"
                )));
            }
            contracts.networks.push(agreed);
        }
        contracts.check_ways()?;
        Ok(contracts)
    }
}

impl Table {
    fn read(self, text: &str) -> Result<ContractEntry, FileError> {
        let name = self.name;
        let wrong = |what: String| FileError(format!("network `{name}`: {what}"));
        let defaults = Contract::default();
        let price = |what, value: Option<Spanned<f64>>, default: f64| match value {
            None => Ok(default),
            Some(value) => check_price(what, *value.as_ref())
                .map(|()| *value.as_ref())
                .map_err(|error| wrong(FileError::of_value(text, &value, error))),
        };
        let capacity = match self.capacity {
            None => defaults.capacity_median,
            Some(value) => check_capacity("capacity", *value.as_ref())
                .map(|()| *value.as_ref())
                .map_err(|error| wrong(FileError::of_value(text, &value, error)))?,
        };
        let contract = Contract {
            price_per_mbps: price("price", self.price, defaults.price_per_mbps)?,
            price_max_per_mbps: price("price_max", self.price_max, defaults.price_max_per_mbps)?,
            capacity_median: capacity,
            clusters_max: self.clusters_max.unwrap_or(defaults.clusters_max),
            bids_max: self.bids_max.unwrap_or(defaults.bids_max),
        };
        let pathway = self.pathway.unwrap_or_else(|| name.clone());
        if !is_pathway_id(&pathway) {
            return Err(wrong(format!("pathway = `{pathway}`: must be letters, digits, `.`, `-` and `_`")));
        }
        let mut hosts = BTreeMap::new();
        for cluster in self.cluster {
            let host = cluster.host;
            if host.is_empty()
                || host.len() > 255
                || host.contains(|c: char| c.is_whitespace() || "/:@?#".contains(c))
            {
                return Err(wrong(format!(
                    "host = `{host}`: must be a host's name alone: players of HLS replace no port"
                )));
            }
            if hosts.insert(cluster.number, host).is_some() {
                return Err(wrong(format!("cluster {}: is there twice", cluster.number)));
            }
        }
        Ok(ContractEntry { name, contract, pathway: Pathway { id: pathway, hosts } })
    }
}

impl Contracts {
    /// Refuses a pathway clone with the name of another pathway, because players identify pathways
    /// by name alone.
    fn check_ways(&self) -> Result<(), FileError> {
        let pathways: BTreeMap<&str, &str> =
            self.networks.iter().map(|agreed| (&*agreed.pathway.id, &*agreed.name)).collect();
        for ContractEntry { name, pathway, .. } in &self.networks {
            let mut clones = pathway.hosts.keys().map(|cluster| pathway.clone_id(*cluster));
            if let Some((clone, other)) = clones.find_map(|clone| Some((pathways.get(&*clone)?, clone))) {
                return Err(FileError(format!(
                    "network `{name}`: its cluster would be the way `{other}`, which is the pathway of network `{clone}`: give that another"
                )));
            }
        }
        Ok(())
    }

    /// Returns the number of a network.
    pub fn number(&self, name: &str) -> Option<PeerId> {
        let at = self.networks.iter().position(|agreed| agreed.name == name);
        at.map(|at| PeerId(at as u32))
    }
    /// Returns the name of a network.
    pub fn name(&self, network: PeerId) -> &str {
        self.networks.get(network.index()).map_or("?", |agreed| &agreed.name)
    }
    /// Returns the contract with a network; the default contract if the number is unknown.
    pub fn contract(&self, network: PeerId) -> Contract {
        self.networks.get(network.index()).map_or_else(Contract::default, |agreed| agreed.contract.clone())
    }
    /// Iterates over the numbers of all networks.
    pub fn numbers(&self) -> impl Iterator<Item = PeerId> + use<> {
        (0..self.networks.len() as u32).map(PeerId)
    }
    /// Returns the pathways under which players' manifests list the networks.
    pub fn catalogue(&self) -> Catalogue {
        self.numbers().zip(self.networks.iter().map(|agreed| agreed.pathway.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contracts_file_is_read_and_errors_name_lines() {
        let text = "[[network]]\nname = \"alpha\"\nprice = 0.8\ncapacity = \"2 Gbit/s\"\n[[network.cluster]]\nnumber = 3\nhost = \"a3.example\"\n[[network]]\nname = \"beta\"\n";
        let contracts: Contracts = text.parse().expect("it is one");
        assert_eq!((contracts.number("beta"), contracts.name(PeerId(0))), (Some(PeerId(1)), "alpha"));
        assert_eq!(contracts.contract(PeerId(0)).capacity_median, BitRate::gbps(2));
        assert_eq!(contracts.catalogue()[&PeerId(0)].hosts[&3], "a3.example");
        let said = |text: &str| text.parse::<Contracts>().expect_err("it is wrong").to_string();
        assert_eq!(
            said("[[network]]\nname = \"a\"\nprize = 1\n").split(',').next(),
            Some("line 3: unknown field `prize`")
        );
        assert_eq!(said(""), "no [[network]] table: there must be one for each network");
        assert_eq!(
            said("[[network]]\nname = \"a b\"\n"),
            "network `a b`: pathway = `a b`: must be letters, digits, `.`, `-` and `_`"
        );
        assert_eq!(
            said("[[network]]\nname = \"a\"\nprice = -1\n"),
            "network `a`: line 3: price -1: must be 0 to 10^6 for each Mbit/s: choose a larger unit of money"
        );
        let limits = |price: &str, capacity: &str| {
            format!("[[network]]\nname = \"a\"\nprice_max = {price}\ncapacity = \"{capacity}\"\n")
        };
        assert!(limits("1e6", "1000000 Gbit/s").parse::<Contracts>().is_ok());
        assert_eq!(
            said(&limits("1e6", "1000001 Gbit/s")),
            "network `a`: line 4: capacity 1000001000000000 bit/s: must be 0 to 10^15 bit/s: split the cluster into several"
        );
        assert!(
            said(&limits("1000001.0", "1 Gbit/s")).starts_with("network `a`: line 3: price_max 1000001: ")
        );
        let with_port =
            "[[network]]\nname = \"a\"\n[[network.cluster]]\nnumber = 1\nhost = \"a.example:8443\"\n";
        assert_eq!(
            said(with_port),
            "network `a`: host = `a.example:8443`: must be a host's name alone: players of HLS replace no port"
        );
        assert_eq!(
            said("[[network]]\nname = \"a\"\n[[network]]\nname = \"a\"\n"),
            "network `a`: has the name or the pathway of network `a`"
        );
        let clone = "[[network]]\nname = \"a\"\n[[network.cluster]]\nnumber = 1\nhost = \"h\"\n[[network]]\nname = \"a.1\"\n";
        assert_eq!(
            said(clone),
            "network `a`: its cluster would be the way `a.1`, which is the pathway of network `a.1`: give that another"
        );
    }
}
