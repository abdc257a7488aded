//! Owners, attributes and access lists of real files, over an ideal network.

use super::*;
use crate::tree::Tree;
use crate::tree::arrival::{Arrival, CopyRules, Snapshot, compare};
use crate::tree::index::Origin;
use crate::tree::stream::TreeStream;
use crate::tree::tests::{folder, write};
use crate::tree::unpack::Unpacked;
use crate::tree::{ScanRules, stat_of};
use anabranch_pieces::PieceHasher;
use anabranch_sets::comparison::DifferenceKind;
use anabranch_sets::filter::Filter;
use anabranch_sets::publication::Publication;
use anabranch_testing::skip::skip;
use anabranch_units::{RandomStream, Seed};
use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};

const XATTRS: MetadataRules = MetadataRules { owners: None, xattrs: true };
const OWNERS: MetadataRules = MetadataRules { owners: Some(OwnerMapping::Numbers), xattrs: false };
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A source and a destination.
struct World {
    root: tempfile::TempDir,
    rules: CopyRules,
}

impl World {
    fn new(metadata: MetadataRules) -> Self {
        Self::of(folder(), metadata)
    }

    /// A world for attributes of any length: ext4 has room for some 4,000 bytes.
    fn in_memory(metadata: MetadataRules) -> Self {
        Self::of(tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| folder()), metadata)
    }

    fn of(root: tempfile::TempDir, metadata: MetadataRules) -> Self {
        let rules = CopyRules { origin: Origin(54), metadata, ..CopyRules::default() };
        let world = Self { root, rules };
        // Contents below `LOCAL_BYTES_MIN` may be sent although the destination has them.
        write(&world.from(), "a", &"a".repeat(70_000));
        write(&world.from(), "d/b", &"b".repeat(70_000));
        symlink("a", world.from().join("link")).expect("ours");
        world
    }

    fn from(&self) -> PathBuf {
        self.root.path().join("from")
    }

    fn to(&self) -> PathBuf {
        self.root.path().join("to")
    }

    fn scan(&self, path: &Path) -> io::Result<TreeStream> {
        let rules = ScanRules { filter: &Filter::default(), metadata: self.rules.metadata };
        let (stream, scan) = TreeStream::scan_included(&Tree::open(path)?, rules, None, u64::MAX)?;
        scan.whole().map(|()| stream)
    }

    /// Sends the source's directory. Returns the result, and the bytes of contents that moved.
    fn send(&self) -> (Unpacked, u64) {
        let source = self.scan(&self.from()).expect("it can be read");
        let sent = self.send_stream(&source);
        let (found, wanted) = (self.scan(&self.to()).expect("it can be read"), source.manifest().id());
        assert_eq!(found.manifest().id(), wanted);
        sent
    }

    fn send_stream(&self, source: &TreeStream) -> (Unpacked, u64) {
        let sent = self.try_send(source);
        assert_eq!(sent.0.conflict_paths, [""; 0]);
        sent
    }

    fn try_send(&self, source: &TreeStream) -> (Unpacked, u64) {
        let manifest = source.manifest();
        let snapshot = Snapshot { id: manifest.id().0, length_bytes: manifest.length_bytes() };
        let place = Place::of(&self.to()).expect("a name");
        let opened = Arrival::open(place, snapshot, self.rules.clone(), u64::MAX).expect("it can be opened");
        let mut arrival = opened.expect("it differs");
        arrival.begin(manifest.head().to_vec()).expect("its head");
        let mut moved = 0;
        for range in arrival.missing() {
            let bytes = source.read(range).expect("it can be read");
            moved += range.len();
            let mut hasher = PieceHasher::new(range);
            hasher.update(&bytes);
            let piece = hasher.finish().expect("all bytes are there");
            arrival.stream().write(range, &[bytes], &piece).expect("it can be written");
        }
        (arrival.finish().expect("it is written"), moved)
    }
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

fn value(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 512];
    let bytes = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    Some(value[..bytes].to_vec())
}

/// Bytes of an attribute's value.
fn value_bytes(path: &Path, name: &str) -> usize {
    let mut value = vec![0; 64 << 10];
    rustix::fs::lgetxattr(path, name, &mut value[..]).expect("it is there")
}

fn id(world: &World, path: &Path) -> [u8; 32] {
    world.scan(path).expect("it can be read").manifest().id().0
}

fn owner(path: &Path) -> (u32, u32) {
    let found = std::fs::symlink_metadata(path).expect("it is there");
    (found.uid(), found.gid())
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("it is there").mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").ino()
}

/// An access list of the owner, user 1234 with `permissions`, the group, the mask and others.
fn access_list(permissions: u16) -> Vec<u8> {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [(1, 6, none), (2, permissions, 1234), (4, 4, none), (16, 6, none), (32, 0, none)];
    let entries = entries.map(|(tag, may, id)| entry(tag, may, id)).concat();
    [2u32.to_le_bytes().to_vec(), entries].concat()
}

/// Returns true if files in this folder can have the attribute; prints why not.
fn has(world: &World, name: &str, value: &[u8]) -> bool {
    let probe = world.root.path().join("probe");
    std::fs::create_dir_all(&probe).expect("ours");
    match set(&probe, name, value) {
        Err(Errno::OPNOTSUPP) => {
            skip(&format!("this file system has no attribute {name}"));
            false
        }
        other => {
            other.expect("it is ours");
            true
        }
    }
}

fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skip("only root may give files away");
    }
    is_root
}

/// A version without metadata gave this id to a directory with owners and attributes.
#[test]
fn ids_without_options_are_unchanged() {
    let world = World::new(MetadataRules::default());
    let root = world.root.path().join("golden");
    write(&root, "d/a", "one\n");
    write(&root, "b", "two\n");
    symlink("b", root.join("c")).expect("ours");
    std::fs::hard_link(root.join("b"), root.join("e")).expect("ours");
    let _ = set(&root.join("b"), "user.a", b"1");
    let _ = chown(root.join("b"), Some(1_234), Some(5_678));
    for (path, mode) in [("d/a", 0o644), ("b", 0o600), ("d", 0o755), (".", 0o755)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(root.join(path), mode).expect("ours");
    }
    let time = crate::partial::modified_at(1_000_000_000, 0);
    for path in ["c", "d/a", "b", "d", "."] {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, root.join(path), &time, flags).expect("ours");
    }
    let found = world.scan(&root).expect("it can be read").manifest().id().to_string();
    assert_eq!(found, "397abd4b38b6d71943b397478072aabd4941b82149525cfc62c156d31e008c64");
}

#[test]
fn attributes_follow_the_source_without_contents() {
    let world = World::new(XATTRS);
    if !has(&world, "user.a", b"") {
        return;
    }
    let (from, to) = (world.from(), world.to());
    for path in ["a", "d", "."] {
        set(&from.join(path), "user.origin", path.as_bytes()).expect("ours");
    }
    world.send();
    for path in ["a", "d", "."] {
        assert_eq!(value(&to.join(path), "user.origin").as_deref(), Some(path.as_bytes()));
    }
    set(&from.join("a"), "user.origin", b"changed").expect("ours");
    set(&from.join("d/b"), "user.empty", b"").expect("ours");
    rustix::fs::removexattr(from.join("d"), "user.origin").expect("ours");
    set(&to.join("a"), "user.mine", b"of a program here").expect("ours");
    let (done, moved) = world.send();
    assert_eq!((done.files, moved), (0, 0), "no content moves");
    assert_eq!(value(&to.join("a"), "user.origin").as_deref(), Some(&b"changed"[..]));
    assert_eq!(value(&to.join("d/b"), "user.empty"), Some(Vec::new()));
    assert_eq!((value(&to.join("d"), "user.origin"), value(&to.join("a"), "user.mine")), (None, None));
}

/// Changes contents, modes, owners and attributes of some entries at random.
fn edit(root: &Path, draws: &mut RandomStream, may_chown: bool) {
    for _ in 0..6 {
        let path = root.join(["a", "d/b", "e/f", "d", "e", "."][draws.below(6) as usize]);
        match draws.below(if may_chown { 6 } else { 5 }) {
            0 if !path.is_dir() => std::fs::write(&path, draws.below(9).to_string()).expect("ours"),
            1 => {
                let mode = 0o700 | draws.below(0o100) as u32;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
            }
            2 => drop(rustix::fs::removexattr(&path, "user.a")),
            5 => chown(&path, Some(draws.below(9) as u32), Some(draws.below(9) as u32)).expect("root may"),
            _ => {
                let name = ["user.a", "user.b"][draws.below(2) as usize];
                set(&path, name, draws.below(9).to_string().as_bytes()).expect("ours");
            }
        }
    }
}

#[test]
fn random_metadata_arrives_whole() {
    let may_chown = nix::unistd::geteuid().is_root();
    for seed in 0..8 {
        let owners = may_chown.then_some(OwnerMapping::Names);
        let mut world = World::new(MetadataRules { owners, xattrs: true });
        if !has(&world, "user.a", b"") {
            return;
        }
        if seed % 2 == 0 {
            world.rules.publication = Publication::Snapshot { keep: 1 };
        }
        write(&world.from(), "e/f", "content of f");
        std::fs::hard_link(world.from().join("a"), world.from().join("z")).expect("ours");
        let mut draws = Seed::new(seed).stream("metadata", 0);
        world.send();
        for _ in 0..4 {
            edit(&world.from(), &mut draws, may_chown);
            if id(&world, &world.from()) != id(&world, &world.to()) {
                world.send();
            }
        }
    }
}

#[test]
fn read_only_files_get_attributes() {
    let world = World::new(XATTRS);
    if !has(&world, "user.a", b"") {
        return;
    }
    let only_read = std::fs::Permissions::from_mode(0o444);
    std::fs::set_permissions(world.from().join("a"), only_read).expect("ours");
    world.send();
    set(&world.from().join("d/b"), "user.a", b"1").expect("ours");
    std::fs::set_permissions(world.from().join("d/b"), std::fs::Permissions::from_mode(0o400)).expect("ours");
    world.send();
    assert_eq!((mode(&world.to().join("a")), mode(&world.to().join("d/b"))), (0o444, 0o400));
}

#[test]
fn access_lists_arrive_and_are_removed() {
    let world = World::new(XATTRS);
    if !has(&world, ACCESS, &access_list(6)) {
        return;
    }
    let (from, to) = (world.from(), world.to());
    set(&from.join("a"), ACCESS, &access_list(4)).expect("ours");
    set(&from.join("d"), DEFAULT, &access_list(6)).expect("ours");
    world.send();
    assert_eq!(value(&to.join("a"), ACCESS), Some(access_list(4)));
    assert_eq!(value(&to.join("d"), DEFAULT), Some(access_list(6)));
    assert_eq!(mode(&to.join("a")), mode(&from.join("a")));
    // A new file in this folder inherits a list, which the source's file has, too.
    write(&from, "d/new", "inherits");
    assert!(value(&from.join("d/new"), ACCESS).is_some());
    rustix::fs::removexattr(from.join("a"), ACCESS).expect("ours");
    world.send();
    assert_eq!(value(&to.join("d/new"), ACCESS), value(&from.join("d/new"), ACCESS));
    assert_eq!(value(&to.join("a"), ACCESS), None);
    // The folder at the destination has a default list, and the source's folder has none.
    rustix::fs::removexattr(from.join("d"), DEFAULT).expect("ours");
    write(&from, "d/plain", "no list");
    world.send();
    assert_eq!((value(&to.join("d/plain"), ACCESS), value(&to.join("d"), DEFAULT)), (None, None));
}

#[test]
fn removed_access_list_leaves_the_group_no_rights() {
    let world = World::new(XATTRS);
    if !has(&world, ACCESS, &access_list(6)) {
        return;
    }
    set_mode(&world.from().join("a"), 0o640);
    world.send();
    let to = world.to().join("a");
    set(&to, ACCESS, &access_list(6)).expect("ours");
    assert_eq!(mode(&to), 0o660, "the mask");
    world.send();
    assert_eq!((mode(&to), value(&to, ACCESS)), (0o640, None));
}

#[test]
fn changed_access_list_leaves_names_outside() {
    let world = World::new(XATTRS);
    if !has(&world, ACCESS, &access_list(6)) {
        return;
    }
    let (from, to) = (world.from(), world.to());
    std::fs::hard_link(from.join("a"), from.join("z")).expect("ours");
    set_mode(&from.join("a"), 0o640);
    world.send();
    let outside = world.root.path().join("outside");
    std::fs::hard_link(to.join("a"), &outside).expect("ours");
    set(&from.join("a"), ACCESS, &access_list(4)).expect("ours");
    let (_, moved) = world.send();
    assert_eq!((moved, inode(&to.join("a"))), (0, inode(&to.join("z"))));
    assert_eq!(value(&to.join("z"), ACCESS), Some(access_list(4)));
    assert_eq!((value(&outside, ACCESS), mode(&outside)), (None, 0o640));
    let before = inode(&to.join("a"));
    set(&from.join("a"), "user.a", b"1").expect("ours");
    world.send();
    assert_eq!(inode(&to.join("a")), before, "no other user gains rights by an attribute");
}

#[test]
fn copies_keep_metadata_the_transfer_leaves() {
    if !is_root() {
        return;
    }
    let world = World::new(OWNERS);
    if !has(&world, ACCESS, &access_list(6)) || !has(&world, "user.a", b"") {
        return;
    }
    let (from, to) = (world.from(), world.to());
    set_mode(&from.join("a"), 0o660);
    world.send();
    std::fs::hard_link(to.join("a"), world.root.path().join("outside")).expect("ours");
    let before = inode(&to.join("a"));
    set(&to.join("a"), ACCESS, &access_list(4)).expect("ours");
    set(&to.join("a"), "user.mine", b"of a program here").expect("ours");
    // A new file in this folder inherits a list, and the copied one has none.
    std::fs::hard_link(to.join("d/b"), world.root.path().join("beside")).expect("ours");
    set(&to.join("d"), DEFAULT, &access_list(6)).expect("ours");
    for path in ["a", "d/b"] {
        chown(from.join(path), Some(1_234), Some(5_678)).expect("root may");
    }
    world.send();
    assert_eq!((owner(&to.join("d/b")), value(&to.join("d/b"), ACCESS)), ((1_234, 5_678), None));
    let copy = to.join("a");
    assert_ne!(inode(&copy), before);
    assert_eq!((owner(&copy), mode(&copy)), ((1_234, 5_678), 0o660));
    assert_eq!(value(&copy, ACCESS), Some(access_list(4)), "the group may only read");
    assert_eq!(value(&copy, "user.mine").as_deref(), Some(&b"of a program here"[..]));
}

#[test]
fn copies_of_new_snapshots_keep_their_owners() {
    if !is_root() {
        return;
    }
    let mut world = World::new(MetadataRules::default());
    if !has(&world, ACCESS, &access_list(6)) || !has(&world, "user.a", b"") {
        return;
    }
    world.rules.publication = Publication::Snapshot { keep: 1 };
    let copy = world.to().join("a");
    set_mode(&world.from().join("a"), 0o660);
    world.send();
    set(&copy, ACCESS, &access_list(6)).expect("ours");
    let long = vec![7; 1_000];
    set(&copy, "user.mine", &long).expect("ours");
    chown(&copy, Some(1_234), Some(5_678)).expect("root may");
    let before = inode(&copy);
    set_mode(&world.from().join("a"), 0o640);
    world.send();
    assert_ne!(inode(&copy), before);
    assert_eq!((owner(&copy), mode(&copy)), ((1_234, 5_678), 0o640));
    // A new mode changes the mask alone, as in a file that is changed in place.
    let mut narrowed = access_list(6);
    narrowed[4 + 3 * 8 + 2] = 4;
    assert_eq!((value(&copy, ACCESS), value_bytes(&copy, "user.mine")), (Some(narrowed), long.len()));
}

#[test]
fn refused_attribute_gives_a_new_group_nothing() {
    if !is_root() {
        return;
    }
    let world = World::in_memory(XATTRS);
    if !has(&world, "user.a", b"") {
        return;
    }
    let path = world.from().join("a");
    set_mode(&path, 0o770);
    // No system takes a value of this length.
    let too_long = Xattr::new(b"user.a", &vec![7; VALUE_BYTES_MAX + 1]).expect("a name");
    let owner_there = OwnerNumbers { user: 1_234, group: 5_678 };
    let wanted = Wanted { owner: Some(owner_there), xattrs: Some(vec![too_long]) };
    let times = crate::partial::modified_at(1, 0);
    wanted.set(File::open(&path).expect("ours"), 0o750, &times).expect_err("it is too long");
    assert_eq!((owner(&path), mode(&path)), ((1_234, 5_678), 0o700));
}

/// The system refuses a new mode or time to all users but the owner.
#[test]
fn entries_of_other_users_keep_mode_and_time() {
    if !is_root() {
        return;
    }
    let world = World::new(XATTRS);
    let (from, to) = (world.from(), world.to());
    world.send();
    let beside = std::fs::read_dir(world.root.path()).expect("ours").flatten().map(|entry| entry.path());
    let given = [world.root.path().to_owned(), to.join("a"), to.join("link")];
    for path in beside.chain(given) {
        lchown(path, Some(1_234), Some(1_234)).expect("root may");
    }
    for path in [from.join("d"), to.join("d")] {
        set_mode(&path, 0o777);
    }
    set_mode(&to.join("d/b"), 0o604);
    write(&from, "d/new", "new");
    let sent = std::thread::spawn(move || {
        // The file system takes this thread for the other user.
        nix::unistd::setfsgid(Gid::from_raw(1_234));
        nix::unistd::setfsuid(Uid::from_raw(1_234));
        let source = world.scan(&world.from()).expect("it can be read");
        (world.send_stream(&source).0.files, world)
    });
    let (files, world) = sent.join().expect("a warning is enough");
    let to = world.to();
    assert_eq!((files, owner(&to.join("d/new")), mode(&to.join("d/b"))), (1, (1_234, 1_234), 0o604));
    world.send();
    assert_eq!(mode(&to.join("d/b")), mode(&from.join("d/b")), "the owner's transfer sets it back");
}

#[test]
fn long_attributes_are_named_and_never_cut() {
    let mut world = World::in_memory(XATTRS);
    if !has(&world, "user.a", b"") {
        return;
    }
    let longest = vec![7; XATTRS_BYTES_MAX - "user.a".len()];
    if set(&world.from().join("a"), "user.a", &longest).is_err() {
        return skip("this file system has no room for attributes of 4 KiB");
    }
    let stream = world.scan(&world.from());
    assert!(stream.is_ok(), "at the limit: {stream:?}");
    set(&world.from().join("a"), "user.b", b"").expect("ours");
    let refused = world.scan(&world.from()).expect_err("above the limit").to_string();
    assert!(refused.contains("from/a: extended attributes of 4102 bytes or more"), "{refused}");
    world.rules.metadata = MetadataRules::default();
    assert!(world.scan(&world.from()).is_ok(), "not asked for");
}

#[test]
fn destination_entry_with_long_attributes_is_a_conflict() {
    let mut world = World::in_memory(XATTRS);
    if !has(&world, "user.a", b"") {
        return;
    }
    world.send();
    let long = vec![7; XATTRS_BYTES_MAX];
    if set(&world.to().join("a"), "user.a", &long).is_err() {
        return skip("this file system has no room for attributes of 4 KiB");
    }
    set(&world.from().join("a"), "user.a", b"1").expect("ours");
    let source = world.scan(&world.from()).expect("it can be read");
    let (done, _) = world.try_send(&source);
    assert!(done.conflict_paths[0].ends_with("to/a"), "{:?}", done.conflict_paths);
    assert_eq!(value_bytes(&world.to().join("a"), "user.a"), long.len());
    world.rules.replace = true;
    world.send();
}

#[test]
fn owners_follow_the_source_without_contents() {
    if !is_root() {
        return;
    }
    let world = World::new(OWNERS);
    let (from, to) = (world.from(), world.to());
    chown(from.join("a"), Some(1_234), Some(5_678)).expect("root may");
    std::fs::set_permissions(from.join("a"), std::fs::Permissions::from_mode(0o6755)).expect("ours");
    chown(from.join("d"), Some(1_235), None).expect("root may");
    lchown(from.join("link"), Some(1_236), Some(1_236)).expect("root may");
    chown(&from, Some(1_237), Some(1_237)).expect("root may");
    world.send();
    for path in ["a", "d", "d/b", "link", "."] {
        assert_eq!(owner(&to.join(path)), owner(&from.join(path)), "{path}");
    }
    assert_eq!(mode(&to.join("a")), 0o755, "no setuid or setgid bit is set");
    chown(from.join("d/b"), Some(1_238), None).expect("root may");
    lchown(from.join("link"), Some(1_239), None).expect("root may");
    // Another program's change at the destination does not stay.
    chown(to.join("a"), Some(99), Some(99)).expect("root may");
    let (done, moved) = world.send();
    assert_eq!((done.files, moved), (0, 0), "no content moves");
    for path in ["a", "d/b", "link"] {
        assert_eq!(owner(&to.join(path)), owner(&from.join(path)), "{path}");
    }
}

#[test]
fn owners_are_left_unless_rules_ask() {
    if !is_root() {
        return;
    }
    let mut world = World::new(OWNERS);
    chown(world.from().join("a"), Some(1_234), Some(5_678)).expect("root may");
    lchown(world.from().join("link"), Some(1_234), Some(5_678)).expect("root may");
    chown(world.from().join("d"), Some(1_234), Some(5_678)).expect("root may");
    let source = world.scan(&world.from()).expect("it can be read");
    // The source sends owners, and the rules of the destination do not take them.
    world.rules.metadata = XATTRS;
    world.send_stream(&source);
    let ours = owner(world.root.path());
    for path in ["a", "d", "link"] {
        assert_eq!(owner(&world.to().join(path)), ours, "{path}");
    }
}

#[test]
fn names_of_one_file_change_their_owner_together() {
    if !is_root() {
        return;
    }
    let world = World::new(OWNERS);
    let (from, to) = (world.from(), world.to());
    std::fs::hard_link(from.join("a"), from.join("z")).expect("ours");
    world.send();
    let outside = world.root.path().join("outside");
    std::fs::hard_link(to.join("a"), &outside).expect("ours");
    chown(from.join("a"), Some(1_234), Some(5_678)).expect("root may");
    let (_, moved) = world.send();
    assert_eq!(moved, 0);
    assert_eq!(inode(&to.join("a")), inode(&to.join("z")));
    assert_eq!((owner(&to.join("z")), owner(&outside)), ((1_234, 5_678), owner(world.root.path())));
}

#[test]
fn snapshots_keep_their_owners_and_attributes() {
    if !is_root() {
        return;
    }
    let mut world = World::new(MetadataRules { owners: OWNERS.owners, xattrs: true });
    if !has(&world, "user.a", b"") {
        return;
    }
    world.rules.publication = Publication::Snapshot { keep: 1 };
    let (from, to) = (world.from(), world.to());
    set(&from.join("a"), "user.a", b"before").expect("ours");
    write(&from, "same", "unchanged");
    world.send();
    let before = inode(&to.join("same"));
    set(&from.join("a"), "user.a", b"after").expect("ours");
    chown(from.join("d/b"), Some(1_234), Some(5_678)).expect("root may");
    let (done, moved) = world.send();
    assert_eq!((done.files, moved, inode(&to.join("same"))), (0, 0, before));
    let kept = std::fs::read_dir(world.root.path().join(".to.snapshots")).expect("there");
    let kept = kept.flatten().next().expect("one is kept").path();
    assert_eq!(value(&kept.join("a"), "user.a").as_deref(), Some(&b"before"[..]));
    assert_eq!(owner(&kept.join("d/b")), owner(world.root.path()));
    assert_eq!(value(&to.join("a"), "user.a").as_deref(), Some(&b"after"[..]));
    assert_eq!(owner(&to.join("d/b")), (1_234, 5_678));
}

#[test]
fn comparison_counts_metadata_as_attributes() {
    let world = World::new(XATTRS);
    if !has(&world, "user.a", b"") {
        return;
    }
    world.send();
    set(&world.from().join("a"), "user.a", b"1").expect("ours");
    let source = world.scan(&world.from()).expect("it can be read");
    let manifest = source.manifest();
    let snapshot = Snapshot { id: manifest.id().0, length_bytes: manifest.length_bytes() };
    let found = compare(&world.to(), snapshot, manifest.head().to_vec(), &world.rules, u64::MAX);
    let found = found.expect("it can be compared");
    assert_eq!((found.metadata, found.changed, found.content_bytes), (1, 0, 0));
    let named: Vec<_> = found.named.iter().map(|entry| (entry.kind, entry.path.as_str())).collect();
    assert_eq!(named, [(DifferenceKind::Metadata, "a")]);
}

#[test]
fn names_lead_to_numbers_of_this_machine() {
    let owners = Owners::new();
    let account = |number, name| Account::new(number, name).expect("an account of the test");
    let of = |user: Account, mapping| {
        let owner = Ownership { user, group: account(4_000_000_001, Some("no group of this name")) };
        owners.numbers(&owner, mapping).expect("the tables can be read")
    };
    let group = 4_000_000_001;
    for (user, mapping, number) in [
        (account(4_000_000_000, Some("root")), OwnerMapping::Names, 0),
        (account(4_000_000_000, Some("root")), OwnerMapping::Numbers, 4_000_000_000),
        (account(4_000_000_000, Some("no user of this name")), OwnerMapping::Names, 4_000_000_000),
        (account(4_000_000_000, None), OwnerMapping::Names, 4_000_000_000),
    ] {
        assert_eq!(of(user, mapping), OwnerNumbers { user: number, group });
    }
    let root = File::open("/").and_then(|root| Ok(Stat::of(&stat_of(&root)?))).expect("it is there");
    let logged = |accounts: &RefCell<Accounts>| accounts.borrow().unknown_names;
    assert_eq!((logged(&owners.users), logged(&owners.groups)), (1, 1), "one line a name");
    let found = owners.owner(&Stat { user: 0, ..root }, OwnerMapping::Names).expect("the tables can be read");
    assert_eq!(found.user.name(), Some("root"));
    let found = owners.owner(&Stat { user: 0, ..root }, OwnerMapping::Numbers);
    assert_eq!(found.expect("no table is read").user.name(), None);
}

#[test]
fn few_unknown_names_are_logged() {
    let mut users = Accounts::users();
    users.number_of = |_| Ok(None);
    for number in 0..3 * UNKNOWN_NAMES_MAX as u32 {
        let account = Account::new(number, Some(&format!("u{number}"))).expect("a name");
        assert_eq!(users.number(&account, OwnerMapping::Names).expect("no table is read"), number);
    }
    assert_eq!(users.unknown_names, UNKNOWN_NAMES_MAX);
}

#[test]
fn trial_leaves_nothing_behind() {
    let world = World::new(XATTRS);
    let place = Place::of(&world.to()).expect("a name");
    let names = || std::fs::read_dir(world.root.path()).expect("it is there").count();
    let before = names();
    for rules in [MetadataRules::default(), XATTRS, OWNERS] {
        match check(&place, rules) {
            Ok(()) => {}
            Err(refused) => assert!(refused.to_string().contains("leave"), "{refused}"),
        }
    }
    assert_eq!(names(), before);
}
