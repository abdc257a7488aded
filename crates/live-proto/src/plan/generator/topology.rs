//! The network of §4.7.1: sources, reflectors, edges, client groups, capacities and costs.

use super::draws::{WeightedItems, normal};
use crate::network::{LINKS_MAX, Link, NODES_MAX, Network, Node, NodeId, Tier};
use crate::plan::problem::{
    GROUP_LINKS_MAX, GROUPS_MAX, Group, GroupId, GroupLink, Offer, Program, ProgramError, REFLECTORS_MAX,
    Request, SOURCES_MAX, Settings,
};
use anabranch_units::{BitRate, RandomStream, Seed};
use std::collections::BTreeMap;

/// Sizes and rates of a topology. The default is the topology of §4.7.1.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyShape {
    /// Number of sources.
    pub sources: u32,
    /// Number of reflectors.
    pub reflectors: u32,
    /// Number of edges.
    pub edges: u32,
    /// Number of cities.
    pub cities: u32,
    /// Number of client groups, at least one in each city.
    pub groups: u32,
    /// Number of sources for each reflector, of reflectors for each edge, and of edges for each
    /// group: (x, y, z) of Figure 4.13.
    pub parents: [u32; 3],
    /// Capacity of the links into reflectors, into edges and into groups.
    pub capacities: [BitRate; 3],
}

impl Default for TopologyShape {
    fn default() -> Self {
        Self {
            sources: 4,
            reflectors: 10,
            edges: 100,
            cities: 2_587,
            groups: 3_000,
            parents: [4, 3, 3],
            capacities: [BitRate::mbps(100), BitRate::mbps(100), BitRate::mbps(150)],
        }
    }
}

/// A shape that cannot be drawn: parameter, value, range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeError(pub &'static str, pub u64, pub String);

impl std::fmt::Display for ShapeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: must be {}", self.0, self.1, self.2)
    }
}

impl std::error::Error for ShapeError {}

/// A drawn network with its client groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Nodes and links of the tiers.
    pub network: Network,
    /// Client groups.
    pub groups: Vec<Group>,
    /// Links from edges to groups. Each group's links begin with its nearest edge.
    pub group_links: Vec<GroupLink>,
    /// Share of all requests that comes from each group. The shares sum to 1.
    pub shares: Vec<f64>,
}

impl Topology {
    /// Creates the program for these offers and requests. All sources hold all channels.
    ///
    /// Errors: see [`ProgramError`].
    pub fn program(
        &self,
        demand: (Vec<Offer>, Vec<Request>),
        settings: Settings,
    ) -> Result<Program, ProgramError> {
        let groups = (self.groups.clone(), self.group_links.clone());
        Program::new(self.network.clone(), groups, demand, BTreeMap::new(), settings)
    }
}

/// Exponent of the Zipf law for a city's share of requests by its rank.
const CITY_EXPONENT: f64 = 0.9;
/// Mean and deviation of the cost of a link between tiers (§4.7.1: 10 to 50, normal).
const TIER_COST_MEAN: f64 = 30.0;
const TIER_COST_DEVIATION: f64 = 8.0;
const TIER_COST_LEAST: f64 = 10.0;
const TIER_COST_MOST: f64 = 50.0;
/// Highest cost of a link to a group, unless the link is free (§4.7.1: 1 to 5).
const GROUP_COST_MOST: u64 = 5;

impl TopologyShape {
    /// Draws a topology.
    ///
    /// Errors: a count or a degree outside its range.
    pub fn draw(&self, seed: Seed) -> Result<Topology, ShapeError> {
        self.check()?;
        let mut stream = seed.stream("topology", 0);
        let places: Vec<[f64; 2]> =
            (0..self.cities).map(|_| [stream.unit_f64(), stream.unit_f64()]).collect();
        let city_share = |city: u32| f64::from(city + 1).powf(-CITY_EXPONENT);
        let cities = WeightedItems::new((0..self.cities).map(city_share));
        let mut group_cities: Vec<u32> = (0..self.cities.min(self.groups)).collect();
        while group_cities.len() < self.groups as usize {
            group_cities.push(cities.draw(&mut stream) as u32);
        }
        let mut providers = vec![0; self.cities as usize];
        let mut groups = Vec::new();
        for &city in &group_cities {
            groups.push(Group { city, asn: providers[city as usize] });
            providers[city as usize] += 1;
        }
        let sizes = groups.iter().map(|group| {
            city_share(group.city) / f64::from(providers[group.city as usize]) * (0.5 + stream.unit_f64())
        });
        let mut shares: Vec<f64> = sizes.collect();
        let total: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= total);
        let edge_cities: Vec<u32> = (0..self.edges).map(|edge| edge % self.cities).collect();
        let group_links = self.group_links(&groups, &places, &edge_cities, &mut stream);
        Ok(Topology { network: self.network(&mut stream), groups, group_links, shares })
    }

    fn check(&self) -> Result<(), ShapeError> {
        let within = |what, value: u32, max: usize| {
            let is_good = value >= 1 && value as usize <= max;
            if is_good { Ok(()) } else { Err(ShapeError(what, u64::from(value), format!("from 1 to {max}"))) }
        };
        within("sources", self.sources, SOURCES_MAX)?;
        within("reflectors", self.reflectors, REFLECTORS_MAX)?;
        within("edges", self.edges, NODES_MAX - SOURCES_MAX - REFLECTORS_MAX)?;
        within("groups", self.groups, GROUPS_MAX)?;
        within("cities", self.cities, self.groups as usize)?;
        let [x, y, z] = self.parents;
        within("sources of a reflector", x, self.sources as usize)?;
        within(
            "reflectors of an edge",
            y,
            (self.reflectors as usize).min(LINKS_MAX / 2 / self.edges as usize),
        )?;
        within("edges of a group", z, (self.edges as usize).min(GROUP_LINKS_MAX / self.groups as usize))
    }

    fn network(&self, stream: &mut RandomStream) -> Network {
        let tiers = [
            ("source", Tier::Source, self.sources),
            ("reflector", Tier::Reflector, self.reflectors),
            ("edge", Tier::Edge, self.edges),
        ];
        let nodes = tiers.into_iter().flat_map(|(name, tier, count)| {
            (0..count).map(move |n| Node { name: format!("{name}-{n}"), tier })
        });
        let mut links = self.tier_links(0, [self.sources, self.reflectors], 0, stream);
        links.extend(self.tier_links(self.sources, [self.reflectors, self.edges], 1, stream));
        Network::new(nodes.collect(), links).expect("the shape is within the limits of a network")
    }

    /// Links of one tier. Each child has the number of parents that the shape states. The parents'
    /// numbers of children differ by at most one.
    fn tier_links(&self, first: u32, counts: [u32; 2], tier: usize, stream: &mut RandomStream) -> Vec<Link> {
        let [parents, children] = counts;
        let mut uses = vec![0u32; parents as usize];
        let mut links = Vec::new();
        for child in 0..children {
            let mut order: Vec<(u32, u64, u32)> =
                (0..parents).map(|parent| (uses[parent as usize], stream.next_u64(), parent)).collect();
            order.sort_unstable();
            for &(_, _, parent) in order.iter().take(self.parents[tier] as usize) {
                uses[parent as usize] += 1;
                let cost = normal(TIER_COST_MEAN, TIER_COST_DEVIATION, stream);
                links.push(Link {
                    from: NodeId(first + parent),
                    to: NodeId(first + parents + child),
                    capacity: self.capacities[tier],
                    cost: cost.clamp(TIER_COST_LEAST, TIER_COST_MOST).round(),
                });
            }
        }
        links
    }

    fn group_links(
        &self,
        groups: &[Group],
        places: &[[f64; 2]],
        edge_cities: &[u32],
        stream: &mut RandomStream,
    ) -> Vec<GroupLink> {
        let mut links = Vec::new();
        for (group, id) in groups.iter().zip(0..) {
            let [x, y] = places[group.city as usize];
            let mut edges: Vec<(f64, u32)> = edge_cities
                .iter()
                .zip(0..)
                .map(|(&city, edge)| {
                    let [to_x, to_y] = places[city as usize];
                    ((x - to_x).powi(2) + (y - to_y).powi(2), edge)
                })
                .collect();
            let nearest = self.parents[2] as usize;
            let by_distance = |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
            if nearest < edges.len() {
                edges.select_nth_unstable_by(nearest, by_distance);
                edges.truncate(nearest);
            }
            edges.sort_unstable_by(by_distance);
            for (_, edge) in edges {
                let is_free = stream.below(2) == 0;
                links.push(GroupLink {
                    edge: NodeId(self.sources + self.reflectors + edge),
                    group: GroupId(id),
                    capacity: self.capacities[2],
                    cost: if is_free { 0.0 } else { (1 + stream.below(GROUP_COST_MOST)) as f64 },
                });
            }
        }
        links
    }
}
