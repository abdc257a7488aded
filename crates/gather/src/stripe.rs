//! Cuts a file into parts for many servers, and writes the manifest with which clients reassemble
//! the file.

use crate::targets::{Manifest, ManifestPart, Object, TargetError, check_holder, check_name};
use anabranch_gather_proto::msg::MODE_BITS;
use std::fs::{File, Permissions, create_dir_all};
use std::io::{self, Read as _, Write as _};
use std::num::TryFromIntError;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Maximum number of parts. Each part is a separate object for the client.
pub const PARTS_MAX: u64 = 65_536;
const READ_BYTES: usize = 1 << 20;

/// A request to cut a file, and the servers for its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The file to cut.
    pub file: PathBuf,
    /// The folder to write to. Subfolder `0` receives the parts for the first server, `1` those for
    /// the second, and so on. The manifest is `NAME.toml` beside the subfolders, where `NAME` is
    /// the file's name.
    pub into: PathBuf,
    /// Addresses of the servers, as clients reach them: `[NAME@]HOST:PORT`.
    pub servers: Vec<String>,
    /// Number of parts; `None` for one part per server. No part is empty unless the file is empty.
    pub parts: Option<u64>,
    /// Number of servers that store each part. The object remains available until all of a part's
    /// servers are lost.
    pub copies: usize,
}

/// Result of cutting a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StripeResult {
    /// Path of the manifest.
    pub manifest: PathBuf,
    /// Content of the manifest.
    pub object: Object,
    /// The folder with the parts for each server.
    pub folders: Vec<PathBuf>,
}

/// The reason why a file was not cut. Displays as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StripeError {
    /// A malformed server address.
    #[error("servers: {0}")]
    Server(TargetError),
    /// A server is named twice.
    #[error("servers: {0} is named twice")]
    Twice(String),
    /// More copies than servers are requested, or 0 copies.
    #[error("copies {copies}: must be 1 to {servers} servers")]
    Copies {
        /// Copies requested.
        copies: usize,
        /// Number of servers.
        servers: usize,
    },
    /// Too many parts are requested, or 0 parts.
    #[error("parts {0}: must be 1 to {max}", max = PARTS_MAX)]
    Parts(u64),
    /// The file's name is not UTF-8.
    #[error("{}: a file whose name is plain text", .0.display())]
    NotText(PathBuf),
    /// The file's name is not valid as an object's name.
    #[error(transparent)]
    Name(TargetError),
    /// The file cannot be opened.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The path is not a plain file.
    #[error("{}: not a plain file", .0.display())]
    NotPlain(PathBuf),
    /// The file's modification time does not fit in nanoseconds since 1970.
    #[error("{}: its time is no time: {error}", path.display())]
    Time {
        /// The file.
        path: PathBuf,
        /// The conversion's error.
        error: TryFromIntError,
    },
    /// The file grew while it was cut.
    #[error("{}: it grows while it is cut", .0.display())]
    Grows(PathBuf),
    /// The file shrank while it was cut.
    #[error("{}: it has become shorter while it is cut", .0.display())]
    Shrinks(PathBuf),
    /// A file or folder cannot be read or written.
    #[error("{}: {error}", path.display())]
    At {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A part of the file cannot be written.
    #[error("{}: {}: {error}", file.display(), part.display())]
    Part {
        /// The file.
        file: PathBuf,
        /// The part.
        part: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The manifest cannot be written as TOML.
    #[error(transparent)]
    Manifest(#[from] toml::ser::Error),
}

impl StripeError {
    /// Whether the request itself is invalid, whatever the state of the files.
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Server(_)
                | Self::Twice(_)
                | Self::Copies { .. }
                | Self::Parts(_)
                | Self::NotText(_)
                | Self::Name(_)
                | Self::Open { .. }
        )
    }
}

/// Cuts a file into parts.
///
/// Errors: see [`StripeError`]. Parts that were written before the error are kept.
pub fn stripe(stripe: &Stripe) -> Result<StripeResult, StripeError> {
    let (name, parts) = checked(stripe)?;
    let Stripe { file: path, into, servers, copies, .. } = stripe;
    let at_file = |error| StripeError::At { path: path.clone(), error };
    let mut file = File::open(path).map_err(|error| StripeError::Open { path: path.clone(), error })?;
    let found = file.metadata().map_err(at_file)?;
    if !found.is_file() {
        return Err(StripeError::NotPlain(path.clone()));
    }
    let bytes = found.len();
    // No part is empty unless the file is empty.
    let parts = parts.min(bytes.max(1));
    let modified = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    let modified_ns =
        i64::try_from(modified).map_err(|error| StripeError::Time { path: path.clone(), error })?;
    let folders: Vec<PathBuf> = (0..servers.len()).map(|server| into.join(server.to_string())).collect();
    for folder in &folders {
        create_dir_all(folder).map_err(|error| StripeError::At { path: folder.clone(), error })?;
    }
    let end_of = |part: u64| (u128::from(bytes) * u128::from(part) / u128::from(parts)) as u64;
    let mut hasher = blake3::Hasher::new();
    let mut listed: Vec<ManifestPart> = Vec::new();
    for part in 0..parts {
        let length = end_of(part + 1) - end_of(part);
        let at: Vec<usize> = (0..*copies).map(|copy| (part as usize + copy) % servers.len()).collect();
        let part_name = format!("{name}.{part}");
        let paths: Vec<PathBuf> = at.iter().map(|server| folders[*server].join(&part_name)).collect();
        let hash = cut(path, &mut file, length, &paths, &mut hasher)?;
        let holders = at.iter().map(|server| servers[*server].clone()).collect();
        listed.push(ManifestPart {
            name: part_name,
            bytes: Some(length),
            blake3: Some(hash.to_hex().to_string()),
            holders,
        });
    }
    if file.read(&mut [0]).map_err(at_file)? > 0 {
        return Err(StripeError::Grows(path.clone()));
    }
    let object = Object {
        name: name.to_owned(),
        bytes,
        blake3: hasher.finalize().to_hex().to_string(),
        mode: Some((found.mode() & u32::from(MODE_BITS)) as u16),
        modified_ns: Some(modified_ns),
        holders: Vec::new(),
        part: listed,
    };
    let manifest = into.join(format!("{name}.toml"));
    let text = toml::to_string(&Manifest { object: vec![object.clone()] })?;
    let write = || -> io::Result<()> {
        // The permissions are the same as for any program's new file, limited by the user's umask.
        let mut written = beside(&manifest, 0o666)?;
        written.write_all(text.as_bytes())?;
        keep(written, &manifest)
    };
    write().map_err(|error| StripeError::At { path: manifest.clone(), error })?;
    Ok(StripeResult { manifest, object, folders })
}

/// Name of the file, and number of parts, of a valid request.
///
/// Errors: the request is invalid.
fn checked(stripe: &Stripe) -> Result<(&str, u64), StripeError> {
    let Stripe { file, servers, copies, parts, .. } = stripe;
    servers.iter().try_for_each(|server| check_holder(server)).map_err(StripeError::Server)?;
    for (at, server) in servers.iter().enumerate() {
        if servers[..at].contains(server) {
            return Err(StripeError::Twice(server.clone()));
        }
    }
    if !(1..=servers.len()).contains(copies) {
        return Err(StripeError::Copies { copies: *copies, servers: servers.len() });
    }
    let parts = parts.unwrap_or(servers.len() as u64);
    if !(1..=PARTS_MAX).contains(&parts) {
        return Err(StripeError::Parts(parts));
    }
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| StripeError::NotText(file.clone()))?;
    // The name must leave room for the longest part number.
    check_name(&format!("{name}.{PARTS_MAX}")).map_err(StripeError::Name)?;
    Ok((name, parts))
}

/// Creates a temporary file beside `path` with permissions `mode`, limited by the user's umask.
fn beside(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = Permissions::from_mode(mode);
    tempfile::Builder::new().permissions(permissions).tempfile_in(folder)
}

/// Syncs the temporary file, and renames it to its final name.
fn keep(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Writes the next `length` bytes of `file`, which is at `path`, to each of `paths`. No user may
/// read the copies who may not read `file`. Returns the hash of these bytes.
fn cut(
    path: &Path,
    file: &mut File,
    length: u64,
    paths: &[PathBuf],
    hasher: &mut blake3::Hasher,
) -> Result<blake3::Hash, StripeError> {
    let at_file = |error| StripeError::At { path: path.to_owned(), error };
    let at_part = |part: &Path, error| {
        let (file, part) = (path.to_owned(), part.to_owned());
        StripeError::Part { file, part, error }
    };
    let found = file.metadata().map_err(at_file)?;
    let modified = found.modified().map_err(at_file)?;
    let mode = found.mode() & u32::from(MODE_BITS);
    let made = paths.iter().map(|part| beside(part, mode).map_err(|error| at_part(part, error)));
    let mut copies = made.collect::<Result<Vec<_>, _>>()?;
    let mut of_part = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut left = length;
    while left > 0 {
        let next = left.min(READ_BYTES as u64) as usize;
        match file.read(&mut buffer[..next]) {
            Ok(0) => return Err(StripeError::Shrinks(path.to_owned())),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                of_part.update(&buffer[..read]);
                for (copy, part) in copies.iter_mut().zip(paths) {
                    copy.write_all(&buffer[..read]).map_err(|error| at_part(part, error))?;
                }
                left -= read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(at_file(error)),
        }
    }
    for (copy, part) in copies.into_iter().zip(paths) {
        let named = copy.as_file().set_modified(modified).and_then(|()| keep(copy, part));
        named.map_err(|error| at_part(part, error))?;
    }
    Ok(of_part.finalize())
}
