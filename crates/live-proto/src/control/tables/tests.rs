//! Tests of the tables: examples and properties.

use super::*;
use proptest::prelude::*;

fn object(channel: u32, kbps: u64) -> Object {
    Object { channel: ChannelId(channel), bitrate: BitRate::bps(kbps * 1_000) }
}

fn version(decision: u64) -> Version {
    Version { lead: 1, decision }
}

const V0: Prefix = Prefix::Channel(ChannelId(0));
const R1: NodeId = NodeId(1);
const R2: NodeId = NodeId(2);

fn central(prefix: Prefix, next_hop: NodeId, version: Version, evidence: Evidence) -> RibEntry {
    RibEntry { origin: Origin::Central, prefix, next_hop, version, evidence }
}

fn full(version: Version, routes: &[(Prefix, NodeId)]) -> RibUpdate {
    let set = routes.iter().map(|(prefix, node)| central(*prefix, *node, version, Evidence::default()));
    RibUpdate { version, base: None, set: set.collect(), removed: Vec::new() }
}

/// Table 4.1: Link2 fails after version 15:20, so the node overrides all bitrates of V0.
#[test]
fn override_of_table_4_1_wins_until_link_returns() {
    let high = object(0, 800);
    let (ten, fifteen) = (LinkState::Up(BitRate::mbps(10)), LinkState::Up(BitRate::mbps(15)));
    let evidence = Evidence {
        links: vec![(LinkId(1), ten), (LinkId(2), fifteen)],
        viewers: vec![Viewership { object: high, viewers: 3_000 }],
    };
    let at_15_20 = Version { lead: 1, decision: 15 * 60 + 20 };
    let mut rib = Rib::default();
    let set = vec![central(Prefix::Object(high), R2, at_15_20, evidence)];
    rib.install(RibUpdate { version: at_15_20, base: None, set, removed: vec![] }, |_| true).expect("newer");

    let all_is_well =
        |entry: &RibEntry| entry.evidence.is_stale(20, |link| if link == LinkId(1) { ten } else { fifteen });
    assert_eq!(rib.fib(all_is_well).lookup(high), Some(R2));

    let link_2_failed = |entry: &RibEntry| {
        entry.evidence.is_stale(20, |link| if link == LinkId(1) { ten } else { LinkState::Failed })
    };
    assert_eq!(rib.fib(link_2_failed).lookup(high), None);
    let seen = Evidence {
        links: vec![(LinkId(1), ten), (LinkId(2), LinkState::Failed)],
        viewers: vec![Viewership { object: high, viewers: 3_007 }],
    };
    assert!(rib.decide(V0, R1, seen));
    for bitrate in [400, 800] {
        assert_eq!(rib.fib(link_2_failed).lookup(object(0, bitrate)), Some(R1));
    }
    assert!(rib.drop_overrides(link_2_failed).is_empty());

    assert_eq!(rib.route(high, all_is_well).map(|entry| entry.next_hop), Some(R2));
    assert_eq!(rib.drop_overrides(all_is_well), [V0]);
    assert_eq!(rib.fib(all_is_well).lookup(object(0, 400)), None);
}

#[test]
fn evidence_is_stale_from_the_given_percentage() {
    let state = |mbps| LinkState::Up(BitRate::mbps(mbps));
    for (now, is_stale) in [(81, false), (80, true), (119, false), (120, true), (100, false)] {
        assert_eq!(state(now).has_changed(state(100), 20), is_stale, "{now} Mbit/s");
    }
    assert!(LinkState::Failed.has_changed(state(100), 20));
    assert!(state(100).has_changed(LinkState::Failed, 20));
    assert!(!LinkState::Failed.has_changed(LinkState::Failed, 20));
}

#[test]
fn update_with_an_old_version_is_refused() {
    let mut rib = Rib::default();
    rib.install(full(version(5), &[(V0, R1)]), |_| true).expect("newer");
    for old in [version(5), version(4), Version { lead: 0, decision: 9 }] {
        let refused = rib.install(full(old, &[(V0, R2)]), |_| true);
        assert_eq!(refused, Err(UpdateError::Old { version: old, installed: version(5) }));
    }
    assert_eq!(rib.fib(|_| false).lookup(object(0, 1)), Some(R1));
    rib.install(full(Version { lead: 2, decision: 0 }, &[(V0, R2)]), |_| true).expect("a later lead");
}

#[test]
fn update_with_a_defect_is_refused_completely() {
    let mut rib = Rib::default();
    rib.install(full(version(1), &[(V0, R1)]), |_| true).expect("newer");
    let mut bad = full(version(2), &[(Prefix::Any, R1), (V0, R2)]);
    let refused = rib.install(bad.clone(), |node| node == R1);
    assert_eq!(refused, Err(UpdateError::NotAParent(V0, R2)));
    bad.set[1].origin = Origin::Distributed;
    assert_eq!(rib.install(bad.clone(), |_| true), Err(UpdateError::NotCentral(V0)));
    bad.set[1].origin = Origin::Central;
    bad.set[1].evidence.links = vec![(LinkId(0), LinkState::Failed); EVIDENCE_MAX + 1];
    assert_eq!(rib.install(bad.clone(), |_| true), Err(UpdateError::TooMuchEvidence(V0)));
    bad.set[1].evidence.links.pop();
    let base = Some(version(9));
    let other = rib.install(RibUpdate { base, ..bad.clone() }, |_| true);
    assert_eq!(other, Err(UpdateError::OtherBase { base: version(9), installed: version(1) }));
    assert_eq!(rib.fib(|_| false), full_fib(&[(V0, R1)]));
    rib.install(bad, |_| true).expect("no defect is left");
}

#[test]
fn table_accepts_entries_up_to_its_limit() {
    let routes = |count: usize| -> Vec<_> {
        (0..count).map(|channel| (Prefix::Channel(ChannelId(channel as u32)), R1)).collect()
    };
    let mut rib = Rib::default();
    rib.install(full(version(1), &routes(ENTRIES_MAX)), |_| true).expect("at the limit");
    let more = RibUpdate { base: Some(version(1)), ..full(version(2), &[(Prefix::Any, R2)]) };
    let refused = rib.install(more.clone(), |_| true);
    assert_eq!(refused, Err(UpdateError::TooManyEntries(ENTRIES_MAX + 1)));
    rib.install(RibUpdate { removed: vec![V0], ..more }, |_| true).expect("one leaves, one comes");
}

#[test]
fn oldest_shadow_fib_is_dropped_first() {
    let mut shadows = ShadowFibs::default();
    for number in 0..=SHADOW_FIBS_MAX as u64 {
        shadows.keep(version(number), full_fib(&[(V0, R1)]));
    }
    assert!(shadows.of(version(0)).is_none());
    assert!(shadows.of(version(1)).is_some());
}

fn full_fib(routes: &[(Prefix, NodeId)]) -> Fib {
    Fib { routes: routes.iter().copied().collect() }
}

fn prefixes() -> impl Strategy<Value = Prefix> {
    let objects = (0..3u32, 1..3u64).prop_map(|(channel, kbps)| object(channel, kbps));
    prop_oneof![
        Just(Prefix::Any),
        (0..3u32).prop_map(|channel| Prefix::Channel(ChannelId(channel))),
        objects.prop_map(Prefix::Object),
    ]
}

/// Whether `wide` matches every request that `narrow` matches.
fn covers(wide: Prefix, narrow: Prefix) -> bool {
    match (wide, narrow) {
        (Prefix::Any, _) => true,
        (Prefix::Channel(channel), Prefix::Object(object)) => channel == object.channel,
        _ => wide == narrow,
    }
}

proptest! {
    #[test]
    fn lookup_agrees_with_a_search_of_all_routes(
        routes in prop::collection::vec((prefixes(), 0..9u32), 0..12),
        channel in 0..3u32, kbps in 1..3u64,
    ) {
        let routes: BTreeMap<_, _> = routes.into_iter().map(|(prefix, node)| (prefix, NodeId(node))).collect();
        let fib = Fib { routes: routes.clone() };
        let wanted = object(channel, kbps);
        let matching = routes.iter().filter(|(prefix, _)| covers(**prefix, Prefix::Object(wanted)));
        // If two prefixes match one request, one prefix covers the other.
        let longest = matching.reduce(|best, next| if covers(*best.0, *next.0) { next } else { best });
        prop_assert_eq!(fib.lookup(wanted), longest.map(|(_, node)| *node));
    }

    #[test]
    fn override_is_dropped_once_the_plan_routes_its_requests(
        planned in prop::collection::btree_map(prefixes(), any::<bool>(), 0..8), own in prefixes(),
    ) {
        let routes: Vec<_> = planned.keys().map(|prefix| (*prefix, R1)).collect();
        let mut rib = Rib::default();
        rib.install(full(version(1), &routes), |_| true).expect("newer");
        prop_assert!(rib.decide(own, R2, Evidence::default()));
        let dropped = rib.drop_overrides(|entry| planned[&entry.prefix]);
        let under = planned.iter().filter(|(prefix, _)| covers(own, **prefix) && **prefix != own);
        let over = planned.iter().filter(|(prefix, _)| covers(**prefix, own));
        let longest = over.reduce(|best, next| if covers(*best.0, *next.0) { next } else { best });
        let is_routed = longest.map_or(under.clone().count() > 0, |(_, is_stale)| !is_stale);
        prop_assert_eq!(!dropped.is_empty(), is_routed && under.clone().all(|(_, is_stale)| !is_stale));
    }

    #[test]
    fn differential_update_yields_the_same_table_as_full_update(
        before in prop::collection::btree_map(prefixes(), 0..9u32, 0..12),
        after in prop::collection::btree_map(prefixes(), 0..9u32, 0..12),
    ) {
        let routes = |map: &BTreeMap<Prefix, u32>| -> Vec<_> {
            map.iter().map(|(prefix, node)| (*prefix, NodeId(*node))).collect()
        };
        let mut rib = Rib::default();
        rib.install(full(version(1), &routes(&before)), |_| true).expect("newer");
        let changed: BTreeMap<_, _> =
            after.iter().filter(|(prefix, node)| before.get(prefix) != Some(node)).map(|(p, n)| (*p, *n)).collect();
        let removed = before.keys().filter(|prefix| !after.contains_key(prefix)).copied().collect();
        let update = RibUpdate { base: Some(version(1)), removed, ..full(version(2), &routes(&changed)) };
        rib.install(update, |_| true).expect("newer");
        prop_assert_eq!(rib.fib(|_| false), full_fib(&routes(&after)));
    }
}
