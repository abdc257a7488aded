//! Data-centre networks of a given size: star, dumbbell, leaf-spine and fat tree.
//!
//! The hosts are sites 0, 1, … in order, named `h0`, `h1`, …; the switches follow. All connections
//! are full-duplex cables. The cables of the hosts come first: host x sends over link 2x and
//! receives over link 2x + 1.
//!
//! Source of the fat tree: Al-Fares, Loukissas and Vahdat, *A scalable, commodity data center
//! network architecture* (SIGCOMM 2008), section 2.2. Leaves out: the choice of routes
//! ([`crate::Routes`]); geographical positions, which these sites do not have. Read [`star`] and
//! [`fat_tree`] first.

use crate::{LINKS_MAX, LinkProperties, SITES_MAX, Topology, TopologyError};
use anabranch_units::SiteId;

/// Reason why a network cannot be built.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DatacentreError {
    /// A number is zero but must be at least one.
    Zero {
        /// The requested network.
        network: String,
        /// The zero quantity.
        what: &'static str,
    },
    /// The number of ports of a fat tree's switches is odd.
    OddPorts {
        /// Ports per switch.
        k: usize,
    },
    /// The network would have more sites or links than a topology may have.
    TooMany {
        /// The requested network.
        network: String,
        /// Kind of the items that are too many.
        what: &'static str,
        /// Number of items; `usize::MAX` also stands for larger numbers.
        got: usize,
        /// Maximum number.
        limit: usize,
        /// Advice for the user.
        instead: &'static str,
    },
    /// The properties are invalid for a link.
    Link(TopologyError),
}

impl std::fmt::Display for DatacentreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Zero { network, what } => write!(f, "{network}: 0 {what}: must be at least 1"),
            Self::OddPorts { k } => {
                write!(f, "fat-tree-{k}: {k} ports per switch: must be even, as half of them lead up")
            }
            Self::TooMany { network, what, got, limit, instead } => {
                write!(f, "{network}: {got} {what}: must be at most {limit}: {instead}")
            }
            Self::Link(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for DatacentreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Link(error) => Some(error),
            _ => None,
        }
    }
}
impl From<TopologyError> for DatacentreError {
    fn from(error: TopologyError) -> Self {
        Self::Link(error)
    }
}

/// A star of `hosts` hosts around one switch, `hub`.
///
/// Errors: no hosts; more sites than [`SITES_MAX`]; invalid link properties.
///
/// ```
/// use anabranch_graph::{LinkProperties, datacentre::star};
/// use anabranch_units::{BitRate, Duration, SiteId};
/// let star = star(3, &LinkProperties::new(BitRate::gbps(10), Duration::from_us(1)))?;
/// assert_eq!((star.sites().len(), star.links().len()), (4, 6));
/// assert!(star.site(SiteId(3)).is_switch);
/// # Ok::<_, anabranch_graph::datacentre::DatacentreError>(())
/// ```
pub fn star(hosts: usize, properties: &LinkProperties) -> Result<Topology, DatacentreError> {
    let name = format!("star-{hosts}");
    if hosts == 0 {
        return Err(DatacentreError::Zero { network: name, what: "hosts" });
    }
    let mut topology = with_hosts(name, hosts, 1, hosts, "ask for fewer hosts")?;
    let hub = topology.add_switch("hub")?;
    for host in 0..hosts {
        topology.add_cable(site(host), hub, properties.clone())?;
    }
    Ok(topology)
}

/// `pairs` hosts at each end of one shared cable.
///
/// Hosts 0 to `pairs` - 1 are at the switch `left`, and `pairs` further hosts are at the switch
/// `right`; host x forms a pair with host `pairs` + x. The hosts' cables have the properties
/// `edge`, the shared cable has `bottleneck`. The shared cable has the last two links,
/// first from left to right.
///
/// Errors: no pairs; more sites than [`SITES_MAX`]; invalid link properties.
pub fn dumbbell(
    pairs: usize,
    edge: &LinkProperties,
    bottleneck: &LinkProperties,
) -> Result<Topology, DatacentreError> {
    let name = format!("dumbbell-{pairs}");
    if pairs == 0 {
        return Err(DatacentreError::Zero { network: name, what: "pairs" });
    }
    let hosts = pairs.saturating_mul(2);
    let mut topology = with_hosts(name, hosts, 2, hosts.saturating_add(1), "ask for fewer pairs")?;
    let (left, right) = (topology.add_switch("left")?, topology.add_switch("right")?);
    for host in 0..hosts {
        topology.add_cable(site(host), if host < pairs { left } else { right }, edge.clone())?;
    }
    topology.add_cable(left, right, bottleneck.clone())?;
    Ok(topology)
}

/// Racks of hosts under top-of-rack switches; each of these switches has a cable to every spine.
///
/// Host x is under the switch `tor-T`, T = x / `hosts_per_tor`. The switches `spine-S` follow the
/// top-of-rack switches. The hosts' cables have the properties `edge`, the cables between `tor-T`
/// and `spine-S` have `uplink`.
///
/// Errors: one of the three numbers is zero; more sites than [`SITES_MAX`] or links than
/// [`LINKS_MAX`]; invalid link properties.
pub fn leaf_spine(
    tors: usize,
    spines: usize,
    hosts_per_tor: usize,
    edge: &LinkProperties,
    uplink: &LinkProperties,
) -> Result<Topology, DatacentreError> {
    let name = format!("leaf-spine-{tors}x{spines}x{hosts_per_tor}");
    for (count, what) in [(tors, "tors"), (spines, "spines"), (hosts_per_tor, "hosts per tor")] {
        if count == 0 {
            return Err(DatacentreError::Zero { network: name, what });
        }
    }
    let hosts = tors.saturating_mul(hosts_per_tor);
    let cables = hosts.saturating_add(tors.saturating_mul(spines));
    let instead = "ask for fewer tors, spines or hosts per tor";
    let mut topology = with_hosts(name, hosts, tors.saturating_add(spines), cables, instead)?;
    let tor_ids = add_switches(&mut topology, (0..tors).map(|t| format!("tor-{t}")))?;
    let spine_ids = add_switches(&mut topology, (0..spines).map(|s| format!("spine-{s}")))?;
    for host in 0..hosts {
        topology.add_cable(site(host), tor_ids[host / hosts_per_tor], edge.clone())?;
    }
    for tor in tor_ids {
        for spine in &spine_ids {
            topology.add_cable(tor, *spine, uplink.clone())?;
        }
    }
    Ok(topology)
}

/// Maximum number of ports per switch of a fat tree that fits in [`SITES_MAX`].
pub const FAT_TREE_PORTS_MAX: usize = 22;

/// The three-layer fat tree of switches with `k` ports. All cables have the same properties.
///
/// The tree has k^3 / 4 hosts in k pods. Host x is in pod P = x / (k/2)^2 under the switch
/// `edge-P-E`, E = x / (k/2) mod k/2. The switches `agg-P-A`, with A below k/2, connect the edge
/// switches of their pod with the cores. Aggregation switch A of every pod has cables to `core-C`
/// for C from A k/2 to A k/2 + k/2 - 1. Edge switches have the lowest ids, pod by pod, then
/// aggregation switches in the same order, then cores.
///
/// Errors: k is zero, odd, or above [`FAT_TREE_PORTS_MAX`]; invalid link properties.
/// Source: Al-Fares and others (2008), section 2.2.
///
/// ```
/// use anabranch_graph::{LinkProperties, datacentre::fat_tree};
/// use anabranch_units::{BitRate, Duration};
/// let tree = fat_tree(16, &LinkProperties::new(BitRate::gbps(10), Duration::from_us(1)))?;
/// assert_eq!((tree.sites().len(), tree.links().len()), (1024 + 320, 6144));
/// # Ok::<_, anabranch_graph::datacentre::DatacentreError>(())
/// ```
pub fn fat_tree(k: usize, properties: &LinkProperties) -> Result<Topology, DatacentreError> {
    let name = format!("fat-tree-{k}");
    if k == 0 {
        return Err(DatacentreError::Zero { network: name, what: "ports per switch" });
    }
    if k % 2 == 1 {
        return Err(DatacentreError::OddPorts { k });
    }
    let half = k / 2;
    let hosts = half.saturating_mul(half).saturating_mul(k);
    let switches = half.saturating_mul(half).saturating_mul(5);
    let mut topology =
        with_hosts(name, hosts, switches, hosts.saturating_mul(3), "take a smaller k (22 fits)")?;
    let of_pods = |layer| (0..k * half).map(move |i| format!("{layer}-{}-{}", i / half, i % half));
    let edges = add_switches(&mut topology, of_pods("edge"))?;
    let aggregations = add_switches(&mut topology, of_pods("agg"))?;
    let cores = add_switches(&mut topology, (0..half * half).map(|c| format!("core-{c}")))?;
    for host in 0..hosts {
        topology.add_cable(site(host), edges[host / half], properties.clone())?;
    }
    for (i, edge) in edges.into_iter().enumerate() {
        for a in 0..half {
            topology.add_cable(edge, aggregations[i / half * half + a], properties.clone())?;
        }
    }
    for (i, aggregation) in aggregations.into_iter().enumerate() {
        for j in 0..half {
            topology.add_cable(aggregation, cores[i % half * half + j], properties.clone())?;
        }
    }
    Ok(topology)
}

/// Creates a topology of `hosts` hosts if it has room for the given numbers of switches and cables.
fn with_hosts(
    name: String,
    hosts: usize,
    switches: usize,
    cables: usize,
    instead: &'static str,
) -> Result<Topology, DatacentreError> {
    for (what, got, limit) in
        [("sites", hosts.saturating_add(switches), SITES_MAX), ("links", cables.saturating_mul(2), LINKS_MAX)]
    {
        if got > limit {
            return Err(DatacentreError::TooMany { network: name, what, got, limit, instead });
        }
    }
    let mut topology = Topology::new(name);
    for host in 0..hosts {
        topology.add_site(format!("h{host}"), None)?;
    }
    Ok(topology)
}

fn add_switches(
    topology: &mut Topology,
    names: impl Iterator<Item = String>,
) -> Result<Vec<SiteId>, TopologyError> {
    names.map(|name| topology.add_switch(name)).collect()
}

/// The site id of a host.
fn site(host: usize) -> SiteId {
    SiteId(u16::try_from(host).expect("hosts were counted against SITES_MAX"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Defaults, Format, parse, toml};
    use anabranch_units::{BitRate, Duration, LinkId};

    fn edge() -> LinkProperties {
        LinkProperties::new(BitRate::gbps(10), Duration::from_us(1))
    }
    fn inner() -> LinkProperties {
        LinkProperties::new(BitRate::gbps(40), Duration::from_us(2))
    }

    /// One network of each kind, with its number of hosts.
    fn one_of_each() -> [(Topology, u16); 5] {
        let good = "the parameters are good";
        [
            (star(5, &edge()).expect(good), 5),
            (dumbbell(3, &edge(), &inner()).expect(good), 6),
            (leaf_spine(3, 2, 4, &edge(), &inner()).expect(good), 12),
            (fat_tree(2, &edge()).expect(good), 2),
            (fat_tree(6, &edge()).expect(good), 54),
        ]
    }

    /// Names of the sites at the ends of a site's outgoing links.
    fn next_to<'a>(t: &'a Topology, name: &str) -> Vec<&'a str> {
        let site = t.find_site(name).expect("a site of that name");
        t.links_out(site).map(|l| t.site(t.link(l).to).name.as_str()).collect()
    }

    #[test]
    fn hosts_and_their_cables_have_the_lowest_ids() {
        for (t, hosts) in one_of_each() {
            for id in t.site_ids() {
                assert_eq!(t.site(id).is_switch, id.0 >= hosts, "{} site {id}", t.name());
            }
            for x in 0..hosts {
                assert_eq!(t.site(SiteId(x)).name, format!("h{x}"));
                let (up, down) = (LinkId(2 * u32::from(x)), LinkId(2 * u32::from(x) + 1));
                assert_eq!(t.links_out(SiteId(x)).collect::<Vec<_>>(), [up]);
                assert_eq!(t.links_in(SiteId(x)).collect::<Vec<_>>(), [down]);
                assert_eq!(t.link(up).properties, edge());
            }
        }
    }

    #[test]
    fn every_connection_is_a_full_duplex_cable() {
        for (t, _) in one_of_each() {
            for pair in t.links().chunks(2) {
                assert_eq!((pair[0].from, pair[0].to), (pair[1].to, pair[1].from));
                assert_eq!(pair[0].properties, pair[1].properties);
            }
        }
    }

    #[test]
    fn dumbbell_is_two_stars_joined_by_the_bottleneck() {
        let t = dumbbell(2, &edge(), &inner()).expect("it fits");
        assert_eq!(next_to(&t, "left"), ["h0", "h1", "right"]);
        assert_eq!(next_to(&t, "right"), ["h2", "h3", "left"]);
        let shared = t.links().iter().filter(|l| l.properties == inner()).collect::<Vec<_>>();
        assert_eq!(shared, t.links()[8..].iter().collect::<Vec<_>>(), "the last two");
        assert_eq!(t.site(shared[0].from).name, "left");
    }

    #[test]
    fn every_tor_is_joined_to_every_spine() {
        let t = leaf_spine(3, 2, 2, &edge(), &inner()).expect("it fits");
        assert_eq!(next_to(&t, "tor-1"), ["h2", "h3", "spine-0", "spine-1"]);
        assert_eq!(next_to(&t, "spine-0"), ["tor-0", "tor-1", "tor-2"]);
        assert!(t.links()[12..].iter().all(|l| l.properties == inner()));
        assert_eq!(t.links().len(), 2 * (6 + 6));
    }

    #[test]
    fn fat_tree_has_the_links_of_the_paper() {
        let t = fat_tree(4, &edge()).expect("it fits");
        assert_eq!(next_to(&t, "edge-0-0"), ["h0", "h1", "agg-0-0", "agg-0-1"]);
        assert_eq!(next_to(&t, "edge-2-1"), ["h10", "h11", "agg-2-0", "agg-2-1"]);
        assert_eq!(next_to(&t, "agg-1-0"), ["edge-1-0", "edge-1-1", "core-0", "core-1"]);
        assert_eq!(next_to(&t, "agg-3-1"), ["edge-3-0", "edge-3-1", "core-2", "core-3"]);
        assert_eq!(next_to(&t, "core-0"), ["agg-0-0", "agg-1-0", "agg-2-0", "agg-3-0"]);
        assert_eq!(next_to(&t, "core-3"), ["agg-0-1", "agg-1-1", "agg-2-1", "agg-3-1"]);
    }

    #[test]
    fn every_switch_of_a_fat_tree_uses_all_ports() {
        for k in [2, 4, 6, 10, FAT_TREE_PORTS_MAX] {
            let t = fat_tree(k, &edge()).expect("it fits");
            assert_eq!(t.sites().len(), k * k * k / 4 + 5 * k * k / 4);
            let mut ports = vec![0; t.sites().len()];
            t.links().iter().for_each(|l| ports[l.from.index()] += 1);
            for (site, ports) in t.sites().iter().zip(ports) {
                assert_eq!(ports, if site.is_switch { k } else { 1 }, "k {k}, {}", site.name);
            }
        }
    }

    #[test]
    fn networks_fit_exactly_up_to_the_limit() {
        let sites = |t: Result<Topology, _>| t.map(|t| t.sites().len());
        let message = |t: Result<Topology, DatacentreError>| t.expect_err("past the limit").to_string();
        assert_eq!(sites(star(4095, &edge())), Ok(4096));
        assert_eq!(
            message(star(4096, &edge())),
            "star-4096: 4097 sites: must be at most 4096: ask for fewer hosts"
        );
        assert_eq!(sites(dumbbell(2047, &edge(), &inner())), Ok(4096));
        assert_eq!(
            message(dumbbell(2048, &edge(), &inner())),
            "dumbbell-2048: 4098 sites: must be at most 4096: ask for fewer pairs"
        );
        assert_eq!(sites(fat_tree(22, &edge())), Ok(3267));
        assert_eq!(
            message(fat_tree(24, &edge())),
            "fat-tree-24: 4176 sites: must be at most 4096: take a smaller k (22 fits)"
        );
        let links = |t: Result<Topology, _>| t.map(|t| t.links().len());
        assert_eq!(links(leaf_spine(256, 127, 1, &edge(), &inner())), Ok(LINKS_MAX));
        assert_eq!(
            message(leaf_spine(256, 128, 1, &edge(), &inner())),
            "leaf-spine-256x128x1: 66048 links: must be at most 65536: ask for fewer tors, spines or hosts per tor"
        );
        let no_number = usize::MAX - 1;
        assert!(matches!(fat_tree(no_number, &edge()), Err(DatacentreError::TooMany { .. })));
        assert!(matches!(dumbbell(no_number, &edge(), &edge()), Err(DatacentreError::TooMany { .. })));
        let all = leaf_spine(no_number, no_number, no_number, &edge(), &edge());
        assert!(matches!(all, Err(DatacentreError::TooMany { .. })));
    }

    #[test]
    fn invalid_datacentre_sizes_and_properties_are_refused() {
        let message = |t: Result<Topology, DatacentreError>| t.expect_err("no such network").to_string();
        assert_eq!(message(star(0, &edge())), "star-0: 0 hosts: must be at least 1");
        assert_eq!(message(dumbbell(0, &edge(), &inner())), "dumbbell-0: 0 pairs: must be at least 1");
        let no_spines = leaf_spine(2, 0, 2, &edge(), &inner());
        assert_eq!(message(no_spines), "leaf-spine-2x0x2: 0 spines: must be at least 1");
        assert_eq!(message(fat_tree(0, &edge())), "fat-tree-0: 0 ports per switch: must be at least 1");
        assert_eq!(
            message(fat_tree(5, &edge())),
            "fat-tree-5: 5 ports per switch: must be even, as half of them lead up"
        );
        let nothing = LinkProperties { capacity: BitRate::bps(0), ..edge() };
        assert!(matches!(star(2, &nothing), Err(DatacentreError::Link(TopologyError::ZeroCapacity { .. }))));
    }

    #[test]
    fn written_networks_read_back_equal() {
        let defaults = Defaults::new(BitRate::mbps(1));
        for (t, _) in one_of_each() {
            assert_eq!(parse(&toml::write(&t), Format::Toml, "net.toml", &defaults), Ok(t));
        }
    }
}
