//! Secrets that are never given out, even from a folder that other parties read and write: keys of
//! this system, and stores.
//!
//! A process's own secrets are known by their paths, and must lie elsewhere ([`keep_outside`]).
//! Other processes' secrets are recognised when requested ([`super::Folder::file_at`],
//! [`super::Folder::place`]): keys by the certificate beside them, stores by redb's first bytes. No
//! file stops a daemon, because a sender could place one; a daemon warns of secrets that it finds
//! at its start ([`warn_of_any`]).

use super::{Folder, OpenError, at, shown};
use anabranch_net::keys::holder_of;
use rustix::fs::FileType;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// Extent of the search at a daemon's start, about a second's work: names in the folder first, then
/// one folder deeper.
const LOOK_MAX: Limits = Limits { names: 100_000, bytes: 64 << 20, told: 20 };
/// Bytes of a key, or of its certificate, that are looked at.
const PEM_BYTES_MAX: u64 = 64 << 10;
/// First bytes of a redb file. Source: redb's design document, "File format".
pub(crate) const STORE_MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Extent of [`look`].
struct Limits {
    names: usize,
    bytes: u64,
    told: usize,
}

/// Checks that secrets lie outside a folder that others read and write, links followed.
///
/// Errors: one line that names the secret and the folder.
pub fn keep_outside<'a>(folder: &Path, secrets: impl IntoIterator<Item = &'a Path>) -> io::Result<()> {
    let folder = at(folder, folder.canonicalize())?;
    for secret in secrets {
        // A missing secret is reported where it is read.
        let Ok(real) = secret.canonicalize() else { continue };
        if real.starts_with(&folder) {
            let reason = format!(
                "{} lies in the folder that would be served ({}), where others could read or replace it: keep it outside, or \
                 serve a folder of its own",
                shown(secret),
                shown(&folder)
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
    }
    Ok(())
}

/// Warns of keys of any of our systems, and of stores, that lie below a folder that is served.
pub fn warn_of_any(folder: &Folder) {
    let looked = look(folder, &LOOK_MAX);
    for (path, what) in &looked.found {
        tracing::warn!(
            "{}, {what}, lies in the folder that is served: it is neither sent nor replaced: keep it outside",
            shown(&folder.path.join(path))
        );
    }
    if looked.more > 0 {
        tracing::warn!(
            folder = shown(&folder.path),
            "{} more keys and stores lie in the folder",
            looked.more
        );
    }
    if let Some(path) = looked.stopped {
        tracing::warn!(
            "the search for keys and stores has reached its limit of {} names or {} bytes before {}: those from there on are not sent \
             either",
            looked.names,
            looked.bytes,
            shown(&folder.path.join(path))
        );
    }
}

/// Result of the search.
#[derive(Default)]
struct Looked {
    names: usize,
    bytes: u64,
    /// Paths and kinds of the first secrets.
    found: Vec<(PathBuf, String)>,
    /// Number of further secrets.
    more: usize,
    /// Path at which the search stopped early.
    stopped: Option<PathBuf>,
}

fn look(folder: &Folder, limits: &Limits) -> Looked {
    let mut waiting = VecDeque::from([PathBuf::new()]);
    let mut looked = Looked::default();
    while let Some(path) = waiting.pop_front() {
        let mut candidates = Vec::new();
        let mut last = None;
        // An unreadable folder cannot be served either.
        let _ = folder.each_name(&path, |name, kind| {
            if looked.names >= limits.names {
                last = Some(path.join(name));
                return false;
            }
            looked.names += 1;
            if kind == FileType::Directory {
                waiting.push_back(path.join(name));
            } else if kind == FileType::RegularFile && Kind::of(name).is_some() {
                candidates.push(path.join(name));
            }
            true
        });
        for path in candidates {
            if looked.bytes >= limits.bytes {
                looked.stopped = Some(path);
                return looked;
            }
            match found(folder, &path, &mut looked.bytes) {
                Some(what) if looked.found.len() < limits.told => looked.found.push((path, what)),
                Some(_) => looked.more += 1,
                None => {}
            }
        }
        if last.is_some() {
            looked.stopped = last;
            return looked;
        }
    }
    looked
}

/// Returns the kind of the open file requested as `path`, if it is a secret: by that name, and by
/// its real name if links led to it.
pub(crate) fn read_through(folder: &Folder, path: &Path, file: &File) -> Option<String> {
    let real = |descriptor: std::os::fd::BorrowedFd<'_>| {
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let real = rustix::fs::readlink(link, Vec::new()).ok()?.into_bytes();
        Some(PathBuf::from(std::ffi::OsString::from_vec(real)))
    };
    let by_link = || {
        let (file, folder) = (real(file.as_fd())?, real(folder.descriptor.as_fd())?);
        Some(file.strip_prefix(folder).ok()?.to_owned())
    };
    found(folder, path, &mut 0).or_else(|| match folder.links {
        super::Links::Refused => None,
        super::Links::Inside => found(folder, &by_link()?, &mut 0),
    })
}

/// Returns the secret, or the certificate that identifies it, that a replacement of the file at
/// `path` would destroy.
pub(crate) fn replaced_at(folder: &Folder, path: &Path) -> Option<String> {
    found(folder, path, &mut 0).or_else(|| {
        let is_certificate = path.extension() == Some(OsStr::new("pem"));
        let what = is_certificate.then(|| found(folder, &path.with_extension("key"), &mut 0)).flatten();
        what.map(|key| format!("the certificate of {key}"))
    })
}

/// Returns true if a file of this name can be a secret.
pub(crate) fn is_candidate(name: &OsStr) -> bool {
    Kind::of(name).is_some()
}

/// Possible kinds of a file, by its name.
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

/// Returns the kind of the file at `path` if it is a secret; adds the bytes read to `bytes`.
fn found(folder: &Folder, path: &Path, bytes: &mut u64) -> Option<String> {
    let mut read = |path: &Path, most: u64| -> Result<Vec<u8>, OpenError> {
        let mut begin = Vec::new();
        folder.any_file_at(path)?.take(most).read_to_end(&mut begin).map_err(OpenError::Io)?;
        *bytes += begin.len() as u64;
        Ok(begin)
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
    use anabranch_http::store::StoreFile;
    use anabranch_net::keys::{SetRequest, System, SystemSpec, make_set, write_set};

    anabranch_net::system! {
        /// A system with all roles.
        HAUL = SystemSpec {
            word: "haul",
            site: "site",
            controller: Some("controller"),
            operator: Some("operator"),
            controller_dials: false,
            keys_arguments: "",
        };
    }
    anabranch_net::system! {
        /// A system without a controller.
        PULL = SystemSpec {
            word: "pull",
            site: "server",
            controller: None,
            operator: Some("client"),
            controller_dials: false,
            keys_arguments: "",
        };
    }

    fn folder_of(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Folder) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, bytes) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("ours");
            std::fs::write(path, bytes).expect("ours");
        }
        let opened = Folder::open(folder.path(), Links::Inside).expect("there");
        (folder, opened)
    }

    /// Warning about a folder with these files; `None` if there is none. Files in the warning are
    /// never given out.
    fn said(files: &[(&str, &[u8])]) -> Option<String> {
        let (_kept, folder) = folder_of(files);
        let looked = look(&folder, &LOOK_MAX);
        assert!(looked.stopped.is_none() && looked.more == 0);
        for (name, _) in files {
            let is_found = looked.found.iter().any(|(path, _)| path == Path::new(name));
            let read = folder.file_at(name);
            assert_eq!(matches!(read, Err(OpenError::Secret(_))), is_found, "{name}: {read:?}");
            let named = folder.name(name).expect("a good name");
            assert!(!is_found || folder.place(&named, true).is_err(), "{name} would be replaced");
        }
        looked.found.first().map(|(path, what)| format!("{}, {what}", shown(path)))
    }

    /// #17: if a sender had written a file that looked like a key or a store, the daemon ended at
    /// each start.
    #[test]
    fn search_for_secrets_is_bounded_and_reads_are_not() {
        let pem = [&b"-----BEGIN PRIVATE KEY-----"[..], &[b'x'; 973]].concat();
        let names: Vec<String> = (0..10).map(|i| format!("{i}/ca.key")).collect();
        let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), pem.as_slice())).collect();
        let (_kept, folder) = folder_of(&files);
        let all = Limits { names: 20, bytes: 10_000, told: 10 };
        for (limits, found, is_stopped) in [
            (Limits { ..all }, 10, false),
            (Limits { names: 19, ..all }, 9, true),
            (Limits { names: 5, ..all }, 0, true),
            (Limits { bytes: 9_000, ..all }, 9, true),
            (Limits { bytes: 9_001, ..all }, 10, false),
        ] {
            let looked = look(&folder, &limits);
            assert_eq!((looked.found.len(), looked.stopped.is_some()), (found, is_stopped));
            assert!(looked.names <= limits.names && looked.bytes < limits.bytes + 2 * PEM_BYTES_MAX);
        }
        let looked = look(&folder, &Limits { told: 3, ..all });
        assert_eq!((looked.found.len(), looked.more), (3, 7));
        for name in &names {
            assert!(matches!(folder.file_at(name), Err(OpenError::Secret(_))), "{name}");
        }
    }

    #[test]
    fn secrets_behind_links_and_their_certificates_are_refused() {
        let key = b"-----BEGIN PRIVATE KEY-----";
        let (kept, folder) = folder_of(&[("a/ca.key", key), ("a/other.key", key), ("file", b"x")]);
        for (link, to) in [("plain", "a/ca.key"), ("way", "a"), ("good", "file")] {
            std::os::unix::fs::symlink(to, kept.path().join(link)).expect("ours");
        }
        for name in ["a/ca.key", "plain", "way/ca.key"] {
            assert!(matches!(folder.file_at(name), Err(OpenError::Secret(_))), "{name}");
        }
        assert!(folder.file_at("good").is_ok() && folder.file_at("a/other.key").is_ok());
        let place = |name: &str| folder.place(&folder.name(name).expect("a name"), false);
        assert!(
            place("a/ca.pem").expect_err("it would hide the key").to_string().contains("the certificate of")
        );
        assert!(place("a/other.pem").is_ok() && place("a/new.redb").is_ok());
    }

    /// #17: a relay looked only for its own keys below --dir, so it served an authority's key or a
    /// controller's store.
    #[test]
    fn keys_of_each_system_are_found_at_any_depth() {
        assert_eq!(System::all().collect::<Vec<_>>(), [HAUL, PULL]);
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
    fn foreign_keys_and_similarly_named_files_are_served() {
        let pem = b"-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----\n";
        assert_eq!(
            said(&[("web.key", pem), ("web.pem", b"another's certificate"), ("piano.key", b"C")]),
            None
        );
        assert_eq!(said(&[("notes.redb", b"redb is a database"), ("empty.redb", b"")]), None);
    }

    #[test]
    fn store_is_recognised_by_its_content() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = folder.path().join("any.redb");
        drop(StoreFile::open(&store, b"1").expect("a new store"));
        let bytes = std::fs::read(&store).expect("ours");
        let found = said(&[("a/b/any.redb", &bytes)]).expect("a store");
        assert_eq!(found, "a/b/any.redb, a store");
        assert_eq!(said(&[("a/b/any.bin", &bytes)]), None);
    }
}
