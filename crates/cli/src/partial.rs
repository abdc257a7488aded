//! A file on its way: what is there, kept so that a crash loses nothing that was verified.
//!
//! Beside `NAME` stand `NAME.partial` (the bytes) and `NAME.partial.journal` (which ranges are there, each with its
//! hash). The journal is append-only and never trusted: on opening, every range is read back and hashed, and what
//! does not match is forgotten. So neither a torn write nor a lost page can pass for data, and no write needs a sync
//! before the last one.
//!
//! A file gets its name once its hash is right. What that hash is made of was hashed as it was written, or as it was read
//! back on opening, and is not read once more at the end: that the system keeps what it took is not checked, errors in
//! writing and syncing are. Read back are only bytes of which no such hash stands: the chunks (of BLAKE3) that two pieces
//! share, what was written over, and a file that came as one piece. Others that change the file meanwhile are not noticed.

use anabranch_replicate::control::{ByteRange, FileHash};
use anabranch_replicate::tree::{FileHasher, Piece, PieceHasher};
use anabranch_replicate::work::RangeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

const ENTRY_BYTES: usize = 48;
const READ_BYTES: usize = 1 << 20;
/// The most pieces, with gaps between them, in which a file may be here; a controller takes no more ranges from a site.
/// What would make one more is not kept, and is missing until a gap beside it closes.
const RANGES_MAX: usize = 65_536;

/// A destination's file while it arrives.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    data: File,
    journal: File,
    have: RangeSet,
    /// Of the bytes as they are now.
    hasher: FileHasher,
    /// Whether it is on the disk before it gets its name.
    syncs: bool,
    /// It has its name: what still comes from an attempt that is being taken down is not for it any more.
    finished: bool,
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Adds the file's name to an error.
fn at<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

impl PartialFile {
    /// Opens or begins the file that will be `path`, `length` bytes long, and verifies what is there already.
    ///
    /// Errors: the system's, with the name of the file; no space for `length` bytes is found here, not at the end.
    pub fn open(path: &Path, length: u64) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            at(folder, std::fs::create_dir_all(folder))?;
        }
        let data_path = beside(path, ".partial");
        let open =
            |p: &Path| at(p, OpenOptions::new().read(true).write(true).create(true).truncate(false).open(p));
        let data = open(&data_path)?;
        at(&data_path, reserve(&data, length))?;
        let journal_path = beside(path, ".partial.journal");
        let journal = open(&journal_path)?;
        let mut file = Self {
            path: path.to_owned(),
            data,
            journal,
            have: RangeSet::default(),
            hasher: FileHasher::new(length),
            syncs: true,
            finished: false,
        };
        at(&journal_path, file.verify(length))?;
        Ok(file)
    }

    /// Opens the file that will be `path` if an earlier transfer left part of it.
    ///
    /// Errors: as [`PartialFile::open`].
    pub fn open_existing(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::metadata(beside(path, ".partial")) {
            Ok(found) => Self::open(path, found.len()).map(Some),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => at(path, Err(e)),
        }
    }

    /// Makes the file `length` bytes long; what lay beyond is forgotten.
    ///
    /// Errors: the system's, with the name of the file.
    pub fn resize(&mut self, length: u64) -> io::Result<()> {
        let path = self.path.clone();
        if at(&path, self.data.metadata())?.len() != length {
            at(&path, reserve(&self.data, length))?;
            at(&path, self.verify(length))?;
        }
        Ok(())
    }

    /// Reads the journal back, keeps the entries whose bytes are as they should be, and drops the rest.
    ///
    /// Entry by entry: the journal of a large file is too large for memory. What is kept moves up in place; a crash
    /// meanwhile leaves entries twice or torn, which the next reading forgives.
    fn verify(&mut self, length: u64) -> io::Result<()> {
        use std::io::Seek;
        let (mut have, mut hasher) = (RangeSet::default(), FileHasher::new(length));
        let mut buffer = vec![0; READ_BYTES];
        let mut kept = 0;
        self.journal.seek(io::SeekFrom::Start(0))?;
        let mut entries = io::BufReader::new(&self.journal);
        for at in (0..self.journal.metadata()?.len() / ENTRY_BYTES as u64).map(|i| i * ENTRY_BYTES as u64) {
            let mut entry = [0; ENTRY_BYTES];
            entries.read_exact(&mut entry)?;
            let number = |i: usize| u64::from_le_bytes(entry[i..i + 8].try_into().expect("eight bytes"));
            let (start, size) = (number(0), number(8));
            let Some(end) = start.checked_add(size).filter(|end| *end <= length) else { continue };
            let range = ByteRange { start, end };
            let known = have.ranges().len() < RANGES_MAX || have.touches(range);
            let found = if known { hash_piece(&self.data, range, &mut buffer)? } else { None };
            if let Some(piece) = found.filter(|piece| piece.hash.0 == entry[16..]) {
                have.insert(range);
                hasher.insert(&piece);
                hash_shared(&self.data, range, &have, &mut hasher)?;
                if kept < at {
                    self.journal.write_all_at(&entry, kept)?;
                }
                kept += ENTRY_BYTES as u64;
            }
        }
        self.journal.set_len(kept)?;
        self.journal.seek(io::SeekFrom::Start(kept))?;
        (self.have, self.hasher) = (have, hasher);
        Ok(())
    }

    /// The same file, given its name without waiting for the disk: a machine that stops soon after may lose it.
    pub fn without_sync(self) -> Self {
        Self { syncs: false, ..self }
    }

    /// Whether it has its name; then it takes nothing more.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// What is there and verified.
    pub fn have(&self) -> &RangeSet {
        &self.have
    }

    /// Writes `parts`, end to end and cut to the range, which are `piece`, and notes them in the journal; not beyond
    /// `RANGES_MAX` ranges. What they are written over is not known any more.
    ///
    /// Errors: the system's, with the name of the file.
    pub fn write(&mut self, range: ByteRange, parts: &[impl AsRef<[u8]>], piece: &Piece) -> io::Result<()> {
        let known = self.have.ranges().len() < RANGES_MAX || self.have.touches(range);
        if self.finished || !known {
            return Ok(());
        }
        // Before a byte is written: what fails half way has changed some.
        self.hasher.forget(range);
        let mut offset = range.start;
        for part in parts {
            let part = part.as_ref();
            let take = part.len().min((range.end - offset) as usize);
            at(&self.path, self.data.write_all_at(&part[..take], offset))?;
            offset += take as u64;
        }
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&range.start.to_le_bytes());
        entry[8..16].copy_from_slice(&range.len().to_le_bytes());
        entry[16..].copy_from_slice(&piece.hash.0);
        at(&self.path, self.journal.write_all(&entry))?;
        self.have.insert(range);
        self.hasher.insert(piece);
        at(&self.path, hash_shared(&self.data, range, &self.have, &mut self.hasher))
    }

    /// Checks the whole file against `hash`, syncs it and gives it its name. On a mismatch the file stays partial and
    /// only what still matches the journal counts as there.
    ///
    /// Cost: reads back what was not hashed as it was written.
    /// Errors: [`FinishError`].
    pub fn finish(&mut self, length: u64, hash: FileHash) -> Result<(), FinishError> {
        let found = self.hash(length);
        let found = at(&self.path, found).map_err(FinishError::Io)?;
        if found != hash {
            let path = self.path.clone();
            at(&path, self.verify(length)).map_err(FinishError::Io)?;
            if self.have.total() == length {
                // Every piece is what some packet said it was, and the whole is not the source's file: trust none.
                at(&self.path, self.journal.set_len(0)).map_err(FinishError::Io)?;
                (self.have, self.hasher) = (RangeSet::default(), FileHasher::new(length));
            }
            return Err(FinishError::Mismatch { have: self.have.ranges().to_vec() });
        }
        self.place(length).map_err(FinishError::Io)?;
        self.finished = true;
        Ok(())
    }

    /// The hash of the first `length` bytes; what of it is not known yet is read.
    fn hash(&mut self, length: u64) -> io::Result<FileHash> {
        if self.hasher.length() != length {
            self.hasher = FileHasher::new(length);
        }
        let gaps = self.hasher.missing();
        if gaps != [ByteRange { start: 0, end: length }] {
            let mut buffer = vec![0; if gaps.is_empty() { 0 } else { READ_BYTES }];
            for gap in gaps {
                hash_piece(&self.data, gap, &mut buffer)?.iter().for_each(|piece| self.hasher.insert(piece));
            }
            if let Some(found) = self.hasher.finish() {
                return Ok(found);
            }
        }
        hash_whole(&self.data, length)
    }

    fn place(&self, length: u64) -> io::Result<()> {
        at(&self.path, self.data.set_len(length))?;
        if self.syncs {
            at(&self.path, self.data.sync_all())?;
        }
        at(&self.path, std::fs::rename(beside(&self.path, ".partial"), &self.path))?;
        let journal = beside(&self.path, ".partial.journal");
        at(&journal, std::fs::remove_file(&journal))?;
        if !self.syncs {
            return Ok(());
        }
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        at(folder, File::open(folder).and_then(|f| f.sync_all()))
    }
}

/// Why a file was not given its name.
#[derive(Debug)]
pub enum FinishError {
    /// The bytes are not the source's. What is left of them:
    Mismatch {
        /// Ranges that still match their own hashes.
        have: Vec<ByteRange>,
    },
    /// The system refused.
    Io(io::Error),
}

/// Reserves `length` bytes, so that a full disk is found before the transfer and not at its end.
fn reserve(file: &File, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let room = file.metadata()?.len();
    if room >= length {
        return file.set_len(length);
    }
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length) {
        // Some file systems cannot reserve: then a full disk shows itself when it is full.
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(length),
        other => Ok(other?),
    }
}

/// Hands the bytes of `range` to `take`; fewer where the file ends before.
fn read_range(
    file: &File,
    range: ByteRange,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut offset = range.start;
    while offset < range.end {
        let next = buffer.len().min((range.end - offset) as usize);
        match file.read_at(&mut buffer[..next], offset)? {
            0 => break,
            n => {
                take(&buffer[..n]);
                offset += n as u64;
            }
        }
    }
    Ok(())
}

/// The piece `range` as it is in `file`; `None` where the file ends before.
fn hash_piece(file: &File, range: ByteRange, buffer: &mut [u8]) -> io::Result<Option<Piece>> {
    let mut hasher = PieceHasher::new(range);
    read_range(file, range, buffer, |bytes| hasher.update(bytes))?;
    Ok(hasher.finish())
}

/// Reads the chunks that `range` shares with what is before and after it, where all of them is there.
fn hash_shared(file: &File, range: ByteRange, have: &RangeSet, hasher: &mut FileHasher) -> io::Result<()> {
    const CHUNK: u64 = blake3::CHUNK_LEN as u64;
    for at in [range.start, range.end] {
        let start = at / CHUNK * CHUNK;
        let chunk = ByteRange { start, end: hasher.length().min(start + CHUNK) };
        if start < at && have.contains(chunk) {
            hash_piece(file, chunk, &mut [0; CHUNK as usize])?.iter().for_each(|piece| hasher.insert(piece));
        }
    }
    Ok(())
}

fn hash_whole(file: &File, length: u64) -> io::Result<FileHash> {
    let mut hasher = blake3::Hasher::new();
    let whole = ByteRange { start: 0, end: length };
    read_range(file, whole, &mut vec![0; READ_BYTES], |bytes| {
        hasher.update(bytes);
    })?;
    Ok(FileHash(*hasher.finalize().as_bytes()))
}

/// BLAKE3 of the first `length` bytes of a file that is open.
///
/// Errors: the system's.
pub fn hash_file_at(file: &File, length: u64) -> io::Result<FileHash> {
    hash_whole(file, length)
}

/// BLAKE3 and length of a whole file.
///
/// Errors: the system's, with the name of the file.
pub fn hash_file(path: &Path) -> io::Result<(u64, FileHash)> {
    let file = at(path, File::open(path))?;
    let length = at(path, file.metadata())?.len();
    let hash = at(path, hash_whole(&file, length))?;
    Ok((length, hash))
}

/// The file that a controller calls `name`, inside the folder that this site serves.
///
/// Errors: a name that leads out of the folder.
pub fn inside(root: &Path, name: &str) -> io::Result<PathBuf> {
    let path = Path::new(name);
    let plain = path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    let relative = match path.strip_prefix(root) {
        Ok(rest) if rest.components().all(|c| matches!(c, Component::Normal(_))) => rest,
        _ if plain && path.file_name().is_some() => path,
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("`{name}`: outside the folder that this site serves ({}); see --dir", root.display()),
            ));
        }
    };
    Ok(root.join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn what_was_written_before_a_crash_is_there_after_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a/b.bin");
        let bytes: Vec<u8> = (0..200u8).collect();
        let mut file = PartialFile::open(&path, 200).expect("opens");
        put(&mut file, &bytes, range(0, 50));
        put(&mut file, &bytes, range(100, 120));
        drop(file);
        let mut file = PartialFile::open(&path, 200).expect("opens again");
        assert_eq!(file.have().missing(200), [range(50, 100), range(120, 200)]);
        put(&mut file, &bytes, range(50, 100));
        put(&mut file, &bytes, range(120, 200));
        file.finish(200, FileHash(*blake3::hash(&bytes).as_bytes())).expect("all is there");
        assert_eq!(std::fs::read(&path).expect("it has its name"), bytes);
        assert_eq!(std::fs::read_dir(path.parent().expect("a folder")).expect("listed").count(), 1);
    }

    #[test]
    fn damaged_bytes_and_a_torn_journal_do_not_count() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("b.bin");
        let bytes: Vec<u8> = (0..100u8).collect();
        let mut file = PartialFile::open(&path, 100).expect("opens");
        put(&mut file, &bytes, range(0, 50));
        put(&mut file, &bytes, range(50, 100));
        file.data.write_all_at(&[99], 60).expect("damage");
        file.journal.write_all(&[1; 17]).expect("a torn entry");
        drop(file);
        let file = PartialFile::open(&path, 100).expect("opens again");
        assert_eq!(file.have().missing(100), [range(50, 100)]);
        let again = PartialFile::open(&path, 100).expect("the journal was mended");
        assert_eq!(again.have(), file.have());
    }

    #[test]
    fn a_file_is_here_in_at_most_so_many_pieces() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("e.bin");
        let length = 2 * RANGES_MAX as u64 + 4096;
        let bytes = vec![7; length as usize];
        let mut file = PartialFile::open(&path, length).expect("opens");
        (0..=RANGES_MAX as u64).for_each(|i| put(&mut file, &bytes, range(2 * i, 2 * i + 1)));
        let last = 2 * RANGES_MAX as u64;
        assert_eq!(file.have().ranges().len(), RANGES_MAX);
        assert_eq!(file.have().ranges().last(), Some(&range(last - 2, last - 1)));
        // Nor does what was not written count as hashed.
        put(&mut file, &bytes, range(last + 1024, last + 2048));
        assert_eq!(file.hasher.missing(), [range(0, length)]);
        // Once a gap closes there is room, and what touches is always taken.
        put(&mut file, &bytes, range(1, 2));
        put(&mut file, &bytes, range(last, last + 1));
        assert_eq!(file.have().ranges().last(), Some(&range(last, last + 1)));
        let have = file.have().clone();
        drop(file);
        assert_eq!(PartialFile::open(&path, length).expect("opens again").have(), &have);
    }

    #[test]
    fn a_file_that_is_not_the_sources_gets_no_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("c.bin");
        let mut file = PartialFile::open(&path, 10).expect("opens");
        put(&mut file, &[7; 10], range(0, 10));
        let error = file.finish(10, FileHash([0; 32])).expect_err("another hash");
        assert!(matches!(error, FinishError::Mismatch { have } if have.is_empty()));
        assert!(!path.exists());
    }

    #[test]
    fn a_late_write_does_not_reach_a_file_that_has_its_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("d.bin");
        let mut file = PartialFile::open(&path, 10).expect("opens");
        put(&mut file, &[7; 10], range(0, 10));
        file.finish(10, FileHash(*blake3::hash(&[7; 10]).as_bytes())).expect("all is there");
        put(&mut file, &[8; 10], range(0, 10));
        assert_eq!(std::fs::read(&path).expect("it has its name"), [7; 10]);
    }

    #[test]
    fn what_was_hashed_as_it_was_written_is_not_read_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("f.bin");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let hash = FileHash(*blake3::hash(&bytes).as_bytes());
        let mut file = PartialFile::open(&path, 100_000).expect("opens");
        put(&mut file, &bytes, range(65_536, 100_000));
        drop(file);
        // What was read back on opening counts as well.
        let mut file = PartialFile::open(&path, 100_000).expect("opens again");
        assert_eq!(file.hasher.missing(), [range(0, 65_536)]);
        put(&mut file, &bytes, range(30_720, 65_536));
        put(&mut file, &bytes, range(0, 30_720));
        assert_eq!(file.hasher.missing(), []);
        file.finish(100_000, hash).expect("all is there");
    }

    #[test]
    fn pieces_that_share_chunks_leave_nothing_to_be_read_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let hash = FileHash(*blake3::hash(&bytes).as_bytes());
        for (size, step) in [(1_436, 1), (1_436, 29), (700, 17), (100, 3), (90_001, 1)] {
            let path = folder.path().join(format!("{size}-{step}.bin"));
            let mut file = PartialFile::open(&path, 100_000).expect("opens");
            let count = 100_000u64.div_ceil(size);
            for i in (0..count).map(|i| i * step % count) {
                put(&mut file, &bytes, range(i * size, 100_000.min((i + 1) * size)));
            }
            assert_eq!(file.hasher.missing(), [], "{size} bytes each");
            drop(file);
            let mut file = PartialFile::open(&path, 100_000).expect("opens again");
            assert_eq!(file.hasher.missing(), [], "{size} bytes each");
            file.finish(100_000, hash).expect("all is there");
        }
    }

    #[derive(Clone, Debug)]
    enum Deed {
        /// Bytes are written, changed from those that were there before.
        Write {
            start: u64,
            length: u64,
            flip: u8,
        },
        /// Fewer bytes come than were said.
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
        let short = (0u64..40, 2u64..9_000)
            .prop_map(|(start, length)| Deed::WriteShort { start: start * 1024, length });
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

        /// The plain twin is the hash of the bytes that are on the disk.
        #[test]
        fn the_hash_is_that_of_what_is_on_the_disk(mut length in 1u64..40_000, deeds in deeds()) {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join("g.bin");
            let on_disk = || std::fs::read(beside(&path, ".partial")).expect("it is there");
            let mut file = PartialFile::open(&path, length).expect("opens");
            for deed in deeds {
                match deed {
                    Deed::Write { start, length: most, flip } if start < length => {
                        let mut bytes = on_disk();
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
                        file = PartialFile::open(&path, length).expect("opens again");
                    }
                    Deed::Resize(to) => {
                        length = to;
                        file.resize(length).expect("the disk is there");
                    }
                    Deed::Hash => {
                        let found = file.hash(length).expect("the disk is there");
                        prop_assert_eq!(found.0, *blake3::hash(&on_disk()).as_bytes());
                    }
                    Deed::FinishWrong => {
                        let error = file.finish(length, FileHash([0; 32])).expect_err("another hash");
                        let FinishError::Mismatch { have } = error else { panic!("the disk is there") };
                        prop_assert_eq!(have, file.have().ranges());
                    }
                }
            }
            let bytes = on_disk();
            prop_assert_eq!(bytes.len() as u64, length);
            file.finish(length, FileHash(*blake3::hash(&bytes).as_bytes())).expect("that is what is there");
            prop_assert_eq!(std::fs::read(&path).expect("it has its name"), bytes);
        }
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let root = Path::new("/srv/data");
        assert_eq!(inside(root, "x/y").expect("inside"), Path::new("/srv/data/x/y"));
        assert_eq!(inside(root, "/srv/data/x").expect("inside"), Path::new("/srv/data/x"));
        for bad in ["../x", "/etc/passwd", "x/../../y", "/srv/data/../x", ""] {
            assert!(inside(root, bad).is_err(), "{bad}");
        }
    }
}
