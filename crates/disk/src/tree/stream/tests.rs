//! Streams of random directories.

use super::*;
use crate::tree::tests::{folder, write};
use anabranch_sets::{Attributes, Builder, Entry, Name, Snapshot, Target};
use proptest::prelude::*;

fn scanned(path: &Path) -> TreeStream {
    let tree = Tree::open(path).expect("it is there");
    TreeStream::scan(&tree, None, u64::MAX).expect("it can be read")
}

#[test]
fn ranges_of_a_stream_join_to_its_contents() {
    let root = folder();
    write(root.path(), "a/first", "one");
    write(root.path(), "a/empty", "");
    write(root.path(), "b", "two");
    std::fs::hard_link(root.path().join("b"), root.path().join("c")).expect("the folder is ours");
    let stream = scanned(root.path());
    let manifest = stream.manifest();
    let whole = stream.read(ByteRange { start: 0, end: manifest.length_bytes() }).expect("it can be read");
    let head = manifest.head_bytes() as usize;
    assert_eq!(&whole[head..], b"onetwo");
    assert_eq!(Manifest::decode(whole[..head].to_vec(), u64::MAX).expect("a head").id(), manifest.id());
    for start in 0..whole.len() {
        for end in start..whole.len() {
            let range = ByteRange { start: start as u64, end: end as u64 };
            assert_eq!(stream.read(range).expect("it can be read"), whole[start..end]);
        }
    }
    let behind = ByteRange { start: 0, end: whole.len() as u64 + 1 };
    assert_eq!(stream.read(behind).expect_err("behind its end").kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn changed_file_is_refused_by_name() {
    let root = folder();
    write(root.path(), "x", "before");
    let stream = scanned(root.path());
    write(root.path(), "x", "longer than before");
    let all = ByteRange { start: 0, end: stream.manifest().length_bytes() };
    let refused = stream.read(all).expect_err("it changed").to_string();
    assert!(refused.contains("/x: changed while it was read"), "{refused}");
}

#[test]
fn zeros_stand_for_files_that_changed_or_went() {
    let root = folder();
    for name in ["a", "b", "c"] {
        write(root.path(), name, name);
    }
    let stream = scanned(root.path());
    write(root.path(), "a", "longer");
    std::fs::remove_file(root.path().join("c")).expect("ours");
    let head = stream.manifest().head_bytes();
    let read = |start: u64, end: u64| stream.read_settled(ByteRange { start: head + start, end: head + end });
    assert_eq!(stream.unsettled(), []);
    assert_eq!(read(1, 2).expect("it rests"), b"b");
    assert_eq!(stream.unsettled(), []);
    assert_eq!(read(0, 3).expect("it is read"), b"\0b\0");
    assert_eq!(read(0, 1).expect("it is read"), b"\0");
    let range = |start: u64| ByteRange { start: head + start, end: head + start + 1 };
    assert_eq!(stream.unsettled(), [range(0), range(2)]);
}

#[test]
fn blocks_that_do_not_give_the_hash_are_refused() {
    let root = folder();
    std::fs::write(root.path().join("large"), vec![7; blocks::BLOCKED_BYTES_MIN as usize]).expect("ours");
    let manifest = scanned(root.path()).manifest;
    let decoded = |head: Vec<u8>| Manifest::decode(head, u64::MAX).map(|manifest| manifest.id());
    let head = manifest.head().to_vec();
    assert_eq!(decoded(head.clone()), Ok(manifest.id()));
    let mut wrong = head.clone();
    *wrong.last_mut().expect("not empty") ^= 1;
    assert_eq!(decoded(wrong), Err(HeadError::Blocks));
    // Without the last value.
    let mut short = head[..head.len() - 32].to_vec();
    let bytes = short.len() as u64;
    short[MAGIC.len()..BEGIN_BYTES].copy_from_slice(&bytes.to_le_bytes());
    assert_eq!(decoded(short), Err(HeadError::Blocks));
}

/// A few nodes can stand for any number of entries.
#[test]
fn nodes_that_multiply_are_refused_within_the_limit() {
    let attributes = Attributes { mode: 0o755, modified: FileTime::new(0, 0).expect("a time") };
    let (mut nodes, mut last, mut below) = (BTreeMap::new(), Vec::new(), None);
    for _ in 0..8 {
        let mut keep = |hash, node: &[u8]| {
            last = node.to_vec();
            nodes.insert(hash, last.clone());
        };
        let mut builder = Builder::new();
        for number in 100..200 {
            let name = Name::new(format!("{number}").as_bytes()).expect("a name");
            let (modified, target) = (attributes.modified, Target::new(b"x").expect("a target"));
            let link = Kind::SymbolicLink { modified, target };
            let kind = below.map_or(link, |tree| Kind::Directory { attributes, tree });
            builder.add(&Entry::new(name, kind), &mut keep).expect("in order");
        }
        builder.finish(Some(attributes.into()), &mut keep).expect("right modes");
        below = Some(Snapshot::decode(&last).expect("it was made here").tree);
    }
    let id = hash(&last);
    let refused = Manifest::decode(encode(id, &nodes, &[]), 1 << 20).expect_err("it has 100^8 entries");
    assert_eq!(refused, HeadError::Memory { limit: 1 << 20 });
}

proptest! {
    /// A destination must not trust a head, because it comes from another site.
    #[test]
    fn damaged_heads_never_pass_for_the_snapshot(at in any::<prop::sample::Index>(), bit in 0..8u8, cut in any::<prop::sample::Index>()) {
        let root = folder();
        for number in 0..200 {
            write(root.path(), format!("d{}/{number}", number % 7), "x");
        }
        let stream = scanned(root.path());
        let (id, head) = (stream.manifest().id(), stream.manifest().head().to_vec());
        let mut flipped = head.clone();
        flipped[at.index(head.len())] ^= 1 << bit;
        // A flipped bit of the last node may leave a right head of another snapshot.
        prop_assert!(Manifest::decode(flipped.clone(), u64::MAX).map_or(true, |other| other.id() != id));
        prop_assert!(Manifest::decode(head[..cut.index(head.len())].to_vec(), u64::MAX).is_err());
        exercise_head(&flipped);
    }
}
