//! Makes the manifest of a tree: `manifest TREE [INDEX]`. Run it under `time` for its cost.
#![allow(clippy::disallowed_methods, reason = "a program on its own")]

use anabranch_disk::tree::Tree;
use anabranch_disk::tree::index::Index;
use anabranch_disk::tree::manifest::read;
use anabranch_sets::filter::Filter;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let mut paths = std::env::args_os().skip(1);
    let tree = Tree::open(Path::new(&paths.next().expect("usage: manifest TREE [INDEX]")))?;
    let index = match (paths.next(), tree.root()?) {
        (Some(path), Some(root)) => Some(Index::open(Path::new(&path), &root)?),
        _ => None,
    };
    let (mut nodes, mut bytes) = (0u64, 0);
    let mut out = |_, node: &[u8]| {
        nodes += 1;
        bytes += node.len();
    };
    let mut report = |path: &[u8], problem: &_| println!("{}: {problem}", path.escape_ascii());
    let found = read(&tree, &Filter::default(), index.as_ref(), &mut out, &mut report)?;
    println!("{}: {nodes} nodes of {bytes} bytes, {:?}", found.id, found.counts);
    let status = std::fs::read_to_string("/proc/self/status")?;
    status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("{line}"));
    Ok(())
}
