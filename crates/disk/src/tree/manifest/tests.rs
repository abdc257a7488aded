//! Manifests of trees on disk: what their ids depend on, and files that change.

use super::*;
use crate::tree::tests::{filter, folder, write};
use anabranch_sets::filter::Filter;
use anabranch_sets::{Change, Difference};
use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

type Nodes = BTreeMap<NodeHash, Vec<u8>>;

fn snapshot(root: &Path, filter: &Filter, nodes: &mut Nodes) -> Snapshot {
    let tree = Tree::open(root).expect("it is there");
    let mut out = |hash, node: &[u8]| {
        nodes.insert(hash, node.to_vec());
    };
    let mut report = |path: &[u8], problem: &Problem| panic!("{}: {problem}", path.escape_ascii());
    read(&tree, filter, None, &mut out, &mut report).expect("it can be read")
}

fn id(root: &Path) -> NodeHash {
    snapshot(root, &Filter::default(), &mut Nodes::new()).id
}

fn set_time(path: &Path, seconds: u64) {
    let file = std::fs::File::open(path).expect("it is there");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("it is ours");
}

/// A tree with every kind of entry, whose times are fixed.
fn sample(root: &Path) {
    write(root, "d/a", "content");
    std::fs::hard_link(root.join("d/a"), root.join("d/b")).expect("one file system");
    std::fs::hard_link(root.join("d/a"), root.join("z")).expect("one file system");
    write(root, "plain", "other");
    symlink("nowhere", root.join("link")).expect("it can be made");
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 5, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 5, tv_nsec: 0 },
    };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, root.join("link"), &times, flags).expect("it is ours");
    for (name, seconds) in [("d/a", 1), ("plain", 2), ("d", 3), ("", 4)] {
        set_time(&root.join(name), seconds);
    }
}

#[test]
fn equal_trees_have_equal_ids() {
    let (one, two) = (folder(), folder());
    sample(one.path());
    sample(two.path());
    let mut nodes = Nodes::new();
    let first = snapshot(one.path(), &Filter::default(), &mut nodes);
    let expected = Counts {
        files: 2,
        bytes: 12,
        directories: 1,
        symbolic_links: 1,
        hard_links: 2,
        hashed_files: 2,
        hashed_bytes: 12,
        ..Counts::default()
    };
    assert_eq!(first.counts, expected);
    assert!(first.counts.is_complete());
    assert_eq!(id(two.path()), first.id);
    let mut difference = Difference::new(&nodes, None, first.id);
    let mut listed = Vec::new();
    while let Some(change) = difference.poll().expect("all nodes came out") {
        if let Change::Added { path, entry } = change {
            let earlier = match entry.kind {
                Kind::HardLink { path } => format!(" = {}", path.as_bytes().escape_ascii()),
                _ => String::new(),
            };
            listed.push(format!("{}{earlier}", path.escape_ascii()));
        }
    }
    assert_eq!(listed, ["d", "d/a", "d/b = d/a", "link", "plain", "z = d/a"]);
}

#[test]
fn each_change_changes_the_id() {
    let root = folder();
    sample(root.path());
    let root = root.path();
    let mut ids = vec![id(root)];
    std::fs::set_permissions(root.join("plain"), std::fs::Permissions::from_mode(0o600)).expect("ours");
    ids.push(id(root));
    set_time(&root.join("d"), 30);
    ids.push(id(root));
    write(root, "plain", "OTHER");
    set_time(&root.join("plain"), 2);
    ids.push(id(root));
    std::fs::remove_file(root.join("z")).expect("it is there");
    set_time(root, 4);
    ids.push(id(root));
    set_time(root, 5);
    ids.push(id(root));
    let distinct: std::collections::BTreeSet<NodeHash> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len());
    set_time(root, 4);
    assert_eq!(id(root), ids[4]);
}

#[test]
fn special_bits_of_files_are_left_out() {
    let root = folder();
    sample(root.path());
    let before = id(root.path());
    let path = root.path().join("plain");
    let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode | 0o6000)).expect("it is ours");
    assert_eq!(id(root.path()), before);
}

#[test]
fn a_single_file_has_an_id() {
    let root = folder();
    sample(root.path());
    let only = snapshot(&root.path().join("plain"), &Filter::default(), &mut Nodes::new());
    assert_eq!((only.counts.files, only.counts.bytes, only.counts.directories), (1, 5, 0));
    assert_ne!(only.id, id(root.path()));
}

#[test]
fn excluded_names_leave_no_trace() {
    let (one, two) = (folder(), folder());
    sample(one.path());
    sample(two.path());
    write(one.path(), "x.tmp", "");
    set_time(one.path(), 4);
    assert_eq!(snapshot(one.path(), &filter(&["- *.tmp"]), &mut Nodes::new()).id, id(two.path()));
    assert_ne!(id(one.path()), id(two.path()));
}

#[test]
fn a_file_that_keeps_changing_is_unsettled() {
    let root = folder();
    write(root.path(), "a", "1");
    write(root.path(), "growing", "1");
    let path = root.path().join("growing");
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = std::thread::spawn({
        let is_over = std::sync::Arc::clone(&is_over);
        move || {
            use std::io::Write as _;
            let mut file = std::fs::File::options().append(true).open(path).expect("it is there");
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                file.write_all(&[0; 4_096]).expect("it can be written");
                if file.metadata().is_ok_and(|found| found.len() > 64 << 20) {
                    file.set_len(0).expect("it is ours");
                }
            }
        }
    });
    let tree = Tree::open(root.path()).expect("it is there");
    let mut seen = 0;
    // The writer may rest through a scan on a busy machine.
    for _ in 0..200 {
        let mut reported = Vec::new();
        let mut report = |path: &[u8], problem: &Problem| reported.push((path.to_vec(), problem.to_string()));
        let found = read(&tree, &Filter::default(), None, &mut |_, _| {}, &mut report);
        let counts = found.expect("it can be read").counts;
        assert_eq!(counts.files + counts.unsettled, 2);
        assert_eq!(counts.is_complete(), reported.is_empty());
        if counts.unsettled == 1 {
            assert_eq!(reported, [(b"growing".to_vec(), "the file changed while it was read".to_owned())]);
            seen += 1;
            break;
        }
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().expect("it ends");
    assert_eq!(seen, 1);
}
