//! Publications of small directories, and publications that a crash broke off at each step.

use super::marker::utc;
use super::*;
use crate::tree::arrival::{Arrival, CopyRules, Snapshot};
use crate::tree::index::Origin;
use crate::tree::stream::TreeStream;
use crate::tree::tests::{folder, write};
use crate::tree::unpack::Unpacked;
use anabranch_pieces::PieceHasher;
use anabranch_sets::deletes::MaxDelete;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::{Duration, SystemTime};

fn scanned(path: &Path) -> TreeStream {
    let tree = Tree::open(path).expect("it is there");
    TreeStream::scan(&tree, None, u64::MAX).expect("it can be read")
}

fn id(path: &Path) -> [u8; 32] {
    scanned(path).manifest().id().0
}

/// A source and a destination.
struct World {
    root: tempfile::TempDir,
    rules: CopyRules,
}

impl World {
    /// A world whose destination keeps `keep` earlier snapshots.
    fn new(keep: u32) -> Self {
        let world = Self {
            root: folder(),
            rules: CopyRules {
                origin: Origin(54),
                delete: Some(MaxDelete::Percent(100)),
                publication: Publication::Snapshot { keep },
                ..CopyRules::default()
            },
        };
        write(&world.from(), "a", "content of a");
        write(&world.from(), "d/b", "content of b");
        symlink("a", world.from().join("link")).expect("ours");
        world
    }

    fn from(&self) -> PathBuf {
        self.root.path().join("from")
    }

    fn to(&self) -> PathBuf {
        self.root.path().join("to")
    }

    fn place(&self) -> Place {
        Place::of(&self.to()).expect("a name")
    }

    /// Path of the tree that is not published.
    fn next(&self) -> PathBuf {
        self.root.path().join(self.place().working_name(NEXT))
    }

    /// Sends the source's directory; `None` if the destination has it already.
    fn try_send(&self) -> io::Result<Option<Unpacked>> {
        let source = scanned(&self.from());
        let manifest = source.manifest();
        let snapshot = Snapshot { id: manifest.id().0, length_bytes: manifest.length_bytes() };
        let Some(mut arrival) = Arrival::open(self.place(), snapshot, self.rules.clone(), u64::MAX)? else {
            return Ok(None);
        };
        if !arrival.is_begun() {
            arrival.begin(manifest.head().to_vec())?;
        }
        for range in arrival.missing() {
            let bytes = source.read(range)?;
            let mut hasher = PieceHasher::new(range);
            hasher.update(&bytes);
            let piece = hasher.finish().expect("all bytes are there");
            arrival.stream().write(range, &[bytes], &piece)?;
        }
        match arrival.finish() {
            Ok(done) => Ok(Some(done)),
            Err(crate::partial::FinishError::Io(error)) => Err(error),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn send(&self) -> Unpacked {
        let done = self.try_send().expect("it is written").expect("it differs");
        assert_eq!(done.conflict_paths, [""; 0]);
        assert_eq!(id(&self.to()), id(&self.from()));
        done
    }

    /// Names beside the directories, without the index and the record.
    fn beside(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.root.path()).expect("it is there").flatten();
        let names = names.map(|entry| entry.file_name().into_string().expect("a plain name"));
        let is_usual = |name: &str| {
            ["from", "to"].contains(&name) || name.ends_with(".index") || name.ends_with(".sent")
        };
        let mut names: Vec<String> = names.filter(|name| !is_usual(name)).collect();
        names.sort_unstable();
        names
    }

    /// Paths of the kept snapshots, the oldest first.
    fn kept(&self) -> Vec<PathBuf> {
        let Ok(found) = std::fs::read_dir(self.root.path().join(".to.snapshots")) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
        paths.sort_unstable();
        paths
    }
}

fn inode(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).expect("it is there").ino()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn reader_of_the_old_root_keeps_the_old_snapshot() {
    let world = World::new(1);
    world.send();
    assert_eq!(world.beside(), [".to.snapshots"]);
    assert!(world.kept().is_empty());
    let (before, unchanged) = (id(&world.to()), inode(&world.to().join("a")));
    let reader = File::open(world.to()).expect("it is there");
    let seen = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    write(&world.from(), "d/b", "another content");
    write(&world.from(), "new", "new");
    std::fs::remove_file(world.from().join("link")).expect("ours");
    let done = world.send();
    assert_eq!((done.files, done.deleted), (2, 1));
    assert_eq!(inode(&world.to().join("a")), unchanged, "an unchanged file is the same file");
    assert_eq!(std::fs::read(seen.join("d/b")).expect("it is kept"), b"content of b");
    assert!(!seen.join("new").exists() && seen.join("link").is_symlink());
    let kept = world.kept();
    assert_eq!(kept.len(), 1);
    assert_eq!(id(&kept[0]), before);
    assert_eq!(inode(&kept[0].join("a")), unchanged);
}

#[test]
fn only_as_many_snapshots_are_kept_as_asked() {
    let world = World::new(2);
    for round in 0..5 {
        write(&world.from(), "a", &format!("content {round}"));
        world.send();
    }
    write(&world.root.path().join(".to.snapshots"), "mine/x", "of a user");
    write(&world.from(), "a", "the last content");
    world.send();
    let contents: Vec<String> =
        world.kept().iter().flat_map(|kept| std::fs::read_to_string(kept.join("a"))).collect();
    assert_eq!(contents, ["content 3", "content 4"]);
    assert!(world.root.path().join(".to.snapshots/mine/x").exists());
}

#[test]
fn new_attributes_do_not_reach_the_old_snapshot() {
    let mut world = World::new(1);
    std::fs::hard_link(world.from().join("a"), world.from().join("second")).expect("ours");
    world.send();
    let before = id(&world.to());
    let old_mode = mode(&world.to().join("a"));
    std::fs::set_permissions(world.from().join("a"), std::fs::Permissions::from_mode(0o711)).expect("ours");
    let done = world.send();
    assert_eq!(done.files, 0, "its content was there");
    assert_eq!(mode(&world.to().join("a")), 0o711);
    assert_eq!(inode(&world.to().join("a")), inode(&world.to().join("second")));
    let kept = world.kept();
    assert_eq!((id(&kept[0]), mode(&kept[0].join("a"))), (before, old_mode));
    // A transfer that writes in place spares kept snapshots, too.
    world.rules.publication = Publication::Each;
    std::fs::set_permissions(world.from().join("d/b"), std::fs::Permissions::from_mode(0o711)).expect("ours");
    world.send();
    assert_eq!(id(&world.kept()[0]), before);
}

#[test]
fn publication_broken_off_before_the_exchange_changes_nothing() {
    let world = World::new(1);
    world.send();
    let before = id(&world.to());
    let place = world.place();
    let next = NextTree::build(&place, 1, &before).expect("it can be built");
    write(&world.next(), "d/b2", "only in the next tree");
    drop(next);
    assert_eq!(id(&world.to()), before);
    write(&world.from(), "a", "changed");
    world.send();
    assert_eq!((world.beside().len(), world.kept().len()), (1, 1), "{:?}", world.beside());
    assert_eq!(id(&world.kept()[0]), before);
}

#[test]
fn publication_broken_off_after_the_exchange_is_ended() {
    for keep in [0, 1] {
        let world = World::new(keep);
        world.send();
        let before = id(&world.to());
        let place = world.place();
        let next = NextTree::build(&place, keep, &before).expect("it can be built");
        write(&world.from(), "new", "new");
        let copied = std::process::Command::new("cp")
            .args(["-aT", "--remove-destination"])
            .args([world.from(), world.next()])
            .status();
        assert!(copied.expect("cp runs").success());
        next.exchange().expect("it can be exchanged");
        drop(next);
        assert_eq!((id(&world.to()), id(&world.next())), (id(&world.from()), before));
        // The same transfer finds its snapshot.
        assert_eq!(world.try_send().expect("it is there"), None);
        assert!(!world.next().exists());
        assert_eq!(world.kept().len(), keep as usize);
        assert!(world.beside().iter().all(|name| name == ".to.snapshots"), "{:?}", world.beside());
    }
}

#[test]
fn changes_by_other_programs_are_never_lost() {
    let world = World::new(0);
    world.send();
    let before = id(&world.to());
    let place = world.place();
    let next = NextTree::build(&place, 0, &before).expect("it can be built");
    write(&world.to(), "d/mine", "of a program here");
    let refused = next.exchange().expect_err("it would be lost").to_string();
    assert!(refused.contains("another program changed it while the next snapshot was written"), "{refused}");
    settle(&place).expect("the next tree can be removed");
    assert!(world.to().join("d/mine").exists() && !world.next().exists());
}

#[test]
fn newest_snapshot_survives_a_clock_set_back() {
    let world = World::new(1);
    world.send();
    write(&world.root.path().join(".to.snapshots/29991231T000000.000Z-0123456789abcdef"), "a", "of 2999");
    write(&world.from(), "a", "changed");
    let before = id(&world.to());
    world.send();
    let kept = world.kept();
    assert_eq!((kept.len(), id(&kept[0])), (1, before));
}

#[test]
fn directories_keep_their_access_lists() {
    let world = World::new(0);
    world.send();
    // Version 2: the owner rwx, user 1234 rwx, the group nothing, the mask rwx, others nothing.
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries = [(1, 7, u32::MAX), (2, 7, 1234), (4, 0, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let list =
        [2u32.to_le_bytes().to_vec(), entries.map(|(tag, may, id)| entry(tag, may, id)).concat()].concat();
    let (path, name) = (world.to().join("d"), "system.posix_acl_access");
    match rustix::fs::setxattr(&path, name, &list, rustix::fs::XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {
            return anabranch_testing::skip::skip("this file system has no access lists");
        }
        other => other.expect("it is ours"),
    }
    write(&world.from(), "a", "changed");
    world.send();
    let mut found = [0; 256];
    let bytes = rustix::fs::getxattr(&path, name, &mut found[..]).expect("the new directory has a list");
    // The mode of the source sets the owner, the mask and the rest.
    let group = |list: &[u8]| list[4 + 2 * 8..4 + 3 * 8].to_vec();
    assert_eq!((bytes, group(&found)), (list.len(), group(&list)));
}

#[test]
fn conflicts_stay_in_the_new_snapshot() {
    let world = World::new(0);
    world.send();
    write(&world.to(), "a", "changed here, and longer");
    write(&world.from(), "a", "changed at the source");
    write(&world.from(), "d/b", "changed");
    let done = world.try_send().expect("the rest is written").expect("it differs");
    assert_eq!((done.conflicts, done.files), (1, 1));
    assert_eq!(std::fs::read(world.to().join("a")).expect("there"), b"changed here, and longer");
    assert_eq!(std::fs::read(world.to().join("d/b")).expect("there"), b"changed");
    assert_eq!(world.beside(), [""; 0]);
}

#[test]
fn transfers_into_the_directory_are_refused() {
    let world = World::new(0);
    world.send();
    write(&world.to(), "d/.anabranch-x.journal", "");
    let before = id(&world.to());
    write(&world.from(), "a", "changed");
    let refused = world.try_send().expect_err("its journal would be lost").to_string();
    assert!(refused.contains("to/d/.anabranch-x.journal: --publish snapshot: a working file"), "{refused}");
    assert_eq!(id(&world.to()), before);
    assert!(!world.next().exists(), "the next tree is removed");
    std::fs::rename(world.to().join("d/.anabranch-x.journal"), world.to().join("d/.anabranch-x.index"))
        .expect("ours");
    world.send();
}

#[test]
fn backup_and_mount_point_are_refused() {
    let mut world = World::new(0);
    world.rules.backup = Some(world.root.path().join("old"));
    let refused = world.try_send().expect_err("refused").to_string();
    assert!(refused.contains("--backup with --publish snapshot"), "{refused}");
    assert_eq!(world.beside(), [""; 0], "nothing is made");
    let place = Place::of(Path::new("/proc")).expect("a name");
    let refused = check(&place, Publication::Snapshot { keep: 0 }).expect_err("refused").to_string();
    assert!(refused.contains("a file system is mounted there"), "{refused}");
    check(&place, Publication::Each).expect("each file has its own name");
}

#[test]
fn directories_without_write_permission_are_replaced() {
    let world = World::new(1);
    std::fs::set_permissions(world.from().join("d"), std::fs::Permissions::from_mode(0o555)).expect("ours");
    for round in 0..3 {
        write(&world.from(), "a", &format!("content {round}"));
        std::fs::set_permissions(world.from(), std::fs::Permissions::from_mode(0o555)).expect("ours");
        world.send();
        assert_eq!((mode(&world.to()), mode(&world.to().join("d"))), (0o555, 0o555));
        std::fs::set_permissions(world.from(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let kept = world.kept();
    assert_eq!((kept.len(), mode(&kept[0])), (1, 0o555));
    // The temporary folder is removed without extra rights.
    for path in [world.to(), world.to().join("d"), world.from().join("d"), kept[0].clone(), kept[0].join("d")]
    {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
    }
}

#[test]
fn markers_and_names_survive_their_text() {
    let name = format!(
        "{}-0123456789abcdef",
        utc(SystemTime::UNIX_EPOCH + Duration::from_millis(1_796_081_051_123))
    );
    assert_eq!(name, "20261130T232411.123Z-0123456789abcdef");
    assert_eq!(utc(SystemTime::UNIX_EPOCH + Duration::from_secs(951_782_400)), "20000229T000000.000Z");
    assert!(is_snapshot_name(snapshot_name(&[0xab; 32]).as_bytes()));
    let begun_at = FileTime::new(-5, 7).expect("below a second");
    let marker = Marker { next: (u64::MAX, 3), begun_at, keep: 2, name };
    assert_eq!(Marker::decode(&marker.encode()), Some(marker));
    for damaged in ["", "1 2 3 4 5 ../x\n", "1 2 3 4 5 20261130T232411.123Z-0123456789abcdef"] {
        assert_eq!(Marker::decode(damaged), None, "{damaged}");
    }
}
