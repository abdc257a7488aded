//! Files that arrive, in a folder of the machine.

use super::*;
use anabranch_pieces::name::RESERVED;
use proptest::prelude::*;
use std::path::PathBuf;

fn open(path: &Path, length: u64) -> io::Result<PartialFile> {
    PartialFile::open(Place::of(path)?, length)
}
/// The working file of `path` with this suffix.
fn working(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().expect("a file");
    let hash = blake3::hash(name.as_bytes()).to_hex();
    path.with_file_name(format!(".anabranch-{}.{suffix}", &hash[..32]))
}
fn range(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}
fn put(file: &mut PartialFile, bytes: &[u8], r: ByteRange) {
    let piece = &bytes[r.start as usize..r.end as usize];
    let mut hasher = PieceHasher::new(r);
    hasher.update(piece);
    file.write(r, &[piece], &hasher.finish().expect("whole")).expect("the disk is there");
}

#[test]
fn written_ranges_survive_a_crash() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a/b.bin");
    let bytes: Vec<u8> = (0..200u8).collect();
    let mut file = open(&path, 200).expect("opens");
    put(&mut file, &bytes, range(0, 50));
    put(&mut file, &bytes, range(100, 120));
    drop(file);
    let mut file = open(&path, 200).expect("opens again");
    assert_eq!(file.have().missing(200), [range(50, 100), range(120, 200)]);
    put(&mut file, &bytes, range(50, 100));
    put(&mut file, &bytes, range(120, 200));
    file.finish(200, FileHash(*blake3::hash(&bytes).as_bytes()), &Naming::default()).expect("all is there");
    assert_eq!(std::fs::read(&path).expect("it has its name"), bytes);
    assert_eq!(std::fs::read_dir(path.parent().expect("a folder")).expect("listed").count(), 1);
}

/// #52: an image of a disk of 100 GB with 2 GB in it took 100 GB at each site.
#[test]
fn holes_of_sparse_files_stay_holes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("image");
    let mut bytes = vec![0; 8 << 20];
    bytes[..4_096].fill(7);
    bytes[(8 << 20) - 4_096..].fill(9);
    let mut file = open(&path, bytes.len() as u64).expect("opens");
    let ranges: Vec<_> = (0..8).map(|n| range(n << 20, (n + 1) << 20)).collect();
    // Damage from an earlier attempt does not show through a hole.
    put(&mut file, &vec![1; 8 << 20], ranges[3]);
    ranges.iter().rev().for_each(|range| put(&mut file, &bytes, *range));
    let hash = FileHash(*blake3::hash(&bytes).as_bytes());
    file.finish(bytes.len() as u64, hash, &Naming::default()).expect("all is there");
    assert!(std::fs::read(&path).expect("it has its name") == bytes);
    let taken = std::fs::metadata(&path).expect("it is there").blocks() * 512;
    assert!(taken <= 3 << 20, "{taken} bytes of disk");
}

#[test]
fn damaged_bytes_and_a_torn_journal_do_not_count() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("b.bin");
    let bytes: Vec<u8> = (0..100u8).collect();
    let mut file = open(&path, 100).expect("opens");
    put(&mut file, &bytes, range(0, 50));
    put(&mut file, &bytes, range(50, 100));
    file.data.write_all_at(&[99], 60).expect("damage");
    file.journal.write_all_at(&[1; 17], file.journal_end).expect("a torn entry");
    drop(file);
    let file = open(&path, 100).expect("opens again");
    assert_eq!(file.have().missing(100), [range(50, 100)]);
    let have = file.have().clone();
    drop(file);
    let again = open(&path, 100).expect("the journal was mended");
    assert_eq!(again.have(), &have);
}

#[test]
fn number_of_recorded_ranges_is_bounded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("e.bin");
    let length = 2 * RANGES_MAX as u64 + 4096;
    let bytes = vec![7; length as usize];
    let mut file = open(&path, length).expect("opens");
    (0..=RANGES_MAX as u64).for_each(|i| put(&mut file, &bytes, range(2 * i, 2 * i + 1)));
    let last = 2 * RANGES_MAX as u64;
    assert_eq!(file.have().ranges().len(), RANGES_MAX);
    assert_eq!(file.have().ranges().last(), Some(&range(last - 2, last - 1)));
    // Bytes that were not written do not count as hashed either.
    put(&mut file, &bytes, range(last + 1024, last + 2048));
    assert_eq!(file.hasher.missing(), [range(0, length)]);
    // Once a gap closes there is room, and adjacent ranges are always accepted.
    put(&mut file, &bytes, range(1, 2));
    put(&mut file, &bytes, range(last, last + 1));
    assert_eq!(file.have().ranges().last(), Some(&range(last, last + 1)));
    let have = file.have().clone();
    drop(file);
    assert_eq!(open(&path, length).expect("opens again").have(), &have);
}

#[test]
fn file_with_wrong_hash_is_not_renamed_into_place() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("c.bin");
    let mut file = open(&path, 10).expect("opens");
    put(&mut file, &[7; 10], range(0, 10));
    let error = file.finish(10, FileHash([0; 32]), &Naming::default()).expect_err("another hash");
    assert!(matches!(error, FinishError::Mismatch { have } if have.is_empty()));
    assert!(!path.exists());
}

#[test]
fn late_write_does_not_change_the_finished_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("d.bin");
    let mut file = open(&path, 10).expect("opens");
    put(&mut file, &[7; 10], range(0, 10));
    file.finish(10, FileHash(*blake3::hash(&[7; 10]).as_bytes()), &Naming::default()).expect("all is there");
    put(&mut file, &[8; 10], range(0, 10));
    assert_eq!(std::fs::read(&path).expect("it has its name"), [7; 10]);
}

#[test]
fn bytes_hashed_on_arrival_are_not_read_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("f.bin");
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let hash = FileHash(*blake3::hash(&bytes).as_bytes());
    let mut file = open(&path, 100_000).expect("opens");
    put(&mut file, &bytes, range(65_536, 100_000));
    drop(file);
    // Bytes read back on opening count as well.
    let mut file = open(&path, 100_000).expect("opens again");
    assert_eq!(file.hasher.missing(), [range(0, 65_536)]);
    put(&mut file, &bytes, range(30_720, 65_536));
    put(&mut file, &bytes, range(0, 30_720));
    assert_eq!(file.hasher.missing(), []);
    file.finish(100_000, hash, &Naming::default()).expect("all is there");
}

#[test]
fn chunks_split_between_pieces_are_hashed_on_arrival() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let hash = FileHash(*blake3::hash(&bytes).as_bytes());
    for (size, step) in [(1_436, 1), (1_436, 29), (700, 17), (100, 3), (90_001, 1)] {
        let path = folder.path().join(format!("{size}-{step}.bin"));
        let mut file = open(&path, 100_000).expect("opens");
        let count = 100_000u64.div_ceil(size);
        for i in (0..count).map(|i| i * step % count) {
            put(&mut file, &bytes, range(i * size, 100_000.min((i + 1) * size)));
        }
        assert_eq!(file.hasher.missing(), [], "{size} bytes each");
        drop(file);
        let mut file = open(&path, 100_000).expect("opens again");
        assert_eq!(file.hasher.missing(), [], "{size} bytes each");
        file.finish(100_000, hash, &Naming::default()).expect("all is there");
    }
}

#[derive(Clone, Debug)]
enum Deed {
    /// Writes bytes that differ from the earlier bytes.
    Write {
        start: u64,
        length: u64,
        flip: u8,
    },
    /// Writes fewer bytes than announced.
    WriteShort {
        start: u64,
        length: u64,
    },
    Reopen,
    Resize(u64),
    Hash,
    FinishWrong,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let aligned = (0u64..40, 1u64..30, 0u8..3).prop_map(|(start, chunks, flip)| Deed::Write {
        start: start * 1024,
        length: chunks * 1024,
        flip,
    });
    let any = (0u64..40_000, 1u64..20_000, 0u8..3).prop_map(|(start, length, flip)| Deed::Write {
        start,
        length,
        flip,
    });
    let short =
        (0u64..40, 2u64..9_000).prop_map(|(start, length)| Deed::WriteShort { start: start * 1024, length });
    let deed = prop_oneof![
        8 => aligned,
        3 => any,
        1 => short,
        1 => Just(Deed::Reopen),
        1 => (1u64..40_000).prop_map(Deed::Resize),
        1 => (1u64..40).prop_map(|chunks| Deed::Resize(chunks * 1024)),
        1 => Just(Deed::Hash),
        1 => Just(Deed::FinishWrong),
    ];
    proptest::collection::vec(deed, 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The result is compared with the hash of the bytes on the disk.
    #[test]
    fn hash_equals_the_hash_of_the_stored_bytes(mut length in 1u64..40_000, deeds in deeds()) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("g.bin");
        let on_disk = |length: u64| {
            let mut bytes = std::fs::read(working(&path, "partial")).expect("it is there");
            bytes.resize(length as usize, 0);
            bytes
        };
        let mut file = open(&path, length).expect("opens");
        for deed in deeds {
            match deed {
                Deed::Write { start, length: most, flip } if start < length => {
                    let mut bytes = on_disk(length);
                    let r = range(start, length.min(start + most));
                    bytes[r.start as usize..r.end as usize].iter_mut().for_each(|b| *b = b.wrapping_mul(5) ^ flip);
                    put(&mut file, &bytes, r);
                    prop_assert!(file.have().contains(r));
                }
                Deed::WriteShort { start, length: most } if start < length => {
                    let r = range(start, length.min(start + most));
                    let part = vec![9; (r.len() / 2) as usize];
                    file.write(r, &[part], &Piece::default()).expect("the disk is there");
                }
                Deed::Write { .. } | Deed::WriteShort { .. } => {}
                Deed::Reopen => {
                    drop(file);
                    file = open(&path, length).expect("opens again");
                }
                Deed::Resize(to) => {
                    length = to;
                    file.resize(length).expect("the disk is there");
                }
                Deed::Hash => {
                    let found = file.hash(length).expect("the disk is there");
                    prop_assert_eq!(found.0, *blake3::hash(&on_disk(length)).as_bytes());
                }
                Deed::FinishWrong => {
                    let error = file.finish(length, FileHash([0; 32]), &Naming::default()).expect_err("another hash");
                    let FinishError::Mismatch { have } = error else { panic!("the disk is there") };
                    prop_assert_eq!(have, file.have().ranges());
                }
            }
        }
        let bytes = on_disk(length);
        prop_assert_eq!(bytes.len() as u64, length);
        file.finish(length, FileHash(*blake3::hash(&bytes).as_bytes()), &Naming::default()).expect("that is what is there");
        prop_assert_eq!(std::fs::read(&path).expect("it has its name"), bytes);
    }
}

fn hash_of(bytes: &[u8]) -> FileHash {
    FileHash(*blake3::hash(bytes).as_bytes())
}
fn finish(file: &mut PartialFile, bytes: &[u8], replace: bool) -> Result<(), FinishError> {
    file.finish(bytes.len() as u64, hash_of(bytes), &Naming { attributes: None, replace })
}
fn told(result: Result<impl Sized, FinishError>) -> String {
    match result.err().expect("it is refused") {
        FinishError::Io(error) => {
            let said = error.to_string();
            assert!(!said.contains('\n'), "{said}");
            said
        }
        FinishError::Mismatch { .. } => panic!("the bytes are right"),
    }
}

/// #17: the working file of `x` was named `x.partial`, which may be an independent file.
#[test]
fn names_like_old_working_files_are_independent() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let names = ["x", "x.partial", "x.partial.journal"].map(|name| folder.path().join(name));
    let mut files = names.each_ref().map(|path| open(path, 10).expect("opens"));
    let bytes = [[1; 10], [2; 10], [3; 10]];
    for (file, bytes) in files.iter_mut().zip(&bytes) {
        put(file, bytes, range(0, 10));
    }
    for (file, bytes) in files.iter_mut().zip(&bytes) {
        finish(file, bytes, false).expect("all is there");
    }
    assert_eq!(names.map(|path| std::fs::read(path).expect("it has its name")), bytes.map(Vec::from));
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 3);
}

/// #17: a file with a name of 250 bytes could not be sent, because the name of its working file was
/// too long.
#[test]
fn longest_name_of_the_file_system_is_accepted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x".repeat(255));
    let mut file = open(&path, 10).expect("opens");
    put(&mut file, &[7; 10], range(0, 10));
    drop(file);
    let mut file =
        PartialFile::open_existing(Place::of(&path).expect("a name")).expect("opens").expect("there");
    finish(&mut file, &[7; 10], false).expect("all is there");
    assert_eq!(std::fs::read(&path).expect("it has its name"), [7; 10]);
}

/// #17: of two writers of one file, the second continued to write to the file after the first had
/// renamed it to its final name.
#[test]
fn second_writer_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x");
    let mut first = open(&path, 10).expect("opens");
    for spelling in [path.clone(), folder.path().join("./x"), folder.path().join(".//x")] {
        let said = open(&spelling, 10).expect_err("it is being written").to_string();
        assert!(said.contains("another process or transfer is writing this file"), "{said}");
    }
    std::os::unix::fs::symlink(folder.path(), folder.path().join("way")).expect("it can be made");
    open(&folder.path().join("way/x"), 10).expect_err("the same file by another way");
    put(&mut first, &[7; 10], range(0, 10));
    finish(&mut first, &[7; 10], false).expect("all is there");
    // After the first writer has finished, a second writer may begin, with a new file.
    let mut second = open(&path, 10).expect("opens");
    put(&mut second, &[8; 10], range(0, 10));
    assert_eq!(std::fs::read(&path).expect("it has its name"), [7; 10]);
    drop(first);
    finish(&mut second, &[8; 10], true).expect("all is there");
    assert_eq!(std::fs::read(&path).expect("it has its name"), [8; 10]);
}

/// #17: a file that had replaced the working file was renamed to the final name without a check.
#[test]
fn only_the_hashed_file_gets_the_final_name() {
    for replace in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x");
        if replace {
            std::fs::write(&path, b"before").expect("it can be written");
        }
        let mut file = open(&path, 10).expect("opens");
        put(&mut file, &[7; 10], range(0, 10));
        let other = folder.path().join("other");
        std::fs::write(&other, [9; 10]).expect("it can be written");
        std::fs::rename(&other, working(&path, "partial")).expect("somebody meddles");
        match finish(&mut file, &[7; 10], replace) {
            Ok(()) => assert_eq!(std::fs::read(&path).expect("it has its name"), [7; 10]),
            // The working file's only name was removed, and some kernels give no new name to a
            // nameless file.
            Err(FinishError::Io(_)) => assert_ne!(std::fs::read(&path).unwrap_or_default(), [9; 10]),
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// #17: if a link had the working file's name, the file behind the link was overwritten.
#[test]
fn linked_or_foreign_working_files_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, victim) = (folder.path().join("x"), folder.path().join("victim"));
    std::fs::write(&victim, b"precious").expect("it can be written");
    for suffix in ["partial", "journal"] {
        let trap = working(&path, suffix);
        std::os::unix::fs::symlink(&victim, &trap).expect("it can be made");
        let said = open(&path, 10).expect_err("a link").to_string();
        assert!(said.contains("symbolic link") && said.contains("remove it"), "{said}");
        std::fs::remove_file(&trap).expect("ours");
        std::fs::create_dir(&trap).expect("it can be made");
        assert!(open(&path, 10).expect_err("a folder").to_string().contains("no plain file"));
        std::fs::remove_dir(&trap).expect("ours");
    }
    std::fs::hard_link(&victim, working(&path, "journal")).expect("it can be made");
    assert!(open(&path, 10).expect_err("a second name").to_string().contains("another name"));
    std::fs::remove_file(working(&path, "journal")).expect("ours");
    // A file that already has a name is never written to; the transfer starts over.
    std::fs::hard_link(&victim, working(&path, "partial")).expect("it can be made");
    let mut file = open(&path, 10).expect("opens");
    put(&mut file, &[7; 10], range(0, 10));
    finish(&mut file, &[7; 10], false).expect("all is there");
    assert_eq!(std::fs::read(&victim).expect("it is there"), b"precious");
    if rustix::process::geteuid().is_root() {
        let other = folder.path().join("y");
        std::fs::write(working(&other, "partial"), b"").expect("it can be written");
        std::os::unix::fs::chown(working(&other, "partial"), Some(65_534), None).expect("root may");
        assert!(open(&other, 10).expect_err("another's").to_string().contains("belongs to user 65534"));
    }
}

#[test]
fn existing_file_is_replaced_only_on_request() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x");
    std::fs::write(&path, b"before").expect("it can be written");
    let mut file = open(&path, 10).expect("opens");
    put(&mut file, &[7; 10], range(0, 10));
    let said = told(finish(&mut file, &[7; 10], false));
    assert!(said.contains("another file has this name") && said.contains("--replace"), "{said}");
    assert_eq!(std::fs::read(&path).expect("it is there"), b"before");
    assert_eq!(file.have().total(), 10, "what has arrived is kept");
    finish(&mut file, &[7; 10], true).expect("all is there");
    assert_eq!(std::fs::read(&path).expect("it has its name"), [7; 10]);
    // Identical bytes are accepted.
    let mut file = open(&path, 10).expect("opens");
    put(&mut file, &[7; 10], range(0, 10));
    finish(&mut file, &[7; 10], false).expect("it is there already");
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 1);
}

/// #17: a file of mode 0600 arrived with mode 0644 and the time of its arrival.
#[test]
fn arriving_file_is_private_then_has_source_permissions() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    for (mode_there, mode_here) in [(0o600, 0o600), (0o640, 0o640), (0o755, 0o755), (0o106_4755, 0o755)] {
        let path = folder.path().join(format!("{mode_there:o}"));
        let mut file = open(&path, 10).expect("opens");
        put(&mut file, &[7; 10], range(0, 10));
        assert_eq!(["partial", "journal"].map(|s| mode(&working(&path, s))), [0o600; 2]);
        let modified_ns = -1_500_000_000;
        let attributes = Some(Attributes { mode: mode_there, modified_ns });
        let naming = Naming { attributes, replace: false };
        file.finish(10, hash_of(&[7; 10]), &naming).expect("all is there");
        assert_eq!(mode(&path), mode_here, "{mode_there:o}");
        let found = std::fs::metadata(&path).expect("there");
        assert_eq!(attributes_of(&found), (mode_here, modified_ns));
    }
    let path = folder.path().join("unknown");
    let mut file = open(&path, 0).expect("opens");
    finish(&mut file, &[], false).expect("all is there");
    assert_eq!(mode(&path), 0o600);
}

fn attributes_of(found: &Metadata) -> (u32, i64) {
    let Attributes { mode, modified_ns } = attributes(found);
    (mode, modified_ns)
}

/// #17: a sender's claim reserved all of a destination's disk, and files without verified bytes
/// stayed for ever.
#[test]
fn disk_space_grows_with_received_bytes_only() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x");
    let free = rustix::fs::statvfs(folder.path()).expect("a disk").f_bavail;
    let length = 1 << 30;
    assert!(free * 4096 > length, "the test wants a disk with room");
    let taken = || std::fs::metadata(working(&path, "partial")).expect("there").blocks() * 512;
    let mut file = open(&path, length).expect("opens");
    assert_eq!(taken(), 0);
    let piece = vec![7; 4096];
    for at in [0, length / 2, length - 4096] {
        let mut hasher = PieceHasher::new(range(at, at + 4096));
        hasher.update(&piece);
        file.write(range(at, at + 4096), &[&piece], &hasher.finish().expect("whole")).expect("a disk");
        assert!(taken() <= AHEAD_BYTES + 4 * 4096, "{} bytes", taken());
    }
    drop(file);
    assert!(working(&path, "partial").exists(), "what was verified is kept");
    let other = folder.path().join("y");
    drop(open(&other, length).expect("opens"));
    assert!(!working(&other, "partial").exists() && !working(&other, "journal").exists());
}

#[test]
fn missing_disk_space_is_reported_before_the_transfer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = open(&folder.path().join("x"), 1 << 60).expect_err("no such disk").to_string();
    assert!(said.contains("No space left on device") && said.contains("are free"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0);
}

#[test]
fn journal_header_decodes_to_its_name_and_length() {
    for name in [&b"x"[..], &[b'y'; 255]] {
        let header = Header { name: name.to_vec(), length: 1 << 40 };
        assert_eq!(Header::decode(&header.encode()), Some(header));
    }
    let mut bytes = Header { name: b"x".to_vec(), length: 1 }.encode();
    bytes[16] = 0xff;
    bytes[17] = 0xff;
    assert_eq!(Header::decode(&bytes), None, "a name longer than there is room");
    assert_eq!(Header::decode(&[0; Header::BYTES]), None);
}

/// A step of one of several concurrent transfers.
#[derive(Clone, Debug)]
enum Step {
    /// Opens its file, if it is not open.
    Open(usize),
    /// Writes one of the file's four quarters.
    Write(usize, u8),
    /// Is killed.
    Kill(usize),
    /// Fetches the missing bytes and finishes, up to three times.
    Finish(usize),
}

/// Names that are prefixes, suffixes, spellings, cases and links of each other, each with the path
/// of the file that it leads to.
const COLLIDING: [(&str, &str); 14] = [
    ("x", "x"),
    ("./x", "x"),
    ("way/x", "x"),
    ("x.partial", "x.partial"),
    (".//x.partial", "x.partial"),
    ("x.partial.journal", "x.partial.journal"),
    ("x.journal", "x.journal"),
    ("X", "X"),
    ("X.PARTIAL", "X.PARTIAL"),
    ("x.partial.partial", "x.partial.partial"),
    ("sub/x", "sub/x"),
    ("way/sub/../sub//x", "sub/x"),
    ("x.part", "x.part"),
    ("anabranch-x", "anabranch-x"),
];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..COLLIDING.len();
    let step = prop_oneof![
        4 => who.clone().prop_map(Step::Open),
        6 => (who.clone(), 0u8..4).prop_map(|(who, part)| Step::Write(who, part)),
        1 => who.clone().prop_map(Step::Kill),
        2 => who.prop_map(Step::Finish),
    ];
    proptest::collection::vec(step, 1..80)
}

/// Content of transfer `who`: a distinct length and distinct bytes.
fn sent(who: usize) -> Vec<u8> {
    (0..4_096 + 400 * (who % 3)).map(|i| (i * 7 + who * 31 + i / 256) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// #17: files with the same working name were verified, but had each other's bytes.
    #[test]
    fn named_files_have_exactly_the_sent_bytes(steps in steps(), replace in any::<bool>()) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("sub")).expect("it can be made");
        std::os::unix::fs::symlink(".", folder.path().join("way")).expect("it can be made");
        let mut open_now: Vec<Option<PartialFile>> = COLLIDING.iter().map(|_| None).collect();
        let mut named: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        for step in steps {
            let (Step::Open(who) | Step::Write(who, _) | Step::Kill(who) | Step::Finish(who)) = step;
            let (path, bytes) = (folder.path().join(COLLIDING[who].0), sent(who));
            let quarter = bytes.len() as u64 / 4;
            match step {
                Step::Open(_) if open_now[who].is_none() => {
                    let is_free = (0..COLLIDING.len())
                        .all(|other| open_now[other].is_none() || COLLIDING[other].1 != COLLIDING[who].1);
                    match open(&path, bytes.len() as u64) {
                        Ok(mut file) => {
                            prop_assert!(is_free, "two write one file");
                            file.set_syncs(false);
                            open_now[who] = Some(file);
                        }
                        Err(error) => {
                            prop_assert!(!is_free, "{error}");
                            prop_assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
                        }
                    }
                }
                Step::Write(_, part) => {
                    if let Some(file) = &mut open_now[who] {
                        let end = if part == 3 { bytes.len() as u64 } else { quarter * u64::from(part + 1) };
                        put(file, &bytes, range(quarter * u64::from(part), end));
                    }
                }
                Step::Kill(_) => open_now[who] = None,
                Step::Finish(_) => {
                    let Some(mut file) = open_now[who].take() else { continue };
                    let mut tries = 0;
                    let result = loop {
                        for gap in file.have().missing(bytes.len() as u64) {
                            put(&mut file, &bytes, gap);
                        }
                        match finish(&mut file, &bytes, replace) {
                            // Bytes of an earlier transfer counted as received. The first mismatch
                            // drops overwritten ranges, the second mismatch all ranges.
                            Err(FinishError::Mismatch { .. }) if tries < 2 => tries += 1,
                            other => break other,
                        }
                    };
                    let there = named.get(COLLIDING[who].1).copied();
                    if replace || there.is_none() || there == Some(who) {
                        prop_assert!(result.is_ok(), "{:?}", result);
                        named.insert(COLLIDING[who].1, who);
                    } else {
                        let refused = matches!(result, Err(FinishError::Io(e)) if e.kind() == io::ErrorKind::AlreadyExists);
                        prop_assert!(refused);
                    }
                }
                Step::Open(_) => {}
            }
            for (name, who) in &named {
                prop_assert!(std::fs::read(folder.path().join(name)).expect("it has its name") == sent(*who), "{name}");
            }
        }
        drop(open_now);
        for place in ["", "sub"] {
            for found in std::fs::read_dir(folder.path().join(place)).expect("listed") {
                let name = found.expect("listed").file_name();
                let name = Path::new(place).join(name);
                let name = name.to_str().expect("plain");
                let is_working = name.rsplit('/').next().is_some_and(|n| n.starts_with(RESERVED));
                prop_assert!(is_working || ["sub", "way"].contains(&name) || named.contains_key(name), "{name}");
            }
        }
    }
}

/// #17: a private file counted as arrived if the destination had a copy that all users can read.
/// The copy stayed readable.
#[test]
fn existing_copy_gets_no_wider_permissions_than_its_source() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x");
    for (there, source, then) in
        [(0o644, 0o600, 0o600), (0o600, 0o644, 0o600), (0o775, 0o640, 0o740), (0o400, 0o666, 0o400)]
    {
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, [7; 10]).expect("ours");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(there)).expect("ours");
        let mut file = open(&path, 10).expect("opens");
        put(&mut file, &[7; 10], range(0, 10));
        let attributes = Some(Attributes { mode: source, modified_ns: 0 });
        let naming = Naming { attributes, replace: false };
        file.finish(10, hash_of(&[7; 10]), &naming).expect("it is there already");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode() & 0o7777;
        assert_eq!(mode, then, "{there:o} {source:o}");
    }
}
