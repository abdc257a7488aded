//! Topologies as users name them: `--topology b4`, a file, a link rate of their own.

use crate::exit::OrUsage as _;
use anabranch_graph::Topology;
use anabranch_graph::file::{Defaults, load};
use anabranch_units::{BitRate, SiteId};

/// Which network.
#[derive(clap::Args, Clone, Debug)]
pub struct TopologyArgs {
    /// A built-in topology (`anabranch topologies` lists them), or a .toml or .graphml file.
    #[arg(long, short, value_name = "NAME|FILE")]
    pub topology: String,
    /// Rate of links whose rate the topology does not say.
    #[arg(long, value_name = "RATE", default_value = "1 Gbit/s")]
    pub rate: BitRate,
}

impl TopologyArgs {
    /// The topology.
    ///
    /// Errors: an unknown name, an unreadable or wrong file, with the line.
    pub fn load(&self) -> anyhow::Result<Topology> {
        load(&self.topology, &Defaults::new(self.rate), |p| std::fs::read_to_string(p)).or_usage()
    }
}

/// The site that is called so; blanks around the name, as in `tokyo, lima`, are none of it.
///
/// Errors: a name that the topology does not have.
pub fn site(topology: &Topology, name: &str) -> anyhow::Result<SiteId> {
    topology.find_site(name.trim()).or_usage()
}

/// The sites that a list such as `3,6,12` or `seattle,chicago` names.
///
/// Errors: a name that the topology does not have.
pub fn sites(topology: &Topology, names: &[String]) -> anyhow::Result<Vec<SiteId>> {
    names.iter().map(|n| site(topology, n)).collect()
}
