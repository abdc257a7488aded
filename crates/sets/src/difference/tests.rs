//! Differences of random trees, of large ones, and of hostile ones.

use super::*;
use crate::cursor::TreeError;
use crate::node::{self, Child, ITEMS_MAX, Items, Node};
use crate::renames::Renames;
use crate::samples::{Nodes, Tree, attributes, draws, edit, file, flat, manifest, name, paths, random};
use crate::{Kind, LinkPath, Name, compare_paths};
use std::collections::BTreeMap;

fn changes(nodes: &Nodes, before: Option<NodeHash>, after: NodeHash) -> (Vec<Change>, u64) {
    let mut difference = Difference::new(nodes, before, after);
    let mut found = Vec::new();
    while let Some(change) = difference.poll().expect("all nodes are there") {
        found.push(change);
    }
    (found, difference.nodes_read())
}

/// A kind without a directory's hash.
fn plain(kind: Kind) -> Kind {
    match kind {
        Kind::Directory { attributes, .. } => Kind::Directory { attributes, tree: NodeHash([0; 32]) },
        kind => kind,
    }
}

fn apply(to: &mut BTreeMap<Vec<u8>, Kind>, changes: Vec<Change>) {
    let mut moved = Vec::new();
    // A rename's source may be replaced by a later or an earlier change: contents move last.
    for change in changes {
        match change {
            Change::Root { .. } => {}
            Change::Added { path, entry } => {
                assert_eq!(to.insert(path, plain(entry.kind)), None);
            }
            Change::Removed { path, entry } => {
                assert_eq!(to.remove(&path), Some(plain(entry.kind)));
            }
            Change::Changed { path, before, after } => {
                assert_eq!(to.insert(path, plain(after.kind)), Some(plain(before.kind)));
            }
            Change::Renamed { from, path, entry } => moved.push((from, path, entry)),
        }
    }
    for (from, _, entry) in &moved {
        let old = to.remove(from).expect("a rename has a source");
        assert!(old.has_content_of(&entry.kind));
    }
    for (_, path, entry) in moved {
        assert_eq!(to.insert(path, plain(entry.kind)), None);
    }
}

fn path_of(change: &Change) -> &[u8] {
    match change {
        Change::Root { .. } => &[],
        Change::Added { path, .. }
        | Change::Removed { path, .. }
        | Change::Changed { path, .. }
        | Change::Renamed { path, .. } => path,
    }
}

#[test]
fn a_difference_turns_one_tree_into_the_other() {
    let mut renamed = 0;
    for id in 0..300 {
        let mut draws = draws("differences", id);
        let before = random(&mut draws, if id % 10 == 0 { 3_000 } else { 40 }, 3);
        let mut after = if id % 7 == 0 { random(&mut draws, 40, 2) } else { before.clone() };
        let edits = draws.below(20);
        edit(&mut draws, &mut after, edits);
        let mut nodes = Nodes::new();
        let (old, new) = (manifest(&before, &mut nodes), manifest(&after, &mut nodes));
        let (found, _) = changes(&nodes, Some(old), new);
        for are_removed in [true, false] {
            let mut half: Vec<&Change> = found.iter().collect();
            half.retain(|change| matches!(change, Change::Removed { .. }) == are_removed);
            assert!(half.is_sorted_by(|a, b| compare_paths(path_of(a), path_of(b)).is_lt()), "seed {id}");
        }
        let mut tree = paths(&before);
        apply(&mut tree, found.clone());
        assert_eq!(tree, paths(&after), "seed {id}");

        let mut renames = Renames::default();
        found.iter().for_each(|change| renames.note(change));
        assert_eq!(renames.ignored(), 0);
        let pairs = renames.pair();
        renamed += pairs.len();
        let mut tree = paths(&before);
        let joined: Vec<Change> = found.into_iter().filter_map(|change| pairs.apply(change)).collect();
        apply(&mut tree, joined);
        assert_eq!(tree, paths(&after), "seed {id}");
    }
    assert!(renamed > 100, "{renamed}");
}

#[test]
fn a_listing_has_all_entries_in_order() {
    for id in 0..50 {
        let tree = random(&mut draws("listings", id), 500, 3);
        let mut nodes = Nodes::new();
        let id = manifest(&tree, &mut nodes);
        let (found, _) = changes(&nodes, None, id);
        let mut listed = BTreeMap::new();
        apply(&mut listed, found);
        assert_eq!(listed, paths(&tree));
    }
}

#[test]
fn equal_snapshots_read_no_node() {
    let mut nodes = Nodes::new();
    let id = manifest(&flat(0..1_000), &mut nodes);
    assert_eq!(changes(&nodes, Some(id), id), (Vec::new(), 0));
}

#[test]
fn few_changed_names_read_few_nodes() {
    let tree = flat((0..200_000).map(|n| n * 10));
    let mut nodes = Nodes::new();
    let before = manifest(&tree, &mut nodes);
    for k in [1u64, 4, 16, 64] {
        let mut draws = draws("few", k);
        let mut after = tree.clone();
        for _ in 0..k {
            let place = draws.below(200_000) * 10;
            match draws.below(3) {
                0 => after.extend(flat([place | 1])),
                1 => drop(after.remove(&name(&format!("file-{place:08}")))),
                _ => drop(after.insert(name(&format!("file-{place:08}")), Tree::Leaf(file(1)))),
            }
        }
        let after = manifest(&after, &mut nodes);
        let (found, read) = changes(&nodes, Some(before), after);
        assert!(found.len() as u64 <= k && found.len() as u64 * 2 > k);
        // Both snapshots and roots, and on each side an index and three leaves for each name.
        assert!(read <= 4 + 8 * k, "{read} nodes for {k} names");
    }
}

#[test]
fn a_renamed_directory_moves_no_content() {
    let mut tree = flat(0..50);
    tree.insert(name("old"), Tree::Directory(attributes(0o755, 0), flat(1_000..1_300)));
    let mut nodes = Nodes::new();
    let before = manifest(&tree, &mut nodes);
    let moved = tree.remove(&name("old")).expect("it was just added");
    tree.insert(name("new"), moved);
    let after = manifest(&tree, &mut nodes);
    let (found, _) = changes(&nodes, Some(before), after);
    let mut renames = Renames::default();
    found.iter().for_each(|change| renames.note(change));
    let pairs = renames.pair();
    // The length of a content is its number modulo 5,000, so at most one of these contents is
    // empty.
    assert_eq!(pairs.len(), 300);
    let left: Vec<Change> = found.into_iter().filter_map(|change| pairs.apply(change)).collect();
    let files = left.iter().filter(|change| matches!(change, Change::Renamed { .. })).count();
    assert_eq!((left.len(), files), (302, 300), "the directory itself is added and removed");
}

#[test]
fn attributes_alone_are_metadata() {
    let mut tree = flat(0..3);
    tree.insert(name("d"), Tree::Directory(attributes(0o755, 0), flat(0..3)));
    let mut nodes = Nodes::new();
    let before = manifest(&tree, &mut nodes);
    tree.insert(name("d"), Tree::Directory(attributes(0o700, 0), flat(1..3)));
    let Some(Tree::Leaf(Kind::File { attributes, .. })) = tree.get_mut(&name("file-00000002")) else {
        unreachable!("a file of the test")
    };
    attributes.mode = 0o600;
    let after = manifest(&tree, &mut nodes);
    let (found, _) = changes(&nodes, Some(before), after);
    let shown: Vec<(&[u8], bool)> = found.iter().map(|c| (path_of(c), c.is_metadata_only())).collect();
    assert_eq!(shown, [(&b"d"[..], true), (b"d/file-00000000", false), (b"file-00000002", true)]);
}

#[test]
fn a_missing_node_can_be_given_later() {
    struct Lazy {
        all: Nodes,
        has: Nodes,
    }
    impl Store for Lazy {
        fn node(&mut self, hash: &NodeHash) -> Option<Vec<u8>> {
            self.has.get(hash).cloned()
        }
    }
    let mut draws = draws("lazy", 0);
    let tree = random(&mut draws, 2_000, 3);
    let mut changed = tree.clone();
    edit(&mut draws, &mut changed, 10);
    let mut nodes = Nodes::new();
    let (before, after) = (manifest(&tree, &mut nodes), manifest(&changed, &mut nodes));
    let (expected, read) = changes(&nodes, Some(before), after);
    let mut difference = Difference::new(Lazy { all: nodes, has: Nodes::new() }, Some(before), after);
    let (mut found, mut fetched) = (Vec::new(), 0);
    loop {
        match difference.poll() {
            Ok(Some(change)) => found.push(change),
            Ok(None) => break,
            Err(ReadError::Missing { hash }) => {
                let lazy = difference.store_mut();
                lazy.has.insert(hash, lazy.all[&hash].clone());
                fetched += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(found, expected);
    assert!(fetched <= read, "{fetched} of {read}");
}

fn put(nodes: &mut Nodes, node: &[u8]) -> NodeHash {
    let hash = node::hash(node);
    nodes.insert(hash, node.to_vec());
    hash
}

fn leaf(nodes: &mut Nodes, numbers: std::ops::Range<u64>) -> Child {
    let entries: Vec<Entry> = numbers.map(|n| Entry::new(name(&format!("{n:06}")), file(n))).collect();
    let last = entries.last().expect("not empty").name.clone();
    let node = Node { items: Items::Leaf(entries), is_cut: false };
    Child { last, hash: put(nodes, &node.encode()) }
}

/// The error of reading a tree whose root is this index.
fn refused(nodes: &mut Nodes, level: u8, children: Vec<Child>) -> TreeError {
    let tree = put(nodes, &Node { items: Items::Index { level, children }, is_cut: false }.encode());
    let id = put(nodes, &Snapshot { root: None, tree }.encode());
    let mut difference = Difference::new(&*nodes, None, id);
    loop {
        match difference.poll() {
            Ok(Some(_)) => {}
            Err(ReadError::Node { error, .. }) => return error,
            other => panic!("{other:?}"),
        }
    }
}

/// The end of the leaf that begins at `from`.
fn natural_end(from: u64) -> u64 {
    let name = |n: u64| format!("{n:06}");
    let ends = |n: &u64| node::ends_node(0, (*n - from + 1) as usize, 0, name(*n).as_bytes());
    (from..from + ITEMS_MAX as u64).find(ends).expect("1,024 items end a leaf") + 1
}

#[test]
fn hostile_trees_are_refused() {
    let mut nodes = Nodes::new();
    let end = natural_end(0);
    let (good, next) = (leaf(&mut nodes, 0..end), leaf(&mut nodes, end..end + 5));
    let short = leaf(&mut nodes, 0..end - 1);
    let overlapping = leaf(&mut nodes, end - 3..end + 5);
    let renamed = Child { last: Name::new(b"zz").expect("a name"), hash: next.hash };
    assert_eq!(refused(&mut nodes, 1, vec![good.clone()]), TreeError::Shape);
    assert_eq!(refused(&mut nodes, 1, vec![short, next.clone()]), TreeError::Shape);
    assert_eq!(refused(&mut nodes, 1, vec![good.clone(), overlapping]), TreeError::Names);
    assert_eq!(refused(&mut nodes, 1, vec![good.clone(), renamed]), TreeError::Names);
    assert_eq!(refused(&mut nodes, 2, vec![good.clone(), next.clone()]), TreeError::Level);
    nodes.insert(next.hash, nodes[&good.hash].clone());
    assert_eq!(refused(&mut nodes, 1, vec![good, next]), TreeError::Hash);
}

#[test]
fn hard_links_lead_to_earlier_paths() {
    let poll = |target: &[u8], link: &str| {
        let kind = Kind::HardLink { path: LinkPath::new(target).expect("a path") };
        let tree = BTreeMap::from([
            (name("b"), Tree::Directory(attributes(0o755, 0), flat(0..1))),
            (name(link), Tree::Leaf(kind)),
        ]);
        let mut nodes = Nodes::new();
        let id = manifest(&tree, &mut nodes);
        let mut difference = Difference::new(&nodes, None, id);
        loop {
            match difference.poll() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    assert_eq!(poll(b"b/file-00000000", "c"), Ok(()));
    for (target, link) in [(&b"b/file-00000000"[..], "a"), (b"c", "c"), (b"d", "c")] {
        assert_eq!(poll(target, link), Err(ReadError::LinkOrder { path: link.as_bytes().to_vec() }));
    }
}

#[test]
fn endless_depth_is_refused() {
    let mut nodes = Nodes::new();
    let mut tree = put(&mut nodes, &Node { items: Items::Leaf(Vec::new()), is_cut: false }.encode());
    for _ in 0..DEPTH_MAX + 1 {
        let kind = Kind::Directory { attributes: attributes(0o755, 0), tree };
        let entries = vec![Entry::new(name("d"), kind)];
        tree = put(&mut nodes, &Node { items: Items::Leaf(entries), is_cut: false }.encode());
    }
    let listed = |tree: NodeHash, nodes: &mut Nodes| {
        let id = put(nodes, &Snapshot { root: None, tree }.encode());
        let mut difference = Difference::new(&*nodes, None, id);
        loop {
            match difference.poll() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    assert_eq!(listed(tree, &mut nodes), Err(ReadError::TooDeep));
    let Items::Leaf(entries) = Node::decode(&nodes[&tree]).expect("a node of the test").items else {
        unreachable!("a leaf")
    };
    let less = entries[0].kind.tree().expect("a directory");
    assert_eq!(listed(less, &mut nodes), Ok(()));
}
