//! Exercise of the directory's readers for fuzz targets, and a sample directory.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise`].

use super::names::{RecordKind, Zone};
use super::{
    AddressPrefix, Channel, Directory, DirectoryContents, Edge, EdgeId, Group, PlannedEdge, Rendition,
};
use crate::control::messages::GroupId;
use crate::control::tables::Version;
use crate::{ChannelId, Object};
use anabranch_units::BitRate;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A directory with two groups, two edges, and a channel with two renditions.
///
/// Panics: never, because its texts are valid prefixes and addresses.
pub fn sample() -> DirectoryContents {
    let prefix = |text: &str| text.parse().expect("a prefix");
    let address = |text: &str| text.parse().expect("an address");
    let rendition = |name: &str, bps| Rendition { name: name.to_owned(), bitrate: BitRate::bps(bps) };
    let edge = |name: &str, addresses: &[&str]| Edge {
        name: name.to_owned(),
        url: format!("http://{name}.example:8080"),
        addresses: addresses.iter().map(|text| address(text)).collect(),
        is_open: true,
        objects: Vec::new(),
    };
    let group = |name: &str, prefixes: &[&str], edges: [u32; 2]| Group {
        name: name.to_owned(),
        prefixes: prefixes.iter().map(|text| prefix(text)).collect(),
        edges: edges.map(EdgeId).into(),
    };
    let object = Object { channel: ChannelId(0), bitrate: BitRate::bps(200_000) };
    DirectoryContents {
        version: Version { lead: 1, decision: 1 },
        channels: vec![Channel {
            name: "news".to_owned(),
            renditions: vec![rendition("high", 1_400_000), rendition("low", 200_000)],
        }],
        edges: vec![edge("edge-1", &["198.51.100.1"]), edge("edge-2", &["198.51.100.2", "2001:db8::2"])],
        groups: vec![
            group("paris", &["10.1.0.0/16"], [0, 1]),
            group("lyon", &["10.0.0.0/8", "2001:db8::/32"], [0, 1]),
        ],
        default_group: None,
        places: vec![PlannedEdge { group: GroupId(1), object, edge: EdgeId(1) }],
    }
}

/// Reads a directory, resolves its names at the ends of its prefixes, and writes the directory.
/// Returns whether it has no defect.
///
/// Panics: if an answer differs within its scope, or a round trip changes the directory.
pub fn exercise(bytes: &[u8]) -> bool {
    let Ok(directory) = Directory::read(bytes) else { return false };
    let zone = Zone::new("live.example", Vec::new()).expect("a name");
    let contents = directory.contents();
    let prefixes = contents.groups.iter().flat_map(|group| &group.prefixes);
    let ends = prefixes.take(64).flat_map(|prefix| ends(*prefix));
    let zeros = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    for viewer in ends.chain(zeros) {
        let (group, scope) = directory.group_of(viewer);
        let block = AddressPrefix::around(viewer, scope).expect("a scope is at most the address's length");
        for other in ends_of_block(block) {
            assert_eq!(directory.group_of(other).0, group, "{viewer}/{scope} has one group");
        }
        for channel in contents.channels.iter().take(4) {
            let labels = [channel.name.as_bytes(), b"live", b"example"];
            zone.resolve(&directory, labels, RecordKind::A, viewer);
        }
    }
    let text = serde_json::to_vec(&directory).expect("a directory has a text form");
    assert_eq!(Directory::read(&text).as_ref(), Ok(&directory), "the text form keeps the directory");
    true
}

/// First and last address of a prefix.
fn ends_of_block(prefix: AddressPrefix) -> [IpAddr; 2] {
    let ones = |width: u32| u128::MAX.checked_shr(128 - width + u32::from(prefix.length())).unwrap_or(0);
    let last = match prefix.address() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() | ones(32) as u32).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() | ones(128)).into(),
    };
    [prefix.address(), last]
}

/// The first and last address of a prefix, and their neighbours outside the prefix.
fn ends(prefix: AddressPrefix) -> Vec<IpAddr> {
    let [first, last] = ends_of_block(prefix);
    let (before, after) = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => (
            Ipv4Addr::from_bits(first.to_bits().wrapping_sub(1)).into(),
            Ipv4Addr::from_bits(last.to_bits().wrapping_add(1)).into(),
        ),
        (IpAddr::V6(first), IpAddr::V6(last)) => (
            Ipv6Addr::from_bits(first.to_bits().wrapping_sub(1)).into(),
            Ipv6Addr::from_bits(last.to_bits().wrapping_add(1)).into(),
        ),
        _ => unreachable!("both ends of a prefix are of its family"),
    };
    vec![before, first, last, after]
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_testing::replay;

    #[test]
    fn fuzz_corpus_results_match_the_file_names() {
        assert!(replay("live_directory", exercise) >= 8);
    }

    #[test]
    fn sample_directory_has_no_defect() {
        let text = serde_json::to_vec(&sample()).expect("it has a text form");
        assert!(exercise(&text));
    }
}
