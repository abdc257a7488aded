//! The network of VDN's testbed (section 4.7.2).
//!
//! Leaves out: the programs in it. Read [`Testbed`] first.

use super::programs::Tier;
use anabranch_graph::{LinkProperties, Topology};
use anabranch_units::{BitRate, Duration as Span, LinkId, SiteId};

pub(super) const SOURCES: usize = 2;
pub(super) const REFLECTORS: usize = 2;
pub(super) const EDGES: usize = 6;
pub(super) const NODES: usize = SOURCES + REFLECTORS + EDGES;
pub(super) const CONTROLLER: usize = NODES;
/// Number of sites: nodes, the controller, and a site of viewers at each edge.
const SITES: usize = NODES + 1 + EDGES;
/// Default delay of links between tiers.
const TIER_DELAY: Span = Span::from_ms(5);
/// Default delay of links to viewers.
const VIEWER_DELAY: Span = Span::from_ms(2);
/// Delay of the controller's links (section 4.7.2).
const CONTROLLER_DELAY: Span = Span::from_ms(10);
/// Rate of links that must not limit the experiment.
const FREE_RATE: BitRate = BitRate::gbps(1);

/// Index of the site of the viewers at an edge.
pub(super) const fn place(number: usize) -> usize {
    NODES + 1 + number
}

/// Numbers of the `count` edges that viewers at an edge may use, beginning with their own edge.
pub(super) fn edges_of(number: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (number + at) % EDGES)
}

/// The emulated testbed.
pub(super) struct Testbed {
    pub(super) topology: Topology,
    pub(super) sites: Vec<SiteId>,
    /// Links between tiers: sender, receiver, link.
    pub(super) tier_links: Vec<(usize, usize, LinkId)>,
}

pub(super) fn name(node: usize) -> String {
    match node {
        _ if node < SOURCES => format!("s{}", node + 1),
        _ if node < SOURCES + REFLECTORS => format!("r{}", node - SOURCES + 1),
        _ if node < NODES => format!("e{}", node - SOURCES - REFLECTORS + 1),
        CONTROLLER => "controller".to_owned(),
        _ => format!("place{}", node - NODES),
    }
}

pub(super) const fn tier(node: usize) -> Tier {
    match node {
        _ if node < SOURCES => Tier::Source,
        _ if node < SOURCES + REFLECTORS => Tier::Reflector,
        _ => Tier::Edge,
    }
}

pub(super) fn tier_pairs() -> impl Iterator<Item = (usize, usize)> {
    let reflectors = SOURCES..SOURCES + REFLECTORS;
    let first = reflectors.clone().flat_map(|reflector| (0..SOURCES).map(move |source| (source, reflector)));
    let edges = SOURCES + REFLECTORS..NODES;
    first.chain(edges.flat_map(move |edge| reflectors.clone().map(move |reflector| (reflector, edge))))
}

impl Testbed {
    /// Builds the network, with links of `rate` between the tiers. Viewers reach `edges` edges.
    /// Links between tiers and to viewers have the delay `delay`, if there is one.
    pub(super) fn new(rate: BitRate, edges: usize, delay: Option<Span>) -> anyhow::Result<Self> {
        let mut topology = Topology::new("vdn-testbed");
        let sites = (0..SITES).map(|node| topology.add_site(name(node), None));
        let sites = sites.collect::<Result<Vec<_>, _>>()?;
        let mut tier_links = Vec::new();
        for (from, to) in tier_pairs() {
            let (link, _) = topology.add_cable(
                sites[from],
                sites[to],
                LinkProperties::new(rate, delay.unwrap_or(TIER_DELAY)),
            )?;
            tier_links.push((from, to, link));
        }
        for node in 0..NODES {
            let properties = LinkProperties::new(FREE_RATE, CONTROLLER_DELAY);
            topology.add_cable(sites[CONTROLLER], sites[node], properties)?;
        }
        let viewer_delay = delay.unwrap_or(VIEWER_DELAY);
        for number in 0..EDGES {
            for edge in edges_of(number, edges) {
                let (place, edge) = (sites[place(number)], sites[SOURCES + REFLECTORS + edge]);
                topology.add_cable(place, edge, LinkProperties::new(FREE_RATE, viewer_delay))?;
            }
        }
        Ok(Self { topology, sites, tier_links })
    }

    pub(super) fn link(&self, from: usize, to: usize) -> LinkId {
        let found = self.tier_links.iter().find(|(a, b, _)| (*a, *b) == (from, to));
        found.expect("the tiers are fully connected").2
    }
}
