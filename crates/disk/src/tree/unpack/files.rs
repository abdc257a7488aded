//! Contents and attributes of single files.
//!
//! A file that two directories share is never changed: a copy of it gets the new attributes.

use super::{
    Existing, HOLE_BYTES, Retimed, Sent, Stat, Step, Wanted, Writing, name_of, named_working, shown_below,
    stat_of, timestamps,
};
use crate::folder::{OpenError, remove};
use crate::tree::kind_of;
use anabranch_pieces::{self as pieces, ByteRange, FileHash};
use anabranch_sets::Attributes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;

/// The attributes to set on an existing file with the right content; `None` if it has them, or if
/// only the destination changed them. Without an earlier transfer, other users gain no rights.
///
/// If the transfer takes access lists, mode and time follow the source: the bits of the group in
/// the mode of a file are the mask of its access list.
pub(super) fn kept_attributes(
    stat: &Stat,
    recorded: Option<Sent>,
    attributes: Attributes,
    wanted: &Wanted,
) -> Option<Attributes> {
    let mode = match recorded {
        _ if wanted.xattrs.is_some() => attributes.mode,
        Some(sent) if sent.attributes == attributes => return None,
        Some(_) => attributes.mode,
        None => pieces::Attributes::narrowed(stat.mode, attributes.mode),
    };
    let attributes = Attributes { mode, ..attributes };
    let found = Attributes { mode: stat.mode, modified: stat.modified };
    (found != attributes).then_some(attributes)
}

impl Writing<'_> {
    /// Makes a working file, in place of one that a killed process left.
    pub(super) fn new_file(&self, path: &[u8], directory: &OwnedFd, working: &OsStr) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(directory, working, flags, Mode::RUSR | Mode::WUSR);
        let opened = match open() {
            Err(Errno::EXIST) => {
                self.at(path, remove(directory, working))?;
                open()
            }
            other => other,
        };
        Ok(self.at(path, opened)?.into())
    }

    /// Replaces an existing file by a copy with other attributes: the other names of the file keep
    /// theirs. The copy keeps the metadata that the transfer does not take, and the owner only as
    /// far as this process may give files away.
    ///
    /// Returns false for a file that no longer has the content; it counts as a conflict.
    pub(super) fn copy_existing(
        &mut self,
        path: &[u8],
        directory: &Rc<OwnedFd>,
        existing: Existing,
        (attributes, content, wanted): (Attributes, FileHash, &Wanted),
    ) -> io::Result<bool> {
        let name = OsStr::from_bytes(name_of(path));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let source = self.at(path, rustix::fs::openat(&**directory, name, flags, Mode::empty()))?;
        let found = self.at(path, stat_of(&source))?;
        if kind_of(&found) != FileType::RegularFile {
            return self.at(path, Err(OpenError::Special.at(Path::new(name))));
        }
        let range = ByteRange { start: 0, end: found.stx_size };
        let working = named_working(name.as_bytes());
        let file = self.new_file(path, directory, &working)?;
        let source = File::from(source);
        let copied = self.copy((&source, range), &file);
        if self.at(path, copied)? != content {
            self.at(path, remove(directory, &working))?;
            self.conflict(path);
            return Ok(false);
        }
        self.at(path, wanted.keep_xattrs(&source, &file))?;
        self.set_new(path, &file, attributes, wanted)?;
        self.at(path, wanted.keep_owner(&Stat::of(&found), &file))?;
        self.batch_bytes += range.len();
        let (path, directory) = (path.to_vec(), Rc::clone(directory));
        self.steps.push(Step::Rename { path, directory, working, existing });
        Ok(true)
    }

    /// Copies a range of `source` to a new file, and returns the hash of the bytes. Blocks of zeros
    /// stay holes.
    pub(super) fn copy(&mut self, (source, range): (&File, ByteRange), file: &File) -> io::Result<FileHash> {
        let mut hasher = blake3::Hasher::new();
        let (mut offset, mut written_to) = (0, 0);
        while offset < range.len() {
            let take = self.buffer.len().min((range.len() - offset) as usize);
            let bytes = &mut self.buffer[..take];
            source.read_exact_at(bytes, range.start + offset)?;
            hasher.update(bytes);
            if take < HOLE_BYTES || bytes.iter().any(|byte| *byte != 0) {
                file.write_all_at(bytes, offset)?;
                written_to = offset + take as u64;
            }
            offset += take as u64;
        }
        if written_to < range.len() {
            file.set_len(range.len())?;
        }
        Ok(FileHash(*hasher.finalize().as_bytes()))
    }

    /// Logs that the mode and the time of a file of another user stay, unless a change `is_needed`
    /// because of the source.
    pub(super) fn warn_or_fail(&self, path: &[u8], set: io::Result<()>, is_needed: bool) -> io::Result<()> {
        match set {
            Err(error) if !is_needed && error.kind() == io::ErrorKind::PermissionDenied => {
                let path = shown_below(self.root.path(), path);
                tracing::warn!("{path}: mode and time cannot be set: {error}");
                Ok(())
            }
            other => other,
        }
    }

    /// Sets the mode, the time and the metadata of an existing file.
    pub(super) fn set_attributes(
        &mut self,
        path: &[u8],
        directory: &OwnedFd,
        stat: &Stat,
        (attributes, wanted): (Attributes, &Wanted),
    ) -> io::Result<()> {
        if stat.links > 1 {
            let retimed = Retimed { before: self.earlier_time(stat), set: attributes.modified };
            self.earlier_times.insert((stat.device, stat.inode), retimed);
        }
        let name = OsStr::from_bytes(name_of(path));
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = self.at(path, rustix::fs::openat(directory, name, flags, Mode::empty()))?;
        let opened = self.at(path, stat_of(&found))?;
        if kind_of(&opened) != FileType::RegularFile {
            return self.at(path, Err(OpenError::Special.at(Path::new(name))));
        }
        if !wanted.is_none() {
            // By now the name may lead to any file that another user has linked there.
            let opened = Stat::of(&opened);
            if (opened.inode, opened.device) != (stat.inode, stat.device) {
                return self.at(path, Err(io::Error::other("another program replaced it: send it again")));
            }
            let times = timestamps(attributes.modified);
            return self.at(path, wanted.set(&found, attributes.mode, &times));
        }
        // A descriptor of this kind cannot be changed, but its name in /proc can, without a race.
        let real = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
        let mode = Mode::from_raw_mode(attributes.mode);
        self.at(path, rustix::fs::chmod(real.as_str(), mode))?;
        let times = timestamps(attributes.modified);
        self.at(path, rustix::fs::utimensat(rustix::fs::CWD, real.as_str(), &times, AtFlags::empty()))
    }
}
