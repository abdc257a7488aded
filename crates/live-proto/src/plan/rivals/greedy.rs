//! Greedy: a central controller decides on each request when it arrives, and keeps all earlier
//! decisions.
//!
//! Source: a baseline of ours. A request gets the cheapest path with room from a source over a
//! reflector and an edge to its group. Links that already carry the object cost nothing. Without a
//! path the viewer asks for the next lower bitrate at once. Leaves out: slack and priorities. Read
//! [`greedy`].

use super::arrival_states::{ArrivalStates, Metrics, Window, lower_bitrate};
use super::ledger::Ledger;
use crate::network::{NodeId, Object, Tier};
use crate::plan::problem::{GroupId, GroupLinkId};
use anabranch_units::LinkId;

/// A path to a group, from a source or from a node that receives the object.
struct Path {
    /// Links that do not carry the object yet, the nearest to the source first.
    links: Vec<LinkId>,
    /// Link to the group.
    last: GroupLinkId,
    /// Cost of `links` and `last` per Mbit/s.
    cost: f64,
}

/// Metrics of the greedy controller for one window.
pub fn greedy(window: &Window<'_>) -> Metrics {
    let (mut asks, mut ledger) = (ArrivalStates::new(window.trace), Ledger::new(window));
    serve_in_order(window, &mut asks, &mut ledger);
    asks.metrics(ledger.cost)
}

/// Serves all requests in order of arrival. Returns the object and path of each group's new stream.
fn serve_in_order(
    window: &Window<'_>,
    asks: &mut ArrivalStates,
    ledger: &mut Ledger<'_>,
) -> Vec<(Object, Path)> {
    let mut paths = Vec::new();
    for ask in &mut asks.all {
        while let Some(object) = ask.object() {
            let group = ask.arrival.group;
            if ledger.serves(object, group) {
                break;
            }
            if let Some(path) = cheapest_path(window, ledger, object, group) {
                path.links.iter().for_each(|&link| ledger.carry(object, link));
                ledger.serve(object, path.last);
                paths.push((object, path));
                break;
            }
            ask.now = lower_bitrate(window.trace, ask);
        }
    }
    paths
}

/// The cheapest path with room to a group. The first path among paths of equal cost.
fn cheapest_path(window: &Window<'_>, ledger: &Ledger<'_>, object: Object, group: GroupId) -> Option<Path> {
    let lasts = ledger.to_group[group.index()].iter().copied();
    let paths = lasts.filter(|&last| ledger.has_group_room(object, last)).filter_map(|last| {
        let ends = window.topology.group_links[last.index()];
        let (cost, links) = links_to(window, ledger, object, ends.edge)?;
        Some(Path { links, last, cost: cost + ends.cost })
    });
    paths.min_by(|a, b| a.cost.total_cmp(&b.cost))
}

/// The cheapest new links with room that bring an object to a node, and their cost per Mbit/s.
fn links_to(
    window: &Window<'_>,
    ledger: &Ledger<'_>,
    object: Object,
    node: NodeId,
) -> Option<(f64, Vec<LinkId>)> {
    let network = &window.topology.network;
    if network.node(node).tier == Tier::Source || ledger.receives(object, node) {
        return Some((0.0, Vec::new()));
    }
    let links = network.links_in(node).iter().copied();
    let paths = links.filter(|&link| ledger.has_room(object, link)).filter_map(|link| {
        let ends = network.link(link);
        let (cost, mut links) = links_to(window, ledger, object, ends.from)?;
        links.push(link);
        Some((cost + ends.cost, links))
    });
    paths.min_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ChannelId;
    use crate::plan::generator::{Arrival, Topology, TopologyShape, Trace, demand};
    use crate::plan::optimiser::Optimiser;
    use crate::plan::rivals::planned_by;
    use crate::plan::samples::{group_link, link, network};
    use crate::plan::{Group, Settings};
    use anabranch_units::{BitRate, Duration, Seed};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn window<'a>(topology: &'a Topology, trace: &'a Trace) -> Window<'a> {
        let (offers, requests) = demand(&trace.arrivals);
        let settings = Settings::default().normalised(&offers, &requests, 0.1);
        Window { topology, trace, length: Duration::from_secs(60), settings }
    }

    fn planned(window: &Window<'_>) -> Metrics {
        planned_by(window, |program, former| {
            Optimiser::default().optimise(program, former).expect("the prices are of this network")
        })
    }

    /// One source, reflector and edge, with two groups.
    fn one_path(kbps: u64) -> Topology {
        Topology {
            network: network([1, 1, 1], vec![link(0, 1, 100_000, 10.0), link(1, 2, 100_000, 20.0)]),
            groups: (0..2).map(|city| Group { city, asn: 0 }).collect(),
            group_links: vec![group_link(2, 0, kbps, 1.0), group_link(2, 1, kbps, 2.0)],
            shares: vec![0.5, 0.5],
        }
    }

    /// One viewer for each channel, rate in kbit/s and group.
    fn arrivals(asked: &[(u32, u64, u32)]) -> Vec<Arrival> {
        let arrival = |&(channel, kbps, group): &(u32, u64, u32)| {
            let object = Object { channel: ChannelId(channel), bitrate: BitRate::bps(1_000 * kbps) };
            Arrival { object, group: GroupId(group), viewers: 1 }
        };
        asked.iter().map(arrival).collect()
    }

    fn ladder(kbps: &[u64]) -> Vec<BitRate> {
        kbps.iter().map(|kbps| BitRate::bps(1_000 * kbps)).collect()
    }

    /// A small network, and requests for more than it can carry.
    fn overloaded(seed: u64) -> (Topology, Trace) {
        let mut draws = Seed::new(seed).stream("greedy", 0);
        let mut count = |most| 1 + draws.below(most) as u32;
        let (sources, reflectors, edges, groups) = (count(3), count(4), count(6), count(8));
        let mut rate = || BitRate::mbps(1 + draws.below(40));
        let shape = TopologyShape {
            sources,
            reflectors,
            edges,
            cities: groups,
            groups,
            parents: [sources.min(2), reflectors.min(2), edges.min(3)],
            capacities: [rate(), rate(), rate()],
        };
        let topology = shape.draw(Seed::new(seed)).expect("a small shape");
        let kbps = [400, 1_000, 4_500, 30_000];
        let ask = |_: u32| {
            let (channel, rung) = (draws.below(8) as u32, draws.below(4) as usize);
            (channel, kbps[rung], draws.below(u64::from(groups)) as u32)
        };
        let asked: Vec<_> = (0..60).map(ask).collect();
        (topology, Trace { arrivals: arrivals(&asked), ladders: vec![ladder(&kbps); 8] })
    }

    proptest! {
        #[test]
        fn paths_are_trees_within_the_capacity_of_links(seed: u64) {
            let (topology, trace) = overloaded(seed);
            let window = window(&topology, &trace);
            let (mut asks, mut ledger) = (ArrivalStates::new(&trace), Ledger::new(&window));
            let network = &topology.network;
            let (mut on_link, mut on_group_link) = (BTreeMap::new(), BTreeMap::new());
            let mut receivers = BTreeSet::new();
            for (object, path) in serve_in_order(&window, &mut asks, &mut ledger) {
                for link in path.links {
                    let ends = network.link(link);
                    let is_source = network.node(ends.from).tier == Tier::Source;
                    prop_assert!(is_source || receivers.contains(&(object, ends.from)));
                    prop_assert!(receivers.insert((object, ends.to)));
                    *on_link.entry(link).or_insert(0) += object.bitrate.as_bps();
                }
                let edge = topology.group_links[path.last.index()].edge;
                prop_assert!(receivers.contains(&(object, edge)));
                *on_group_link.entry(path.last).or_insert(0) += object.bitrate.as_bps();
            }
            for (link, used_bps) in on_link {
                prop_assert!(used_bps <= network.link(link).capacity.as_bps());
            }
            for (link, used_bps) in on_group_link {
                prop_assert!(used_bps <= topology.group_links[link.index()].capacity.as_bps());
            }
        }
    }

    #[test]
    fn one_path_with_spare_capacity_yields_the_optimum() {
        let asked = [(0, 2_000, 0), (0, 2_000, 1), (1, 1_000, 0), (0, 2_000, 0)];
        let ladders = vec![ladder(&[1_000, 2_000]), ladder(&[1_000])];
        let trace = Trace { arrivals: arrivals(&asked), ladders };
        let topology = one_path(100_000);
        let window = window(&topology, &trace);
        let metrics = greedy(&window);
        assert_eq!(metrics, planned(&window));
        // Channel 0 costs 2 * (10 + 20 + 1 + 2), and channel 1 costs 10 + 20 + 1.
        assert_eq!(metrics.cost_per_satisfied, Some((66.0 + 31.0) / 4.0));
    }

    #[test]
    fn viewer_without_room_gets_a_lower_bitrate() {
        let asked = [(0, 4_000, 0), (1, 4_000, 0), (2, 4_000, 0)];
        let trace = Trace { arrivals: arrivals(&asked), ladders: vec![ladder(&[1_000, 4_000]); 3] };
        let topology = one_path(5_000);
        let metrics = greedy(&window(&topology, &trace));
        assert_eq!(metrics.satisfied_share, 1.0 / 3.0);
        assert_eq!((metrics.served_share, metrics.mean_kbps), (2.0 / 3.0, 5_000.0 / 3.0));
    }

    #[test]
    fn early_large_stream_displaces_two_later_viewers() {
        let asked = [(0, 3_000, 0), (1, 1_500, 0), (2, 1_500, 0)];
        let ladders = vec![ladder(&[3_000]), ladder(&[1_500]), ladder(&[1_500])];
        let trace = Trace { arrivals: arrivals(&asked), ladders };
        let topology = one_path(3_000);
        let window = window(&topology, &trace);
        assert_eq!(greedy(&window).served_share, 1.0 / 3.0);
        assert_eq!(planned(&window).served_share, 2.0 / 3.0);
    }
}
