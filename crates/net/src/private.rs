//! Files that a process keeps for itself: stores, states, caches. From their creation on, no other
//! user may read them.
//!
//! Leaves out: keys, whose permissions are checked and never changed ([`crate::tls`]). Read
//! [`open`].

use rustix::fs::{Mode, OFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Mode of a private file: access for its owner only.
const MODE: u32 = 0o600;

/// Opens or creates the file at `path` with `options`, so that only this process's user may read
/// and write it. Wider permissions of an existing file are narrowed, with a log line. The checks
/// apply to the opened file rather than to the path.
///
/// Errors: a symbolic link, something that is not a plain file, another user's file; the system's
/// errors, without the path.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let refused = |reason: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.create(true).truncate(false).mode(MODE).custom_flags(flags.bits().cast_signed());
    let file = match options.open(path) {
        Ok(file) => file,
        Err(_) if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) => {
            return refused(
                "is a symbolic link, and links are not followed: name the file itself".to_owned(),
            );
        }
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return refused("is no plain file: name another one".to_owned());
    }
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user {
        return refused(format!(
            "belongs to user {}, and this is user {user}: run this as that one, or name another file",
            found.uid()
        ));
    }
    let mode = found.mode() & 0o7777;
    if mode & !MODE != 0 {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(MODE))?;
        let path = path.display();
        tracing::warn!(
            "{path}: others might read or write it (mode {mode:04o}): now only its owner may ({MODE:04o})"
        );
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn open_here(path: &Path) -> io::Result<File> {
        open(path, File::options().read(true).write(true))
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("it is there").mode() & 0o7777
    }

    /// Path of a test's folder, derived from `name`.
    fn folder(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("anabranch-private-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a temporary folder");
        path
    }

    /// #17: stores got their permissions from the user's umask, which mostly let all users read
    /// them.
    #[test]
    fn new_and_formerly_wider_files_become_private() {
        let folder = folder("modes");
        let path = folder.join("store");
        open_here(&path).expect("a new file");
        assert_eq!(mode(&path), MODE);
        std::fs::write(&path, "what was there").expect("ours");
        for wide in [0o644, 0o666, 0o640, 0o606, 0o601, 0o4600] {
            std::fs::set_permissions(&path, Permissions::from_mode(wide)).expect("ours");
            open_here(&path).expect("ours");
            assert_eq!(mode(&path), MODE, "{wide:o}");
        }
        assert_eq!(std::fs::read(&path).expect("ours"), b"what was there");
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn links_pipes_folders_and_foreign_files_are_refused() {
        let folder = folder("refused");
        let there = folder.join("there");
        std::fs::write(&there, "").expect("ours");
        std::fs::set_permissions(&there, Permissions::from_mode(0o644)).expect("ours");
        symlink(&there, folder.join("link")).expect("ours");
        symlink(folder.join("away"), folder.join("dangling")).expect("ours");
        let pipe = std::process::Command::new("mkfifo").arg(folder.join("pipe")).status();
        assert!(pipe.expect("mkfifo is there").success());
        let told = |name: &str| open_here(&folder.join(name)).expect_err(name).to_string();
        for (name, said) in [("link", "symbolic link"), ("dangling", "symbolic link"), ("pipe", "no plain")] {
            assert!(told(name).contains(said), "{name}: {}", told(name));
        }
        open_here(&folder).expect_err("a folder");
        assert_eq!(mode(&there), 0o644);
        assert!(!folder.join("away").exists());
        // Only root can give the file to another user.
        if std::os::unix::fs::chown(&there, Some(12_345), None).is_ok() {
            assert!(told("there").contains("belongs to user 12345"), "{}", told("there"));
            assert_eq!(mode(&there), 0o644);
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}
