//! Cuts a file into parts for many servers, and writes the manifest that puts them together again.

use crate::targets::{Manifest, Object, Part, TargetError, check_holder, check_name};
use anabranch_gather_proto::msg::MODE_BITS;
use std::fs::{File, Permissions, create_dir_all};
use std::io::{self, Read as _, Write as _};
use std::num::TryFromIntError;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The most parts: each is a line of its own in what the client asks for.
pub const PARTS_MAX: u64 = 65_536;
const READ_BYTES: usize = 1 << 20;

/// What to cut, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The file to cut.
    pub file: PathBuf,
    /// The folder to write to: `0` in it gets what the first server is to serve, `1` what the second is, and so on. The
    /// manifest is `NAME.toml` in it, `NAME` being the file's.
    pub into: PathBuf,
    /// The servers, as clients will reach them: `[NAME@]HOST:PORT`.
    pub servers: Vec<String>,
    /// How many parts to cut; as many as there are servers without. No part is empty, unless all is.
    pub parts: Option<u64>,
    /// How many servers get each part. All of these but one may die.
    pub copies: usize,
}

/// What was cut.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Striped {
    /// Where the manifest is.
    pub manifest: PathBuf,
    /// What it says.
    pub object: Object,
    /// For each server, the folder with its parts.
    pub folders: Vec<PathBuf>,
}

/// Why a file was not cut. Shown, it is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StripeError {
    /// What is no server.
    #[error("servers: {0}")]
    Server(TargetError),
    /// A server that is there twice.
    #[error("servers: {0} is named twice")]
    Twice(String),
    /// More copies than servers, or none.
    #[error("copies {copies}: must be 1 to {servers} servers")]
    Copies {
        /// How many were asked for.
        copies: usize,
        /// How many servers there are.
        servers: usize,
    },
    /// Too many parts, or none.
    #[error("parts {0}: must be 1 to {max}", max = PARTS_MAX)]
    Parts(u64),
    /// A file whose name is no text.
    #[error("{}: a file whose name is plain text", .0.display())]
    NotText(PathBuf),
    /// A name that no object can have.
    #[error(transparent)]
    Name(TargetError),
    /// The file cannot be opened.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something that is no plain file.
    #[error("{}: not a plain file", .0.display())]
    NotPlain(PathBuf),
    /// A time of change that cannot be said in nanoseconds since 1970.
    #[error("{}: its time is no time: {error}", path.display())]
    Time {
        /// The file.
        path: PathBuf,
        /// Why.
        error: TryFromIntError,
    },
    /// The file has become longer meanwhile.
    #[error("{}: it grows while it is cut", .0.display())]
    Grows(PathBuf),
    /// The file has become shorter meanwhile.
    #[error("{}: it has become shorter while it is cut", .0.display())]
    Shrinks(PathBuf),
    /// A file or folder cannot be read or written.
    #[error("{}: {error}", path.display())]
    At {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A part of the file cannot be written.
    #[error("{}: {}: {error}", file.display(), part.display())]
    Part {
        /// The file.
        file: PathBuf,
        /// The part.
        part: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The manifest cannot be written as TOML.
    #[error(transparent)]
    Manifest(#[from] toml::ser::Error),
}

impl StripeError {
    /// Whether what was asked for cannot be, whatever state files are in.
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

/// Cuts the file.
///
/// Errors: see [`StripeError`]. What was written before stays.
pub fn stripe(stripe: &Stripe) -> Result<Striped, StripeError> {
    let (name, parts) = checked(stripe)?;
    let Stripe { file: path, into, servers, copies, .. } = stripe;
    let at_file = |error| StripeError::At { path: path.clone(), error };
    let mut file = File::open(path).map_err(|error| StripeError::Open { path: path.clone(), error })?;
    let found = file.metadata().map_err(at_file)?;
    if !found.is_file() {
        return Err(StripeError::NotPlain(path.clone()));
    }
    let bytes = found.len();
    // No part is empty, unless all is.
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
    let mut listed: Vec<Part> = Vec::new();
    for part in 0..parts {
        let length = end_of(part + 1) - end_of(part);
        let at: Vec<usize> = (0..*copies).map(|copy| (part as usize + copy) % servers.len()).collect();
        let part_name = format!("{name}.{part}");
        let paths: Vec<PathBuf> = at.iter().map(|server| folders[*server].join(&part_name)).collect();
        let hash = cut(path, &mut file, length, &paths, &mut hasher)?;
        let holders = at.iter().map(|server| servers[*server].clone()).collect();
        listed.push(Part {
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
        // As any other program's: what the user's mask leaves.
        let mut written = beside(&manifest, 0o666)?;
        written.write_all(text.as_bytes())?;
        keep(written, &manifest)
    };
    write().map_err(|error| StripeError::At { path: manifest.clone(), error })?;
    Ok(Striped { manifest, object, folders })
}

/// The name of the file to cut, and how many parts are wanted.
///
/// Errors: what cannot be meant.
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
    // Room for the number behind it.
    check_name(&format!("{name}.{PARTS_MAX}")).map_err(StripeError::Name)?;
    Ok((name, parts))
}

/// A new file that will be `path`, and who may read it, if the user's mask lets them.
fn beside(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = Permissions::from_mode(mode);
    tempfile::Builder::new().permissions(permissions).tempfile_in(folder)
}

/// Gives it its name.
fn keep(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Writes the next `length` bytes of `file`, which is at `path`, to each of `paths`, which nobody may read who may not read
/// `file`; their hash.
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
