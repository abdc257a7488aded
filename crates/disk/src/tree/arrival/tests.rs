//! Directories that arrive over an ideal network, compared by the ids of their snapshots.

use super::*;
use crate::tree::tests::{folder, write};
use std::os::unix::fs::symlink;

fn scanned(path: &Path) -> TreeStream {
    let tree = Tree::open(path).expect("it is there");
    TreeStream::scan(&tree, None, u64::MAX).expect("it can be read")
}

fn snapshot_of(stream: &TreeStream) -> Snapshot {
    Snapshot { id: stream.manifest().id().0, length_bytes: stream.manifest().length_bytes() }
}

fn open(to: &Path, source: &TreeStream) -> io::Result<Option<Arrival>> {
    Arrival::open(Place::of(to).expect("a name"), snapshot_of(source), u64::MAX)
}

/// Takes the missing ranges from the source, and returns their bytes in all. `damage` changes the
/// bytes on their way.
fn pull(arrival: &mut Arrival, source: &TreeStream, damage: impl Fn(&mut [u8])) -> u64 {
    let mut pulled = 0;
    for range in arrival.missing() {
        let mut bytes = source.read(range).expect("it can be read");
        damage(&mut bytes);
        let mut hasher = PieceHasher::new(range);
        hasher.update(&bytes);
        let piece = hasher.finish().expect("all bytes are there");
        arrival.stream().write(range, &[bytes], &piece).expect("it can be written");
        pulled += range.len();
    }
    pulled
}

fn head(source: &TreeStream) -> Vec<u8> {
    source.manifest().head().to_vec()
}

/// Names in the folder around a directory, without the directory.
fn around(to: &Path) -> Vec<String> {
    let names = std::fs::read_dir(to.parent().expect("a folder")).expect("it is there").flatten();
    let names = names.map(|entry| entry.file_name().into_string().expect("a plain name"));
    let mut names: Vec<String> = names.filter(|name| name.starts_with(".anabranch-")).collect();
    names.sort_unstable();
    names
}

#[test]
fn directory_arrives_whole_and_then_only_its_changes() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "d/small", "the content");
    write(&from, "large", &"x".repeat(200_000));
    symlink("large", from.join("link")).expect("ours");
    std::fs::hard_link(from.join("d/small"), from.join("second")).expect("ours");
    let source = scanned(&from);
    let mut arrival = open(&to, &source).expect("it can be opened").expect("nothing is there");
    assert!(!arrival.is_begun());
    arrival.begin(head(&source)).expect("its head");
    assert_eq!(pull(&mut arrival, &source, |_| ()), 200_011);
    assert_eq!(arrival.finish(false).expect("it is written").files, 2);
    drop(arrival);
    assert_eq!(snapshot_of(&scanned(&to)), snapshot_of(&source));
    assert!(open(&to, &source).expect("it can be opened").is_none(), "it is there");
    assert!(
        around(&to).iter().all(|name| name.ends_with(".index") || name.ends_with(".sent")),
        "{:?}",
        around(&to)
    );
    write(&from, "d/small", "another content");
    std::fs::rename(from.join("large"), from.join("renamed")).expect("ours");
    let source = scanned(&from);
    let mut arrival = open(&to, &source).expect("it can be opened").expect("it changed");
    arrival.begin(head(&source)).expect("its head");
    assert_eq!(pull(&mut arrival, &source, |_| ()), 15);
    arrival.finish(false).expect("it is written");
    std::fs::remove_file(to.join("large")).expect("nothing is deleted");
    // The removal changed the time of the directory.
    let time = std::fs::metadata(&from).and_then(|found| found.modified()).expect("it is there");
    File::open(&to).and_then(|to| to.set_modified(time)).expect("ours");
    assert_eq!(snapshot_of(&scanned(&to)), snapshot_of(&source));
}

#[test]
fn interrupted_arrival_resumes_with_the_same_snapshot_only() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "a", &"a".repeat(300_000));
    let source = scanned(&from);
    let mut arrival = open(&to, &source).expect("it can be opened").expect("nothing is there");
    arrival.begin(head(&source)).expect("its head");
    let second = open(&to, &source).expect_err("another process writes it");
    assert!(second.to_string().contains("another process or transfer is writing this file"), "{second}");
    let start = source.manifest().head_bytes();
    let range = ByteRange { start, end: start + 100_000 };
    let bytes = source.read(range).expect("it can be read");
    let mut hasher = PieceHasher::new(range);
    hasher.update(&bytes);
    let piece = hasher.finish().expect("all bytes are there");
    arrival.stream().write(range, &[bytes], &piece).expect("it can be written");
    drop(arrival);
    let mut arrival = open(&to, &source).expect("it can be opened").expect("a part is there");
    assert!(arrival.is_begun());
    assert_eq!(arrival.missing(), [ByteRange { start: start + 100_000, end: start + 300_000 }]);
    write(&from, "b", "b");
    let other = scanned(&from);
    let wrong = arrival.begin(head(&other)).expect_err("another snapshot's");
    assert_eq!(wrong.to_string(), "the list of entries is another snapshot's");
    drop(arrival);
    let arrival = open(&to, &other).expect("it can be opened").expect("nothing is there");
    assert!(!arrival.is_begun());
    drop(arrival);
    assert_eq!(around(&to), [""; 0], "data of another snapshot is dropped");
}

#[test]
fn wrong_contents_are_missing_again() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "bad", &"b".repeat(100_000));
    write(&from, "good", &"g".repeat(100_000));
    let source = scanned(&from);
    let mut arrival = open(&to, &source).expect("it can be opened").expect("nothing is there");
    arrival.begin(head(&source)).expect("its head");
    pull(&mut arrival, &source, |bytes| bytes[0] ^= 1);
    assert!(matches!(arrival.finish(false), Err(FinishError::Mismatch { .. })));
    assert!(to.join("good").is_file() && !to.join("bad").exists());
    arrival.again().expect("it can be scanned");
    assert_eq!(pull(&mut arrival, &source, |_| ()), 100_000);
    arrival.finish(false).expect("it is written");
    assert_eq!(snapshot_of(&scanned(&to)), snapshot_of(&source));
}

#[test]
fn other_kinds_of_entries_keep_the_name() {
    let root = folder();
    let from = root.path().join("from");
    write(&from, "a", "a");
    let source = scanned(&from);
    let (file, link) = (root.path().join("file"), root.path().join("link"));
    std::fs::write(&file, "kept").expect("ours");
    symlink("from", &link).expect("ours");
    for (to, reason) in [(file, "not a directory"), (link, "its path has a symbolic link")] {
        let error = open(&to, &source).expect_err("refused").to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(around(&to), [""; 0]);
    }
}

#[test]
fn short_and_surplus_local_ranges_arrive_again() {
    let content = |start: u64, bytes: u64, source| LocalContent {
        range: ByteRange { start, end: start + bytes },
        source,
        offset: 0,
        is_in_place: true,
    };
    let long = LOCAL_BYTES_MIN;
    let short = vec![content(0, long - 1, 0), content(2 * long, long, 1)];
    assert_eq!(longest(short.clone(), LOCAL_RANGES_MAX, LOCAL_BYTES_MIN), short[1..]);
    // Two short contents that touch are one range.
    let joined = vec![content(0, long / 2, 0), content(long / 2, long / 2, 1)];
    assert_eq!(longest(joined.clone(), LOCAL_RANGES_MAX, LOCAL_BYTES_MIN), joined);
    let many = (0..LOCAL_RANGES_MAX as u64 + 5).map(|at| content(at * 3 * long, long + at, at as usize));
    let kept = longest(many.collect(), LOCAL_RANGES_MAX, LOCAL_BYTES_MIN);
    assert_eq!((kept.len(), kept[0].source), (LOCAL_RANGES_MAX, 5));
}
