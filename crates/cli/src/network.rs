//! Topologies as users name them: `--topology b4`, a file, a link rate of their own.

use anabranch_graph::Topology;
use anabranch_graph::file::{Defaults, load};
use anabranch_units::{BitRate, SiteId};
use anyhow::Context as _;

/// Which network.
#[derive(clap::Args, Clone, Debug)]
pub struct TopologyArgs {
    /// A built-in topology (internet2, b4, butterfly), or a .toml or .graphml file.
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
        Ok(load(&self.topology, &Defaults::new(self.rate), |p| std::fs::read_to_string(p))?)
    }
}

/// The sites that a list such as `3,6,12` or `seattle,chicago` names.
///
/// Errors: a name that the topology does not have.
pub fn sites(topology: &Topology, names: &[String]) -> anyhow::Result<Vec<SiteId>> {
    names.iter().map(|n| topology.find_site(n).map_err(Into::into)).collect()
}

/// The link that `A-B` or `A>B` names: the first from A to B.
///
/// Errors: no such sites, or no link between them.
pub fn link(topology: &Topology, name: &str) -> anyhow::Result<anabranch_units::LinkId> {
    // Site names may contain hyphens: try every place to cut.
    let cuts = name.match_indices(['-', '>']).filter_map(|(at, _)| {
        let from = topology.find_site(&name[..at]).ok()?;
        let to = topology.find_site(&name[at + 1..]).ok()?;
        topology.links_out(from).find(|l| topology.link(*l).to == to)
    });
    cuts.into_iter()
        .next()
        .with_context(|| format!("no link `{name}`: write it as FROM-TO, two sites with a link"))
}
