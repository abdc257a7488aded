//! Tests of a node among five others, and among hostile neighbours.

use super::*;
use crate::control::messages::{ChildMessage, ParentMessage, ToNode};
use crate::control::neighbours::Offer;
use crate::control::tables::{Evidence, Origin, Prefix, RibUpdate};
use crate::{ChangeError, ChannelId};
use proptest::prelude::*;

const S1: NodeId = NodeId(0);
const S2: NodeId = NodeId(1);
const R1: NodeId = NodeId(2);
const R2: NodeId = NodeId(3);
const E1: NodeId = NodeId(4);
const E2: NodeId = NodeId(5);
const V0: Object = Object { channel: ChannelId(0), bitrate: BitRate::mbps(2) };
const V1: Object = Object { channel: ChannelId(1), bitrate: BitRate::mbps(2) };
const GROUP: GroupId = GroupId(0);
const SECOND: Duration = Duration::from_secs(1);

/// Two nodes in each tier, fully connected by links of 3 Mbit/s: room for one stream each. S1 alone
/// imports V0 and V1.
struct Net {
    now: Instant,
    network: Network,
    nodes: Vec<Node>,
    dead: BTreeSet<NodeId>,
    events: Vec<(NodeId, Event)>,
    reports: BTreeMap<NodeId, Report>,
    requests: u64,
}

impl Net {
    fn new() -> Self {
        Self::with_mode(ControlMode::Hybrid)
    }

    fn with_mode(mode: ControlMode) -> Self {
        let tiers = [Tier::Source, Tier::Reflector, Tier::Edge];
        let node = |at: usize| crate::Node { name: format!("n{at}"), tier: tiers[at / 2] };
        let link =
            |from, to| Link { from: NodeId(from), to: NodeId(to), capacity: BitRate::mbps(3), cost: 1.0 };
        let links = [0, 2]
            .into_iter()
            .flat_map(|tier| [(0, 2), (0, 3), (1, 2), (1, 3)].map(|(a, b)| (a + tier, b + tier)));
        let links = links.map(|(from, to)| link(from, to)).collect();
        let network = Network::new((0..6).map(node).collect(), links).expect("tiers are in order");
        let now = Instant::ZERO;
        let settings = Settings { mode, ..Settings::default() };
        let start = |at| Node::new(now, &network, NodeId(at), 1 << 32, settings, Seed::new(1));
        let mut nodes: Vec<Node> = (0..6).map(start).collect();
        assert!(nodes[0].handle_import(V0) && nodes[0].handle_import(V1));
        let (dead, events, reports) = Default::default();
        let mut net = Self { now, network, nodes, dead, events, reports, requests: 0 };
        // An advertisement needs up to a second to cross each tier.
        net.run(SECOND * 3);
        net
    }

    /// Runs all nodes for `time`. Messages have no delay; video arrives as soon as it is granted.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.pump();
            let alive = self.nodes.iter().filter(|node| !self.dead.contains(&node.id));
            let next = alive.map(Node::poll_timeout).min().expect("nodes have timers").max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            let dead = &self.dead;
            self.nodes.iter_mut().filter(|node| !dead.contains(&node.id)).for_each(|node| {
                node.handle_timeout(next);
            });
        }
    }

    fn pump(&mut self) {
        while let Some(at) = (0..self.nodes.len()).find(|at| self.step(*at)) {
            let _ = at;
        }
    }

    fn step(&mut self, at: usize) -> bool {
        let (id, now) = (NodeId(at as u32), self.now);
        if let Some(transmit) = self.nodes[at].poll_transmit() {
            let is_lost = |to: &NodeId| self.dead.contains(&id) || self.dead.contains(to);
            match transmit {
                Transmit::Parent(to, message) if !is_lost(&to) => {
                    self.nodes[to.index()].handle_child(now, id, message);
                }
                Transmit::Child(to, message) if !is_lost(&to) => {
                    self.nodes[to.index()].handle_parent(now, id, message);
                }
                Transmit::Controller(report) => drop(self.reports.insert(id, report)),
                _ => {}
            }
            return true;
        }
        let Some(event) = self.nodes[at].poll_event() else { return false };
        if let Event::Fetch { object, parent, .. } = event {
            self.nodes[at].handle_delivered(now, object, parent);
        }
        self.events.push((id, event));
        true
    }

    /// Sends a viewer's request to an edge. Returns whether the viewer is admitted; `None` without
    /// an answer within two seconds.
    fn view(&mut self, edge: NodeId, object: Object) -> Option<bool> {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.nodes[edge.index()].handle_viewer(self.now, request, GROUP, object);
        self.run(SECOND * 2);
        self.events.iter().find_map(|(_, event)| match event {
            Event::ViewerAdmitted(admitted) if *admitted == request => Some(true),
            Event::ViewerRefused(refused, _) if *refused == request => Some(false),
            _ => None,
        })
    }

    fn used(&self, parent: NodeId, child: NodeId) -> BitRate {
        self.nodes[parent.index()].ledger(child).expect("a child").used()
    }

    fn upstream(&self, node: NodeId, object: Object) -> Option<NodeId> {
        self.nodes[node.index()].upstream(object)
    }

    /// Installs routes of the controller at a node. Their evidence is the next hop's link state.
    fn install(&mut self, node: NodeId, decision: u64, routes: &[(Object, NodeId)]) {
        let version = Version { lead: 1, decision };
        let entry = |(object, next_hop): &(Object, NodeId)| {
            let links = self.network.links_in(node).iter().copied();
            let links = links.filter(|link| self.network.link(*link).from == *next_hop);
            let state = |link| (link, self.nodes[node.index()].neighbours.link_state(link));
            let evidence = Evidence { links: links.map(state).collect(), viewers: vec![] };
            let (origin, prefix) = (Origin::Central, Prefix::Object(*object));
            RibEntry { origin, prefix, next_hop: *next_hop, version, evidence }
        };
        let set = routes.iter().map(entry).collect();
        let update = Some(RibUpdate { version, base: None, set, removed: vec![] });
        let message = ToNode { lead: 1, is_draining: false, resend: false, update };
        self.nodes[node.index()].handle_controller(self.now, message);
        self.run(SECOND);
    }
}

#[test]
fn all_viewers_of_an_object_share_one_tree() {
    let mut net = Net::new();
    for edge in [E1, E1, E2, E2] {
        assert_eq!(net.view(edge, V0), Some(true));
    }
    let streams = [R1, R2].map(|reflector| u64::from(net.upstream(reflector, V0).is_some()));
    let used: u64 = [R1, R2].iter().map(|reflector| net.used(S1, *reflector).as_bps()).sum();
    assert_eq!(used, V0.bitrate.as_bps() * streams.iter().sum::<u64>());
    assert_eq!(streams.iter().sum::<u64>(), 1, "the second edge finds the reflector that has it");
}

#[test]
fn stream_ends_when_its_last_viewer_leaves() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    assert_eq!(net.view(E1, V0), Some(true));
    net.nodes[E1.index()].handle_viewer_left(GROUP, V0);
    net.run(SECOND);
    assert!(net.upstream(E1, V0).is_some());
    net.nodes[E1.index()].handle_viewer_left(GROUP, V0);
    net.run(SECOND);
    for (parent, child) in [(S1, R1), (S1, R2), (R1, E1), (R2, E1)] {
        assert_eq!(net.used(parent, child), BitRate::bps(0));
    }
}

#[test]
fn stream_is_refused_when_all_parent_links_are_full() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    assert_eq!(net.view(E1, V1), Some(true));
    assert_ne!(net.upstream(E1, V0), net.upstream(E1, V1), "each link has room for one stream");
    let third = Object { channel: ChannelId(2), ..V0 };
    assert!(net.nodes[0].handle_import(third));
    net.run(SECOND * 3);
    assert_eq!(net.view(E1, third), Some(false));
    assert_eq!(net.view(E1, V0), Some(true), "a running stream takes more viewers");
}

#[test]
fn stream_leaves_a_silent_parent_within_a_second() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let first = net.upstream(E1, V0).expect("served");
    net.dead.insert(first);
    net.run(SECOND);
    let second = net.upstream(E1, V0).expect("served by the other reflector");
    assert_ne!(first, second);
    assert_eq!(net.upstream(second, V0), Some(S1));
}

#[test]
fn stream_leaves_a_restarted_parent_at_its_first_message() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let parent = net.upstream(E1, V0).expect("admitted");
    let rate = BitRate::mbps(3);
    let offer = Offer { capacity: rate, spare: rate, is_draining: false, is_limited: false };
    let hello = |life| ToChild { life, body: ParentMessage::Heartbeat(offer) };
    let node = &mut net.nodes[E1.index()];
    node.handle_parent(net.now, parent, hello(1 << 32));
    assert_eq!(node.upstream(V0), Some(parent), "the same life");
    node.handle_parent(net.now, parent, hello(2 << 32));
    assert_eq!(node.upstream(V0), None);
    assert!(node.neighbours.ways(V0).all(|via| via.parent != parent), "its table is void");
    net.pump();
    assert!(net.upstream(E1, V0).is_some_and(|other| other != parent), "without a timeout");
}

#[test]
fn offer_above_the_declared_capacity_counts_as_declared() {
    let mut net = Net::new();
    let capacity = BitRate::gbps(1);
    let boast = Offer { capacity, spare: capacity, is_draining: false, is_limited: false };
    let node = &mut net.nodes[E1.index()];
    node.handle_parent(net.now, R1, ToChild { life: 1 << 32, body: ParentMessage::Heartbeat(boast) });
    let declared = BitRate::mbps(3);
    assert_eq!(node.neighbours.offer(R1), Some(Offer { capacity: declared, spare: declared, ..boast }));
}

#[test]
fn stream_moves_to_planned_parent_by_make_before_break() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let first = net.upstream(E1, V0).expect("served");
    let other = if first == R1 { R2 } else { R1 };
    net.install(other, 1, &[(V0, S1)]);
    net.events.clear();
    net.install(E1, 1, &[(V0, other)]);
    assert_eq!(net.upstream(E1, V0), Some(other));
    assert_eq!(net.used(first, E1), BitRate::bps(0));
    let of_edge = net.events.iter().filter(|(node, _)| *node == E1).map(|(_, event)| event);
    let order: Vec<_> =
        of_edge.filter(|event| matches!(event, Event::Fetch { .. } | Event::Stop(..))).collect();
    assert!(matches!(order[..], [Event::Fetch { .. }, Event::Stop(..)]), "{order:?}");
}

#[test]
fn plan_with_stale_evidence_is_ignored_until_evidence_holds() {
    let mut net = Net::new();
    for (reflector, decision) in [(R1, 1), (R2, 1)] {
        net.install(reflector, decision, &[(V0, S1)]);
    }
    net.install(E1, 1, &[(V0, R1)]);
    // The measured capacity is 20 % below the declared capacity, and has room for the stream.
    let lower = Capacity { declared: BitRate::mbps(3), measured: Some(BitRate::bps(2_400_000)) };
    net.nodes[R1.index()].handle_capacity(E1, lower);
    net.nodes[R2.index()].handle_capacity(E1, Capacity::declared(BitRate::mbps(3)));
    net.run(SECOND);
    assert_eq!(net.nodes[E1.index()].fib(net.now).lookup(V0), None);
    assert_eq!(net.view(E1, V0), Some(true), "by Algorithm 1");
    net.nodes[R1.index()].handle_capacity(E1, Capacity::declared(BitRate::mbps(3)));
    net.run(SECOND * 2);
    assert_eq!(net.nodes[E1.index()].fib(net.now).lookup(V0), Some(R1));
    assert_eq!(net.upstream(E1, V0), Some(R1));
    assert_eq!(net.nodes[E1.index()].rib().distributed().count(), 0);
}

#[test]
fn distributed_node_ignores_controller_tables() {
    let mut net = Net::with_mode(ControlMode::Distributed);
    for (decision, parent) in [(1, R1), (2, R2), (3, R1)] {
        net.install(E1, decision, &[(V0, parent)]);
        assert_eq!(net.nodes[E1.index()].rib().version(), Version::default());
    }
    assert_eq!(net.view(E1, V0), Some(true), "Algorithm 1 has found a parent");
}

#[test]
fn centralized_request_waits_for_controller_tables() {
    let mut net = Net::with_mode(ControlMode::Centralized);
    assert_eq!(net.view(E1, V0), None, "no route, no answer");
    net.run(SECOND * 60);
    let answered = |net: &Net| net.events.iter().any(|(_, event)| matches!(event, Event::ViewerAdmitted(_)));
    assert!(!answered(&net) && net.upstream(E1, V0).is_none());
    let asked: Vec<_> = net.nodes[E1.index()].demand().into_iter().collect();
    assert_eq!(asked, [((GROUP, V0), 1)], "reports have the request");
    // The edge receives its tables first: the reflector queues the request until its tables arrive.
    net.install(E1, 1, &[(V0, R2)]);
    assert!(!answered(&net));
    net.install(R2, 1, &[(V0, S1)]);
    net.run(SECOND * 2);
    assert!(answered(&net));
    assert_eq!((net.upstream(E1, V0), net.upstream(R2, V0)), (Some(R2), Some(S1)));
    // A minute without the controller and a changed capacity move no stream.
    net.run(SECOND * 60);
    assert_eq!(net.view(E1, V0), Some(true));
    assert_eq!(net.upstream(E1, V0), Some(R2));
}

#[test]
fn centralized_stream_of_dead_parent_waits_for_tables() {
    let mut net = Net::with_mode(ControlMode::Centralized);
    net.install(R1, 1, &[(V0, S1)]);
    net.install(E1, 1, &[(V0, R1)]);
    assert_eq!(net.view(E1, V0), Some(true));
    net.dead.insert(R1);
    net.run(SECOND * 10);
    assert_eq!(net.upstream(E1, V0), None);
    net.install(R2, 2, &[(V0, S1)]);
    net.install(E1, 2, &[(V0, R2)]);
    net.run(SECOND * 2);
    assert_eq!(net.upstream(E1, V0), Some(R2));
}

#[test]
fn silent_controller_leaves_decisions_to_the_node() {
    let mut net = Net::new();
    net.install(E1, 1, &[(V0, R1)]);
    assert!(net.nodes[E1.index()].fib(net.now).lookup(V0).is_some());
    net.run(SECOND * 11);
    assert!(net.nodes[E1.index()].fib(net.now).lookup(V0).is_none());
    assert_eq!(net.view(E1, V0), Some(true), "by Algorithm 1");
}

/// Sends R1 a request of E1 for V0, and withdraws it. Returns the source that R1 asks, and the
/// decision that routes the request.
fn asked(net: &mut Net, decision: Option<u64>, attempt: u64) -> (NodeId, Option<u64>) {
    let version = decision.map(|decision| Version { lead: 1, decision });
    let cause = Cause { node: E1, attempt };
    let body = ChildMessage::Subscribe { object: V0, attempt, version, cause };
    let (now, node) = (net.now, &mut net.nodes[R1.index()]);
    node.handle_child(now, E1, ToParent { life: 1 << 40, body });
    let to_parent = std::iter::from_fn(|| node.poll_transmit()).find_map(|transmit| match transmit {
        Transmit::Parent(to, ToParent { body: ChildMessage::Subscribe { version, .. }, .. }) => {
            Some((to, version.map(|version| version.decision)))
        }
        _ => None,
    });
    let body = ChildMessage::Unsubscribe { object: V0, attempt };
    node.handle_child(now, E1, ToParent { life: 1 << 40, body });
    // The next offers exclude the withdrawn request.
    net.run(SECOND);
    to_parent.expect("R1 asks a source")
}

#[test]
fn request_is_forwarded_by_the_version_that_routed_it() {
    let mut net = Net::new();
    let imports = net.nodes[S2.index()].handle_import(V0);
    assert!(imports);
    net.run(SECOND * 2);
    for (decision, source) in [(1, S1), (2, S2)] {
        net.install(R1, decision, &[(V0, source)]);
    }
    assert_eq!(asked(&mut net, Some(1), 1), (S1, Some(1)), "a shadow FIB");
    assert_eq!(asked(&mut net, Some(2), 2), (S2, Some(2)), "the present FIB");
    assert_eq!(asked(&mut net, None, 3), (S2, Some(2)), "the present FIB, for want of a version");
    let (_, version) = asked(&mut net, Some(7), 4);
    assert_eq!(version, None, "an unknown version: Algorithm 1");
}

#[test]
fn repeated_update_is_reported_and_not_refused() {
    let mut net = Net::new();
    net.install(E1, 1, &[(V0, R1)]);
    net.reports.clear();
    net.events.clear();
    net.install(E1, 1, &[(V0, R1)]);
    assert_eq!(net.reports.remove(&E1).map(|report| report.version), Some(Version { lead: 1, decision: 1 }));
    assert!(!net.events.iter().any(|(_, event)| matches!(event, Event::UpdateRefused(_))));
    let older = net.nodes[E1.index()].rib.version();
    net.install(E1, 0, &[(V0, R2)]);
    assert!(net.events.iter().any(|(_, event)| matches!(event, Event::UpdateRefused(_))));
    assert_eq!(net.nodes[E1.index()].rib.version(), older);
}

#[test]
fn drained_edge_keeps_streams_and_refuses_new_viewers() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let first = net.upstream(E1, V0).expect("served");
    let drain = ToNode { lead: 1, is_draining: true, resend: false, update: None };
    net.nodes[E1.index()].handle_controller(net.now, drain.clone());
    assert_eq!(net.view(E1, V0), Some(false));
    assert!(net.upstream(E1, V0).is_some());
    // A drained reflector loses its streams to the other reflector.
    net.nodes[first.index()].handle_controller(net.now, drain);
    net.run(SECOND * 2);
    assert!(net.upstream(E1, V0).is_some_and(|parent| parent != first));
    assert_eq!(net.used(S1, first), BitRate::bps(0));
}

#[test]
fn digests_reveal_a_lost_unsubscription() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let parent = net.upstream(E1, V0).expect("served");
    net.nodes[E1.index()].handle_viewer_left(GROUP, V0);
    while net.nodes[E1.index()].poll_transmit().is_some() {}
    assert_eq!(net.used(parent, E1), V0.bitrate);
    net.run(SECOND);
    assert_eq!(net.used(parent, E1), BitRate::bps(0));
}

#[test]
fn late_repeated_request_ends_no_stream() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let parent = net.upstream(E1, V0).expect("admitted");
    let node = &mut net.nodes[parent.index()];
    let attempt = node.ledger(E1).and_then(|ledger| ledger.attempts().of(V0)).expect("granted");
    let mut says = |last_attempt, held| {
        let body = ChildMessage::Held { last_attempt, held };
        node.handle_child(net.now, E1, ToParent { life: 1 << 32, body });
        node.is_granted(E1, V0)
    };
    assert!(says(attempt + 1, vec![(V0, attempt + 1)]), "the repetition is under way");
    assert!(!says(attempt + 1, vec![]), "the child has given it up");
}

#[test]
fn refusal_overtaken_by_a_grant_ends_no_stream() {
    let mut net = Net::new();
    let node = &mut net.nodes[E1.index()];
    node.handle_viewer(net.now, RequestId(1), GROUP, V0);
    let asked = |node: &mut Node| {
        std::iter::from_fn(|| node.poll_transmit()).find_map(|transmit| match transmit {
            Transmit::Parent(parent, ToParent { body: ChildMessage::Subscribe { attempt, .. }, .. }) => {
                Some((parent, attempt))
            }
            _ => None,
        })
    };
    let (parent, first) = asked(node).expect("a request");
    let now = net.now + node.settings.ask_timeout;
    node.handle_timeout(now);
    let (_, second) = asked(node).expect("a repeated request");
    // The first request arrives late, and its grant overtakes the refusal of the second request.
    let mut says = |body| {
        node.handle_parent(now, parent, ToChild { life: 1 << 32, body });
        node.handle_delivered(now, V0, parent);
        (asked(node).map(|(_, attempt)| attempt), node.upstream(V0))
    };
    let refused = |attempt| ParentMessage::Refused { object: V0, attempt, why: Refusal::NoParent };
    assert_eq!(says(ParentMessage::Granted { object: V0, attempt: first }), (None, Some(parent)));
    let (third, upstream) = says(refused(second));
    assert_eq!(upstream, Some(parent), "asked again, and served meanwhile");
    let (_, upstream) = says(refused(third.expect("a question")));
    assert_eq!(upstream, None, "the second refusal is believed");
}

/// The network with the links that `change` makes, and one further reflector.
fn changed(net: &Net, change: impl FnOnce(&mut Vec<Link>)) -> Network {
    let new = crate::Node { name: "new".to_owned(), tier: Tier::Reflector };
    let mut links = net.network.links().to_vec();
    change(&mut links);
    Network::new([net.network.nodes(), &[new]].concat(), links).expect("tiers are in order")
}

#[test]
fn lower_declared_capacity_evicts_streams_that_do_not_fit() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let parent = net.upstream(E1, V0).expect("served");
    let with = |net: &Net, mbps| {
        changed(net, |links| {
            let link = links.iter_mut().find(|link| (link.from, link.to) == (parent, E1));
            link.expect("linked").capacity = BitRate::mbps(mbps);
        })
    };
    for (mbps, stays) in [(2, true), (9, true), (1, false)] {
        let network = with(&net, mbps);
        net.nodes[parent.index()].handle_network(net.now, &network).expect("the same links");
        net.nodes[E1.index()].handle_network(net.now, &network).expect("the same links");
        let offer = net.nodes[E1.index()].neighbours.offer(parent).expect("a parent");
        assert!(offer.capacity <= BitRate::mbps(mbps), "not above the declared: {offer:?}");
        net.run(SECOND);
        assert_eq!(net.upstream(E1, V0) == Some(parent), stays, "{mbps} Mbit/s");
        assert_eq!(
            net.nodes[parent.index()].ledger(E1).expect("a child").capacity().declared,
            BitRate::mbps(mbps)
        );
    }
    assert!(net.upstream(E1, V0).is_some(), "by the other reflector");
}

#[test]
fn stream_leaves_a_link_with_low_measured_capacity() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let parent = net.upstream(E1, V0).expect("served");
    let measure = |net: &mut Net, bps| {
        net.nodes[E1.index()].handle_measured(parent, BitRate::bps(bps));
        net.run(SECOND);
        let ledger = net.nodes[parent.index()].ledger(E1).expect("a child");
        let offer = net.nodes[E1.index()].neighbours.offer(parent).expect("a parent");
        assert_eq!(offer.capacity, ledger.capacity().believed());
        (ledger.capacity().believed(), ledger.capacity().declared)
    };
    let (believed, declared) = measure(&mut net, 500_000);
    assert_eq!(believed, BitRate::bps(500_000));
    let other = net.upstream(E1, V0).expect("by the other reflector");
    assert_ne!(other, parent);
    assert_eq!(measure(&mut net, u64::MAX), (declared, declared), "never above the declared");
    // The driver of a child measures that a link to the parent limits its transfers.
    for is_limiting in [true, false] {
        net.nodes[parent.index()].handle_limiting(S1, is_limiting);
        net.run(SECOND);
        assert_eq!(net.nodes[E1.index()].is_parent_limited(parent), is_limiting);
    }
}

#[test]
fn new_reflector_carries_streams() {
    let mut net = Net::new();
    let new = NodeId(6);
    let link = |from, to| Link { from, to, capacity: BitRate::mbps(3), cost: 1.0 };
    let network = changed(&net, |links| links.extend([link(S1, new), link(new, E1)]));
    net.nodes.push(Node::new(net.now, &network, new, 1 << 32, Settings::default(), Seed::new(1)));
    for node in [S1, E1] {
        net.nodes[node.index()].handle_network(net.now, &network).expect("further links");
    }
    net.dead.extend([R1, R2]);
    net.run(SECOND * 3);
    assert_eq!(net.view(E1, V0), Some(true));
    assert_eq!(net.upstream(E1, V0), Some(new));
}

#[test]
fn network_with_changed_link_ends_is_refused() {
    let mut net = Net::new();
    let swapped = changed(&net, |links| links.swap(0, 7));
    let node = &mut net.nodes[S1.index()];
    assert_eq!(node.handle_network(net.now, &swapped), Err(ChangeError::OtherEnds(LinkId(0))));
    let fewer = changed(&net, |links| links.truncate(1));
    let node = &mut net.nodes[S1.index()];
    assert_eq!(node.handle_network(net.now, &fewer), Err(ChangeError::FewerLinks { before: 2, after: 1 }));
    assert_eq!(node.children.len(), 2);
}

#[test]
fn report_lists_streams_viewers_and_links() {
    let mut net = Net::new();
    net.nodes[E1.index()]
        .handle_controller(net.now, ToNode { lead: 1, is_draining: false, resend: false, update: None });
    assert_eq!(net.view(E1, V0), Some(true));
    let resend = ToNode { lead: 1, is_draining: false, resend: true, update: None };
    net.nodes[E1.index()].handle_controller(net.now, resend);
    net.run(SECOND);
    let report = &net.reports[&E1];
    assert_eq!(report.streams.set, [(V0, net.upstream(E1, V0))]);
    assert_eq!(report.viewers.set, [((GROUP, V0), 1)]);
    assert!(report.streams.is_full && report.links.len() == 2);
}

/// E1, with V0 and V1 served to one viewer each.
fn serving_edge() -> (Net, Vec<Object>) {
    let mut net = Net::new();
    assert_eq!((net.view(E1, V0), net.view(E1, V1)), (Some(true), Some(true)));
    (net, vec![V0, V1])
}

fn ask(net: &mut Net, number: usize, object: Object) -> Option<Event> {
    let node = &mut net.nodes[E1.index()];
    node.handle_viewer(net.now, RequestId(number as u64), GroupId(number as u32), object);
    node.poll_event()
}

#[test]
fn node_accepts_groups_of_streams_up_to_its_limit() {
    let (mut net, objects) = serving_edge();
    // Group 0 watches both objects already.
    for number in 1..GROUPS_MAX - 1 {
        let event = ask(&mut net, number, objects[number % 2]);
        assert!(matches!(event, Some(Event::ViewerAdmitted(_))), "group {number}: {event:?}");
    }
    let event = ask(&mut net, GROUPS_MAX, V0);
    assert_eq!(event, Some(Event::ViewerRefused(RequestId(GROUPS_MAX as u64), Refusal::TableFull)));
    assert!(matches!(ask(&mut net, 1, V1), Some(Event::ViewerAdmitted(_))), "a known group");
    // Reports exclude the refused group: the demand stays within the limit.
    net.nodes[E1.index()].report(net.now);
    let reports = std::iter::from_fn(|| net.nodes[E1.index()].poll_transmit());
    let viewers = reports.filter_map(|transmit| match transmit {
        Transmit::Controller(report) => Some(report.viewers),
        _ => None,
    });
    let mut receiver = crate::control::differences::DeltaReceiver::new(GROUPS_MAX);
    let delta = crate::control::differences::Delta { is_full: true, ..viewers.last().expect("a report") };
    assert_eq!(receiver.handle(delta), crate::control::differences::ApplyResult::Yes);
}

#[test]
fn waiting_viewers_of_all_streams_share_one_limit() {
    let mut net = Net::new();
    for number in 0..WAITING_MAX {
        assert_eq!(ask(&mut net, number, if number % 2 == 0 { V0 } else { V1 }), None);
    }
    let refused = |number| Some(Event::ViewerRefused(RequestId(number as u64), Refusal::TableFull));
    assert_eq!(ask(&mut net, WAITING_MAX, V0), refused(WAITING_MAX));
    net.nodes[E1.index()].handle_viewer_cancelled(RequestId(1), V1);
    assert_eq!(ask(&mut net, WAITING_MAX, V0), None);
}

#[test]
fn refused_requests_of_a_window_are_summed() {
    let mut net = Net::new();
    let (node, start) = (&mut net.nodes[E1.index()], net.now);
    let window = node.settings.demand_memory;
    let demand = |node: &Node| node.demand().get(&(GROUP, V0)).copied();
    (0..3).for_each(|_| node.note_refused(start, GROUP, V0));
    assert_eq!(demand(node), Some(3));
    node.note_refused(start + window, GROUP, V0);
    assert_eq!(demand(node), Some(3), "the window before counts until the next one is over");
    node.note_refused(start + window * 2, GROUP, V0);
    assert_eq!(demand(node), Some(1));
    node.report(start + window * 3);
    assert_eq!(demand(node), None);
}

#[test]
fn lost_viewers_that_ask_again_count_once() {
    let mut net = Net::new();
    let (node, now) = (&mut net.nodes[E1.index()], net.now);
    node.note_lost(now, GROUP, V0, 20);
    (0..20).for_each(|_| node.note_refused(now, GROUP, V0));
    assert_eq!(node.demand()[&(GROUP, V0)], 20);
    node.note_refused(now, GROUP, V0);
    assert_eq!(node.demand()[&(GROUP, V0)], 21);
}

/// Number of messages that E1 sends in reply to `count` messages of its parent, one each
/// millisecond.
fn answers_of_edge(net: &mut Net, count: u64, mut body: impl FnMut(&Node, NodeId) -> ParentMessage) -> usize {
    let parent = net.upstream(E1, V0).expect("served");
    let node = &mut net.nodes[E1.index()];
    (0..count)
        .map(|ms| {
            let (now, body) = (net.now + Duration::from_ms(ms), body(node, parent));
            node.handle_parent(now, parent, ToChild { life: 1 << 32, body });
            std::iter::from_fn(|| node.poll_transmit()).count()
        })
        .sum()
}

#[test]
fn requests_to_a_parent_without_records_are_rate_limited() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let says = |node: &Node, parent: NodeId| {
        let attempt = node.parents[&parent].held.of(V0).expect("asked");
        ParentMessage::Refused { object: V0, attempt, why: Refusal::NotHeld }
    };
    let answers = answers_of_edge(&mut net, 1_000, says);
    assert_eq!(answers, 4, "at once, and each 300 ms");
}

#[test]
fn whole_table_requests_and_replies_are_rate_limited() {
    let mut net = Net::new();
    assert_eq!(net.view(E1, V0), Some(true));
    let parent = net.upstream(E1, V0).expect("served");
    let gap = |_: &Node, _| {
        let delta = Advertiser::new(1 << 33).advance(BTreeMap::new());
        ParentMessage::Advertisement(crate::control::differences::Delta {
            is_full: false,
            number: 9,
            ..delta
        })
    };
    assert_eq!(answers_of_edge(&mut net, 1_000, gap), 2);
    assert_eq!(answers_of_edge(&mut net, 1_000, |_, _| ParentMessage::Compare), 5);
    let node = &mut net.nodes[parent.index()];
    for ms in 0..1_000 {
        let now = net.now + Duration::from_ms(ms);
        node.handle_child(now, E1, ToParent { life: 1 << 32, body: ChildMessage::Resend });
    }
    assert_eq!(std::iter::from_fn(|| node.poll_transmit()).count(), 2);
}

fn objects() -> impl Strategy<Value = Object> {
    (0..3u32, prop_oneof![Just(0), Just(1_000_000), Just(u64::MAX)])
        .prop_map(|(channel, bps)| Object { channel: ChannelId(channel), bitrate: BitRate::bps(bps) })
}

fn child_says() -> impl Strategy<Value = ChildMessage> {
    let numbers = || prop_oneof![0..4u64, Just(u64::MAX)];
    let version = prop::option::of(Just(Version { lead: 1, decision: 1 }));
    let cause = Cause { node: E1, attempt: 0 };
    prop_oneof![
        4 => (objects(), numbers(), version).prop_map(move |(object, attempt, version)| {
            ChildMessage::Subscribe { object, attempt, version, cause }
        }),
        1 => (objects(), numbers()).prop_map(|(object, attempt)| ChildMessage::Unsubscribe { object, attempt }),
        1 => Just(ChildMessage::Heartbeat(Default::default())),
        1 => (numbers(), prop::collection::vec((objects(), numbers()), 0..4))
            .prop_map(|(last_attempt, held)| ChildMessage::Held { last_attempt, held }),
        1 => Just(ChildMessage::Resend),
        1 => prop_oneof![Just(0), Just(2_000_000), Just(u64::MAX)].prop_map(|bps| ChildMessage::Measured(BitRate::bps(bps))),
    ]
}

fn parent_says() -> impl Strategy<Value = ParentMessage> {
    // A node numbers its attempts upward from its incarnation number.
    let attempts = || prop_oneof![(1u64 << 32)..(1 << 32) + 6, Just(u64::MAX)];
    let rates = || prop_oneof![Just(0), Just(3_000_000), Just(u64::MAX)].prop_map(BitRate::bps);
    let whys = prop_oneof![Just(Refusal::NotHeld), Just(Refusal::NoCapacity), Just(Refusal::Evicted)];
    let reach = (prop_oneof![0..3u32, Just(u32::MAX)], prop::option::of(rates()));
    let reach =
        reach.prop_map(|(distance, capacity)| crate::control::neighbours::Reach { distance, capacity });
    let delta = (0..3u64, prop_oneof![0..3u64, Just(u64::MAX)], any::<bool>());
    prop_oneof![
        3 => (objects(), attempts()).prop_map(|(object, attempt)| ParentMessage::Granted { object, attempt }),
        2 => (objects(), attempts(), whys).prop_map(|(object, attempt, why)| ParentMessage::Refused { object, attempt, why }),
        2 => (rates(), rates(), any::<[bool; 2]>()).prop_map(|(capacity, spare, [is_draining, is_limited])| {
            ParentMessage::Heartbeat(Offer { capacity, spare, is_draining, is_limited })
        }),
        2 => (delta, prop::collection::vec((objects(), reach), 0..4), prop::collection::vec(objects(), 0..2))
            .prop_map(|((numbering, number, is_full), set, removed)| {
                let delta = crate::control::differences::Delta { numbering, number, is_full, set, removed };
                ParentMessage::Advertisement(delta)
            }),
        1 => Just(ParentMessage::Compare),
    ]
}

#[derive(Clone, Debug)]
enum Input {
    Child(NodeId, u64, ChildMessage),
    Parent(NodeId, u64, ParentMessage),
    Viewer(Object),
    Left(Object),
    Delivered(Object, NodeId),
    Stalled(Object),
    Time(u64),
}

fn inputs() -> impl Strategy<Value = Input> {
    let (child, parent) =
        (prop_oneof![Just(E1), Just(E2), Just(S1)], prop_oneof![Just(S1), Just(S2), Just(E1)]);
    let lives = || prop_oneof![4 => Just(1u64), 1 => Just(2u64), 1 => Just(0u64)];
    prop_oneof![
        4 => (child, lives(), child_says()).prop_map(|(node, life, body)| Input::Child(node, life, body)),
        6 => (parent.clone(), lives(), parent_says()).prop_map(|(node, life, body)| Input::Parent(node, life, body)),
        1 => objects().prop_map(Input::Viewer),
        1 => objects().prop_map(Input::Left),
        2 => (objects(), parent).prop_map(|(object, node)| Input::Delivered(object, node)),
        1 => objects().prop_map(Input::Stalled),
        2 => (0..900u64).prop_map(Input::Time),
    ]
}

proptest! {
    #[test]
    fn hostile_neighbours_break_no_limit(inputs in prop::collection::vec(inputs(), 0..120)) {
        let mut net = Net::new();
        let node = &mut net.nodes[R1.index()];
        let mut now = net.now;
        for (input, request) in inputs.into_iter().zip(0..) {
            match input {
                Input::Child(child, life, body) => {
                    node.handle_child(now, child, ToParent { life: life << 33, body });
                }
                Input::Parent(parent, life, body) => {
                    node.handle_parent(now, parent, ToChild { life: life << 33, body });
                }
                Input::Viewer(object) => {
                    node.handle_viewer(now, RequestId(request), GroupId(request as u32 % 2), object);
                }
                Input::Left(object) => node.handle_viewer_left(GROUP, object),
                Input::Delivered(object, parent) => node.handle_delivered(now, object, parent),
                Input::Stalled(object) => node.handle_stalled(now, object),
                Input::Time(ms) => {
                    now += Duration::from_ms(ms);
                    node.handle_timeout(now);
                    prop_assert!(node.poll_timeout() > now, "work that is due was left");
                }
            }
            while node.poll_transmit().is_some() {}
            while node.poll_event().is_some() {}
            for child in [E1, E2] {
                let ledger = node.ledger(child).expect("a child");
                prop_assert!(ledger.used() <= ledger.capacity().believed());
                for (object, _) in ledger.attempts().iter() {
                    prop_assert!(node.streams[&object].children.contains_key(&child));
                }
            }
            for (object, stream) in &node.streams {
                let is_asked = stream.next.is_some() || stream.current.is_some();
                prop_assert!(is_asked, "{:?} is wanted and not asked for", object);
                prop_assert!({
                    stream.next.is_none() || node.timers.streams.iter().any(|(_, due)| due == object)
                }, "{:?} waits without a deadline", object);
            }
            let waiting = node.streams.values().map(|stream| stream.waiting.len()).sum();
            let groups = node.streams.values().map(|stream| stream.viewers.len()).sum();
            prop_assert_eq!(node.audience, Audience { waiting, groups });
        }
    }
}
