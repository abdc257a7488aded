//! Unix sockets over which programs of this host connect to a daemon.
//!
//! Read [`listen`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: sockets and files are its business")]

use std::fs::{Permissions, read_to_string, remove_file, set_permissions, symlink_metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Reason why the socket cannot be made: one line that names the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The path holds a file that is not a socket; the file is kept.
    #[error("{}: exists, and is no socket: choose another path", .0.display())]
    NoSocket(PathBuf),
    /// Another program accepts connections on the socket.
    #[error("{}: another process listens there already: choose another path", .0.display())]
    InUse(PathBuf),
    /// The connection attempt failed, but the socket may be in use; the socket is kept.
    #[error("{}: is there: {error}: choose another path", path.display())]
    Taken {
        /// Path of the socket.
        path: PathBuf,
        /// Result of the connection attempt.
        error: io::Error,
    },
    /// The socket cannot be created.
    #[error("{}: {step}: {error}", path.display())]
    Unusable {
        /// Path of the socket.
        path: PathBuf,
        /// Failed step.
        step: &'static str,
        /// Error of the system.
        error: io::Error,
    },
    /// No group has this name.
    #[error("group {0}: no such group")]
    NoGroup(String),
    /// The list of groups cannot be read.
    #[error("/etc/group: {0}")]
    Groups(io::Error),
    /// The socket cannot be given to the group.
    #[error("group {group}: {} cannot be given to it: {error}", path.display())]
    Group {
        /// Name or number of the group.
        group: String,
        /// The socket.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Creates the socket, with access for its owner only, or also for `group`.
///
/// Errors: the socket is in use; the path holds another type of file, which is kept; an unknown
/// group; the system's errors.
pub fn listen(path: &Path, group: Option<&str>) -> Result<UnixListener, ListenError> {
    let unusable = |step| {
        let path = path.to_owned();
        move |error| ListenError::Unusable { path, step, error }
    };
    let bind = || UnixListener::bind(path);
    let listener = match bind() {
        // If the connection is refused, the socket is left over from a killed daemon.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
                return Err(ListenError::NoSocket(path.to_owned()));
            }
            match UnixStream::connect(path) {
                Ok(_) => return Err(ListenError::InUse(path.to_owned())),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    remove_file(path).and_then(|()| bind())
                }
                Err(error) => return Err(ListenError::Taken { path: path.to_owned(), error }),
            }
        }
        other => other,
    };
    let listener = listener.map_err(unusable("cannot listen"))?;
    let mode = match group {
        Some(group) => {
            let id = rustix::fs::Gid::from_raw(group_id(group)?);
            rustix::fs::chown(path, None, Some(id)).map_err(|error| ListenError::Group {
                group: group.to_owned(),
                path: path.to_owned(),
                error: error.into(),
            })?;
            0o660
        }
        None => 0o600,
    };
    set_permissions(path, Permissions::from_mode(mode)).map_err(unusable("cannot set its mode"))?;
    Ok(listener)
}

/// Number of a group, looked up by name in `/etc/group` or parsed from the text.
fn group_id(group: &str) -> Result<u32, ListenError> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let groups = read_to_string("/etc/group").map_err(ListenError::Groups)?;
    let id = groups.lines().find_map(|line| {
        let mut words = line.split(':');
        (words.next()? == group).then(|| words.nth(1)?.parse().ok())?
    });
    id.ok_or_else(|| ListenError::NoGroup(group.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_replaces_only_sockets_that_refuse_connections() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let _inside = runtime.enter();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "precious").expect("ours");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("ours");
        for name in ["file", "link"] {
            let error = listen(&path(name), None).expect_err("it stays");
            assert!(error.to_string().contains("no socket: choose another path"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(path("link")).expect("as before"), "precious");
        // A socket of another type refuses connections although it is in use.
        let datagrams = std::os::unix::net::UnixDatagram::bind(path("datagrams")).expect("ours");
        let error = listen(&path("datagrams"), None).expect_err("it stays");
        assert!(error.to_string().contains("choose another path"), "{error}");
        drop(datagrams);

        let listener = listen(&path("socket"), None).expect("nothing is there");
        let error = listen(&path("socket"), None).expect_err("it stays");
        assert!(error.to_string().contains("another process listens there already"), "{error}");
        drop(listener);
        listen(&path("socket"), None).expect("nobody is there any more");
    }
}
