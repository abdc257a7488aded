//! Random trees for tests, and their manifests.

use crate::metadata::{Account, Metadata, Ownership, Xattr};
use crate::{AllAttributes, Attributes, Builder, Entry, FileTime, Kind, LinkPath, Name, NodeHash, Target};
use anabranch_pieces::FileHash;
use anabranch_units::{RandomStream, Seed};
use std::collections::BTreeMap;

/// Nodes by hash.
pub(crate) type Nodes = BTreeMap<NodeHash, Vec<u8>>;

/// A tree as it is kept in tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    Leaf(Kind),
    Directory(Attributes, BTreeMap<Name, Tree>),
}

pub(crate) fn attributes(mode: u32, seconds: i64) -> Attributes {
    Attributes { mode, modified: FileTime::new(seconds, 7).expect("fewer than a second") }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name of the test")
}

pub(crate) fn file(content: u64) -> Kind {
    let hash = FileHash(*blake3::hash(&content.to_le_bytes()).as_bytes());
    Kind::File { attributes: attributes(0o644, 1_700_000_000), size_bytes: content % 5_000, content: hash }
}

/// A tree of `names` numbered files in one directory.
pub(crate) fn flat(names: impl IntoIterator<Item = u64>) -> BTreeMap<Name, Tree> {
    names.into_iter().map(|n| (name(&format!("file-{n:08}")), Tree::Leaf(file(n)))).collect()
}

fn random_kind(draws: &mut RandomStream) -> Kind {
    let seconds = i64::try_from(draws.below(1 << 40)).expect("40 bits") - (1 << 39);
    let modified = FileTime::new(seconds, draws.below(1_000_000_000)).expect("fewer than a second");
    match draws.below(10) {
        0 => Kind::SymbolicLink { modified, target: Target::new(b"../elsewhere").expect("a target") },
        1 => Kind::HardLink { path: LinkPath::new(b"!").expect("a path before all names") },
        _ => {
            let content = draws.below(200);
            let mode = 0o600 | u32::try_from(draws.below(0o100)).expect("six bits");
            let Kind::File { size_bytes, content, .. } = file(content) else { unreachable!("a file") };
            Kind::File { attributes: Attributes { mode, modified }, size_bytes, content }
        }
    }
}

fn random_name(draws: &mut RandomStream, of: u64) -> Name {
    // Any byte but a slash and a zero may stand in a name.
    let odd = [0xffu8, b'\n', b' ', 0xc3, b'.', b'x'][draws.below(6) as usize];
    let mut bytes = format!("{:x}", draws.below(of)).into_bytes();
    bytes.push(odd);
    Name::new(&bytes).expect("neither empty nor dots alone")
}

/// Random entries, in directories at most `depth` deep; some three of them are directories.
pub(crate) fn random(draws: &mut RandomStream, entries: u64, depth: u32) -> BTreeMap<Name, Tree> {
    let mut tree = BTreeMap::new();
    for _ in 0..draws.below(entries + 1) {
        let below = depth > 0 && draws.below(entries) < 6;
        let child = if below {
            Tree::Directory(attributes(0o755, 0), random(draws, entries / 2, depth - 1))
        } else {
            Tree::Leaf(random_kind(draws))
        };
        tree.insert(random_name(draws, entries * 4), child);
    }
    tree
}

/// Edits a tree at `edits` random places.
pub(crate) fn edit(draws: &mut RandomStream, tree: &mut BTreeMap<Name, Tree>, edits: u64) {
    for _ in 0..edits {
        let place = draws.below(tree.len() as u64 + 1) as usize;
        let existing = tree.keys().nth(place).cloned();
        match (draws.below(4), existing) {
            (0, Some(existing)) => {
                tree.remove(&existing);
            }
            (1, Some(existing)) => match tree.get_mut(&existing) {
                Some(Tree::Directory(_, below)) => edit(draws, below, 1 + draws.clone().below(3)),
                _ => {
                    tree.insert(existing, Tree::Leaf(random_kind(draws)));
                }
            },
            // A rename.
            (2, Some(existing)) => {
                let moved = tree.remove(&existing).expect("the key was just found");
                tree.insert(random_name(draws, 1_000), moved);
            }
            _ => {
                let new = if draws.below(3) == 0 {
                    Tree::Directory(attributes(0o700, 5), random(draws, 6, 1))
                } else {
                    Tree::Leaf(random_kind(draws))
                };
                tree.insert(random_name(draws, 1_000), new);
            }
        }
    }
}

pub(crate) fn draws(name: &str, id: u64) -> RandomStream {
    Seed::new(54).stream(name, id)
}

/// Random metadata: an owner, attributes, both or nothing.
pub(crate) fn metadata(draws: &mut RandomStream, has_xattrs: bool) -> Option<Box<Metadata>> {
    let mut account = || {
        let number = u32::try_from(draws.below(1 << 20)).expect("20 bits");
        let name = ["", "alice", "b\u{f6}b"][draws.below(3) as usize];
        Account::new(number, (!name.is_empty()).then_some(name)).expect("a name of the test")
    };
    let owner = Ownership { user: account(), group: account() };
    let owner = (draws.below(2) == 0).then_some(owner);
    let names = ["system.posix_acl_access", "user.a", "user.a.b", "user.\u{fc}"];
    let mut xattrs = Vec::new();
    for name in names.iter().filter(|_| has_xattrs) {
        if draws.below(3) == 0 {
            let value = vec![0xa5; draws.below(300) as usize];
            xattrs.push(Xattr::new(name.as_bytes(), &value).expect("a name of the test"));
        }
    }
    Metadata::new(owner, xattrs).expect("sorted names and few bytes")
}

/// Finds the metadata of an entry by its name.
pub(crate) type FindMetadata = fn(&Name, &Kind) -> Option<Box<Metadata>>;

fn no_metadata(_: &Name, _: &Kind) -> Option<Box<Metadata>> {
    None
}

/// Metadata that an entry's name determines.
pub(crate) fn metadata_by_name(name: &Name, kind: &Kind) -> Option<Box<Metadata>> {
    let id = anabranch_units::fnv1a(name.as_bytes().iter().copied());
    match kind {
        Kind::HardLink { .. } => None,
        Kind::SymbolicLink { .. } => metadata(&mut draws("metadata", id), false),
        Kind::File { .. } | Kind::Directory { .. } => metadata(&mut draws("metadata", id), true),
    }
}

fn add_all(
    builder: &mut Builder,
    tree: &BTreeMap<Name, Tree>,
    find: FindMetadata,
    out: &mut impl FnMut(NodeHash, &[u8]),
) {
    for (name, child) in tree {
        match child {
            Tree::Leaf(kind) => {
                let metadata = find(name, kind);
                let entry = Entry { name: name.clone(), kind: kind.clone(), metadata };
                builder.add(&entry, out).expect("names in order");
            }
            Tree::Directory(attributes, below) => {
                builder.enter(name.clone()).expect("names in order");
                add_all(builder, below, find, out);
                let attributes = *attributes;
                let kind = Kind::Directory { attributes, tree: NodeHash([0; 32]) };
                let all = AllAttributes { attributes, metadata: find(name, &kind) };
                builder.leave(all, out).expect("a mode of the test");
            }
        }
    }
}

/// Adds the manifest of a tree to `nodes`, and returns its snapshot's id.
pub(crate) fn manifest(tree: &BTreeMap<Name, Tree>, nodes: &mut Nodes) -> NodeHash {
    manifest_with(tree, no_metadata, nodes)
}

/// Does the same as [`manifest`], with metadata.
pub(crate) fn manifest_with(tree: &BTreeMap<Name, Tree>, find: FindMetadata, nodes: &mut Nodes) -> NodeHash {
    let mut out = |hash, node: &[u8]| {
        nodes.insert(hash, node.to_vec());
    };
    let mut builder = Builder::new();
    add_all(&mut builder, tree, find, &mut out);
    let attributes = attributes(0o755, 0);
    let root = Kind::Directory { attributes, tree: NodeHash([0; 32]) };
    let metadata = find(&name("root"), &root);
    builder.finish(Some(AllAttributes { attributes, metadata }), &mut out).expect("a mode of the test")
}

/// Entries by path. A directory's hash is left out: its entries are listed themselves.
pub(crate) fn paths(tree: &BTreeMap<Name, Tree>) -> BTreeMap<Vec<u8>, Kind> {
    let mut found = BTreeMap::new();
    for (name, child) in tree {
        match child {
            Tree::Leaf(kind) => {
                found.insert(name.as_bytes().to_vec(), kind.clone());
            }
            Tree::Directory(attributes, below) => {
                let tree = NodeHash([0; 32]);
                found.insert(name.as_bytes().to_vec(), Kind::Directory { attributes: *attributes, tree });
                for (path, kind) in paths(below) {
                    found.insert([name.as_bytes(), b"/", path.as_slice()].concat(), kind);
                }
            }
        }
    }
    found
}
