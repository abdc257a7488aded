//! A partial file: the received ranges, kept so that a crash loses no verified data.
//!
//! Beside the future `NAME` lie two working files, whose names derive from the hash of `NAME` and
//! are forbidden for objects ([`anabranch_pieces::name::RESERVED`]): `.anabranch-HASH.partial` (the
//! bytes) and `.anabranch-HASH.journal`, with a [`Header`] followed by the received ranges and
//! their hashes. The journal is append-only and never trusted: on opening, every range is read back
//! and hashed, and a range that does not match is dropped. So neither a torn write nor a lost page
//! can pass for data, and no write before the last one needs a sync.
//!
//! The journal is locked (flock(2)) while it is open: one transfer at a time writes a file. Working
//! files are opened without following links, and only as regular files of this user with one name.
//!
//! A file gets its name once its hash is correct. The name goes to the open descriptor's file, not
//! to another file that may have the working file's name by then. Bytes are hashed as they are
//! written, or as they are read back on opening, and not once more at the end: errors in writing
//! and syncing are checked, later changes by the system or the disk are not. Only bytes without a
//! reusable hash are read back: chunks (of BLAKE3) shared by two pieces, overwritten ranges, and a
//! file that came as one piece. Changes by another process in the meantime are not detected.
//!
//! Disk space is reserved as bytes arrive, a little ahead of them rather than by the length that a
//! sender states; but opening fails if there is less space than this length.

mod header;
pub mod leftovers;
mod stream;
pub mod whole;

pub use header::Header;
pub(crate) use header::named_working;

use crate::folder::{Place, at, remove, rename_new, shown};
use anabranch_pieces::{Attributes, ByteRange, FileHash, RangeSet};
use anabranch_pieces::{FileHasher, Piece, PieceHasher};
use anabranch_units::ByteCount;
use header::Working;
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt, MetadataExt as _};
use std::path::Path;

const ENTRY_BYTES: usize = 48;
const READ_BYTES: usize = 1 << 20;
/// Maximum number of separate ranges of a file; the controller has the same limit. Further ranges
/// are dropped.
const RANGES_MAX: usize = 65_536;
/// Maximum bytes of disk reserved ahead of the received bytes. The reservation shows a full disk
/// early.
pub const AHEAD_BYTES: u64 = 64 << 20;
/// The shortest range of zeros that becomes a hole: a block of most file systems.
const HOLE_BYTES_MIN: u64 = 4_096;
/// Number of attempts to take a lock, and interval between two attempts.
const LOCK_TRIES: u32 = 4;
const LOCK_EVERY: std::time::Duration = std::time::Duration::from_millis(5);
/// Mode bits that a transfer copies: the permissions to read, write and execute, without setuid,
/// setgid and the sticky bit.
const MODE_BITS: u32 = 0o777;

/// Returns the attributes of a file that are transferred with its bytes.
///
/// A time outside the range of nanoseconds since 1970 becomes the nearest time in the range.
pub fn attributes(found: &Metadata) -> Attributes {
    let ns = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    let modified_ns = i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX });
    Attributes { mode: found.mode() & MODE_BITS, modified_ns }
}

/// Settings for naming a file.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Attributes of the file at its source. With `None`, only the owner may read and write the
    /// file, and its time is the time of the last write.
    pub attributes: Option<Attributes>,
    /// True to replace an existing file. An identical file stays in any case.
    pub replace: bool,
}

/// A destination's file during its transfer. If the value is dropped before the file has its final
/// name, the verified bytes stay on the disk.
#[derive(Debug)]
pub struct PartialFile {
    place: Place,
    working: Working,
    data: File,
    /// The journal, locked.
    journal: File,
    length: u64,
    have: RangeSet,
    /// Bytes of `have`.
    arrived: u64,
    /// Reserved ranges of disk.
    reserved: RangeSet,
    taken: u64,
    /// Offset of the journal's next entry.
    journal_end: u64,
    /// Hasher of the present bytes.
    hasher: FileHasher,
    /// True to sync the file before it gets its name.
    syncs: bool,
    /// True once the file has its final name. Later data of an ending attempt is ignored.
    finished: bool,
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.finished && self.have.is_empty() {
            // A file that cannot be removed now is removed once it has expired.
            let _ = self.remove();
        }
    }
}

/// Error for a working file that is not opened.
fn refused(place: &Place, working: &str, why: &str) -> io::Error {
    let reason = format!("{}: its working file {working} {why}: remove it", shown(place.path()));
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// Opens a working file of this user, or creates it if `make`; `None` if it does not exist.
///
/// Errors: the system's; the file is a link, no plain file, or another user's.
fn open_working(place: &Place, working: &str, make: bool) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let open = |more| rustix::fs::openat(place.folder(), working, flags | more, mode);
    // Tries again, because the file may appear or disappear in between.
    for _ in 0..8 {
        if make {
            match open(OFlags::CREATE | OFlags::EXCL) {
                Ok(made) => return Ok(Some(made.into())),
                Err(Errno::EXIST) => {}
                Err(errno) => return at(place.path(), Err(errno)),
            }
        }
        let found: File = match open(OFlags::empty()) {
            Ok(found) => found.into(),
            Err(Errno::NOENT) if make => continue,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(refused(place, working, "is a symbolic link")),
            Err(Errno::NXIO | Errno::ISDIR) => return Err(refused(place, working, "is no plain file")),
            Err(errno) => return at(place.path(), Err(errno)),
        };
        let is = at(place.path(), found.metadata())?;
        if FileType::from_raw_mode(is.mode()) != FileType::RegularFile {
            return Err(refused(place, working, "is no plain file"));
        }
        if is.uid() != rustix::process::geteuid().as_raw() {
            return Err(refused(place, working, &format!("belongs to user {}", is.uid())));
        }
        return Ok(Some(found));
    }
    Err(refused(place, working, "comes and goes"))
}

/// Opens a possible working file; `None` if it does not exist, or is no plain file of this user.
fn open_at(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let found: File = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Ok(found) => found.into(),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Ok(None),
        Err(errno) => return at(Path::new(name), Err(errno)),
    };
    let is = found.metadata()?;
    let is_own = is.uid() == rustix::process::geteuid().as_raw();
    Ok(Some(found).filter(|_| is.is_file() && is_own))
}

/// Returns true if `name` in the location's folder is this very file.
fn is_named(place: &Place, name: &str, file: &File) -> io::Result<bool> {
    let is = file.metadata()?;
    match rustix::fs::statat(place.folder(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok((found.st_dev, found.st_ino) == (is.dev(), is.ino())),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn unlink(place: &Place, name: &str) -> io::Result<()> {
    Ok(remove(place.folder(), name)?)
}

/// Opens the journal and locks it. `None` if the journal does not exist and `make` is false.
fn open_journal(place: &Place, working: &Working, make: bool) -> io::Result<Option<File>> {
    let mut patience = LOCK_TRIES;
    loop {
        let Some(journal) = open_working(place, &working.journal, make)? else { return Ok(None) };
        patience -= 1;
        match rustix::fs::flock(&journal, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            // A search for leftovers holds the lock for a moment.
            Err(Errno::WOULDBLOCK) if patience > 0 => {
                std::thread::sleep(LOCK_EVERY);
                continue;
            }
            Err(Errno::WOULDBLOCK) => {
                let reason = format!(
                    "{}: another process or transfer is writing this file: wait for its end, or use another name",
                    shown(place.path())
                );
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
            }
            Err(errno) => return at(place.path(), Err(errno)),
        }
        if at(place.path(), journal.metadata())?.nlink() > 1 {
            return Err(refused(place, &working.journal, "has another name too"));
        }
        // The previous owner may have removed it between opening and locking.
        if at(place.path(), is_named(place, &working.journal, &journal))? {
            return Ok(Some(journal));
        }
        if patience == 0 {
            return Err(refused(place, &working.journal, "comes and goes"));
        }
    }
}

impl PartialFile {
    /// Opens or creates the file for `place`, `length` bytes long, and verifies its present bytes.
    ///
    /// Errors: the system's, with the name of the file; another process is writing it; its working
    /// files belong to another user; the disk has less room than the missing bytes need.
    pub fn open(place: Place, length: u64) -> io::Result<Self> {
        let working = Working::of(place.name().as_bytes());
        let journal = open_journal(&place, &working, true)?.expect("made where it was not");
        Self::with(place, working, journal, length, None)
    }

    /// Opens the file that will be at `place` if an earlier transfer left part of it.
    ///
    /// Errors: as [`PartialFile::open`].
    pub fn open_existing(place: Place) -> io::Result<Option<Self>> {
        Self::existing(place, None)
    }

    fn existing(place: Place, arriving_bytes: Option<u64>) -> io::Result<Option<Self>> {
        let working = Working::of(place.name().as_bytes());
        let Some(journal) = open_journal(&place, &working, false)? else { return Ok(None) };
        let length = at(place.path(), Header::read(&journal))?.map_or(0, |header| header.length);
        let file = Self::with(place, working, journal, length, arriving_bytes)?;
        // A file with no verified bytes counts as missing.
        Ok(Some(file).filter(|file| !file.have.is_empty()))
    }

    fn with(
        place: Place,
        working: Working,
        journal: File,
        length: u64,
        arriving_bytes: Option<u64>,
    ) -> io::Result<Self> {
        let open = || open_working(&place, &working.data, true).map(|f| f.expect("made where it was not"));
        let mut data = open().inspect_err(|_| {
            // Either file is useless without the other.
            if journal.metadata().is_ok_and(|found| found.len() == 0) {
                let _ = unlink(&place, &working.journal);
            }
        })?;
        if at(place.path(), data.metadata())?.nlink() > 1 {
            // The file has another name, from this or another program. A file with two names is
            // never written to.
            at(place.path(), unlink(&place, &working.data))?;
            data = open()?;
        }
        let path = place.path().to_owned();
        let header = Header { name: place.name().as_bytes().to_owned(), length };
        if at(&path, Header::read(&journal))?.is_none_or(|old| old.name != header.name) {
            at(&path, journal.set_len(0))?;
        }
        let mut file = Self {
            place,
            working,
            data,
            journal,
            length,
            have: RangeSet::default(),
            arrived: 0,
            reserved: RangeSet::default(),
            taken: 0,
            journal_end: 0,
            hasher: FileHasher::new(length),
            syncs: true,
            finished: false,
        };
        at(&path, file.journal.write_all_at(&header.encode(), 0))?;
        at(&path, file.verify(length))?;
        at(&path, file.look_for_room(arriving_bytes))?;
        Ok(file)
    }

    /// Makes the file `length` bytes long. Bytes beyond this length are lost.
    ///
    /// Errors: as [`PartialFile::open`].
    pub fn resize(&mut self, length: u64) -> io::Result<()> {
        if self.set_length(length)? { at(self.place.path(), self.look_for_room(None)) } else { Ok(()) }
    }

    /// Sets the length. Returns true if the length has changed.
    fn set_length(&mut self, length: u64) -> io::Result<bool> {
        if self.length == length {
            return Ok(false);
        }
        let path = self.place.path().to_owned();
        let header = Header { name: self.place.name().as_bytes().to_owned(), length };
        at(&path, self.journal.write_all_at(&header.encode(), 0))?;
        if at(&path, self.data.metadata())?.len() > length {
            at(&path, self.data.set_len(length))?;
        }
        self.length = length;
        at(&path, self.verify(length))?;
        Ok(true)
    }

    /// Finds out early that the disk has less room than the file lacks.
    fn look_for_room(&self, arriving_bytes: Option<u64>) -> io::Result<()> {
        let found = rustix::fs::fstatvfs(&self.data)?;
        // Root may take the last blocks as well.
        let is_root = rustix::process::geteuid().is_root();
        let blocks = if is_root { found.f_bfree } else { found.f_bavail };
        let room = blocks.saturating_mul(found.f_frsize);
        let taken = self.data.metadata()?.blocks() * 512;
        let lacks = arriving_bytes.unwrap_or(self.length.saturating_sub(taken));
        // If the file system reports no blocks, a full disk is noticed only at a write.
        if found.f_blocks > 0 && lacks > room {
            let (lacks, room) = (ByteCount::new(lacks), ByteCount::new(room));
            let reason = format!("No space left on device: {lacks} more are needed, {room} are free");
            return Err(io::Error::new(io::ErrorKind::StorageFull, reason));
        }
        Ok(())
    }

    /// Reserves disk for `range` and the bytes after it, unless enough is reserved ahead elsewhere.
    fn reserve(&mut self, range: ByteRange) -> io::Result<()> {
        let ahead = self.taken.saturating_sub(self.arrived);
        if ahead >= AHEAD_BYTES || self.reserved.contains(range) {
            return Ok(());
        }
        let end = self.length.min(range.start.saturating_add(AHEAD_BYTES - ahead)).max(range.end);
        // Ranges that have arrived have their space, and the holes among them stay holes.
        let have = self.have.ranges();
        let next = have.get(have.partition_point(|arrived| arrived.start < range.end));
        let end = next.map_or(end, |arrived| end.min(arrived.start));
        let ahead = ByteRange { start: range.start, end };
        match rustix::fs::fallocate(&self.data, FallocateFlags::KEEP_SIZE, ahead.start, ahead.len()) {
            Ok(()) => self.taken += self.reserved.insert(ahead),
            // Some file systems reserve no space. A full disk is then noticed at a write.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.taken = u64::MAX,
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// Makes the range a hole, which reads as zeros and takes no disk space. Returns false, and
    /// changes nothing, if the range is shorter than [`HOLE_BYTES_MIN`] or the file system has no
    /// holes.
    fn punch(&self, range: ByteRange) -> io::Result<bool> {
        if range.len() < HOLE_BYTES_MIN {
            return Ok(false);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.data, flags, range.start, range.len()) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        // Bytes are read back up to the file's end.
        if self.data.metadata()?.len() < range.end {
            self.data.set_len(range.end)?;
        }
        Ok(true)
    }

    /// Reads the journal back, keeps the entries that match their bytes, and drops the rest.
    ///
    /// Works entry by entry, because the journal of a large file exceeds memory. Kept entries move
    /// up in place; a crash leaves duplicate or torn entries, which the next reading tolerates.
    fn verify(&mut self, length: u64) -> io::Result<()> {
        use std::io::Seek;
        let (mut have, mut hasher) = (RangeSet::default(), FileHasher::new(length));
        let mut buffer = vec![0; READ_BYTES];
        let first = Header::BYTES as u64;
        let mut kept = first;
        self.journal.seek(io::SeekFrom::Start(first))?;
        let mut entries = io::BufReader::new(&self.journal);
        let count = self.journal.metadata()?.len().saturating_sub(first) / ENTRY_BYTES as u64;
        for at in (0..count).map(|i| first + i * ENTRY_BYTES as u64) {
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
        self.journal_end = kept;
        self.arrived = have.total();
        (self.reserved, self.taken) = (have.clone(), self.arrived);
        (self.have, self.hasher) = (have, hasher);
        Ok(())
    }

    /// Sets whether the file is synced before it gets its name. A power failure may lose a file
    /// that was not synced.
    pub fn set_syncs(&mut self, syncs: bool) {
        self.syncs = syncs;
    }

    /// Returns true if the file has its final name. It then accepts no more bytes.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The ranges that have arrived and are verified.
    pub fn have(&self) -> &RangeSet {
        &self.have
    }

    /// Writes the concatenated `parts` of `piece`, cut to the range, and records the range in the
    /// journal, up to `RANGES_MAX` ranges. Overwritten ranges lose their hashes.
    ///
    /// Errors: the system's, with the name of the file.
    pub fn write(&mut self, range: ByteRange, parts: &[impl AsRef<[u8]>], piece: &Piece) -> io::Result<()> {
        let known = self.have.ranges().len() < RANGES_MAX || self.have.touches(range);
        if self.finished || !known {
            return Ok(());
        }
        // Before the write, because a write that fails half way has changed some bytes.
        self.hasher.forget(range);
        let path = self.place.path().to_owned();
        at(&path, self.reserve(range))?;
        let is_zero = parts.iter().all(|part| part.as_ref().iter().all(|byte| *byte == 0));
        let is_hole = is_zero && at(&path, self.punch(range))?;
        let mut offset = range.start;
        for part in parts.iter().take(if is_hole { 0 } else { parts.len() }) {
            let part = part.as_ref();
            let take = part.len().min((range.end - offset) as usize);
            at(&path, self.data.write_all_at(&part[..take], offset))?;
            offset += take as u64;
        }
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&range.start.to_le_bytes());
        entry[8..16].copy_from_slice(&range.len().to_le_bytes());
        entry[16..].copy_from_slice(&piece.hash.0);
        at(&path, self.journal.write_all_at(&entry, self.journal_end))?;
        self.journal_end += ENTRY_BYTES as u64;
        self.arrived += self.have.insert(range);
        self.hasher.insert(piece);
        at(&path, hash_shared(&self.data, range, &self.have, &mut self.hasher))
    }

    /// Checks the whole file against `hash`, syncs it and gives it its name. On a mismatch the file
    /// stays partial, and only ranges that match the journal count as received.
    ///
    /// Cost: reads bytes that were not hashed during their write. Also reads an existing file of
    /// the same name that may not be replaced.
    /// Errors: [`FinishError`].
    pub fn finish(&mut self, length: u64, hash: FileHash, naming: &Naming) -> Result<(), FinishError> {
        let path = self.place.path().to_owned();
        let told = |result| at(&path, result).map_err(FinishError::Io);
        self.resize(length).map_err(FinishError::Io)?;
        let found = told(self.hash(length))?;
        if found != hash {
            return Err(self.mismatch(length));
        }
        self.put_in_place(hash, naming).map_err(FinishError::Io)
    }

    /// Drops ranges that do not match the journal, after a mismatch of the whole file's hash.
    fn mismatch(&mut self, length: u64) -> FinishError {
        let drop_wrong = |file: &mut Self| {
            file.verify(length)?;
            // Each piece matches its own hash, but the file does not match: no piece can be
            // trusted.
            if file.have.total() == length { file.drop_all() } else { Ok(()) }
        };
        let path = self.place.path().to_owned();
        match at(&path, drop_wrong(self)) {
            Ok(()) => FinishError::Mismatch { have: self.have.ranges().to_vec() },
            Err(error) => FinishError::Io(error),
        }
    }

    fn drop_all(&mut self) -> io::Result<()> {
        self.journal.set_len(Header::BYTES as u64)?;
        (self.journal_end, self.arrived) = (Header::BYTES as u64, 0);
        (self.have, self.hasher) = (RangeSet::default(), FileHasher::new(self.length));
        Ok(())
    }

    /// Makes the file `length` bytes long and returns its hash. Reads the parts without a hash.
    fn hash(&mut self, length: u64) -> io::Result<FileHash> {
        self.data.set_len(length)?;
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

    fn put_in_place(&mut self, hash: FileHash, naming: &Naming) -> io::Result<()> {
        let path = &self.place.path().to_owned();
        at(path, set_attributes(&self.data, naming.attributes))?;
        if self.syncs {
            at(path, self.data.sync_all())?;
        }
        let named =
            link_or(&self.place, &self.working, &self.data, naming.replace, || self.rename(naming.replace));
        match named {
            Err(Errno::EXIST) => same_as(&self.place, self.length, hash, naming.attributes)?,
            other => at(path, other)?,
        }
        // The file is not written to after this point.
        self.finished = true;
        at(path, self.remove())?;
        if self.syncs { sync_folder(&self.place) } else { Ok(()) }
    }

    /// Gives the working file its name, after checking that it is the open one.
    fn rename(&self, replace: bool) -> Result<(), Errno> {
        let (folder, name, data) = (self.place.folder(), self.place.name(), self.working.data.as_str());
        match is_named(&self.place, data, &self.data) {
            Ok(true) => {}
            // The file was removed or replaced; a file that was not hashed gets no name.
            Ok(false) => return Err(Errno::STALE),
            Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        }
        if replace {
            return rustix::fs::renameat(folder, data, folder, name);
        }
        rename_new(folder, OsStr::new(data), name)
    }

    /// Removes the working files; the journal last, because it holds the lock.
    fn remove(&self) -> io::Result<()> {
        if is_named(&self.place, &self.working.data, &self.data)? {
            unlink(&self.place, &self.working.data)?;
        }
        if is_named(&self.place, &self.working.journal, &self.journal)? {
            unlink(&self.place, &self.working.journal)?;
        }
        Ok(())
    }
}

/// Sets the permissions and the time that the file has at its source.
fn set_attributes(file: &File, attributes: Option<Attributes>) -> Result<(), Errno> {
    let Some(Attributes { mode, modified_ns }) = attributes else { return Ok(()) };
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode & MODE_BITS))?;
    let (seconds, nanos) = (modified_ns.div_euclid(1_000_000_000), modified_ns.rem_euclid(1_000_000_000));
    rustix::fs::futimens(file, &modified_at(seconds, nanos))
}

/// Timestamps that set the time of the last modification and keep the time of the last access.
pub(crate) fn modified_at(seconds: i64, nanos: i64) -> Timestamps {
    let untouched = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    Timestamps { last_access: untouched, last_modification: Timespec { tv_sec: seconds, tv_nsec: nanos } }
}

/// Syncs the folder of a location, so that its names survive a power failure.
fn sync_folder(place: &Place) -> io::Result<()> {
    let folder = place.path().parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    at(folder, rustix::fs::fsync(place.folder()))
}

/// Gives an open file its name, by its descriptor. If the system cannot link a descriptor,
/// `otherwise` gives the name.
///
/// Errors: the system's; `EXIST` if another file has the name and may not be replaced.
fn link_or(
    place: &Place,
    working: &Working,
    file: &File,
    replace: bool,
    otherwise: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (folder, name) = (place.folder(), place.name());
    let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |to: &OsStr| {
        rustix::fs::linkat(rustix::fs::CWD, descriptor.as_str(), folder, to, AtFlags::SYMLINK_FOLLOW)
    };
    let named = OsStr::new(&working.named);
    let linked = if replace {
        // A leftover of an earlier process is in the way.
        let _ = rustix::fs::unlinkat(folder, named, AtFlags::empty());
        link(named)
    } else {
        link(name)
    };
    match linked {
        Ok(()) if replace => rustix::fs::renameat(folder, named, folder, name),
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if !replace => Err(Errno::EXIST),
        // Some file systems have no hard links, and some machines have no /proc.
        Err(_) => otherwise(),
    }
}

/// Checks that the existing file of this name is identical, and not readable by more users than at
/// its source.
///
/// Errors: a different file; an unreadable file.
fn same_as(place: &Place, length: u64, hash: FileHash, attributes: Option<Attributes>) -> io::Result<()> {
    let path = place.path();
    if let Some(file) = place.finished()?
        && at(path, file.metadata())?.len() == length
        && at(path, hash_whole(&file, length))? == hash
    {
        narrow(&file, path, attributes);
        return Ok(());
    }
    Err(exists(path))
}

/// Removes group and other permissions that the source file does not grant from an existing file
/// with the same content. Logs a warning if any permission must be removed.
pub fn narrow(file: &File, path: &Path, attributes: Option<Attributes>) {
    let Some(Attributes { mode, .. }) = attributes else { return };
    let Ok(found) = file.metadata() else { return };
    let is = found.mode() & 0o7777;
    let less = Attributes::narrowed(is, mode);
    if less == is {
        return;
    }
    let path = shown(path);
    let what = format!(
        "{path}: was there with the same content, for more users than its source allows (mode {is:04o})"
    );
    match rustix::fs::fchmod(file, Mode::from_raw_mode(less)) {
        Ok(()) => tracing::warn!("{what}: now {less:04o}"),
        Err(errno) => tracing::warn!("{what}: cannot be changed to {less:04o}: {errno}"),
    }
}

/// Error for a name that another file has already.
pub fn exists(path: &Path) -> io::Error {
    let reason = format!(
        "{}: another file has this name already: use another name, or --replace to replace it",
        shown(path)
    );
    io::Error::new(io::ErrorKind::AlreadyExists, reason)
}

/// Reason why a file was not given its name.
#[derive(Debug)]
pub enum FinishError {
    /// The bytes do not have the source's hash.
    Mismatch {
        /// Ranges that match their own hashes and stay.
        have: Vec<ByteRange>,
    },
    /// The system refused.
    Io(io::Error),
}

/// Passes the bytes of `range` to `take`, up to the end of the file.
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

/// Hash of the piece `range` of `file`. `None` if the file ends within the range.
fn hash_piece(file: &File, range: ByteRange, buffer: &mut [u8]) -> io::Result<Option<Piece>> {
    let mut hasher = PieceHasher::new(range);
    read_range(file, range, buffer, |bytes| hasher.update(bytes))?;
    Ok(hasher.finish())
}

/// Hashes the complete chunks that `range` shares with the bytes before and after it.
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

/// Returns the BLAKE3 hash of the first `length` bytes of an open file.
///
/// Errors: the system's.
pub fn hash_file_at(file: &File, length: u64) -> io::Result<FileHash> {
    hash_whole(file, length)
}

/// Returns the length and the BLAKE3 hash of a whole file.
///
/// Errors: the system's, with the name of the file.
pub fn hash_file(path: &Path) -> io::Result<(u64, FileHash)> {
    let file = at(path, File::open(path))?;
    let length = at(path, file.metadata())?.len();
    let hash = at(path, hash_whole(&file, length))?;
    Ok((length, hash))
}

/// For the fuzz target: reads the bytes as the journal of a file of 1,000 zeros in `folder`.
/// Returns true if any range of the journal is kept.
///
/// Panics: if the kept bytes do not lie within the file.
#[doc(hidden)]
pub fn exercise_journal(folder: &Path, bytes: &[u8]) -> bool {
    let path = folder.join("file");
    let working = Working::of(b"file");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).expect("it is ours");
    write(&working.data, &[0; 1_000]);
    write(&working.journal, bytes);
    let place = || Place::of(&path).expect("a name in a folder");
    // A journal may state any length, so this call fails if the disk has less space.
    let open = PartialFile::open_existing(place());
    drop(open);
    write(&working.data, &[0; 1_000]);
    write(&working.journal, bytes);
    let file =
        PartialFile::open(place(), 1_000).expect("whatever the journal holds, the file can begin anew");
    assert!(file.have().ranges().iter().all(|range| range.start < range.end && range.end <= 1_000));
    file.have().total() > 0
}

#[cfg(test)]
mod tests;
