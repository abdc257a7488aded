//! Tests of the directory.

use super::*;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

fn kbps(rate: u64) -> BitRate {
    BitRate::bps(1_000 * rate)
}

fn prefix(text: &str) -> AddressPrefix {
    text.parse().expect("a prefix")
}

fn edge(name: &str, is_open: bool, objects: Vec<Object>) -> Edge {
    let url = format!("http://{name}:8080");
    Edge { name: name.to_owned(), url, addresses: vec![[10, 0, 0, 1].into()], is_open, objects }
}

fn group(name: &str, prefixes: &[&str], edges: &[u32]) -> Group {
    let prefixes = prefixes.iter().map(|text| prefix(text)).collect();
    Group { name: name.to_owned(), prefixes, edges: edges.iter().copied().map(EdgeId).collect() }
}

fn object(channel: u32, rate: u64) -> Object {
    Object { channel: ChannelId(channel), bitrate: kbps(rate) }
}

fn contents() -> DirectoryContents {
    let rendition = |name: &str, rate| Rendition { name: name.to_owned(), bitrate: kbps(rate) };
    let renditions = vec![rendition("high", 1_400), rendition("low", 200)];
    DirectoryContents {
        version: Version { lead: 1, decision: 7 },
        channels: vec![Channel { name: "news".to_owned(), renditions }],
        edges: vec![edge("a", true, vec![]), edge("b", true, vec![object(0, 200)]), edge("c", true, vec![])],
        groups: vec![
            group("paris", &["10.0.0.0/8", "2001:db8::/32"], &[0, 1]),
            group("lyon", &["10.1.0.0/16"], &[1, 0]),
        ],
        default_group: None,
        places: vec![PlannedEdge { group: GroupId(0), object: object(0, 200), edge: EdgeId(2) }],
    }
}

#[test]
fn scope_excludes_longer_prefixes_of_neighbours() {
    let directory = Directory::new(contents()).expect("no defect");
    let of = |text: &str| directory.group_of(text.parse().expect("an address"));
    let (paris, lyon) = (Some(GroupId(0)), Some(GroupId(1)));
    assert_eq!(of("10.1.2.3"), (lyon, 16));
    assert_eq!(of("10.0.2.3"), (paris, 16), "10.1.0.0/16 differs");
    assert_eq!(of("10.2.2.3"), (paris, 15), "10.0.0.0/14 has both groups");
    assert_eq!(of("10.128.2.3"), (paris, 9));
    assert_eq!(of("11.0.0.1"), (None, 8));
    assert_eq!(of("192.0.2.1"), (None, 1));
    assert_eq!(of("2001:db8::1"), (paris, 32));
    assert_eq!(of("::ffff:10.1.2.3"), (None, 3), "a mapped address is IPv6");
}

#[test]
fn default_group_shortens_the_scope_of_its_prefixes() {
    let contents = DirectoryContents { default_group: Some(GroupId(0)), ..contents() };
    let directory = Directory::new(contents).expect("no defect");
    assert_eq!(directory.group_of([192, 0, 2, 1].into()), (Some(GroupId(0)), 1));
    assert_eq!(directory.group_of(Ipv6Addr::LOCALHOST.into()), (Some(GroupId(0)), 0));
}

#[test]
fn edges_are_ranked_by_plan_object_and_distance() {
    let low = object(0, 200);
    let mut contents = contents();
    let edge_for = |contents: &DirectoryContents, group: Option<u32>, object| {
        let directory = Directory::new(contents.clone()).expect("no defect");
        directory.edge_for(group.map(GroupId), object)
    };
    assert_eq!(edge_for(&contents, Some(0), low), Some(EdgeId(2)), "the planned edge");
    contents.edges[2].is_open = false;
    assert_eq!(edge_for(&contents, Some(0), low), Some(EdgeId(1)), "an edge that has the object");
    assert_eq!(edge_for(&contents, Some(0), object(0, 1_400)), Some(EdgeId(0)), "the nearest");
    assert_eq!(edge_for(&contents, None, low), Some(EdgeId(1)), "an unmapped viewer");
    contents.edges[1].is_open = false;
    assert_eq!(edge_for(&contents, Some(1), low), Some(EdgeId(0)));
    contents.edges[0].is_open = false;
    assert_eq!(edge_for(&contents, Some(1), low), None);
    assert_eq!(edge_for(&contents, Some(9), low), None, "no such group");
}

#[test]
fn viewers_of_closed_edges_get_another_open_edge() {
    let mut contents = contents();
    contents.edges[0].is_open = false;
    contents.edges[1].is_open = false;
    let directory = Directory::new(contents).expect("no defect");
    let asked = object(0, 1_400);
    assert_eq!(directory.edge_for(Some(GroupId(1)), asked), None);
    assert_eq!(directory.serving_edges(Some(GroupId(1)), asked).collect::<Vec<_>>(), [EdgeId(2)]);
}

#[test]
fn channel_and_rendition_names_find_objects() {
    let directory = Directory::new(contents()).expect("no defect");
    assert_eq!(directory.find("news", "high"), Some(object(0, 1_400)));
    assert_eq!(directory.lowest("news"), Some(object(0, 200)));
    assert_eq!((directory.find("news", "mid"), directory.find("sport", "low")), (None, None));
}

#[test]
fn directory_survives_a_json_round_trip() {
    let directory = Directory::new(contents()).expect("no defect");
    let text = serde_json::to_vec(&directory).expect("it has a text form");
    assert_eq!(Directory::read(&text), Ok(directory));
    let unknown = Directory::read(br#"{"version": {"lead": 1, "decision": 1}, "colour": 1}"#);
    let line = unknown.expect_err("an unknown field").to_string();
    assert!(line.contains("colour") && line.contains("line 1"), "{line}");
}

#[test]
fn each_directory_defect_has_its_message() {
    type Change = fn(&mut DirectoryContents);
    let cases: [(Change, &str); 12] = [
        (|c| c.channels[0].name = "News".to_owned(), "channel `News`: a name has 1 to 63 characters"),
        (|c| c.channels[0].renditions[0].name = "-x".to_owned(), "rendition `-x`"),
        (|c| c.channels.push(c.channels[0].clone()), "channel `news` is listed twice"),
        (|c| c.channels[0].renditions[1].bitrate = kbps(1_400), "two renditions of 1.4 Mbit/s"),
        (|c| c.channels[0].renditions[0].bitrate = BitRate::bps(0), "must be at least 1 bit/s"),
        (|c| c.channels[0].renditions.clear(), "no rendition is listed"),
        (|c| c.edges[0].url = "http://a:80/x".to_owned(), "without a path"),
        (|c| c.groups[0].edges.push(EdgeId(3)), "group `paris`: edge 3: no such edge"),
        (|c| c.groups[1].prefixes.push(prefix("10.0.0.0/8")), "prefix 10.0.0.0/8 is listed twice"),
        (|c| c.default_group = Some(GroupId(2)), "default_group: group 2"),
        (|c| c.places[0].edge = EdgeId(3), "places: edge 3"),
        (
            |c| c.places.push(PlannedEdge { edge: EdgeId(0), ..c.places[0] }),
            "group 0, channel 0 at 200 kbit/s: two places",
        ),
    ];
    for (change, words) in cases {
        let mut contents = contents();
        change(&mut contents);
        let line = Directory::new(contents).expect_err(words).to_string();
        assert!(line.contains(words) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn directory_limits_hold_on_both_sides() {
    let mut contents = contents();
    contents.edges[0].addresses = vec![[10, 0, 0, 1].into(); EDGE_ADDRESSES_MAX];
    assert!(Directory::new(contents.clone()).is_ok());
    contents.edges[0].addresses.push([10, 0, 0, 2].into());
    let line = Directory::new(contents).expect_err("too many").to_string();
    assert_eq!(line, "9 addresses of edge `a`: at most 8 are possible: join or remove some");
}

/// Nested and adjacent prefixes: few bits, at either end of the address space.
fn prefixes(is_ipv4: bool) -> impl Strategy<Value = Vec<(AddressPrefix, GroupId)>> {
    let one =
        (0u8..=8, any::<u8>(), any::<bool>(), 0u32..3).prop_map(move |(length, bits, is_low, group)| {
            let (address, length) = address(is_ipv4, bits, is_low, length);
            (AddressPrefix::around(address, length).expect("a length in range"), GroupId(group))
        });
    proptest::collection::btree_map(0u8..12, one, 0..12).prop_map(|map| {
        let mut seen = BTreeSet::new();
        map.into_values().filter(|(prefix, _)| seen.insert(*prefix)).collect()
    })
}

/// An address whose first or last byte is `bits`, and the prefix length counted within that byte.
fn address(is_ipv4: bool, bits: u8, is_low: bool, length: u8) -> (IpAddr, u8) {
    match (is_ipv4, is_low) {
        (true, false) => (Ipv4Addr::new(bits, 0, 0, 0).into(), length),
        (true, true) => (Ipv4Addr::new(0, 0, 0, bits).into(), length + 24),
        (false, false) => (Ipv6Addr::from_bits(u128::from(bits) << 120).into(), length),
        (false, true) => (Ipv6Addr::from_bits(bits.into()).into(), length + 120),
    }
}

/// The group of an address by a linear scan for the longest prefix.
fn scan(prefixes: &[(AddressPrefix, GroupId)], default: Option<GroupId>, address: IpAddr) -> Option<GroupId> {
    let found = prefixes.iter().filter(|(prefix, _)| prefix.contains(address));
    found.max_by_key(|(prefix, _)| prefix.length()).map(|(_, group)| *group).or(default)
}

/// The address with these bits.
fn of_bits(is_ipv4: bool, bits: u128) -> IpAddr {
    if is_ipv4 { Ipv4Addr::from_bits(bits as u32).into() } else { Ipv6Addr::from_bits(bits).into() }
}

fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Addresses at both ends of the block and of each prefix in it, the only places where the group
/// can change.
fn critical(is_ipv4: bool, block: AddressPrefix, prefixes: &[(AddressPrefix, GroupId)]) -> Vec<IpAddr> {
    let width = if is_ipv4 { 32 } else { 128 };
    let ends = |prefix: AddressPrefix| {
        let first = bits_of(prefix.address());
        let size = 1u128.checked_shl(u32::from(width - prefix.length())).unwrap_or(0);
        [first, first.wrapping_add(size).wrapping_sub(1), first.wrapping_add(size), first.wrapping_sub(1)]
    };
    let all = prefixes.iter().map(|(prefix, _)| *prefix).chain([block]);
    let addresses = all.flat_map(ends).map(|bits| of_bits(is_ipv4, bits));
    addresses.filter(|address| block.contains(*address)).collect()
}

proptest! {
    #[test]
    fn group_lookups_agree_with_a_linear_scan(
        (is_ipv4, prefixes) in any::<bool>().prop_flat_map(|is_ipv4| (Just(is_ipv4), prefixes(is_ipv4))),
        default in proptest::option::of((0u32..3).prop_map(GroupId)),
        bits: u8,
        is_low: bool,
    ) {
        let table = GroupTable::new(prefixes.clone(), default).expect("no prefix is there twice");
        let (asked, _) = address(is_ipv4, bits, is_low, 0);
        let (group, scope) = table.lookup(asked);
        prop_assert_eq!(group, scan(&prefixes, default, asked));
        let block = AddressPrefix::around(asked, scope).expect("a length in range");
        for other in critical(is_ipv4, block, &prefixes) {
            prop_assert_eq!(scan(&prefixes, default, other), group, "{} in {}", other, block);
        }
        if let Some(shorter) = scope.checked_sub(1) {
            let wider = AddressPrefix::around(asked, shorter).expect("a length in range");
            let mut others = critical(is_ipv4, wider, &prefixes).into_iter();
            prop_assert!(others.any(|other| scan(&prefixes, default, other) != group), "{} is enough", wider);
        }
    }
}
