//! The encoding of nodes: one encoding for each node, and each limit on both sides.

use super::*;
use crate::Builder;
use crate::samples::{Nodes, attributes, draws, file, flat, manifest, name, random};
use proptest::prelude::*;

fn leaf(names: &[&str]) -> Node {
    let entries = names.iter().map(|text| Entry::new(name(text), file(1))).collect();
    Node { items: Items::Leaf(entries), is_cut: false }
}

fn decoded(bytes: &[u8]) -> Result<Node, NodeError> {
    Node::decode(bytes)
}

#[test]
fn nodes_of_random_trees_survive_encoding() {
    let mut kinds = [0; 4];
    for id in 0..200 {
        let mut nodes = Nodes::new();
        let root = manifest(&random(&mut draws("nodes", id), 400, 3), &mut nodes);
        for (hash, bytes) in &nodes {
            assert!(exercise(bytes), "seed {id}");
            assert_eq!(super::hash(bytes), *hash);
            if *hash == root {
                assert_eq!(Snapshot::decode(bytes).map(|snapshot| snapshot.id()), Ok(root));
            } else if let Items::Leaf(entries) = decoded(bytes).expect("nodes that are no root").items {
                for entry in entries {
                    let number = match entry.kind {
                        Kind::File { .. } => 0,
                        Kind::Directory { .. } => 1,
                        Kind::SymbolicLink { .. } => 2,
                        Kind::HardLink { .. } => 3,
                    };
                    kinds[number] += 1;
                }
            }
        }
    }
    assert!(kinds.iter().all(|count| *count > 100), "{kinds:?}");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise(&bytes);
        exercise(&[&[FORMAT, 0, 3], bytes.as_slice()].concat());
        exercise(&[&[FORMAT, 1, 2], bytes.as_slice()].concat());
    }

    #[test]
    fn changed_bytes_decode_to_themselves_or_not(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = leaf(&["alpha", "alphabet", "beta"]).encode();
        let at = at.index(bytes.len());
        bytes[at] = to;
        exercise(&bytes);
    }

    #[test]
    fn numbers_have_one_encoding(value in any::<u64>()) {
        let mut bytes = Vec::new();
        put_number(&mut bytes, value);
        prop_assert_eq!(Input(&bytes).number(), Ok(value));
        let last = bytes.pop().expect("a number has a byte");
        bytes.extend_from_slice(&[last | 0x80, 0]);
        prop_assert_eq!(Input(&bytes).number(), Err(NodeError::Number));
    }
}

#[test]
fn numbers_beyond_64_bits_are_refused() {
    let mut bytes = [0xff; 10];
    bytes[9] = 1;
    assert_eq!(Input(&bytes).number(), Ok(u64::MAX));
    bytes[9] = 2;
    assert_eq!(Input(&bytes).number(), Err(NodeError::Number));
    bytes[9] = 0x81;
    assert_eq!(Input(&bytes).number(), Err(NodeError::Number));
}

#[test]
fn names_out_of_order_are_refused() {
    for (names, error) in
        [(["b", "a"], NodeError::Order), (["a", "a"], NodeError::Order), (["ab", "a"], NodeError::Order)]
    {
        assert_eq!(decoded(&leaf(&names).encode()), Err(error), "{names:?}");
    }
    assert!(decoded(&leaf(&["a", "ab"]).encode()).is_ok());
}

#[test]
fn wrong_prefixes_are_refused() {
    let good = leaf(&["ab", "ac"]).encode();
    // The second name begins behind the header and the first entry.
    let second = 3 + (leaf(&["ab"]).encode().len() - 3);
    assert_eq!(good[second..second + 3], [1, 1, b'c']);
    let replaced = |with: &[u8]| [&good[..second], with, &good[second + 3..]].concat();
    assert_eq!(decoded(&replaced(&[0, 2, b'a', b'c'])), Err(NodeError::Prefix));
    assert_eq!(decoded(&replaced(&[3, 1, b'c'])), Err(NodeError::Prefix));
    assert_eq!(decoded(&replaced(&[1, 1, b'a'])), Err(NodeError::Order));
    assert!(decoded(&replaced(&[1, 1, b'd'])).is_ok());
}

#[test]
fn values_of_no_entry_are_refused() {
    let with = |kind: Kind| {
        decoded(&Node { items: Items::Leaf(vec![Entry::new(name("a"), kind)]), is_cut: false }.encode())
    };
    let content = FileHash([0; 32]);
    let of_mode = |mode| Kind::File { attributes: attributes(mode, 0), size_bytes: 0, content };
    assert!(with(of_mode(0o777)).is_ok());
    let refused = Err(NodeError::Entry(EntryError::Mode { mode: 0o4755, allowed: 0o777 }));
    assert_eq!(with(of_mode(0o4755)), refused);
    let directory = |mode| Kind::Directory { attributes: attributes(mode, 0), tree: NodeHash([0; 32]) };
    assert!(with(directory(0o3777)).is_ok());
    assert!(matches!(with(directory(0o4777)), Err(NodeError::Entry(EntryError::Mode { .. }))));
}

#[test]
fn names_and_paths_have_limits() {
    assert!(Name::new(&[b'a'; 255]).is_ok());
    assert_eq!(Name::new(&[b'a'; 256]), Err(EntryError::NameTooLong { bytes: 256 }));
    assert_eq!(Name::new(b"a/b"), Err(EntryError::Slash));
    assert_eq!(Name::new(b"a\0b"), Err(EntryError::Zero));
    for none in ["", ".", ".."] {
        assert_eq!(Name::new(none.as_bytes()), Err(EntryError::NoName));
    }
    assert!(Target::new(&[b'/'; 4_095]).is_ok());
    assert_eq!(Target::new(&[b'/'; 4_096]), Err(EntryError::PathLength { bytes: 4_096 }));
    assert_eq!(Target::new(b""), Err(EntryError::PathLength { bytes: 0 }));
    assert_eq!(Target::new(b"a\0"), Err(EntryError::Zero));
    assert!(LinkPath::new(b"a/b").is_ok());
    for wrong in ["/a", "a/", "a//b", "a/../b", "."] {
        assert_eq!(LinkPath::new(wrong.as_bytes()), Err(EntryError::NoName), "{wrong}");
    }
    assert!(FileTime::new(0, 999_999_999).is_ok());
    assert_eq!(FileTime::new(0, 1_000_000_000), Err(EntryError::Nanoseconds { nanos: 1_000_000_000 }));
}

#[test]
fn headers_and_lengths_are_checked() {
    let good = leaf(&["a"]).encode();
    assert_eq!(decoded(&[&good[..], b"x"].concat()), Err(NodeError::Trailing { bytes: 1 }));
    for short in 0..good.len() {
        assert!(matches!(decoded(&good[..short]), Err(NodeError::TooShort { .. })), "{short} bytes");
    }
    assert_eq!(decoded(&[2, 0, 0]), Err(NodeError::Format { got: 2 }));
    assert_eq!(decoded(&[FORMAT, 9, 0]), Err(NodeError::Level { got: 9 }));
    assert_eq!(decoded(&[FORMAT, 1, 0]), Err(NodeError::Items { items: 0 }));
    assert_eq!(decoded(&[FORMAT, 0, 0x81, 8]), Err(NodeError::Items { items: 1_025 }));
    let long = vec![FORMAT; NODE_BYTES_MAX + 1];
    assert_eq!(decoded(&long), Err(NodeError::TooLong { bytes: NODE_BYTES_MAX + 1 }));
    assert_eq!(decoded(&[FORMAT, 0, 1, 0, 1, b'a', 8]), Err(NodeError::Kind { got: 8 }));
}

#[test]
fn nodes_past_their_boundary_are_refused() {
    let numbered = |count: u64| {
        let entries = (0..count).map(|n| Entry::new(name(&format!("{n:05}")), file(n))).collect();
        Node { items: Items::Leaf(entries), is_cut: false }.encode()
    };
    let ends = (1..=1_024).find(|n| decoded(&numbered(*n)).expect("no boundary before").is_cut);
    let ends = ends.expect("1,024 items always end a node");
    assert!((ITEMS_MIN as u64..=1_024).contains(&ends));
    assert_eq!(decoded(&numbered(ends + 1)), Err(NodeError::Boundary));
}

#[test]
fn long_items_end_nodes_early() {
    let target = Target::new(&[b'x'; 4_095]).expect("the longest");
    let mut builder = Builder::new();
    let mut lengths = Vec::new();
    let mut out = |_, node: &[u8]| lengths.push(node.len());
    for n in 0..200 {
        let mut bytes = [b'y'; 255];
        bytes[..4].copy_from_slice(format!("{n:04}").as_bytes());
        let kind = Kind::SymbolicLink { modified: attributes(0, 0).modified, target: target.clone() };
        let entry = Entry::new(Name::new(&bytes).expect("the longest"), kind);
        builder.add(&entry, &mut out).expect("names in order");
    }
    builder.finish(None, &mut out).expect("no mode");
    let longest = *lengths.iter().max().expect("nodes came out");
    assert!((ITEM_BYTES_CUT..=NODE_BYTES_MAX).contains(&longest), "{longest}");
}

#[test]
fn nodes_have_256_entries_in_the_mean() {
    let mut nodes = Nodes::new();
    manifest(&flat(0..100_000), &mut nodes);
    let mut leaves = Vec::new();
    for bytes in nodes.values() {
        if let Ok(Node { items: Items::Leaf(entries), .. }) = Node::decode(bytes) {
            leaves.push(entries.len());
        }
    }
    let mean = 100_000 / leaves.len();
    assert!((230..=282).contains(&mean), "{mean}");
    assert!(leaves.iter().all(|entries| *entries <= ITEMS_MAX));
    assert!(leaves.iter().filter(|entries| **entries < ITEMS_MIN).count() <= 1, "only the last may be short");
}

#[test]
fn an_insertion_changes_few_nodes() {
    let mut before = Nodes::new();
    let all = flat((0..50_000).map(|n| n * 10));
    manifest(&all, &mut before);
    let mut changed = Vec::new();
    let mut draws = draws("insertions", 0);
    for _ in 0..100 {
        let mut tree = all.clone();
        tree.extend(flat([draws.below(500_000) | 1]));
        let mut after = Nodes::new();
        manifest(&tree, &mut after);
        changed.push(after.keys().filter(|hash| !before.contains_key(hash)).count());
    }
    let total: usize = changed.iter().sum();
    // The leaf, its index and the snapshot; where a boundary moved, some neighbours.
    assert!(total <= 5 * changed.len(), "{changed:?}");
    assert!(changed.iter().all(|count| (3..=12).contains(count)), "{changed:?}");
}

#[test]
fn the_builder_holds_nodes_not_entries() {
    let mut builder = Builder::new();
    let (mut nodes, mut held) = (0usize, 0);
    let mut out = |_, _: &[u8]| nodes += 1;
    const DEPTH: usize = 8;
    for _ in 0..DEPTH {
        builder.enter(name("d")).expect("a first name");
    }
    for n in 0..200_000u64 {
        let entry = Entry::new(name(&format!("{n:08}")), file(n));
        builder.add(&entry, &mut out).expect("names in order");
        held = held.max(builder.held_bytes());
    }
    for _ in 0..DEPTH {
        builder.leave(attributes(0o755, 0), &mut out).expect("an open directory");
    }
    // Buffers of three levels grow to twice a node's bytes at most.
    assert!(nodes > 700 && held <= 3 * 2 * NODE_BYTES_MAX, "{nodes} nodes, {held} bytes");
}

#[test]
fn names_out_of_order_are_not_built() {
    let mut builder = Builder::new();
    let mut out = |_, _: &[u8]| {};
    let entry = |text| Entry::new(name(text), file(0));
    builder.add(&entry("b"), &mut out).expect("a first name");
    for text in ["b", "a"] {
        let refused = Err(crate::BuildError::Order { name: name(text) });
        assert_eq!(builder.add(&entry(text), &mut out), refused);
        assert_eq!(builder.enter(name(text)), refused);
    }
    for _ in 0..crate::DEPTH_MAX {
        builder.enter(name("c")).expect("not too deep");
    }
    assert_eq!(builder.enter(name("c")), Err(crate::BuildError::TooDeep));
}

#[test]
fn a_single_file_is_a_snapshot_of_one_entry() {
    let mut nodes = Nodes::new();
    let mut out = |hash, node: &[u8]| {
        nodes.insert(hash, node.to_vec());
    };
    let mut builder = Builder::new();
    builder.add(&Entry::new(name("file"), file(3)), &mut out).expect("a first name");
    let id = builder.finish(None, &mut out).expect("no mode");
    let snapshot = Snapshot::decode(&nodes[&id]).expect("the snapshot came out");
    assert_eq!(snapshot.root, None);
    let tree = Node::decode(&nodes[&snapshot.tree]).expect("the tree came out");
    assert_eq!(tree.items, Items::Leaf(vec![Entry::new(name("file"), file(3))]));
}

#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    assert!(anabranch_testing::replay("sets_node", exercise) > 4);
}
