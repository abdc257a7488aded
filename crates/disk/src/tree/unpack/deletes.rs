//! Deletes entries that the source lacks, after all contents are in place.
//!
//! The list comes from two manifests ([`Surplus`]). A file or a link goes only if it is as the scan
//! found it, and if a transfer from the same source wrote it or `replace` is set. A directory goes
//! only if a transfer from the same source made it, or if entries in it went. Any other entry is a
//! conflict. Each step starts from a directory's descriptor, follows no link, and enters no other
//! file system.
//!
//! Leaves out: the limit of deletes ([`Surplus::check`]). Read [`Writing::delete`] first.

use super::{
    BATCH_SENT, DIRECTORY, Existing, Manifest, Sent, Wanted, Writing, look, make_writable, name_of, secrets,
    stat_of, target_hash,
};
use crate::folder::remove;
use crate::tree::{Stat, parent_of, shown_below};
use anabranch_sets::deletes::{Surplus, SurplusEntry};
use anabranch_sets::{Attributes, Kind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// State of the deletes.
#[derive(Default)]
struct Deleting {
    /// The directory of the last entry.
    open: Option<(Vec<u8>, OwnedFd)>,
    /// Attributes of directories before their entries were deleted.
    attributes: BTreeMap<Vec<u8>, Attributes>,
    /// Deleted entries that are still in the record.
    gone: Vec<Vec<u8>>,
    /// Directories in which an entry was deleted.
    thinned: BTreeSet<Vec<u8>>,
    /// Directories in which an entry stayed.
    kept: BTreeSet<Vec<u8>>,
}

/// Result of deleting an entry.
enum Deleted {
    /// The entry was deleted.
    Yes,
    /// The entry did not exist.
    Before,
    /// The entry is a directory that is not empty.
    No,
    /// Another program changed the entry.
    Conflict,
}

/// Returns true if the directory finds an entry by another spelling of its name. The entry may then
/// be one that the source has.
fn ignores_case(directory: &OwnedFd, name: &OsStr, stat: &Stat) -> Result<bool, Errno> {
    let swap = |byte: &u8| match byte {
        byte if byte.is_ascii_lowercase() => byte.to_ascii_uppercase(),
        byte => byte.to_ascii_lowercase(),
    };
    let swapped: Vec<u8> = name.as_bytes().iter().map(swap).collect();
    if swapped == name.as_bytes() {
        return Ok(false);
    }
    Ok(match look(directory, OsStr::from_bytes(&swapped))? {
        Existing::Is(found, _) => (found.inode, found.device) == (stat.inode, stat.device),
        Existing::Nothing => false,
    })
}

impl Writing<'_> {
    /// Returns true if an existing directory was empty and gave way to another kind of entry, which
    /// happens only in a transfer that deletes.
    pub(super) fn gives_way(
        &self,
        path: &[u8],
        directory: &OwnedFd,
        existing: &Existing,
    ) -> io::Result<bool> {
        let is_directory = matches!(existing, Existing::Is(_, FileType::Directory));
        if !is_directory || !self.from.deletes.is_some_and(|surplus| surplus.is_replaced(path)) {
            return Ok(false);
        }
        if !self.may_remove(path, false)? {
            return Ok(false);
        }
        match rustix::fs::unlinkat(directory, OsStr::from_bytes(name_of(path)), AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY | Errno::NOTDIR | Errno::NOENT) => Ok(false),
            Err(errno) => self.at(path, Err(errno)),
        }
    }

    /// Deletes the entries of `surplus`, or moves them to the backup. Directories that are not
    /// empty stay. If `to_empty` has directories, only the entries in them are deleted.
    ///
    /// Errors: the system's. Entries after the error stay.
    pub(super) fn delete(&mut self, surplus: &Surplus) -> io::Result<()> {
        let mut deleting = Deleting::default();
        let to_empty = std::mem::take(&mut self.to_empty);
        let is_in =
            |path: &[u8], above: &[u8]| path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"));
        let now = |entry: &&SurplusEntry| {
            to_empty.is_empty() || to_empty.iter().any(|above| is_in(&entry.path, above))
        };
        let deleted = surplus.entries().iter().filter(now).try_for_each(|entry| {
            let deleted = self.delete_entry(entry, &mut deleting)?;
            match deleted {
                Deleted::Yes => {
                    self.done.deleted += 1;
                    deleting.gone.push(entry.path.clone());
                    deleting.thinned.insert(parent_of(&entry.path).to_vec());
                }
                Deleted::Before => {}
                Deleted::No => drop(deleting.kept.insert(parent_of(&entry.path).to_vec())),
                Deleted::Conflict => {
                    deleting.kept.insert(parent_of(&entry.path).to_vec());
                    self.conflict(&entry.path);
                }
            }
            if deleting.gone.len() >= BATCH_SENT { self.forget(&mut deleting) } else { Ok(()) }
        });
        let forgotten = self.forget(&mut deleting);
        // A directory is restored before its parent directory.
        for (path, attributes) in deleting.attributes.iter().rev() {
            match self.directory_below(path) {
                Ok(directory) => self.set_directory(path, &directory, *attributes, &Wanted::default())?,
                // The directory was deleted, or replaced by another program.
                Err(Errno::NOENT | Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => {}
                Err(errno) => return self.at(path, Err(errno)),
            }
        }
        forgotten?;
        deleted
    }

    /// Removes deleted entries from the record, once the deletes are on disk: an entry that comes
    /// back after a loss of power is in the record then.
    fn forget(&self, deleting: &mut Deleting) -> io::Result<()> {
        if deleting.gone.is_empty() {
            return Ok(());
        }
        self.at(b"", rustix::fs::syncfs(&self.top))?;
        if let Some(record) = self.from.record {
            record.forget_sent(&deleting.gone)?;
        }
        deleting.gone.clear();
        Ok(())
    }

    /// Opens a directory of the destination; an empty path is its root.
    fn directory_below(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(&self.top, OsStr::from_bytes(path), flags, Mode::empty(), resolve)
    }

    /// Opens the directory of an entry for deletes in it.
    fn open_parent<'d>(&self, path: &[u8], deleting: &'d mut Deleting) -> Result<&'d OwnedFd, Errno> {
        let parent = parent_of(path);
        if deleting.open.as_ref().is_none_or(|(open, _)| open != parent) {
            let opened = self.directory_below(parent)?;
            let stat = Stat::of(&stat_of(&opened)?);
            let before = Attributes { mode: stat.mode, modified: stat.modified };
            deleting.attributes.entry(parent.to_vec()).or_insert(before);
            make_writable(&opened, Ok(stat))?;
            deleting.open = Some((parent.to_vec(), opened));
        }
        let (_, opened) = deleting.open.as_ref().expect("opened above");
        Ok(opened)
    }

    fn delete_entry(&self, entry: &SurplusEntry, deleting: &mut Deleting) -> io::Result<Deleted> {
        let path = &*entry.path;
        let name = OsStr::from_bytes(name_of(path));
        let (is_thinned, is_kept) = (deleting.thinned.contains(path), deleting.kept.contains(path));
        let directory = match self.open_parent(path, deleting) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Deleted::Before),
            // A link, another file system, or another kind of entry is in its way now.
            Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => return Ok(Deleted::Conflict),
            Err(errno) => return self.at(path, Err(errno)),
        };
        let (stat, kind) = match self.at(path, look(directory, name))? {
            Existing::Is(stat, kind) => (stat, kind),
            Existing::Nothing => return Ok(Deleted::Before),
        };
        if self.at(path, ignores_case(directory, name, &stat))? {
            return Ok(Deleted::Conflict);
        }
        if let (Kind::Directory { .. }, FileType::Directory) = (&entry.kind, kind) {
            // Only the conflict is named, and not the directories around the conflict.
            if is_kept {
                return Ok(Deleted::No);
            }
            if !self.may_remove(path, is_thinned)? {
                return Ok(Deleted::Conflict);
            }
            return match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
                Ok(()) => Ok(Deleted::Yes),
                Err(Errno::NOENT) => Ok(Deleted::Before),
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => Ok(Deleted::No),
                Err(Errno::NOTDIR | Errno::PERM | Errno::ACCESS) => Ok(Deleted::Conflict),
                Err(errno) => self.at(path, Err(errno)),
            };
        }
        if !self.may_delete(entry, directory, (&stat, kind))? {
            return Ok(Deleted::Conflict);
        }
        match self.from.backup {
            Some(backup) => self.at(path, backup.take(directory, name, path))?,
            None => match remove(directory, name) {
                // The entry is immutable, a mount point, or in another user's directory.
                Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::BUSY)) => {
                    tracing::warn!("{}: cannot be deleted: {errno}", shown_below(self.root.path(), path));
                    return Ok(Deleted::Conflict);
                }
                removed => self.at(path, removed)?,
            },
        }
        Ok(Deleted::Yes)
    }

    /// Returns true if a transfer from this source made a directory, or wrote an entry that was
    /// deleted in it. With `replace`, any transfer or program may have made it.
    fn may_remove(&self, path: &[u8], is_thinned: bool) -> io::Result<bool> {
        let is_own = || self.is_from_this_source(path, |sent| sent.content == DIRECTORY, |_| false);
        Ok(is_thinned || self.from.replace || is_own()?)
    }

    /// Returns true if a file or a link is as the scan found it, and a transfer from this source
    /// wrote it. With `replace`, any transfer or program may have written it.
    fn may_delete(
        &self,
        entry: &SurplusEntry,
        directory: &OwnedFd,
        (stat, kind): (&Stat, FileType),
    ) -> io::Result<bool> {
        let path = &*entry.path;
        let is_own = match (&entry.kind, kind) {
            (Kind::File { .. } | Kind::HardLink { .. }, FileType::RegularFile) => {
                let Some(content) = self.content_before(path, stat) else { return Ok(false) };
                let modified = [stat.modified, self.earlier_time(stat)];
                let writes = |manifest: &Manifest| {
                    let file = manifest.file(path);
                    file.is_some_and(|file| file.content == content && modified.contains(&file.modified))
                };
                let is_as_noted =
                    |sent: &Sent| sent.content == content && modified.contains(&sent.attributes.modified);
                self.is_from_this_source(path, is_as_noted, writes)?
            }
            (Kind::SymbolicLink { target, .. }, FileType::Symlink) => {
                let found = self.target(path, directory)?;
                if found.as_bytes() != target.as_bytes() {
                    return Ok(false);
                }
                let writes = |manifest: &Manifest| manifest.target(path) == Some(found.as_bytes());
                let hash = target_hash(found.as_bytes());
                self.is_from_this_source(path, |sent| sent.content == hash, writes)?
            }
            _ => return Ok(false),
        };
        let is_secret = secrets::replaced_at(&self.root, Path::new(OsStr::from_bytes(path))).is_some();
        Ok((is_own || self.from.replace) && !is_secret)
    }

    /// Returns true if a transfer from this source gave an entry its present content, also if the
    /// transfer was broken off before the record had it.
    fn is_from_this_source(
        &self,
        path: &[u8],
        is_as_noted: impl Fn(&Sent) -> bool,
        writes: impl Fn(&Manifest) -> bool,
    ) -> io::Result<bool> {
        let origin = self.from.origin;
        match self.recorded(path)? {
            // Another source wrote the entry.
            Some(sent) if !sent.origin.is(origin) => return Ok(false),
            Some(sent) if is_as_noted(&sent) => return Ok(true),
            _ => {}
        }
        Ok(self.from.broken_off.is_some_and(|(manifest, of)| of.is(origin) && writes(manifest)))
    }
}

#[cfg(test)]
mod tests;
