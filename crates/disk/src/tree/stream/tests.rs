//! Streams of random directories.

use super::*;
use crate::tree::tests::{folder, write};
use proptest::prelude::*;

fn scanned(path: &Path) -> TreeStream {
    TreeStream::scan(&Tree::open(path).expect("it is there"), None).expect("it can be read")
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
    assert_eq!(Manifest::decode(&whole[..head]).expect("a head").id(), manifest.id());
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

proptest! {
    /// A head comes from another site.
    #[test]
    fn damaged_heads_never_pass_for_the_snapshot(at in any::<prop::sample::Index>(), bit in 0..8u8, cut in any::<prop::sample::Index>()) {
        let root = folder();
        for number in 0..200 {
            write(root.path(), format!("d{}/{number}", number % 7), "x");
        }
        let stream = scanned(root.path());
        let (id, head) = (stream.manifest().id(), stream.manifest().encode());
        let mut flipped = head.clone();
        flipped[at.index(head.len())] ^= 1 << bit;
        // A change of the last node gives another snapshot.
        prop_assert!(Manifest::decode(&flipped).map_or(true, |other| other.id() != id));
        prop_assert!(Manifest::decode(&head[..cut.index(head.len())]).is_err());
        exercise_head(&flipped);
    }
}
