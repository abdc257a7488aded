//! The folder that a server serves: files by name, never anything outside.

use crate::folder::{Folder, Links, OpenError};
use crate::partial::hash_file_at;
use anabranch_gather::msg::NAME_BYTES_MAX;
use anabranch_replicate::name::is_reserved;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Mutex;

/// Hashes that are kept.
const HASHES_MAX: usize = 4_096;

/// A folder.
pub struct Files {
    folder: Folder,
    /// By device, inode, length and time of change: a file that is another, or was written to, is hashed again.
    hashes: Mutex<BTreeMap<[i128; 4], [u8; 32]>>,
    /// One file at a time, so that a disk is read in order.
    hashing: tokio::sync::Semaphore,
}

impl Files {
    /// The files below `folder`.
    ///
    /// Errors: the system's.
    pub fn below(folder: &Path) -> io::Result<Self> {
        let folder = Folder::open(folder, Links::Inside)?;
        Ok(Self { folder, hashes: Mutex::default(), hashing: tokio::sync::Semaphore::new(1) })
    }

    /// Opens the file that clients call `name`, and says how long it is.
    ///
    /// Errors: one line for the client: no such file, not a plain one, a name that leads out of the folder.
    pub fn open(&self, name: &str) -> Result<(File, u64), String> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(format!(
                "a name of {} bytes: must have 1 to {NAME_BYTES_MAX}, none of them 0",
                name.len()
            ));
        }
        let file = if name.split('/').any(|part| is_reserved(part.as_bytes())) {
            // What is still arriving here is nobody's object.
            Err(OpenError::NotFound)
        } else {
            self.folder.file_at(name)
        };
        let file = file.map_err(|error| match error {
            OpenError::NotFound => format!("{name}: no such object"),
            OpenError::Denied => format!("{name}: the server may not read it"),
            OpenError::Folder | OpenError::Special => format!("{name}: not a plain file"),
            other => format!("{name}: {other}"),
        })?;
        let found = file.metadata().map_err(|error| format!("{name}: {error}"))?;
        Ok((file, found.len()))
    }

    /// Length and BLAKE3 hash of a file, which is read for it if that was not done before.
    ///
    /// Errors: as [`Files::open`].
    pub async fn hash(&self, name: &str) -> Result<(u64, [u8; 32]), String> {
        let (file, length) = self.open(name)?;
        let found = file.metadata().map_err(|error| format!("{name}: {error}"))?;
        let time = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
        let key = [found.dev().into(), found.ino().into(), length.into(), time];
        let known = |hashes: &Mutex<BTreeMap<_, [u8; 32]>>| {
            hashes.lock().expect("nobody panics with it").get(&key).copied()
        };
        if let Some(hash) = known(&self.hashes) {
            return Ok((length, hash));
        }
        let _turn = self.hashing.acquire().await.map_err(|error| error.to_string())?;
        if let Some(hash) = known(&self.hashes) {
            return Ok((length, hash));
        }
        let hashed = tokio::task::spawn_blocking(move || hash_file_at(&file, length)).await;
        let hash = hashed.map_err(|error| error.to_string())?.map_err(|error| format!("{name}: {error}"))?.0;
        let mut hashes = self.hashes.lock().expect("nobody panics with it");
        if hashes.len() >= HASHES_MAX {
            hashes.pop_first();
        }
        hashes.insert(key, hash);
        Ok((length, hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_stay_inside_the_folder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let served = folder.path().join("served");
        std::fs::create_dir_all(served.join("a")).expect("it can be made");
        std::fs::write(served.join("a/b"), b"inside").expect("it can be written");
        std::fs::write(folder.path().join("secret"), b"outside").expect("it can be written");
        std::os::unix::fs::symlink("a/b", served.join("link")).expect("it can be made");
        std::os::unix::fs::symlink("../secret", served.join("leak")).expect("it can be made");
        let files = Files::below(&served).expect("it is there");
        assert_eq!(files.open("a/b").expect("a file").1, 6);
        assert_eq!(files.open("link").expect("a link inside").1, 6);
        for name in ["../secret", "leak", "/etc/passwd", "a/../../secret", "", "a", "none", "a/b/c"] {
            assert!(files.open(name).is_err(), "{name}");
        }
        let hash = *blake3::hash(b"inside").as_bytes();
        assert_eq!(files.hash("a/b").await, Ok((6, hash)));
        std::fs::write(served.join("a/b"), b"another").expect("it can be written");
        assert_eq!(files.hash("a/b").await, Ok((7, *blake3::hash(b"another").as_bytes())));
    }
}
