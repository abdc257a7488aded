//! Tests of rounds: the controller accepts every plan, and running trees stay if moves save little.

use super::*;
use crate::{Link, Node, Tier};
use proptest::prelude::*;

/// Two sources, `reflectors` reflectors and three edges, fully connected.
fn network(reflectors: u32, capacity: BitRate, costs: &[u32]) -> Network {
    let node = |tier| move |number: u32| Node { name: format!("{tier:?}{number}"), tier };
    let nodes: Vec<Node> = (0..2)
        .map(node(Tier::Source))
        .chain((0..reflectors).map(node(Tier::Reflector)))
        .chain((0..3).map(node(Tier::Edge)))
        .collect();
    let reflector = |number| NodeId(2 + number);
    let pairs = (0..reflectors).flat_map(|r| {
        let up = (0..2).map(move |source| (NodeId(source), reflector(r)));
        up.chain((0..3).map(move |edge| (reflector(r), NodeId(2 + reflectors + edge))))
    });
    let cost = |at: usize| f64::from(costs[at % costs.len()]);
    let links = pairs.enumerate().map(|(at, (from, to))| Link { from, to, capacity, cost: cost(at) });
    Network::new(nodes, links.collect()).expect("tiers in order")
}

fn object(channel: u32, mbps: u64) -> Object {
    Object { channel: ChannelId(channel), bitrate: BitRate::mbps(mbps) }
}

fn groups(network: &Network) -> Vec<Vec<GroupEdge>> {
    let edges: Vec<_> = network.tier(Tier::Edge).map(|edge| (edge, 0.0)).collect();
    vec![edges.clone(), edges[1..].to_vec()]
}

fn job(network: &Network, imports: &[(u32, u64)], demand: &[(u32, usize, u64)]) -> PlanJob {
    let objects: Vec<Object> = imports.iter().map(|(channel, mbps)| object(*channel, *mbps)).collect();
    let sources = network.tier(Tier::Source).collect::<BTreeSet<_>>();
    let asked =
        |(group, at, viewers): &(u32, usize, u64)| ((GroupId(*group), objects[at % objects.len()]), *viewers);
    PlanJob {
        number: 1,
        capacities: network.links().iter().map(|link| link.capacity).collect(),
        imports: objects.iter().map(|object| (*object, sources.clone())).collect(),
        demand: demand.iter().map(asked).collect(),
        excluded: BTreeSet::new(),
        running: Plan::default(),
    }
}

fn accepted(network: &Network, groups: &[Vec<GroupEdge>], job: &PlanJob, plan: &Plan) {
    let edges: Vec<Vec<NodeId>> =
        groups.iter().map(|edges| edges.iter().map(|(edge, _)| *edge).collect()).collect();
    plan.check(network, job, &edges).expect("the controller takes the plan");
}

proptest! {
    #[test]
    fn controller_accepts_every_plan(
        costs in proptest::collection::vec(1..50_u32, 1..9),
        capacity in 1..40_u64,
        imports in proptest::collection::btree_map(0..6_u32, 1..12_u64, 1..6),
        demand in proptest::collection::vec((0..3_u32, 0..9_usize, 0..50_u64), 1..20),
        broken in proptest::collection::vec(0..15_usize, 0..4),
        drained in proptest::option::of(2..7_u32),
        move_price in 0..200_u32,
    ) {
        let network = network(3, BitRate::mbps(capacity), &costs);
        let groups = groups(&network);
        let imports: Vec<_> = imports.into_iter().collect();
        let mut job = job(&network, &imports, &demand);
        let settings = RoundSettings { move_price: f64::from(move_price), ..RoundSettings::default() };
        let mut round = Round::new(settings);
        let (plan, report) = round.solve(&network, &groups, &job).expect("within all limits");
        accepted(&network, &groups, &job, &plan);
        prop_assert!(report.requests.1 <= report.requests.0);
        // In the next round links have failed, a node is drained, and the last plan is running.
        job.running = plan;
        for link in broken {
            job.capacities[link] = BitRate::bps(0);
        }
        if let Some(node) = drained.map(NodeId) {
            job.excluded.insert(node);
            for (link, capacity) in network.links().iter().zip(&mut job.capacities) {
                if link.from == node || link.to == node {
                    *capacity = BitRate::bps(0);
                }
            }
        }
        let (plan, _) = round.solve(&network, &groups, &job).expect("within all limits");
        accepted(&network, &groups, &job, &plan);
    }
}

/// Solves a round with a stream running over a reflector whose links cost one more than the
/// other's.
fn running_over_the_dearer(move_price: f64) -> (NodeId, usize) {
    let network = network(2, BitRate::mbps(100), &[2, 2, 2, 2, 2, 1, 1, 1, 1, 1]);
    let groups = groups(&network);
    let mut job = job(&network, &[(0, 1)], &[(1, 0, 5)]);
    let (dear, edge) = (NodeId(2), NodeId(5));
    let video = object(0, 1);
    job.running.parents = [((dear, video), NodeId(0)), ((edge, video), dear)].into();
    job.running.edges = [((GroupId(1), video), edge)].into();
    let mut round = Round::new(RoundSettings { move_price, ..RoundSettings::default() });
    let (plan, report) = round.solve(&network, &groups, &job).expect("within all limits");
    accepted(&network, &groups, &job, &plan);
    let edge = plan.edges[&(GroupId(1), video)];
    (plan.parents[&(edge, video)], report.kept_trees)
}

#[test]
fn running_tree_is_kept_if_the_saving_is_small() {
    assert_eq!(running_over_the_dearer(0.0), (NodeId(3), 0));
    assert_eq!(running_over_the_dearer(10.0), (NodeId(2), 1));
}

#[test]
fn demand_for_a_missing_object_is_ignored() {
    let network = network(1, BitRate::mbps(100), &[1]);
    let groups = groups(&network);
    let mut job = job(&network, &[(0, 1)], &[(0, 0, 1)]);
    job.demand.insert((GroupId(0), object(7, 1)), 3);
    job.demand.insert((GroupId(9), object(0, 1)), 3);
    let (plan, report) = Round::new(RoundSettings::default()).solve(&network, &groups, &job).expect("small");
    assert_eq!(report.requests, (1, 1));
    assert_eq!(plan.edges.len(), 1);
}
