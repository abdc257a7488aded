//! Tests of the controller with nodes that apply every update immediately.

use super::*;
use crate::control::differences::DeltaSender;
use crate::{ChannelId, Link};
use proptest::prelude::*;

const S: NodeId = NodeId(0);
const R1: NodeId = NodeId(1);
const R2: NodeId = NodeId(2);
const E1: NodeId = NodeId(3);
const E2: NodeId = NodeId(4);
const GROUP: GroupId = GroupId(0);
const SECOND: Duration = Duration::from_secs(1);

fn object(channel: u32) -> Object {
    Object { channel: ChannelId(channel), bitrate: BitRate::mbps(2) }
}

/// A controller, and nodes that install each update and move their streams immediately: a source,
/// two reflectors and two edges, fully connected by links of `mbps`.
struct Net {
    now: Instant,
    controller: Controller,
    versions: Vec<Version>,
    tables: Vec<BTreeMap<Object, NodeId>>,
    streams: Vec<DeltaSender<Object, Option<NodeId>>>,
    viewers: Vec<DeltaSender<(GroupId, Object), u64>>,
    silent: BTreeSet<NodeId>,
    /// Running streams of nodes whose streams differ from their tables. These nodes run no others.
    local: BTreeMap<NodeId, BTreeMap<Object, NodeId>>,
    /// Highest planned load of each link, over the old and new tables of one update together.
    loads_bps_max: Vec<u64>,
    issued: usize,
    /// Capacity that nodes report; `None` for the declared capacity.
    reported: Option<BitRate>,
    /// Number of viewers of object 0 at E1.
    watching: u64,
}

impl Net {
    fn new(mbps: u64, settings: ControllerSettings) -> Self {
        let tiers = [Tier::Source, Tier::Reflector, Tier::Reflector, Tier::Edge, Tier::Edge];
        let node = |(tier, at): (Tier, usize)| crate::Node { name: format!("n{at}"), tier };
        let capacity = BitRate::mbps(mbps);
        let link = |(from, to)| Link { from: NodeId(from), to: NodeId(to), capacity, cost: 1.0 };
        let links = [(0, 1), (0, 2), (1, 3), (2, 3), (1, 4), (2, 4)].map(link);
        let nodes = tiers.into_iter().zip(0..).map(node).collect();
        let network = Network::new(nodes, links.into()).expect("tiers are in order");
        let groups = vec![vec![E1, E2]];
        let controller = Controller::new(Instant::ZERO, network, groups, 1, settings).expect("edges");
        let mut net = Self {
            now: Instant::ZERO,
            controller,
            versions: vec![Version::default(); 5],
            tables: vec![BTreeMap::new(); 5],
            streams: vec![DeltaSender::new(1); 5],
            viewers: vec![DeltaSender::new(1); 5],
            silent: BTreeSet::new(),
            local: BTreeMap::new(),
            loads_bps_max: vec![0; 6],
            issued: 0,
            reported: None,
            watching: 3,
        };
        net.run(SECOND * 2);
        net
    }

    fn capacity(&self) -> BitRate {
        self.controller.network.links()[0].capacity
    }

    fn report(&mut self, node: NodeId) {
        let links = self.controller.network.links().iter().zip(0..);
        let own = links.filter(|(link, _)| link.from == node || link.to == node);
        let state = |link: &Link| LinkState::Up(self.reported.unwrap_or(link.capacity));
        let links = own.map(|(link, number)| (LinkId(number), state(link))).collect();
        let imports = (0..6).map(|channel| (object(channel), None));
        let streams = match node {
            S => imports.collect(),
            _ => {
                let running = self.local.get(&node).unwrap_or(&self.tables[node.index()]);
                running.iter().map(|(object, parent)| (*object, Some(*parent))).collect()
            }
        };
        let viewers = if node == E1 { [((GROUP, object(0)), self.watching)].into() } else { BTreeMap::new() };
        let report = Report {
            life: 1,
            version: self.versions[node.index()],
            is_draining: false,
            links,
            streams: self.streams[node.index()].advance(streams, |old, new| old != new),
            viewers: self.viewers[node.index()].advance(viewers, |old, new| old != new),
        };
        self.controller.handle_report(self.now, node, report);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += SECOND;
            self.controller.handle_timeout(self.now);
            for at in 0..5 {
                if !self.silent.contains(&NodeId(at)) {
                    self.report(NodeId(at));
                }
                self.pump();
            }
        }
    }

    fn pump(&mut self) {
        while let Some((node, message)) = self.controller.poll_transmit() {
            let Some(update) = message.update.filter(|_| !self.silent.contains(&node)) else { continue };
            // An update whose base is not installed is ignored, as by a real node. A later report
            // gets the right difference.
            let installed = self.versions[node.index()];
            if update.version <= installed || update.base.is_some_and(|base| base != installed) {
                continue;
            }
            // Streams of the old table run until the streams of the new table deliver.
            let old = self.tables[node.index()].clone();
            let table = &mut self.tables[node.index()];
            if update.base.is_none() {
                table.clear();
            }
            for prefix in update.removed {
                if let crate::control::tables::Prefix::Object(object) = prefix {
                    table.remove(&object);
                }
            }
            for entry in update.set {
                if let crate::control::tables::Prefix::Object(object) = entry.prefix {
                    table.insert(object, entry.next_hop);
                }
            }
            self.versions[node.index()] = update.version;
            for (link, load) in self.controller.network.links().iter().zip(&mut self.loads_bps_max) {
                let has = |table: &BTreeMap<Object, NodeId>, object: &Object| {
                    link.to == node && table.get(object) == Some(&link.from)
                };
                let new = &self.tables[node.index()];
                let streams = (0..6).map(object).filter(|object| has(&old, object) || has(new, object));
                *load = (*load).max(streams.map(|object| object.bitrate.as_bps()).sum());
            }
        }
        while let Some(event) = self.controller.poll_event() {
            self.issued += usize::from(matches!(event, ControllerEvent::Issued(_)));
        }
    }

    /// Hands in a plan: the reflector of each object, for both edges.
    fn plan(&mut self, reflectors: &[NodeId]) -> Result<(), PlanError> {
        self.controller.timers.round = self.now;
        self.controller.handle_timeout(self.now);
        let job = self.controller.poll_job().expect("a round is due");
        let mut plan = Plan::default();
        for (channel, reflector) in (0..).zip(reflectors) {
            plan.parents.insert((*reflector, object(channel)), S);
            for edge in [E1, E2] {
                plan.parents.insert((edge, object(channel)), *reflector);
            }
            plan.edges.insert((GROUP, object(channel)), E1);
        }
        self.controller.handle_plan(self.now, job.number, plan)
    }

    fn planned(&self, node: NodeId) -> Vec<Option<NodeId>> {
        (0..6).map(|channel| self.tables[node.index()].get(&object(channel)).copied()).collect()
    }
}

fn settings() -> ControllerSettings {
    ControllerSettings { slack_ppm: 0, ..ControllerSettings::default() }
}

proptest! {
    #[test]
    fn no_link_is_planned_above_its_capacity_during_moves(
        plans in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..6), 1..4),
    ) {
        // Each link has room for four of six objects.
        let mut net = Net::new(8, settings());
        for plan in plans {
            let reflectors: Vec<_> = plan.iter().map(|first| if *first { R1 } else { R2 }).collect();
            let counts = [R1, R2].map(|node| reflectors.iter().filter(|own| **own == node).count());
            let taken = net.plan(&reflectors);
            prop_assert_eq!(taken.is_ok(), counts.iter().all(|count| *count <= 4));
            net.run(SECOND * 30);
            prop_assert!(net.controller.is_settled());
            if taken.is_ok() {
                // Both edges move every object, and the links of both reflectors have room, so all
                // moves complete.
                let mut wanted: Vec<_> = reflectors.iter().copied().map(Some).collect();
                wanted.resize(6, None);
                prop_assert_eq!(net.planned(E1), wanted);
            }
            let capacity = net.capacity().as_bps();
            prop_assert!(net.loads_bps_max.iter().all(|load| *load <= capacity), "{:?}", net.loads_bps_max);
        }
    }
}

#[test]
fn streams_on_full_links_are_not_swapped() {
    // Each link has room for one object, so a swap of two objects has no first step.
    let mut net = Net::new(3, settings());
    net.plan(&[R1, R2]).expect("one object on each way");
    net.run(SECOND * 30);
    let before = net.planned(E1);
    net.plan(&[R2, R1]).expect("one object on each way");
    net.run(SECOND * 30);
    assert!(net.controller.is_settled());
    assert_eq!(net.planned(E1), before);
}

#[test]
fn full_links_keep_streams_that_local_decisions_placed() {
    // Each link has room for one object. Local decisions have swapped the two planned objects.
    let mut net = Net::new(3, settings());
    net.plan(&[R1, R2]).expect("one object on each way");
    net.run(SECOND * 30);
    let swapped = BTreeMap::from([(object(0), R2), (object(1), R1)]);
    net.local = [(E1, swapped.clone()), (E2, swapped)].into();
    net.local.insert(R1, [(object(1), S)].into());
    net.local.insert(R2, [(object(0), S)].into());
    net.run(SECOND);
    net.plan(&[R1, R2]).expect("one object on each way");
    net.run(SECOND * 30);
    assert!(net.controller.is_settled());
    assert_eq!(net.planned(E1)[..2], [Some(R2), Some(R1)]);
    assert_eq!(net.planned(R1)[..2], [None, None], "its link is full, and nothing is lost by a local route");
    // One stream ends, so the other stream has room to move back.
    for node in [R2, E1, E2] {
        net.local.get_mut(&node).expect("set above").remove(&object(0));
    }
    net.run(SECOND);
    net.plan(&[R1, R2]).expect("one object on each way");
    net.run(SECOND * 30);
    net.local.clear();
    net.run(SECOND);
    net.plan(&[R1, R2]).expect("one object on each way");
    net.run(SECOND * 30);
    assert_eq!(net.planned(E1)[..2], [Some(R1), Some(R2)]);
}

#[test]
fn link_full_of_local_streams_gets_no_route() {
    let mut net = Net::new(3, settings());
    net.local = [(E1, [(object(1), R1)].into()), (R1, [(object(1), S)].into())].into();
    net.run(SECOND);
    net.plan(&[R1]).expect("the plan leaves the local stream out");
    net.run(SECOND * 30);
    assert_eq!((net.planned(R1)[0], net.planned(E1)[0]), (None, None));
    assert_eq!(net.issued, 1, "the lead's first tables are empty");
}

#[test]
fn round_moves_no_more_streams_than_its_limit() {
    let mut net = Net::new(100, ControllerSettings { moves_max: 3, ..settings() });
    net.plan(&[R1; 4]).expect("wide links");
    net.run(SECOND * 30);
    net.plan(&[R2; 4]).expect("wide links");
    net.run(SECOND * 30);
    let moved: usize =
        [E1, E2].map(|edge| net.planned(edge).iter().filter(|at| **at == Some(R2)).count()).iter().sum();
    assert_eq!(moved, 3);
    net.plan(&[R2; 4]).expect("wide links");
    net.run(SECOND * 30);
    let moved: usize =
        [E1, E2].map(|edge| net.planned(edge).iter().filter(|at| **at == Some(R2)).count()).iter().sum();
    assert_eq!(moved, 6, "the next round goes on");
}

#[test]
fn plan_above_a_link_capacity_is_refused() {
    let mut net = Net::new(3, settings());
    let error = net.plan(&[R1, R1]).expect_err("two objects on one way");
    assert!(matches!(error, PlanError::OverCapacity { .. }), "{error}");
    net.run(SECOND * 5);
    assert_eq!(net.controller.version().decision, 0);
    let late = net.controller.handle_plan(net.now, 1, Plan::default());
    assert!(matches!(late, Err(PlanError::OtherJob { pending: None, .. })));
}

#[test]
fn report_above_the_declared_capacity_counts_as_declared() {
    let mut net = Net::new(3, settings());
    net.reported = Some(BitRate::gbps(1));
    net.run(SECOND);
    net.plan(&[R1, R1]).expect_err("two objects on one way");
    net.plan(&[R1]).expect("one object on one way");
}

#[test]
fn plan_that_uses_the_slack_is_refused() {
    let mut net = Net::new(10, ControllerSettings { slack_ppm: 200_000, ..settings() });
    assert!(net.plan(&[R1; 5]).is_err(), "10 of 10 Mbit/s");
    net.plan(&[R1; 4]).expect("8 of 10 Mbit/s");
}

#[test]
fn slack_of_100_percent_is_refused() {
    let net = Net::new(10, ControllerSettings { slack_ppm: 999_999, ..settings() });
    let whole = ControllerSettings { slack_ppm: 1_000_000, ..settings() };
    let refused = Controller::new(Instant::ZERO, net.controller.network.clone(), vec![], 1, whole);
    let error = refused.expect_err("nothing to plan");
    assert_eq!(error.to_string(), "slack_ppm 1000000: must be below 1000000");
}

#[test]
fn reported_demand_is_capped_at_the_optimisers_limit() {
    let mut net = Net::new(10, settings());
    net.watching = u64::MAX;
    net.run(SECOND);
    net.controller.timers.round = net.now;
    net.controller.handle_timeout(net.now);
    let job = net.controller.poll_job().expect("a round is due");
    assert_eq!(job.demand[&(GROUP, object(0))], VIEWERS_MAX);
}

#[test]
fn changed_network_is_planned_immediately() {
    let mut net = Net::new(10, settings());
    net.plan(&[R1, R1]).expect("4 of 10 Mbit/s");
    net.run(SECOND * 30);
    let (nodes, mut links) =
        (net.controller.network.nodes().to_vec(), net.controller.network.links().to_vec());
    links[0].capacity = BitRate::mbps(3);
    let more = (0..9).map(|at| crate::Node { name: format!("more{at}"), tier: Tier::Edge });
    let nodes: Vec<_> = nodes.into_iter().chain(more).collect();
    links.push(Link { from: R2, to: NodeId(5), ..links[1] });
    let network = Network::new(nodes, links).expect("tiers are in order");
    let groups = vec![vec![E2, NodeId(5)]];
    assert_eq!(net.controller.edge_for(GROUP, object(0)), Some(E1));
    net.controller.handle_network(net.now, network.clone(), groups).expect("it extends the first one");
    assert!(net.controller.mapping().is_empty(), "E1 is no edge of the group");
    net.controller.handle_timeout(net.now);
    let job = net.controller.poll_job().expect("nodes that have not started are no missing majority");
    assert_eq!((job.capacities[0], job.capacities[1]), (BitRate::mbps(3), BitRate::mbps(10)));
    assert_eq!(job.capacities.len(), 7);
    // The stages of the new plan keep one of two streams on the narrow link.
    let plan = Plan { parents: [((R1, object(0)), S), ((E2, object(0)), R1)].into(), ..Plan::default() };
    net.controller.handle_plan(net.now, job.number, plan).expect("2 of 3 Mbit/s");
    net.run(SECOND * 30);
    assert_eq!(net.planned(R1)[..2], [Some(S), None]);
}

#[test]
fn network_with_fewer_links_is_refused() {
    let mut net = Net::new(10, settings());
    let before = net.controller.network.clone();
    let fewer = Network::new(before.nodes().to_vec(), before.links()[1..].to_vec()).expect("good links");
    let error = net.controller.handle_network(net.now, fewer, vec![]).expect_err("a link is missing");
    assert!(matches!(error, ControllerError::Network(ChangeError::FewerLinks { .. })), "{error}");
    let error = net.controller.handle_network(net.now, before.clone(), vec![vec![R1]]).expect_err("no edge");
    assert!(matches!(error, ControllerError::NotAnEdge(..)), "{error}");
    assert_eq!(net.controller.groups, [vec![E1, E2]]);
}

#[test]
fn dns_assignments_follow_installed_tables() {
    let mut net = Net::new(100, settings());
    net.silent.insert(E1);
    net.plan(&[R1]).expect("a wide link");
    net.run(SECOND * 3);
    assert!(net.controller.mapping().is_empty(), "E1 has no table yet");
    net.silent.clear();
    net.run(SECOND * 30);
    net.plan(&[R1]).expect("a wide link");
    net.run(SECOND * 30);
    assert_eq!(net.controller.mapping().get(&(GROUP, object(0))), Some(&E1));
}

#[test]
fn unmapped_group_gets_an_edge_that_has_the_object() {
    let mut net = Net::new(100, settings());
    assert_eq!(net.controller.edge_for(GROUP, object(5)), Some(E1), "the nearest");
    net.tables[E2.index()].insert(object(5), R1);
    net.run(SECOND);
    assert_eq!(net.controller.edge_for(GROUP, object(5)), Some(E2), "it has the object");
    net.silent.insert(E2);
    net.run(SECOND * 7);
    assert_eq!(net.controller.edge_for(GROUP, object(5)), Some(E1), "the other is silent");
    net.controller.handle_drain(net.now, E1);
    assert_eq!(net.controller.edge_for(GROUP, object(5)), None);
    assert_eq!(net.controller.edge_for(GroupId(9), object(5)), None);
}

#[test]
fn controller_without_reports_of_a_majority_creates_no_job() {
    let mut net = Net::new(100, settings());
    net.silent.extend([S, R1, R2]);
    net.run(SECOND * 7);
    net.controller.poll_job();
    net.controller.timers.round = net.now;
    net.controller.handle_timeout(net.now);
    assert!(net.controller.poll_job().is_none());
    net.silent.clear();
    net.run(SECOND * 2);
    assert!(net.controller.poll_job().is_some(), "the round is made up for");
}

#[test]
fn stopped_drained_nodes_do_not_count_against_majority() {
    let mut net = Net::new(100, ControllerSettings::default());
    for node in [R1, E2] {
        net.controller.handle_drain(net.now, node);
    }
    net.silent.extend([R1, E2, R2]);
    net.run(SECOND * 10);
    let jobs = net.controller.jobs;
    net.controller.handle_undrain(net.now, E2);
    net.controller.handle_drain(net.now, E2);
    net.run(SECOND);
    assert!(net.controller.jobs > jobs, "S and E1 are two of three");
    net.controller.handle_undrain(net.now, R1);
    net.controller.handle_undrain(net.now, E2);
    let jobs = net.controller.jobs;
    net.run(SECOND);
    assert_eq!(net.controller.jobs, jobs, "two of five");
}

#[test]
fn resumed_controller_counts_no_node_as_silent() {
    let mut net = Net::new(100, settings());
    net.plan(&[R1]).expect("a wide link");
    net.run(SECOND * 8);
    net.now += SECOND * 90;
    net.controller.handle_timeout(net.now);
    let silent = |controller: &mut Controller| {
        let events = std::iter::from_fn(|| controller.poll_event());
        events.filter(|event| matches!(event, ControllerEvent::Silent(_))).count()
    };
    assert_eq!(silent(&mut net.controller), 0);
    assert!(net.controller.poll_job().is_none(), "the reports come first");
    // The nodes are really down now.
    for _ in 0..7 {
        net.now += SECOND;
        net.controller.handle_timeout(net.now);
    }
    assert_eq!(silent(&mut net.controller), 5);
}

#[test]
fn drained_node_has_no_capacity_to_plan() {
    let mut net = Net::new(100, settings());
    net.controller.handle_drain(net.now, R1);
    assert!(matches!(net.plan(&[R1]), Err(PlanError::OverCapacity { .. })));
    net.plan(&[R2]).expect("another way");
    net.controller.handle_undrain(net.now, R1);
    net.plan(&[R1]).expect("it is back");
}
