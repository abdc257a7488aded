//! The folder that a server serves: its files by name, and nothing outside it.

use anabranch_disk::folder::{Folder, Links, OpenError};
use anabranch_disk::partial::attributes;
use anabranch_gather_proto::msg::{NAME_BYTES_MAX, ObjectDescription, SHORT_BYTES_MAX};
use anabranch_pieces::name::is_reserved;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

/// A served folder.
pub struct Files {
    folder: Folder,
}

/// An open file, and its state at the time of opening.
pub struct OpenFile {
    pub file: File,
    /// Description for clients, without the hash.
    pub found: ObjectDescription,
    /// Identity and version of the file. The state differs for another file, and after each write.
    pub state: FileState,
}

/// Identity and version of a file: device, inode, length, and the times of the last change of the
/// content and of the inode, in nanoseconds since 1970.
pub type FileState = [i128; 5];

/// Current description and state of `file`.
///
/// Errors: errors of the system.
pub fn state(file: &File) -> io::Result<(ObjectDescription, FileState)> {
    let found = file.metadata()?;
    let time = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    let modified = time(found.mtime(), found.mtime_nsec());
    let changed = time(found.ctime(), found.ctime_nsec());
    let state = [found.dev().into(), found.ino().into(), found.len().into(), modified, changed];
    let its = attributes(&found);
    Ok((
        ObjectDescription {
            bytes: found.len(),
            mode: its.mode as u16,
            modified_ns: its.modified_ns,
            hash: None,
        },
        state,
    ))
}

impl Files {
    /// Serves the files below `folder`.
    ///
    /// Errors: errors of the system.
    pub fn below(folder: &Path) -> io::Result<Self> {
        Ok(Self { folder: Folder::open(folder, Links::Inside)? })
    }

    /// The served folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Opens the file that clients request as `name`.
    ///
    /// Errors: one line for the client: no such file, not a plain file, or a name that leads out of
    /// the folder.
    pub fn open(&self, name: &str) -> Result<OpenFile, String> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(format!(
                "a name of {} bytes: must have 1 to {NAME_BYTES_MAX}, none of them 0",
                name.len()
            ));
        }
        let file = if name.split('/').any(|part| is_reserved(part.as_bytes())) {
            // A partial file of an incoming transfer is not served.
            Err(OpenError::NotFound)
        } else {
            self.folder.file_at(name)
        };
        let file = file.map_err(|error| match error {
            OpenError::NotFound => format!("{name}: no such object"),
            OpenError::Denied => format!("{name}: the server may not read it"),
            OpenError::Folder | OpenError::Special => format!("{name}: not a plain file"),
            OpenError::Secret(_) => format!("{name}: a key or a store, which nobody is given"),
            other => format!("{name}: {other}"),
        })?;
        let (found, state) = state(&file).map_err(|error| format!("{name}: {error}"))?;
        Ok(OpenFile { file, found, state })
    }

    /// Description of the file `name`. For a short file, reads the file and returns its hash and
    /// its content, too.
    ///
    /// Errors: as [`Files::open`]; or the file cannot be read, or changes during the read.
    pub fn inspect(&self, name: &str) -> Result<(ObjectDescription, Option<Vec<u8>>), String> {
        let OpenFile { file, found, state: before } = self.open(name)?;
        if found.bytes > SHORT_BYTES_MAX as u64 {
            return Ok((found, None));
        }
        let mut content = vec![0; found.bytes as usize];
        let changes = || format!("{name}: it changes while it is read");
        file.read_exact_at(&mut content, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => changes(),
            _ => format!("{name}: {error}"),
        })?;
        let (_, after) = state(&file).map_err(|error| format!("{name}: {error}"))?;
        if after != before {
            return Err(changes());
        }
        let hash = Some(*blake3::hash(&content).as_bytes());
        Ok((ObjectDescription { hash, ..found }, Some(content)))
    }

    /// Opens a folder below the served folder for listing. An empty name opens the served folder.
    ///
    /// Errors: errors of the system.
    pub fn open_folder(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        self.folder.open_folder(Path::new(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_files_are_sent_in_the_answer() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::below(folder.path()).expect("it is there");
        for (bytes, is_short) in [(0, true), (1, true), (SHORT_BYTES_MAX, true), (SHORT_BYTES_MAX + 1, false)]
        {
            let content = vec![7; bytes];
            std::fs::write(folder.path().join("x"), &content).expect("it can be written");
            let (found, said) = files.inspect("x").expect("a file");
            assert_eq!((found.bytes, said.is_some()), (bytes as u64, is_short));
            let hash = is_short.then(|| *blake3::hash(&content).as_bytes());
            assert_eq!((found.hash, said.unwrap_or(content.clone())), (hash, content));
        }
        assert!(files.inspect("none").is_err_and(|reason| reason.contains("no such object")));
    }

    #[test]
    fn names_stay_inside_the_folder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let served = folder.path().join("served");
        std::fs::create_dir_all(served.join("a")).expect("it can be made");
        std::fs::write(served.join("a/b"), b"inside").expect("it can be written");
        std::fs::write(folder.path().join("secret"), b"outside").expect("it can be written");
        std::os::unix::fs::symlink("a/b", served.join("link")).expect("it can be made");
        std::os::unix::fs::symlink("../secret", served.join("leak")).expect("it can be made");
        let files = Files::below(&served).expect("it is there");
        assert_eq!(files.open("a/b").expect("a file").found.bytes, 6);
        assert_eq!(files.open("link").expect("a link inside").found.bytes, 6);
        for name in ["../secret", "leak", "/etc/passwd", "a/../../secret", "", "a", "none", "a/b/c"] {
            assert!(files.open(name).is_err(), "{name}");
        }
    }
}
