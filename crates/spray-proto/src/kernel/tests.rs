//! Tests of the reconciler against a model kernel that other programs change.

use super::*;
use std::net::Ipv4Addr;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fn at(secs: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(secs)
}

/// A reconciler with one active peer, and a model kernel to which its repairs are applied.
struct World {
    reconciler: Reconciler,
    kernel: KernelState,
    now_s: u64,
    events: Vec<Event>,
}

impl World {
    fn new() -> Self {
        let peer = PeerEndpoint { address: PEER, local: LOCAL, port: 7_200 };
        let mut world = Self {
            reconciler: Reconciler::new(7_200, 7_200, vec![peer], false),
            kernel: KernelState { device_is_up: Some(true), ..KernelState::default() },
            now_s: 0,
            events: Vec::new(),
        };
        for repair in world.reconciler.begin(&[], &BTreeSet::new()) {
            world.apply(repair);
        }
        let route = Route { to: PEER, from: LOCAL, mtu_bytes: 1_398 };
        world.reconciler.handle_route(PEER, Some(route));
        world.apply(Repair::SetRoute(PEER));
        world
    }

    fn apply(&mut self, repair: Repair) {
        let kernel = &mut self.kernel;
        match repair {
            Repair::MakeDevice => kernel.device_is_up = Some(true),
            Repair::RaiseDevice => kernel.device_is_up = Some(true),
            Repair::StopFilter => kernel.device_filters = false,
            Repair::DeleteRule(rule) => kernel.rules.retain(|other| *other != rule),
            Repair::AddRule(rule) => kernel.rules.push(rule),
            Repair::SetRoute(to) => {
                kernel.routes.retain(|route| route.to != to);
                kernel.routes.extend(self.reconciler.route(to));
            }
            Repair::DeleteRoute(to) => kernel.routes.retain(|route| route.to != to),
        }
    }

    /// Observes the kernel a second later, with a new heartbeat, and applies the repairs.
    fn pass(&mut self) -> Vec<Repair> {
        self.kernel.beats += 1;
        self.pass_without_beat()
    }

    fn pass_without_beat(&mut self) -> Vec<Repair> {
        self.now_s += 1;
        let repairs = self.reconciler.handle_observed(at(self.now_s), &self.kernel);
        repairs.iter().for_each(|repair| self.apply(*repair));
        self.events.extend(std::iter::from_fn(|| self.reconciler.poll_event()));
        repairs
    }
}

/// #48: each change by another program is repaired by the next observation.
#[test]
fn each_fault_is_repaired_at_the_next_observation() {
    type Change = fn(&mut KernelState);
    let changes: [(Fault, Change); 5] = [
        (Fault::DeviceDeleted, |kernel| {
            kernel.device_is_up = None;
            kernel.routes.clear();
        }),
        (Fault::DeviceDown, |kernel| {
            kernel.device_is_up = Some(false);
            kernel.routes.clear();
        }),
        (Fault::ReversePathFilter, |kernel| (kernel.device_filters, kernel.host_filters) = (true, true)),
        (Fault::RulesRemoved, |kernel| kernel.rules.clear()),
        (Fault::RoutesRemoved, |kernel| kernel.routes[0].mtu_bytes = 9_000),
    ];
    for (fault, change) in changes {
        let mut world = World::new();
        assert_eq!(world.pass(), [], "nothing to do");
        change(&mut world.kernel);
        world.pass();
        // A new device has no routes yet.
        world.pass();
        assert_eq!(world.pass(), [], "{fault}");
        assert_eq!(world.events[0], Event::Found(fault));
        assert_eq!(world.reconciler.fault(), None);
        assert_eq!(world.kernel.device_is_up, Some(true));
        assert_eq!((world.kernel.routes.len(), world.kernel.routes[0].mtu_bytes), (1, 1_398));
        assert_eq!(world.kernel.rules.len(), if fault == Fault::ReversePathFilter { 7 } else { 4 });
    }
}

/// #48: repairs stop after [`REPAIRS_MAX`] repairs against a persistent program, and resume after
/// the hold.
#[test]
fn repairs_of_a_recurring_fault_pause() {
    let mut world = World::new();
    for _ in 0..REPAIRS_MAX {
        world.kernel.rules.clear();
        assert_ne!(world.pass(), []);
        assert_eq!(world.reconciler.fault(), None);
    }
    world.kernel.rules.clear();
    assert_eq!(world.pass(), []);
    assert_eq!(world.reconciler.fault(), Some(Fault::RulesRemoved));
    assert_eq!(
        world.events,
        [Event::Found(Fault::RulesRemoved), Event::GaveUp(Fault::RulesRemoved, HOLD_MIN)]
    );
    for _ in 0..59 {
        assert_eq!(world.pass(), []);
    }
    // A failed attempt is followed by another hold.
    assert_ne!(world.pass(), []);
    world.kernel.rules.clear();
    assert_eq!(world.pass(), []);
    for _ in 0..59 {
        assert_eq!(world.pass(), []);
    }
    assert_ne!(world.pass(), []);
    assert_eq!(world.reconciler.fault(), Some(Fault::RulesRemoved));
    assert_eq!(world.pass(), []);
    assert_eq!(world.reconciler.fault(), None);
    assert_eq!(world.events.last(), Some(&Event::Recovered));
}

/// #48: the same number of repairs over a longer time does not stop the repairs.
#[test]
fn rare_faults_are_always_repaired() {
    let mut world = World::new();
    for _ in 0..REPAIRS_MAX * 4 {
        world.kernel.routes.clear();
        assert_eq!(world.pass(), [Repair::SetRoute(PEER)]);
        for _ in 0..FAULT_WINDOW.as_secs_f64() as usize / REPAIRS_MAX {
            assert_eq!(world.pass(), []);
        }
    }
    assert_eq!(world.reconciler.fault(), None);
}

/// #48: no repair exists for another program's rule before the agent's rules.
#[test]
fn bypassed_route_is_given_up_immediately() {
    let mut world = World::new();
    world.kernel.bypassed = vec![PEER];
    assert_eq!(world.pass(), []);
    assert_eq!(world.reconciler.fault(), Some(Fault::Bypassed));
    world.reconciler.handle_route(PEER, None);
    for _ in 0..HOLD_MIN.as_secs_f64() as usize {
        world.pass();
    }
    assert_eq!(world.reconciler.fault(), None, "the next route shows whether it is still so");
    let route = Route { to: PEER, from: LOCAL, mtu_bytes: 1_398 };
    world.reconciler.handle_route(PEER, Some(route));
    world.apply(Repair::SetRoute(PEER));
    world.pass();
    assert_eq!(world.events.last(), Some(&Event::GaveUp(Fault::Bypassed, HOLD_MIN * 2)));
}

/// #48: after a refused repair TCP takes the ordinary route until a repair succeeds.
#[test]
fn refused_repair_is_a_fault_until_a_repair_succeeds() {
    let mut world = World::new();
    world.kernel.routes.clear();
    world.kernel.beats = 1;
    world.now_s = 1;
    assert_eq!(world.reconciler.handle_observed(at(1), &world.kernel), [Repair::SetRoute(PEER)]);
    world.reconciler.handle_refused(at(1), &Repair::SetRoute(PEER));
    assert_eq!(world.reconciler.fault(), Some(Fault::RoutesRemoved));
    assert_eq!(world.pass(), []);
    assert_eq!(world.pass(), [Repair::SetRoute(PEER)]);
    assert_eq!(world.pass(), []);
    assert_eq!(world.reconciler.fault(), None);
}

/// #48: routes of a stalled forwarding thread are restored only after its next heartbeat.
#[test]
fn stalled_forwarding_stops_repairs_until_the_next_heartbeat() {
    let mut world = World::new();
    world.pass();
    for _ in 1..STALLS_MAX {
        world.pass_without_beat();
        assert_eq!(world.reconciler.fault(), None);
    }
    world.kernel.routes.clear();
    assert_eq!(world.pass_without_beat(), []);
    assert_eq!(world.reconciler.fault(), Some(Fault::Standstill));
    assert_eq!(world.pass(), [Repair::SetRoute(PEER)]);
    assert_eq!(world.reconciler.fault(), None);
}

/// #48: stale rules of any table are deleted; rules of running agents and of other programs stay.
#[test]
fn stale_rules_of_other_tables_are_deleted() {
    let peers = vec![PeerEndpoint { address: PEER, local: LOCAL, port: 7_200 }];
    let left = |table| rules(table, 7_200, &peers, true).into_iter().collect::<Vec<_>>();
    let foreign = |rules: Vec<Rule>| rules.into_iter().map(|rule| Rule { protocol: 3, ..rule });
    let (dead, live) = (left(8_000), left(9_000));
    let old_own: Vec<Rule> = foreign(left(7_200)).collect();
    let other_form = Rule { priority: 5, ..dead[0] };
    let all: Vec<Rule> = [&dead[..], &live, &old_own, &[other_form]]
        .concat()
        .into_iter()
        .chain(foreign(left(6_000)))
        .collect();
    let agent = Reconciler::new(7_200, 7_200, peers.clone(), false);
    let repairs = agent.begin(&all, &BTreeSet::from([9_000]));
    let deleted: Vec<Rule> = repairs
        .iter()
        .filter_map(|repair| match repair {
            Repair::DeleteRule(rule) => Some(*rule),
            _ => None,
        })
        .collect();
    assert_eq!(deleted, [dead, old_own].concat());
    assert_eq!(repairs.len(), deleted.len() + 4);
}

/// #52: peers are added and removed while the agent runs.
#[test]
fn rules_follow_added_and_removed_peers() {
    let mut world = World::new();
    let place =
        |last: u8| PeerEndpoint { address: Ipv4Addr::new(10, 0, 0, last).into(), local: LOCAL, port: 7_200 };
    let change = |world: &mut World, peers: Vec<PeerEndpoint>| {
        let repairs = world.reconciler.handle_peers(peers.clone());
        repairs.iter().for_each(|repair| world.apply(*repair));
        let has: BTreeSet<Rule> = world.kernel.rules.iter().copied().collect();
        assert_eq!((has.len(), has), (world.kernel.rules.len(), rules(7_200, 7_200, &peers, false)));
        repairs
    };
    let added = change(&mut world, vec![place(2), place(3)]);
    assert!(added.len() == 3 && added.iter().all(|repair| matches!(repair, Repair::AddRule(_))), "{added:?}");
    assert_eq!(world.reconciler.routed().collect::<Vec<_>>(), [PEER], "a peer that stays keeps its route");
    assert_eq!(change(&mut world, vec![place(2), place(3)]), []);
    change(&mut world, vec![place(3)]);
    assert_eq!(world.reconciler.routed().count(), 0);
    assert_eq!(world.pass(), [Repair::DeleteRoute(PEER)]);
    change(&mut world, Vec::new());
    assert!(world.kernel.rules.is_empty() && world.reconciler.families().is_empty());
    assert_eq!((world.pass(), world.events.len()), (Vec::new(), 0), "no fault is seen in any of it");
}
