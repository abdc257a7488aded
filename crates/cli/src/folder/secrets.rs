//! What a folder that others read and write must not hold: keys of ours, and stores.
//!
//! What a process uses itself is known by its path ([`keep_outside`]). Of others' it is looked for ([`find_none`]): keys by
//! the certificate beside them, stores by redb's first bytes. Links are not followed for that, as they are not followed, or
//! lead nowhere else, where files are served.

use super::{Folder, OpenError, at, shown};
use anabranch_net::keys::holder_of;
use rustix::fs::FileType;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// How many names are looked at, those in the folder itself first, then those one folder deeper. A second's work at most.
const NAMES_MAX: usize = 100_000;
/// Bytes of a key, or of its certificate, that are looked at.
const PEM_BYTES_MAX: u64 = 64 << 10;
/// How a file of redb begins. Source: redb's design document, "File format".
const STORE_MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// That what nobody else may have lies outside a folder that others read and write, links followed.
///
/// Errors: one line that says which of the files lies where.
pub fn keep_outside<'a>(folder: &Path, secrets: impl IntoIterator<Item = &'a Path>) -> io::Result<()> {
    let folder = at(folder, folder.canonicalize())?;
    for secret in secrets {
        // One that is not there is told of where it is read.
        let Ok(real) = secret.canonicalize() else { continue };
        if real.starts_with(&folder) {
            return Err(lies_in(&folder, &shown(secret)));
        }
    }
    Ok(())
}

/// That no key of any of our systems, and no store, lies below a folder, among its first [`NAMES_MAX`] names.
///
/// Errors: one line that says which file is what.
pub fn find_none(folder: &Folder) -> io::Result<()> {
    let mut waiting = VecDeque::from([PathBuf::new()]);
    let mut names = 0;
    while let Some(path) = waiting.pop_front() {
        let mut candidates = Vec::new();
        // What cannot be read cannot be served.
        let _ = folder.each_name(&path, |name, kind| {
            names += 1;
            if kind == FileType::Directory {
                waiting.push_back(path.join(name));
            } else if kind == FileType::RegularFile && Kind::of(name).is_some() {
                candidates.push(path.join(name));
            }
            names < NAMES_MAX
        });
        for path in candidates {
            if let Some(what) = found(folder, &path) {
                return Err(lies_in(&folder.path, &format!("{}, {what},", shown(&folder.path.join(path)))));
            }
        }
        if names >= NAMES_MAX {
            tracing::info!(
                folder = shown(&folder.path),
                "keys and stores were looked for among the first {NAMES_MAX} names only"
            );
            break;
        }
    }
    Ok(())
}

fn lies_in(folder: &Path, what: &str) -> io::Error {
    let reason = format!(
        "{what} lies in the folder that would be served ({}), where others could read or replace it: keep it outside, or \
         serve a folder of its own",
        shown(folder)
    );
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// What a file may be, by its name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Key,
    Store,
}

impl Kind {
    fn of(name: &OsStr) -> Option<Self> {
        let name = name.as_bytes();
        if name.ends_with(b".key") {
            return Some(Self::Key);
        }
        name.ends_with(b".redb").then_some(Self::Store)
    }
}

/// What the file at `path` is, if it is a secret.
fn found(folder: &Folder, path: &Path) -> Option<String> {
    let read = |path: &Path, most: u64| -> Result<Vec<u8>, OpenError> {
        let mut bytes = Vec::new();
        folder.file_at(path)?.take(most).read_to_end(&mut bytes).map_err(OpenError::Io)?;
        Ok(bytes)
    };
    match Kind::of(path.file_name()?)? {
        Kind::Store => {
            let begin = read(path, STORE_MAGIC.len() as u64).ok()?;
            (begin == STORE_MAGIC).then(|| "a store".to_owned())
        }
        Kind::Key => {
            let key = read(path, PEM_BYTES_MAX).ok()?;
            if !key.windows(11).any(|part| part == b"PRIVATE KEY") {
                return None;
            }
            match read(&path.with_extension("pem"), PEM_BYTES_MAX) {
                Ok(pem) => holder_of(&pem).map(|holder| format!("the key of {holder}")),
                // An authority's, kept apart.
                Err(_) if path.file_name() == Some(OsStr::new("ca.key")) => {
                    Some("an authority's key".to_owned())
                }
                Err(_) => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Links;
    use anabranch_net::keys::{SetRequest, System, make_set, write_set};

    /// What is said of a folder with these files in it; `None` if nothing.
    fn said(files: &[(&str, &[u8])]) -> Option<String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, bytes) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("ours");
            std::fs::write(path, bytes).expect("ours");
        }
        let refused =
            find_none(&Folder::open(folder.path(), Links::Refused).expect("there")).err()?.to_string();
        assert!(!refused.contains('\n'), "{refused}");
        assert!(refused.contains("keep it outside, or serve a folder of its own"), "{refused}");
        Some(refused)
    }

    /// #17: a relay looked only for its own keys below --dir, so that it served an authority's key, or a controller's store.
    #[test]
    fn every_key_of_every_system_is_found_wherever_it_lies() {
        for system in System::all() {
            let request = SetRequest {
                system,
                sites: vec!["a b".into()],
                operators: vec!["ann".into()],
                controller_hosts: vec![],
                valid_days: 2,
            };
            let set = make_set(&request).expect("a good request");
            let written = tempfile::tempdir().expect("a temporary folder");
            write_set(&written.path().join("set"), &set).expect("an empty folder");
            for file in &set.files {
                let at = |end: &str| format!("deep/er/{}.{end}", file.stem.display());
                let (key, certificate) = (file.key_pem.as_bytes(), file.certificate_pem.as_bytes());
                let both = [(&*at("key"), key), (&*at("pem"), certificate)];
                let found = said(&both).unwrap_or_else(|| panic!("{} of {system}", file.stem.display()));
                assert!(
                    found.contains(&at("key")) && found.contains(&format!("the key of {system} ")),
                    "{found}"
                );
                assert_eq!(said(&both[1..]), None, "certificates are no secret");
                assert_eq!(said(&[(&*at("key"), b"an answer\n"), both[1]]), None, "a key by its name only");
                if file.stem == Path::new("ca") {
                    assert!(said(&both[..1]).expect("alone, too").contains("an authority's key"));
                }
            }
        }
    }

    #[test]
    fn others_keys_and_files_of_such_names_are_served() {
        let pem = b"-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----\n";
        assert_eq!(
            said(&[("web.key", pem), ("web.pem", b"another's certificate"), ("piano.key", b"C")]),
            None
        );
        assert_eq!(said(&[("notes.redb", b"redb is a database"), ("empty.redb", b"")]), None);
    }

    #[test]
    fn a_store_is_found_by_what_it_holds() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = folder.path().join("any.redb");
        drop(redb_of(&store));
        let bytes = std::fs::read(&store).expect("ours");
        let found = said(&[("a/b/any.redb", &bytes)]).expect("a store");
        assert!(found.contains("a/b/any.redb, a store, lies in"), "{found}");
        assert_eq!(said(&[("a/b/any.bin", &bytes)]), None);
    }

    /// A store as the coordinator makes it.
    fn redb_of(path: &Path) -> impl Sized {
        use anabranch_api::shuffle::{CoordinatorService, CoordinatorServiceConfig};
        let config = CoordinatorServiceConfig::new(|| Box::new(anabranch_fluid::Fifo::default()), path);
        CoordinatorService::open(config).expect("a new store")
    }
}
