//! Directories written from streams, compared by the ids of their snapshots.

use super::*;
use crate::tree::Tree;
use crate::tree::tests::{folder, write};
use anabranch_pieces::ByteRange;
use anabranch_pieces::blocks::{BLOCK_BYTES, BLOCKED_BYTES_MIN};
use anabranch_sets::{Builder, Name};
use anabranch_units::{RandomStream, Seed};
use std::os::unix::fs::{PermissionsExt as _, symlink};

/// The source of transfers.
pub(super) const ORIGIN: Origin = Origin(54);

pub(super) fn scanned(path: &Path) -> TreeStream {
    let tree = Tree::open(path).expect("it is there");
    TreeStream::scan(&tree, None, u64::MAX).expect("it can be read")
}

/// Writes the entries of a manifest without a record, and replaces no changed entry.
pub(super) fn unpacker<'a>(stream: &'a File, manifest: &'a Manifest) -> Unpacker<'a> {
    Unpacker {
        stream,
        manifest,
        before: None,
        record: None,
        broken_off: None,
        origin: ORIGIN,
        replace: false,
        deletes: None,
        backup: None,
        unsettled: None,
        filter: None,
        metadata: MetadataRules::default(),
        is_shared: false,
    }
}

/// Writes `to` from the directory `from`, with `record` as the record of earlier transfers. Only
/// what `to` lacks is in the stream. Returns the result, the new manifest, and the bytes that were
/// sent.
fn send(
    from: &Path,
    to: &Path,
    record: Option<&Index>,
    replace: bool,
) -> (Result<Unpacked, UnpackError>, Manifest, u64) {
    let source = scanned(from);
    std::fs::create_dir_all(to).expect("the folder is ours");
    let before = scanned(to);
    let local = before.contents_of(source.manifest());
    let all = ByteRange { start: 0, end: source.manifest().length_bytes() };
    let mut bytes = source.read(all).expect("it can be read");
    for LocalContent { range, .. } in &local {
        bytes[range.start as usize..range.end as usize].fill(0xee);
    }
    let sent = all.len() - local.iter().map(|content| content.range.len()).sum::<u64>();
    let stream = tempfile::tempfile().expect("a temporary file");
    stream.write_all_at(&bytes, 0).expect("it can be written");
    let manifest = Manifest::read_from(&stream, u64::MAX).expect("a head");
    let unpacker = Unpacker { before: Some(&before), record, replace, ..unpacker(&stream, &manifest) };
    let root = std::fs::File::open(to).expect("it is there").into();
    let done = unpacker.run(root, to, &local);
    (done, manifest, sent - source.manifest().head_bytes())
}

/// The record of transfers to a directory.
pub(super) fn record(to: &Path) -> Index {
    std::fs::create_dir_all(to).expect("the folder is ours");
    let root = Tree::open(to).and_then(|tree| tree.root()).expect("it is there").expect("a directory");
    Index::open(&to.with_extension("sent"), &root).expect("a new index")
}

fn names(rng: &mut RandomStream) -> String {
    let names = ["a", "b", "c.txt", "d-e", "\u{fc}", "n\u{1}", " ", "z z"];
    names[rng.below(names.len() as u64) as usize].to_owned()
}

/// Makes some random entries, or changes, moves or removes existing ones.
pub(super) fn edit(root: &Path, rng: &mut RandomStream) {
    let mut path = root.to_owned();
    for _ in 0..rng.below(3) {
        path.push(names(rng));
    }
    if std::fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
        let _ = std::fs::remove_file(&path);
    }
    if std::fs::create_dir_all(&path).is_err() {
        return;
    }
    let file = path.join(names(rng));
    match rng.below(8) {
        0 => drop(symlink(names(rng), &file)),
        1 => {
            let other = std::fs::read_dir(&path).expect("it is there").flatten().next();
            let other = other.filter(|other| other.path().is_file() && !other.path().is_symlink());
            other.into_iter().for_each(|other| drop(std::fs::hard_link(other.path(), &file)));
        }
        2 => drop(std::fs::remove_file(&file)),
        3 => drop(std::fs::rename(&file, path.join(names(rng)))),
        4 => {
            if let Ok(found) = std::fs::symlink_metadata(&file)
                && !found.is_symlink()
            {
                let mode = if found.is_dir() { 0o755 } else { 0o400 + rng.below(0o400) as u32 };
                std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("ours");
            }
        }
        _ => {
            let _ = std::fs::remove_file(&file);
            let length = [0, 1, 5_000, 300_000][rng.below(4) as usize];
            let zeros = rng.below(2) == 0;
            let bytes: Vec<u8> = (0..length).map(|_| if zeros { 0 } else { rng.below(256) as u8 }).collect();
            let _ = std::fs::write(&file, bytes);
        }
    }
}

/// Removes from `to` what `from` lacks: a transfer deletes nothing.
fn remove_surplus(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(to).expect("it is there").flatten() {
        let (source, found) = (from.join(entry.file_name()), entry.file_type().expect("a type"));
        let kept = std::fs::symlink_metadata(&source).is_ok_and(|source| source.is_dir() == found.is_dir());
        match found.is_dir() {
            true if kept => remove_surplus(&source, &entry.path()),
            true => std::fs::remove_dir_all(entry.path()).expect("ours"),
            false if kept => {}
            false => std::fs::remove_file(entry.path()).expect("ours"),
        }
    }
}

#[test]
fn edited_directories_arrive_whole_and_without_conflicts() {
    for seed in 0..40 {
        let (mut rng, root) = (Seed::new(seed).stream("edits", 0), folder());
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        std::fs::create_dir(&from).expect("the folder is ours");
        let record = record(&to);
        for round in 0..6 {
            (0..12).for_each(|_| edit(&from, &mut rng));
            remove_surplus(&from, &to);
            let (done, manifest, _) = send(&from, &to, Some(&record), false);
            let done = done.expect("it is written");
            assert_eq!(done.conflict_paths, [""; 0], "seed {seed}, round {round}");
            assert_eq!(scanned(&to).manifest().id(), manifest.id(), "seed {seed}, round {round}");
        }
    }
}

#[test]
fn renamed_and_swapped_files_move_no_bytes() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "a", "the content of a");
    write(&from, "b", "the content of b");
    write(&from, "d/c", "the content of c");
    let record = record(&to);
    let (done, _, sent) = send(&from, &to, Some(&record), false);
    assert_eq!((done.expect("written").files, sent), (3, 48));
    std::fs::rename(from.join("a"), from.join("t")).expect("ours");
    std::fs::rename(from.join("b"), from.join("a")).expect("ours");
    std::fs::rename(from.join("t"), from.join("b")).expect("ours");
    std::fs::rename(from.join("d"), from.join("e")).expect("ours");
    std::fs::remove_dir_all(to.join("d")).expect("ours");
    let (done, ..) = send(&from, &to, Some(&record), false);
    let done = done.expect("written");
    assert_eq!(done.conflicts, 0);
    assert_eq!(std::fs::read_to_string(to.join("a")).expect("there"), "the content of b");
    assert_eq!(scanned(&to).manifest().id(), scanned(&from).manifest().id());
    std::fs::rename(from.join("a"), from.join("t")).expect("ours");
    std::fs::rename(from.join("b"), from.join("a")).expect("ours");
    std::fs::rename(from.join("t"), from.join("b")).expect("ours");
    let (done, _, sent) = send(&from, &to, Some(&record), false);
    assert_eq!((done.expect("written").conflicts, sent), (0, 0));
    assert_eq!(scanned(&to).manifest().id(), scanned(&from).manifest().id());
}

/// #54: the destination keeps the names as one file; the transfer sets its time by the other name.
#[test]
fn separated_hard_links_are_no_conflicts() {
    for (kept, replaced) in [("a", "b"), ("b", "a")] {
        let root = folder();
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        write(&from, kept, "one file");
        std::fs::hard_link(from.join(kept), from.join(replaced)).expect("ours");
        let record = record(&to);
        let _ = send(&from, &to, Some(&record), false);
        std::fs::remove_file(from.join(replaced)).expect("ours");
        write(&from, replaced, "another file");
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        std::fs::File::open(from.join(kept)).and_then(|file| file.set_modified(time)).expect("ours");
        let (done, ..) = send(&from, &to, Some(&record), false);
        assert_eq!(done.expect("written").conflict_paths, [""; 0]);
        assert_eq!(scanned(&to).manifest().id(), scanned(&from).manifest().id());
    }
}

#[test]
fn changed_destination_file_is_a_conflict_unless_replaced() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "kept", "sent");
    write(&from, "other", "sent");
    let record = record(&to);
    let _ = send(&from, &to, Some(&record), false);
    write(&to, "kept", "changed by the user of the destination");
    write(&from, "kept", "changed at the source");
    write(&from, "other", "changed at the source");
    let (done, ..) = send(&from, &to, Some(&record), false);
    let done = done.expect("the rest is written");
    assert_eq!((done.conflicts, done.files), (1, 1));
    assert!(done.conflict_paths[0].ends_with("/to/kept"), "{:?}", done.conflict_paths);
    assert_eq!(std::fs::read_to_string(to.join("other")).expect("there"), "changed at the source");
    let (done, ..) = send(&from, &to, Some(&record), true);
    assert_eq!(done.expect("written").conflicts, 0);
    assert_eq!(std::fs::read_to_string(to.join("kept")).expect("there"), "changed at the source");
}

#[test]
fn nothing_is_written_through_a_link() {
    let root = folder();
    let (from, to, outside) = (root.path().join("from"), root.path().join("to"), root.path().join("outside"));
    write(&from, "d/x", "sent");
    write(&outside, "x", "outside");
    std::fs::create_dir(&to).expect("ours");
    symlink(&outside, to.join("d")).expect("ours");
    for (replace, conflicts) in [(false, 1), (true, 0)] {
        let (done, ..) = send(&from, &to, None, replace);
        assert_eq!(done.expect("the rest is written").conflicts, conflicts);
        assert_eq!(std::fs::read_to_string(outside.join("x")).expect("there"), "outside");
    }
    assert_eq!(std::fs::read_to_string(to.join("d/x")).expect("there"), "sent");
}

#[test]
fn working_files_of_killed_processes_are_replaced() {
    let root = folder();
    let (from, outside) = (root.path().join("from"), root.path().join("outside"));
    write(&from, "x", "sent");
    write(&outside, "x", "outside");
    for is_link in [false, true] {
        let to = root.path().join(if is_link { "link" } else { "file" });
        let working = to.join(named_working(b"x"));
        std::fs::create_dir(&to).expect("ours");
        if is_link {
            symlink(outside.join("x"), &working).expect("ours");
        } else {
            std::fs::write(&working, "part of an older and longer content").expect("ours");
        }
        let (done, ..) = send(&from, &to, None, false);
        assert_eq!(done.expect("it is written").conflicts, 0);
        assert_eq!(std::fs::read_to_string(to.join("x")).expect("there"), "sent");
        assert!(!working.exists());
    }
    assert_eq!(std::fs::read_to_string(outside.join("x")).expect("there"), "outside");
}

#[test]
fn corrupt_content_gets_no_name() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "good", "content");
    write(&from, "x", "content of x");
    let source = scanned(&from);
    let mut bytes =
        source.read(ByteRange { start: 0, end: source.manifest().length_bytes() }).expect("it can be read");
    *bytes.last_mut().expect("not empty") ^= 1;
    let stream = tempfile::tempfile().expect("a temporary file");
    stream.write_all_at(&bytes, 0).expect("it can be written");
    std::fs::create_dir(&to).expect("ours");
    let unpacker = unpacker(&stream, source.manifest());
    let done = unpacker.run(std::fs::File::open(&to).expect("there").into(), &to, &[]);
    assert!(matches!(done, Err(UnpackError::Corrupt)), "{done:?}");
    let names: Vec<_> = std::fs::read_dir(&to).expect("there").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["good"]);
}

#[test]
fn large_files_are_made_from_their_own_blocks() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    let noise = |bytes: usize| {
        let mut stream = Seed::new(54).stream("large files", bytes as u64);
        (0..bytes).map(|_| stream.next_u64() as u8).collect::<Vec<u8>>()
    };
    let size = (BLOCKED_BYTES_MIN + BLOCK_BYTES / 2 + 77) as usize;
    let bytes = noise(size);
    write(&from, "small", "small");
    std::fs::write(from.join("large"), &bytes).expect("ours");
    let (_, _, sent) = send(&from, &to, None, false);
    assert_eq!(sent, size as u64 + 5);
    let mut edited = bytes.clone();
    edited[3 << 20] ^= 1;
    edited.extend_from_slice(b"and more");
    std::fs::write(from.join("large"), &edited).expect("ours");
    let (done, _, sent) = send(&from, &to, None, true);
    assert_eq!(done.expect("it is written").files, 1);
    // One whole block, and the last one, which became longer.
    assert_eq!(sent, BLOCK_BYTES + BLOCK_BYTES / 2 + 77 + 8);
    assert!(std::fs::read(to.join("large")).expect("there") == edited);
    edited.truncate(BLOCKED_BYTES_MIN as usize);
    std::fs::write(from.join("large"), &edited).expect("ours");
    let (_, _, sent) = send(&from, &to, None, true);
    assert_eq!(sent, 0, "a cut at the end of a block leaves all others as they were");
    assert!(std::fs::read(to.join("large")).expect("there") == edited);
}

/// A transfer was broken off after it wrote files, and before the record had them.
#[test]
fn files_of_broken_off_transfers_are_no_conflicts() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    for name in ["goes", "stays"] {
        write(&from, name, name);
        write(&to, name, name);
        // A transfer gives a file its time, too.
        let modified = from.join(name).metadata().and_then(|found| found.modified()).expect("there");
        let file = std::fs::File::options().write(true).open(to.join(name)).expect("there");
        file.set_modified(modified).expect("ours");
    }
    symlink("target", from.join("link")).expect("ours");
    symlink("target", to.join("link")).expect("ours");
    let broken_off = scanned(&from);
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    set_mode(&from.join("stays"), 0o664);
    for name in ["goes", "link"] {
        std::fs::remove_file(from.join(name)).expect("ours");
    }
    let record = record(&to);
    let (source, before) = (scanned(&from), scanned(&to));
    note_broken_off(&record, (broken_off.manifest(), ORIGIN), before.manifest()).expect("it is written");
    let stream = tempfile::tempfile().expect("a temporary file");
    let unpacker = Unpacker {
        before: Some(&before),
        record: Some(&record),
        broken_off: Some((broken_off.manifest(), ORIGIN)),
        ..unpacker(&stream, source.manifest())
    };
    let done = unpacker.run(std::fs::File::open(&to).expect("there").into(), &to, &[]);
    assert_eq!(done.expect("it is written").conflicts, 0);
    let mode = to.join("stays").metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o664, "the broken-off transfer gave it the mode before");
    write(&from, "goes", "comes again");
    symlink("elsewhere", from.join("link")).expect("ours");
    let (done, ..) = send(&from, &to, Some(&record), false);
    assert_eq!(done.expect("it is written").conflicts, 0);
    assert_eq!(std::fs::read_to_string(to.join("goes")).ok().as_deref(), Some("comes again"));
}

#[test]
fn unsettled_content_is_left_and_counted() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "a", "content of a");
    write(&from, "z", "content of z");
    write(&to, "a", "as before");
    let source = scanned(&from);
    write(&from, "a", "changed meanwhile");
    let all = ByteRange { start: 0, end: source.manifest().length_bytes() };
    let stream = tempfile::tempfile().expect("a temporary file");
    stream.write_all_at(&source.read_settled(all).expect("it is read"), 0).expect("it can be written");
    let unsettled = RangeSet::from_ranges(source.unsettled());
    let before = scanned(&to);
    let unpacker = Unpacker {
        before: Some(&before),
        replace: true,
        unsettled: Some(&unsettled),
        ..unpacker(&stream, source.manifest())
    };
    let done = unpacker.run(std::fs::File::open(&to).expect("there").into(), &to, &[]);
    let done = done.expect("the rest is written");
    assert_eq!((done.files, done.conflicts, done.unsettled), (1, 0, 1));
    assert!(done.unsettled_paths[0].ends_with("to/a"), "{done:?}");
    let read = |name: &str| std::fs::read_to_string(to.join(name)).expect("it is there");
    assert_eq!((read("a"), read("z")), ("as before".to_owned(), "content of z".to_owned()));
}

#[test]
fn hard_link_to_unlisted_file_is_refused() {
    let root = folder();
    let to = root.path().join("to");
    write(&to, "secret", "of the destination");
    let mut nodes = Vec::new();
    let mut keep = |_, node: &[u8]| nodes.push(node.to_vec());
    let mut builder = Builder::new();
    let path = LinkPath::new(b"secret").expect("a path");
    let name = Name::new(b"z").expect("a name");
    builder.add(&Entry::new(name, Kind::HardLink { path }), &mut keep).expect("in order");
    builder.finish(None, &mut keep).expect("no mode");
    let mut head = b"anatree\x02".to_vec();
    let bytes = 16 + nodes.iter().map(|node| 4 + node.len()).sum::<usize>();
    head.extend_from_slice(&(bytes as u64).to_le_bytes());
    for node in &nodes {
        head.extend_from_slice(&(node.len() as u32).to_le_bytes());
        head.extend_from_slice(node);
    }
    let manifest = Manifest::decode(head, u64::MAX).expect("a head");
    let stream = tempfile::tempfile().expect("a temporary file");
    let unpacker = Unpacker { replace: true, ..unpacker(&stream, &manifest) };
    let done = unpacker.run(std::fs::File::open(&to).expect("there").into(), &to, &[]);
    assert!(matches!(done, Err(UnpackError::Io(_))), "{done:?}");
    assert!(!to.join("z").exists());
}

#[test]
fn rights_that_a_destination_took_away_stay_away() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "x", "content");
    let record = record(&to);
    let _ = send(&from, &to, Some(&record), false);
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    set(&to.join("x"), 0o600);
    write(&from, "y", "new");
    let (done, ..) = send(&from, &to, Some(&record), false);
    assert_eq!((done.expect("written").conflicts, mode(&to.join("x"))), (0, 0o600));
    set(&from.join("x"), 0o755);
    let (done, ..) = send(&from, &to, Some(&record), false);
    assert_eq!((done.expect("written").conflicts, mode(&to.join("x"))), (0, 0o755));
}

/// To replace one name of a file changes the other name's time of change.
#[test]
fn names_of_one_file_are_replaced_without_conflict() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    write(&from, "a", "first");
    std::fs::hard_link(from.join("a"), from.join("b")).expect("ours");
    let record = record(&to);
    let _ = send(&from, &to, Some(&record), false);
    for name in ["a", "b"] {
        std::fs::remove_file(from.join(name)).expect("ours");
        write(&from, name, &format!("second {name}"));
    }
    let (done, manifest, _) = send(&from, &to, Some(&record), false);
    assert_eq!(done.expect("written").conflict_paths, [""; 0]);
    assert_eq!(scanned(&to).manifest().id(), manifest.id());
}

/// Nothing is deleted here, so a file that the source deletes and creates again still has its sent
/// content.
#[test]
fn file_that_returns_at_the_source_is_no_conflict() {
    let root = folder();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    let record = record(&to);
    write(&from, "x", "first");
    for content in [None, Some("second")] {
        send(&from, &to, Some(&record), false).0.expect("written");
        std::fs::remove_file(from.join("x")).expect("ours");
        send(&from, &to, Some(&record), false).0.expect("written");
        write(&from, "x", content.unwrap_or("again"));
        let (done, ..) = send(&from, &to, Some(&record), false);
        assert_eq!(done.expect("written").conflicts, 0);
    }
    assert_eq!(std::fs::read_to_string(to.join("x")).expect("there"), "second");
}
