//! Directories that arrive over an ideal network, compared by the ids of their snapshots.

use super::*;
use crate::tree::Tree;
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
    Arrival::open(Place::of(to).expect("a name"), snapshot_of(source), CopyRules::default(), u64::MAX)
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
    assert_eq!(arrival.finish().expect("it is written").files, 2);
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
    arrival.finish().expect("it is written");
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
    assert!(matches!(arrival.finish(), Err(FinishError::Mismatch { .. })));
    assert!(to.join("good").is_file() && !to.join("bad").exists());
    arrival.again().expect("it can be scanned");
    assert_eq!(pull(&mut arrival, &source, |_| ()), 100_000);
    arrival.finish().expect("it is written");
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

/// Mirrors `from` to `to`.
fn mirror(from: &Path, to: &Path, rules: &CopyRules) -> io::Result<Unpacked> {
    let source = scanned(from);
    let place = Place::of(to).expect("a name");
    let Some(mut arrival) = Arrival::open(place, snapshot_of(&source), rules.clone(), u64::MAX)? else {
        return Ok(Unpacked::default());
    };
    if !arrival.is_begun() {
        arrival.begin(head(&source))?;
    }
    pull(&mut arrival, &source, |_| ());
    Ok(arrival.finish().expect("it is written"))
}

fn of_source(number: u64, delete: Option<MaxDelete>) -> CopyRules {
    CopyRules { origin: Origin(number), delete, ..CopyRules::default() }
}

#[test]
fn mirror_deletes_only_entries_of_its_source() {
    let root = folder();
    let (from, other, to) = (root.path().join("from"), root.path().join("other"), root.path().join("to"));
    for name in ["a", "d/b", "d/c", "stays"] {
        write(&from, name, name);
    }
    write(&other, "of-another", "x");
    mirror(&from, &to, &of_source(1, None)).expect("written");
    mirror(&other, &to, &of_source(2, None)).expect("written");
    write(&to, "own", "of a program here");
    std::fs::remove_dir_all(from.join("d")).expect("ours");
    std::fs::remove_file(from.join("a")).expect("ours");
    let all = Some(MaxDelete::Percent(100));
    let done = mirror(&from, &to, &of_source(1, all)).expect("written");
    assert_eq!((done.deleted, done.conflicts), (4, 2), "{done:?}");
    assert!(done.conflict_paths.iter().any(|path| path.ends_with("own")), "{done:?}");
    assert!(to.join("own").exists() && to.join("of-another").exists() && to.join("stays").exists());
    assert!(!to.join("d").exists() && !to.join("a").exists());
}

#[test]
fn mirror_above_the_limit_of_deletes_writes_nothing() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    for name in ["a", "b", "c"] {
        write(&from, name, name);
    }
    mirror(&from, &to, &of_source(1, None)).expect("written");
    std::fs::remove_file(from.join("a")).expect("ours");
    write(&from, "b", "another content");
    for _ in 0..2 {
        let rules = of_source(1, Some(MaxDelete::default()));
        let refused = mirror(&from, &to, &rules).expect_err("too many").to_string();
        assert!(refused.ends_with(
            "to: 1 of 3 entries would be deleted, and --max-delete 10% allows fewer: nothing is deleted; look at \
             the source, or raise the limit"
        ), "{refused}");
        assert_eq!(std::fs::read(to.join("b")).expect("it stays"), b"b");
        let is_part = |name: &String| name.ends_with(".partial") || name.ends_with(".journal");
        assert!(!around(&to).iter().any(is_part), "{:?}", around(&to));
    }
    let done = mirror(&from, &to, &of_source(1, Some(MaxDelete::Entries(1)))).expect("written");
    assert_eq!((done.deleted, done.files), (1, 1));
    std::fs::remove_dir_all(&from).expect("ours");
    std::fs::create_dir(&from).expect("ours");
    let rules = of_source(1, Some(MaxDelete::Percent(100)));
    let refused = mirror(&from, &to, &rules).expect_err("nothing is there").to_string();
    assert!(refused.contains("the source has no entry, so nothing is deleted"), "{refused}");
}

#[test]
fn backup_keeps_deleted_entries_outside_the_mirror() {
    let root = folder();
    let (from, to, backup) = (root.path().join("from"), root.path().join("to"), root.path().join("old"));
    write(&from, "a", "first");
    write(&from, "d/b", "b");
    let all = Some(MaxDelete::Percent(100));
    let rules = |backup: &Path| CopyRules { backup: Some(backup.to_owned()), ..of_source(1, all) };
    mirror(&from, &to, &rules(&backup)).expect("written");
    write(&from, "a", "second");
    std::fs::remove_file(from.join("d/b")).expect("ours");
    symlink("to", root.path().join("link")).expect("ours");
    let below_link = root.path().join("link/x");
    let ways =
        [to.join("old"), root.path().to_owned(), to.clone(), root.path().join("from/../to/x/y"), below_link];
    for within in ways {
        let refused = mirror(&from, &to, &rules(&within)).expect_err("it overlaps").to_string();
        assert!(refused.contains("neither may contain the other"), "{refused}");
    }
    assert!(!to.join("x").exists(), "nothing is made");
    for (wrong, reason) in [
        (root.path().join("link"), "not a directory"),
        (root.path().join("none/../to/x"), "`..` behind a folder that does not exist"),
        (PathBuf::from("/proc/anabranch-backup"), "on another file system than the directory"),
    ] {
        let refused = mirror(&from, &to, &rules(&wrong)).expect_err("refused").to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    let done = mirror(&from, &to, &rules(&backup)).expect("written");
    assert_eq!((done.deleted, done.files, done.conflicts), (1, 1, 0));
    let kept = |name: &str| std::fs::read_to_string(backup.join(name)).expect("it is kept");
    assert_eq!((kept("a"), kept("d/b")), ("first".to_owned(), "b".to_owned()));
}

#[test]
fn comparison_writes_no_entry_and_makes_no_folder() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "a", "a");
    write(&from, "b", "b");
    let compared = |to: &Path, rules: &CopyRules| {
        let source = scanned(&from);
        compare(to, snapshot_of(&source), head(&source), rules, u64::MAX)
    };
    let found = compared(&root.path().join("none/to"), &CopyRules::default()).expect("nothing is there");
    assert_eq!((found.missing, found.content_bytes), (3, 2), "the root counts, too");
    assert!(!root.path().join("none").exists());
    mirror(&from, &to, &of_source(1, None)).expect("written");
    std::fs::remove_file(from.join("a")).expect("ours");
    write(&from, "b", "changed");
    let before = snapshot_of(&scanned(&to));
    let found = compared(&to, &CopyRules::default()).expect("it can be compared");
    assert_eq!((found.changed, found.surplus), (1, Some(1)));
    let refused = compared(&to, &of_source(1, Some(MaxDelete::default()))).expect_err("too many").to_string();
    assert!(refused.contains("--max-delete 10% allows fewer"), "{refused}");
    assert_eq!(snapshot_of(&scanned(&to)), before);
}

/// Leaves the directory `to` as a kill leaves it after the last entry was written.
fn break_off_at_the_end(from: &Path, to: &Path) -> TreeStream {
    let source = scanned(from);
    let mut arrival = open(to, &source).expect("it can be opened").expect("it differs");
    if !arrival.is_begun() {
        arrival.begin(head(&source)).expect("its head");
    }
    pull(&mut arrival, &source, |_| ());
    drop(arrival);
    let copied = std::process::Command::new("cp").arg("-aT").args([from, to]).status().expect("cp runs");
    assert!(copied.success());
    let place = Place::of(to).expect("a name");
    let sending = place.working_name(SENDING);
    source.manifest().save(place.folder(), &sending).expect("ours");
    let record = record_of(&place).expect("it is there").expect("it can be made");
    record.note_writing(Origin(1)).expect("ours");
    source
}

#[test]
fn writing_killed_after_the_last_entry_is_ended() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "a", "a");
    write(&from, "b", "b");
    let source = break_off_at_the_end(&from, &to);
    assert_eq!(around(&to).len(), 4, "journal, stream, manifest and record: {:?}", around(&to));
    assert!(open(&to, &source).expect("it can be opened").is_none(), "it is there");
    let is_working = |name: &String| !name.ends_with(".index") && !name.ends_with(".sent");
    assert!(!around(&to).iter().any(is_working), "{:?}", around(&to));
    // The record has both files: changes at their source are no conflicts.
    write(&from, "a", "changed");
    std::fs::remove_file(from.join("b")).expect("ours");
    let done = mirror(&from, &to, &of_source(1, Some(MaxDelete::Percent(100)))).expect("written");
    assert_eq!((done.files, done.deleted, done.conflicts), (1, 1, 0));
}

#[test]
fn names_equal_here_are_refused() {
    let root = folder();
    let from = root.path().join("from");
    write(&from, "a/README", "one");
    write(&from, "a/readme", "two");
    let source = scanned(&from);
    let check = |folding| check_names(Path::new("to"), source.manifest(), folding);
    check(Folding::NONE).expect("the names differ");
    check(Folding::FORM).expect("the names differ");
    let refused = check(Folding::CASE).expect_err("the names are equal").to_string();
    assert_eq!(
        refused,
        "to: nothing was fetched: the file system ignores case in names, and 1 entry needs the name of another entry: \
         rename one of each; the first is `a/readme` beside `a/README`"
    );
}

fn rules(filter: &[&str], delete: Option<MaxDelete>) -> CopyRules {
    let filter = crate::tree::tests::filter(filter).into();
    CopyRules { filter, counts_surplus: true, ..of_source(1, delete) }
}

/// The snapshot of the entries that a filter includes.
fn included(path: &Path, filter: &Filter) -> [u8; 32] {
    let tree = Tree::open(path).expect("it is there");
    TreeStream::scan_included(&tree, filter, None, u64::MAX).expect("it can be read").0.manifest().id().0
}

#[test]
fn filtered_arrival_fetches_included_contents_only() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "a.bin", &"a".repeat(200_000));
    write(&from, "d/b.tmp", &"b".repeat(300_000));
    write(&from, "e/c.bin", "c");
    let (source, rules) = (scanned(&from), rules(&["- *.tmp"], None));
    let arrival = || {
        let place = Place::of(&to).expect("a name");
        Arrival::open(place, snapshot_of(&source), rules.clone(), u64::MAX).expect("it can be opened")
    };
    let mut begun = arrival().expect("nothing is there");
    assert!(begun.begin(head(&source)).expect("its head"));
    drop(begun);
    // The head is kept, and selected from again.
    let mut again = arrival().expect("a part is there");
    assert!(again.is_begun());
    assert_eq!(pull(&mut again, &source, |_| ()), 200_001);
    again.finish().expect("it is written");
    drop(again);
    assert!(to.join("d").is_dir() && !to.join("d/b.tmp").exists());
    assert_eq!(included(&to, &Filter::default()), included(&from, &rules.filter));
    let mut equal = arrival().expect("the list tells that it is equal");
    assert!(!equal.begin(head(&source)).expect("its head"), "nothing is to be written");
    drop(equal);
    assert!(around(&to).iter().all(|name| name.ends_with(".index") || name.ends_with(".sent")));
}

#[test]
fn filtered_mirror_leaves_excluded_entries_alone() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    for name in ["a.tmp", "d/b", "d/c.tmp", "gone/x"] {
        write(&from, name, name);
    }
    let all = Some(MaxDelete::Percent(100));
    mirror(&from, &to, &of_source(1, None)).expect("written");
    for name in ["a.tmp", "d/b", "d/c.tmp", "gone/x"] {
        std::fs::remove_file(from.join(name)).expect("ours");
    }
    std::fs::remove_dir(from.join("gone")).expect("ours");
    write(&from, "new.tmp", "excluded");
    write(&from, "new", "included");
    let done = mirror(&from, &to, &rules(&["- *.tmp"], all)).expect("written");
    assert_eq!((done.deleted, done.files, done.conflicts), (3, 1, 0), "{done:?}");
    assert!(to.join("a.tmp").exists() && to.join("d/c.tmp").exists() && to.join("new").exists());
    assert!(!to.join("gone").exists() && !to.join("d/b").exists() && !to.join("new.tmp").exists());
    // A directory with an excluded entry stays.
    std::fs::remove_dir(from.join("d")).expect("ours");
    let done = mirror(&from, &to, &rules(&["- *.tmp"], all)).expect("written");
    assert_eq!((done.deleted, to.join("d/c.tmp").exists()), (0, true), "{done:?}");
}

#[test]
fn deletes_beside_rules_beyond_paths_are_refused() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "a", "small");
    write(&from, "b", &"large".repeat(100));
    write(&to, "only-here", "x");
    let options = anabranch_sets::filter::Options { size_bytes_max: Some(10), ..Default::default() };
    let filter = Arc::new(Filter::new(&options).expect("right options"));
    let rules = |delete| CopyRules { filter: Arc::clone(&filter), ..rules(&[], delete) };
    let source = scanned(&from);
    let all = Some(MaxDelete::Percent(100));
    let refusal = "--delete with --max-size: an entry could count in one copy only: leave one of them out";
    let refused = mirror(&from, &to, &rules(all)).expect_err("refused").to_string();
    assert_eq!(refused, refusal);
    let refused = compare(&to, snapshot_of(&source), head(&source), &rules(all), u64::MAX);
    assert_eq!(refused.expect_err("refused").to_string(), refusal);
    let found = compare(&to, snapshot_of(&source), head(&source), &rules(None), u64::MAX).expect("compared");
    assert_eq!((found.missing, found.content_bytes, found.surplus), (1, 5, None), "{found:?}");
    assert_eq!(mirror(&from, &to, &rules(None)).expect("written").files, 1);
    assert!(to.join("a").exists() && to.join("only-here").exists() && !to.join("b").exists());
}
