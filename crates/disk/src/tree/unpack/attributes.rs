//! Attributes of new files, of directories and of symbolic links, with their metadata.
//!
//! Leaves out: attributes of existing files (`files`). Read [`Writing::wanted`] first.

use super::{Existing, Metadata, Stat, Wanted, Writing, shown_below, stat_of, timestamps};
use crate::tree::kind_of;
use anabranch_sets::Attributes;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

impl Writing<'_> {
    /// The metadata that an entry gets.
    ///
    /// Errors: the system's tables of accounts cannot be read.
    pub(super) fn wanted(&self, path: &[u8], source: Option<&Metadata>) -> io::Result<Wanted> {
        self.at(path, Wanted::of(source, self.from.metadata, &self.owners))
    }

    /// Sets the attributes and the metadata of a file that has no name yet.
    pub(super) fn set_new(
        &self,
        path: &[u8],
        file: &File,
        attributes: Attributes,
        wanted: &Wanted,
    ) -> io::Result<()> {
        let (mode, times) = (attributes.mode, timestamps(attributes.modified));
        if !wanted.is_none() {
            return self.at(path, wanted.set(file, mode, &times));
        }
        self.at(path, rustix::fs::fchmod(file, Mode::from_raw_mode(mode)))?;
        self.at(path, rustix::fs::futimens(file, &times))
    }

    /// Sets the attributes of a directory. One that belongs to another user keeps its mode and
    /// time, unless its metadata differs.
    pub(super) fn set_directory(
        &self,
        path: &[u8],
        directory: &OwnedFd,
        attributes: Attributes,
        wanted: &Wanted,
    ) -> io::Result<()> {
        let found = Stat::of(&self.at(path, stat_of(directory))?);
        let is_equal = Attributes { mode: found.mode, modified: found.modified } == attributes;
        let differs = self.at(path, wanted.differs(directory, &found))?;
        if is_equal && !differs {
            return Ok(());
        }
        let (mode, times) = (attributes.mode, timestamps(attributes.modified));
        if differs {
            return self.at(path, wanted.set(directory, mode, &times));
        }
        let set = rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))
            .and_then(|()| rustix::fs::futimens(directory, &times));
        match set {
            Err(errno @ (Errno::PERM | Errno::ACCESS)) => {
                let path = shown_below(self.root.path(), path);
                tracing::warn!("{path}: mode and time cannot be set: {errno}");
                Ok(())
            }
            other => self.at(path, other),
        }
    }

    /// Gives a symbolic link its owner, unless it has it.
    pub(super) fn give_link(
        &self,
        path: &[u8],
        (directory, name): (&OwnedFd, &OsStr),
        existing: Existing,
        metadata: Option<&Metadata>,
    ) -> io::Result<()> {
        let wanted = self.wanted(path, metadata)?;
        let Existing::Is(stat, FileType::Symlink) = existing else { return Ok(()) };
        if !wanted.has_other_owner(&stat) {
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = self.at(path, rustix::fs::openat(directory, name, flags, Mode::empty()))?;
        // Another kind of entry may have its name by now.
        if kind_of(&self.at(path, stat_of(&link))?) != FileType::Symlink {
            return Ok(());
        }
        self.at(path, wanted.set_owner(&link))
    }
}
