//! Routes for equal-cost multipath: for every site and destination, all links on a shortest path.
//!
//! Source: RFC 2992, section 1: a router stores a set of next hops per destination and chooses one
//! of them per flow. The search is Dijkstra's (1959), backwards from each destination.
//!
//! Leaves out: the choice within a set (a hash of the flow, or a draw per packet); weights; link
//! failures (compute the routes again). Read [`Routes`] and [`Routes::shortest`] first.

use crate::{Adjacency, Topology};
use anabranch_units::{LinkId, SiteId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// For each site, the links that lie on a shortest path to each destination.
///
/// A site has few different sets of links, called its *groups*, and stores one group number per
/// destination. Invariant: group 0 of every site is empty, and no two groups of a site are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    dsts: Vec<SiteId>,
    /// Index in `dsts` of each site; `None` if the site is no destination.
    column: Vec<Option<u16>>,
    groups: Vec<Vec<Vec<LinkId>>>,
    /// Group of each destination, in one row per site.
    group_of: Vec<u16>,
}

/// Distance to a destination. The upper bits have the length, the lower bits the number of
/// zero-length links on the path. A path has at most `SITES_MAX` links of 64 bits, so the sum
/// cannot overflow.
type Distance = u128;

const ZEROES_BITS: u32 = 16;
const _: () = assert!(crate::SITES_MAX <= 1 << ZEROES_BITS);

fn distance(length: u64) -> Distance {
    (Distance::from(length) << ZEROES_BITS) + Distance::from(length == 0)
}

impl Routes {
    /// Computes the shortest routes by `lengths`, one length per link by id: 1 each for hops, or
    /// delays in picoseconds.
    ///
    /// In a topology with switches, hosts do not forward: between its ends, a path passes only
    /// through switches. In a topology without switches all sites forward. A link of length zero
    /// counts as shorter than any other link, but longer than no link. Among paths of equal length
    /// only those with the fewest zero-length links count, so no route contains a loop.
    ///
    /// Panics: if there is not one length per link; if a destination is not in this topology or is
    /// listed twice.
    /// Cost: O(destinations * links * log(sites)).
    ///
    /// ```
    /// use anabranch_graph::{LinkProperties, Routes, datacentre::leaf_spine};
    /// use anabranch_units::{BitRate, Duration, SiteId};
    /// let link = LinkProperties::new(BitRate::gbps(10), Duration::from_us(1));
    /// let network = leaf_spine(2, 3, 4, &link, &link)?;
    /// let hosts: Vec<_> = network.site_ids().filter(|s| !network.site(*s).is_switch).collect();
    /// let routes = Routes::shortest(&network, &vec![1; network.links().len()], &hosts);
    /// let tor = network.find_site("tor-0").expect("there are two");
    /// assert_eq!(routes.next(tor, SiteId(0)).len(), 1, "down to its host");
    /// assert_eq!(routes.next(tor, SiteId(4)).len(), 3, "up to any spine");
    /// # Ok::<_, anabranch_graph::datacentre::DatacentreError>(())
    /// ```
    pub fn shortest(topology: &Topology, lengths: &[u64], dsts: &[SiteId]) -> Self {
        assert_eq!(lengths.len(), topology.links().len(), "one length per link");
        let sites = topology.sites().len();
        let mut column = vec![None; sites];
        for (i, dst) in dsts.iter().enumerate() {
            let before = column[dst.index()].replace(i as u16);
            assert_eq!(before, None, "destination {dst} stands there twice");
        }
        let adjacency = Adjacency::new(topology);
        let lengths: Vec<_> = lengths.iter().map(|l| distance(*l)).collect();
        let any_switch = topology.sites().iter().any(|s| s.is_switch);
        let forwards: Vec<_> = topology.sites().iter().map(|s| s.is_switch || !any_switch).collect();

        let mut interner = vec![BTreeMap::from([(Vec::new(), 0)]); sites];
        let mut group_of = vec![0; sites * dsts.len()];
        let mut links = Vec::new();
        for (i, &dst) in dsts.iter().enumerate() {
            let best = distances_to(&adjacency, &lengths, &forwards, dst);
            for site in topology.site_ids().filter(|s| *s != dst) {
                let Some(here) = best[site.index()] else { continue };
                links.clear();
                links.extend(adjacency.links_out(site).iter().filter(|l| {
                    let to = adjacency.to(**l);
                    let there = best[to.index()].filter(|_| forwards[to.index()] || to == dst);
                    there.is_some_and(|there| there + lengths[l.index()] == here)
                }));
                let groups = &mut interner[site.index()];
                let group = groups.get(&links).copied().unwrap_or_else(|| {
                    let group = groups.len() as u16;
                    groups.insert(links.clone(), group);
                    group
                });
                group_of[site.index() * dsts.len() + i] = group;
            }
        }
        Self { dsts: dsts.to_vec(), column, groups: interner.into_iter().map(by_number).collect(), group_of }
    }

    /// The destinations, in the order in which they were given.
    pub fn dsts(&self) -> &[SiteId] {
        &self.dsts
    }
    /// Links on shortest paths from `site` to `dst`, ascending by id; empty if there is no path or
    /// the two sites are equal.
    ///
    /// Panics: if `site` is not in the topology or `dst` is not one of the destinations.
    pub fn next(&self, site: SiteId, dst: SiteId) -> &[LinkId] {
        let column = self.column[dst.index()].expect("routes are asked for to their destinations only");
        let group = self.group_of(site)[usize::from(column)];
        &self.groups(site)[usize::from(group)]
    }
    /// The different sets of links from which `site` chooses, each ascending by id; the first is
    /// empty.
    ///
    /// Panics: if `site` is not in the topology.
    pub fn groups(&self, site: SiteId) -> &[Vec<LinkId>] {
        &self.groups[site.index()]
    }
    /// The group of each destination in [`Routes::dsts`]: an index into [`groups`](Routes::groups)
    /// of `site`.
    ///
    /// Panics: if `site` is not in the topology.
    pub fn group_of(&self, site: SiteId) -> &[u16] {
        assert!(site.index() < self.groups.len(), "site {site} is not of this topology");
        &self.group_of[site.index() * self.dsts.len()..][..self.dsts.len()]
    }
}

/// The keys of a map in the order of their numbers.
fn by_number(numbers: BTreeMap<Vec<LinkId>, u16>) -> Vec<Vec<LinkId>> {
    let mut keys = vec![Vec::new(); numbers.len()];
    numbers.into_iter().for_each(|(key, number)| keys[usize::from(number)] = key);
    keys
}

/// Distance of each site to `dst` over sites that forward; `None` if there is no path.
fn distances_to(
    adjacency: &Adjacency,
    lengths: &[Distance],
    forwards: &[bool],
    dst: SiteId,
) -> Vec<Option<Distance>> {
    let mut best = vec![None; adjacency.sites()];
    let mut queue = BinaryHeap::from([Reverse((0, dst))]);
    best[dst.index()] = Some(0);
    while let Some(Reverse((here, site))) = queue.pop() {
        if best[site.index()] != Some(here) {
            continue;
        }
        for link in adjacency.links_in(site) {
            let (from, there) = (adjacency.from(*link), here + lengths[link.index()]);
            if best[from.index()].is_none_or(|b| there < b) {
                best[from.index()] = Some(there);
                // A site that does not forward can only be the first site of a path.
                if forwards[from.index()] {
                    queue.push(Reverse((there, from)));
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests;
