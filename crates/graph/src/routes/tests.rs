//! Routes compared with all simple paths of small networks, and with the known numbers of paths in
//! a fat tree.

use super::*;
use crate::LinkProperties;
use crate::datacentre::{fat_tree, star};
use anabranch_units::{BitRate, Duration};
use proptest::prelude::*;

fn properties() -> LinkProperties {
    LinkProperties::new(BitRate::gbps(1), Duration::from_us(1))
}

/// A network and the lengths of its links.
fn networks() -> impl Strategy<Value = (Topology, Vec<u64>)> {
    // Few different lengths, so that paths often have equal length. Half of the networks have no
    // switch.
    let lengths = prop_oneof![Just(0), Just(1), Just(2), Just(u64::MAX)];
    let sites = prop_oneof![Just(vec![false; 6]), proptest::collection::vec(any::<bool>(), 2..=6)];
    (sites, proptest::collection::vec((any::<(u16, u16)>(), lengths), 0..=16)).prop_map(|(sites, links)| {
        let mut topology = Topology::new("random");
        for (i, is_switch) in sites.iter().enumerate() {
            let name = i.to_string();
            let added = if *is_switch { topology.add_switch(name) } else { topology.add_site(name, None) };
            added.expect("numbers differ");
        }
        let n = sites.len() as u16;
        let mut lengths = Vec::new();
        for ((from, to), length) in links {
            if from % n != to % n {
                topology.add_link(SiteId(from % n), SiteId(to % n), properties()).expect("a good link");
                lengths.push(length);
            }
        }
        (topology, lengths)
    })
}

/// Length and number of zero-length links of a path.
fn measure(lengths: &[u64], path: &[LinkId]) -> (u128, usize) {
    let of = |l: &LinkId| lengths[l.index()];
    (path.iter().map(|l| u128::from(of(l))).sum(), path.iter().filter(|l| of(l) == 0).count())
}

/// All shortest paths between two sites, found among all simple paths.
fn brute_force(t: &Topology, lengths: &[u64], src: SiteId, dst: SiteId) -> Vec<Vec<LinkId>> {
    let any_switch = t.sites().iter().any(|s| s.is_switch);
    let (mut all, mut open) = (Vec::new(), vec![Vec::new()]);
    while let Some(path) = open.pop() {
        let at = path.last().map_or(src, |l: &LinkId| t.link(*l).to);
        if at == dst {
            all.push(path);
            continue;
        }
        if at != src && any_switch && !t.site(at).is_switch {
            continue;
        }
        for link in t.links_out(at) {
            let to = t.link(link).to;
            if to != src && path.iter().all(|l| t.link(*l).to != to) {
                open.push([path.as_slice(), &[link]].concat());
            }
        }
    }
    let least = all.iter().map(|p| measure(lengths, p)).min();
    all.retain(|p| Some(measure(lengths, p)) == least);
    all
}

proptest! {
    #[test]
    fn next_links_lie_on_the_shortest_paths((t, lengths) in networks()) {
        let mut dsts: Vec<_> = t.site_ids().collect();
        dsts.reverse();
        let routes = Routes::shortest(&t, &lengths, &dsts);
        prop_assert_eq!(routes.dsts(), dsts.as_slice());
        for dst in t.site_ids() {
            let paths: Vec<_> = t.site_ids().map(|src| brute_force(&t, &lengths, src, dst)).collect();
            let left = |site: SiteId| paths[site.index()].first().map(|p| measure(&lengths, p));
            for site in t.site_ids() {
                let mut first: Vec<_> = paths[site.index()].iter().filter_map(|p| p.first().copied()).collect();
                first.sort();
                first.dedup();
                prop_assert_eq!(routes.next(site, dst), first.as_slice(), "{} to {}", site, dst);
                for link in first {
                    prop_assert!(left(t.link(link).to) < left(site), "each link leads strictly nearer");
                    prop_assert!(left(t.link(link).to).is_some());
                }
            }
            // Every link of a shortest path is chosen at its first site, and every chosen link is
            // on a shortest path.
            for src in t.site_ids() {
                let mut on_paths: Vec<_> = paths[src.index()].concat();
                on_paths.sort();
                on_paths.dedup();
                prop_assert_eq!(on_paths, reached(&t, &routes, src, dst), "{} to {}", src, dst);
            }
        }
    }

    #[test]
    fn groups_of_a_site_differ_and_start_empty((t, lengths) in networks()) {
        let dsts: Vec<_> = t.site_ids().collect();
        let routes = Routes::shortest(&t, &lengths, &dsts);
        for site in t.site_ids() {
            let groups = routes.groups(site);
            prop_assert!(groups[0].is_empty());
            let different: std::collections::BTreeSet<_> = groups.iter().collect();
            prop_assert_eq!(different.len(), groups.len());
            for (dst, group) in dsts.iter().zip(routes.group_of(site)) {
                prop_assert_eq!(routes.next(site, *dst), groups[usize::from(*group)].as_slice());
            }
        }
    }
}

/// All links that a packet from `src` to `dst` may take.
fn reached(t: &Topology, routes: &Routes, src: SiteId, dst: SiteId) -> Vec<LinkId> {
    let (mut links, mut open) = (std::collections::BTreeSet::new(), vec![src]);
    while let Some(site) = open.pop() {
        for link in routes.next(site, dst) {
            if links.insert(*link) {
                open.push(t.link(*link).to);
            }
        }
    }
    links.into_iter().collect()
}

/// Number of paths from `src` to `dst` along the routes, and number of links of each path, which is
/// equal for all.
fn count(t: &Topology, routes: &Routes, src: SiteId, dst: SiteId) -> (usize, usize) {
    let (mut paths, mut hops, mut at) = (0, 0, vec![src]);
    while !at.is_empty() {
        paths = at.len();
        let next = at.iter().flat_map(|s| routes.next(*s, dst)).map(|l| t.link(*l).to).collect::<Vec<_>>();
        hops += usize::from(!next.is_empty());
        at = next;
    }
    (paths, hops)
}

#[test]
fn fat_tree_has_the_known_numbers_of_shortest_paths() {
    for k in [2, 4, 6, 8] {
        let t = fat_tree(k, &properties()).expect("it fits");
        let half = k / 2;
        let hosts: Vec<_> = t.site_ids().take(k * half * half).collect();
        let routes = Routes::shortest(&t, &vec![1; t.links().len()], &hosts);
        for &src in &hosts {
            for &dst in hosts.iter().filter(|d| **d != src) {
                let same = |hosts_each: usize| src.index() / hosts_each == dst.index() / hosts_each;
                let known = match (same(half), same(half * half)) {
                    (true, _) => (1, 2),
                    (false, true) => (half, 4),
                    (false, false) => (half * half, 6),
                };
                assert_eq!(count(&t, &routes, src, dst), known, "k {k}, {src} to {dst}");
            }
        }
        for site in t.site_ids().filter(|s| t.site(*s).is_switch) {
            assert!(routes.groups(site).len() <= k + 2, "one per port down, one up, and the empty one");
        }
    }
}

#[test]
fn hosts_forward_only_in_topologies_without_switches() {
    let mut line = Topology::new("line");
    let [a, b, c] = ["a", "b", "c"].map(|name| line.add_site(name, None).expect("names differ"));
    let (ab, _) = line.add_cable(a, b, properties()).expect("a good cable");
    line.add_cable(b, c, properties()).expect("a good cable");
    assert_eq!(Routes::shortest(&line, &[1; 4], &[c]).next(a, c), [ab]);
    line.add_switch("aside").expect("a new name");
    let routes = Routes::shortest(&line, &[1; 4], &[c]);
    assert_eq!(routes.next(a, c), []);
    assert_eq!(routes.next(b, c).len(), 1, "its own packets leave all the same");
}

#[test]
fn switch_can_be_a_destination() {
    let t = star(2, &properties()).expect("it fits");
    let hub = t.find_site("hub").expect("a star has one");
    let routes = Routes::shortest(&t, &[1; 4], &[hub]);
    assert_eq!(routes.next(SiteId(1), hub), [LinkId(2)]);
    assert_eq!(routes.next(hub, hub), []);
}

#[test]
fn zero_length_links_form_no_routing_loop() {
    let mut t = Topology::new("triangle");
    let [a, b, c] = ["a", "b", "c"].map(|name| t.add_site(name, None).expect("names differ"));
    let mut lengths = Vec::new();
    for (from, to, length) in [(a, b, 0), (a, c, 5), (b, c, 5)] {
        t.add_cable(from, to, properties()).expect("a good cable");
        lengths.extend([length; 2]);
    }
    let routes = Routes::shortest(&t, &lengths, &[c]);
    assert_eq!(routes.next(a, c), [LinkId(2)], "not by way of b, and back, and again");
    assert_eq!(routes.next(b, c), [LinkId(4)]);
}

#[test]
fn parallel_links_are_all_chosen() {
    let mut t = Topology::new("twice");
    let [a, b] = ["a", "b"].map(|name| t.add_site(name, None).expect("names differ"));
    let links = [1, 2, 1].map(|length| (t.add_link(a, b, properties()).expect("a good link"), length));
    let routes = Routes::shortest(&t, &links.map(|(_, length)| length), &[b]);
    assert_eq!(routes.next(a, b), [links[0].0, links[2].0]);
}
