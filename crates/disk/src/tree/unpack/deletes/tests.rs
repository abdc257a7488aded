//! Mirrors of directories, and the entries that no mirror deletes.

use super::super::tests::{ORIGIN, edit, record, scanned, unpacker};
use super::super::{Backup, Manifest, Unpacked, Unpacker};
use crate::folder::{Folder, Links};
use crate::tree::index::{Index, Origin};
use crate::tree::stream::{LocalContent, TreeStream};
use crate::tree::tests::{folder, write};
use anabranch_pieces::ByteRange;
use anabranch_sets::filter::{Filter, Options};
use anabranch_units::Seed;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

/// A source, its destination, and the record of transfers.
struct World {
    root: tempfile::TempDir,
    record: Index,
}

/// How a directory is mirrored.
#[derive(Clone, Copy)]
struct Mirror<'a> {
    origin: Origin,
    replace: bool,
    deletes: bool,
    backup: Option<&'a Backup>,
    filter: Option<&'a Filter>,
    broken_off: Option<(&'a Manifest, Origin)>,
    /// Work between the scan of the destination and its deletes.
    meanwhile: fn(&Path),
}

const MIRROR: Mirror<'_> = Mirror {
    origin: ORIGIN,
    replace: false,
    deletes: true,
    backup: None,
    filter: None,
    broken_off: None,
    meanwhile: |_| {},
};

impl World {
    /// A world whose source has these files.
    fn new(files: &[&str]) -> Self {
        let root = folder();
        let record = record(&root.path().join("to"));
        let world = Self { root, record };
        std::fs::create_dir(world.from()).expect("the folder is ours");
        files.iter().for_each(|file| write(&world.from(), file, file));
        world
    }

    fn from(&self) -> PathBuf {
        self.root.path().join("from")
    }

    fn to(&self) -> PathBuf {
        self.root.path().join("to")
    }

    fn remove(&self, name: &str) {
        let path = self.from().join(name);
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.expect("it is the source's");
    }

    fn backup(&self, name: &str) -> Backup {
        let served = Folder::open(self.root.path(), Links::Refused).expect("it is there");
        let directory = std::fs::File::open(self.to()).expect("it is there").into();
        Backup::open(&served, &served.name(name).expect("a name"), &directory).expect("it can be made")
    }

    fn mirror(&self, mirror: Mirror<'_>) -> Unpacked {
        let (source, before) = (scanned(&self.from()), scanned(&self.to()));
        let open = Filter::default();
        let filter = mirror.filter.unwrap_or(&open);
        let surplus = source.manifest().surplus_of(before.manifest(), filter).expect("whole");
        (mirror.meanwhile)(&self.to());
        let (stream, local) = stream_of(&source, &before);
        let unpacker = Unpacker {
            before: Some(&before),
            record: Some(&self.record),
            broken_off: mirror.broken_off,
            origin: mirror.origin,
            replace: mirror.replace,
            deletes: mirror.deletes.then_some(&surplus),
            backup: mirror.backup,
            filter: mirror.filter,
            ..unpacker(&stream, source.manifest())
        };
        let root = std::fs::File::open(self.to()).expect("it is there").into();
        unpacker.run(root, &self.to(), &local).expect("it is written")
    }

    fn is_equal(&self) -> bool {
        scanned(&self.from()).manifest().id() == scanned(&self.to()).manifest().id()
    }

    fn has(&self, name: &str) -> bool {
        std::fs::symlink_metadata(self.to().join(name)).is_ok()
    }
}

/// Needs root, and a file system with immutable files.
#[test]
fn entry_that_cannot_be_deleted_is_a_conflict() {
    let world = World::new(&["a", "b", "c"]);
    assert_eq!(world.mirror(MIRROR).conflicts, 0);
    ["a", "b"].iter().for_each(|name| world.remove(name));
    let immutable = |option: &str| {
        let command = std::process::Command::new("chattr").arg(option).arg(world.to().join("a")).output();
        command.is_ok_and(|said| said.status.success())
    };
    if !immutable("+i") {
        anabranch_testing::skip::skip("immutable files need root, chattr and a file system that has them");
        return;
    }
    let done = world.mirror(MIRROR);
    assert!(immutable("-i"), "the file is ours");
    assert_eq!((done.deleted, done.conflicts), (1, 1), "{done:?}");
    assert!(world.has("a") && !world.has("b") && world.has("c"));
}

#[test]
fn backup_has_file_and_directory_of_one_name() {
    let world = World::new(&["a", "b"]);
    let kept = |name: &str| std::fs::read_to_string(world.root.path().join("old").join(name)).ok();
    let backup = world.backup("old");
    let mirror = || world.mirror(Mirror { backup: Some(&backup), ..MIRROR });
    mirror();
    world.remove("a");
    mirror();
    write(&world.from(), "a/x", "in the directory");
    mirror();
    world.remove("a");
    let done = mirror();
    assert_eq!((done.conflicts, world.has("a")), (0, false), "{done:?}");
    assert_eq!(kept("a").as_deref(), Some("a"));
    assert_eq!(kept("a.~1~/x").as_deref(), Some("in the directory"));
}

#[test]
fn excluded_file_does_not_give_way_to_a_directory() {
    let world = World::new(&["name/x", "y"]);
    write(&world.to(), "name", "excluded");
    // The rule is about files: a directory of this name is included.
    let options = Options { filter: vec!["- /name".to_owned()], ..Options::default() };
    let filter = Filter::new(&options).expect("a rule of the test");
    let done = world.mirror(Mirror { replace: true, filter: Some(&filter), ..MIRROR });
    assert_eq!((done.conflicts, done.deleted, world.has("y")), (1, 0, true), "{done:?}");
    assert_eq!(std::fs::read_to_string(world.to().join("name")).ok().as_deref(), Some("excluded"));
}

fn copy_with_time(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("ours");
    let modified = std::fs::metadata(from).and_then(|found| found.modified()).expect("it is there");
    std::fs::File::options().write(true).open(to).and_then(|to| to.set_modified(modified)).expect("ours");
}

fn stream_of(source: &TreeStream, before: &TreeStream) -> (std::fs::File, Vec<LocalContent>) {
    let all = ByteRange { start: 0, end: source.manifest().length_bytes() };
    let stream = tempfile::tempfile().expect("a temporary file");
    stream.write_all_at(&source.read(all).expect("it can be read"), 0).expect("it can be written");
    (stream, before.contents_of(source.manifest()))
}

#[test]
fn edited_directories_are_mirrored() {
    for seed in 0..12 {
        let mut rng = Seed::new(seed).stream("mirrors", 0);
        let world = World::new(&[]);
        for round in 0..6 {
            (0..12).for_each(|_| edit(&world.from(), &mut rng));
            // A directory gives way to a file once it is empty, which takes a second transfer.
            if world.mirror(MIRROR).conflicts > 0 {
                assert_eq!(world.mirror(MIRROR).conflict_paths, [""; 0], "seed {seed}, round {round}");
            }
            assert!(world.is_equal(), "seed {seed}, round {round}");
        }
    }
}

#[test]
fn entries_changed_at_the_destination_are_not_deleted() {
    let world = World::new(&["kept", "d/changed", "d/same", "d/e/same"]);
    symlink("kept", world.from().join("link")).expect("ours");
    world.mirror(MIRROR);
    write(&world.to(), "d/changed", "by a user");
    std::fs::remove_file(world.to().join("link")).expect("ours");
    symlink("elsewhere", world.to().join("link")).expect("ours");
    world.remove("d");
    world.remove("link");
    let done = world.mirror(MIRROR);
    assert_eq!((done.deleted, done.conflicts), (3, 2), "{done:?}");
    assert!(world.has("d/changed") && world.has("link") && !world.has("d/same") && !world.has("d/e"));
    let done = world.mirror(Mirror { replace: true, ..MIRROR });
    assert_eq!((done.deleted, done.conflicts), (3, 0), "{done:?}");
    assert!(world.is_equal());
}

#[test]
fn entries_that_no_transfer_wrote_are_not_deleted() {
    let world = World::new(&["a", "d/sent"]);
    world.mirror(MIRROR);
    write(&world.to(), "d/mine", "by a user");
    write(&world.to(), "mine/too", "by a user");
    world.remove("d");
    let done = world.mirror(MIRROR);
    assert_eq!((done.deleted, done.conflicts), (1, 2), "{done:?}");
    assert!(world.has("d/mine") && world.has("mine/too") && !world.has("d/sent"));
}

#[test]
fn nothing_is_deleted_beside_a_conflict() {
    let world = World::new(&["d1/a", "d1/b"]);
    world.mirror(MIRROR);
    std::fs::rename(world.from().join("d1"), world.from().join("d2")).expect("ours");
    write(&world.to(), "d2", "a user's file has the new name");
    let done = world.mirror(MIRROR);
    assert_eq!((done.deleted, done.conflicts), (0, 1), "{done:?}");
    assert!(world.has("d1/a") && world.has("d1/b"));
}

#[test]
fn directory_that_becomes_a_file_takes_two_mirrors() {
    let world = World::new(&["d/a", "d/e/b", "c"]);
    world.mirror(MIRROR);
    world.remove("d");
    std::fs::rename(world.from().join("c"), world.from().join("d")).expect("ours");
    let done = world.mirror(MIRROR);
    assert_eq!((done.deleted, done.conflicts), (3, 1), "{done:?}");
    assert!(world.has("c"), "its new name is not there yet");
    let done = world.mirror(MIRROR);
    assert_eq!((done.deleted, done.conflicts), (1, 0), "{done:?}");
    assert!(world.is_equal());
}

#[test]
fn links_of_another_source_are_not_deleted() {
    let world = World::new(&["a"]);
    symlink("a", world.from().join("link")).expect("ours");
    std::fs::hard_link(world.from().join("a"), world.from().join("b")).expect("ours");
    world.mirror(MIRROR);
    let other = Mirror { origin: Origin(55), ..MIRROR };
    world.mirror(other);
    world.remove("link");
    world.remove("b");
    let done = world.mirror(other);
    assert_eq!((done.deleted, done.conflicts), (0, 2), "{done:?}");
    assert_eq!(world.mirror(MIRROR).deleted, 2);
}

#[test]
fn directories_that_no_transfer_made_are_not_deleted() {
    let world = World::new(&["a", "sent/b"]);
    std::fs::create_dir(world.from().join("empty")).expect("ours");
    world.mirror(MIRROR);
    std::fs::create_dir_all(world.to().join("mine/today")).expect("ours");
    world.remove("sent");
    world.remove("empty");
    let done = world.mirror(MIRROR);
    assert_eq!((done.deleted, done.conflicts), (3, 1), "{done:?}");
    assert!(world.has("mine/today") && !world.has("empty") && !world.has("sent"));
    assert_eq!(world.mirror(Mirror { replace: true, ..MIRROR }).deleted, 2);
}

#[test]
fn entries_that_were_made_again_are_not_deleted() {
    let world = World::new(&["a", "again"]);
    world.mirror(MIRROR);
    world.remove("again");
    let again = world.to().join("again");
    let content = std::fs::read(&again).expect("it arrived");
    std::fs::remove_file(&again).expect("ours");
    std::fs::write(&again, content).expect("ours");
    let done = world.mirror(MIRROR);
    assert_eq!((done.deleted, done.conflicts), (0, 1), "{done:?}");
    assert!(world.has("again"));
}

#[test]
fn entries_of_another_source_are_not_deleted() {
    let world = World::new(&["ours", "both"]);
    world.mirror(MIRROR);
    world.remove("ours");
    let other = Mirror { origin: Origin(55), ..MIRROR };
    let done = world.mirror(other);
    assert_eq!((done.deleted, done.conflicts), (0, 1), "{done:?}");
    // The other source has this content, too, but did not write it.
    world.remove("both");
    write(&world.from(), "new", "new");
    assert_eq!(world.mirror(other).deleted, 0);
    assert!(world.has("ours") && world.has("both"));
    let unknown = Mirror { origin: Origin::default(), ..MIRROR };
    write(&world.from(), "newer", "newer");
    world.mirror(unknown);
    world.remove("newer");
    assert_eq!(world.mirror(unknown).deleted, 0, "no entry is of an unknown source");
}

#[test]
fn nothing_is_deleted_without_deletes() {
    let world = World::new(&["a", "d/b"]);
    world.mirror(MIRROR);
    world.remove("d");
    let done = world.mirror(Mirror { deletes: false, replace: true, ..MIRROR });
    assert_eq!((done.deleted, done.conflicts, world.has("d/b")), (0, 0, true));
}

#[test]
fn entries_that_change_before_their_delete_stay() {
    let world = World::new(&["a", "changed", "became", "d/x"]);
    world.mirror(MIRROR);
    for name in ["changed", "became", "d"] {
        world.remove(name);
    }
    let meanwhile = |to: &Path| {
        write(to, "changed", "by a user");
        std::fs::remove_file(to.join("became")).expect("ours");
        write(to, "became/inside", "by a user");
        std::fs::rename(to.join("d"), to.join("../outside")).expect("ours");
        symlink("../outside", to.join("d")).expect("ours");
    };
    for replace in [false, true] {
        let done = world.mirror(Mirror { meanwhile, replace, ..MIRROR });
        assert_eq!(done.deleted, 0, "{done:?}");
        assert!(world.has("changed") && world.has("became/inside") && world.has("d"));
        let outside = std::fs::read_to_string(world.root.path().join("outside/x"));
        assert_eq!(outside.expect("it is there"), "d/x", "deletes follow no link");
        if !replace {
            std::fs::remove_file(world.to().join("d")).expect("ours");
            std::fs::rename(world.root.path().join("outside"), world.to().join("d")).expect("ours");
            std::fs::remove_dir_all(world.to().join("became")).expect("ours");
            write(&world.to(), "became", "became");
        }
    }
}

#[test]
fn backup_has_deleted_and_overwritten_entries() {
    let world = World::new(&["a", "d/deleted", "over"]);
    world.mirror(MIRROR);
    let backup = world.backup("old/to");
    let mirror = Mirror { backup: Some(&backup), ..MIRROR };
    world.remove("d");
    write(&world.from(), "over", "second");
    assert_eq!(world.mirror(mirror).deleted, 2);
    assert!(world.is_equal());
    write(&world.from(), "over", "third");
    write(&world.from(), "d/deleted", "again");
    world.mirror(mirror);
    world.remove("d");
    world.mirror(mirror);
    let old = world.root.path().join("old/to");
    let read = |name: &str| std::fs::read_to_string(old.join(name)).expect("it is in the backup");
    assert_eq!((read("over"), read("over.~1~")), ("over".to_owned(), "second".to_owned()));
    assert_eq!((read("d/deleted"), read("d/deleted.~1~")), ("d/deleted".to_owned(), "again".to_owned()));
    for directory in [old.clone(), old.join("d")] {
        assert_eq!(std::fs::metadata(directory).expect("it is there").mode() & 0o777, 0o700);
    }
    let content = std::fs::metadata(old.join("over")).expect("it is there");
    assert_eq!(content.nlink(), 1, "the destination has another file now");
}

/// A transfer was killed after its contents were written, before its record and its deletes.
#[test]
fn entries_of_a_broken_off_transfer_are_deleted() {
    for (origin, deleted) in [(ORIGIN, 1), (Origin(55), 0)] {
        let world = World::new(&["a", "b"]);
        let killed = scanned(&world.from());
        copy_with_time(&world.from().join("b"), &world.to().join("b"));
        world.remove("b");
        let broken_off = Some((killed.manifest(), origin));
        let done = world.mirror(Mirror { broken_off, ..MIRROR });
        assert_eq!((done.deleted, done.conflicts), (deleted, 1 - deleted), "{done:?}");
    }
}

#[test]
fn deletes_go_on_after_an_interruption() {
    let world = World::new(&["a", "d/b", "d/c", "e"]);
    world.mirror(MIRROR);
    world.remove("d");
    world.mirror(Mirror { deletes: false, ..MIRROR });
    std::fs::remove_file(world.to().join("d/c")).expect("as a killed transfer deleted it");
    assert_eq!(world.mirror(MIRROR).deleted, 2);
    assert!(world.is_equal());
}

#[test]
fn deleted_entry_is_no_longer_in_the_record() {
    let world = World::new(&["a", "b"]);
    world.mirror(MIRROR);
    let kept = world.root.path().join("kept");
    copy_with_time(&world.to().join("b"), &kept);
    world.remove("b");
    world.mirror(MIRROR);
    copy_with_time(&kept, &world.to().join("b"));
    assert_eq!((world.mirror(MIRROR).deleted, world.has("b")), (0, true));
}

/// On a file system that ignores case, a surplus name may lead to a file of the source.
#[test]
fn name_that_another_spelling_finds_is_not_deleted() {
    let world = World::new(&["x", "name"]);
    world.mirror(MIRROR);
    world.remove("name");
    std::fs::hard_link(world.to().join("name"), world.to().join("NAME")).expect("ours");
    assert_eq!(world.mirror(Mirror { replace: true, ..MIRROR }).deleted, 0);
    assert!(world.has("name") && world.has("NAME"));
}

#[test]
fn backup_is_never_reached_by_a_link() {
    let world = World::new(&["a"]);
    symlink(world.root.path().join("from"), world.root.path().join("old")).expect("ours");
    let served = Folder::open(world.root.path(), Links::Refused).expect("it is there");
    let directory = std::fs::File::open(world.to()).expect("it is there").into();
    for name in ["old", "old/more"] {
        let name = served.name(name).expect("a name");
        assert!(Backup::open(&served, &name, &directory).is_err(), "{name}");
    }
}
