//! A directory in a file, which is read again when the file changes.
//!
//! Leaves out: the directory's contents (`anabranch_live_proto::directory`). Read [`DirectoryFile`].

use anabranch_live_proto::directory::{DIRECTORY_BYTES_MAX, Directory, DirectoryError};
use std::convert::Infallible;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// Interval of the checks whether the file has changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reason why a file is not a valid directory.
#[derive(Debug)]
#[non_exhaustive]
pub enum DirectoryFileError {
    /// The file cannot be read.
    Unreadable(std::io::Error),
    /// The contents are invalid.
    Bad(DirectoryError),
}

impl fmt::Display for DirectoryFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "{error}"),
            Self::Bad(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DirectoryFileError {}

/// Time of the last change, and length. `None` if the file does not exist.
type Stamp = Option<(SystemTime, u64)>;

/// A directory that follows the contents of a file.
pub struct DirectoryFile {
    path: PathBuf,
    stamp: Stamp,
    sender: watch::Sender<Arc<Directory>>,
}

impl DirectoryFile {
    /// Reads the file.
    ///
    /// Errors: a file that cannot be read, or is not a valid directory.
    pub fn open(path: &Path) -> Result<Self, DirectoryFileError> {
        let stamp = stamp(path);
        let (sender, _) = watch::channel(Arc::new(read(path)?));
        Ok(Self { path: path.to_owned(), stamp, sender })
    }

    /// Receiver of the last valid directory in the file.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Directory>> {
        self.sender.subscribe()
    }

    /// Checks the file each second, and reads it when it has changed. An invalid file is logged,
    /// and the last valid directory stays in force. Never returns; stops when dropped.
    pub async fn run(mut self) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let stamp = stamp(&self.path);
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        let path = self.path.clone();
        // A directory may have a million prefixes, and reading it must not delay answers.
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        let shown = self.path.display();
        match read.expect("reading a directory does not panic") {
            Ok(directory) => {
                tracing::info!("directory {shown}: version {}", directory.version());
                self.sender.send_replace(Arc::new(directory));
            }
            Err(error) => tracing::warn!("directory {shown}: {error}: the last good one stays"),
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read(path: &Path) -> Result<Directory, DirectoryFileError> {
    let file = std::fs::File::open(path).map_err(DirectoryFileError::Unreadable)?;
    let mut text = Vec::new();
    // One byte above the limit is read, so that a longer file is refused instead of cut.
    let limited = file.take(DIRECTORY_BYTES_MAX as u64 + 1).read_to_end(&mut text);
    limited.map_err(DirectoryFileError::Unreadable)?;
    Directory::read(&text).map_err(DirectoryFileError::Bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_live_proto::directory::exercise::sample;

    #[tokio::test]
    async fn invalid_file_keeps_the_last_directory() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("directory.json");
        let mut contents = sample();
        let mut write = |decision| {
            contents.version.decision = decision;
            let text = serde_json::to_vec(&contents).expect("it has a text form");
            std::fs::write(&path, text).expect("the folder can be written");
        };
        assert!(matches!(DirectoryFile::open(&path), Err(DirectoryFileError::Unreadable(_))));
        write(1);
        let mut file = DirectoryFile::open(&path).expect("no defect");
        let receiver = file.subscribe();
        let decision = || receiver.borrow().version().decision;
        write(10);
        file.look().await;
        assert_eq!(decision(), 10, "the length has changed");
        std::fs::write(&path, "{").expect("the folder can be written");
        file.look().await;
        assert_eq!(decision(), 10);
        std::fs::remove_file(&path).expect("it is there");
        file.look().await;
        assert_eq!(decision(), 10);
        write(100);
        file.look().await;
        assert_eq!(decision(), 100);
    }
}
