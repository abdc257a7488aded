//! Paths: the shortest path, several paths that share no unit of a link, and the decomposition of a
//! flow into paths.
//!
//! Sources: Dijkstra 1959; Suurballe, *Disjoint paths in a network* (1974), here as a flow of
//! minimum length. petgraph's own search returns the sites of a path and not its links, which do
//! not determine the path in a multigraph; the tests use petgraph as the reference.
//!
//! Leaves out: the k shortest paths that may overlap. Read [`shortest_path`] and [`disjoint_paths`]
//! first.

use crate::flow::{Adjacency, LinkFlow, min_cost_flow};
use anabranch_units::{LinkId, SiteId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The links of a shortest path from `source` to `sink` by `lengths`, over links with capacity;
/// `None` if there is no path.
///
/// Among equally short paths, the search returns the first by ascending ids of sites and links. The
/// result is empty if source and sink are equal.
/// Cost: O(links * log(links)).
pub fn shortest_path(
    adjacency: &Adjacency,
    capacities: &[u64],
    lengths: &[u64],
    source: SiteId,
    sink: SiteId,
) -> Option<Vec<LinkId>> {
    let (best, by) = search(adjacency, capacities, lengths, source);
    best[sink.index()]?;
    let mut path = Vec::new();
    let mut at = sink;
    while at != source {
        let link = by[at.index()].expect("every reached site but the source was reached by a link");
        path.push(link);
        at = adjacency.from(link);
    }
    path.reverse();
    Some(path)
}

/// Length of the shortest path from `source` to each site, by site; `None` if there is no path.
///
/// Cost: as [`shortest_path`].
pub fn distances(
    adjacency: &Adjacency,
    capacities: &[u64],
    lengths: &[u64],
    source: SiteId,
) -> Vec<Option<u64>> {
    search(adjacency, capacities, lengths, source).0
}

/// Dijkstra's search: the distance of each site, and the last link on the path to it.
fn search(
    adjacency: &Adjacency,
    capacities: &[u64],
    lengths: &[u64],
    source: SiteId,
) -> (Vec<Option<u64>>, Vec<Option<LinkId>>) {
    let mut best: Vec<Option<u64>> = vec![None; adjacency.sites()];
    let mut by: Vec<Option<LinkId>> = vec![None; adjacency.sites()];
    let mut queue = BinaryHeap::from([Reverse((0, source))]);
    best[source.index()] = Some(0);
    while let Some(Reverse((here, site))) = queue.pop() {
        if best[site.index()] != Some(here) {
            continue;
        }
        for link in adjacency.links_out(site).iter().filter(|l| capacities[l.index()] > 0) {
            let (to, there) = (adjacency.to(*link), here + lengths[link.index()]);
            if best[to.index()].is_none_or(|b| there < b) {
                best[to.index()] = Some(there);
                by[to.index()] = Some(*link);
                queue.push(Reverse((there, to)));
            }
        }
    }
    (best, by)
}

/// `count` paths from `source` to `sink` with the minimum total length that together stay within
/// the capacity of each link. `None` if fewer than `count` paths fit. With capacities of 1 the
/// paths are edge-disjoint.
pub fn disjoint_paths(
    adjacency: &Adjacency,
    capacities: &[u64],
    lengths: &[u64],
    source: SiteId,
    sink: SiteId,
    count: u64,
) -> Option<Vec<Vec<LinkId>>> {
    let flow = min_cost_flow(adjacency, capacities, lengths, source, sink, count)?;
    let taken_apart = decompose(adjacency, &flow, source, sink);
    Some(taken_apart.into_iter().flat_map(|(path, units)| (0..units).map(move |_| path.clone())).collect())
}

/// Decomposes a flow into paths from `source` to `sink`, each with its units. Units in cycles are
/// dropped.
///
/// Panics: if `flow` is not a flow from `source` to `sink`.
pub fn decompose(
    adjacency: &Adjacency,
    flow: &LinkFlow,
    source: SiteId,
    sink: SiteId,
) -> Vec<(Vec<LinkId>, u64)> {
    let mut left = flow.units.clone();
    let mut value = flow.value;
    let mut paths = Vec::new();
    while value > 0 {
        let mut path: Vec<LinkId> = Vec::new();
        let mut at = source;
        while at != sink {
            let link = *adjacency
                .links_out(at)
                .iter()
                .find(|l| left[l.index()] > 0)
                .expect("what enters a site of a flow leaves it, until the sink");
            path.push(link);
            at = adjacency.to(link);
            if let Some(start) = path.iter().position(|l| adjacency.from(*l) == at) {
                let circle = path.split_off(start);
                let units = circle.iter().map(|l| left[l.index()]).min().expect("a circle has links");
                circle.iter().for_each(|l| left[l.index()] -= units);
            }
        }
        let units = path.iter().map(|l| left[l.index()]).min().expect("source and sink differ").min(value);
        path.iter().for_each(|l| left[l.index()] -= units);
        value -= units;
        paths.push((path, units));
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RandomNetwork, networks};
    use proptest::prelude::*;

    fn simple_paths(n: &RandomNetwork, source: SiteId, sink: SiteId) -> Vec<Vec<LinkId>> {
        let mut all = Vec::new();
        let mut open = vec![vec![]];
        while let Some(path) = open.pop() {
            let at = path.last().map_or(source, |l| n.adjacency.to(*l));
            if at == sink {
                all.push(path);
                continue;
            }
            for link in n.adjacency.links_out(at).iter().filter(|l| n.capacities[l.index()] > 0) {
                let to = n.adjacency.to(*link);
                if to != source && path.iter().all(|l| n.adjacency.to(*l) != to) {
                    open.push([path.as_slice(), &[*link]].concat());
                }
            }
        }
        all
    }

    fn length(n: &RandomNetwork, path: &[LinkId]) -> u64 {
        path.iter().map(|l| n.lengths[l.index()]).sum()
    }

    proptest! {
        #[test]
        fn shortest_path_equals_brute_force_and_petgraph(n in networks(6, 14, 1)) {
            let found = shortest_path(&n.adjacency, &n.capacities, &n.lengths, SiteId(0), SiteId(1));
            let brute = simple_paths(&n, SiteId(0), SiteId(1)).iter().map(|p| length(&n, p)).min();
            prop_assert_eq!(found.as_ref().map(|p| length(&n, p)), brute);
            let mut graph = petgraph::graph::DiGraph::<(), u64>::new();
            let nodes: Vec<_> = (0..n.adjacency.sites()).map(|_| graph.add_node(())).collect();
            for l in n.adjacency.link_ids().filter(|l| n.capacities[l.index()] > 0) {
                let (from, to) = (n.adjacency.from(l).index(), n.adjacency.to(l).index());
                graph.add_edge(nodes[from], nodes[to], n.lengths[l.index()]);
            }
            let oracle = petgraph::algo::dijkstra(&graph, nodes[0], Some(nodes[1]), |e| *e.weight());
            prop_assert_eq!(brute, oracle.get(&nodes[1]).copied());
        }

        #[test]
        fn two_disjoint_paths_are_the_shortest_of_all_pairs(n in networks(6, 12, 1)) {
            let found = disjoint_paths(&n.adjacency, &n.capacities, &n.lengths, SiteId(0), SiteId(1), 2);
            let all = simple_paths(&n, SiteId(0), SiteId(1));
            let pairs = all.iter().enumerate().flat_map(|(i, a)| all[i + 1..].iter().map(move |b| (a, b)));
            let brute = pairs
                .filter(|(a, b)| a.iter().all(|l| !b.contains(l)))
                .map(|(a, b)| length(&n, a) + length(&n, b))
                .min();
            prop_assert_eq!(found.as_ref().map(|p| p.iter().map(|p| length(&n, p)).sum::<u64>()), brute);
            if let Some(paths) = found {
                prop_assert!(paths[0].iter().all(|l| !paths[1].contains(l)));
            }
        }
    }
}
