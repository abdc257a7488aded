//! Integration tests of the graph room: the corpus of its fuzz targets, replayed without a fuzzer.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus")]

use anabranch_graph::file::{Format, exercise};
use std::path::Path;

/// Runs every file of a target's corpus; names that begin with `bad` are refused, all others read.
fn replay(target: &str, format: Format) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("the corpus is part of the repository")
        .map(|entry| entry.expect("the folder can be listed").path())
        .collect();
    paths.sort();
    for path in &paths {
        let bytes = std::fs::read(path).expect("the corpus can be read");
        let name = path.file_name().and_then(|n| n.to_str()).expect("corpus files have plain names");
        assert_eq!(exercise(format, &bytes), !name.starts_with("bad"), "{}", path.display());
    }
    paths.len()
}

#[test]
fn corpus_replays() {
    assert!(replay("topology_toml", Format::Toml) >= 5);
    assert!(replay("topology_graphml", Format::GraphMl) >= 5);
}
