//! Selections from random directories, compared with scans that use the same filter.

use super::*;
use crate::tree::Tree;
use crate::tree::stream::TreeStream;
use crate::tree::tests::{filter, folder, write};
use anabranch_pieces::FileHash;
use anabranch_pieces::blocks::{BLOCKED_BYTES_MIN, has_blocks};
use anabranch_sets::FileTime;
use anabranch_sets::filter::Options;
use proptest::prelude::*;
use std::path::Path;

fn whole(path: &Path) -> TreeStream {
    let tree = Tree::open(path).expect("it is there");
    TreeStream::scan(&tree, None, u64::MAX).expect("it can be read")
}

fn scanned(path: &Path, filter: &Filter) -> TreeStream {
    let tree = Tree::open(path).expect("it is there");
    TreeStream::scan_included(&tree, filter, None, u64::MAX).expect("it can be read").0
}

/// Checks a selection of `all` against the scan with `filter`. The contents lie in the stream of
/// the whole directory.
fn check(path: &Path, all: &TreeStream, filter: &Filter) -> Manifest {
    let selected = all.manifest().select(filter, u64::MAX).expect("it can be selected");
    let expected = scanned(path, filter);
    assert_eq!(selected.id(), expected.manifest().id());
    assert_eq!(selected.head(), expected.manifest().head());
    for (number, file) in selected.files().iter().enumerate() {
        let bytes = all.read(file.range).expect("it is in the stream");
        if !has_blocks(file.range.len()) {
            assert_eq!(FileHash(*blake3::hash(&bytes).as_bytes()), file.content, "file {number}");
        }
    }
    selected
}

#[test]
fn empty_directories_are_selected_as_a_scan_does() {
    let root = folder();
    write(root.path(), "a/x.tmp", "x");
    write(root.path(), "b/y", "y");
    std::fs::create_dir(root.path().join("empty")).expect("ours");
    let all = whole(root.path());
    let paths = |rules: &[&str]| {
        let selected = check(root.path(), &all, &filter(rules));
        let mut changes = selected.entries();
        let mut paths = Vec::new();
        while let Some(change) = changes.poll().expect("its nodes are there") {
            if let Change::Added { path, .. } = change {
                paths.push(String::from_utf8(path).expect("text"));
            }
        }
        paths.join(" ")
    };
    assert_eq!(paths(&["- *.tmp"]), "a b b/y empty");
    assert_eq!(paths(&["+ /b/**", "- *"]), "b b/y");
}

#[test]
fn further_name_stands_for_an_excluded_first_name() {
    let root = folder();
    write(root.path(), "a", "the content");
    for name in ["b", "c"] {
        std::fs::hard_link(root.path().join("a"), root.path().join(name)).expect("ours");
    }
    let all = whole(root.path());
    let selected = check(root.path(), &all, &filter(&["- a"]));
    assert_eq!((selected.files().len(), selected.path(0)), (1, &b"b"[..]));
    assert_eq!(selected.file(b"c").expect("a further name").range, all.manifest().files()[0].range);
}

#[test]
fn blocks_of_selected_large_files_are_kept() {
    let root = folder();
    for (name, byte) in [("a", 1), ("b", 2)] {
        std::fs::write(root.path().join(name), vec![byte; BLOCKED_BYTES_MIN as usize]).expect("ours");
    }
    let all = whole(root.path());
    let selected = check(root.path(), &all, &filter(&["- a"]));
    assert_eq!(selected.blocks(0), all.manifest().blocks(1));
}

/// Further names of a file take more after a selection than before, if its first name is longer.
#[test]
fn selection_stops_at_the_limit_while_building() {
    let root = folder();
    write(root.path(), "a", "the content");
    let long = format!("b{}", "/d".repeat(100));
    std::fs::create_dir_all(root.path().join(&long)).expect("ours");
    std::fs::hard_link(root.path().join("a"), root.path().join(&long).join("e")).expect("ours");
    for number in 0..2_000 {
        std::fs::hard_link(root.path().join("a"), root.path().join(format!("c{number:04}"))).expect("ours");
    }
    let (all, filter, limit) = (whole(root.path()), filter(&["- a"]), 100_000);
    let refused = all.manifest().select(&filter, limit).expect_err("it takes more");
    assert!(matches!(refused, HeadError::Memory { limit: 100_000 }), "{refused}");
    let mut selector = Selector::new(all.manifest(), &filter, limit);
    let (mut changes, mut added) = (all.manifest().entries(), 0);
    let refused = loop {
        let change = changes.poll().expect("its nodes are there").expect("an error comes before the end");
        let Change::Added { path, entry } = change else { continue };
        match selector.entry(&path, entry.kind) {
            Ok(()) => added += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, HeadError::Memory { .. }) && added < 1_500, "{refused} after {added}");
    let held: usize = selector.nodes.by_hash.values().map(Vec::len).sum();
    assert!(held < 200_000, "{held} bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn selection_equals_the_scan_with_the_same_filter(
        files in proptest::collection::btree_map("[abd](/[abdm]){0,2}", 0..30usize, 0..20),
        links in proptest::collection::vec(("[xyz]", any::<prop::sample::Index>()), 0..6),
        rules in proptest::collection::vec("[+-] (/?[abdxm]|[abd]/|/[abd]/\\*\\*|\\*[bx]|\\*|b/[ad])", 0..4),
        marked in any::<bool>(),
        size_bytes in (proptest::option::of(0..10u64), proptest::option::of(10..30u64)),
        seconds in proptest::option::of(0..30i64),
    ) {
        let root = folder();
        let mut written = Vec::new();
        for (name, bytes) in &files {
            let path = root.path().join(name);
            let is_free = path.parent().is_some_and(|parent| std::fs::create_dir_all(parent).is_ok());
            if is_free && !path.exists() {
                std::fs::write(&path, "x".repeat(*bytes)).expect("ours");
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(*bytes as u64);
                std::fs::File::options().append(true).open(&path).and_then(|file| file.set_modified(time)).expect("ours");
                written.push(path);
            }
        }
        for (name, of) in links.iter().filter(|_| !written.is_empty()) {
            let (of, path) = (of.get(&written), root.path().join(name));
            let beside = of.with_file_name(name);
            if name == "x" {
                drop(std::os::unix::fs::symlink("a", &path));
            } else {
                drop(std::fs::hard_link(of, beside));
            }
        }
        let options = Options {
            filter: rules,
            exclude_if_present: if marked { vec!["m".to_owned(), "z".to_owned()] } else { Vec::new() },
            size_bytes_min: size_bytes.0,
            size_bytes_max: size_bytes.1,
            modified_max: seconds.map(|seconds| FileTime::new(seconds, 0).expect("a time")),
            ..Options::default()
        };
        let filter = Filter::new(&options).expect("right rules");
        check(root.path(), &whole(root.path()), &filter);
    }
}
