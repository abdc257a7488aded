//! Record of transfers: the contents and attributes that they gave to entries.
//!
//! An entry whose content no transfer gave is another program's. A transfer that was broken off may
//! have written entries before the record had them: its manifest lies beside the directory.
//!
//! Leaves out: the store ([`Index`](crate::tree::index::Index)). Read [`Writing::is_as_sent`]
//! first.

use super::{BATCH_SENT, HeadError, Manifest, Sent, Stat, Writing, target_hash};
use anabranch_pieces::FileHash;
use anabranch_sets::{Attributes, Change, FileTime};
use rustix::fd::OwnedFd;
use std::io;

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

    /// Content and attributes that a broken-off transfer gave to a file, if the file has them. The
    /// record may lack them.
    pub(super) fn broken_off_sent(&self, path: &[u8], stat: &Stat, content: FileHash) -> Option<Sent> {
        let (manifest, origin) = self.from.broken_off?;
        let file = manifest.file(path).filter(|file| file.content == content)?;
        let attributes = Attributes { mode: file.mode, modified: file.modified };
        let is_as_given = attributes == (Attributes { mode: stat.mode, modified: stat.modified });
        is_as_given.then_some(Sent { origin, content, attributes })
    }

    /// Notes for the record what a broken-off transfer wrote to entries that the new manifest
    /// lacks. They stay here, and a later transfer must not take them for another program's.
    pub(super) fn note_broken_off(&mut self) -> io::Result<()> {
        let (Some((manifest, origin)), Some(before)) = (self.from.broken_off, self.from.before) else {
            return Ok(());
        };
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, HeadError::Node(error));
        let mut changes = manifest.entries();
        while let Some(change) = changes.poll().map_err(invalid)? {
            let Change::Added { path, .. } = change else { continue };
            let (here, new) = (before.manifest(), self.from.manifest);
            if new.file(&path).is_some() || new.target(&path).is_some() {
                continue;
            }
            let sent = match (manifest.file(&path), manifest.target(&path)) {
                (Some(file), _) if here.file(&path).is_some_and(|found| found.content == file.content) => {
                    let attributes = Attributes { mode: file.mode, modified: file.modified };
                    Sent { origin, content: file.content, attributes }
                }
                (None, Some(target)) if here.target(&path) == Some(target) => {
                    let modified = FileTime::new(0, 0).expect("below a second");
                    let attributes = Attributes { mode: 0, modified };
                    Sent { origin, content: target_hash(target), attributes }
                }
                _ => continue,
            };
            let recorded = self.recorded(&path)?;
            if recorded.is_none_or(|recorded| recorded.content != sent.content) {
                self.note_change(&path, recorded, sent);
            }
            if self.sent.len() >= BATCH_SENT {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Notes for the record what this transfer writes to an entry.
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
