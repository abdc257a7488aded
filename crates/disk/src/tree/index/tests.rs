//! The index in scans: files that are read again, and the replacement of a damaged index.

use super::*;
use crate::folder::Place;
use crate::tree::Tree;
use crate::tree::manifest::{Snapshot, read};
use crate::tree::publish::NextTree;
use crate::tree::stream::TreeStream;
use crate::tree::tests::{filter, folder, write};
use anabranch_pieces::blocks::BLOCKED_BYTES_MIN;
use anabranch_sets::filter::Filter;
use proptest::prelude::*;

/// A tree, and an index file beside it.
struct World {
    all: tempfile::TempDir,
    granularity: Duration,
}

impl World {
    fn new() -> Self {
        let world = Self { all: folder(), granularity: Duration::ZERO };
        for name in ["a", "d/b", "d/c", "e"] {
            write(&world.root(), name, name);
        }
        world
    }

    fn root(&self) -> PathBuf {
        self.all.path().join("tree")
    }

    fn index(&self) -> PathBuf {
        self.all.path().join("index.redb")
    }

    fn scan(&self, filter: &Filter) -> Snapshot {
        let tree = Tree::open(&self.root()).expect("it is there");
        let root = tree.root().expect("it can be read").expect("a folder");
        let mut index = Index::open(&self.index(), &root).expect("it can be made");
        index.settled = self.granularity;
        // Times of files advance with the clock's ticks: files of the tick are not settled.
        std::thread::sleep(Duration::from_millis(20));
        let snapshot = read(&tree, filter, Some(&index), &mut |_, _| {}, &mut |path, problem| {
            panic!("{}: {problem}", path.escape_ascii())
        });
        snapshot.expect("it can be read")
    }

    fn hashed(&self) -> u64 {
        let counted = self.scan(&Filter::default());
        let tree = Tree::open(&self.root()).expect("it is there");
        let plain = read(&tree, &Filter::default(), None, &mut |_, _| {}, &mut |_, _| {});
        assert_eq!(plain.expect("it can be read").id, counted.id, "the index changes no result");
        counted.counts.hashed_files
    }
}

/// redb writes its mark last.
#[test]
fn zeros_of_a_killed_first_write_become_an_index() {
    let world = World::new();
    std::fs::write(world.index(), [0; 4096]).expect("ours");
    assert_eq!(world.hashed(), 4);
    assert_eq!(world.hashed(), 0);
}

#[test]
fn empty_file_without_a_name_holds_an_index() {
    let world = World::new();
    let file = tempfile::tempfile().expect("a temporary file");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let scan = || {
        let tree = Tree::open(&world.root()).expect("it is there");
        let root = tree.root().expect("it can be read").expect("a folder");
        let mut index = Index::open(Path::new(&path), &root).expect("it can be made");
        index.settled = world.granularity;
        std::thread::sleep(Duration::from_millis(20));
        let scanned = TreeStream::scan_included(&tree, &Filter::default(), Some(&index), u64::MAX);
        scanned.expect("it can be read").1.counts.hashed_files
    };
    assert_eq!((scan(), scan()), (4, 0));
}

#[test]
fn blocks_of_unchanged_large_files_are_kept() {
    let world = World::new();
    std::fs::write(world.root().join("large"), vec![7; BLOCKED_BYTES_MIN as usize]).expect("ours");
    let scan = || {
        let tree = Tree::open(&world.root()).expect("it is there");
        let root = tree.root().expect("it can be read").expect("a folder");
        let mut index = Index::open(&world.index(), &root).expect("it can be made");
        index.settled = world.granularity;
        std::thread::sleep(Duration::from_millis(20));
        let scanned = TreeStream::scan_included(&tree, &Filter::default(), Some(&index), u64::MAX);
        let (stream, scan) = scanned.expect("it can be read");
        (stream.manifest().head().to_vec(), scan.counts.hashed_files)
    };
    let (first, hashed) = scan();
    assert_eq!(hashed, 5);
    let (second, hashed) = scan();
    assert!(hashed == 0 && first == second, "{hashed} files were read");
    // The values of an earlier content are of no use.
    let forge = |index: &Index| {
        index.update(|begun| {
            let mut table = begun.open_table(BLOCKS)?;
            table.insert(b"large".as_slice(), [1_u8; 256].as_slice())?;
            Ok(())
        })
    };
    let tree = Tree::open(&world.root()).expect("it is there");
    let root = tree.root().expect("it can be read").expect("a folder");
    forge(&Index::open(&world.index(), &root).expect("it is there")).expect("it can be written");
    let (third, hashed) = scan();
    assert!(hashed == 1 && first == third, "{hashed} files were read");
}

#[test]
fn unchanged_files_are_not_read() {
    let world = World::new();
    assert_eq!(world.hashed(), 4);
    assert_eq!(world.hashed(), 0);
    write(&world.root(), "d/b", "B/d");
    write(&world.root(), "d/bb", "new");
    std::fs::remove_file(world.root().join("e")).expect("it is there");
    assert_eq!(world.hashed(), 2);
    assert_eq!(world.hashed(), 0);
}

/// Hard links to all files, and their removal, change each ctime.
#[test]
fn files_of_a_published_tree_are_not_read_again() {
    let world = World::new();
    std::fs::hard_link(world.root().join("a"), world.root().join("z")).expect("ours");
    let place = Place::of(&world.root()).expect("a name");
    let working = world.all.path().join(place.working_name("index"));
    let root = || Tree::open(&world.root()).and_then(|tree| tree.root()).expect("there").expect("a folder");
    assert_eq!(world.hashed(), 4);
    for keep in [0, 1, 1, 1] {
        std::fs::rename(world.index(), &working).expect("ours");
        let next = NextTree::build(&place, keep, &[0; 32]).expect("it can be built");
        let mut index = Index::open(&working, &root()).expect("it is there");
        index.stage(next.stat()).expect("it can be written");
        drop(index);
        let before = root();
        next.publish().expect("it can be published");
        assert_ne!(root().inode, before.inode);
        std::fs::rename(&working, world.index()).expect("ours");
        assert_eq!(world.hashed(), 0);
    }
    write(&world.root(), "d/c", "changed");
    assert_eq!(world.hashed(), 1);
}

#[test]
fn staged_records_apply_to_the_next_tree_only() {
    let all = folder();
    let path = all.path().join("index.redb");
    let root = |name: &str| {
        let path = all.path().join(name);
        std::fs::create_dir(&path).expect("ours");
        Tree::open(&path).and_then(|tree| tree.root()).expect("there").expect("a folder")
    };
    let (old, next, other) = (root("old"), root("next"), root("other"));
    let sent = |byte| Sent::decode(&[byte; SENT_BYTES]).expect("any bytes with a time are a record");
    let open = |root| Index::open(&path, root).expect("it can be opened");
    let records = |index: &Index| ["a", "b"].map(|name| index.sent(name.as_bytes()).expect("it can be read"));
    let mut index = open(&old);
    index.note_sent(&[(b"a".to_vec(), sent(1)), (b"b".to_vec(), sent(1))]).expect("written");
    // A publication that was given up.
    index.stage(&other).expect("written");
    index.note_sent(&[(b"b".to_vec(), sent(3))]).expect("written");
    drop(index);
    let mut index = open(&old);
    index.stage(&next).expect("written");
    index.note_sent(&[(b"a".to_vec(), sent(2))]).expect("written");
    index.forget_sent(&[b"b".to_vec()]).expect("written");
    drop(index);
    assert_eq!(records(&open(&old)), [Some(sent(1)), Some(sent(1))]);
    assert_eq!(records(&open(&next)), [Some(sent(2)), None]);
    assert_eq!(records(&open(&other)), [None, None]);
}

#[test]
fn an_index_can_be_deleted() {
    let world = World::new();
    assert_eq!(world.hashed(), 4);
    std::fs::remove_file(world.index()).expect("it is there");
    assert_eq!((world.hashed(), world.hashed()), (4, 0));
}

/// Git's racy rule: a file changed in the tick in which it was read keeps its times.
#[test]
fn fresh_files_are_read_again() {
    let mut world = World::new();
    // An hour, so that files do not settle even on a slow machine.
    world.granularity = Duration::from_secs(3_600);
    assert_eq!((world.hashed(), world.hashed()), (4, 4));
}

#[test]
fn files_settle_after_the_granularity() {
    let time = |seconds, nanos| FileTime::new(seconds, nanos).expect("fewer than a second");
    let stat = |modified, changed| Stat {
        mode: 0,
        size_bytes: 0,
        modified,
        changed,
        inode: 0,
        device: 0,
        links: 1,
        user: 0,
        group: 0,
    };
    let now = SystemTime::UNIX_EPOCH + Duration::new(100, 500);
    let is = |modified, changed| is_settled(&stat(modified, changed), now, Duration::from_secs(3));
    assert!(is(time(97, 499), time(97, 499)));
    assert!(!is(time(97, 500), time(97, 499)) && !is(time(97, 499), time(97, 500)));
    assert!(!is(time(200, 0), time(0, 0)));
}

#[test]
fn excluded_files_stay_in_the_index() {
    let world = World::new();
    assert_eq!(world.hashed(), 4);
    assert_eq!(world.scan(&filter(&["- /d/"])).counts.hashed_files, 0);
    assert_eq!(world.hashed(), 0);
}

#[test]
fn damaged_index_is_replaced() {
    let world = World::new();
    assert_eq!(world.hashed(), 4);
    let whole = std::fs::read(world.index()).expect("it is there");
    for damaged in [
        whole[..whole.len() / 2].to_vec(),
        whole.iter().enumerate().map(|(at, byte)| if at < 400 { *byte } else { 0x55 }).collect(),
    ] {
        std::fs::write(world.index(), &damaged).expect("it can be written");
        assert_eq!((world.hashed(), world.hashed()), (4, 0));
        let aside = world.all.path().join("index.redb.damaged");
        assert!(std::fs::read(aside).is_ok_and(|moved| moved.len() == damaged.len()));
    }
}

#[test]
fn files_of_other_programs_are_refused() {
    let world = World::new();
    let root = Tree::open(&world.root()).and_then(|tree| tree.root()).expect("there").expect("a folder");
    let refused = || {
        let before = std::fs::read(world.index()).expect("it is there");
        let error = Index::open(&world.index(), &root).err().expect("it is another's").to_string();
        assert!(
            error.ends_with("another program's file has this name, and stays: name another file"),
            "{error}"
        );
        assert_eq!(std::fs::read(world.index()).expect("it is there").len(), before.len());
    };
    std::fs::write(world.index(), "a text").expect("it can be written");
    refused();
    std::fs::remove_file(world.index()).expect("it is there");
    let store = Database::create(world.index()).expect("it can be made");
    let begun = store.begin_write().expect("a new store");
    let other: TableDefinition<'_, u64, u64> = TableDefinition::new("transfers");
    begun.open_table(other).expect("a new table").insert(1, 2).expect("it is kept");
    begun.commit().expect("it is kept");
    drop(store);
    refused();
    let store = Database::open(world.index()).expect("it is whole");
    let read = store.begin_read().expect("it is whole");
    let value = read.open_table(other).and_then(|table| Ok(table.get(1)?.map(|value| value.value())));
    assert_eq!(value.expect("it is whole"), Some(2));
}

#[test]
fn index_of_another_tree_is_replaced() {
    let world = World::new();
    assert_eq!(world.hashed(), 4);
    std::fs::rename(world.root(), world.all.path().join("old")).expect("it is there");
    for name in ["a", "d/b"] {
        write(&world.root(), name, "other");
    }
    assert_eq!((world.hashed(), world.hashed()), (2, 0));
}

#[test]
fn an_open_index_is_refused() {
    let world = World::new();
    let root = Tree::open(&world.root()).and_then(|tree| tree.root()).expect("there").expect("a folder");
    let _open = Index::open(&world.index(), &root).expect("it can be made");
    let error = Index::open(&world.index(), &root).err().expect("it is open").to_string();
    assert!(error.contains("index.redb") && !error.contains('\n'), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Five kinds of damage: bytes, zeros, pages in the wrong place, a shorter file, the header.
    #[test]
    fn damage_never_fails_a_scan(edits in prop::collection::vec(any::<[u8; 10]>(), 1..6)) {
        exercise_damage(folder().path(), &edits.concat());
    }
}

#[test]
fn undamaged_index_keeps_its_entries() {
    assert!(exercise_damage(folder().path(), &[]));
    let first_byte_of_the_magic = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert!(!exercise_damage(folder().path(), &first_byte_of_the_magic));
}
