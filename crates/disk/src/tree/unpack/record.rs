//! Record of transfers: the contents and attributes that they gave to entries.
//!
//! An entry whose content no transfer gave is another program's. A transfer that was broken off may
//! have written entries before the record had them: its manifest lies beside the directory.
//!
//! Leaves out: the store ([`Index`](crate::tree::index::Index)). Read [`Writing::is_as_sent`]
//! first.

use super::{BATCH_SENT, HeadError, Index, Manifest, Origin, Sent, Stat, Writing, target_hash};
use anabranch_pieces::FileHash;
use anabranch_sets::{Attributes, Change, Kind};
use rustix::fd::OwnedFd;
use std::io;

/// Notes for the record the files and links of a broken-off transfer's manifest that the directory
/// has, by its scan `here`. A later transfer must not take them for another program's, and a mode
/// that the transfer gave follows the source.
///
/// Errors: the record cannot be read or written.
pub fn note_broken_off(
    record: &Index,
    (manifest, origin): (&Manifest, Origin),
    here: &Manifest,
) -> io::Result<()> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, HeadError::Node(error));
    let (mut changes, mut batch) = (manifest.entries(), Vec::new());
    while let Some(change) = changes.poll().map_err(invalid)? {
        let Change::Added { path, entry } = change else { continue };
        let sent = match (manifest.file(&path), &entry.kind) {
            (Some(file), _) if here.file(&path).is_some_and(|found| found.is_equal(file)) => {
                let attributes = Attributes { mode: file.mode, modified: file.modified };
                Sent { origin, content: file.content, attributes }
            }
            (None, Kind::SymbolicLink { modified, target })
                if here.target(&path) == Some(target.as_bytes()) =>
            {
                let attributes = Attributes { mode: 0, modified: *modified };
                Sent { origin, content: target_hash(target.as_bytes()), attributes }
            }
            _ => continue,
        };
        let recorded = record.sent(&path)?;
        // If another source wrote the same content earlier, that source stays recorded.
        let writer = recorded.filter(|recorded| recorded.content == sent.content);
        let sent = Sent { origin: writer.map_or(origin, |writer| writer.origin), ..sent };
        if recorded != Some(sent) {
            batch.push((path, sent));
        }
        if batch.len() >= BATCH_SENT {
            record.note_sent(&batch)?;
            batch.clear();
        }
    }
    if batch.is_empty() { Ok(()) } else { record.note_sent(&batch) }
}

impl Writing<'_> {
    pub(super) fn recorded(&self, path: &[u8]) -> io::Result<Option<Sent>> {
        self.from.record.map_or(Ok(None), |record| record.sent(path))
    }

    /// The manifests whose contents this or a broken-off transfer gives to entries.
    fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.from.broken_off.map(|(manifest, _)| manifest).into_iter().chain([self.from.manifest])
    }

    /// Returns true if the file has the content that a transfer gave it, or is to give it.
    pub(super) fn is_as_sent(&self, path: &[u8], stat: &Stat) -> io::Result<bool> {
        let Some(content) = self.content_before(path, stat) else { return Ok(false) };
        let manifests = self.manifests();
        let is_in_one = manifests.filter_map(|m| m.file(path)).any(|file| file.content == content);
        Ok(is_in_one || self.recorded(path)?.is_some_and(|sent| sent.content == content))
    }

    /// Returns true if the symbolic link has the target that a transfer gave it, or is to give it.
    pub(super) fn is_link_as_sent(&self, path: &[u8], directory: &OwnedFd) -> io::Result<bool> {
        let found = self.target(path, directory)?;
        let mut manifests = self.manifests();
        let is_in_one = manifests.any(|manifest| manifest.target(path) == Some(found.as_bytes()));
        Ok(is_in_one
            || self.recorded(path)?.is_some_and(|sent| sent.content == target_hash(found.as_bytes())))
    }

    /// Notes for the record the content that this transfer writes to an entry.
    pub(super) fn note(&mut self, path: &[u8], content: FileHash, attributes: Attributes) -> io::Result<()> {
        let sent = Sent { origin: self.from.origin, content, attributes };
        let recorded = self.recorded(path)?;
        self.note_change(path, recorded, sent);
        Ok(())
    }

    /// Notes for the record an entry that has its content already. The source that wrote this
    /// content keeps it.
    pub(super) fn note_kept(
        &mut self,
        path: &[u8],
        recorded: Option<Sent>,
        content: FileHash,
        attributes: Attributes,
    ) {
        let writer = recorded.filter(|sent| sent.content == content);
        let origin = writer.map_or(self.from.origin, |sent| sent.origin);
        self.note_change(path, recorded, Sent { origin, content, attributes });
    }

    fn note_change(&mut self, path: &[u8], recorded: Option<Sent>, sent: Sent) {
        if self.from.record.is_some() && recorded != Some(sent) {
            self.sent.push((path.to_vec(), sent));
        }
    }
}
