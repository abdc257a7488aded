//! Integration tests of the replicate room: the corpora of its fuzz targets, replayed without a fuzzer.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus")]

use anabranch_replicate::{control, msg};
use std::path::Path;

/// Runs every file of a target's corpus; names that begin with `bad` are refused, all others read.
fn replay(target: &str, exercise: fn(&[u8]) -> bool) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("the corpus is part of the repository");
    let mut paths: Vec<_> = entries.map(|e| e.expect("the folder can be listed").path()).collect();
    paths.sort();
    for path in &paths {
        let bytes = std::fs::read(path).expect("the corpus can be read");
        let name = path.file_name().and_then(|n| n.to_str()).expect("corpus files have plain names");
        assert_eq!(exercise(&bytes), !name.starts_with("bad"), "{}", path.display());
    }
    paths.len()
}

#[test]
fn corpus_replays() {
    assert!(replay("replicate_msg", msg::exercise) >= 5);
    assert!(replay("replicate_control", control::exercise) >= 8);
}
