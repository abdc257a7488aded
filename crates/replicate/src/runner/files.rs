//! A runner's files: reads the source's file, writes a destination's, and stores flows that may be
//! forwarded only as a whole.
//!
//! Leaves out: the on-disk form of a partial file (`disk::partial`), and files for stored flows
//! (`spool`).

use super::{Shared, SharedFile, SourceFile, lock, wait_for};
use crate::spool::{Spool, SpoolTask};
use anabranch_disk::folder::{at, shown};
use anabranch_pieces::{ByteRange, FileHash, GenerationHash};
use anabranch_pieces::{FileHasher, PieceHasher};
use anabranch_replicate_proto::control::FailureKind;
use anabranch_replicate_proto::pace::{Pace, cost};
use anabranch_replicate_proto::plan::Mode;
use anabranch_replicate_proto::site::{Site, Write};
use anabranch_units::Instant;
use bytes::{Bytes, BytesMut};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::SystemTime;
use tokio::sync::mpsc;

impl Shared {
    /// Reads the symbols of a generation from the source's file.
    pub(super) fn read_generation(&self, group: u16, generation: u64) -> Option<Vec<Bytes>> {
        let source = self.source.as_ref()?;
        let piece = lock(&self.site).work_map(group)?.piece(generation)?;
        let (streams, length) = self.cutting(group);
        // A file that changed since it was sent has no symbols any more.
        let bytes = match source {
            SourceFile::Directory(stream) => stream.read(piece),
            file => read_piece(file, piece),
        };
        Some(cut(bytes.ok()?.into(), streams, length))
    }

    /// Number of symbols of a piece of `group`, and their length if it is fixed.
    fn cutting(&self, group: u16) -> (usize, Option<usize>) {
        let g = &self.program.groups[usize::from(group)];
        let streams = if g.mode == Mode::Coded { usize::from(g.streams) } else { 1 };
        (streams, (g.flush > 0).then_some(self.program.symbol_bytes as usize))
    }

    /// Supplies a fill group for as long as it has work.
    pub(super) async fn supply_fill(self: &Arc<Self>, group: u16) {
        loop {
            let wanted = wait_for(&self.supply, || {
                let site = lock(&self.site);
                let over = !site.has_work(group);
                let wanted = site.wanted(group);
                (over || wanted.is_some()).then_some(wanted)
            });
            let Some(range) = wanted.await else { return };
            let shared = Arc::clone(self);
            let read =
                tokio::task::spawn_blocking(move || shared.source.as_ref().map(|s| read_piece(s, range)));
            let bytes = match read.await {
                Ok(Some(Ok(bytes))) => bytes,
                Ok(Some(Err(error))) => return self.fail(FailureKind::Unreadable, &error),
                // `Ok(None)`: the attempt has no source, so nothing is supplied. `Err`: the runtime
                // ends.
                Ok(None) | Err(_) => return,
            };
            let mut hasher = PieceHasher::new(range);
            hasher.update(&bytes);
            let hash = hasher.finish().expect("the whole piece was read").hash;
            // A confirmation may have arrived during the read, so the piece may no longer be
            // wanted.
            self.stir(|s| {
                if s.wanted(group) == Some(range) {
                    s.supply(group, vec![bytes.into()], hash);
                }
            });
        }
    }

    /// Time since the attempt began.
    pub(super) fn now(&self) -> Instant {
        Instant::from_std(self.begun.elapsed())
    }

    async fn sleep_until(&self, due: Instant) {
        let since = due.saturating_since(Instant::ZERO);
        tokio::time::sleep_until((self.begun + since.to_std()).into()).await;
    }

    /// Delivers timeouts to the state machine for as long as the source has work.
    pub(super) async fn keep_time(&self) {
        loop {
            let due = wait_for(&self.supply, || {
                let site = lock(&self.site);
                let over = (0..self.program.groups.len() as u16).all(|group| !site.has_work(group));
                if over { Some(None) } else { site.poll_timeout().map(Some) }
            });
            let Some(due) = due.await else { return };
            self.sleep_until(due).await;
            self.stir(|s| s.handle_timeout(self.now()));
        }
    }

    /// Supplies a group to its end, and reports the file's hash if the group covered the whole
    /// file.
    ///
    /// Errors: the file is unreadable, which was reported.
    pub(super) async fn supply_group(
        self: &Arc<Self>,
        group: u16,
        pace: &tokio::sync::Mutex<Option<Pace>>,
    ) -> Result<Option<FileHash>, ()> {
        let (pieces_out, mut pieces) = mpsc::channel(2);
        let program = &self.program;
        let map = lock(&self.site).work_map(group).cloned();
        let Some(map) = map else { return Ok(None) };
        let alone = program.groups.iter().filter(|g| g.fills.is_none()).count() == 1;
        let is_file = matches!(self.source, Some(SourceFile::File { .. }));
        // The snapshot's id stands for a directory's bytes.
        let whole = is_file
            && (alone && map.pieces() > 0 || program.length == 0)
            && (0..map.pieces()).filter_map(|i| map.piece(i)).map(ByteRange::len).sum::<u64>()
                == program.length;
        let length = program.length;
        let shared = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let source = shared.source.as_ref();
            source.map(|source| read_pieces(source, length, &map, whole, &pieces_out))
        });
        let (streams, fixed) = self.cutting(group);
        let mut hash = None;
        let mut over = false;
        while let Some(piece) = pieces.recv().await {
            let (bytes, generation_hash) = match piece {
                Ok(Piece::Data(bytes, generation_hash)) => (bytes, generation_hash),
                Ok(Piece::Whole(found)) => {
                    hash = Some(found);
                    continue;
                }
                Err(error) => {
                    self.fail(FailureKind::Unreadable, &error);
                    return Err(());
                }
            };
            if over {
                continue;
            }
            // The pace covers all groups, one read at a time.
            if let Some(pace) = &mut *pace.lock().await {
                self.sleep_until(pace.due()).await;
                pace.spend(self.now(), cost(program, group, bytes.len() as u64));
            }
            let mut symbols = Some(cut(bytes, streams, fixed));
            let supplied = wait_for(&self.supply, || {
                let site = lock(&self.site);
                if !site.has_work(group) {
                    return Some(false);
                }
                let open = site.wanted(group).is_some();
                drop(site);
                // A confirmation may have arrived in between, so the symbols may no longer be
                // wanted.
                let supply = |s: &mut Site<Bytes>| {
                    s.handle_timeout(self.now());
                    s.wanted(group)?;
                    s.supply(group, symbols.take()?, generation_hash);
                    Some(true)
                };
                if open { self.stir(supply) } else { None }
            });
            if !supplied.await {
                if !whole {
                    return Ok(None);
                }
                // The remainder is read for the file's hash only.
                over = true;
            }
        }
        Ok(hash)
    }
}

pub(super) fn write_file(
    shared: &Weak<Shared>,
    file: &SharedFile,
    mut writes: mpsc::UnboundedReceiver<Write<Bytes>>,
) {
    while let Some(write) = writes.blocking_recv() {
        let Some(shared) = shared.upgrade() else { return };
        if let Err(error) = lock(file).write(write.range, &write.parts, &write.piece) {
            return shared.fail(FailureKind::Unwritable, &error);
        }
        shared.stir(|s| s.handle_written(write.sink, write.range));
    }
}

pub(super) fn run_errands(
    shared: &Weak<Shared>,
    mut spool: Spool,
    mut errands: mpsc::UnboundedReceiver<SpoolTask>,
) {
    while let Some(errand) = errands.blocking_recv() {
        let Some(shared) = shared.upgrade() else { return };
        let done = match errand {
            SpoolTask::Store(store) => {
                spool.store(&store).map(|()| shared.stir(|s| s.handle_stored(store.flow)))
            }
            SpoolTask::Fetch(fetch) => {
                spool.fetch(fetch).map(|packet| shared.stir(|s| s.fetched(fetch, packet)))
            }
        };
        if let Err(error) = done {
            return shared.fail(FailureKind::Unwritable, &error);
        }
    }
}

fn begins_a_chunk(piece: ByteRange) -> bool {
    piece.start.is_multiple_of(blake3::CHUNK_LEN as u64)
}

/// Reads a piece of the source's bytes in full.
fn read_piece(source: &SourceFile, piece: ByteRange) -> io::Result<Vec<u8>> {
    match source {
        SourceFile::File { file, path } => read_piece_of(file, path, piece),
        // The controller learns of changed files from the next inventory.
        SourceFile::Directory(stream) => stream.read_settled(piece),
    }
}

fn read_piece_of(file: &File, path: &Path, piece: ByteRange) -> io::Result<Vec<u8>> {
    let length = piece.len() as usize;
    // Avoids zeroing the buffer, which `read_exact_at` would need.
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let from = piece.start + bytes.len() as u64;
        let read = match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut bytes), from) {
            Err(rustix::io::Errno::INTR) => continue,
            other => at(path, other)?,
        };
        if read == 0 {
            return at(path, Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Time of the last change of the source's file. A directory's files are checked as they are read.
///
/// Errors: the file has another length than when planned.
fn found(source: &SourceFile, length: u64) -> io::Result<Option<SystemTime>> {
    let SourceFile::File { file, path } = source else { return Ok(None) };
    let found = at(path, file.metadata())?;
    if found.len() != length {
        let (path, bytes) = (shown(path), found.len());
        return Err(io::Error::other(format!("{path}: is {bytes} bytes long, was {length} when planned")));
    }
    Ok(found.modified().ok())
}

enum Piece {
    Data(Bytes, GenerationHash),
    Whole(FileHash),
}

/// Reads and hashes a group's pieces in order; also hashes the whole file if the pieces cover it.
fn read_pieces(
    source: &SourceFile,
    length: u64,
    map: &anabranch_replicate_proto::work::WorkMap,
    whole: bool,
    out: &mpsc::Sender<io::Result<Piece>>,
) {
    let read = || {
        let before = found(source, length)?;
        // The pieces' hashes combine into the file's, unless a piece begins within a chunk or there
        // is only one piece.
        let in_tree = map.pieces() > 1 && (0..map.pieces()).filter_map(|i| map.piece(i)).all(begins_a_chunk);
        let (mut tree, mut hasher) = (FileHasher::new(length), blake3::Hasher::new());
        for piece in (0..map.pieces()).filter_map(|i| map.piece(i)) {
            let bytes = read_piece(source, piece)?;
            let mut piece_hasher = PieceHasher::new(piece);
            piece_hasher.update(&bytes);
            let hashed = piece_hasher.finish().expect("the piece's length was read");
            let hash = hashed.hash;
            if whole && in_tree {
                tree.insert(&hashed);
            } else if whole {
                hasher.update(&bytes);
            }
            if out.blocking_send(Ok(Piece::Data(bytes.into(), hash))).is_err() {
                return Ok(());
            }
        }
        let after = found(source, length)?;
        if let SourceFile::File { path, .. } = source
            && after != before
        {
            let reason = format!("{}: changed while it was read: send it again when it rests", shown(path));
            return Err(io::Error::other(reason));
        }
        if whole {
            let plain = || FileHash(*hasher.finalize().as_bytes());
            let _ = out.blocking_send(Ok(Piece::Whole(tree.finish().unwrap_or_else(plain))));
        }
        Ok(())
    };
    if let Err(error) = read() {
        let _ = out.blocking_send(Err(error));
    }
}

/// Cuts a piece into `streams` symbols of equal length, the last padded with zeros.
fn cut(bytes: Bytes, streams: usize, length: Option<usize>) -> Vec<Bytes> {
    let length = length.unwrap_or(bytes.len().div_ceil(streams));
    (0..streams)
        .map(|i| {
            let (start, end) = ((i * length).min(bytes.len()), ((i + 1) * length).min(bytes.len()));
            if end - start == length {
                return bytes.slice(start..end);
            }
            let mut padded = BytesMut::zeroed(length);
            padded[..end - start].copy_from_slice(&bytes[start..end]);
            padded.freeze()
        })
        .collect()
}
