//! Directories of a site: streams at a source, and at a destination what it has of a stream.
//!
//! A directory's index and the manifest of its last transfer lie beside it, under working names.
//! One scan runs at a time.
//!
//! Leaves out: the stream and the writing of a directory (`disk::tree`). Read [`Directories`] first.

use super::{Service, lock};
use anabranch_disk::folder::{Folder, Name};
use anabranch_disk::partial::FinishError;
use anabranch_disk::tree::Tree;
use anabranch_disk::tree::index::Index;
use anabranch_disk::tree::stream::{Manifest, TreeStream, head_bytes};
use anabranch_disk::tree::unpack::{UnpackError, Unpacked, Unpacker};
use anabranch_pieces::{ByteRange, FileHash, RangeSet};
use anabranch_replicate_proto::control::{Finish, Report, Run, Submitter, TransferId};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Maximum number of scanned directories that are kept for their transfers. The oldest is dropped
/// first, and scanned again when it is needed.
const KEPT_MAX: usize = 16;
/// Conflicts that are named in a message.
const CONFLICTS_NAMED: usize = 3;

/// Parts of a directory's stream that a destination already has.
#[derive(Debug, Default)]
struct Sink {
    /// The directory when the transfer asked first; `None` if it did not exist.
    before: Option<Arc<TreeStream>>,
    /// Contents of the stream that the directory has, each with a file that has it.
    local: Vec<(ByteRange, usize)>,
}

/// Scanned directories of the transfers under way.
#[derive(Debug, Default)]
pub(super) struct Directories {
    sources: Mutex<BTreeMap<(TransferId, Name), Arc<TreeStream>>>,
    sinks: Mutex<BTreeMap<(TransferId, Name), Arc<Sink>>>,
    scanning: Mutex<()>,
}

/// Adds an entry, and drops the oldest one above [`KEPT_MAX`].
fn keep<T>(kept: &Mutex<BTreeMap<(TransferId, Name), T>>, key: (TransferId, Name), value: T) {
    let mut kept = lock(kept);
    kept.insert(key, value);
    if kept.len() > KEPT_MAX {
        kept.pop_first();
    }
}

/// A source's answer about a directory.
pub(super) fn source_inventory(run: Run, manifest: &Manifest) -> Report {
    Report::Inventory {
        run,
        length: Some(manifest.length_bytes()),
        have: Vec::new(),
        hash: Some(FileHash(manifest.id().0)),
        attributes: None,
        head_bytes: Some(manifest.head_bytes()),
    }
}

impl Directories {
    /// Scans a directory with its index.
    ///
    /// Errors: the system's; an entry that cannot be read, with its path.
    fn scan(&self, folder: &Folder, name: &Name) -> io::Result<TreeStream> {
        let tree = Tree::below(folder, Path::new(name.as_str()))?;
        let root = tree.root()?.expect("a directory has a root");
        // The index is open in one scan at a time.
        let _alone = lock(&self.scanning);
        let index = folder.beside(name, "index").and_then(|path| Index::open(&path, &root));
        let index = index.inspect_err(|error| tracing::warn!("every file is read: {error}")).ok();
        TreeStream::scan(&tree, index.as_ref())
    }

    /// The stream of a source's directory, as its transfer found it first.
    ///
    /// Errors: see [`TreeStream::scan`].
    pub(super) fn source(
        &self,
        folder: &Folder,
        name: &Name,
        transfer: TransferId,
    ) -> io::Result<Arc<TreeStream>> {
        let key = (transfer, name.clone());
        if let Some(known) = lock(&self.sources).get(&key) {
            return Ok(Arc::clone(known));
        }
        let stream = Arc::new(self.scan(folder, name)?);
        keep(&self.sources, key, Arc::clone(&stream));
        Ok(stream)
    }

    /// The ranges that have arrived, and the ones that the destination's directory has.
    pub(super) fn with_local(&self, transfer: TransferId, name: &Name, arrived: RangeSet) -> RangeSet {
        let Some(sink) = lock(&self.sinks).get(&(transfer, name.clone())).cloned() else { return arrived };
        let local = sink.local.iter().map(|(range, _)| *range);
        RangeSet::from_ranges(arrived.ranges().iter().copied().chain(local))
    }

    /// Drops what belongs to an ended transfer.
    pub(super) fn forget(&self, transfer: TransferId) {
        lock(&self.sources).retain(|(of, _), _| *of != transfer);
        lock(&self.sinks).retain(|(of, _), _| *of != transfer);
    }
}

impl Service {
    /// A destination's answer about a directory.
    pub(super) fn inquire_directory(
        &self,
        run: Run,
        name: &Name,
        submitter: Submitter,
    ) -> io::Result<Report> {
        self.allow(name, submitter)?;
        let folder = &self.config.folder;
        let key = (run.transfer, name.clone());
        let known = lock(&self.directories.sinks).get(&key).cloned();
        let before = match known {
            Some(sink) => sink.before.clone(),
            None => match self.directories.scan(folder, name) {
                Ok(found) => Some(Arc::new(found)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        };
        let arrived = match self.existing(name)? {
            None => RangeSet::default(),
            Some(file) => {
                let file = lock(&file);
                let whole_head = |bytes: u64| file.have().contains(ByteRange { start: 0, end: bytes });
                let has_head = head_bytes(file.data())?.is_some_and(whole_head);
                let local = match &before {
                    Some(before) if has_head => match Manifest::read_from(file.data()) {
                        Ok(manifest) => before.contents_of(&manifest),
                        // Of an earlier transfer, or damaged: it is sent again.
                        Err(error) => {
                            tracing::warn!("{name}: {error}");
                            Vec::new()
                        }
                    },
                    _ => Vec::new(),
                };
                let have = file.have().clone();
                drop(file);
                let sink = Sink { before: before.clone(), local };
                keep(&self.directories.sinks, key.clone(), Arc::new(sink));
                self.directories.with_local(run.transfer, name, have)
            }
        };
        if lock(&self.directories.sinks).get(&key).is_none() {
            keep(&self.directories.sinks, key, Arc::new(Sink { before: before.clone(), local: Vec::new() }));
        }
        let found = before.as_ref().map(|before| before.manifest());
        Ok(Report::Inventory {
            run,
            length: found.map(Manifest::length_bytes),
            have: arrived.ranges().to_vec(),
            hash: found.map(|found| FileHash(found.id().0)),
            attributes: None,
            head_bytes: None,
        })
    }

    /// Writes a directory from its stream.
    pub(super) fn finish_directory(&self, file: &Finish) -> io::Result<Report> {
        let Finish { run, length, hash, .. } = *file;
        let folder = &self.config.folder;
        let name = self.name(&file.path)?;
        let Some(partial) = self.existing(&name)? else {
            // The directory was written before, and the answer was lost.
            let is_there = match self.directories.scan(folder, &name) {
                Ok(found) => found.manifest().id().0 == hash.0,
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                Err(error) => return Err(error),
            };
            let missing = Report::SinkDone { run, have: Vec::new() };
            return Ok(if is_there { Report::Completed { run } } else { missing });
        };
        let sink =
            lock(&self.directories.sinks).get(&(run.transfer, name.clone())).cloned().unwrap_or_default();
        let path = folder.path_of(&name);
        let last_path = folder.beside(&name, "sent")?;
        let mut partial = lock(&partial);
        let written = partial.finish_directory(length, |stream| {
            let manifest = match Manifest::read_from(stream) {
                Ok(manifest) if manifest.id().0 == hash.0 => manifest,
                Ok(_) => return Err(UnpackError::Corrupt),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!("{name}: {error}");
                    return Err(UnpackError::Corrupt);
                }
                Err(error) => return Err(error.into()),
            };
            let last = Manifest::load(&last_path)?;
            let unpacker = Unpacker {
                stream,
                manifest: &manifest,
                before: sink.before.as_deref(),
                last: last.as_ref(),
                replace: file.replace,
            };
            let done = unpacker.run(folder.make_folder(&name)?, &path, &sink.local)?;
            manifest.save(&last_path)?;
            Ok(done)
        });
        drop(partial);
        match written {
            Ok(Unpacked { files, bytes, conflicts, conflict_paths }) => {
                lock(&self.files).remove(&name);
                self.directories.forget(run.transfer);
                self.config.metrics.note_file(run.transfer, length);
                let transfer = run.transfer.0;
                tracing::info!(transfer, files, bytes, conflicts, "{name}/ is here, verified");
                if conflicts == 0 {
                    return Ok(Report::Completed { run });
                }
                let named =
                    conflict_paths.iter().take(CONFLICTS_NAMED).cloned().collect::<Vec<_>>().join(", ");
                let more = conflicts.saturating_sub(CONFLICTS_NAMED as u64);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let reason = format!(
                    "{named}{more}: changed here by another program, and left; the rest is written: --replace replaces"
                );
                Err(io::Error::new(io::ErrorKind::AlreadyExists, reason))
            }
            Err(FinishError::Mismatch { have }) => {
                // A file that was there may have changed: the next inquiry looks again.
                self.directories.forget(run.transfer);
                Ok(Report::SinkDone { run, have })
            }
            Err(FinishError::Io(error)) => Err(error),
        }
    }
}
