//! Flows on a multigraph of directed links: maximum flow, minimum cut, flow of minimum total
//! length.
//!
//! Capacities are whole units, one number per link; 0 removes the link. Sources: Dinic, *Algorithm
//! for solution of a problem of maximum flow in networks with power estimation* (1970); Ahuja,
//! Magnanti and Orlin, *Network Flows* (1993), section 9.7 (successive shortest paths). The tests
//! use petgraph's flow as the reference. petgraph itself cannot stop at a given value, and cannot
//! minimise lengths.
//!
//! Leaves out: fractional capacities (scale them to whole units). Read [`Adjacency`] and
//! [`LinkFlow`] first.

use crate::Topology;
use anabranch_units::{LinkId, SiteId};
use std::collections::VecDeque;

/// The links of a topology, indexed by their ends.
#[derive(Clone, Debug)]
pub struct Adjacency {
    ends: Vec<(SiteId, SiteId)>,
    out: Vec<Vec<LinkId>>,
    into: Vec<Vec<LinkId>>,
}

impl Adjacency {
    /// Indexes the links of `topology`.
    pub fn new(topology: &Topology) -> Self {
        let ends = topology.links().iter().map(|l| (l.from, l.to)).collect();
        Self::from_ends(topology.sites().len(), ends)
    }
    /// Indexes links given by their ends, among `sites` sites; link ids are indices into `ends`.
    ///
    /// Panics: if an end is not below `sites`.
    pub fn from_ends(sites: usize, ends: Vec<(SiteId, SiteId)>) -> Self {
        let (mut out, mut into) = (vec![Vec::new(); sites], vec![Vec::new(); sites]);
        for (i, (from, to)) in ends.iter().enumerate() {
            out[from.index()].push(LinkId(i as u32));
            into[to.index()].push(LinkId(i as u32));
        }
        Self { ends, out, into }
    }
    /// Number of sites.
    pub fn sites(&self) -> usize {
        self.out.len()
    }
    /// Number of links.
    pub fn links(&self) -> usize {
        self.ends.len()
    }
    /// Ids of all links, ascending.
    pub fn link_ids(&self) -> impl DoubleEndedIterator<Item = LinkId> + use<> {
        (0..self.ends.len() as u32).map(LinkId)
    }
    /// Site at which a link begins.
    pub fn from(&self, link: LinkId) -> SiteId {
        self.ends[link.index()].0
    }
    /// Site at which a link ends.
    pub fn to(&self, link: LinkId) -> SiteId {
        self.ends[link.index()].1
    }
    /// Links that leave a site, ascending.
    pub fn links_out(&self, site: SiteId) -> &[LinkId] {
        &self.out[site.index()]
    }
    /// Links that enter a site, ascending.
    pub fn links_in(&self, site: SiteId) -> &[LinkId] {
        &self.into[site.index()]
    }
}

/// A flow from one site to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFlow {
    /// Units that arrive at the destination.
    pub value: u64,
    /// Units on each link, by link id.
    pub units: Vec<u64>,
}

/// A set of links whose removal leaves no flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Capacity of the links in units.
    pub value: u64,
    /// The links, ascending.
    pub links: Vec<LinkId>,
}

/// Arcs of a residual network: arc `2 * link` has the link's direction, arc `2 * link + 1` the
/// opposite direction.
struct ResidualNetwork<'a> {
    adjacency: &'a Adjacency,
    left: Vec<u64>,
}

impl<'a> ResidualNetwork<'a> {
    fn new(adjacency: &'a Adjacency, capacities: &[u64]) -> Self {
        assert_eq!(capacities.len(), adjacency.links(), "one capacity per link");
        Self { adjacency, left: capacities.iter().flat_map(|c| [*c, 0]).collect() }
    }
    fn arcs(&self, site: SiteId) -> impl Iterator<Item = usize> + '_ {
        let along = self.adjacency.links_out(site).iter().map(|l| 2 * l.index());
        along.chain(self.adjacency.links_in(site).iter().map(|l| 2 * l.index() + 1))
    }
    fn head(&self, arc: usize) -> SiteId {
        let (from, to) = self.adjacency.ends[arc / 2];
        if arc.is_multiple_of(2) { to } else { from }
    }
    fn tail(&self, arc: usize) -> SiteId {
        self.head(arc ^ 1)
    }
    fn push(&mut self, arc: usize, units: u64) {
        self.left[arc] -= units;
        self.left[arc ^ 1] += units;
    }
    fn levels(&self, source: SiteId) -> Vec<Option<u32>> {
        let mut level = vec![None; self.adjacency.sites()];
        let mut queue = VecDeque::from([source]);
        level[source.index()] = Some(0);
        while let Some(site) = queue.pop_front() {
            let next = level[site.index()].map(|l: u32| l + 1);
            for arc in self.arcs(site) {
                let head = self.head(arc);
                if self.left[arc] > 0 && level[head.index()].is_none() {
                    level[head.index()] = next;
                    queue.push_back(head);
                }
            }
        }
        level
    }
    fn into_flow(self, value: u64) -> LinkFlow {
        LinkFlow { value, units: self.left.chunks(2).map(|pair| pair[1]).collect() }
    }
}

/// Maximum flow from `source` to `sink`, but at most `limit` units.
///
/// Panics: if source and sink are equal, or `capacities` does not have one number per link.
/// Cost: O(sites^2 * links) in the worst case, far less on real networks.
/// Source: Dinic 1970.
pub fn max_flow(
    adjacency: &Adjacency,
    capacities: &[u64],
    source: SiteId,
    sink: SiteId,
    limit: u64,
) -> LinkFlow {
    let (residual, value) = saturate(adjacency, capacities, source, sink, limit);
    residual.into_flow(value)
}

fn saturate<'a>(
    adjacency: &'a Adjacency,
    capacities: &[u64],
    source: SiteId,
    sink: SiteId,
    limit: u64,
) -> (ResidualNetwork<'a>, u64) {
    assert_ne!(source, sink, "a flow goes from one site to another");
    let mut residual = ResidualNetwork::new(adjacency, capacities);
    let mut value = 0;
    while value < limit {
        let level = residual.levels(source);
        if level[sink.index()].is_none() {
            break;
        }
        // Blocking flow by depth-first search with an explicit stack for the path. Because of
        // `tried`, no arc is examined twice.
        let arcs: Vec<Vec<usize>> =
            (0..adjacency.sites()).map(|s| residual.arcs(SiteId(s as u16)).collect()).collect();
        let mut tried = vec![0; adjacency.sites()];
        let mut path: Vec<usize> = Vec::new();
        while value < limit {
            let at = path.last().map_or(source, |arc| residual.head(*arc));
            if at == sink {
                let units = path.iter().map(|arc| residual.left[*arc]).min().unwrap_or(0).min(limit - value);
                path.iter().for_each(|arc| residual.push(*arc, units));
                value += units;
                path.clear();
                continue;
            }
            let down = level[at.index()].map(|l| l + 1);
            let next = arcs[at.index()][tried[at.index()]..]
                .iter()
                .position(|arc| residual.left[*arc] > 0 && level[residual.head(*arc).index()] == down);
            match next {
                Some(skip) => {
                    tried[at.index()] += skip;
                    path.push(arcs[at.index()][tried[at.index()]]);
                }
                None => match path.pop() {
                    Some(arc) => tried[residual.tail(arc).index()] += 1,
                    None => break,
                },
            }
        }
    }
    (residual, value)
}

/// The minimum cut between `source` and `sink` that is nearest to the source.
///
/// Panics and Cost: as [`max_flow`].
pub fn min_cut(adjacency: &Adjacency, capacities: &[u64], source: SiteId, sink: SiteId) -> Cut {
    let (residual, value) = saturate(adjacency, capacities, source, sink, u64::MAX);
    let level = residual.levels(source);
    let crosses = |l: &LinkId| {
        level[adjacency.from(*l).index()].is_some()
            && level[adjacency.to(*l).index()].is_none()
            && capacities[l.index()] > 0
    };
    Cut { value, links: adjacency.link_ids().filter(crosses).collect() }
}

/// The flow of exactly `value` units with the minimum total of `lengths`; `None` if `value` units
/// do not fit.
///
/// Units: lengths in any unit, the same for all links. Their sum over a path must be below 2^62.
/// Panics: as [`max_flow`].
/// Cost: one shortest-path search (Bellman-Ford with a queue) per augmentation.
/// Source: Ahuja, Magnanti and Orlin 1993, section 9.7.
pub fn min_cost_flow(
    adjacency: &Adjacency,
    capacities: &[u64],
    lengths: &[u64],
    source: SiteId,
    sink: SiteId,
    value: u64,
) -> Option<LinkFlow> {
    assert_ne!(source, sink, "a flow goes from one site to another");
    let mut residual = ResidualNetwork::new(adjacency, capacities);
    let length = |arc: usize| {
        let along = lengths[arc / 2] as i64;
        if arc.is_multiple_of(2) { along } else { -along }
    };
    let mut sent = 0;
    while sent < value {
        let mut best: Vec<Option<i64>> = vec![None; adjacency.sites()];
        let mut by: Vec<Option<usize>> = vec![None; adjacency.sites()];
        let mut queued = vec![false; adjacency.sites()];
        let mut queue = VecDeque::from([source]);
        best[source.index()] = Some(0);
        while let Some(site) = queue.pop_front() {
            queued[site.index()] = false;
            let Some(here) = best[site.index()] else { continue };
            for arc in residual.arcs(site) {
                let (head, there) = (residual.head(arc), here + length(arc));
                if residual.left[arc] > 0 && best[head.index()].is_none_or(|b| there < b) {
                    best[head.index()] = Some(there);
                    by[head.index()] = Some(arc);
                    if !std::mem::replace(&mut queued[head.index()], true) {
                        queue.push_back(head);
                    }
                }
            }
        }
        best[sink.index()]?;
        let mut path = Vec::new();
        let mut at = sink;
        while at != source {
            let arc = by[at.index()].expect("every reached site but the source was reached by an arc");
            path.push(arc);
            at = residual.tail(arc);
        }
        let units = path.iter().map(|arc| residual.left[*arc]).min().unwrap_or(0).min(value - sent);
        path.iter().for_each(|arc| residual.push(*arc, units));
        sent += units;
    }
    Some(residual.into_flow(sent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RandomNetwork, networks};
    use proptest::prelude::*;

    /// Minimum cut by trying every set of sites that contains the source and not the sink.
    fn brute_min_cut(n: &RandomNetwork, source: SiteId, sink: SiteId) -> u64 {
        (0u32..1 << n.adjacency.sites())
            .filter(|set| set >> source.0 & 1 == 1 && set >> sink.0 & 1 == 0)
            .map(|set| {
                let crosses = |l: &LinkId| {
                    set >> n.adjacency.from(*l).0 & 1 == 1 && set >> n.adjacency.to(*l).0 & 1 == 0
                };
                n.adjacency.link_ids().filter(crosses).map(|l| n.capacities[l.index()]).sum()
            })
            .min()
            .expect("the source alone is such a set")
    }

    fn assert_is_flow(n: &RandomNetwork, flow: &LinkFlow, source: SiteId, sink: SiteId) {
        for l in n.adjacency.link_ids() {
            assert!(flow.units[l.index()] <= n.capacities[l.index()]);
        }
        for site in (0..n.adjacency.sites() as u16).map(SiteId) {
            let sum = |links: &[LinkId]| links.iter().map(|l| flow.units[l.index()]).sum::<u64>();
            let (out, into) = (sum(n.adjacency.links_out(site)), sum(n.adjacency.links_in(site)));
            if site == source {
                assert_eq!(out, into + flow.value);
            } else if site == sink {
                assert_eq!(out + flow.value, into);
            } else {
                assert_eq!(out, into, "site {site} keeps nothing");
            }
        }
    }

    /// Minimum length of a flow of `value` units, by trying every vector of units (small networks
    /// only).
    fn brute_min_length(n: &RandomNetwork, source: SiteId, sink: SiteId, value: i64) -> Option<u64> {
        let links = n.adjacency.links();
        let mut units = vec![0u64; links];
        let mut best = None;
        loop {
            let mut balance = vec![0i64; n.adjacency.sites()];
            for l in n.adjacency.link_ids() {
                balance[n.adjacency.from(l).index()] += units[l.index()] as i64;
                balance[n.adjacency.to(l).index()] -= units[l.index()] as i64;
            }
            balance[source.index()] -= value;
            balance[sink.index()] += value;
            if balance.iter().all(|b| *b == 0) {
                let length: u64 = units.iter().zip(&n.lengths).map(|(u, l)| u * l).sum();
                best = Some(best.map_or(length, |b: u64| b.min(length)));
            }
            let Some(next) = (0..links).find(|i| units[*i] < n.capacities[*i].min(2)) else { return best };
            units[..next].fill(0);
            units[next] += 1;
        }
    }

    proptest! {
        #[test]
        fn max_flow_equals_the_smallest_of_all_cuts(n in networks(7, 16, 4)) {
            let (source, sink) = (SiteId(0), SiteId(1));
            let flow = max_flow(&n.adjacency, &n.capacities, source, sink, u64::MAX);
            assert_is_flow(&n, &flow, source, sink);
            prop_assert_eq!(flow.value, brute_min_cut(&n, source, sink));
            let cut = min_cut(&n.adjacency, &n.capacities, source, sink);
            prop_assert_eq!(cut.value, flow.value);
            prop_assert_eq!(cut.links.iter().map(|l| n.capacities[l.index()]).sum::<u64>(), flow.value);
            let mut without = n.capacities.clone();
            cut.links.iter().for_each(|l| without[l.index()] = 0);
            prop_assert_eq!(max_flow(&n.adjacency, &without, source, sink, u64::MAX).value, 0);
        }

        #[test]
        fn max_flow_equals_petgraphs(n in networks(12, 40, 9)) {
            let mut graph = petgraph::graph::DiGraph::<(), u64>::new();
            let nodes: Vec<_> = (0..n.adjacency.sites()).map(|_| graph.add_node(())).collect();
            for l in n.adjacency.link_ids() {
                let (from, to) = (n.adjacency.from(l).index(), n.adjacency.to(l).index());
                graph.add_edge(nodes[from], nodes[to], n.capacities[l.index()]);
            }
            let (oracle, _) = petgraph::algo::ford_fulkerson(&graph, nodes[0], nodes[1]);
            prop_assert_eq!(max_flow(&n.adjacency, &n.capacities, SiteId(0), SiteId(1), u64::MAX).value, oracle);
        }

        #[test]
        fn limited_flow_stops_at_its_limit(n in networks(7, 16, 4), limit in 0u64..4) {
            let all = max_flow(&n.adjacency, &n.capacities, SiteId(0), SiteId(1), u64::MAX).value;
            let flow = max_flow(&n.adjacency, &n.capacities, SiteId(0), SiteId(1), limit);
            assert_is_flow(&n, &flow, SiteId(0), SiteId(1));
            prop_assert_eq!(flow.value, all.min(limit));
        }

        #[test]
        fn minimum_flow_length_equals_brute_force(n in networks(4, 7, 2), value in 1u64..4) {
            let flow = min_cost_flow(&n.adjacency, &n.capacities, &n.lengths, SiteId(0), SiteId(1), value);
            let length = flow.map(|f| {
                assert_is_flow(&n, &f, SiteId(0), SiteId(1));
                f.units.iter().zip(&n.lengths).map(|(u, l)| u * l).sum::<u64>()
            });
            prop_assert_eq!(length, brute_min_length(&n, SiteId(0), SiteId(1), value as i64));
        }
    }
}
