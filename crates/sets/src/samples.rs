//! Random trees for tests, and their manifests.

use crate::{Attributes, Builder, Entry, FileTime, Kind, LinkPath, Name, NodeHash, Target};
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

fn add_all(builder: &mut Builder, tree: &BTreeMap<Name, Tree>, out: &mut impl FnMut(NodeHash, &[u8])) {
    for (name, child) in tree {
        match child {
            Tree::Leaf(kind) => {
                builder.add(&Entry { name: name.clone(), kind: kind.clone() }, out).expect("names in order");
            }
            Tree::Directory(attributes, below) => {
                builder.enter(name.clone()).expect("names in order");
                add_all(builder, below, out);
                builder.leave(*attributes, out).expect("a mode of the test");
            }
        }
    }
}

/// Adds the manifest of a tree to `nodes`, and returns its snapshot's id.
pub(crate) fn manifest(tree: &BTreeMap<Name, Tree>, nodes: &mut Nodes) -> NodeHash {
    let mut out = |hash, node: &[u8]| {
        nodes.insert(hash, node.to_vec());
    };
    let mut builder = Builder::new();
    add_all(&mut builder, tree, &mut out);
    builder.finish(Some(attributes(0o755, 0)), &mut out).expect("a mode of the test")
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
