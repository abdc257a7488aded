//! Builds the manifest of a million entries in one directory, and in a thousand, and compares it
//! with one in which a name is new. Run it under `time` for its cost.

use anabranch_pieces::FileHash;
use anabranch_sets::{Attributes, Builder, Difference, Entry, FileTime, Kind, Name, NodeHash};
use std::collections::BTreeMap;

const ENTRIES: u64 = 1_000_000;

fn entry(number: u64) -> Result<Entry, Box<dyn std::error::Error>> {
    let attributes = Attributes { mode: 0o644, modified: FileTime::new(1_700_000_000, number)? };
    let content = FileHash([number.to_le_bytes()[0]; 32]);
    let kind = Kind::File { attributes, size_bytes: 16_384, content };
    Ok(Entry::new(Name::new(format!("part-{number:08}.parquet").as_bytes())?, kind))
}

fn manifest(
    directories: u64,
    more: Option<&[u8]>,
    out: &mut impl FnMut(NodeHash, &[u8]),
) -> Result<NodeHash, Box<dyn std::error::Error>> {
    let root = Attributes { mode: 0o755, modified: FileTime::new(0, 0)? };
    let mut builder = Builder::new();
    let mut held = 0;
    for directory in 0..directories {
        builder.enter(Name::new(format!("{directory:04}").as_bytes())?)?;
        for number in 0..ENTRIES / directories {
            builder.add(&entry(number)?, out)?;
            held = held.max(builder.held_bytes());
        }
        if let Some(name) = more.filter(|_| directory == directories / 2) {
            builder.add(&Entry { name: Name::new(name)?, ..entry(0)? }, out)?;
        }
        builder.leave(root, out)?;
    }
    println!("{directories} directories: the builder held {held} bytes at most");
    Ok(builder.finish(Some(root.into()), out)?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for directories in [1, 1_000] {
        let mut nodes = BTreeMap::new();
        let mut out = |hash, node: &[u8]| {
            nodes.insert(hash, node.to_vec());
        };
        let before = manifest(directories, None, &mut out)?;
        let after = manifest(directories, Some(b"zz"), &mut out)?;
        let bytes: usize = nodes.values().map(Vec::len).sum();
        println!("{} nodes of {bytes} bytes", nodes.len());
        let mut difference = Difference::new(&nodes, Some(before), after);
        let mut changes = 0;
        while difference.poll()?.is_some() {
            changes += 1;
        }
        println!("{changes} change: {} nodes read", difference.nodes_read());
    }
    Ok(())
}
